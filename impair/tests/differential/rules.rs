//! Where Linux and Heddle differ, each with its reason. A rule is as narrow as the difference:
//! everything else has to be the same. docs/differences.md has the same list in words.

use heddle_testkit::frames::{ACK, FIN, RST, SYN};

use crate::plan::{Acked, Clock, Place, Plan, Spec, Step};
use crate::side::{EDGE, Seen};

/// Whether a seed goes on after a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Both hosts are in the same state.
    Continue,
    /// Their states are no longer the same.
    Stop,
}

/// A reason for which the hosts may differ.
struct Rule {
    name: &'static str,
    then: Then,
    holds: fn(&Case<'_>) -> bool,
}

/// The segment of a step, and what both hosts did with it.
struct Case<'a> {
    spec: &'a Spec,
    plan: &'a Plan,
    /// Where the segment began, from the number that the hosts expected.
    at: i64,
    /// Heddle before the step.
    before: &'a Seen,
    linux: &'a Seen,
    heddle: &'a Seen,
}

impl Case<'_> {
    fn has(&self, bits: u8) -> bool {
        self.spec.flags & bits == bits
    }

    fn lacks(&self, bits: u8) -> bool {
        self.spec.flags & bits == 0
    }

    /// Returns the numbers that the segment takes.
    fn len(&self) -> i64 {
        i64::from(self.spec.len) + i64::from(self.has(SYN)) + i64::from(self.has(FIN))
    }

    /// Returns true if the connection was not established yet, and a SYN had come.
    fn is_half_open(&self) -> bool {
        !self.before.app.open && self.before.sent == 1
    }

    /// Returns true if Heddle's application has noticed nothing.
    fn heddle_keeps(&self) -> bool {
        self.heddle.app == self.before.app
    }

    /// Returns true if the segment begins within the window and ends beyond it.
    fn is_across_edge(&self) -> bool {
        matches!(self.spec.at, Place::Edge(n) if n < 0 && n + self.len() > 0)
    }

    /// Returns true if the connection was in TIME-WAIT.
    fn waits(&self) -> bool {
        let before = &self.before.app;
        before.state == "Over" && before.ended && !before.failed
    }

    /// Returns true if the window of the segment may matter later: the peer shuts its window in this
    /// plan.
    fn window_matters(&self) -> bool {
        let shuts = |step: &Step| matches!(step, Step::Segment(s) if s.win == 0);
        self.has(ACK) && self.plan.steps.iter().any(shuts)
    }

    /// Returns true if the segment is a reset with an old timestamp, which only Linux looks at.
    fn is_old_reset(&self) -> bool {
        let odd = self.plan.stamps && self.has(RST) && self.spec.clock != Clock::Now;
        odd && (self.is_half_open() || self.waits())
    }

    /// Returns true if only the blocks of the ACKs differ.
    fn only_blocks_differ(&self) -> bool {
        Seen { sack: None, ..self.linux.clone() } == Seen { sack: None, ..self.heddle.clone() }
    }

    /// Returns true if the hosts differ only in that one has sent a bare ACK and the other nothing.
    fn only(&self, acks: &Seen, silent: &Seen) -> bool {
        silent.ack.is_none()
            && Seen { ack: None, sack: None, ..acks.clone() }
                == Seen { sack: None, ..silent.clone() }
    }

    /// Returns true if Heddle alone has sent an ACK, and there is no other difference.
    fn only_heddle_acks(&self) -> bool {
        self.only(self.heddle, self.linux)
    }

    /// Returns true if Linux alone has sent an ACK, and there is no other difference.
    fn only_linux_acks(&self) -> bool {
        self.only(self.linux, self.heddle)
    }
}

/// Differences that may show only later.
const ODD_FIN: &str =
    "a FIN that is early or late: Linux reports its number in a block, Heddle does not";
const ACROSS: &str = "a segment across the right edge: Linux takes all of it, Heddle what fits";
const OLD_RESET: &str =
    "a reset with an old timestamp, half-open or in TIME-WAIT: Linux drops it, Heddle does not";
const MISSING: &str = "a segment without the agreed timestamp: Linux takes it, Heddle drops it";
const AT_EDGE: &str = "a segment at the right edge: Linux takes its ACK, Heddle does not";
const ENDS: &str =
    "a segment that ends at the expected number: Linux takes its ACK, Heddle does not";

const RULES: &[Rule] = &[
    Rule {
        name: "TIME-WAIT: Linux answers data, Heddle what lies outside the window",
        then: Then::Continue,
        holds: |c| c.waits() && (c.only_linux_acks() || c.only_heddle_acks()),
    },
    Rule {
        name: "text beyond the peer's FIN: Linux resets or takes it, Heddle ignores it",
        then: Then::Stop,
        holds: |c| {
            let ignored = c.heddle.app.delivered == c.before.app.delivered;
            c.before.app.ended && c.at + c.len() > 0 && c.heddle.resets.is_empty() && ignored
        },
    },
    Rule {
        name: AT_EDGE,
        then: Then::Stop,
        holds: |c| {
            c.spec.at == Place::Edge(0) && c.has(ACK) && c.heddle.ack.is_some() && c.heddle_keeps()
        },
    },
    Rule {
        name: "a segment over a gap and beyond: Linux takes all of it, Heddle the bytes of the gap",
        then: Then::Stop,
        holds: |c| {
            let (linux, heddle) = (c.linux.app.delivered, c.heddle.app.delivered);
            c.at <= 0 && c.before.app.delivered < heddle && heddle < linux
        },
    },
    Rule {
        name: "the expected data with an impossible ACK: Linux's fast path takes them, Heddle does not",
        then: Then::Stop,
        holds: |c| {
            let wrong = c.spec.ack != Acked::Sent(0) && c.has(ACK) && c.lacks(SYN | RST | FIN);
            let (linux, heddle) = (c.linux.app.delivered, c.heddle.app.delivered);
            wrong && c.at == 0 && heddle == c.before.app.delivered && heddle < linux
        },
    },
    Rule {
        name: MISSING,
        then: Then::Stop,
        holds: |c| {
            let missing = c.plan.stamps && c.spec.clock == Clock::Missing && c.lacks(SYN | RST);
            missing && c.heddle.ack.is_none() && c.heddle.app == c.before.app
        },
    },
    Rule {
        name: "an ACK of our own initial number after we connected: Linux takes it, Heddle does not",
        then: Then::Stop,
        holds: |c| {
            let (start, sent) = (Acked::Start(0), Acked::Sent(-c.before.sent));
            let own = c.has(ACK) && (c.spec.ack == start || c.spec.ack == sent);
            !c.plan.accepted && own && c.heddle_keeps()
        },
    },
    Rule {
        name: ODD_FIN,
        then: Then::Stop,
        holds: |c| c.has(FIN) && c.at != 0 && c.only_blocks_differ(),
    },
    Rule {
        name: ACROSS,
        then: Then::Stop,
        holds: |c| {
            let from = |seen: &Seen| seen.sack.map(|(from, _)| from);
            c.is_across_edge() && c.only_blocks_differ() && from(c.linux) == from(c.heddle)
        },
    },
    Rule {
        name: "a segment over a gap and what came ahead of it: Linux reports the overlap, Heddle does not",
        then: Then::Continue,
        holds: |c| {
            let filled = c.before.app.delivered < c.heddle.app.delivered;
            c.at <= 0 && filled && c.linux.sack.is_some() && c.only_blocks_differ()
        },
    },
    Rule {
        name: "a reset one before the expected number, after a FIN: Linux takes it, Heddle does not",
        then: Then::Stop,
        holds: |c| c.has(RST) && c.at == -1 && c.before.app.ended && c.linux.app.failed,
    },
    Rule {
        name: "a reset exactly at the right edge: Linux challenges it, Heddle drops it",
        then: Then::Continue,
        holds: |c| c.has(RST) && c.spec.at == Place::Edge(0) && c.only_linux_acks(),
    },
    Rule { name: OLD_RESET, then: Then::Stop, holds: |c| c.is_old_reset() },
    Rule {
        name: "a segment ahead of a gap over another: Linux reports the overlap, Heddle the range",
        then: Then::Stop,
        holds: |c| {
            let (Some(linux), Some(heddle)) = (c.linux.sack, c.heddle.sack) else { return false };
            let inside = heddle.0 <= linux.0 && linux.1 <= heddle.1;
            c.at > 0 && inside && c.only_blocks_differ()
        },
    },
    Rule {
        name: "blocks at the right edge: they differ as the windows do",
        then: Then::Continue,
        holds: |c| {
            let (Some(linux), Some(heddle)) = (c.linux.sack, c.heddle.sack) else { return false };
            let far = linux.0 > EDGE / 2 && heddle.0 > EDGE / 2;
            far && linux.1 - linux.0 == heddle.1 - heddle.0 && c.only_blocks_differ()
        },
    },
    Rule {
        name: "a SYN again after SYNs crossed: Linux answers with an ACK, Heddle with its SYN-ACK",
        then: Then::Stop,
        holds: |c| {
            let again = c.heddle.syn.is_some() && c.linux.syn.is_none() && c.linux.ack.is_some();
            !c.plan.accepted && c.has(SYN) && again
        },
    },
    Rule {
        name: "a segment dropped for its timestamp: Linux reports its old bytes, Heddle does not",
        then: Then::Continue,
        holds: |c| {
            let old = c.plan.stamps && c.spec.clock == Clock::Old && c.at < 0;
            old && c.linux.sack.is_some() && c.only_blocks_differ()
        },
    },
    Rule {
        name: "beyond the right edge: without scaling Linux's window is larger than its header says",
        then: Then::Stop,
        holds: |c| matches!(c.spec.at, Place::Edge(1..)) && c.heddle_keeps(),
    },
    Rule {
        name: "a duplicate after the peer's FIN: Linux reports it in a block, Heddle does not",
        then: Then::Continue,
        holds: |c| c.before.app.ended && c.heddle.sack.is_none() && c.only_blocks_differ(),
    },
    Rule {
        name: "a SYN-ACK that answers our SYN-ACK: Heddle takes it as crossing, Linux stays half-open",
        then: Then::Stop,
        holds: |c| c.is_half_open() && c.has(SYN | ACK) && c.lacks(RST) && c.heddle.app.open,
    },
    Rule {
        name: "a segment outside the window without ACK: Linux drops it, Heddle answers first",
        then: Then::Continue,
        holds: |c| c.lacks(ACK | SYN | RST) && c.only_heddle_acks(),
    },
    Rule {
        name: "a bare ACK with an old timestamp: Linux drops it, Heddle answers",
        then: Then::Continue,
        holds: |c| {
            let bare = c.spec.len == 0 && c.has(ACK) && c.lacks(SYN | FIN | RST);
            c.plan.stamps && c.spec.clock == Clock::Old && bare && c.only_heddle_acks()
        },
    },
    Rule {
        name: "a SYN in the window of a half-open connection: Linux resets it, Heddle forgets it",
        then: Then::Stop,
        holds: |c| {
            let resets = c.linux.resets.len() == 1 && c.heddle.resets.is_empty();
            c.is_half_open() && c.has(SYN) && c.lacks(RST) && c.at + c.len() > 0 && resets
        },
    },
    Rule {
        name: "two faults in a half-open connection: Linux looks at the ACK first, Heddle at the rest",
        then: Then::Stop,
        holds: |c| {
            c.is_half_open()
                && c.has(ACK)
                && c.spec.ack != Acked::Sent(0)
                && c.linux.resets.len() == 1
                && c.heddle.resets.is_empty()
        },
    },
    Rule {
        name: "a reset whose SYN or data reach the window: Linux challenges it, Heddle drops it",
        then: Then::Continue,
        holds: |c| c.has(RST) && c.at < 0 && c.at + c.len() >= 0 && c.only_linux_acks(),
    },
    Rule {
        name: ENDS,
        then: Then::Stop,
        holds: |c| c.has(ACK) && c.at < 0 && c.at + c.len() == 0 && c.heddle_keeps(),
    },
    Rule {
        name: "a FIN and bytes beyond it: Linux believes what comes last, Heddle what came first",
        then: Then::Stop,
        holds: |c| {
            let (linux, heddle) = (&c.linux.app, &c.heddle.app);
            let both = linux.ended && heddle.ended;
            linux.ended != heddle.ended || both && linux.delivered != heddle.delivered
        },
    },
    Rule {
        name: "a duplicate before the first byte: Linux reports it, Heddle does not",
        then: Then::Continue,
        holds: |c| {
            c.at < 0 && c.linux.sack.is_some_and(|(from, _)| from < 1) && c.only_blocks_differ()
        },
    },
];

/// Returns the names of all rules.
pub fn names() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|r| r.name)
}

/// Returns the reason for which the hosts may differ after `step`, or will later, if there is one. The
/// step's segment began `at` numbers after the one that Heddle expected.
pub fn reason(
    plan: &Plan,
    step: Option<&Step>,
    at: i64,
    [before, linux, heddle]: [&Seen; 3],
) -> Option<(&'static str, Then)> {
    let Some(Step::Segment(spec)) = step else { return None };
    let case = Case { spec, plan, at, before, linux, heddle };
    if linux == heddle {
        let hidden = [
            (OLD_RESET, case.is_old_reset()),
            (ODD_FIN, case.has(FIN) && at > 0),
            (ACROSS, case.is_across_edge()),
            (AT_EDGE, case.window_matters() && spec.at == Place::Edge(0)),
            (ENDS, case.window_matters() && at < 0 && at + case.len() == 0),
            (MISSING, case.window_matters() && plan.stamps && spec.clock == Clock::Missing),
        ];
        return hidden.iter().find(|(_, holds)| *holds).map(|(name, _)| (*name, Then::Stop));
    }
    RULES.iter().find(|r| (r.holds)(&case)).map(|r| (r.name, r.then))
}
