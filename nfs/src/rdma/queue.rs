//! Calls that wait for a thread, in two lanes.
//!
//! ```text
//!   quick  GETATTR, LOOKUP, ACCESS …        any thread
//!   slow   READ, WRITE, CREATE, READDIR …   all threads except those reserved for quick calls
//! ```
//!
//! In each lane addresses take turns, and the connections of an address take turns within its turn
//! ([`Fair`]); no address gets all the threads of a lane. So a client with many calls in flight, or
//! with calls that wait for the disk, keeps no other client from a thread.

use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use heddle_rpc::{Procedure, Request};

use crate::fair::{Busy, Fair, share};
use crate::wire::procedure;

/// The lane of a call: slow if the call waits for the disk or moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Quick,
    Slow,
}

impl Lane {
    pub(super) const fn of(procedure: Procedure) -> Lane {
        match procedure {
            procedure::GETATTR
            | procedure::LOOKUP
            | procedure::ACCESS
            | procedure::READLINK
            | procedure::FSINFO
            | procedure::PATHCONF => Lane::Quick,
            _ => Lane::Slow,
        }
    }
}

/// The queue that the module describes. Each call in it uses a credit of its connection.
#[derive(Debug)]
pub(super) struct Queue {
    lanes: Mutex<Lanes>,
    /// Signals a new call, or the end of the queue.
    news: Condvar,
}

#[derive(Debug)]
struct Lanes {
    quick: Fair<Request>,
    slow: Fair<Request>,
    busy_quick: Busy,
    busy_slow: Busy,
    threads: usize,
    /// The number of threads that may serve slow calls at a time.
    slow_max: usize,
    /// The lane that `take` looks at first: the lanes take turns.
    first: Lane,
    closed: bool,
}

impl Lanes {
    fn take(&mut self) -> Option<(Lane, IpAddr, Request)> {
        let other = if self.first == Lane::Quick { Lane::Slow } else { Lane::Quick };
        let (lane, (ip, call)) = [self.first, other]
            .into_iter()
            .find_map(|lane| self.take_from(lane).map(|taken| (lane, taken)))?;
        self.first = if lane == Lane::Quick { Lane::Slow } else { Lane::Quick };
        Some((lane, ip, call))
    }

    fn take_from(&mut self, lane: Lane) -> Option<(IpAddr, Request)> {
        let Lanes { quick, slow, busy_quick, busy_slow, threads, slow_max, .. } = self;
        let (waiting, busy, max) = match lane {
            Lane::Quick => (quick, busy_quick, *threads),
            Lane::Slow => (slow, busy_slow, *slow_max),
        };
        if busy.all() >= max {
            return None;
        }
        let taken = waiting.take(|ip| busy.of(ip) < share(max));
        taken.inspect(|(ip, _)| busy.begin(*ip))
    }
}

/// A call that a thread has taken. The thread counts as busy until it drops this value.
#[derive(Debug)]
pub(super) struct TakenCall {
    pub(super) call: Option<Request>,
    queue: Arc<Queue>,
    lane: Lane,
    ip: IpAddr,
}

impl Queue {
    /// Makes a queue for `threads` threads, a quarter of which is reserved for quick calls.
    pub(super) fn new(threads: usize) -> Queue {
        let kept = if threads > 1 { (threads / 4).max(1) } else { 0 };
        let lanes = Lanes {
            quick: Fair::default(),
            slow: Fair::default(),
            busy_quick: Busy::default(),
            busy_slow: Busy::default(),
            threads,
            slow_max: threads - kept,
            first: Lane::Quick,
            closed: false,
        };
        Queue { lanes: Mutex::new(lanes), news: Condvar::new() }
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call. If the queue is closed, the call is dropped, and dropping a call answers it.
    pub(super) fn push(&self, call: Request) {
        let mut lanes = self.lanes();
        if !lanes.closed {
            let peer = call.peer;
            match Lane::of(call.procedure) {
                Lane::Quick => lanes.quick.push(peer, call),
                Lane::Slow => lanes.slow.push(peer, call),
            }
            self.news.notify_one();
        }
    }

    /// Waits for the next call and returns it; returns `None` after the queue is closed.
    pub(super) fn take(self: &Arc<Self>) -> Option<TakenCall> {
        let mut lanes = self.lanes();
        loop {
            if lanes.closed {
                return None;
            }
            if let Some((lane, ip, call)) = lanes.take() {
                return Some(TakenCall { call: Some(call), queue: Arc::clone(self), lane, ip });
            }
            lanes = self.news.wait(lanes).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn close(&self) {
        let waiting = {
            let mut lanes = self.lanes();
            lanes.closed = true;
            (std::mem::take(&mut lanes.quick), std::mem::take(&mut lanes.slow))
        };
        // Dropping the calls answers them; that happens outside the lock.
        drop(waiting);
        self.news.notify_all();
    }
}

impl Drop for TakenCall {
    fn drop(&mut self) {
        let mut lanes = self.queue.lanes();
        match self.lane {
            Lane::Quick => lanes.busy_quick.end(self.ip),
            Lane::Slow => lanes.busy_slow.end(self.ip),
        }
        // No notification: the thread that drops this value looks for the next call itself.
    }
}
