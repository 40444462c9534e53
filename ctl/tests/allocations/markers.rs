//! Two RNICs with markers both ways and CRC, over a wire that loses, doubles and reorders frames:
//! Writes, Sends, Reads and atomics. The test compares every byte. Counters show that there were
//! markers, and that FPDUs ahead of a gap were placed by means of them (RFC 5044 sections 4.3 and
//! 5.2).
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::counting::{Conn, DEPTH, LARGEST, Net, Setup};
use heddle_dataplane::{FaultConfig, WorkerSnapshot};
use heddle_verbs::{CqeOp, Data, RecvWr, SendOp, SendWr};

/// Number of operations under way at a time.
const BATCH: usize = 32;
/// The slot of the region that has the counter, apart from the slots of a batch.
const COUNTER: usize = (DEPTH + BATCH) * LARGEST;
/// Number of turns that a batch may take.
const PATIENCE: u32 = 10_000_000;

/// Returns faults that make the wire bad in both directions.
fn bad_wire() -> FaultConfig {
    FaultConfig {
        drop: 0.02,
        duplicate: 0.01,
        reorder: 0.05,
        hold_time: Duration::from_micros(100),
        ..FaultConfig::default()
    }
}

/// Returns the payload of message `n`.
fn pattern(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(7) ^ i >> 8 ^ n.wrapping_mul(31)) as u8).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Send,
    Read,
    FetchAdd,
}

const KINDS: [Kind; 4] = [Kind::Write, Kind::Send, Kind::Read, Kind::FetchAdd];

/// Runs a batch of operations on slots of their own, and compares every byte that they were to
/// move.
fn batch(net: &mut Net, conn: &Conn, round: usize, sizes: &[usize]) {
    let (client, server) = (&conn.client, &conn.server);
    let ops: Vec<_> = (0..BATCH)
        .map(|j| {
            let n = round * BATCH + j;
            (n, j * LARGEST, (DEPTH + j) * LARGEST, KINDS[j % 4], sizes[n / 4 % sizes.len()])
        })
        .collect();
    let counter = server.mr.sge(COUNTER, 8);
    let mut sends = Vec::new();
    for &(n, near, far, kind, len) in &ops {
        let remote = server.mr.sge(far, len);
        let (stag, to) = (remote.stag, remote.to);
        let mut sges = [client.mr.sge(near, len)];
        let op = match kind {
            Kind::Write => SendOp::Write { stag, to },
            Kind::Send => {
                let at = (2 * DEPTH + sends.len()) * LARGEST;
                let buffer = [server.mr.sge(at, LARGEST)];
                server.qp.post_recv(&RecvWr { wr_id: n as u64, sges: &buffer }).unwrap();
                sends.push((n, at, len));
                SendOp::Send { solicited: false, invalidate: None }
            }
            Kind::Read => {
                server.mr.write(far, &pattern(n, len));
                client.mr.zero(near, len);
                SendOp::Read { stag, to }
            }
            Kind::FetchAdd => {
                sges = [client.mr.sge(near, 8)];
                SendWr::fetch_add(0, &[], counter.stag, counter.to, 3).op
            }
        };
        if matches!(kind, Kind::Write | Kind::Send) {
            client.mr.write(near, &pattern(n, len));
        }
        let data = Data::Sges(&sges);
        let wr = SendWr { wr_id: n as u64, op, data, signaled: true, fence: false };
        client.qp.post_send(&wr).unwrap();
    }
    let (mut done, mut arrived, mut turns) = (0, 0, 0);
    while done < ops.len() || arrived < sends.len() {
        net.poll();
        while let Some(c) = client.cq.poll() {
            assert!(c.status.is_success() && c.wr_id == ops[done].0 as u64, "{c:?}");
            done += 1;
        }
        while let Some(c) = server.cq.poll() {
            let (n, at, len) = sends[arrived];
            assert!(c.status.is_success() && c.op == CqeOp::Recv, "{c:?}");
            assert_eq!((c.wr_id, c.len as usize), (n as u64, len));
            assert_is(&server.mr, at, n, len, "a Send");
            arrived += 1;
        }
        turns += 1;
        assert!(turns < PATIENCE, "batch {round} stands still at {done}");
    }
    let before = round * BATCH / 4;
    for (i, &(n, near, far, kind, len)) in ops.iter().enumerate() {
        match kind {
            Kind::Write => assert_is(&server.mr, far, n, len, "a Write"),
            Kind::Read => assert_is(&client.mr, near, n, len, "a Read"),
            Kind::Send => {}
            // Each FetchAdd found the sum of the FetchAdds before it.
            Kind::FetchAdd => {
                let mut found = [0; 8];
                client.mr.read(near, &mut found);
                assert_eq!(u64::from_ne_bytes(found), 3 * (before + i / 4) as u64);
            }
        }
    }
}

fn assert_is(mr: &heddle_verbs::Mr, at: usize, n: usize, len: usize, what: &str) {
    let mut bytes = vec![0; len];
    mr.read(at, &mut bytes);
    assert!(bytes == pattern(n, len), "{what}, message {n} of {len} bytes");
}

/// Returns the counters of both sides after `rounds` of operations of these sizes.
fn run(setup: Setup, rounds: usize, sizes: &[usize]) -> [WorkerSnapshot; 2] {
    let mut net = Net::new(setup);
    net.connected(|net, conns| {
        (0..rounds).for_each(|round| batch(net, &conns[0], round, sizes));
        let all = [&net.a, &net.b].map(|e| e.snapshot().worker);
        for (side, s) in all.iter().enumerate() {
            let q = &s.engine.qps;
            assert_eq!((q.err_crc, q.err_marker, q.tx_terminates), (0, 0, 0), "side {side}");
        }
        let [a, b] = &all;
        assert_eq!(b.engine.qps.rx_atomic_requests, (rounds * BATCH / 4) as u64);
        assert_eq!(b.engine.qps.rx_read_requests, a.engine.qps.rx_read_responses);
        all
    })
}

/// Returns the bytes in the stream for `bytes` bytes of FPDUs: a marker of 4 bytes comes before
/// each 512th byte, beginning with the first.
fn with_markers(bytes: u64) -> u64 {
    // 508 bytes of FPDUs go with each marker.
    bytes + 4 * bytes.div_ceil(508)
}

/// Messages of one FPDU each are the same with and without markers, so the test can count the bytes
/// of the markers. With long messages, FPDUs ahead of a gap are placed by means of the markers.
#[test]
fn test_marked_streams_place_fpdus_ahead_of_gaps_on_bad_wire() {
    let single = [4, 1300, 64, 1001, 512, 0, 733, 1300];
    let fault = bad_wire();
    let plain = run(Setup::default(), 40, &single);
    let marked = run(Setup { markers: true, fault, ..Setup::default() }, 40, &single);
    for (side, (p, m)) in plain.iter().zip(&marked).enumerate() {
        assert_eq!(p.engine.qps.tx_fpdus, m.engine.qps.tx_fpdus, "side {side}: one FPDU each");
        assert_eq!(
            m.engine.rnic.tx_fpdu_bytes,
            with_markers(p.engine.rnic.tx_fpdu_bytes),
            "side {side}"
        );
        assert_eq!(p.engine.rnic.rx_placed_ahead, 0, "side {side}: nothing can be found without");
        // The other side has received all of these bytes, and those of the start-up.
        let [here, there] =
            [marked[1 - side].engine.rnic.rx_payload_bytes, m.engine.rnic.tx_fpdu_bytes];
        assert!((there..there + 1200).contains(&here), "side {side}: {there} sent, {here} taken");
    }
    let long = [1300, 20_000, LARGEST, 3001, 40_000];
    let far = run(Setup { markers: true, fault, ..Setup::default() }, 12, &long);
    for (side, s) in far.iter().enumerate() {
        let (r, fault) = (&s.engine.rnic, &s.fault);
        assert!(r.rx_placed_ahead > 100 && r.rx_placed_ahead_bytes > 100_000, "side {side}: {r:?}");
        assert!(fault.fault_dropped > 10 && r.tx_retransmits > 10, "side {side}: {fault:?} {r:?}");
    }
}
