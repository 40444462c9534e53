//! The exported functions of libibverbs, and the objects to which their pointers lead.
//!
//! Each object is a box whose first field is the structure that programs see, so a pointer to the
//! object is a pointer to the structure. The program owns an object from the call that makes it to
//! the call that destroys it, and passes it to no other function afterwards: this is the contract
//! of the C library, and each `SAFETY` comment here that names *the C contract* means it.
//!
//! Calls that ask the RNIC's process (`create`, `destroy`, `modify`, registration) may wait.
//! Posting and polling do not: they take only the lock of their own queue, allocate nothing and
//! call no function that waits.
//!
//! | Module | Holds |
//! |---|---|
//! | `device`, `query` | the list of devices, contexts; queries about them |
//! | `pd`, `mr`, `mw` | protection domains, memory regions and windows |
//! | `channel`, `cq`, `cq_ex` | completion channels and queues |
//! | `qp`, `state`, `srq` | queue pairs and their states, shared receive queues |
//! | `post`, `wr` | work requests, in lists and one by one |
//! | `flush` | requests that are posted to a queue pair whose connection is over |
//! | `events` | asynchronous events |
//! | `cancel` | threads that the program cancels in this library |
//! | `kern` | functions that the distribution's `librdmacm` needs |
//! | `fork`, `strings`, `rates` | `ibv_fork_init`; numbers as text, rates as numbers |
//! | `absent`, `private`, `old` | names that iWARP, this library or this decade does not support |

mod absent;
mod cancel;
mod channel;
mod cq;
mod cq_ex;
mod device;
mod errno;
mod events;
mod flush;
mod fork;
mod kern;
mod lingering;
mod mr;
mod mw;
mod old;
mod pd;
mod post;
mod private;
mod qp;
mod query;
mod rates;
mod signals;
mod srq;
mod state;
mod strings;
mod wr;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use errno::report_end;

pub use absent::*;
pub use channel::*;
pub use cq::*;
pub use device::*;
pub use events::*;
pub use fork::*;
pub use kern::*;
pub use mr::*;
pub use pd::*;
pub use qp::*;
pub use query::*;
pub use rates::*;
pub use srq::*;
pub use state::*;
pub use strings::*;

/// Runs the body of an exported function that may wait. A panic in the body becomes `failed` and
/// `EIO`, because a panic must not unwind into a caller written in C. The program cannot cancel the
/// thread before the body is done.
fn guarded<T>(failed: T, body: impl FnOnce() -> T) -> T {
    let _off = cancel::Off::new();
    caught(failed, body)
}

/// Runs the body like [`guarded`], for a function that makes no call at which the system could
/// cancel the thread.
fn caught<T>(failed: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        errno::set(libc::EIO);
        failed
    })
}

/// Runs the body of a function that returns 0 or an errno.
fn number(body: impl FnOnce() -> Result<(), i32>) -> i32 {
    guarded(libc::EIO, || body().err().unwrap_or(0))
}

/// Runs the body of a function that returns a new object, or null with `errno` set.
fn object<T>(body: impl FnOnce() -> Result<*mut T, i32>) -> *mut T {
    let made = || {
        body().unwrap_or_else(|e| {
            errno::set(e);
            std::ptr::null_mut()
        })
    };
    guarded(std::ptr::null_mut(), made)
}
