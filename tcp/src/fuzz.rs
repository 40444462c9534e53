//! Entry points for fuzzing: the code below must take any bytes at all without a panic.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use heddle_base::{Instant, Seed};

use heddle_types::ConnId;

use crate::wire::vlan::{TAG_AT, TAG_LEN};
use crate::wire::{Ipv4Header, Ipv6Header, TcpHeader, UdpHeader, arp, icmpv4, icmpv6, udp};
use crate::{
    Addressing, ByteQueue, Cidr, ConnEvent, FrameOutcome, Keepalive, Priority, Stack, StackConfig,
    StackEvent, Tag, TxBody, TxDatagram, Vid, Vlan,
};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Our address in VLAN 10.
const US10: Ipv4Addr = Ipv4Addr::new(10, 0, 10, 1);
const US6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const PEER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// Parses `data` as each of the formats. Returns true if `data` is a valid instance of one.
pub fn wire(data: &[u8]) -> bool {
    let ip = Ipv4Header::parse(data, data.len());
    if let Ok(h) = &ip {
        let _ = h.checksum_valid(data);
    }
    let tcp = TcpHeader::parse(data, data.len()).is_ok();
    let arp = arp::Arp::parse(data).is_ok();
    if let Ok(h) = UdpHeader::parse(data, data.len()) {
        let _ = udp::checksum_valid(US.into(), PEER.into(), &data[..h.len]);
        let _ = udp::checksum_valid(US6.into(), PEER6.into(), &data[..h.len]);
    }
    let ip6 = Ipv6Header::parse(data, data.len()).is_ok();
    let _ = icmpv6::quoted(data);
    let icmp6 = icmpv6::Message::parse(data, PEER6, US6).is_some();
    ip.is_ok() || ip6 || tcp || arp || icmp6 || icmpv4::Message::parse(data).is_some()
}

/// Drives a stack by `data`: records of a control byte (the action to take, and how much time
/// passes), a length and a frame. The stack needs no valid checksums in these frames, and `take`
/// writes the addresses that the stack accepts into a frame, so that the fuzzer can reach the code
/// after those checks. Returns true if there was a connection.
pub fn stack(data: &[u8]) -> bool {
    let Some(mut driver) = Driver::new() else { return false };
    let mut rest = data;
    while let [control, len, tail @ ..] = rest {
        let (frame, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        driver.step(*control, *len, frame);
    }
    driver.connected
}

/// The stack that [`stack`] drives, step by step, for programs that make fuzzing inputs.
pub struct Driver {
    stack: Stack<ByteQueue>,
    now: Instant,
    conns: Vec<ConnId>,
    connected: bool,
}

impl Driver {
    /// Returns a driver whose stack listens on port 80 of 10.0.0.1, fd00::1 and, in VLAN 10,
    /// 10.0.10.1, and answers each datagram to UDP port 80 with the same bytes; the peers of the
    /// stack are at 10.0.0.2 and fd00::2.
    pub fn new() -> Option<Driver> {
        let addrs = vec![Cidr::new(US.into(), 24)?, Cidr::new(US6.into(), 64)?];
        let in_vlan = Addressing::new(vec![Cidr::new(US10.into(), 24)?], Vec::new()).ok()?;
        let vlan = Vlan { priority: Priority::Dscp, ..Vlan::new(Vid::new(10)?, in_vlan) };
        let net = Addressing::new(addrs, Vec::new()).ok()?.with_vlans(vec![vlan]).ok()?;
        let mut cfg = StackConfig::of(MAC, net, Seed::from_u64(1));
        cfg.max_conns = 16;
        cfg.max_neighbors = 8;
        let keepalive = Keepalive { idle: Duration::from_secs(60), ..Keepalive::default() };
        cfg.conn.keepalive = Some(keepalive);
        let mut stack = Stack::new(cfg);
        let _ = stack.listen(None, 80, 4);
        stack.bind_udp(80, std::sync::Arc::new(()));
        Some(Driver { stack, now: Instant::ZERO, conns: Vec::new(), connected: false })
    }

    /// Executes one record and returns the frames that the stack then sends.
    pub fn step(&mut self, control: u8, len: u8, frame: &[u8]) -> Vec<Vec<u8>> {
        let (s, conns) = (&mut self.stack, &mut self.conns);
        self.now = self.now + Duration::from_millis(1 << (control >> 4));
        let now = self.now;
        match control & 7 {
            0 => {
                let port = u16::from(len);
                let peer = if control & 8 == 0 { IpAddr::V4(PEER) } else { IpAddr::V6(PEER6) };
                conns.extend(s.connect(now, SocketAddr::from((peer, 80)), Some(port)).ok());
            }
            1 => conns.iter().take(1).for_each(|&c| s.close(c)),
            2 => conns.drain(..conns.len().min(1)).for_each(|c| s.release(c)),
            3 => conns.iter().for_each(|&c| {
                if let Some(q) = s.user_mut(c) {
                    q.push(frame);
                }
                s.notify_send(c);
            }),
            _ => take(s, now, frame, control & 8 != 0),
        }
        while let Some(d) = s.poll_datagram() {
            assert!(d.payload_at <= d.bytes.len() && d.bytes.len() <= frame.len());
            let payload = d.payload().to_vec();
            let (local, remote, to_stranger) = (d.local, d.remote, !d.known);
            s.send_datagram(now, &TxDatagram { local, remote, payload, to_stranger });
        }
        s.handle_timeouts(now);
        while let Some((id, event)) = s.poll_event() {
            self.connected |= event == StackEvent::Conn(ConnEvent::Connected)
                || matches!(event, StackEvent::Accepted { .. });
            if !conns.contains(&id) {
                conns.push(id);
            }
        }
        let mut sent = Vec::new();
        while let Some(f) = s.poll_transmit(now) {
            debug_assert!(!matches!(f.body, TxBody::Stream { len: 0, .. }));
            let mut frame = f.header.to_vec();
            match &f.body {
                TxBody::None => {}
                TxBody::Owned(b) => frame.extend(b),
                TxBody::Stream { conn, pos, len, .. } => {
                    if let Some(q) = s.user(*conn) {
                        q.copy(*pos, *len, &mut frame);
                    }
                }
            }
            sent.push(frame);
        }
        sent
    }
}

fn take(s: &mut Stack<ByteQueue>, now: Instant, frame: &[u8], addressed: bool) {
    let mut frame = frame.to_vec();
    if addressed && frame.len() >= 54 && frame[12] == 0x86 {
        if frame[0] & 1 == 0 {
            frame[..6].copy_from_slice(&MAC);
            frame[38..54].copy_from_slice(&US6.octets());
        }
        frame[13] = 0xdd;
        frame[22..38].copy_from_slice(&PEER6.octets());
    } else if addressed && frame.len() >= 34 {
        frame[..6].copy_from_slice(&MAC);
        frame[12] = 8;
        frame[13] &= 6;
        frame[26..30].copy_from_slice(&PEER.octets());
        frame[30..34].copy_from_slice(&US.octets());
    }
    let len = frame.len();
    let outcome = s.handle_frame(now, Trusted::new(frame));
    if let FrameOutcome::Conn { conn, acked, payload } = outcome {
        if let (Some(upto), Some(q)) = (acked, s.user_mut(conn)) {
            q.release(upto);
        }
        if let Some(p) = payload {
            assert!(p.len > 0 && p.frame_off + p.len as usize <= len);
            s.accept_payload(now, conn, p.pos, p.len);
        }
    }
}

/// A frame whose checksums the port found right, and whose tag can be taken out.
pub struct Trusted {
    bytes: Vec<u8>,
    tag: Option<Tag>,
}

impl Trusted {
    /// Returns the frame as it came.
    pub fn new(bytes: Vec<u8>) -> Trusted {
        Trusted { bytes, tag: None }
    }
}

impl heddle_base::Chunks for Trusted {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        self.bytes.get(off..).unwrap_or(&[])
    }
}

impl crate::RxFrame for Trusted {
    fn checksum(&self) -> crate::RxChecksum {
        crate::RxChecksum::Good
    }

    fn tag(&self) -> Option<Tag> {
        self.tag
    }

    fn take_tag(&mut self) -> bool {
        let tag = Tag::of(&self.bytes);
        if tag.is_some() {
            self.bytes.drain(TAG_AT..TAG_AT + TAG_LEN);
            self.tag = tag;
        }
        tag.is_some()
    }
}
