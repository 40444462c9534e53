//! Several stacks that share one port.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_types::ConnectError;

use super::*;
use crate::{Rss, Spread, Steer};
use proptest::prelude::*;

const KEY: [u8; 40] = [
    0x2c, 0xc6, 0x81, 0xd1, 0x5b, 0xdb, 0xf4, 0xf7, 0xfc, 0xa2, 0x83, 0x19, 0xdb, 0x1a, 0x3e, 0x94,
    0x6b, 0x9e, 0x38, 0xd9, 0x2c, 0x9c, 0x03, 0xd1, 0xad, 0x99, 0x44, 0xa7, 0xd9, 0x56, 0x3d, 0x59,
    0x06, 0x3c, 0x25, 0xf3, 0xfc, 0x1f, 0xdc, 0x2a,
];

/// Returns one worker of port A, which differs from the others only in its share.
fn worker(spread: Spread, conns: usize) -> Stack<ByteQueue> {
    let mut s = Stack::new(StackConfig { spread, max_conns: conns, ..config_a() });
    introduce_b(&mut s);
    s
}

fn introduce_b(s: &mut Stack<ByteQueue>) {
    let ask = arp_frame(wire_arp::Operation::Request, B, MAC_B, A, [0; 6]);
    s.handle_frame(Instant::ZERO, &ask[..]);
    frames(s, Instant::ZERO);
}

fn shares(rss: &Arc<Rss>) -> Vec<Spread> {
    (0..rss.workers()).map(|me| Spread::by_software(rss.clone(), me).unwrap()).collect()
}

/// Returns the answer to a SYN of A's. Only its exchanged ports matter here.
fn answer(syn: &[u8]) -> Vec<u8> {
    let (h, seg) = read_tcp(syn);
    let ip = Ipv4Header::parse(&syn[14..], syn.len() - 14).unwrap();
    let syn_ack = TxSegment {
        ack: seg.seq.advance(1),
        flags: Flags::SYN.with(Flags::ACK),
        ..super::syn(900)
    };
    let mut f = tcp_frame((ip.dst, h.dst_port), (ip.src, h.src_port), &syn_ack, b"");
    f[..6].copy_from_slice(&MAC_A);
    f
}

/// Returns a router's error about a SYN of A's.
fn unreachable(syn: &[u8]) -> Vec<u8> {
    let mut icmp = [&[3, 1, 0, 0, 0, 0, 0, 0], &syn[14..42]].concat();
    let sum = Sum::of(&icmp).complement();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut f = ip_frame(Ipv4Addr::new(10, 0, 0, 9), A, 1, &icmp);
    f[..6].copy_from_slice(&MAC_A);
    f
}

/// Workers with one seed, as the workers of a port have, open connections to one peer. The workers
/// never use the same addresses and ports, and the peer's answers and routers' errors belong to the
/// opener.
#[test]
fn test_stacks_of_one_port_never_use_the_same_connection() {
    for workers in [2, 7] {
        let rss = Arc::new(Rss::even(&KEY, 128, workers).unwrap());
        let shares = shares(&rss);
        let mut used = BTreeSet::new();
        let mut stacks: Vec<_> = shares.iter().map(|s| worker(s.clone(), 200)).collect();
        for round in 0..200 {
            for (me, stack) in stacks.iter_mut().enumerate() {
                let id = stack.connect(ms(round), b_addr(), None).unwrap();
                assert!(used.insert(stack.local_addr(id).unwrap()), "{workers} workers");
                let sent = frames(stack, ms(round));
                let [syn] = &sent[..] else { panic!("one SYN") };
                for (other, share) in shares.iter().enumerate() {
                    let to = if other == me {
                        Steer::Own
                    } else {
                        Steer::Other(u16::try_from(me).unwrap())
                    };
                    assert_eq!(share.steer(&answer(syn), false), to);
                    assert_eq!(share.steer(&unreachable(syn), false), to);
                }
                stack.handle_frame(ms(round), &unreachable(syn)[..]);
                assert_eq!(stack.counters().icmp_soft_errors, round + 1);
                stack.handle_frame(ms(round), &answer(syn)[..]);
                assert!(events(stack).contains(&(id, StackEvent::Conn(ConnEvent::Connected))));
                frames(stack, ms(round));
            }
        }
    }
}

#[test]
fn test_joined_queues_keep_local_ports_apart() {
    let mut used = BTreeSet::new();
    for me in 0..3 {
        let mut s = worker(Spread::pairs(me, 3).unwrap(), 300);
        for _ in 0..300 {
            let id = s.connect(Instant::ZERO, b_addr(), None).unwrap();
            let port = s.local_addr(id).unwrap().port();
            assert!(port % 3 == me && used.insert(port));
        }
    }
}

#[test]
fn test_a_local_port_of_another_worker_is_refused() {
    let rss = Arc::new(Rss::even(&KEY, 128, 2).unwrap());
    let mut one = worker(Spread::by_port(rss.clone(), 1).unwrap(), 64);
    for port in 2000..2050 {
        let mine = rss.worker(b_addr(), (A, port).into()) == Some(1);
        let got = one.connect(Instant::ZERO, b_addr(), Some(port));
        assert_eq!(got.err(), (!mine).then_some(ConnectError::Elsewhere), "port {port}");
    }
    let mut pairs = worker(Spread::pairs(1, 2).unwrap(), 64);
    assert!(pairs.connect(Instant::ZERO, b_addr(), Some(2001)).is_ok());
    let even = pairs.connect(Instant::ZERO, b_addr(), Some(2002));
    assert_eq!(even, Err(ConnectError::Elsewhere));
}

/// A worker without an entry in the table has no port to open from. The stack reports this for the
/// first attempt and for later ones.
#[test]
fn test_a_worker_without_a_share_opens_nothing() {
    let rss = Arc::new(Rss::new(&KEY, &[0; 128], 2).unwrap());
    let mut one = worker(Spread::by_port(rss.clone(), 1).unwrap(), 64);
    for _ in 0..3 {
        let got = one.connect(Instant::ZERO, b_addr(), None);
        assert_eq!(got, Err(ConnectError::Elsewhere));
    }
    let mut zero = worker(Spread::by_port(rss, 0).unwrap(), 64);
    assert!(zero.connect(Instant::ZERO, b_addr(), None).is_ok());
}

/// The worker finds all ports of a small share, one after the other, and then none.
#[test]
fn test_a_small_share_is_used_up_to_its_last_port() {
    // Worker 1 has one entry of 512: some 32 of 16384 ports.
    let mut table = [0; 512];
    table[77] = 1;
    let rss = Arc::new(Rss::new(&KEY, &table, 2).unwrap());
    let all: BTreeSet<u16> =
        (49_152..=65_535).filter(|&p| rss.worker(b_addr(), (A, p).into()) == Some(1)).collect();
    assert!((1..256).contains(&all.len()), "{}", all.len());
    let mut one = worker(Spread::by_software(rss, 1).unwrap(), 1024);
    let mut used = BTreeSet::new();
    for _ in 0..all.len() {
        let id = one.connect(Instant::ZERO, b_addr(), None).unwrap();
        used.insert(one.local_addr(id).unwrap().port());
    }
    assert_eq!(used, all);
    assert_eq!(one.connect(Instant::ZERO, b_addr(), None), Err(ConnectError::PortInUse));
    // Other peers are other flows.
    assert!(one.connect(Instant::ZERO, (B, PORT + 1).into(), None).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With any table, a worker that has an entry finds a port whose answers are its own. The ports
    /// are still those of RFC 6056, which differ by seed.
    #[test]
    fn test_worker_with_a_share_always_finds_a_port(
        key: [u8; 40], bits in 0u32..10, workers in 2u16..65, table_seed: u64, rport in 1u16..,
    ) {
        let mut random = heddle_base::Random::new(&Seed::from_u64(table_seed));
        let entries = 1usize << bits;
        let table: Vec<u16> =
            (0..entries).map(|_| u16::try_from(random.below(u64::from(workers))).unwrap()).collect();
        let rss = Arc::new(Rss::new(&key, &table, workers).unwrap());
        let remote: SocketAddr = (B, rport).into();
        let mut reached = BTreeMap::<u16, u32>::new();
        for port in 49_152..=65_535 {
            *reached.entry(rss.worker(remote, (A, port).into()).unwrap()).or_default() += 1;
        }
        for (me, share) in (0..).zip(shares(&rss)) {
            let mut stack = worker(share, 4);
            let got = stack.connect(Instant::ZERO, remote, None);
            if reached.contains_key(&me) {
                let local = stack.local_addr(got.unwrap()).unwrap();
                prop_assert_eq!(rss.worker(remote, local), Some(me));
            } else {
                prop_assert_eq!(got, Err(ConnectError::Elsewhere));
            }
        }
    }
}

/// A neighbor's question, which all workers of the port see, has one answer, and a neighbor's
/// answer reaches the worker that asked.
#[test]
fn test_arp_seen_by_all_workers_is_answered_once() {
    let rss = Arc::new(Rss::even(&KEY, 128, 4).unwrap());
    let mut answers = 0;
    for (me, spread) in shares(&rss).into_iter().enumerate() {
        let mut s: Stack<ByteQueue> = Stack::new(StackConfig { spread, ..config_a() });
        let ask = arp_frame(wire_arp::Operation::Request, B, MAC_B, A, [0; 6]);
        s.handle_frame(Instant::ZERO, &ask[..]);
        let sent = frames(&mut s, Instant::ZERO);
        answers += sent.len();
        assert_eq!(s.counters().tx_arp_replies, u64::from(me == 0));
        assert_eq!(s.counters().arp_ignored, 0);
        // Each worker has learned which host asked.
        s.connect(Instant::ZERO, b_addr(), None).unwrap();
        let sent = frames(&mut s, Instant::ZERO);
        assert_eq!((sent.len(), &sent[0][12..14]), (1, &b"\x08\x00"[..]));
    }
    assert_eq!(answers, 1);
    // The same worker answers a probe (RFC 5227).
    for (me, spread) in shares(&rss).into_iter().enumerate() {
        let mut s: Stack<ByteQueue> = Stack::new(StackConfig { spread, ..config_a() });
        let nobody = Ipv4Addr::UNSPECIFIED;
        let probe = arp_frame(wire_arp::Operation::Request, nobody, MAC_B, A, [0; 6]);
        s.handle_frame(Instant::ZERO, &probe[..]);
        assert_eq!(frames(&mut s, Instant::ZERO).len(), usize::from(me == 0));
    }
}

#[test]
fn test_ports_of_a_share_differ_by_seed_and_peer() {
    let rss = Arc::new(Rss::even(&KEY, 128, 4).unwrap());
    let port = |seed: u64, rport: u16| {
        let spread = Spread::by_port(rss.clone(), 2).unwrap();
        let cfg = StackConfig { spread, seed: Seed::from_u64(seed), ..config_a() };
        let mut s: Stack<ByteQueue> = Stack::new(cfg);
        let id = s.connect(Instant::ZERO, (B, rport).into(), None).unwrap();
        s.local_addr(id).unwrap().port()
    };
    let by_seed: BTreeSet<u16> = (0..32).map(|seed| port(seed, 80)).collect();
    let by_peer: BTreeSet<u16> = (0..32).map(|rport| port(1, 80 + rport)).collect();
    assert!(by_seed.len() > 25 && by_peer.len() > 25, "{} {}", by_seed.len(), by_peer.len());
}
