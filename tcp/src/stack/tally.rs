//! What all connections have counted, at once or in pieces.

use super::Stack;
use crate::{ConnCounters, SendQueue};

/// A sum over all connections that is made piece by piece.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) sum: ConnCounters,
    /// The first slot that is not in it.
    pub(super) next: u32,
}

impl<S: SendQueue + Default> Stack<S> {
    /// What all connections there are and were have counted. It looks at every one of them: for
    /// reports, not for the data path.
    pub fn conn_counters(&self) -> ConnCounters {
        let mut sum = self.retired;
        for e in self.conns.iter() {
            sum.add(e.conn.counters());
        }
        sum
    }

    /// As [`Stack::conn_counters`], for a thread that has packets to look after: each call looks at
    /// `most` connections at most and gives `None` until all were looked at; then the sum, and the
    /// next call begins anew. Every connection is in it once, with what it had counted when it was
    /// looked at, or at its end.
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
