//! The exported functions of libibverbs, and the objects behind their pointers.
//!
//! Each object is a box whose first field is the structure that programs see, so a pointer to the one is a
//! pointer to the other. The program owns it from the function that makes it to the one that destroys it, and
//! passes it to no other function after that: this is the contract of the C library, and each `SAFETY` comment
//! here that names *the C contract* means it.
//!
//! Calls that ask the RNIC's process (`create`, `destroy`, `modify`, registration) may wait. Posting and polling
//! do not: they take the lock of their own queue alone, allocate nothing and call nothing that waits.
//!
//! | Module | Holds |
//! |---|---|
//! | `device`, `query` | the list of devices, contexts; what can be asked of them |
//! | `pd`, `mr`, `mw` | protection domains, memory regions and windows |
//! | `channel`, `cq`, `cq_ex` | completion channels and queues |
//! | `qp`, `state`, `srq` | queue pairs and their states, shared receive queues |
//! | `post`, `wr` | work requests, in lists and one by one |
//! | `flush` | requests that are posted to a queue pair whose connection is over |
//! | `events` | asynchronous events |
//! | `cancel` | threads that the program ends while they are here |
//! | `kern` | what the distribution's `librdmacm` asks of this library |
//! | `fork`, `strings`, `rates` | `ibv_fork_init`; numbers as text, rates as numbers |
//! | `absent`, `private`, `old` | names that iWARP, this library or this decade has nothing behind |

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
mod mr;
mod mw;
mod old;
mod pd;
mod post;
mod private;
mod qp;
mod query;
mod rates;
mod srq;
mod state;
mod strings;
mod wr;

use std::panic::{AssertUnwindSafe, catch_unwind};

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

/// Runs the body of an exported function that may wait; a panic in it becomes `failed` and `EIO`, since nothing may
/// unwind into a caller written in C, and the thread is not cancelled before it is done.
fn guarded<T>(failed: T, body: impl FnOnce() -> T) -> T {
    let _off = cancel::Off::new();
    caught(failed, body)
}

/// As [`guarded`], for a function that makes no call at which the system cancels a thread.
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

/// Runs the body of a function that returns a new object, or null and sets `errno`.
fn object<T>(body: impl FnOnce() -> Result<*mut T, i32>) -> *mut T {
    let made = || {
        body().unwrap_or_else(|e| {
            errno::set(e);
            std::ptr::null_mut()
        })
    };
    guarded(std::ptr::null_mut(), made)
}
