//! Stacks in virtual time, against each other and against smoltcp's TCP.

mod accurate;
mod ahead;
mod announce;
mod arp;
mod both;
mod budgets;
mod connect;
mod cookies;
mod flood;
mod half_open;
mod handshakes;
mod hostile;
mod icmp;
mod inside;
mod ipv6;
mod keepalive;
mod net;
mod path_mtu;
mod path_probe;
mod peer;
mod questions;
mod readdress;
mod receive;
mod reuse;
mod spread;
mod strangers;
mod transfer;
mod udp;
mod vlan;
mod windows;

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use heddle_base::{Instant, Seed, Sum};

use super::*;
use crate::wire::{EtherType, EthernetHeader, Ipv4Header, MacAddr, TcpHeader, arp as wire_arp};
use crate::wire::{Tag, Vid};
use crate::{ByteQueue, ConnEvent, Flags, Segment, TxSegment};
use net::{Host, Net};

const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 4420;

fn b_addr() -> SocketAddr {
    (B, PORT).into()
}

fn ms(n: u64) -> Instant {
    Instant::from_millis(n)
}

fn config(mac: [u8; 6], ip: Ipv4Addr) -> StackConfig {
    let addr = Cidr::new(ip.into(), 24).unwrap();
    let mut c = StackConfig::new(mac, addr, Seed::from_u64(u64::from(mac[5])));
    c.max_conns = 64;
    // Small numbers show the behaviour at the bounds.
    c.min_backlog = 0;
    c.syn_cookies = SynCookies::Off;
    (c.peer_half_open, c.peer_conns) = (PeerLimit::Unlimited, PeerLimit::Unlimited);
    c
}

fn config_a() -> StackConfig {
    config(MAC_A, A)
}

fn config_b() -> StackConfig {
    config(MAC_B, B)
}

/// Returns a stack B that listens, knows the neighbor A, and has nothing to send.
fn listening_b(backlog: usize) -> Stack<ByteQueue> {
    handshakes::listening(backlog, |_| {})
}

/// Makes A ask for B, so that B knows A.
fn introduce_a(b: &mut Stack<ByteQueue>, now: Instant) {
    b.handle_frame(now, &arp_frame(wire_arp::Operation::Request, A, MAC_A, B, [0; 6])[..]);
    while b.poll_transmit(now).is_some() {}
}

/// Returns an ARP packet of `sender`.
fn arp_frame(
    operation: wire_arp::Operation,
    sender_ip: Ipv4Addr,
    sender_mac: [u8; 6],
    target_ip: Ipv4Addr,
    target_mac: [u8; 6],
) -> Vec<u8> {
    let dst = if target_mac == [0; 6] { MacAddr::BROADCAST } else { MacAddr(target_mac) };
    let mut eth = [0; 14];
    EthernetHeader { dst, src: MacAddr(sender_mac), ethertype: EtherType::ARP }.emit(&mut eth);
    let mut packet = [0; 28];
    wire_arp::Arp {
        operation,
        sender_mac: MacAddr(sender_mac),
        sender_ip,
        target_mac: MacAddr(target_mac),
        target_ip,
    }
    .emit(&mut packet);
    [&eth[..], &packet].concat()
}

/// Returns an IPv4 frame from A's station to B's.
fn ip_frame(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut eth = [0; 14];
    EthernetHeader { dst: MacAddr(MAC_B), src: MacAddr(MAC_A), ethertype: EtherType::IPV4 }
        .emit(&mut eth);
    let mut ip = [0; 20];
    Ipv4Header {
        src,
        dst,
        protocol,
        ttl: 64,
        traffic_class: 0,
        header_len: 20,
        total_len: 20 + payload.len(),
        fragment: false,
    }
    .emit(&mut ip);
    [&eth[..], &ip, payload].concat()
}

/// Returns a TCP segment from `src` to `dst`, built by the same template as B's own frames.
fn tcp_frame(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16), seg: &TxSegment, data: &[u8]) -> Vec<u8> {
    let flow = FlowKey::v4(src.0, src.1, dst.0, dst.1);
    let seg = TxSegment { len: u32::try_from(data.len()).unwrap(), ..*seg };
    let common = template::Common { mac: MacAddr(MAC_A), ttl: 64, dscp: 0, tag: Tag(0) };
    let template = template::HeaderTemplate::new(common, &flow, 0);
    let off = Offloads { tcp: false, ip: false };
    let mut f =
        template.frame(MacAddr(MAC_B), &seg, &crate::SackBlocks::default(), TxBody::None, off);
    f.finish_tcp_checksum(Sum::of(data));
    [&f.header[..], data].concat()
}

fn syn(seq: u32) -> TxSegment {
    TxSegment {
        seq: crate::SeqNumber(seq),
        flags: Flags::SYN,
        window: 0xffff,
        mss: Some(1460),
        ..TxSegment::default()
    }
}

fn segment(seq: u32, ack: u32, flags: Flags) -> TxSegment {
    TxSegment {
        seq: crate::SeqNumber(seq),
        ack: crate::SeqNumber(ack),
        flags,
        window: 0xffff,
        ..TxSegment::default()
    }
}

/// Returns all frames that the stack has to send, with their payload.
fn frames(s: &mut Stack<ByteQueue>, now: Instant) -> Vec<Vec<u8>> {
    core::iter::from_fn(|| s.poll_transmit(now).map(|mut f| net::assemble(s, &mut f))).collect()
}

fn events(s: &mut Stack<ByteQueue>) -> Vec<(ConnId, StackEvent)> {
    core::iter::from_fn(|| s.poll_event()).collect()
}

/// Returns the TCP segment in a frame; checksums must be right.
fn read_tcp(frame: &[u8]) -> (TcpHeader, Segment) {
    let ip = Ipv4Header::parse(&frame[14..], frame.len() - 14).unwrap();
    assert!(ip.checksum_valid(&frame[14..]));
    let tcp = &frame[34..14 + ip.total_len];
    let len = u16::try_from(tcp.len()).unwrap();
    let sum = crate::wire::ipv4::pseudo_header(ip.src, ip.dst, len).plus(Sum::of(tcp));
    assert!(sum.is_valid());
    let h = TcpHeader::parse(tcp, tcp.len()).unwrap();
    (h, h.segment)
}

/// Checks that each connection knows the time for which its timer is armed.
fn check_timers(s: &Stack<ByteQueue>) {
    for index in 0..s.conns.end() {
        if let Some(e) = s.conns.get(index) {
            assert_eq!(e.armed, s.timers.armed(index), "connection {index}");
        }
    }
}

/// Completes the handshake of a connection from A:1000 to B. Returns its key, and the next sequence
/// numbers of A and of B.
fn established(b: &mut Stack<ByteQueue>, now: Instant) -> (ConnId, u32, u32) {
    b.handle_frame(now, &tcp_frame((A, 1000), (B, PORT), &syn(100), b"")[..]);
    let answer = frames(b, now);
    let (_, seg) = read_tcp(&answer[0]);
    assert_eq!((seg.flags, seg.ack.0), (Flags::SYN.with(Flags::ACK), 101));
    let next = seg.seq.0.wrapping_add(1);
    let ack = segment(101, next, Flags::ACK);
    b.handle_frame(now, &tcp_frame((A, 1000), (B, PORT), &ack, b"")[..]);
    let [(id, StackEvent::Accepted { local, remote })] = events(b)[..] else { panic!("accepted") };
    assert_eq!((local, remote), (b_addr(), (A, 1000).into()));
    (id, 101, next)
}
