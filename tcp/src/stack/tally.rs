//! The sum of the counters of all connections, at once or in pieces.

use super::Stack;
use crate::{ConnCounters, SendQueue};

/// A sum over all connections that is made piece by piece.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) sum: ConnCounters,
    /// The first slot that the sum does not include.
    pub(super) next: u32,
}

impl<S: SendQueue + Default> Stack<S> {
    /// Returns the sum of the counters of all present and past connections. The function visits
    /// every connection: use it for reports, not on the data path.
    pub fn conn_counters(&self) -> ConnCounters {
        let mut sum = self.retired;
        for e in self.conns.iter() {
            sum.add(e.conn.counters());
        }
        sum
    }

    /// Makes the sum of [`Stack::conn_counters`] in pieces, for a thread that also handles packets.
    /// Each call visits at most `most` connections and returns `None` until all were visited. Then
    /// it returns the sum, and the next call begins anew. The sum includes every connection once,
    /// with its counters when it was visited, or at its end.
    pub fn poll_conn_counters(&mut self, most: usize) -> Option<ConnCounters> {
        let retired = self.retired;
        let tally = self.tally.get_or_insert(Tally { sum: retired, next: 0 });
        let from = tally.next;
        tally.next = from.saturating_add(u32::try_from(most.max(1)).unwrap_or(u32::MAX));
        for index in from..tally.next.min(self.conns.end()) {
            if let Some(e) = self.conns.get(index) {
                tally.sum.add(e.conn.counters());
            }
        }
        if tally.next < self.conns.end() {
            return None;
        }
        self.tally.take().map(|t| t.sum)
    }
}
