//! Counters summed in pieces while connections end.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "small numbers of a test")]

use std::time::Duration;

use crate::sim::{LinkConfig, PORT, Pair};
use heddle_iwarp::QpConfig;
use heddle_rnic::{Event, FpduMode};
use heddle_types::{ConnId, SendWr};

/// Connects host 0, in FPDU mode, to a host 1 that leaves the connection in its start-up.
fn open(p: &mut Pair) -> ConnId {
    let (now, mut up) = (p.now, false);
    let conn = p.hosts[0].rnic.connect(now, ([10, 0, 0, 2], PORT).into()).unwrap();
    p.run(Duration::from_secs(1), |p| {
        up |= p.hosts[0].events.drain(..).any(|e| matches!(e, Event::Connected { .. }));
        up
    });
    let qp = QpConfig { pd: crate::sim::PD, sq_depth: 16, rq_depth: 16, ..QpConfig::default() };
    let h = &mut p.hosts[0];
    h.rnic.enter_fpdu_mode(conn, FpduMode { startup_len: 0, reply: Vec::new(), qp }).unwrap();
    h.rnic.start(&h.mem, conn);
    conn
}

#[test]
fn test_qp_counters_summed_in_pieces_equal_the_whole_sum() {
    // Connection `gone` of ten ends after the sum has included `at` of them: it is before, at or
    // after the end of the partial sum.
    for (gone, at) in (0..10).flat_map(|gone| (1..10).map(move |at| (gone, at))) {
        let mut p = Pair::new(1, LinkConfig::default(), 64);
        p.hosts[1].rnic.listen(None, PORT, 64).unwrap();
        let conns: Vec<_> = (0..10).map(|_| open(&mut p)).collect();
        for (i, conn) in conns.iter().enumerate() {
            for wr_id in 0..=i as u64 {
                let wr = SendWr::send(wr_id, &[]);
                p.hosts[0].rnic.post_send(*conn, &wr).unwrap();
            }
        }
        p.step();
        let rnic = &mut p.hosts[0].rnic;
        let all = rnic.qp_counters();
        assert_eq!(all.tx_fpdus, 55);
        for _ in 0..at {
            assert_eq!(rnic.poll_qp_counters(1), None);
        }
        rnic.abort(conns[gone]);
        let sum = (0..10).find_map(|_| rnic.poll_qp_counters(1)).unwrap();
        assert_eq!(sum.tx_fpdus, 55, "{gone} ended after {at}");
        assert_eq!(rnic.poll_qp_counters(100), Some(rnic.qp_counters()));
        assert_eq!(rnic.poll_conn_counters(100), Some(rnic.conn_counters()));
    }
}
