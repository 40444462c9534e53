//! Reports to the control plane of bytes before FPDU mode.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "small numbers of a test")]

use crate::sim::{Frame, LinkConfig, PORT, Pair, VecSink};
use heddle_rnic::Event;
use heddle_types::ConnId;

/// Passes frames to and fro until none are left; events stay in their RNICs.
fn pump(p: &mut Pair) {
    let mut quiet = 0;
    while quiet < 2 {
        for side in 0..2 {
            let h = &mut p.hosts[side];
            let mut sink = VecSink::new(&h.mem);
            if h.rnic.poll_transmit(p.now, &h.mem, &mut sink) == 0 {
                quiet += 1;
                continue;
            }
            quiet = 0;
            let frame = sink.done.remove(0);
            let h = &mut p.hosts[1 - side];
            h.rnic.handle_frame(p.now, &h.mem, Frame(frame));
        }
    }
}

fn events(p: &mut Pair, side: usize) -> Vec<Event> {
    std::iter::from_fn(|| p.hosts[side].rnic.poll_event()).collect()
}

/// Makes a TCP connection from host 0 to host 1.
fn connected() -> (Pair, ConnId, ConnId) {
    let mut p = Pair::new(1, LinkConfig::default(), 64);
    p.hosts[1].rnic.listen(None, PORT, 8).unwrap();
    let a = p.hosts[0].rnic.connect(p.now, ([10, 0, 0, 2], PORT).into()).unwrap();
    pump(&mut p);
    assert!(matches!(events(&mut p, 0)[..], [Event::Connected { .. }]));
    let [Event::Accepted { conn: b, .. }] = events(&mut p, 1)[..] else { panic!("accepted") };
    (p, a, b)
}

#[test]
fn test_tiny_segments_join_one_event_until_it_is_taken() {
    let (mut p, a, b) = connected();
    for round in 0..3 {
        let bytes: Vec<u8> = (0..200).map(|i| i ^ round).collect();
        for byte in &bytes {
            p.hosts[0].rnic.send_startup(a, &[*byte]).unwrap();
            pump(&mut p);
        }
        assert_eq!(events(&mut p, 1), [Event::StartupBytes { conn: b, bytes }]);
    }
}

#[test]
fn test_ended_connection_leaves_few_events_however_much_it_sent() {
    let (mut p, a, b) = connected();
    for _ in 0..100 {
        p.hosts[0].rnic.send_startup(a, &[7; 10]).unwrap();
        pump(&mut p);
    }
    p.hosts[0].rnic.abort(a);
    pump(&mut p);
    // Bytes that came before the reset are of no use any more.
    let events = events(&mut p, 1);
    assert!(matches!(events[..], [Event::Closed { conn, .. }] if conn == b), "{events:?}");
}

#[test]
fn test_bytes_before_fpdu_mode_are_bounded() {
    let (mut p, a, b) = connected();
    p.hosts[0].rnic.send_startup(a, &[7; 100_000]).unwrap();
    pump(&mut p);
    let events = events(&mut p, 1);
    let [Event::StartupBytes { conn, bytes }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*conn, b);
    assert!((9000..=16 * 1024).contains(&bytes.len()), "{}", bytes.len());
    assert!(p.hosts[1].rnic.counters().startup_overflow_bytes > 0);
}

/// Returns all frames that a host has to send now.
fn frames(pair: &mut Pair, host: usize) -> Vec<Vec<u8>> {
    let (now, h) = (pair.now, &mut pair.hosts[host]);
    let mut frames = Vec::new();
    loop {
        let mut sink = VecSink::new(&h.mem);
        if h.rnic.poll_transmit(now, &h.mem, &mut sink) == 0 {
            return frames;
        }
        frames.extend(sink.done);
    }
}

fn deliver(pair: &mut Pair, to: usize, frames: Vec<Vec<u8>>) {
    let (now, h) = (pair.now, &mut pair.hosts[to]);
    for f in frames {
        h.rnic.handle_frame(now, &h.mem, Frame(f));
    }
}

/// The ACK that ends the handshake is lost; the next segment, which ends the handshake in its
/// place, carries the MPA Request.
#[test]
fn test_accepted_event_precedes_bytes_of_segment_that_ended_the_handshake() {
    let mut pair = Pair::new(1, LinkConfig::default(), 64);
    let now = pair.now;
    pair.hosts[1].rnic.listen(None, PORT, 8).unwrap();
    let conn = pair.hosts[0].rnic.connect(now, ([10, 0, 0, 2], PORT).into()).unwrap();
    // Exchange address resolution, SYN and SYN-ACK.
    for _ in 0..2 {
        let there = frames(&mut pair, 0);
        deliver(&mut pair, 1, there);
        let back = frames(&mut pair, 1);
        deliver(&mut pair, 0, back);
    }
    assert!(matches!(pair.hosts[0].rnic.poll_event(), Some(Event::Connected { .. })));
    let lost = frames(&mut pair, 0);
    assert_eq!(lost.len(), 1);
    assert_eq!(pair.hosts[1].rnic.poll_event(), None);

    pair.hosts[0].rnic.send_startup(conn, b"request").unwrap();
    let request = frames(&mut pair, 0);
    deliver(&mut pair, 1, request);
    let server = &mut pair.hosts[1].rnic;
    let Some(Event::Accepted { conn, .. }) = server.poll_event() else { panic!("not accepted") };
    assert_eq!(server.poll_event(), Some(Event::StartupBytes { conn, bytes: b"request".to_vec() }));
    assert_eq!(server.poll_event(), None);
}
