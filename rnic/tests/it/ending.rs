//! The end of a stream while a window of Writes is in flight: an application owns its memory again
//! after the completion, whatever the status, and nothing that it writes then may reach the peer.

#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "small numbers of a test")]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::sim::{LinkConfig, PD, Pair, TO_BASE};
use heddle_iwarp::QpConfig;
use heddle_rnic::Event;
use heddle_types::{Access, ConnId, CqeStatus, SendWr, Sge, Stag};

/// Writes posted at first. The application posts another after each completion, so that a window of
/// Writes is in flight whenever the stream ends.
const WRITES: usize = 60;
/// Pieces of memory that the Writes use in turn: a piece stays as the application left it for as
/// many Writes after its completion.
const SLOTS: usize = 240;
const LEN: usize = 4000;
/// The bytes that the application writes into its memory after a completion: no other frame content
/// has so many of them in a row.
const FOREIGN: [u8; 24] = [0xf0; 24];

/// How the stream ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    /// The peer writes where it has no access, and we send a Terminate.
    PeerBreaksARule,
    /// We write where we have no access, and the peer sends a Terminate.
    WeBreakARule,
    /// We name memory that is not ours.
    BadSge,
    /// We reset the connection.
    Abort,
}

struct Run {
    pair: Pair,
    conns: [ConnId; 2],
    ending: Ending,
    stags: [Stag; 2],
    posted: usize,
    done: Vec<(u64, CqeStatus)>,
    /// The most references to memory that existed at once.
    pinned: u32,
}

impl Run {
    /// Starts a run in which host 0 has posted its Writes, and some of them are on the wire.
    fn start(seed: u64, loss: f64, ending: Ending) -> Run {
        let mut pair = Pair::new(seed, LinkConfig::default(), 1 << 20);
        let qp = QpConfig { pd: PD, ..QpConfig::default() };
        let conns = pair.connect(&qp);
        pair.link.loss = loss;
        let rights = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);
        let local = pair.register(0, 0, 1 << 20, rights).stag;
        let target = pair.register(1, 0, 1 << 20, rights).stag;
        let mut run = Run {
            pair,
            conns,
            ending,
            stags: [local, target],
            posted: 0,
            done: Vec::new(),
            pinned: 0,
        };
        for _ in 0..WRITES {
            run.post();
        }
        assert_eq!(run.posted, WRITES);
        run
    }

    /// Posts one more Write, unless the stream has ended.
    fn post(&mut self) {
        let i = self.posted;
        let at = i % SLOTS * LEN;
        let to = at as u64 + TO_BASE;
        let (mut sges, mut stag) =
            ([Sge { stag: self.stags[0], to, len: LEN as u32 }], self.stags[1]);
        match self.ending {
            Ending::WeBreakARule if i == WRITES / 2 => stag = Stag(7),
            Ending::BadSge if i == WRITES / 2 => sges[0].stag = Stag(7),
            _ => {}
        }
        let wr = SendWr::write(i as u64, &sges, stag, to);
        let host = &mut self.pair.hosts[0];
        if host.rnic.post_send(self.conns[0], &wr).is_ok() {
            host.mem.write(at, &[(i % 200) as u8; LEN]);
            self.posted += 1;
        }
    }

    /// Runs one step, in which the application overwrites the memory that it has back. Returns
    /// false if nothing will ever happen again.
    fn step(&mut self) -> bool {
        let more = self.pair.step();
        self.pair.check_pins();
        self.pinned = self.pinned.max(self.pair.pinned(0));
        for (_, cqe) in std::mem::take(&mut self.pair.hosts[0].completions) {
            let at = cqe.wr_id as usize % SLOTS * LEN;
            self.pair.hosts[0].mem.write(at, &[FOREIGN[0]; LEN]);
            self.done.push((cqe.wr_id, cqe.status));
            self.post();
        }
        more
    }
}

fn run(seed: u64, loss: f64, ending: Ending) -> u64 {
    eprintln!("seed {seed}, loss {loss}, {ending:?}");
    let mut r = Run::start(seed, loss, ending);
    let foreign = Rc::new(Cell::new(0));
    let seen = foreign.clone();
    r.pair.tap = Some(Box::new(move |side, frame| {
        if side == 0 && frame.windows(FOREIGN.len()).any(|w| w == FOREIGN) {
            seen.set(seen.get() + 1);
        }
    }));
    for _ in 0..8 {
        r.step();
    }
    match ending {
        Ending::PeerBreaksARule => {
            let wr = SendWr::write_inline(1, &[1; 40], Stag(9), 0);
            r.pair.hosts[1].rnic.post_send(r.conns[1], &wr).unwrap();
        }
        Ending::Abort => {
            for _ in 0..20 {
                r.step();
            }
            r.pair.hosts[0].rnic.abort(r.conns[0]);
        }
        Ending::WeBreakARule | Ending::BadSge => {}
    }
    let over = |p: &Pair| p.hosts[0].events.iter().any(|e| matches!(e, Event::Closed { .. }));
    let ended = |p: &Pair| {
        p.hosts[0].events.iter().any(|e| matches!(e, Event::Closed { .. } | Event::Qp { .. }))
    };
    let end = r.pair.now + Duration::from_secs(600);
    // Lose all frames for a while right after the end of the stream, so that there are timeouts,
    // and more than one retransmission.
    let mut cut_until = None;
    while !over(&r.pair) {
        if loss > 0.0 && cut_until.is_none() && ended(&r.pair) {
            cut_until = Some(r.pair.now + Duration::from_millis(30));
        }
        r.pair.cut = [cut_until.is_some_and(|t| r.pair.now < t); 2];
        assert!(r.pair.now < end, "no end");
        assert!(r.step() || over(&r.pair), "nothing left that could happen");
    }
    r.pair.hosts[0].rnic.release(r.conns[0]);
    while !r.pair.hosts[0].completions.is_empty() && r.step() {}
    let ids: Vec<u64> = r.done.iter().map(|d| d.0).collect();
    assert_eq!(ids, (0..r.posted as u64).collect::<Vec<_>>(), "in order, each once");
    assert!(r.done.iter().any(|d| d.1 == CqeStatus::Flushed), "the end came too late");
    assert!(r.pinned > 0);
    assert_eq!(r.pair.pinned(0), 0, "memory that nobody gets back");
    assert_eq!(foreign.get(), 0, "frames with bytes that were not posted");
    r.pair.hosts[0].rnic.counters().tx_retransmits
}

#[test]
fn test_bytes_written_after_completion_never_reach_the_peer() {
    use Ending::{Abort, BadSge, PeerBreaksARule, WeBreakARule};
    for ending in [PeerBreaksARule, WeBreakARule, BadSge, Abort] {
        let mut again = 0;
        for seed in 0..20 {
            again += run(seed, 0.0, ending);
            again += run(seed, 0.1, ending);
        }
        assert!(again > 0, "nothing was sent again: {ending:?}");
    }
}
