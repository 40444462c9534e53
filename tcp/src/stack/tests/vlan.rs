//! VLANs: each is a link of its own, and its frames have its tag.

use core::net::{Ipv6Addr, SocketAddrV6};
use core::time::Duration;

use heddle_types::ConnectError;

use super::net::{Faults, Received, Station};
use super::*;
use crate::autoconf::RouterAdverts;
use crate::wire::icmpv6::{neighbor_advert, neighbor_solicit};
use crate::wire::{Ipv6Header, Priority, ipv6, vlan};

mod crossings;
mod links;

const MINUTE: Duration = Duration::from_secs(60);
const MAC_C: [u8; 6] = [2, 0, 0, 0, 0, 0xc];

fn vid(n: u16) -> Vid {
    Vid::new(n).unwrap()
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn vlan_of(id: u16, addrs: &[&str]) -> Vlan {
    let addrs = addrs.iter().map(|a| cidr(a)).collect();
    Vlan::new(vid(id), Addressing::new(addrs, Vec::new()).unwrap())
}

/// Returns the addresses of a port with these VLANs.
fn net(own: &[&str], vlans: Vec<Vlan>) -> Addressing {
    let own = own.iter().map(|a| cidr(a)).collect();
    Addressing::new(own, Vec::new()).unwrap().with_vlans(vlans).unwrap()
}

fn stack(mac: [u8; 6], net: Addressing) -> StackConfig {
    StackConfig { net, ..config(mac, A) }
}

/// Returns the frame with a tag.
fn tagged(tci: u16, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &Tag(tci).bytes(), &frame[12..]].concat()
}

/// Returns the tag of a frame, and the frame without it.
fn split(frame: &[u8]) -> (Option<Tag>, Vec<u8>) {
    let mut f = Received::of(frame);
    f.take_tag();
    (f.tag, f.bytes)
}

fn handle(s: &mut Stack<ByteQueue>, now: Instant, frame: &[u8]) -> FrameOutcome {
    s.handle_frame(now, &mut Received::of(frame))
}

/// Hands over a frame whose tag the port has taken out.
fn handle_stripped(s: &mut Stack<ByteQueue>, now: Instant, frame: &[u8]) -> FrameOutcome {
    let (tag, bytes) = split(frame);
    s.handle_frame(now, &mut Received { bytes, tag })
}

/// Hosts with an address beside VLANs and one in VLAN 10, where A's frames have priority 5.
fn two_hosts() -> Net<Host, Host> {
    let mut ten = vlan_of(10, &["10.0.10.1/24", "fd00:10::1/64"]);
    ten.priority = Priority::Fixed(5);
    let a = net(&["10.0.0.1/24"], vec![ten]);
    let b = net(&["10.0.0.2/24"], vec![vlan_of(10, &["10.0.10.2/24", "fd00:10::2/64"])]);
    let mut n = Net::new(Host::new(stack(MAC_A, a)), Host::new(stack(MAC_B, b)), 1);
    n.b.stack.listen(None, PORT, 8).unwrap();
    n
}

#[test]
fn test_bytes_pass_in_a_vlan_and_beside_it() {
    for to in ["10.0.10.2", "fd00:10::2", "10.0.0.2"] {
        for faults in [Faults::default(), Faults { loss: 0.02, reorder: 0.1, duplicate: 0.02 }] {
            let mut n = two_hosts();
            n.faults = faults;
            let remote = SocketAddr::new(ip(to), PORT);
            let a = n.a.stack.connect(n.now, remote, None).unwrap();
            n.run("connect", MINUTE, |n| {
                n.a.says(a, ConnEvent::Connected) && n.b.accepted().is_some()
            });
            let b = n.b.accepted().unwrap();
            let bytes = transfer::pattern(200_000, 3);
            n.a.send(a, &bytes);
            n.b.send(b, &bytes);
            n.run("transfer", MINUTE, |n| {
                n.a.got(a).len() == bytes.len() && n.b.got(b).len() == bytes.len()
            });
            assert!(n.a.got(a) == bytes && n.b.got(b) == bytes, "{to}");
            let c = n.b.stack.counters();
            assert_eq!((c.rx_unknown_vlan, c.rx_stacked_tags, c.rx_other_host), (0, 0, 0));
        }
    }
}

/// Every frame of a connection in a VLAN has the VLAN's tag: questions for the neighbor, segments,
/// and a reset.
#[test]
fn test_every_frame_of_a_vlan_has_its_tag() {
    let mut n = two_hosts();
    let remote = SocketAddr::new(ip("10.0.10.2"), PORT);
    n.a.stack.connect(n.now, remote, None).unwrap();
    let mut kinds = Vec::new();
    for _ in 0..4 {
        while let Some(f) = n.a.transmit(n.now) {
            let (tag, inner) = split(&f);
            assert_eq!(tag, Some(Tag::new(vid(10), 5)));
            kinds.push(u16::from_be_bytes([inner[12], inner[13]]));
            n.b.handle(n.now, &f);
        }
        while let Some(f) = n.b.transmit(n.now) {
            assert_eq!(split(&f).0, Some(Tag::new(vid(10), 0)));
            n.a.handle(n.now, &f);
        }
    }
    assert_eq!(kinds, [0x0806, 0x0800, 0x0800]);
    // Port 1 has no listener.
    let b = &mut n.b.stack;
    let syn = tcp_frame(([10, 0, 10, 1].into(), 9), ([10, 0, 10, 2].into(), 1), &syn(1), b"");
    handle(b, ms(1), &tagged(10, &syn));
    let out = frames(b, ms(1));
    let (tag, reset) = split(&out[0]);
    assert_eq!(
        (tag.map(Tag::vid), read_tcp(&reset).1.flags.has(Flags::RST)),
        (Some(vid(10)), true)
    );
}

/// B has an address beside VLANs, in VLAN 10 and in VLAN 20; A is known on all three links.
fn host_b() -> Stack<ByteQueue> {
    let vlans = vec![vlan_of(10, &["10.0.10.2/24"]), vlan_of(20, &["10.0.20.2/24"])];
    let mut b = Stack::new(stack(MAC_B, net(&["10.0.0.2/24"], vlans)));
    b.listen(None, PORT, 8).unwrap();
    b
}

fn addr(third: u8, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, third, last)
}

/// Returns A's SYN to B's address in the VLAN of this number.
fn syn_to(third: u8) -> Vec<u8> {
    tcp_frame((addr(third, 1), 1000), (addr(third, 2), PORT), &syn(100), b"")
}

#[test]
fn test_frames_of_vlans_that_a_port_has_not_are_dropped_and_counted() {
    type Count = fn(&StackCounters) -> u64;
    let (unknown, stacked): (Count, Count) = (|c| c.rx_unknown_vlan, |c| c.rx_stacked_tags);
    let truncated: Count = |c| c.rx_truncated;
    let syn = syn_to(10);
    let mut service = tagged(10, &syn);
    service[12..14].copy_from_slice(&[0x88, 0xa8]);
    let arp = arp_frame(wire_arp::Operation::Request, addr(10, 1), MAC_A, addr(10, 2), [0; 6]);
    for (what, frame, count) in [
        ("another VLAN", tagged(11, &syn), unknown),
        ("the reserved identifier", tagged(4095, &syn), unknown),
        ("ARP of another VLAN", tagged(11, &arp), unknown),
        ("a second tag", tagged(10, &tagged(10, &syn)), stacked),
        ("a tag after one of priority", tagged(0, &tagged(10, &syn)), stacked),
        ("a provider's tag", service.clone(), stacked),
        ("a provider's tag after one", tagged(10, &service), stacked),
        ("no more than a tag", tagged(10, &syn)[..16].to_vec(), truncated),
        ("half a tag", tagged(10, &syn)[..14].to_vec(), truncated),
        ("a tag and a type", tagged(10, &syn)[..18].to_vec(), truncated),
    ] {
        for hand in [handle, handle_stripped] {
            let mut b = host_b();
            assert_eq!(hand(&mut b, ms(1), &frame), FrameOutcome::Done);
            assert_eq!(count(b.counters()), 1, "{what}");
            assert_eq!((b.connections(), frames(&mut b, ms(1)).len()), (0, 0), "{what}");
        }
    }
    // The whole frame is answered.
    for hand in [handle, handle_stripped] {
        let mut b = host_b();
        hand(&mut b, ms(1), &tagged(10, &syn));
        let out = frames(&mut b, ms(1));
        assert_eq!((b.connections(), split(&out[0]).0), (1, Some(Tag::new(vid(10), 0))));
    }
}

#[test]
fn test_a_tag_with_a_priority_alone_belongs_to_no_vlan() {
    for (hand, tci) in
        [(handle as fn(&mut _, _, &_) -> _, 0), (handle, 0x6000), (handle_stripped, 0xe000)]
    {
        let mut b = host_b();
        hand(&mut b, ms(1), &tagged(tci, &syn_to(0)));
        let out = frames(&mut b, ms(1));
        assert_eq!((b.connections(), split(&out[0]).0), (1, None));
    }
}

#[test]
fn test_an_address_takes_only_what_comes_on_its_link() {
    let tags = [(0u8, None), (10, Some(10)), (20, Some(20))];
    for (third, at) in tags {
        for (_, on) in tags {
            for listens in [None, Some(IpAddr::V4(addr(third, 2)))] {
                let mut b = host_b();
                b.unlisten(ms(0), None, PORT);
                b.listen(listens, PORT, 8).unwrap();
                let syn = syn_to(third);
                let frame = on.map_or(syn.clone(), |vid| tagged(vid, &syn));
                handle(&mut b, ms(1), &frame);
                let out = frames(&mut b, ms(1));
                let taken = at == on;
                assert_eq!((b.connections(), out.len()), (usize::from(taken), usize::from(taken)));
                assert_eq!(b.counters().rx_other_host, u64::from(!taken), "{at:?} on {on:?}");
            }
        }
    }
}

/// A segment of a connection counts only with the connection's tag, whatever else fits.
#[test]
fn test_segments_with_another_tag_do_not_reach_a_connection() {
    let mut b = host_b();
    handle(&mut b, ms(1), &tagged(10, &syn_to(10)));
    let (_, answer) = split(&frames(&mut b, ms(1))[0]);
    let next = read_tcp(&answer).1.seq.0.wrapping_add(1);
    let from = (addr(10, 1), 1000);
    let ack = tcp_frame(from, (addr(10, 2), PORT), &segment(101, next, Flags::ACK), b"data");
    for other in [ack.clone(), tagged(20, &ack), tagged(11, &ack)] {
        assert_eq!(handle(&mut b, ms(2), &other), FrameOutcome::Done);
        assert_eq!(events(&mut b), []);
    }
    handle(&mut b, ms(3), &tagged(10, &ack));
    assert!(matches!(events(&mut b)[..], [(_, StackEvent::Accepted { .. })]));
}

fn data(n: u32, next: u32) -> Vec<u8> {
    let ts = crate::Timestamps { val: 7, ecr: 0 };
    let seg = TxSegment { timestamps: Some(ts), ..segment(101 + 100 * n, next, Flags::ACK) };
    tcp_frame((addr(10, 1), 1000), (addr(10, 2), PORT), &seg, &[9; 100])
}

#[test]
fn test_segments_of_a_burst_are_one_run_only_in_their_vlan() {
    for stripped in [false, true] {
        let mut b = host_b();
        let ts = crate::Timestamps { val: 1, ecr: 0 };
        let open = TxSegment { timestamps: Some(ts), ..syn(100) };
        let open = tcp_frame((addr(10, 1), 1000), (addr(10, 2), PORT), &open, b"");
        handle(&mut b, ms(1), &tagged(10, &open));
        let (_, answer) = split(&frames(&mut b, ms(1))[0]);
        let next = read_tcp(&answer).1.seq.0.wrapping_add(1);
        let ack = TxSegment { timestamps: Some(ts), ..segment(101, next, Flags::ACK) };
        let ack = tcp_frame((addr(10, 1), 1000), (addr(10, 2), PORT), &ack, b"");
        handle(&mut b, ms(2), &tagged(10, &ack));
        let tags = [10, 10, 0x600a, 20, 10];
        let mut burst: Vec<_> = (0..5)
            .zip(tags)
            .map(|(n, tci)| {
                let frame = tagged(tci, &data(n, next));
                let (tag, bytes) = split(&frame);
                Some(if stripped { Received { bytes, tag } } else { Received::of(&frame) })
            })
            .collect();
        let run = b.handle_frames(ms(3), &mut burst);
        // The priority of a frame says nothing about its place in the stream.
        assert_eq!((run.frames, run.last), (3, 100), "stripped: {stripped}");
        let FrameOutcome::Conn { conn, payload: Some(p), .. } = run.outcome else { panic!("data") };
        assert_eq!((p.frame_off, p.in_order), (66, true));
        b.accept_payload(ms(3), conn, p.pos, 300);
        assert_eq!(b.handle_frames(ms(3), &mut burst[3..]).outcome, FrameOutcome::Done);
        let last = b.handle_frames(ms(3), &mut burst[4..]);
        let FrameOutcome::Conn { payload: Some(p), .. } = last.outcome else { panic!("data") };
        assert!(!p.in_order, "the fourth was of another VLAN");
    }
}

/// The header of a train, and those of its segments, have the tag; the port learns where the IP
/// header begins.
#[test]
fn test_trains_have_the_tag_of_their_vlan() {
    for (by_port, offloaded) in [(false, false), (false, true), (true, true)] {
        let mut n = two_hosts();
        n.a.stack.offloads = Offloads { tcp: offloaded, ip: offloaded };
        let a = n.a.stack.connect(n.now, (addr(10, 2), PORT).into(), None).unwrap();
        // A sends headers without checksums, so B takes them at its port's word.
        n.b.stack.offloads = Offloads { tcp: false, ip: false };
        let mut frame = TxFrame::default();
        for _ in 0..4 {
            while n.a.stack.poll_transmit_into(n.now, Train::NONE, &mut frame) > 0 {
                let bytes = net::assemble(&n.a.stack, &mut frame);
                let (tag, bytes) = split(&bytes);
                n.b.stack.handle_frame(n.now, &mut Verified(Received { bytes, tag }));
            }
            while let Some(f) = n.b.transmit(n.now) {
                n.a.handle(n.now, &f);
            }
        }
        n.a.send(a, &[7; 5000]);
        let train = Train { segments: 8, by_port };
        let segments = n.a.stack.poll_transmit_into(n.now, train, &mut frame);
        assert!(segments > 1, "{segments}");
        assert_eq!((frame.l2_len, frame.l3_len), (18, 20));
        assert_eq!(frame.header[12..18], [0x81, 0, 0xa0, 10, 8, 0]);
        let lens = [frame.l2_len, frame.l3_len, frame.l4_len].map(usize::from);
        assert_eq!(frame.header.len(), lens.iter().sum::<usize>());
        let TxBody::Stream { segment, .. } = frame.body else { panic!("a train") };
        let seq = |f: &TxFrame| TcpHeader::parse(&f.header[38..], 1 << 16).unwrap().segment.seq;
        let first = seq(&frame);
        let tcp_at = 38 + wire_tcp::CHECKSUM_AT;
        let folded = |f: &TxFrame| u16::from_be_bytes([f.header[tcp_at], f.header[tcp_at + 1]]);
        frame.next_segment();
        assert_eq!(seq(&frame), first.advance(segment));
        if !offloaded {
            // The sum of the header without the payload is right for the second segment, too.
            let len = u16::try_from(usize::from(frame.l4_len) + segment as usize).unwrap();
            let mut header = frame.header[38..].to_vec();
            header[wire_tcp::CHECKSUM_AT..][..2].fill(0);
            let pseudo = crate::wire::ipv4::pseudo_header(addr(10, 1), addr(10, 2), len);
            assert_eq!(folded(&frame) % 0xffff, pseudo.plus(Sum::of(&header)).folded() % 0xffff);
        }
    }
}

use crate::wire::tcp as wire_tcp;

/// A frame whose checksums the port found right.
struct Verified(Received);

impl heddle_base::Chunks for Verified {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        self.0.chunk_at(off)
    }
}

impl RxFrame for Verified {
    fn checksum(&self) -> RxChecksum {
        RxChecksum::Good
    }

    fn tag(&self) -> Option<Tag> {
        self.0.tag
    }
}

#[test]
fn test_priority_of_a_vlan_follows_the_dscp_or_is_fixed() {
    let mut b = host_b();
    let priority = |b: &mut Stack<ByteQueue>, priority| {
        let mut ten = vlan_of(10, &["10.0.10.2/24"]);
        ten.priority = priority;
        let vlans = vec![ten, vlan_of(20, &["10.0.20.2/24"])];
        b.set_addressing(ms(5), net(&["10.0.0.2/24"], vlans));
    };
    handle(&mut b, ms(1), &tagged(10, &syn_to(10)));
    let (_, answer) = split(&frames(&mut b, ms(1))[0]);
    let next = read_tcp(&answer).1.seq.0.wrapping_add(1);
    let ack = segment(101, next, Flags::ACK);
    handle(
        &mut b,
        ms(2),
        &tagged(10, &tcp_frame((addr(10, 1), 1000), (addr(10, 2), PORT), &ack, b"")),
    );
    let [(id, _)] = events(&mut b)[..] else { panic!("accepted") };
    let say = |b: &mut Stack<ByteQueue>| {
        b.user_mut(id).unwrap().push(b"x");
        b.notify_send(id);
        let out = frames(b, ms(6));
        let (tag, inner) = split(out.last().unwrap());
        let ip = Ipv4Header::parse(&inner[14..], inner.len() - 14).unwrap();
        assert!(ip.checksum_valid(&inner[14..]));
        (tag.unwrap().priority(), ip.traffic_class >> 2)
    };
    assert_eq!(say(&mut b), (0, 0));
    b.set_dscp(id, 46);
    assert_eq!(say(&mut b), (0, 46), "the VLAN's priority is fixed");
    priority(&mut b, Priority::Dscp);
    assert_eq!(say(&mut b), (5, 46));
    b.set_dscp(id, 26);
    assert_eq!(say(&mut b), (3, 26));
    priority(&mut b, Priority::Fixed(7));
    assert_eq!(say(&mut b), (7, 26));
    assert_eq!(events(&mut b), [], "the connection goes on");
}

#[test]
fn test_connections_of_a_removed_vlan_end_and_others_go_on() {
    let mut b = host_b();
    b.listen(Some(IpAddr::V4(addr(10, 2))), 99, 8).unwrap();
    let mut ids = Vec::new();
    for third in [10u8, 20] {
        let tci = u16::from(third);
        handle(&mut b, ms(1), &tagged(tci, &syn_to(third)));
        let (_, answer) = split(&frames(&mut b, ms(1))[0]);
        let next = read_tcp(&answer).1.seq.0.wrapping_add(1);
        let ack = segment(101, next, Flags::ACK);
        let ack = tcp_frame((addr(third, 1), 1000), (addr(third, 2), PORT), &ack, b"");
        handle(&mut b, ms(2), &tagged(tci, &ack));
        ids.extend(events(&mut b).iter().map(|e| e.0));
    }
    b.set_addressing(ms(3), net(&["10.0.0.2/24"], vec![vlan_of(20, &["10.0.20.2/24"])]));
    assert_eq!(events(&mut b), [(ids[0], StackEvent::Withdrawn)]);
    let out = frames(&mut b, ms(3));
    let (tag, reset) = split(&out[0]);
    assert_eq!((tag, read_tcp(&reset).1.flags.has(Flags::RST)), (Some(Tag::new(vid(10), 0)), true));
    assert!(b.conn(ids[1]).is_some_and(|c| c.state() == State::Established));
    handle(&mut b, ms(4), &tagged(10, &syn_to(10)));
    assert_eq!(b.counters().rx_unknown_vlan, 1);
    assert_eq!(
        b.listen(Some(IpAddr::V4(addr(10, 2))), 100, 8),
        Err(heddle_types::ListenError::NotOurs)
    );
    // An address that moves to another link is removed and new.
    b.set_addressing(ms(5), net(&["10.0.0.2/24", "10.0.20.2/24"], Vec::new()));
    assert_eq!(events(&mut b), [(ids[1], StackEvent::Withdrawn)]);
}
