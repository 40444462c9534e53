//! Sending new data: cutting, windows, growth of the congestion window.

use super::*;

/// A queue of records, as FPDUs are.
#[derive(Default)]
pub(super) struct Records {
    ends: Vec<u64>,
}

impl Records {
    pub(super) fn push(&mut self, len: u64) {
        self.ends.push(self.end().0 + len);
    }
}

impl SendQueue for Records {
    fn end(&self) -> StreamPos {
        StreamPos(self.ends.last().copied().unwrap_or(0))
    }

    fn segment_len(&self, from: StreamPos, max: u32) -> u32 {
        let limit = (from + u64::from(max)).min(self.end()).0;
        let whole = self.ends.iter().copied().filter(|&e| e > from.0 && e <= limit).max();
        u32::try_from(whole.unwrap_or(limit) - from.0).unwrap()
    }
}

fn sent(b: &mut Bench, q: &Records) -> Vec<String> {
    core::iter::from_fn(|| b.c.poll_transmit(b.now, q)).map(|t| show(&t)).collect()
}

#[test]
fn test_established_data_is_cut_at_the_mss_and_pushed_at_the_end() {
    let mut b = Bench::established();
    b.queue(2500);
    assert_eq!(b.sent(), [". 0+1000 ack 0", ". 1000+1000 ack 0", "P. 2000+500 ack 0"]);
    b.queue(1);
    assert_eq!(b.sent(), ["P. 2500+1 ack 0"], "no Nagle");
    assert_eq!(b.c.snd_max(), StreamPos(2501));
    assert_eq!(b.ack(2501).acked, Some(StreamPos(2501)));
    assert_eq!((b.c.snd_una(), b.c.poll_timeout()), (StreamPos(2501), None));
}

#[test]
fn test_established_segments_end_where_records_end() {
    let mut b = Bench::established();
    let mut q = Records::default();
    for len in [400, 400, 400, 1000, 999, 2] {
        q.push(len);
    }
    assert_eq!(
        sent(&mut b, &q),
        [
            ". 0+800 ack 0",
            ". 800+400 ack 0",
            ". 1200+1000 ack 0",
            ". 2200+999 ack 0",
            "P. 3199+2 ack 0"
        ]
    );
}

#[test]
fn test_established_record_beyond_the_mss_is_cut() {
    let mut b = Bench::established();
    let mut q = Records::default();
    q.push(1001);
    q.push(10);
    assert_eq!(sent(&mut b, &q), [". 0+1000 ack 0", "P. 1000+11 ack 0"]);
}

/// RFC 9293 MUST-38: the connection cuts no record because a window that was large is nearly full.
#[test]
fn test_established_record_waits_for_the_window() {
    let mut b = Bench::established();
    b.window = 2500;
    b.ack(0);
    let mut q = Records::default();
    for _ in 0..4 {
        q.push(1000);
    }
    assert_eq!(sent(&mut b, &q), [". 0+1000 ack 0", ". 1000+1000 ack 0"]);
    assert_eq!(b.c.send_room(StreamPos(2000)), 500);
    b.ack(1000);
    assert_eq!(sent(&mut b, &q), [". 2000+1000 ack 0"]);
}

/// The connection cuts a record larger than half of all the peer ever offered, and does not hold it
/// for ever.
#[test]
fn test_established_record_larger_than_any_window_is_cut() {
    let cfg = plain();
    let mut b = Bench::connecting(&cfg);
    b.sent();
    b.window = 600;
    b.recv(&Segment { mss: Some(1000), ..b.seg(-1, 0).with(SYN_ACK) });
    b.sent();
    let mut q = Records::default();
    q.push(1000);
    assert_eq!(sent(&mut b, &q), [". 0+600 ack 0"]);
    b.ack(600);
    assert_eq!(sent(&mut b, &q), ["P. 600+400 ack 0"]);
    // Half of the window is enough; a byte less is not.
    for (room, out) in [(300, vec![". 1000+300 ack 0"]), (299, vec![])] {
        let mut b = Bench { c: b.c.clone(), q: ByteQueue::default(), ..b };
        let mut q = Records::default();
        q.push(1000);
        q.push(1000);
        b.window = room;
        b.ack(1000);
        assert_eq!(sent(&mut b, &q), out);
    }
}

/// RFC 5681 section 2: the connection never sends beyond the smaller of both windows, but may reach
/// the edge itself.
#[test]
fn test_established_send_stops_at_either_window() {
    let mut b = Bench::established();
    b.queue(50_000);
    assert_eq!(b.sent().len(), 10, "initial window: ten segments");
    assert_eq!(b.c.send_room(b.q.end()), 0);
    let mut b = Bench::established();
    b.window = 3000;
    b.ack(0);
    b.queue(50_000);
    assert_eq!(b.sent().len(), 3);
    let mut b = Bench::established();
    b.window = 2999;
    b.ack(0);
    b.queue(50_000);
    assert_eq!(b.sent().len(), 2);
}

/// RFC 3465: the window grows by the acknowledged bytes, so that it doubles in a round trip however
/// seldom the peer acknowledges; by at most 64 segments for one ACK.
#[test]
fn test_slow_start_grows_by_what_was_acknowledged() {
    let mut b = Bench::established();
    b.window = 65_535;
    b.queue(500_000);
    b.sent();
    b.ack(1000);
    assert_eq!(b.c.stats().cwnd, 11_000);
    b.ack(1500);
    assert_eq!(b.c.stats().cwnd, 11_500);
    b.ack(9000);
    assert_eq!(b.c.stats().cwnd, 19_000);

    // A peer with a scaled window acknowledges a whole window at a time.
    let cfg = ConnConfig { window_scaling: true, ..plain() };
    let mut b = Bench::connecting(&cfg);
    b.sent();
    b.recv(&Segment { window_scale: Some(14), mss: Some(1000), ..b.seg(-1, 0).with(SYN_ACK) });
    b.ack(0);
    b.queue(2_000_000);
    let mut windows = Vec::new();
    for _ in 0..6 {
        b.sent();
        b.ack(i32::try_from(b.c.snd_max().0).unwrap());
        windows.push(b.c.stats().cwnd / 1000);
    }
    assert_eq!(windows, [20, 40, 80, 144, 208, 272]);
}

/// RFC 3465 section 2.3: bytes acknowledged by a timeout's retransmissions may have arrived before,
/// and open the window by one segment only.
#[test]
fn test_slow_start_after_a_timeout_grows_by_one_segment_per_ack() {
    for sack in [false, true] {
        let mut b = Bench::established_with(&ConnConfig { sack, ..plain() });
        b.queue(10_000);
        b.sent();
        while b.c.counters().timeouts == 0 {
            b.now = b.c.poll_timeout().unwrap();
            b.c.handle_timeout(b.now);
        }
        b.sent();
        assert_eq!(b.c.stats().cwnd, 1000);
        b.ack(3000);
        assert_eq!(b.c.stats().cwnd, 2000, "sack {sack}");
        b.sent();
        b.ack(7000);
        assert_eq!(b.c.stats().cwnd, 3000, "sack {sack}");
    }
}

#[test]
fn test_congestion_avoidance_grows_by_one_segment_per_window() {
    let mut b = loss::after_recovery();
    let start = b.c.stats().cwnd;
    assert!(start >= b.c.stats().ssthresh);
    b.queue(100_000);
    let (mut una, mut acked) = (b.c.snd_una().0, 0);
    while acked < u64::from(start) {
        b.sent();
        assert_eq!(b.c.stats().cwnd, start);
        una += 500;
        acked += 500;
        b.ack(i32::try_from(una).unwrap());
    }
    assert_eq!(b.c.stats().cwnd, start + 1000);
}

#[test]
fn test_unused_window_does_not_grow() {
    let mut b = Bench::established();
    for i in 1..50 {
        b.queue(1000);
        b.sent();
        b.ack(i * 1000);
    }
    assert_eq!(b.c.stats().cwnd, 10_000);
}

/// RFC 5681 section 4.1, with the longer of the timeout and the configured time.
#[test]
fn test_idle_connection_starts_from_the_initial_window() {
    let grown = |idle_restart| {
        let mut b = Bench::established_with(&ConnConfig { idle_restart, ..plain() });
        b.queue(40_000);
        let mut una = 0;
        while una < 40_000 {
            b.sent();
            una += 1000;
            b.ack(una);
        }
        assert!(b.c.stats().cwnd > 30_000);
        b.queue(40_000);
        b
    };
    for (idle, limit) in [(0, 200), (199, 200), (500, 500)] {
        let mut b = grown(idle * MS);
        assert_eq!(b.c.stats().rto, 200 * MS);
        b.wait(limit * MS + MS);
        b.sent();
        assert_eq!(b.c.stats().cwnd, 10_000, "{idle}");
        let mut b = grown(idle * MS);
        b.wait(limit * MS);
        b.sent();
        assert!(b.c.stats().cwnd > 30_000, "{idle}: not longer than that");
    }
}

/// A timeout of a few milliseconds does not close a window that has grown.
#[test]
fn test_a_pause_of_a_few_timeouts_keeps_the_window() {
    let cfg = ConnConfig { mss: 1460, timestamps: false, ..ConnConfig::default() };
    let mut b = Bench::connecting(&cfg);
    b.sent();
    b.now = b.now + Duration::from_micros(50);
    b.recv(&Segment {
        mss: Some(1460),
        window_scale: Some(14),
        sack_permitted: true,
        ..b.seg(-1, 0).with(SYN_ACK)
    });
    b.ack(0);
    for _ in 0..5 {
        b.queue(400_000);
        b.sent();
        b.now = b.now + Duration::from_micros(50);
        b.ack(i32::try_from(b.c.snd_max().0).unwrap());
    }
    let cwnd = b.c.stats().cwnd;
    assert!(b.c.stats().rto < 4 * MS && cwnd > 200_000, "{:?}", b.c.stats());
    b.now = b.now + 20 * MS;
    b.queue(400_000);
    b.sent();
    assert_eq!(b.c.stats().cwnd, cwnd);
}

#[test]
fn test_initial_window_depends_on_segment_size() {
    let iw = |mss: u16| {
        let syn = Segment { mss: Some(mss), ..raw(IRS, SeqNumber(0), SYN) };
        let cfg = ConnConfig { mss: 9000, timestamps: false, ..ethernet() };
        Connection::accept(&cfg, Instant::ZERO, ISS, 0, &syn).stats().cwnd
    };
    assert_eq!(iw(536), 5360);
    assert_eq!(iw(1460), 14_600);
    assert_eq!(iw(1461), 14_600);
    assert_eq!(iw(7300), 14_600);
    assert_eq!(iw(8960), 17_920);
}

#[test]
fn test_send_room_counts_from_the_end_of_the_queue() {
    let mut b = Bench::established();
    assert_eq!(b.c.send_room(StreamPos(0)), 10_000);
    b.queue(4000);
    assert_eq!(b.c.send_room(b.q.end()), 6000);
    b.sent();
    assert_eq!(b.c.send_room(b.q.end()), 6000);
    b.queue(6000);
    assert_eq!(b.c.send_room(b.q.end()), 0);
    assert_eq!(Bench::in_state(State::FinWait1).c.send_room(StreamPos(0)), 0);
    assert_eq!(Bench::in_state(State::CloseWait).c.send_room(StreamPos(0)), 10_000);
}

/// RFC 5681 section 3.1: cwnd shrinks with the segments. RFC 1191: the sender sends bytes that were
/// too big again.
#[test]
fn test_path_mtu_lowers_the_segment_size() {
    let mut b = Bench::established();
    b.queue(3000);
    b.sent();
    b.c.limit_emss(b.now, 1000);
    assert_eq!(b.sent(), strings(&[]), "no smaller than before");
    b.c.limit_emss(b.now, 999);
    assert_eq!((b.c.emss(), b.c.stats().cwnd), (999, 9990));
    assert_eq!(
        b.sent(),
        [
            ". 0+999 ack 0 again",
            ". 999+999 ack 0 again",
            ". 1998+999 ack 0 again",
            "P. 2997+3 ack 0 again"
        ]
    );
    b.c.limit_emss(b.now, 0);
    assert_eq!(b.c.emss(), 64);
    b.c.limit_emss(b.now, 2000);
    assert_eq!(b.c.emss(), 64);
}

/// Our positions continue beyond 2^32 as well.
#[test]
fn test_established_positions_continue_beyond_four_gigabytes_sent() {
    struct Endless;
    impl SendQueue for Endless {
        fn end(&self) -> StreamPos {
            StreamPos(u64::MAX / 2)
        }
        fn segment_len(&self, _: StreamPos, max: u32) -> u32 {
            max
        }
    }
    let cfg = ConnConfig { timestamps: false, mss: 65_000, ..ethernet() };
    let mut b = Bench::connecting(&cfg);
    b.sent();
    let s = Segment { mss: Some(65_000), window_scale: Some(14), ..b.seg(-1, 0).with(SYN_ACK) };
    b.recv(&s);
    let mut pos = 0u64;
    while pos < 3 << 32 {
        let mut end = pos;
        while let Some(t) = b.c.poll_transmit(b.now, &Endless) {
            assert_eq!((t.pos.0, t.retransmit), (end, false));
            end += u64::from(t.len);
            assert_eq!(
                t.seq,
                ISS.advance(1).advance(u32::try_from(t.pos.0 & 0xffff_ffff).unwrap())
            );
        }
        assert!(end > pos);
        pos = end;
        let ack = ISS.advance(1).advance(u32::try_from(pos & 0xffff_ffff).unwrap());
        let s = Segment { ack, ..b.seg(0, 0) };
        assert_eq!(b.recv(&s).acked, Some(StreamPos(pos)));
        b.now = b.now + MS;
    }
}
