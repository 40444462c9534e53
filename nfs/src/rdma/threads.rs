//! The threads that carry calls out.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use heddle_rpc::{Memory, Request};

use super::call::Worker;
use crate::Service;

/// Calls that wait for a thread. Each has a credit of its connection.
#[derive(Debug, Default)]
pub(super) struct Queue {
    calls: Mutex<Calls>,
    /// There is a call, or there will be none any more.
    news: Condvar,
}

#[derive(Debug, Default)]
struct Calls {
    waiting: VecDeque<Request>,
    closed: bool,
}

impl Queue {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more call. Dropped when there is nobody to take it, it is answered by that.
    pub(super) fn push(&self, call: Request) {
        let mut calls = self.calls();
        if !calls.closed {
            calls.waiting.push_back(call);
            self.news.notify_one();
        }
    }

    /// The oldest, once there is one; `None` when there will be none.
    fn take(&self) -> Option<Request> {
        let mut calls = self.calls();
        loop {
            if calls.closed {
                return None;
            }
            if let Some(call) = calls.waiting.pop_front() {
                return Some(call);
            }
            calls = self.news.wait(calls).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        let waiting = {
            let mut calls = self.calls();
            calls.closed = true;
            std::mem::take(&mut calls.waiting)
        };
        // Answered by that, not under the lock.
        drop(waiting);
        self.news.notify_all();
    }
}

/// Threads of an export. Dropped, they end, each after the call that it has.
#[derive(Debug)]
pub struct Threads {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    pub(super) fn start(
        count: usize,
        queue: Arc<Queue>,
        service: &Arc<Service>,
        memory: &Memory,
    ) -> io::Result<Threads> {
        let mut all = Threads { queue, threads: Vec::new() };
        for _ in 0..count.max(1) {
            let queue = Arc::clone(&all.queue);
            let mut worker = Worker::new(Arc::clone(service), memory.clone());
            let run = move || {
                while let Some(call) = queue.take() {
                    worker.answer(call);
                }
            };
            all.threads.push(thread::Builder::new().name("nfs-rdma".into()).spawn(run)?);
        }
        Ok(all)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            // One that panicked has ended as well.
            let _ = thread.join();
        }
    }
}
