//! Answers on their way from programs, on whatever thread, to the thread that steps the server.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_verbs::Waker;

use super::dispatch::Job;
use super::parking::Parked;
use super::{Refusal, Request};
use crate::body::Body;

pub(super) type Answer = (Job, Result<Body, Refusal>);

/// Where answers are put; clones are handles of the same one. There is no more in it than there are
/// calls under way.
#[derive(Clone)]
pub(crate) struct Outbox(Arc<Shared>);

struct Shared {
    answers: Mutex<VecDeque<Answer>>,
    /// How many there are, to be asked without the lock: who asks mostly finds none.
    len: AtomicUsize,
    /// The server's thread will look before it sleeps.
    awake: AtomicBool,
    /// There are calls to send, or to be parked.
    rung: AtomicBool,
    /// Calls that are to wait for room.
    parked: Mutex<Vec<Parked>>,
    waker: Option<Waker>,
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outbox")
    }
}

impl Outbox {
    /// An empty one; `waker` wakes the server.
    pub(crate) fn new(waker: Option<Waker>) -> Outbox {
        let (answers, len, awake) = (Mutex::default(), AtomicUsize::new(0), AtomicBool::new(true));
        let (rung, parked) = (AtomicBool::new(false), Mutex::default());
        Outbox(Arc::new(Shared { answers, len, awake, rung, parked, waker }))
    }

    pub(super) fn push(&self, job: Job, outcome: Result<Body, Refusal>) {
        {
            let mut answers = self.answers();
            answers.push_back((job, outcome));
            self.0.len.store(answers.len(), Ordering::Release);
        }
        self.wake();
    }

    /// A program has a call wait for room.
    pub(super) fn park(&self, request: Request, len: usize, patience: Duration) {
        let until = Instant::now() + patience;
        self.parked().push(Parked { request, len, until });
        self.ring();
    }

    /// Calls that are to wait for room, since it was asked last.
    pub(super) fn take_parked(&self) -> Vec<Parked> {
        std::mem::take(&mut *self.parked())
    }

    fn parked(&self) -> MutexGuard<'_, Vec<Parked>> {
        self.0.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Programs have calls to send.
    pub(super) fn ring(&self) {
        self.0.rung.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether there are calls to send, since it was asked last.
    pub(super) fn take_rung(&self) -> bool {
        self.0.rung.load(Ordering::Relaxed) && self.0.rung.swap(false, Ordering::SeqCst)
    }

    fn wake(&self) {
        // Under no lock, and in one order with `sleep`: either it sees the answer, or we see that the
        // server sleeps.
        if !self.0.awake.swap(true, Ordering::SeqCst)
            && let Some(waker) = &self.0.waker
        {
            waker.wake();
        }
    }

    /// The oldest.
    pub(super) fn pop(&self) -> Option<Answer> {
        if !self.has_some() {
            return None;
        }
        let mut answers = self.answers();
        let oldest = answers.pop_front();
        self.0.len.store(answers.len(), Ordering::Release);
        oldest
    }

    /// Whether there is an answer. One that comes at this moment wakes whoever may sleep.
    pub(crate) fn has_some(&self) -> bool {
        self.0.len.load(Ordering::Acquire) > 0
    }

    /// The server's thread is about to sleep, and may, when there is nothing.
    pub(crate) fn may_sleep(&self) -> bool {
        self.0.awake.store(false, Ordering::SeqCst);
        !self.0.rung.load(Ordering::SeqCst) && self.answers().is_empty()
    }

    /// It does not sleep any more.
    pub(super) fn awake(&self) {
        self.0.awake.store(true, Ordering::SeqCst);
    }

    fn answers(&self) -> MutexGuard<'_, VecDeque<Answer>> {
        self.0.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
