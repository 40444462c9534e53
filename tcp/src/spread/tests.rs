//! Tests of the assignment of frames to workers.

use super::*;
use crate::wire::{EtherType, EthernetHeader, Ipv4Header, MacAddr};
use proptest::prelude::*;

/// The key of Microsoft's examples, which many ports have from the start.
pub(super) const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const TCP: u8 = 6;
const ICMP: u8 = 1;
const UDP: u8 = 17;

fn rss(workers: u16) -> Arc<Rss> {
    Arc::new(Rss::even(&KEY, 128, workers).unwrap())
}

fn ethernet(dst: MacAddr, ethertype: EtherType) -> [u8; 14] {
    let mut eth = [0; 14];
    EthernetHeader { dst, src: MacAddr([4; 6]), ethertype }.emit(&mut eth);
    eth
}

/// Returns an IPv4 datagram from `src` to `dst`, in a frame.
fn datagram(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = [0; 20];
    let (header_len, total_len) = (20, 20 + payload.len());
    Ipv4Header {
        src,
        dst,
        protocol,
        ttl: 64,
        traffic_class: 0,
        header_len,
        total_len,
        fragment: false,
    }
    .emit(&mut ip);
    [&ethernet(MacAddr([2; 6]), EtherType::IPV4)[..], &ip, payload].concat()
}

/// Returns a TCP segment from the peer's `rport` to our `lport`.
fn segment(rport: u16, lport: u16) -> Vec<u8> {
    let tcp = [&rport.to_be_bytes()[..], &lport.to_be_bytes(), &[0; 16]].concat();
    datagram(PEER, US, TCP, &tcp)
}

/// Returns a router's ICMP message about a segment of ours from `lport` to the peer's `rport`.
fn error(kind: u8, lport: u16, rport: u16) -> Vec<u8> {
    let tcp = [&lport.to_be_bytes()[..], &rport.to_be_bytes(), &[0; 4]].concat();
    let quote = &datagram(US, PEER, TCP, &tcp)[14..];
    datagram(Ipv4Addr::new(10, 0, 9, 9), US, ICMP, &[&[kind, 1, 0, 0, 0, 0, 0, 0], quote].concat())
}

fn to(me: u16, worker: u16) -> Steer {
    if me == worker { Steer::Own } else { Steer::Other(worker) }
}

#[test]
fn test_invalid_spread_rules_are_refused() {
    assert_eq!(Rss::even(&KEY[..39], 128, 2).err(), Some(SpreadError::KeyLength(39)));
    for n in [0, 3, 100, 1 << 17] {
        assert_eq!(Rss::even(&KEY, n, 2).err(), Some(SpreadError::TableLength(n)));
    }
    for (table, worker, workers) in [(&[0, 2][..], 2, 2), (&[0], 0, 0)] {
        let none = Some(SpreadError::NoSuchWorker { worker, workers });
        assert_eq!(Rss::new(&KEY, table, workers).err(), none);
    }
    assert_eq!(
        Rss::even(&KEY, 1, 0).err(),
        Some(SpreadError::NoSuchWorker { worker: 0, workers: 0 })
    );
    assert!(Rss::even(&KEY, 1, 1).is_ok() && Rss::even(&KEY, 1 << 16, 64).is_ok());
    let none = |s: Result<Spread, SpreadError>| s.err().unwrap();
    let beyond = SpreadError::NoSuchWorker { worker: 2, workers: 2 };
    assert_eq!(none(Spread::by_port(rss(2), 2)), beyond);
    assert_eq!(none(Spread::by_software(rss(2), 2)), beyond);
    assert_eq!(none(Spread::pairs(2, 2)), beyond);
    assert_eq!(rss(3).table().iter().filter(|&&w| w == 2).count(), 42);
    assert_eq!(format!("{:?}", rss(3)), "Rss(128 entries, 3 workers)");
}

#[test]
fn test_spread_without_other_workers_keeps_every_frame() {
    for s in [
        Spread::alone(),
        Spread::by_software(rss(1), 0).unwrap(),
        Spread::pairs(1, 2).unwrap(),
        Spread::pairs(0, 1).unwrap(),
    ] {
        assert!(!s.steers() && s.answers_arp());
        let arp = [&ethernet(MacAddr::BROADCAST, EtherType::ARP)[..], &[0; 28]].concat();
        for frame in [arp, segment(1, 2), error(3, 1, 2), datagram(PEER, US, UDP, &[0; 8])] {
            assert_eq!(s.steer(&frame, false), Steer::Own);
        }
    }
}

#[test]
fn test_spread_assigns_frames_that_are_not_segments() {
    for me in 0..3 {
        for s in [Spread::by_port(rss(3), me).unwrap(), Spread::by_software(rss(3), me).unwrap()] {
            assert!(s.steers());
            assert_eq!(s.answers_arp(), me == 0, "one answer to each request");
            let arp = |dst| [&ethernet(dst, EtherType::ARP)[..], &[0; 28]].concat();
            assert_eq!(s.steer(&arp(MacAddr::BROADCAST), false), Steer::All);
            assert_eq!(
                s.steer(&arp(MacAddr([2; 6])), false),
                Steer::All,
                "a reply may be for any worker"
            );
            assert_eq!(s.steer(&datagram(PEER, US, UDP, &[0; 8]), false), to(me, 0));
            let echo = datagram(PEER, US, ICMP, &[8, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(s.steer(&echo, false), Steer::Own);
            assert_eq!(s.steer(&datagram(PEER, US, 2, &[0; 8]), false), Steer::Own);
            assert_eq!(s.steer(&ethernet(MacAddr([2; 6]), EtherType(0x86dd)), false), Steer::Own);
        }
    }
}

#[test]
fn test_broken_frames_and_fragments_stay_with_their_worker() {
    // Choose a port whose whole frames belong to another worker.
    let (lport, s) = (0..)
        .map(|p| (p, Spread::by_software(rss(2), 0).unwrap()))
        .find(|(p, s)| s.steer(&segment(7, *p), false) == Steer::Other(1))
        .unwrap();
    let whole = segment(7, lport);
    for len in 0..38 {
        assert_eq!(s.steer(&whole[..len], false), Steer::Own, "{len} bytes");
    }
    assert_eq!(s.steer(&whole[..38], false), Steer::Other(1), "all there is to know");
    // More Fragments, fragment offset, version, header length, a group's station, another type.
    for (at, v) in [(20, 0x20), (21, 1), (14, 0x65), (14, 0x44), (0, 3), (12, 9)] {
        let mut f = whole.clone();
        f[at] = v;
        assert_eq!(s.steer(&f, false), Steer::Own, "byte {at}");
    }
    // The ports lie after IPv4 options.
    let mut f = whole.clone();
    f[14] = 0x46;
    f.splice(34..34, [1, 1, 1, 0]);
    assert_eq!(s.steer(&f, false), Steer::Other(1));
    let quoting = error(3, lport, 7);
    assert_eq!(s.steer(&quoting, false), Steer::Other(1));
    for len in 34..quoting.len() {
        assert_eq!(s.steer(&quoting[..len], false), Steer::Own, "{len} bytes of an error");
    }
}

#[test]
fn test_port_that_spreads_hands_on_only_icmp_errors() {
    let (rss, software) = (rss(4), |me| Spread::by_software(rss(4), me).unwrap());
    for lport in 0..100 {
        let worker = rss.worker((PEER, 7).into(), (US, lport).into()).unwrap();
        for me in 0..4 {
            let port = Spread::by_port(rss.clone(), me).unwrap();
            assert_eq!(port.steer(&segment(7, lport), false), Steer::Own);
            assert_eq!(software(me).steer(&segment(7, lport), false), to(me, worker));
            for kind in [3, 11] {
                assert_eq!(port.steer(&error(kind, lport, 7), false), to(me, worker));
                assert_eq!(software(me).steer(&error(kind, lport, 7), false), to(me, worker));
            }
        }
    }
}

proptest! {
    /// For any bytes, `steer` does not panic, gives the same answer each time, and never names a
    /// worker that does not exist. All workers agree on the owner.
    #[test]
    fn test_spread_assigns_any_bytes_to_one_existing_worker(
        junk in proptest::collection::vec(any::<u8>(), 0..120), kind in 0usize..4, workers in 1u16..65,
        changes in proptest::collection::vec((0usize..90, any::<u8>()), 0..4),
    ) {
        let mut frame = match kind {
            0 => junk,
            1 => datagram(PEER, US, TCP, &junk),
            2 => error(3, 1, 2),
            _ => segment(5, 6),
        };
        for (at, v) in changes {
            if let Some(b) = frame.get_mut(at) {
                *b = v;
            }
        }
        let rss = rss(workers);
        let all = |by: fn(Arc<Rss>, u16) -> Result<Spread, SpreadError>| {
            (0..workers).map(|me| by(rss.clone(), me).unwrap().steer(&frame, false)).collect::<Vec<_>>()
        };
        for told in [all(Spread::by_port), all(Spread::by_software)] {
            let whose = told.iter().find_map(|s| match *s {
                Steer::Other(w) => Some(w),
                _ => None,
            });
            for (me, s) in (0..).zip(&told) {
                prop_assert_eq!(*s, match whose {
                    Some(w) => to(me, w),
                    None => told[0],
                });
            }
            prop_assert!(whose.is_none_or(|w| w < workers));
        }
    }
}

/// The tag of a VLAN changes nothing about the owner. A port that spreads segments may not see
/// through a tag, so that the workers look themselves.
#[test]
fn test_tagged_frames_have_the_owner_of_their_contents() {
    let rss = rss(4);
    let tagged = |f: &[u8]| [&f[..12], &[0x81, 0, 0x60, 10], &f[12..]].concat();
    let arp = [&ethernet(MacAddr::BROADCAST, EtherType::ARP)[..], &[0; 28]].concat();
    for lport in 0..100 {
        let worker = rss.worker((PEER, 7).into(), (US, lport).into()).unwrap();
        for me in 0..4 {
            for s in [Spread::by_port, Spread::by_software].map(|by| by(rss.clone(), me).unwrap()) {
                let owner = to(me, worker);
                assert_eq!(s.steer(&tagged(&segment(7, lport)), false), owner);
                assert_eq!(s.steer(&segment(7, lport), true), owner, "the port took the tag out");
                assert_eq!(s.steer(&tagged(&error(3, lport, 7)), false), owner);
                assert_eq!(s.steer(&tagged(&arp), false), Steer::All);
                // The spread looks at no second tag.
                assert_eq!(s.steer(&tagged(&tagged(&segment(7, lport))), false), Steer::Own);
                assert_eq!(s.steer(&tagged(&segment(7, lport)), true), Steer::Own);
                assert_eq!(s.steer(&tagged(&segment(7, lport))[..17], false), Steer::Own);
            }
        }
    }
}
