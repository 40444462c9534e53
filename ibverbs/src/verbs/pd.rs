//! Protection domains.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use heddle_verbs::Pd;
use libc::EBUSY;

use super::device::Context;
use super::{errno, number, object};
use crate::abi::{ibv_context, ibv_pd};

/// A protection domain, which counts what is in it.
#[repr(C)]
pub(crate) struct PdObject {
    base: ibv_pd,
    pub(super) pd: Pd,
    users: AtomicU32,
}

/// What is in a protection domain, or uses another object: gone when dropped.
#[derive(Debug)]
pub(super) struct User(*const AtomicU32);

impl User {
    /// One more user of the object that has this count.
    ///
    /// # Safety
    /// The count outlives the user: its object refuses to be destroyed while it has any.
    pub(super) unsafe fn new(count: *const AtomicU32) -> User {
        // SAFETY: live, as the caller says.
        unsafe { &*count }.fetch_add(1, Ordering::AcqRel);
        User(count)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // SAFETY: live, as whoever made it promised.
        unsafe { &*self.0 }.fetch_sub(1, Ordering::AcqRel);
    }
}

impl PdObject {
    /// The object that a program's pointer is about.
    ///
    /// # Safety
    /// The C contract: `pd` is live for as long as `'a`.
    pub(super) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a PdObject {
        // SAFETY: the first field of a `PdObject`.
        unsafe { &*pd.cast::<PdObject>() }
    }

    pub(super) fn context(&self) -> &Context {
        // SAFETY: a context outlives what is made in it, by the C contract.
        unsafe { Context::of(self.base.context) }
    }

    pub(super) fn user(&self) -> User {
        // SAFETY: `ibv_dealloc_pd` refuses while there are users.
        unsafe { User::new(&raw const self.users) }
    }
}

/// A new protection domain.
///
/// # Safety
/// The C contract: `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object(|| {
        // SAFETY: the C contract.
        let pd = unsafe { Context::of(context) }.device.alloc_pd().map_err(|e| errno::of(&e))?;
        let base = ibv_pd { context, handle: pd.0 };
        Ok(Box::into_raw(Box::new(PdObject { base, pd, users: AtomicU32::new(0) })).cast())
    })
}

/// Gives a protection domain back.
///
/// # Safety
/// The C contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    number(|| {
        // SAFETY: the C contract.
        let object = unsafe { PdObject::of(pd) };
        if object.users.load(Ordering::Acquire) != 0 {
            return Err(EBUSY);
        }
        object.context().device.dealloc_pd(object.pd).map_err(|e| errno::of(&e))?;
        // SAFETY: the box that `ibv_alloc_pd` made; nothing uses it.
        drop(unsafe { Box::from_raw(pd.cast::<PdObject>()) });
        Ok(())
    })
}
