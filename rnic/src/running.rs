//! Connections with a running queue pair, and the sums of what all connections have counted.

use heddle_iwarp::{QpContext, QpCounters};
use heddle_tcp::ConnCounters;
use heddle_types::ConnId;

use crate::frame::RnicFrame;
use crate::rnic::Rnic;

/// A list of these connections for reports, in which each connection knows its place.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) list: Vec<ConnId>,
    /// Counters of queue pairs that no longer exist.
    retired: QpCounters,
    /// The intermediate sum of [`Rnic::poll_qp_counters`], and how many connections of the list it
    /// includes.
    tally: Option<(QpCounters, usize)>,
    /// The sum of the counters of TCP connections, while that of the queue pairs is in progress.
    pub(crate) tcp: Option<ConnCounters>,
}

impl Running {
    pub(crate) fn with_capacity(conns: usize) -> Running {
        Running {
            list: Vec::with_capacity(conns),
            retired: QpCounters::default(),
            tally: None,
            tcp: None,
        }
    }

    /// Adds a connection, and returns its place.
    pub(crate) fn add(&mut self, conn: ConnId) -> u32 {
        let at = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        self.list.push(conn);
        at
    }
}

impl<F: RnicFrame> Rnic<F> {
    /// Returns the sum of the counters of all TCP connections, present and past.
    pub fn conn_counters(&self) -> ConnCounters {
        self.stack.conn_counters()
    }

    /// Like [`conn_counters`](Self::conn_counters), but looks at `most` connections in each call;
    /// returns `None` until it has looked at all of them.
    pub fn poll_conn_counters(&mut self, most: usize) -> Option<ConnCounters> {
        self.stack.poll_conn_counters(most)
    }

    /// Like [`qp_counters`](Self::qp_counters), but looks at `most` queue pairs in each call;
    /// returns `None` until it has looked at all of them.
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

    /// Returns the sum of the counters of all queue pairs, present and past.
    pub fn qp_counters(&self) -> QpCounters {
        let mut sum = self.running.retired;
        for conn in &self.running.list {
            if let Some(qp) = self.qp(*conn) {
                sum.add(&qp.counters());
            }
        }
        sum
    }

    /// Removes the connection at place `at`, whose queue pair has ended with `counters`; the last
    /// connection of the list takes the place.
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
        // A `poll_qp_counters` sum in progress must include the counters that it would otherwise
        // miss.
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
                // The moved connection was in the sum already.
                *done = left;
            }
        }
    }
}
