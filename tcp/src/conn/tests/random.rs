//! Properties under arbitrary segments and calls.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Segment(Segment, SackBlocks),
    Accept,
    Queue(usize),
    Close,
    Abort,
    Window(u32),
    Wait(u64),
    Timer,
    Poll,
}

/// Returns numbers near the ones that matter, and anywhere.
fn near(base: SeqNumber) -> impl Strategy<Value = SeqNumber> {
    prop_oneof![
        6 => (-3i32..40).prop_map(move |d| base.advance(1).advance(d.cast_unsigned())),
        4 => (-3i32..12_000).prop_map(move |d| base.advance(1).advance(d.cast_unsigned())),
        1 => any::<u32>().prop_map(SeqNumber),
    ]
}

pub(super) fn segment() -> impl Strategy<Value = (Segment, SackBlocks)> {
    let flags = prop_oneof![
        8 => Just(Flags::ACK),
        2 => Just(FIN),
        1 => Just(SYN),
        1 => Just(SYN_ACK),
        1 => Just(RST),
        2 => any::<u8>().prop_map(|bits| Flags(bits.into())),
    ];
    let len = prop_oneof![4 => Just(0u32), 4 => 1u32..2000, 1 => any::<u32>()];
    let window = prop_oneof![Just(0u16), 0u16..1500, any::<u16>()];
    let ts = prop_oneof![
        1 => Just(None),
        3 => (0u32..50, any::<u32>()).prop_map(|(val, ecr)| Some(Timestamps { val, ecr })),
        1 => any::<(u32, u32)>().prop_map(|(val, ecr)| Some(Timestamps { val, ecr })),
    ];
    let block = (near(ISS), near(ISS)).prop_map(|(start, end)| SackBlock { start, end });
    let sack = prop_oneof![
        2 => Just(Vec::new()),
        1 => proptest::collection::vec(block, 0..5),
    ];
    let options = (any::<Option<u16>>(), any::<Option<u8>>(), any::<bool>(), sack);
    (near(IRS), near(ISS), flags, len, window, ts, options).prop_map(
        |(
            seq,
            ack,
            flags,
            len,
            window,
            timestamps,
            (mss, window_scale, sack_permitted, blocks),
        )| {
            let mut sack = SackBlocks::default();
            blocks.into_iter().for_each(|b| sack.push(b));
            let seg = Segment {
                seq,
                ack,
                flags,
                window,
                len,
                mss,
                window_scale,
                sack_permitted,
                timestamps,
                ecn: Codepoint::NOT_ECT,
            };
            (seg, sack)
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => segment().prop_map(|(s, sack)| Op::Segment(s, sack)),
        6 => Just(Op::Accept),
        3 => (1usize..4000).prop_map(Op::Queue),
        1 => Just(Op::Close),
        1 => prop_oneof![9 => Just(Op::Poll), 1 => Just(Op::Abort)],
        1 => (0u32..20_000).prop_map(Op::Window),
        2 => (0u64..3_000).prop_map(Op::Wait),
        2 => Just(Op::Timer),
        6 => Just(Op::Poll),
    ]
}

/// Checks the properties that must always hold.
struct Watch {
    b: Bench,
    edge: u64,
    last: Option<Payload>,
    /// True if segments have bits of ECN, codepoints and AccECN options.
    ecn: bool,
}

impl Watch {
    fn new(b: Bench) -> Watch {
        Watch { b, edge: 0, last: None, ecn: false }
    }

    fn recv(&mut self, seg: &Segment, sack: &SackBlocks) -> SegmentOutcome {
        if !self.ecn {
            return self.b.recv_selective(seg, sack);
        }
        let accurate_runs::Derived(seg, counts) = accurate_runs::derived(seg);
        let out = handle(&mut self.b.c, self.b.now, &seg, sack, counting(counts));
        if let Some(upto) = out.acked {
            self.b.q.release(upto);
        }
        out
    }

    fn run(&mut self, op: Op) {
        let rcv = self.b.c.rcv_nxt();
        let una = self.b.c.snd_una();
        match op {
            Op::Segment(s, sack) => {
                let out = self.recv(&s, &sack);
                assert_eq!(self.b.c.rcv_nxt(), rcv, "moved by a segment alone");
                if let Some(a) = out.acked {
                    assert!(a > una && a <= self.b.c.snd_max() && a == self.b.c.snd_una());
                } else {
                    assert_eq!(self.b.c.snd_una(), una);
                }
                if let Some(p) = out.payload {
                    assert!(p.len > 0 && p.pos >= rcv && p.in_order == (p.pos == rcv));
                    assert!(u64::from(p.skip) + u64::from(p.len) <= u64::from(s.len));
                    assert!(p.pos.0 + u64::from(p.len) <= self.edge.max(65_535));
                    assert!(self.b.c.state().receives());
                }
                self.last = out.payload;
            }
            Op::Accept => {
                if let Some(p) = self.last.take() {
                    let receives = self.b.c.state().receives();
                    self.b.c.accept_payload(self.b.now, p.pos, p.len);
                    if !receives {
                        assert_eq!(self.b.c.rcv_nxt(), rcv);
                    } else if p.in_order {
                        assert!(self.b.c.rcv_nxt() >= p.pos + u64::from(p.len));
                    } else {
                        assert_eq!(self.b.c.rcv_nxt(), rcv);
                    }
                }
            }
            Op::Queue(n) => self.b.queue(n),
            Op::Close => self.b.c.close(),
            Op::Abort => self.b.c.abort(),
            Op::Window(w) => self.b.c.set_recv_window(w),
            Op::Wait(ms) => self.b.now = self.b.now + Duration::from_millis(ms),
            Op::Timer => self.b.c.handle_timeout(self.b.now),
            Op::Poll => self.poll(),
        }
        assert!(self.b.c.rcv_nxt() >= rcv && self.b.c.snd_una() >= una);
        assert!(self.b.c.snd_una() <= self.b.c.snd_max() && self.b.c.snd_max() <= self.b.q.end());
    }

    fn poll(&mut self) {
        let mut n = 0;
        loop {
            // Data whose pace is over wait for the timer, which is due.
            let due = self.b.c.poll_timeout().is_some_and(|at| at <= self.b.now);
            let wants = due || self.b.c.wants_transmit(self.b.q.end());
            let s = self.b.c.stats();
            let before = self.b.c.snd_max();
            let Some(t) = self.b.tx() else { break };
            assert!(wants, "wants_transmit said no to {t:?}");
            n += 1;
            assert!(n < 2000, "endless output");
            if t.len > 0 {
                let una = self.b.c.snd_una();
                assert!(t.pos >= una && t.len <= self.b.c.emss().max(self.b.c.probe_len()));
                assert!(t.pos + u64::from(t.len) <= self.b.q.end());
                let probe = t.len == 1 && t.pos == una;
                let end = t.pos + u64::from(t.len);
                assert!(probe || end <= una + u64::from(s.snd_wnd), "beyond the peer's window");
                let extra = 2 * u64::from(self.b.c.emss());
                let after = self.b.c.stats();
                let probe = probe || after.counters.tail_probes > s.counters.tail_probes;
                assert!(probe || after.in_flight <= u64::from(s.cwnd) + extra, "beyond cwnd");
                assert_eq!(t.retransmit, t.pos < before);
            }
            if t.flags.has(ACK) && !t.flags.has(RST) && self.b.c.state().receives() {
                // An ACK that the connection owed lies behind the others.
                let behind = self.b.c.rcv_seq().distance(t.ack).unsigned_abs();
                let edge = self.b.c.rcv_nxt().0 - u64::from(behind) + u64::from(t.window);
                assert!(edge >= self.edge, "the right edge moved left");
                self.edge = edge;
            }
        }
        while self.b.c.poll_event().is_some() {}
        self.b.c.check_invariants(self.b.q.end());
        assert!(!self.b.c.wants_transmit(self.b.q.end()) || self.b.c.poll_timeout().is_some());
    }
}

fn start(which: u8, sack: bool) -> Bench {
    let cfg = ConnConfig { timestamps: which & 1 == 1, sack, ..plain() };
    match which / 2 {
        0 => Bench::connecting(&cfg),
        1 => Bench::accepting(&cfg),
        n => Bench::in_state_with(&cfg, State::ALL[usize::from(n) % State::ALL.len()]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(2000),
        ..ProptestConfig::default()
    })]

    #[test]
    fn test_random_segments_and_calls_keep_the_invariants(
        which in 0u8..24, sack: bool,
        ops in proptest::collection::vec(op(), 1..80),
    ) {
        let mut w = Watch::new(start(which, sack));
        for op in ops {
            w.run(op);
        }
        w.run(Op::Poll);
    }

    /// The same with either feedback of ECN, each algorithm, and bits, codepoints and options of any
    /// kind.
    #[test]
    fn test_random_marks_and_reports_keep_the_invariants(
        which in 0usize..12, sack: bool, probes: bool,
        ops in proptest::collection::vec(op(), 1..80),
    ) {
        let congestion = Congestion::NAMES[which % 3].1;
        let path_mtu = if probes { PathMtu::On } else { PathMtu::Off };
        let cfg = ConnConfig { congestion, sack, path_mtu, mss: 2000, ..plain() };
        let b = match which / 3 {
            0 => ecn::agreed(&ConnConfig { ecn: Ecn::Request, ..cfg }),
            1 => accurate::agreed(&ConnConfig { ecn: Ecn::Accurate, ..cfg }),
            2 => Bench::connecting(&ConnConfig { ecn: Ecn::Accurate, ..cfg }),
            _ => Bench::accepting(&cfg),
        };
        let mut w = Watch { ecn: true, ..Watch::new(b) };
        for op in ops {
            w.run(op);
        }
        w.run(Op::Poll);
        // Silence ends it, and no mark has left a timer behind.
        let mut rounds = 0;
        while let Some(at) = w.b.c.poll_timeout() {
            prop_assert!(w.b.c.state() != State::Closed, "{:?}", w.b.c);
            w.b.now = w.b.now.max(at);
            w.run(Op::Timer);
            w.run(Op::Poll);
            rounds += 1;
            prop_assert!(rounds < 1000, "{:?}", w.b.c);
        }
    }

    /// Timers alone bring every connection that has something to do to an end.
    #[test]
    fn test_silence_ends_every_connection(
        which in 0u8..24, sack: bool,
        ops in proptest::collection::vec(op(), 1..40),
    ) {
        let mut w = Watch::new(start(which, sack));
        for op in ops {
            w.run(op);
        }
        w.run(Op::Poll);
        let mut rounds = 0;
        while let Some(at) = w.b.c.poll_timeout() {
            w.b.now = w.b.now.max(at);
            w.run(Op::Timer);
            w.run(Op::Poll);
            rounds += 1;
            prop_assert!(rounds < 1000, "{:?}", w.b.c);
        }
        prop_assert!(matches!(
            w.b.c.state(),
            State::Closed | State::Established | State::CloseWait
        ));
    }
}
