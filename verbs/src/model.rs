//! The lock-free code of this crate under a model checker: small programs of two or three threads.
//! The checker runs them in every order of steps, with every store that a load may see.
//!
//! `cargo test -p heddle-verbs --features loom --lib model`. The checker bounds preemptions
//! (`PREEMPTIONS`): the number of times that it takes a thread off its processor where the thread
//! would not wait anyway. A program makes real system calls, and checks their effects after its
//! threads have ended.
#![allow(clippy::unwrap_used, reason = "tests")]

mod completions;
mod doorbells;
mod events;
mod posts;
mod receives;

use loom::model::Builder;

use heddle_shm::Sleeper;

/// Most preemptions of a thread in one run of a program.
const PREEMPTIONS: usize = 3;

/// Runs a program in every order.
fn check(program: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_branches = 100_000;
    builder.check(program);
}

/// Returns true if the sleeper has been woken, or would not sleep.
fn is_woken(sleeper: &Sleeper) -> bool {
    let fd = sleeper.fd().unwrap();
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
}
