//! Answers on their way from programs, on any thread, to the thread that steps the server.

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

/// The queue of answers; clones are handles of the same queue. Calls under way bound its length.
#[derive(Clone)]
pub(crate) struct Outbox(Arc<Shared>);

struct Shared {
    answers: Mutex<VecDeque<Answer>>,
    /// Number of answers. The server reads it without the lock, since mostly there is none.
    len: AtomicUsize,
    /// True if the server's thread will look before it sleeps.
    awake: AtomicBool,
    /// True if there are calls to send, or to be parked.
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
    /// Creates an empty queue; `waker` wakes the server.
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

    /// Lets a call wait for room, as a program asked.
    pub(super) fn park(&self, request: Request, len: usize, patience: Duration) {
        let until = Instant::now() + patience;
        self.parked().push(Parked { request, len, until });
        self.ring();
    }

    /// Takes the calls that are to wait for room since the last call of this method.
    pub(super) fn take_parked(&self) -> Vec<Parked> {
        std::mem::take(&mut *self.parked())
    }

    fn parked(&self) -> MutexGuard<'_, Vec<Parked>> {
        self.0.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies the server that programs have calls to send.
    pub(super) fn ring(&self) {
        self.0.rung.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Returns true if there are calls to send since the last call of this method.
    pub(super) fn take_rung(&self) -> bool {
        self.0.rung.load(Ordering::Relaxed) && self.0.rung.swap(false, Ordering::SeqCst)
    }

    fn wake(&self) {
        // This runs without a lock, and SeqCst orders this swap with `may_sleep`: either the server
        // sees the answer, or this thread sees that the server sleeps.
        if !self.0.awake.swap(true, Ordering::SeqCst)
            && let Some(waker) = &self.0.waker
        {
            waker.wake();
        }
    }

    /// Takes the oldest answer.
    pub(super) fn pop(&self) -> Option<Answer> {
        if !self.has_some() {
            return None;
        }
        let mut answers = self.answers();
        let oldest = answers.pop_front();
        self.0.len.store(answers.len(), Ordering::Release);
        oldest
    }

    /// Returns true if there is an answer. An answer that arrives at this moment wakes a thread
    /// that may sleep.
    pub(crate) fn has_some(&self) -> bool {
        self.0.len.load(Ordering::Acquire) > 0
    }

    /// Records that the server's thread is about to sleep. Returns true if there is nothing, so
    /// that the thread may sleep.
    pub(crate) fn may_sleep(&self) -> bool {
        self.0.awake.store(false, Ordering::SeqCst);
        !self.0.rung.load(Ordering::SeqCst) && self.answers().is_empty()
    }

    /// Records that the server's thread is awake.
    pub(super) fn awake(&self) {
        self.0.awake.store(true, Ordering::SeqCst);
    }

    fn answers(&self) -> MutexGuard<'_, VecDeque<Answer>> {
        self.0.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
