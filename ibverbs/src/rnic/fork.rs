//! Handles `fork`: the child forgets the device of its parent.

use std::cell::RefCell;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, Once, PoisonError};

use super::{DEVICE, OPENING};

thread_local! {
    /// The lock, held while this thread forks. Otherwise the child could inherit the lock as held
    /// by a thread that the child does not have.
    static HELD: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Handles forks from here on.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    // SAFETY: the three functions live as long as the process. If registering them fails for lack
    // of memory, a child shares its parent's session, and the RNIC then ends that session.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

extern "C" fn before() {
    let guard = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    HELD.with_borrow_mut(|held| *held = Some(guard));
}

extern "C" fn in_parent() {
    HELD.with_borrow_mut(|held| drop(held.take()));
}

extern "C" fn in_child() {
    DEVICE.store(null_mut(), Ordering::Release);
    in_parent();
}
