//! Changes of the keepalive while a stack runs.

use core::time::Duration;

use super::*;
use crate::Keepalive;

fn every(ms: u64) -> Option<Keepalive> {
    let [idle, interval] = [ms, ms / 3].map(Duration::from_millis);
    Some(Keepalive { idle, interval, count: 3 })
}

/// Returns the segments that B sends until `until` if no host answers: the time of each, and
/// whether it is a reset.
fn says(b: &mut Stack<ByteQueue>, from: u64, until: u64) -> Vec<(u64, bool)> {
    let mut said = Vec::new();
    for t in from..until {
        if b.is_due(ms(t)) {
            b.handle_timeouts(ms(t));
        }
        // B also looks for its neighbor now and then.
        for frame in frames(b, ms(t)).iter().filter(|f| f[12..14] == [8, 0]) {
            let (_, seg) = read_tcp(frame);
            said.push((t, seg.flags.has(Flags::RST)));
        }
    }
    said
}

#[test]
fn test_idle_connection_is_probed_once_keepalive_is_set() {
    let mut b = listening_b(8);
    let (id, ..) = established(&mut b, ms(0));
    events(&mut b);
    assert_eq!(says(&mut b, 0, 10_000), [], "there is none by itself");
    // The peer has been silent for longer than that: B probes at once, and then by the interval.
    b.set_keepalive(ms(10_000), every(6_000));
    let probes = [10_000, 12_000, 14_000].map(|t| (t, false));
    assert_eq!(says(&mut b, 10_000, 15_999), probes);
    // The time left for an answer follows the old value, and each new value begins anew.
    b.set_keepalive(ms(15_999), every(30_000));
    assert_eq!(says(&mut b, 15_999, 30_000), []);
    assert_eq!(says(&mut b, 30_000, 31_000), [(30_000, false)]);
    b.set_keepalive(ms(31_000), None);
    assert_eq!(says(&mut b, 31_000, 200_000), []);
    assert_eq!((b.conn(id).map(|c| c.state()), events(&mut b)), (Some(State::Established), vec![]));
}

#[test]
fn test_peer_that_does_not_answer_keepalives_times_out() {
    let mut b = listening_b(8);
    let (id, ..) = established(&mut b, ms(0));
    events(&mut b);
    b.set_keepalive(ms(1), every(3_000));
    let said = says(&mut b, 1, 10_000);
    assert_eq!(said, [(3_000, false), (4_000, false), (5_000, false), (6_000, true)]);
    assert_eq!(events(&mut b), [(id, StackEvent::Conn(ConnEvent::TimedOut))]);
}

/// The setting applies to connections in their handshake, and to later connections.
#[test]
fn test_keepalive_setting_applies_to_later_connections() {
    let mut b = listening_b(8);
    b.handle_frame(ms(0), &tcp_frame((A, 5), (B, PORT), &syn(100), b"")[..]);
    let answer = frames(&mut b, ms(0));
    let (_, seg) = read_tcp(&answer[0]);
    b.set_keepalive(ms(1), every(3_000));
    let ack = segment(101, seg.seq.0.wrapping_add(1), Flags::ACK);
    b.handle_frame(ms(1), &tcp_frame((A, 5), (B, PORT), &ack, b"")[..]);
    assert_eq!(says(&mut b, 1, 3_500), [(3_001, false)]);
    events(&mut b);
    established(&mut b, ms(3_500));
    assert!(says(&mut b, 3_500, 7_000).contains(&(6_500, false)), "the one made since");
}
