//! Questions for our addresses in floods: who gets an answer while strangers ask.

use core::net::Ipv6Addr;
use heddle_base::Random;
use wire_arp::Operation;

use super::*;
use crate::wire::icmpv6::neighbor_solicit;
use crate::wire::{Ipv6Header, ipv6};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];
const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

/// Returns B on a link of many addresses, with a gateway and a connection with A.
fn busy(prefix: u8) -> Stack<ByteQueue> {
    let addrs = vec![Cidr::new(B.into(), prefix).unwrap(), Cidr::new(B6.into(), 64).unwrap()];
    let mut cfg = config_b();
    cfg.net = Addressing::new(addrs, vec![Route::default_via(GATEWAY.into())]).unwrap();
    let mut b = Stack::new(cfg);
    b.listen(None, PORT, 8).unwrap();
    introduce_a(&mut b, ms(0));
    established(&mut b, ms(0));
    b
}

fn request(from: Ipv4Addr, mac: [u8; 6], to: Ipv4Addr) -> Vec<u8> {
    arp_frame(Operation::Request, from, mac, to, [0; 6])
}

/// Returns the question of an IPv6 host.
fn solicit(from: Ipv6Addr, mac: [u8; 6]) -> Vec<u8> {
    let group = ipv6::solicited_node(B6);
    let message = neighbor_solicit(from, group, B6, MacAddr(mac));
    let mut eth = [0; 14];
    let dst = MacAddr::of_group(group);
    EthernetHeader { dst, src: MacAddr(mac), ethertype: EtherType::IPV6 }.emit(&mut eth);
    let mut header = [0; 40];
    Ipv6Header {
        src: from,
        dst: group,
        next_header: ipv6::ICMP,
        hop_limit: 255,
        traffic_class: 0,
        flow_label: 0,
        payload_len: message.len(),
    }
    .emit(&mut header);
    [&eth[..], &header, &message].concat()
}

/// Returns the stations that get answers to questions for our addresses.
fn answers(b: &mut Stack<ByteQueue>, now: Instant) -> Vec<[u8; 6]> {
    let is_answer = |f: &Vec<u8>| match f[12..14] {
        [8, 6] => f[21] == 2,
        _ => f[20] == 58 && f[54] == 136,
    };
    frames(b, now).iter().filter(|f| is_answer(f)).map(|f| f[..6].try_into().unwrap()).collect()
}

fn some_mac(r: &mut Random) -> [u8; 6] {
    let [a, b, c, d, ..] = r.next_u64().to_be_bytes();
    [2, 1, a, b, c, d]
}

/// Strangers under random addresses ask 20,000 times a second, for ten seconds. Once a second the
/// gateway asks, and so does the peer of a connection; each gets an answer at once.
#[test]
fn test_hosts_that_matter_get_their_answers_in_a_flood_of_questions() {
    for six in [false, true] {
        let mut b = busy(8);
        if six {
            // A connection with A over IPv6, whose question introduces it.
            b.handle_frame(ms(0), &solicit(A6, MAC_A)[..]);
            b.connect(ms(0), (A6, PORT).into(), None).unwrap();
            frames(&mut b, ms(0));
        }
        let mut r = Random::new(&Seed::from_u64(3));
        let (mut strangers, mut ours) = (0, [0; 2]);
        for n in 0..200_000u64 {
            let now = Instant::from_nanos(1_000_000 + n * 50_000);
            let mac = some_mac(&mut r);
            let bits = r.next_u64();
            let low = u32::try_from(bits >> 40).unwrap();
            let from = Ipv4Addr::from_bits(0x0a10_0000 | low & 0xf_ffff);
            let from6 = Ipv6Addr::from_bits(A6.to_bits() & !0xffff | u128::from(bits) | 0x1_0000);
            let flood = if six { solicit(from6, mac) } else { request(from, mac, B) };
            b.handle_frame(now, &flood[..]);
            if n % 20_000 == 10_000 {
                let asks = [(A, A6, MAC_A), (GATEWAY, A6, GATEWAY_MAC)];
                for (count, (ip, ip6, mac)) in asks.into_iter().enumerate() {
                    if six && mac == GATEWAY_MAC {
                        continue;
                    }
                    strangers += answers(&mut b, now).len();
                    let ask = if six { solicit(ip6, mac) } else { request(ip, mac, B) };
                    b.handle_frame(now, &ask[..]);
                    let out = answers(&mut b, now);
                    ours[count] += usize::from(out.contains(&mac));
                }
            }
            if n % 20 == 0 {
                strangers += answers(&mut b, now).len();
            }
        }
        assert_eq!(ours, [10, if six { 0 } else { 10 }], "IPv6: {six}");
        assert!((500..=6000).contains(&strangers), "{strangers}");
    }
}

/// A flood from a network of 254 hosts leaves a newcomer its answer at one of its first questions.
#[test]
fn test_newcomer_on_a_small_link_gets_its_answer_in_a_flood() {
    let mut b = busy(24);
    let mut r = Random::new(&Seed::from_u64(3));
    let mut at_once = 0;
    for second in 0..20u64 {
        let newcomer = Ipv4Addr::new(10, 0, 0, 200 + u8::try_from(second).unwrap());
        let mac = [2, 2, 0, 0, 0, u8::try_from(second).unwrap()];
        let mut answered = 0;
        for n in 0..30_000u64 {
            let now = Instant::from_nanos(1_000_000_000 * (3 * second + 1) + n * 100_000);
            let low = u8::try_from(3 + r.below(190)).unwrap();
            let flood = request(Ipv4Addr::new(10, 0, 0, low), some_mac(&mut r), B);
            b.handle_frame(now, &flood[..]);
            if n % 10_000 == 5_000 {
                b.handle_frame(now, &request(newcomer, mac, B)[..]);
            }
            let to_it = answers(&mut b, now).iter().filter(|m| **m == mac).count();
            at_once += if n == 5_000 { to_it } else { 0 };
            answered += to_it;
        }
        assert!(answered >= 1, "newcomer {second}");
    }
    assert!(at_once >= 14, "{at_once} of 20");
}

/// Another station cannot use up the answers of a peer by asking under its address.
#[test]
fn test_questions_under_a_peers_address_cost_the_peer_nothing() {
    let mut b = busy(24);
    for n in 0..2000 {
        b.handle_frame(ms(1 + n), &request(A, [2, 9, 9, 9, 9, 9], B)[..]);
        b.handle_frame(ms(1 + n), &request(GATEWAY, MAC_A, B)[..]);
        answers(&mut b, ms(1 + n));
    }
    assert!(b.counters().questions_limited > 3700, "{}", b.counters().questions_limited);
    b.handle_frame(ms(2001), &request(A, MAC_A, B)[..]);
    b.handle_frame(ms(2001), &request(GATEWAY, GATEWAY_MAC, B)[..]);
    assert_eq!(answers(&mut b, ms(2001)), [MAC_A, GATEWAY_MAC]);
}

/// A station that asks under the gateway's address uses up its own budget, not that of the gateway.
#[test]
fn test_gateway_whose_station_is_not_known_has_a_budget_of_its_own() {
    let mut b = busy(24);
    for n in 0..500 {
        b.handle_frame(ms(1 + n), &request(GATEWAY, MAC_A, B)[..]);
        answers(&mut b, ms(1 + n));
    }
    let mut told = 0;
    for _ in 0..20 {
        b.handle_frame(ms(501), &request(GATEWAY, GATEWAY_MAC, B)[..]);
        told += answers(&mut b, ms(501)).len();
    }
    assert_eq!(told, 10);
}

/// A host may ask for each of our addresses, and no more than a few times for one.
#[test]
fn test_a_stranger_gets_a_few_answers_for_each_address() {
    let mut cfg = config_b();
    let ours: Vec<_> = (10..20).map(|n| Ipv4Addr::new(10, 0, 0, n)).collect();
    let cidrs = ours.iter().map(|ip| Cidr::new((*ip).into(), 24).unwrap()).collect();
    cfg.net = Addressing::new(cidrs, Vec::new()).unwrap();
    let mut b: Stack<ByteQueue> = Stack::new(cfg);
    let mut ask = |now| {
        let mut count = 0;
        for ip in &ours {
            for _ in 0..100 {
                b.handle_frame(now, &request(A, MAC_A, *ip)[..]);
                count += answers(&mut b, now).len();
            }
        }
        count
    };
    // Ten times one, and those that may be hasty.
    let all = [1, 501, 502, 1001].map(|at| ask(ms(at)));
    assert_eq!(all, [60, 25, 0, 10 + 25]);
}

/// Where the port has no room for long, strangers' answers leave room for our own questions.
#[test]
fn test_our_questions_find_room_beside_answers() {
    let mut b = busy(8);
    for n in 0..200u32 {
        let from = Ipv4Addr::from_bits(0x0a10_0000 + n);
        b.handle_frame(ms(1 + u64::from(n)), &request(from, MAC_A, B)[..]);
    }
    let full = b.counters().tx_control_full;
    b.connect(ms(300), (Ipv4Addr::new(10, 7, 7, 7), PORT).into(), None).unwrap();
    let out = frames(&mut b, ms(300));
    assert_eq!((full, b.counters().tx_control_full), (0, 0));
    let questions = out.iter().filter(|f| f[12..14] == *b"\x08\x06" && f[21] == 1).count();
    assert_eq!((questions, out.len()), (1, control::MAX_EACH / 2 + 1));
}
