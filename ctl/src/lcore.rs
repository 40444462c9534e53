//! The loop of a thread that polls one or several workers in turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_dataplane::{Clock, IdlePolicy, Parker, RestShown, Stop, Worker};
use heddle_rings::wakeup::WorkerSleeper;

/// Processors for the workers of a node, and their threads' behavior when there is no work.
#[derive(Clone, Debug)]
pub struct Lcores {
    /// Processors, one for each thread. A processor that is named twice has two threads, which take
    /// turns by the scheduler.
    pub cores: Vec<usize>,
    /// Behavior of a thread between turns that find nothing. [`IdlePolicy::Interrupt`] needs ports
    /// that were opened for it ([`PortSetup::rx_interrupt`](crate::PortSetup::rx_interrupt)).
    pub idle: IdlePolicy,
    /// Whether threads share their processors with the RNIC's own programs, which poll. The threads
    /// are not bound then, and have short turns
    /// ([`LcoreWorker::spawn_among_programs`](heddle_dataplane::LcoreWorker)).
    pub among_programs: bool,
}

impl Lcores {
    /// Returns these processors, with threads that spin.
    pub fn new(cores: impl Into<Vec<usize>>) -> Lcores {
        Lcores { cores: cores.into(), idle: IdlePolicy::Spin, among_programs: false }
    }
}

/// Interval at which a worker that has ended answers peers; the interval keeps it from occupying a
/// processor.
const CLOSED_NAP: Duration = Duration::from_millis(1);

/// A worker on its thread.
#[derive(Debug)]
pub(crate) struct Hand {
    /// Number of the worker within the RNIC.
    pub(crate) number: usize,
    pub(crate) worker: Worker,
    /// Set when the worker has ended by a defect, its own or the control plane's.
    pub(crate) ended: Stop,
}

/// The workers of one thread.
///
/// A worker that panics is ended, and the others go on. The ended worker gets a little time now and
/// then, to reset peers' connections. If other workers depend on its queues, it has its turns as
/// before, to pass their frames on.
pub(crate) struct Crew<F> {
    live: Vec<Hand>,
    closed: Vec<Hand>,
    /// A worker that has ended serves workers of this or of other threads, which depend on its
    /// queues.
    serving: bool,
    /// The turn of a worker, called over and over.
    turn: F,
    parker: Parker,
    /// Set when the control plane has ended.
    orphaned: Stop,
}

impl<F: FnMut(usize, &mut Worker) -> bool> Crew<F> {
    pub(crate) fn new(
        live: Vec<Hand>,
        turn: F,
        orphaned: Stop,
        idle: IdlePolicy,
        clock: Clock,
        sleeper: Option<WorkerSleeper>,
    ) -> Crew<F> {
        // The queues that wake the thread. A looped queue is left out: the worker's own frames come
        // back to it, so it is empty when the worker has nothing to do.
        let queues = live.iter().filter_map(|h| h.worker.rx_queue());
        let queues: Vec<_> = queues.filter(|q| !q.is_looped()).collect();
        let parker = Parker::new(idle, clock, &queues, sleeper);
        Crew { live, closed: Vec::new(), serving: false, turn, parker, orphaned }
    }

    /// Returns the thread's times of rest, in the form for other threads.
    pub(crate) fn rest(&self) -> Arc<RestShown> {
        self.parker.shown()
    }

    /// Polls until `stop` is set; the workers end with the call.
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

    /// Polls until `stop` is set or the control plane has ended.
    ///
    /// # Errors
    /// The place of a worker that has panicked.
    fn work(&mut self, stop: &Stop) -> Result<(), usize> {
        let mut at = 0;
        let run = catch_unwind(AssertUnwindSafe(|| {
            let mut looked = Instant::now();
            while !stop.is_set() && !self.orphaned.is_set() {
                let mut busy = false;
                let several = self.live.len() > 1;
                for place in 0..self.live.len() {
                    at = place;
                    let hand = &mut self.live[place];
                    busy |= (self.turn)(hand.number, &mut hand.worker);
                    if several {
                        settle(&mut self.live, place);
                    }
                }
                if !self.closed.is_empty() && (self.serving || looked.elapsed() >= CLOSED_NAP) {
                    self.poll_closed();
                    looked = Instant::now();
                }
                let timer = || next(&self.live, &self.closed, self.serving);
                self.parker.turn(busy, timer, || frames(&self.live));
            }
        }));
        run.map_err(|_| at)
    }

    /// Ends a worker after a defect, its own or the control plane's.
    fn close(&mut self, mut hand: Hand, panicked: bool) {
        // The flag comes first: an application that hears of the end finds that the worker does not
        // run.
        hand.ended.set();
        hand.worker.end(panicked);
        // When all workers have ended with the control plane, there is no worker left to serve.
        self.serving |= panicked && hand.worker.serves_others();
        self.closed.push(hand);
    }

    /// Lets ended workers reset peers' connections, for as long as the RNIC exists. Returns true if
    /// a worker had work. A worker that panics even here is dropped.
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

/// Ends the turn of the worker before `place` where the turn of the worker at `place` began.
fn settle(live: &mut [Hand], place: usize) {
    let now = live[place].worker.turn_began();
    let before = place.checked_sub(1).unwrap_or(live.len() - 1);
    live[before].worker.settle(now);
}

/// Returns the number of frames that the queues of these workers have received.
#[cold]
fn frames(live: &[Hand]) -> u64 {
    let queues = live.iter().filter_map(|h| h.worker.rx_queue());
    queues.map(|q| q.counters().rx_frames).fold(0, u64::wrapping_add)
}

/// Returns the time of the next work that no arriving frame announces. An ended worker has its turn
/// now and then, or all the time if other workers depend on its queues.
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
