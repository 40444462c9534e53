//! What a thread does that polls workers, one or several in turn, for as long as they last.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_dataplane::{Clock, IdlePolicy, RestShown, Rester, Stop, Worker};
use heddle_verbs::wakeup::WorkerSleeper;

/// Where the workers of a node run, and what their threads do when there is nothing to do.
#[derive(Clone, Debug)]
pub struct Lcores {
    /// Processors, one for each thread. One that is named twice has two threads, which take turns as
    /// the scheduler has it.
    pub cores: Vec<usize>,
    /// What a thread does between turns that find nothing. [`IdlePolicy::Interrupt`] wants ports that
    /// were opened for it ([`PortSetup::rx_interrupt`](crate::PortSetup::rx_interrupt)).
    pub idle: IdlePolicy,
    /// Whether threads share their processors with the RNIC's own programs, which poll: they are not bound
    /// then, and have short turns ([`LcoreWorker::spawn_among_programs`](heddle_dataplane::LcoreWorker)).
    pub among_programs: bool,
}

impl Lcores {
    /// These processors, whose threads spin.
    pub fn new(cores: impl Into<Vec<usize>>) -> Lcores {
        Lcores { cores: cores.into(), idle: IdlePolicy::Spin, among_programs: false }
    }
}

/// How late a worker that has ended may answer a peer: a processor is not kept busy for it.
const CLOSED_NAP: Duration = Duration::from_millis(1);

/// A worker on its thread.
#[derive(Debug)]
pub(crate) struct Hand {
    /// Its number.
    pub(crate) number: usize,
    pub(crate) worker: Worker,
    /// Set when it has ended by a defect, its own or the control plane's.
    pub(crate) ended: Stop,
}

/// The workers of one thread.
///
/// A worker that panics is ended and leaves the others alone: it gets a little time now and then, to
/// tell peers that their connections are gone. If others live on its queues it has its turns as before,
/// to pass their frames on.
pub(crate) struct Crew<F> {
    live: Vec<Hand>,
    closed: Vec<Hand>,
    /// One of those that have ended has what workers of other threads, or of this, live on.
    serving: bool,
    /// What a worker does over and over.
    turn: F,
    rester: Rester,
    /// Set when there is no control plane any more.
    orphaned: Stop,
}

impl<F: FnMut(usize, &mut Worker) -> bool> Crew<F> {
    pub(crate) fn new(
        live: Vec<Hand>,
        turn: F,
        orphaned: Stop,
        (idle, clock): (IdlePolicy, Clock),
        sleeper: Option<WorkerSleeper>,
    ) -> Crew<F> {
        // A queue that a worker's own frames come back to is empty when the worker has nothing to do.
        let queues = live.iter().filter_map(|h| h.worker.rx_queue());
        let queues: Vec<_> = queues.filter(|q| !q.is_looped()).collect();
        let rester = Rester::new(idle, clock, &queues, sleeper);
        Crew { live, closed: Vec::new(), serving: false, turn, rester, orphaned }
    }

    /// What others see of the thread's rest.
    pub(crate) fn rest(&self) -> Arc<RestShown> {
        self.rester.shown()
    }

    /// Returns when it is told to stop; the workers end with it.
    pub(crate) fn run(mut self, stop: &Stop) {
        while !stop.is_set() {
            if self.orphaned.is_set() {
                while let Some(hand) = self.live.pop() {
                    self.close(hand, false);
                }
            }
            if self.live.is_empty() {
                if !self.poll_closed() && !self.serving {
                    std::thread::sleep(CLOSED_NAP);
                }
            } else if let Err(culprit) = self.work(stop) {
                let hand = self.live.remove(culprit);
                self.close(hand, true);
            }
        }
    }

    /// Polls until it is told to stop, or nobody is left to give orders.
    ///
    /// # Errors
    /// The place of a worker that has panicked.
    fn work(&mut self, stop: &Stop) -> Result<(), usize> {
        let mut at = 0;
        let run = catch_unwind(AssertUnwindSafe(|| {
            let mut looked = Instant::now();
            while !stop.is_set() && !self.orphaned.is_set() {
                let mut busy = false;
                for (place, hand) in self.live.iter_mut().enumerate() {
                    at = place;
                    busy |= (self.turn)(hand.number, &mut hand.worker);
                }
                if !self.closed.is_empty() && (self.serving || looked.elapsed() >= CLOSED_NAP) {
                    self.poll_closed();
                    looked = Instant::now();
                }
                let timer = || next(&self.live, &self.closed, self.serving);
                self.rester.turn(busy, timer, || frames(&self.live));
            }
        }));
        run.map_err(|_| at)
    }

    /// Gives up a worker that has ended by a defect, its own or the control plane's.
    fn close(&mut self, mut hand: Hand, panicked: bool) {
        // First: whoever hears of the end finds that it does not run.
        hand.ended.set();
        hand.worker.end(panicked);
        // Not when all have ended with the control plane: nobody is left to be served.
        self.serving |= panicked && hand.worker.serves_others();
        self.closed.push(hand);
    }

    /// Peers are to hear that their connections are gone, for as long as the RNIC is there. One that
    /// cannot even do that is dropped.
    fn poll_closed(&mut self) -> bool {
        let mut busy = false;
        self.closed.retain_mut(|hand| {
            let turn = catch_unwind(AssertUnwindSafe(|| hand.worker.poll_closed()));
            busy |= turn.as_ref().is_ok_and(|b| *b);
            turn.is_ok()
        });
        busy
    }
}

/// Frames that the queues of these workers have brought.
#[cold]
fn frames(live: &[Hand]) -> u64 {
    let queues = live.iter().filter_map(|h| h.worker.rx_queue());
    queues.map(|q| q.counters().rx_frames).fold(0, u64::wrapping_add)
}

/// When there is something to do though nothing arrives, or what arrives wakes nobody: those that have
/// ended are looked at now and then, those that others live on all the time.
#[cold]
fn next(live: &[Hand], closed: &[Hand], serving: bool) -> Option<heddle_base::Instant> {
    let look = if serving { Duration::ZERO } else { CLOSED_NAP };
    let look = closed.first().map(|h| h.worker.now() + look);
    let next = |h: &Hand| {
        // Frames that wait for the port are due at once.
        if h.worker.is_idle() { h.worker.poll_timeout() } else { Some(h.worker.now()) }
    };
    live.iter().filter_map(next).chain(look).min()
}
