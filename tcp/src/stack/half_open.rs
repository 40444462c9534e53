//! Half-open connections that peers begin: the SYN cache of RFC 4987 section 3.3.
//!
//! An entry holds the SYN and the little that its answer needs, a tenth of a connection. The stack
//! makes the connection when the handshake is complete; see `accept`. Entries take no room of
//! connections, so no number of SYNs, whatever addresses they forge, costs a connection its place.
//!
//! ```text
//!                        +------------- expired, again ---------------+
//!                        v                                            |
//!   SYN ──▶ insert ──▶ due ──▶ SYN-ACK goes ──▶ sent[0] ─▶ sent[1] ─▶ ... ──▶ given up
//!                        |                         |
//!                        +──▶ waits for its next hop, and is due again
//! ```
//!
//! All entries that have sent as many SYN-ACKs wait for the same time, so each list of `sent` is in
//! the order of its deadlines: the first entries of a few lists are all that a timer has to look at.
//! All operations take a few steps, however many entries there are.

use core::time::Duration;

use heddle_base::Instant;
use heddle_types::TcpTerms;

use super::flow::{FlowKey, FlowTable, Hashed};
use super::list::{Link, Linked, List};
use super::timers::NEVER;
use crate::wire::MacAddr;
use crate::{ConnConfig, Segment, SeqNumber};

/// The list of an entry's stage: due, waiting for a next hop, or waiting for the ACK.
pub(super) const STAGE: usize = 0;
/// The list of the entries of a listener, the oldest first.
pub(super) const LISTENER: usize = 1;
/// The list of all entries, the oldest first.
pub(super) const AGE: usize = 2;

/// The most half-open connections of a stack, if it may have as many connections.
pub(super) const MAX: usize = 2048;

/// The waits that differ. Further ones are as long as the last: 128 times the first, if no setting
/// makes them shorter.
const WAITS: usize = 8;

/// The point that the handshake has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A SYN-ACK is to go.
    Due,
    /// The next hop, this neighbor, is not known. The entry counts as its user.
    Waiting(u32),
    /// The last SYN-ACK has gone, and so many went before it because of the timer.
    Sent(u8),
    /// The listener has ended: a reset is to go, and then the entry ends.
    Ending,
}

/// A SYN without the ACK that completes its handshake.
#[derive(Clone, Debug)]
pub(super) struct HalfOpen {
    pub(super) flow: FlowKey,
    hash: u64,
    pub(super) syn: Segment,
    /// Our initial sequence number.
    pub(super) iss: SeqNumber,
    /// The listener of the SYN, and the settings of its connections: it may end first.
    pub(super) listener: u32,
    pub(super) tcp: TcpTerms,
    /// The station that the SYN came from.
    pub(super) station: MacAddr,
    stage: Stage,
    /// SYN-ACKs that were due because of the timer.
    pub(super) retries: u8,
    /// True if a SYN-ACK went besides those of the timer.
    pub(super) repeated: bool,
    /// With accurate ECN: true if a SYN without bits of ECN came after the first.
    pub(super) bare: bool,
    /// When the last SYN-ACK went; `None` before the first.
    pub(super) sent_at: Option<Instant>,
    /// The budget of answers to segments that anyone may have sent.
    pub(super) answers: u64,
    deadline: Instant,
    links: [Link; 3],
}

impl HalfOpen {
    pub(super) fn new(
        flow: Hashed<'_>,
        syn: &Segment,
        iss: SeqNumber,
        (listener, tcp): (u32, TcpTerms),
        station: MacAddr,
    ) -> HalfOpen {
        HalfOpen {
            flow: *flow.key,
            hash: flow.hash,
            // The peer sends bytes that came with the SYN again.
            syn: Segment { len: 0, ..*syn },
            iss,
            listener,
            tcp,
            station,
            stage: Stage::Due,
            retries: 0,
            repeated: false,
            bare: false,
            sent_at: None,
            answers: 0,
            deadline: NEVER,
            links: [Link::OUT; 3],
        }
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// Returns the flow with its hash.
    pub(super) fn hashed(&self) -> Hashed<'_> {
        Hashed { key: &self.flow, hash: self.hash }
    }
}

/// The entries, through which the lists are threaded.
#[derive(Default)]
pub(super) struct Table(Vec<Option<HalfOpen>>);

impl Table {
    fn get(&self, index: u32) -> Option<&HalfOpen> {
        self.0.get(index as usize)?.as_ref()
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut HalfOpen> {
        self.0.get_mut(index as usize)?.as_mut()
    }
}

impl Linked for Table {
    fn link(&mut self, which: usize, index: u32) -> Option<&mut Link> {
        self.get_mut(index)?.links.get_mut(which)
    }
}

/// All half-open connections that peers began.
pub(super) struct HalfOpens {
    /// Entries of which a frame is to go, the oldest first.
    due: List<STAGE>,
    /// The first deadline, or an earlier time; [`NEVER`] without any.
    next: Instant,
    /// Entries that wait for an ACK, by the SYN-ACKs that the timer has sent.
    sent: [List<STAGE>; WAITS],
    waits: [Duration; WAITS],
    retries: u8,
    /// Entries that segments find.
    age: List<AGE>,
    pub(super) table: Table,
    free: Vec<u32>,
    flows: FlowTable,
    max: usize,
}

impl HalfOpens {
    pub(super) fn new(max_conns: usize, cfg: &ConnConfig) -> HalfOpens {
        let max = max_conns.min(MAX);
        let wait = |n: u32| cfg.rto_initial.saturating_mul(1 << n).min(cfg.rto_max);
        let mut n = 0;
        HalfOpens {
            due: List::default(),
            next: NEVER,
            sent: [List::default(); WAITS],
            waits: [(); WAITS].map(|()| {
                n += 1;
                wait(n - 1).max(Duration::from_millis(1))
            }),
            retries: u8::try_from(cfg.syn_ack_retries).unwrap_or(u8::MAX),
            age: List::default(),
            // Entries of ended listeners have a reset to send and take room besides.
            table: Table(Vec::with_capacity(2 * max)),
            free: Vec::with_capacity(2 * max),
            flows: FlowTable::new(max),
            max,
        }
    }

    /// Returns the number of half-open connections.
    pub(super) fn len(&self) -> usize {
        self.age.len()
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Returns true if no further entry fits.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.max || self.table.0.len() - self.free.len() >= 2 * self.max
    }

    /// Returns true if an entry has a frame to send.
    #[inline]
    pub(super) fn has_due(&self) -> bool {
        self.due.len() > 0
    }

    /// Returns when [`HalfOpens::expired`] may next return an entry.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        (self.next != NEVER).then_some(self.next)
    }

    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// Returns the entry of `flow`.
    pub(super) fn find(&self, flow: Hashed<'_>) -> Option<u32> {
        self.flows.find(flow.hash, |index| self.get(index).is_some_and(|h| h.flow == *flow.key))
    }

    pub(super) fn get(&self, index: u32) -> Option<&HalfOpen> {
        self.table.get(index)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut HalfOpen> {
        self.table.get_mut(index)
    }

    /// Returns the oldest entry.
    pub(super) fn oldest(&self) -> Option<u32> {
        self.age.first()
    }

    /// Returns every entry that segments find, with its index.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &HalfOpen)> + '_ {
        let all = (0..).zip(&self.table.0);
        all.filter_map(|(i, h)| Some((i, h.as_ref().filter(|h| h.stage != Stage::Ending)?)))
    }

    /// Adds an entry, whose SYN-ACK is due. Returns `None` when there is no room.
    pub(super) fn insert(&mut self, entry: HalfOpen) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.table.0.push(None);
                u32::try_from(self.table.0.len() - 1).ok()?
            }
        };
        self.flows.insert(entry.hash, index);
        self.table.0[index as usize] = Some(entry);
        self.age.push(&mut self.table, index);
        self.due.push(&mut self.table, index);
        Some(index)
    }

    /// Takes an entry out of the list of its stage, if the list is one of this table: the list of a
    /// next hop is with the neighbor.
    fn leave_stage(&mut self, index: u32) {
        let Some(h) = self.table.get(index) else { return };
        match h.stage {
            Stage::Due | Stage::Ending => self.due.remove(&mut self.table, index),
            Stage::Sent(n) => self.sent[wait_of(n)].remove(&mut self.table, index),
            Stage::Waiting(_) => {}
        }
    }

    fn enter(&mut self, index: u32, stage: Stage) {
        if let Some(h) = self.table.get_mut(index) {
            h.stage = stage;
        }
    }

    /// Removes an entry that waits for no next hop and that no listener has in its list.
    pub(super) fn remove(&mut self, index: u32) -> Option<HalfOpen> {
        self.hide(index);
        self.leave_stage(index);
        let entry = self.table.0.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(entry)
    }

    /// Takes an entry out of the sight of segments.
    fn hide(&mut self, index: u32) {
        if let Some(h) = self.table.get(index)
            && h.links[AGE].is_in()
        {
            self.flows.remove(h.hash, index);
            self.age.remove(&mut self.table, index);
        }
    }

    /// Makes a reset of an entry due, after which the entry ends. The caller has taken the entry out
    /// of the lists of its listener and its next hop.
    pub(super) fn end(&mut self, index: u32) {
        self.hide(index);
        self.leave_stage(index);
        self.enter(index, Stage::Ending);
        self.due.push(&mut self.table, index);
    }

    /// Returns the first entry that is due. The caller then calls [`HalfOpens::wait`],
    /// [`HalfOpens::sent`] or [`HalfOpens::remove`].
    pub(super) fn first_due(&self) -> Option<u32> {
        self.due.first()
    }

    /// Makes a due entry wait for the next hop `neighbor`, whose list the caller keeps.
    pub(super) fn wait(&mut self, index: u32, neighbor: u32) {
        self.leave_stage(index);
        self.enter(index, Stage::Waiting(neighbor));
    }

    /// Makes an entry due again after it waited for its next hop.
    pub(super) fn resume(&mut self, index: u32) {
        self.enter(index, Stage::Due);
        self.due.push(&mut self.table, index);
    }

    /// Makes an entry, whose SYN-ACK goes at `now` or counts as lost on the way, wait for the ACK.
    pub(super) fn sent(&mut self, now: Instant, index: u32) {
        self.leave_stage(index);
        let Some(h) = self.table.get_mut(index) else { return };
        let wait = wait_of(h.retries);
        h.stage = Stage::Sent(h.retries);
        h.deadline = now + self.waits[wait];
        self.next = self.next.min(h.deadline);
        self.sent[wait].push(&mut self.table, index);
    }

    /// Returns an entry whose time is over, longest due first, and makes its next SYN-ACK due; the
    /// flag is false if it has sent all. Returns `None` when no time is over.
    pub(super) fn expired(&mut self, now: Instant) -> Option<(u32, bool)> {
        let first = |list: &List<STAGE>| {
            let index = list.first()?;
            Some((self.table.get(index)?.deadline, index))
        };
        let (at, index) = self.sent.iter().filter_map(first).min().unwrap_or((NEVER, u32::MAX));
        self.next = at;
        if at > now {
            return None;
        }
        self.leave_stage(index);
        self.enter(index, Stage::Due);
        self.due.push(&mut self.table, index);
        let most = self.retries;
        let h = self.table.get_mut(index)?;
        let more = h.retries < most;
        h.retries = h.retries.saturating_add(u8::from(more));
        Some((index, more))
    }
}

/// Returns the list of entries for which the timer has sent so many SYN-ACKs.
fn wait_of(retries: u8) -> usize {
    usize::from(retries).min(WAITS - 1)
}

#[cfg(test)]
mod tests;
