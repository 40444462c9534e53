//! Frames that no honest peer sends, and a stack that gets them beside an established connection.
//!
//! The attacker knows addresses and ports of the connection, and none of its sequence numbers. Its
//! frames have right checksums, which the stack verifies as it has to without help of a device.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use heddle_base::{Instant, Random, Seed, Sum};
use heddle_tcp::wire::{EtherType, EthernetHeader, Ipv4Header, Ipv6Header, MacAddr};
use heddle_tcp::wire::{ethernet, ipv4, ipv6, tcp};
use heddle_tcp::{
    Addressing, ByteQueue, Cidr, Flags, FrameOutcome, SackBlocks, SeqNumber, Stack, StackConfig,
    StackCounters, StackEvent, Timestamps, Train, TxFrame, TxSegment,
};

/// A frame of an attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// A SYN for the listener, from an address of its own.
    Syn,
    /// An ACK for the listener, from an address of its own: it may guess a cookie.
    Stray,
    /// A RST of the connection.
    Reset,
    /// A SYN of the connection.
    LateSyn,
    /// A FIN of the connection.
    Fin,
    /// A hundred bytes of the connection.
    Data,
    /// An ICMP error about the connection.
    Icmp,
}

impl Hostile {
    /// All kinds.
    pub const ALL: [Hostile; 7] = [
        Hostile::Syn,
        Hostile::Stray,
        Hostile::Reset,
        Hostile::LateSyn,
        Hostile::Fin,
        Hostile::Data,
        Hostile::Icmp,
    ];
}

impl fmt::Display for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Hostile::Syn => "syn",
            Hostile::Stray => "stray-ack",
            Hostile::Reset => "reset",
            Hostile::LateSyn => "late-syn",
            Hostile::Fin => "fin",
            Hostile::Data => "data",
            Hostile::Icmp => "icmp",
        })
    }
}

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The port that listens, and the port of the honest peer.
const PORT: u16 = 7471;
const PEER_PORT: u16 = 50_000;
/// Frames that the stack gets in a turn.
pub const BURST: usize = 64;

/// A stack with a listener and a connection.
pub struct Victim {
    stack: Stack<ByteQueue>,
    now: Instant,
    random: Random,
    is_ipv6: bool,
    turn: Duration,
    /// True if the worker finds work for connections in every turn.
    busy: bool,
    /// The next segment of the honest peer.
    next: TxSegment,
    data: Vec<u8>,
    frame: TxFrame,
}

/// The time of the stack's clock at the beginning, and the length of a turn.
const BEGIN: Instant = Instant::from_millis(1000);
const TURN: Duration = Duration::from_micros(50);

/// Segments of the honest peer in a turn, and their bytes.
const SEGMENTS: usize = 16;
const SEGMENT: usize = 1400;

impl Victim {
    /// Returns a stack at 10.0.0.1/24, or fd00::1/64, whose connection is established. Returns `None`
    /// if it is not, which would be a defect.
    pub fn new(is_ipv6: bool) -> Option<Victim> {
        let local = if is_ipv6 { Cidr::new(us(true), 64)? } else { Cidr::new(us(false), 8)? };
        let net = Addressing::new(vec![local], Vec::new()).ok()?;
        let cfg =
            StackConfig { max_conns: 1 << 14, ..StackConfig::of(OURS, net, Seed::from_u64(1)) };
        let mut stack = Stack::new(cfg);
        stack.listen(None, PORT, 2048).ok()?;
        let random = Random::new(&Seed::from_u64(2));
        let next = TxSegment::default();
        let data = vec![7; SEGMENT];
        let (now, frame, busy) = (BEGIN, TxFrame::default(), false);
        let mut v = Victim { stack, now, random, is_ipv6, turn: TURN, busy, next, data, frame };
        let syn = TxSegment { seq: SeqNumber(100), ..syn() };
        v.stack.handle_frame(v.now, &v.of_peer(&syn, &[])[..]);
        let answer = v.stack.poll_transmit(v.now)?;
        let at = usize::from(answer.l2_len) + usize::from(answer.l3_len);
        let parsed = tcp::TcpHeader::parse(&answer.header[at..], answer.header.len() - at).ok()?;
        let clock = parsed.segment.timestamps?.val;
        let ack = TxSegment {
            seq: SeqNumber(101),
            ack: parsed.segment.seq.advance(1),
            flags: Flags::ACK,
            window: u16::MAX,
            timestamps: Some(Timestamps { val: 5000, ecr: clock }),
            ..TxSegment::default()
        };
        v.stack.handle_frame(v.now, &v.of_peer(&ack, &[])[..]);
        v.next = ack;
        let accepted = matches!(v.stack.poll_event(), Some((_, StackEvent::Accepted { .. })));
        accepted.then_some(v)
    }

    /// Returns `n` frames of this kind, each with its own numbers and, where the kind has no
    /// connection, its own source.
    pub fn frames(&mut self, kind: Hostile, n: usize) -> Vec<Vec<u8>> {
        (0..n).map(|_| self.forge(kind)).collect()
    }

    fn forge(&mut self, kind: Hostile) -> Vec<u8> {
        let number = |r: &mut Random| u32::try_from(r.next_u64() >> 32).unwrap_or(0);
        let (seq, ack) = (number(&mut self.random), number(&mut self.random));
        let seg = |flags| TxSegment {
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags,
            window: 1000,
            timestamps: Some(Timestamps { val: 6000, ecr: ack }),
            ..TxSegment::default()
        };
        match kind {
            Hostile::Syn => {
                let from = self.stranger();
                segment(from, self.us(), &TxSegment { seq: SeqNumber(seq), ..syn() }, &[])
            }
            Hostile::Stray => segment(self.stranger(), self.us(), &seg(Flags::ACK), &[]),
            Hostile::Reset => self.of_peer(&seg(Flags::RST), &[]),
            Hostile::LateSyn => self.of_peer(&TxSegment { seq: SeqNumber(seq), ..syn() }, &[]),
            Hostile::Fin => self.of_peer(&seg(Flags::FIN.with(Flags::ACK)), &[]),
            Hostile::Data => self.of_peer(&seg(Flags::ACK), &[7; 100]),
            Hostile::Icmp => self.icmp(seq),
        }
    }

    /// Says whether connections keep the worker busy: then strangers have their share of its time
    /// alone. A new victim's worker has nothing else to do, and takes every frame.
    pub fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
    }

    /// Sets the stack's clock to a time since the beginning, which does not run back. A victim whose
    /// owner never does so takes each of its turns to last 50 us.
    pub fn set_clock(&mut self, since: Duration) {
        self.turn = Duration::ZERO;
        self.now = self.now.max(BEGIN + since);
    }

    /// Hands the frames to the stack, a turn for each burst, and lets it send what it wants. Returns
    /// the frames that it sent.
    pub fn take(&mut self, frames: &[Vec<u8>]) -> usize {
        let mut sent = 0;
        for burst in frames.chunks(BURST) {
            self.now = self.now + self.turn;
            if self.stack.is_due(self.now) {
                self.stack.handle_timeouts(self.now);
            }
            if !self.busy {
                self.stack.rest();
            }
            for frame in burst {
                self.stack.handle_frame(self.now, &frame[..]);
            }
            sent += self.transmit();
        }
        sent
    }

    /// Lets the honest peer send a few segments, and the stack's owner take them. Returns their bytes,
    /// which are 0 once the connection has ended.
    pub fn exchange(&mut self) -> usize {
        self.now = self.now + self.turn;
        let mut bytes = 0;
        for _ in 0..SEGMENTS {
            let frame = self.of_peer(&self.next, &self.data);
            let outcome = self.stack.handle_frame(self.now, &frame[..]);
            if let FrameOutcome::Conn { conn, payload: Some(p), .. } = outcome
                && p.in_order
            {
                self.stack.accept_payload(self.now, conn, p.pos, p.len);
                bytes += p.len as usize;
                self.next.seq = self.next.seq.advance(p.len);
            }
        }
        self.transmit();
        bytes
    }

    /// Lets the stack send what it wants, as a worker does. Returns the number of frames.
    fn transmit(&mut self) -> usize {
        let mut sent = 0;
        while self.stack.poll_transmit_into(self.now, Train::NONE, &mut self.frame) > 0 {
            sent += 1;
        }
        sent
    }

    /// Returns true if the connection takes bytes of its peer.
    pub fn still_works(&mut self) -> bool {
        self.exchange() == SEGMENTS * SEGMENT
    }

    /// Returns the counters of the stack.
    pub fn counters(&self) -> &StackCounters {
        self.stack.counters()
    }

    /// Returns the connections of the stack, half-open ones included.
    pub fn connections(&self) -> usize {
        self.stack.connections()
    }

    fn us(&self) -> SocketAddr {
        SocketAddr::new(us(self.is_ipv6), PORT)
    }

    fn of_peer(&self, seg: &TxSegment, data: &[u8]) -> Vec<u8> {
        segment(SocketAddr::new(peer(self.is_ipv6), PEER_PORT), self.us(), seg, data)
    }

    /// Returns an address and a port that no other frame has, most likely.
    fn stranger(&mut self) -> SocketAddr {
        let n = self.random.next_u64();
        let [a, b, c, d, e, f, ..] = n.to_be_bytes();
        let ip = if self.is_ipv6 {
            let [a, b] = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
            IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, a, b, a ^ b, 9))
        } else {
            IpAddr::V4(Ipv4Addr::new(10, a.max(1), b, c.clamp(1, 250)))
        };
        SocketAddr::new(ip, u16::from_be_bytes([e, f]).max(1))
    }

    /// Returns the error "fragmentation needed" or "packet too big" about a segment of the
    /// connection.
    fn icmp(&self, seq: u32) -> Vec<u8> {
        let seg = TxSegment { seq: SeqNumber(seq), flags: Flags::ACK, ..TxSegment::default() };
        let from = SocketAddr::new(peer(self.is_ipv6), PEER_PORT);
        let quoted = segment(self.us(), from, &seg, &[0; 100]);
        let quoted = &quoted[ethernet::HEADER_LEN..];
        let (kind, code, next) =
            if self.is_ipv6 { (2, 0, ipv6::ICMP) } else { (3, 4, ipv4::PROTO_ICMP) };
        let mut message = vec![kind, code, 0, 0, 0, 0, 5, 220];
        message.extend_from_slice(quoted);
        let len = u32::try_from(message.len()).unwrap_or(0);
        let pseudo = match (from.ip(), self.us().ip()) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => ipv6::pseudo_header(next, src, dst, len),
            _ => Sum::ZERO,
        };
        let sum = pseudo.plus(Sum::of(&message)).complement();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        packet(from.ip(), self.us().ip(), next, &message)
    }
}

fn us(is_ipv6: bool) -> IpAddr {
    if is_ipv6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))
    }
}

fn peer(is_ipv6: bool) -> IpAddr {
    if is_ipv6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))
    }
}

/// Returns a SYN as Linux sends it.
fn syn() -> TxSegment {
    TxSegment {
        flags: Flags::SYN,
        window: 64_240,
        mss: Some(1440),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { val: 4000, ecr: 0 }),
        ..TxSegment::default()
    }
}

/// Returns the frame of a segment between two ends of one family.
fn segment(src: SocketAddr, dst: SocketAddr, seg: &TxSegment, data: &[u8]) -> Vec<u8> {
    let mut options = arrayvec::ArrayVec::<u8, { tcp::MAX_OPTIONS_LEN }>::new();
    tcp::emit_options(seg, &SackBlocks::default(), &mut options);
    let header = tcp::HEADER_LEN + options.len();
    let mut text = Vec::with_capacity(header + data.len());
    text.extend(src.port().to_be_bytes());
    text.extend(dst.port().to_be_bytes());
    text.extend(seg.seq.0.to_be_bytes());
    text.extend(seg.ack.0.to_be_bytes());
    let offset = u16::from(u8::try_from(header * 4).unwrap_or(0)) << 8;
    text.extend((offset | seg.flags.0).to_be_bytes());
    text.extend(seg.window.to_be_bytes());
    text.extend([0; 4]);
    text.extend(&options);
    text.extend(data);
    let pseudo = match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            ipv4::pseudo_header(src, dst, u16::try_from(text.len()).unwrap_or(0))
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            ipv6::pseudo_header(ipv6::TCP, src, dst, u32::try_from(text.len()).unwrap_or(0))
        }
        _ => Sum::ZERO,
    };
    let sum = pseudo.plus(Sum::of(&text)).complement();
    text[16..18].copy_from_slice(&sum.to_be_bytes());
    packet(src.ip(), dst.ip(), ipv4::PROTO_TCP, &text)
}

fn packet(src: IpAddr, dst: IpAddr, protocol: u8, text: &[u8]) -> Vec<u8> {
    let ethertype = if src.is_ipv6() { EtherType::IPV6 } else { EtherType::IPV4 };
    let mut eth = [0; ethernet::HEADER_LEN];
    EthernetHeader { dst: MacAddr(OURS), src: MacAddr(ROUTER), ethertype }.emit(&mut eth);
    match (src, dst) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut ip = [0; ipv6::HEADER_LEN];
            Ipv6Header {
                src,
                dst,
                next_header: protocol,
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
                payload_len: text.len(),
            }
            .emit(&mut ip);
            [&eth[..], &ip, text].concat()
        }
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut ip = [0; ipv4::HEADER_LEN];
            Ipv4Header {
                src,
                dst,
                protocol,
                ttl: 64,
                traffic_class: 0,
                header_len: ipv4::HEADER_LEN,
                total_len: ipv4::HEADER_LEN + text.len(),
                fragment: false,
            }
            .emit(&mut ip);
            [&eth[..], &ip, text].concat()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Each kind reaches the code that it is to measure, and the connection stands.
    #[test]
    fn test_hostile_frames_reach_their_defence_and_end_no_connection() {
        for is_ipv6 in [false, true] {
            for kind in Hostile::ALL {
                let mut v = Victim::new(is_ipv6).unwrap();
                if kind == Hostile::Stray {
                    // Cookies are out.
                    let syns = v.frames(Hostile::Syn, 3000);
                    v.take(&syns);
                }
                let before = *v.counters();
                let frames = v.frames(kind, 3000);
                v.take(&frames);
                let c = v.counters();
                let (got, want) = match kind {
                    Hostile::Syn => (c.syn_cookies_sent + c.half_opened - before.half_opened, 3000),
                    Hostile::Stray => (c.syn_cookies_failed, 3000),
                    Hostile::Icmp => (c.icmp_unmatched, 3000),
                    _ => (c.rx_segments - before.rx_segments, 3000),
                };
                assert_eq!(got, want, "{kind} {is_ipv6}");
                assert!(v.connections() >= 1, "{kind}");
                assert_eq!(v.stack.poll_event(), None, "{kind}");
                assert!(v.still_works(), "{kind}");
            }
        }
    }
}
