//! The announcements of our addresses that hosts get without asking.

use std::sync::Arc;

use super::*;
use crate::{Rss, Spread};
use wire_arp::{Arp, Operation};

/// Returns the addresses that a stack announces until `end`, and when. The stack must send no other
/// frame.
fn announced(s: &mut Stack<ByteQueue>, from: u64, end: u64) -> Vec<(u64, Ipv4Addr)> {
    let mut all = Vec::new();
    for now in from..end {
        if s.is_due(ms(now)) {
            s.handle_timeouts(ms(now));
        }
        while let Some(f) = s.poll_transmit(ms(now)) {
            let f = &f.header[..];
            assert_eq!((&f[..6], &f[6..12]), (&[0xff; 6][..], &MAC_B[..]), "to everyone");
            let arp = Arp::parse(&f[14..]).unwrap();
            assert_eq!((arp.operation, arp.sender_mac.0), (Operation::Request, MAC_B));
            assert_eq!((arp.sender_ip, arp.target_mac), (arp.target_ip, MacAddr::default()));
            all.push((now, arp.target_ip));
        }
        assert!(s.poll_timeout().is_none_or(|at| at > ms(now)), "a timer is due after its turn");
    }
    all
}

#[test]
fn test_stack_announces_its_address_twice_when_asked_to_and_not_unasked() {
    let mut b = Stack::<ByteQueue>::new(config_b());
    assert_eq!(announced(&mut b, 0, 3000), []);
    b.announce();
    assert_eq!(announced(&mut b, 3000, 9000), [(3000, B), (5000, B)]);
    assert_eq!(b.counters().tx_arp_announcements, 2);
    assert_eq!(b.counters().tx_arp_requests, 0, "they are no questions");
    assert_eq!(b.poll_timeout(), None);
}

#[test]
fn test_link_that_flaps_makes_for_no_more_announcements_than_its_pace() {
    let mut b = Stack::<ByteQueue>::new(config_b());
    let mut sent = 0;
    for now in 0..1000 {
        b.announce();
        sent += announced(&mut b, now, now + 1).len();
    }
    assert!((45..=51).contains(&sent), "{sent} in a second");
    let after = announced(&mut b, 1000, 9000);
    assert!(after.len() <= 2, "{after:?}");
}

#[test]
fn test_addresses_of_a_port_take_turns_and_one_that_went_is_not_announced() {
    let all: Vec<_> = (0..64).map(|n| Ipv4Addr::new(192, 0, 2, 100 + n)).collect();
    let cidr = |ip: &Ipv4Addr| Cidr::new((*ip).into(), 24).unwrap();
    let net = |ips: &[Ipv4Addr]| Addressing::new(ips.iter().map(cidr).collect(), vec![]).unwrap();
    let mut b = Stack::<ByteQueue>::new(config_b());
    b.set_addressing(ms(0), net(&all));
    let first = announced(&mut b, 0, 1999);
    assert_eq!(first.iter().map(|(_, ip)| *ip).collect::<Vec<_>>(), all, "those that were added");
    assert!(first.windows(2).all(|w| w[1].0 - w[0].0 >= 20), "{first:?}");
    b.set_addressing(ms(1999), net(&all[..1]));
    assert_eq!(announced(&mut b, 1999, 9000), [(2000, all[0])]);
}

#[test]
fn test_port_is_announced_by_only_one_of_its_workers() {
    let rss = Arc::new(Rss::even(&[7; 40], 128, 2).unwrap());
    let of = |me| {
        let spread = Spread::by_software(rss.clone(), me).unwrap();
        let mut s: Stack<ByteQueue> = Stack::new(StackConfig { spread, ..config_b() });
        s.announce();
        s.handle_timeouts(ms(0));
        std::iter::from_fn(|| s.poll_transmit(ms(0))).count()
    };
    assert_eq!([of(0), of(1)], [1, 0]);
}
