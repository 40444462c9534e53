//! The threads that carry out calls.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use heddle_rpc::Memory;

use super::call::Worker;
use super::queue::{Queue, TakenCall};
use crate::Service;
use crate::counters::count;

/// Threads of an export. After the owner drops this value the threads end, each after its current
/// call. The drop does not wait for them: a disk that hangs holds up a thread and the call's
/// resources, but no owner of an export.
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
        for _ in 0..count {
            let queue = Arc::clone(&all.queue);
            let (service, memory) = (Arc::clone(service), memory.clone());
            let run = move || run(&queue, &service, &memory);
            all.threads.push(thread::Builder::new().name("nfs-rdma".into()).spawn(run)?);
        }
        Ok(all)
    }

    /// Makes the threads end, each after its current call, and waits until all have ended.
    pub fn join(mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended as well, so its error is ignored.
            let _ = thread.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Carries out calls until the queue is closed.
fn run(queue: &Arc<Queue>, service: &Arc<Service>, memory: &Memory) {
    let new = || Worker::new(Arc::clone(service), memory.clone());
    let answer = |worker: &mut Worker, mut taken: TakenCall| {
        if let Some(call) = taken.call.take() {
            worker.answer(call);
        }
    };
    let panicked = || {
        tracing::error!("a call of NFS has panicked; it is answered SYSTEM_ERR");
        count(&service.of_all().counters.panics, 1);
    };
    carry_out(|| queue.take(), new, answer, panicked);
}

/// Makes a worker `answer` each call. Dropping a call that panics answers it with SYSTEM_ERR, and
/// the thread goes on with a new worker: the data that workers share is consistent after every
/// statement.
fn carry_out<C, W>(
    mut next: impl FnMut() -> Option<C>,
    new: impl Fn() -> W,
    answer: impl Fn(&mut W, C),
    panicked: impl Fn(),
) {
    let mut worker = new();
    while let Some(call) = next() {
        if catch_unwind(AssertUnwindSafe(|| answer(&mut worker, call))).is_err() {
            panicked();
            worker = new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn test_thread_goes_on_with_a_new_worker_when_a_call_panics() {
        let (made, panics, mut calls) = (Cell::new(0), Cell::new(0), 0..6);
        let answered = Cell::new(Vec::new());
        let new = || {
            made.set(made.get() + 1);
            made.get()
        };
        let answer = |worker: &mut u32, call: u32| {
            assert!(call % 3 != 1, "a defect");
            let mut all = answered.take();
            all.push((*worker, call));
            answered.set(all);
        };
        carry_out(|| calls.next(), new, answer, || panics.set(panics.get() + 1));
        assert_eq!(answered.take(), [(1, 0), (2, 2), (2, 3), (3, 5)]);
        assert_eq!(panics.get(), 2);
    }
}
