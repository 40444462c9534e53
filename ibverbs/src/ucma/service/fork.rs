//! Handles `fork`: the child has copies of the ids, and no thread.

use std::cell::RefCell;
use std::sync::{MutexGuard, Once, PoisonError};

use super::{SERVICE, Service};
use crate::rnic;

thread_local! {
    /// The lock, held while this thread forks, so that the child finds the state whole and the lock
    /// free.
    static HELD: RefCell<Option<MutexGuard<'static, Option<Service>>>> = const { RefCell::new(None) };
}

/// Handles forks from here on.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Before a fork the handlers run in reverse order, so this lock is taken before the
        // device's lock, in the same order as in a command.
        rnic::fork::watch();
        // SAFETY: the three functions live as long as the process.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before() {
    let guard = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
    HELD.with_borrow_mut(|held| *held = Some(guard));
}

extern "C" fn in_parent() {
    HELD.with_borrow_mut(|held| drop(held.take()));
}

extern "C" fn in_child() {
    HELD.with_borrow_mut(|held| {
        if let Some(service) = held.as_mut().and_then(|guard| guard.as_mut()) {
            service.forked = true;
        }
        drop(held.take());
    });
}
