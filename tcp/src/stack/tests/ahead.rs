//! Looks ahead at bursts.

use core::cell::Cell;

use super::*;
use crate::Timestamps;
use heddle_base::Fetch;

/// Counts the bytes that the stack names.
#[derive(Clone, Copy)]
struct Counted<'a>(&'a Cell<usize>);

impl Fetch for Counted<'_> {
    fn bytes(self, _at: *const u8, len: usize) {
        self.0.set(self.0.get() + len);
    }
}

const TS: Option<Timestamps> = Some(Timestamps { val: 1, ecr: 0 });

/// Makes connections of A's ports from 1000 on; returns the key of each, and a frame of 10 bytes
/// that continues it.
fn connected(b: &mut Stack<ByteQueue>, n: u16) -> Vec<(ConnId, Vec<u8>)> {
    let each = (1000..1000 + n).map(|port| {
        let to_b = |seg: &TxSegment, data: &[u8]| tcp_frame((A, port), (B, PORT), seg, data);
        let first = TxSegment { timestamps: TS, ..syn(100) };
        b.handle_frame(ms(1), &to_b(&first, b"")[..]);
        let (_, answer) = read_tcp(&frames(b, ms(1))[0]);
        let ack = segment(101, answer.seq.0.wrapping_add(1), Flags::ACK);
        let ack = TxSegment { timestamps: TS, ..ack };
        b.handle_frame(ms(1), &to_b(&ack, b"")[..]);
        let [(id, StackEvent::Accepted { .. })] = events(b)[..] else { panic!("accepted") };
        (id, to_b(&ack, &[7; 10]))
    });
    each.collect()
}

fn conn_of(out: FrameOutcome) -> Option<ConnId> {
    match out {
        FrameOutcome::Conn { conn, payload: Some(p), .. } => (p.len == 10).then_some(conn),
        _ => None,
    }
}

#[test]
fn test_connections_of_a_burst_are_seen_before_their_frames_are_handled() {
    let mut b = listening_b(8);
    let all = connected(&mut b, 3);
    let stranger = tcp_frame((A, 9), (B, PORT), &segment(1, 1, Flags::ACK), b"");
    let asks = arp_frame(wire_arp::Operation::Request, A, MAC_A, B, [0; 6]);
    let [x, y, z] = [&all[0], &all[1], &all[2]];
    let burst = [&x.1, &x.1, &asks, &x.1, &z.1, &stranger, &y.1];
    let mut burst = burst.map(|f| Some(&f[..]));
    let slots = Cell::new(0);
    b.look_ahead(&burst, Counted(&slots));
    assert!(slots.get() > 0);
    let seen: Vec<_> = (0..8).map(|at| b.seen_ahead(at)).collect();
    let [i, j, k] = [x.0, y.0, z.0].map(|id| Some(id.slot()));
    assert_eq!(seen, [i, i, None, i, k, None, j, None]);
    let state = Cell::new(0);
    b.fetch(x.0.slot(), Counted(&state));
    assert!(state.get() >= Connection::HOT, "{} bytes", state.get());

    let mut told = Vec::new();
    let mut at = 0;
    while at < burst.len() {
        let run = b.handle_frames(ms(2), &mut burst[at..]);
        told.push(conn_of(run.outcome));
        at += run.frames as usize;
    }
    let [x, y, z] = [x.0, y.0, z.0].map(Some);
    assert_eq!(told, [x, x, None, x, z, None, y]);
}

/// The first frame of a burst ends the connection for which the stack has seen the second.
#[test]
fn test_a_look_ahead_that_is_out_of_date_decides_nothing() {
    let mut b = listening_b(8);
    let all = connected(&mut b, 2);
    let (id, data) = &all[0];
    let (_, seg) = read_tcp(data);
    let reset = segment(seg.seq.0, seg.ack.0, Flags::RST);
    let reset = tcp_frame((A, 1000), (B, PORT), &reset, b"");
    let mut burst = [&reset, data, &all[1].1].map(|f| Some(&f[..]));
    b.look_ahead(&burst, Counted(&Cell::new(0)));
    assert_eq!((0..3).map(|at| b.seen_ahead(at)).filter(Option::is_some).count(), 2);
    b.handle_frames(ms(2), &mut burst[..1]);
    assert!(matches!(events(&mut b)[..], [(of, StackEvent::Conn(ConnEvent::Reset))] if of == *id));
    b.release(*id);
    let run = b.handle_frames(ms(2), &mut burst[1..2]);
    assert_eq!(conn_of(run.outcome), None);
    assert_eq!(b.counters().rx_no_connection, 1);
    let run = b.handle_frames(ms(2), &mut burst[2..]);
    assert_eq!(conn_of(run.outcome), Some(all[1].0));
}
