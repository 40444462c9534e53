//! Routers that report that a datagram is too large for them, and hosts that only claim to be such
//! a router.

use core::time::Duration;

use super::net::Faults;
use super::transfer::{connect, pair, pattern};
use super::*;

const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

/// Returns the report of a router with a next link of `mtu` bytes about a TCP frame.
pub(super) fn fragmentation_needed(frame: &[u8], mtu: u16) -> Vec<u8> {
    let src = Ipv4Addr::new(frame[26], frame[27], frame[28], frame[29]);
    let mut m = vec![3, 4, 0, 0, 0, 0];
    m.extend(mtu.to_be_bytes());
    m.extend(&frame[14..42]);
    let sum = Sum::of(&m).complement();
    m[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut out = ip_frame(ROUTER, src, 1, &m);
    out[..6].copy_from_slice(&frame[6..12]);
    out
}

#[test]
fn test_transfer_gets_through_a_path_with_a_smaller_mtu() {
    for (mtu, loss) in [(1400, 0.0), (1006, 0.01), (576, 0.0), (576, 0.02)] {
        let mut n = pair(3, Faults { loss, ..Faults::default() });
        let (a, b) = connect(&mut n);
        let data = pattern(300_000, 1);
        n.a.send(a, &data[..100_000]);
        n.run("first part", Duration::from_secs(60), |n| n.b.got(b).len() == 100_000);
        // The path changes while the connection is in use.
        n.path_mtu = Some(mtu);
        n.a.send(a, &data[100_000..]);
        n.run("the rest", Duration::from_secs(60), |n| n.b.got(b).len() == data.len());
        assert!(n.b.got(b) == data, "wrong bytes at {mtu}");
        let emss = n.a.stack.conn(a).unwrap().emss();
        assert_eq!(emss, u32::from(mtu) - 52);
        assert_eq!(n.a.stack.counters().icmp_frag_needed, 1, "once is enough");
    }
}

/// Returns B with a connection to A that has `len` bytes in flight, and its first data frame.
fn in_flight(len: usize) -> (Stack<ByteQueue>, ConnId, Vec<u8>) {
    let mut b = listening_b(1);
    let (id, ..) = established(&mut b, ms(1));
    b.user_mut(id).unwrap().push(&vec![7; len]);
    b.notify_send(id);
    let out = frames(&mut b, ms(1));
    (b, id, out[0].clone())
}

fn emss(b: &Stack<ByteQueue>, id: ConnId) -> u32 {
    b.conn(id).unwrap().emss()
}

#[test]
fn test_segment_size_follows_the_router_and_what_is_outstanding_goes_again() {
    let (mut b, id, first) = in_flight(2000);
    assert_eq!(emss(&b, id), 1460);
    b.handle_frame(ms(2), &fragmentation_needed(&first, 1000)[..]);
    assert_eq!((emss(&b, id), b.counters().icmp_frag_needed), (960, 1));
    let lens: Vec<_> = frames(&mut b, ms(2)).iter().map(|f| read_tcp(f).1.len).collect();
    assert_eq!(lens, [960, 960, 80]);
    // Other frames of the same flight were too large as well: B knows that by now.
    b.handle_frame(ms(3), &fragmentation_needed(&first, 1000)[..]);
    b.handle_frame(ms(3), &fragmentation_needed(&first, 1400)[..]);
    assert_eq!(emss(&b, id), 960, "never raised");
    assert_eq!(b.counters().icmp_frag_needed_ignored, 2);
    assert_eq!(frames(&mut b, ms(3)), Vec::<Vec<u8>>::new(), "nothing goes once more");
}

#[test]
fn test_segment_size_never_falls_below_its_minimum() {
    for mtu in [1, 68, 551, 552] {
        let (mut b, id, first) = in_flight(2000);
        b.handle_frame(ms(2), &fragmentation_needed(&first, mtu)[..]);
        assert_eq!(emss(&b, id), 512, "{mtu}");
    }
    // A router that gives no MTU means the next smaller size in RFC 1191's list.
    let (mut b, id, first) = in_flight(2000);
    b.handle_frame(ms(2), &fragmentation_needed(&first, 0)[..]);
    assert_eq!(emss(&b, id), 1492 - 40);
}

#[test]
fn test_forged_message_outside_the_window_is_counted_and_ignored() {
    for by in [1u32.wrapping_neg(), 1461, 1 << 30] {
        let (mut b, id, first) = in_flight(1460);
        let mut forged = first;
        let seq = u32::from_be_bytes(forged[38..42].try_into().unwrap()).wrapping_add(by);
        forged[38..42].copy_from_slice(&seq.to_be_bytes());
        b.handle_frame(ms(2), &fragmentation_needed(&forged, 576)[..]);
        assert_eq!((emss(&b, id), b.counters().icmp_unmatched), (1460, 1), "{by}");
        assert_eq!(frames(&mut b, ms(2)), Vec::<Vec<u8>>::new());
    }
}

#[test]
fn test_message_about_a_segment_that_fits_or_was_never_so_large_is_ignored() {
    for total_len in [40u16, 1000, 1501, 9000] {
        let (mut b, id, mut first) = in_flight(2000);
        first[16..18].copy_from_slice(&total_len.to_be_bytes());
        b.handle_frame(ms(2), &fragmentation_needed(&first, 1000)[..]);
        let ignored = b.counters().icmp_frag_needed_ignored;
        assert_eq!((emss(&b, id), ignored), (1460, 1), "{total_len}");
    }
}
