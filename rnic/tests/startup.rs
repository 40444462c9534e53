//! What the control plane is told of a connection, and in which order.

#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "a test")]

mod sim;

use heddle_rnic::Event;
use sim::{Frame, LinkConfig, PORT, Pair, VecSink};

/// All frames a host has to send now.
fn frames(pair: &mut Pair, host: usize) -> Vec<Vec<u8>> {
    let (now, h) = (pair.now, &mut pair.hosts[host]);
    let mut frames = Vec::new();
    loop {
        let mut sink = VecSink { mem: &h.mem, frame: Vec::new(), done: None };
        if !h.rnic.poll_transmit(now, &h.mem, &mut sink) {
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

/// The ACK that ends the handshake is lost; the segment behind it, which ends the handshake in its
/// place, carries the MPA Request.
#[test]
fn test_accepted_comes_before_the_bytes_of_the_segment_that_ended_the_handshake() {
    let mut pair = Pair::new(1, LinkConfig::default(), 64);
    let now = pair.now;
    pair.hosts[1].rnic.listen(None, PORT, 8).unwrap();
    let conn = pair.hosts[0].rnic.connect(now, ([10, 0, 0, 2], PORT).into()).unwrap();
    // Address resolution, SYN, SYN-ACK.
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
