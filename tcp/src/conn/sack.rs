//! The receiver's side of selective acknowledgment: the ranges that its ACKs report (RFC 2018, RFC
//! 2883).
//!
//! An option has room for three or four blocks, a window for many more ranges. The connection
//! answers the segments of a burst together. So that the sender still hears of every range, the
//! connection sends another ACK after an ACK that leaves some ranges unreported. These ACKs go in
//! the order in which ACKs of single segments would have gone, so that the sender does not take
//! their order for reordering on the way. The remaining room repeats reported blocks, against loss
//! of ACKs (RFC 2018 section 4).

use super::ranges::{Range, Ranges};
use super::{Connection, Pending};
use crate::{Flags, SackBlock, SackBlocks, TxSegment};
use arrayvec::ArrayVec;
use heddle_base::{Instant, StreamPos};

/// The number of ranges remembered in the order in which they last grew: enough for a burst of 32
/// segments that lost every other segment.
const RECENT: usize = 16;

/// A place inside a range that grew.
#[derive(Clone, Copy, Debug)]
struct Grown {
    at: StreamPos,
    reported: bool,
}

/// The ranges to report, newest first. The list allocates memory at the first report: most
/// connections never see a gap.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports(Option<Box<List>>);

/// The blocks of a segment without the option.
const NO_BLOCKS: &SackBlocks = &SackBlocks::NONE;

#[derive(Clone, Debug, Default)]
struct List {
    recent: ArrayVec<Grown, RECENT>,
    /// The last bytes that came more than once, not reported yet.
    duplicate: Option<Range>,
    /// The option of the last segment sent with one.
    sent: SackBlocks,
}

impl Reports {
    fn list(&mut self) -> &mut List {
        self.0.get_or_insert_default()
    }

    fn has_duplicate(&self) -> bool {
        self.0.as_ref().is_some_and(|l| l.duplicate.is_some())
    }
}

impl List {
    /// Records that the owner accepted bytes at `at`, which lies in one of `ranges`.
    fn grown(&mut self, ranges: &Ranges, at: StreamPos) {
        let grown = Grown { at, reported: false };
        let Some(range) = ranges.containing(at) else { return };
        let inside = |g: &Grown| range.start <= g.at && g.at < range.end;
        // The usual case: the newest range grows on.
        if let Some(first) = self.recent.first_mut().filter(|g| inside(g)) {
            *first = grown;
            return;
        }
        self.recent.retain(|g| !inside(g));
        if self.recent.is_full() {
            self.recent.pop();
        }
        self.recent.insert(0, grown);
    }

    /// Records that `range` came again. If `range` touches the duplicate that waits to be reported,
    /// both join; otherwise `range` replaces it. A sender does not need every report, and only the
    /// newest is worth a block.
    fn duplicate(&mut self, range: Range) {
        self.duplicate = Some(match self.duplicate {
            Some(d) if range.start <= d.end && d.start <= range.end => {
                Range::new(d.start.min(range.start), d.end.max(range.end))
            }
            _ => range,
        });
    }

    /// Returns the ranges to report, at most `room`, and whether ranges are left that no ACK has
    /// reported yet.
    fn take(&mut self, ranges: &Ranges, room: usize) -> (ArrayVec<Range, 4>, bool) {
        let duplicate = self.duplicate.take();
        let room = room.min(4) - usize::from(duplicate.is_some());
        let mut out: ArrayVec<Range, 4> = ArrayVec::new();
        self.recent.retain(|g| ranges.containing(g.at).is_some());
        // Visit the oldest first: each insertion at index 0 then leaves the newest range in front.
        for g in self.recent.iter_mut().rev().filter(|g| !g.reported) {
            let Some(range) = ranges.containing(g.at) else { continue };
            if out.contains(&range) {
                // Two places have become one range.
                g.reported = true;
            } else if out.len() < room {
                g.reported = true;
                out.insert(0, range);
            }
        }
        for g in self.recent.iter().filter(|g| g.reported) {
            if let Some(range) = ranges.containing(g.at)
                && out.len() < room
                && !out.contains(&range)
            {
                out.push(range);
            }
        }
        if let Some(range) = duplicate {
            out.insert(0, range);
        }
        let left = self.recent.iter().any(|g| !g.reported);
        (out, left)
    }
}

impl Connection {
    /// Returns the SACK option of the segment that [`poll_transmit`](Connection::poll_transmit)
    /// returned last, if that segment says that it has one.
    pub fn sack_blocks(&self) -> &SackBlocks {
        self.cold.reports.0.as_ref().map_or(NO_BLOCKS, |l| &l.sent)
    }

    /// Records that the owner accepted bytes from `at` on ahead of a gap.
    pub(super) fn report_grown(&mut self, at: StreamPos) {
        if self.hot.sack_ok {
            self.cold.reports.list().grown(&self.cold.ranges, at);
            self.hot.sack_due = true;
        }
    }

    /// Records that bytes `[start, end)` came although the owner had accepted them before.
    pub(super) fn report_duplicate(&mut self, start: StreamPos, end: StreamPos) {
        if self.hot.sack_ok && start < end && self.hot.state.receives() {
            self.cold.reports.list().duplicate(Range::new(start, end));
            self.hot.sack_due = true;
        }
    }

    /// Records that a gap closed. After the last gap closes, the connection has nothing left to
    /// report except a duplicate.
    pub(super) fn report_gap_closed(&mut self) {
        self.hot.sack_due =
            self.hot.sack_ok && (!self.cold.ranges.is_empty() || self.cold.reports.has_duplicate());
    }

    /// Returns an ACK with the SACK option. This ACK goes before data: a segment full of data has
    /// no room for the option.
    #[cold]
    pub(super) fn selective_ack(&mut self, now: Instant) -> TxSegment {
        let room = if self.hot.ts_ok { SackBlocks::MAX - 1 } else { SackBlocks::MAX };
        let (ranges, left) = self.cold.reports.list().take(&self.cold.ranges, room);
        let mut tx = self.segment(now, self.ack_pos(), Flags::ACK);
        let mut blocks = SackBlocks::default();
        for r in ranges {
            blocks.push(SackBlock { start: self.rcv_seq_of(r.start), end: self.rcv_seq_of(r.end) });
        }
        self.cold.reports.list().sent = blocks;
        tx.sack = blocks.count();
        self.report_gap_closed();
        if !left {
            self.hot.pending.clear(Pending::ACK);
        }
        tx
    }
}
