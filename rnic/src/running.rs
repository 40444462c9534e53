//! Connections with a running queue pair, and the sums of what all connections have counted.

use heddle_iwarp::{QpContext, QpCounters};
use heddle_tcp::{ConnCounters, ConnId};

use crate::frame::RnicFrame;
use crate::rnic::Rnic;

/// A list, so that reports find them, in which each connection knows its place.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) list: Vec<ConnId>,
    /// Counters of queue pairs that are gone.
    retired: QpCounters,
    /// The sum [`Rnic::poll_qp_counters`] is at, and how many of the list are in it.
    tally: Option<(QpCounters, usize)>,
}

impl Running {
    pub(crate) fn with_capacity(conns: usize) -> Running {
        Running { list: Vec::with_capacity(conns), retired: QpCounters::default(), tally: None }
    }

    /// Another one; its place.
    pub(crate) fn add(&mut self, conn: ConnId) -> u32 {
        let at = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        self.list.push(conn);
        at
    }
}

impl<F: RnicFrame> Rnic<F> {
    /// Counters of all TCP connections there are and were, added up.
    pub fn conn_counters(&self) -> ConnCounters {
        self.stack.conn_counters()
    }

    /// As [`conn_counters`](Self::conn_counters), looking at `most` connections at a time: `None`
    /// until all were looked at.
    pub fn poll_conn_counters(&mut self, most: usize) -> Option<ConnCounters> {
        self.stack.poll_conn_counters(most)
    }

    /// As [`qp_counters`](Self::qp_counters), looking at `most` queue pairs at a time: `None` until
    /// all were looked at.
    pub fn poll_qp_counters(&mut self, most: usize) -> Option<QpCounters> {
        let (mut sum, from) = self.running.tally.take().unwrap_or((self.running.retired, 0));
        let upto = from.saturating_add(most.max(1)).min(self.running.list.len());
        for conn in self.running.list.get(from..upto).unwrap_or_default() {
            if let Some(qp) = self.qp(*conn) {
                sum.add(&qp.counters());
            }
        }
        if upto >= self.running.list.len() {
            return Some(sum);
        }
        self.running.tally = Some((sum, upto));
        None
    }

    /// Counters of all queue pairs there are and were, added up.
    pub fn qp_counters(&self) -> QpCounters {
        let mut sum = self.running.retired;
        for conn in &self.running.list {
            if let Some(qp) = self.qp(*conn) {
                sum.add(&qp.counters());
            }
        }
        sum
    }

    /// The queue pair whose connection has place `at` is gone, and had counted `counters`; the last of
    /// the list takes the place.
    pub(crate) fn stop_running(&mut self, at: u32, counters: &QpCounters) {
        self.running.retired.add(counters);
        let place = at as usize;
        if place >= self.running.list.len() {
            return;
        }
        self.running.list.swap_remove(place);
        self.shared.rounds.moved();
        let moved = self.running.list.get(place).copied();
        if let Some((_, state)) = moved.and_then(|conn| self.stack.get_mut(conn)) {
            state.running_at = at;
        }
        // A sum under way has to get those it would miss now.
        let left = self.running.list.len();
        let moved = moved.and_then(|conn| self.qp(conn)).map(QpContext::counters);
        if let Some((sum, done)) = &mut self.running.tally {
            if place >= *done {
                sum.add(counters);
            } else if left >= *done {
                if let Some(moved) = moved {
                    sum.add(&moved);
                }
            } else {
                // The last was in the sum already.
                *done = left;
            }
        }
    }
}
