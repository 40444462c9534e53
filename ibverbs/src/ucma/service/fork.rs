//! `fork`: the child has copies of the ids, and no thread.

use std::cell::RefCell;
use std::sync::{MutexGuard, Once, PoisonError};

use super::{SERVICE, Service};
use crate::rnic;

thread_local! {
    /// Held while this thread forks, so that the child finds the state whole and the lock free.
    static HELD: RefCell<Option<MutexGuard<'static, Option<Service>>>> = const { RefCell::new(None) };
}

/// Sees to forks from here on.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Handlers run latest first before a fork: this lock is taken before that of the device, as in
        // a command.
        rnic::fork::watch();
        // SAFETY: three functions that live as long as the process.
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
