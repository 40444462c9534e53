//! A peer that sends one byte at a time, beyond a gap and in the order that costs most.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "small numbers of a test")]

use std::time::Duration;

use crate::sim::{Frame, Host, LinkConfig, PORT, Pair, VecSink};
use heddle_base::{StreamPos, Sum};
use heddle_iwarp::QpConfig;
use heddle_mr::MrAttr;
use heddle_rnic::Event;
use heddle_types::{Access, ConnId, RecvWr, SendWr, Sge};

/// Returns a copy of a one-byte segment whose byte lies `ahead` bytes further on in the stream.
fn moved(frame: &[u8], ahead: u32) -> Vec<u8> {
    let mut f = frame.to_vec();
    let seq = u32::from_be_bytes(f[38..42].try_into().unwrap()).wrapping_add(ahead);
    f[38..42].copy_from_slice(&seq.to_be_bytes());
    f[50..52].fill(0);
    let len = u16::try_from(f.len() - 34).unwrap();
    let mut pseudo = f[26..34].to_vec();
    pseudo.extend([0, 6]);
    pseudo.extend(len.to_be_bytes());
    let sum = Sum::of(&pseudo).plus(Sum::of(&f[34..])).complement();
    f[50..52].copy_from_slice(&sum.to_be_bytes());
    f
}

fn next_frame(h: &mut Host, now: heddle_base::Instant) -> Option<Vec<u8>> {
    let mut sink = VecSink::new(&h.mem);
    (h.rnic.poll_transmit(now, &h.mem, &mut sink) > 0).then(|| sink.done.remove(0))
}

/// Opens another connection from host 0 to host 1, and leaves it in its start-up.
fn open(p: &mut Pair) -> (ConnId, ConnId) {
    let (now, mut b) = (p.now, None);
    let a = p.hosts[0].rnic.connect(now, ([10, 0, 0, 2], PORT).into()).unwrap();
    p.run(Duration::from_secs(1), |p| {
        for e in p.hosts[1].events.drain(..) {
            if let Event::Accepted { conn, .. } = e {
                b = Some(conn);
            }
        }
        b.is_some()
    });
    (a, b.unwrap())
}

/// Returns a one-byte segment of the stream that `a` begins; the segment does not reach the other
/// host.
fn one_byte(p: &mut Pair, a: ConnId) -> Vec<u8> {
    let now = p.now;
    p.hosts[0].rnic.send_startup(a, &[7]).unwrap();
    let frames: Vec<_> = std::iter::from_fn(|| next_frame(&mut p.hosts[0], now)).collect();
    frames.into_iter().find(|f| f.len() > 54 && f[46] >> 4 == 8 && f.len() == 67).unwrap()
}

const BYTES: u32 = 60_000;

#[test]
fn test_bytes_ahead_of_a_gap_before_fpdu_mode_take_few_buffers() {
    let mut p = Pair::new(1, LinkConfig::default(), 64);
    p.hosts[1].rnic.listen(None, PORT, 8).unwrap();
    for _ in 0..14 {
        let (a, b) = open(&mut p);
        let before = p.hosts[1].rnic.held_frames();
        let frame = one_byte(&mut p, a);
        let now = p.now;
        for ahead in (1..BYTES).rev() {
            let h = &mut p.hosts[1];
            h.rnic.handle_frame(now, &h.mem, Frame(moved(&frame, ahead)));
            assert!(h.rnic.held_frames() - before <= 9, "{ahead}");
        }
        // The RNIC still takes the byte that the others wait for.
        let h = &mut p.hosts[1];
        h.rnic.handle_frame(now, &h.mem, Frame(frame));
        assert_eq!(h.rnic.connection(b).unwrap().rcv_nxt(), StreamPos::START + 1);
    }
    assert!(
        p.hosts[1].rnic.counters().rx_refused + p.hosts[1].rnic.counters().startup_overflow_bytes
            > 0
    );
}

#[test]
fn test_bytes_ahead_of_a_gap_leave_memory_to_other_connections() {
    let mut p = Pair::new(1, LinkConfig::default(), 1 << 20);
    let qp = QpConfig { pd: crate::sim::PD, sq_depth: 16, rq_depth: 16, ..QpConfig::default() };
    let [good, good_b] = p.connect(&qp);
    let (a, b) = open(&mut p);
    let frame = one_byte(&mut p, a);
    let h = &mut p.hosts[1];
    h.rnic
        .enter_fpdu_mode(b, heddle_rnic::FpduMode { startup_len: 0, reply: Vec::new(), qp })
        .unwrap();
    h.rnic.start(&h.mem, b);
    let now = p.now;
    for ahead in (1..BYTES).rev() {
        let h = &mut p.hosts[1];
        h.rnic.handle_frame(now, &h.mem, Frame(moved(&frame, ahead)));
        assert!(h.rnic.held_frames() <= BYTES as usize / 2048 + 2, "{ahead}");
    }
    assert!(p.hosts[1].rnic.held_frames() > 0, "it is kept, not refused");

    let src = p.register(0, 0, 1000, Access::LOCAL_WRITE);
    let dst = p.register(1, 0, 1000, Access::LOCAL_WRITE);
    let one = |mr: &MrAttr| [Sge { stag: mr.stag, to: crate::sim::TO_BASE, len: 1000 }];
    p.hosts[1].rnic.post_recv(good_b, &RecvWr { wr_id: 1, sges: &one(&dst) }).unwrap();
    let sges = one(&src);
    let wr = SendWr::send(2, &sges);
    p.hosts[0].rnic.post_send(good, &wr).unwrap();
    p.run(Duration::from_millis(10), |p| !p.hosts[1].completions.is_empty());
    p.hosts[1].rnic.abort(b);
    assert_eq!(p.hosts[1].rnic.held_frames(), 0);
}
