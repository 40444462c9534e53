//! Protection domains.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use heddle_verbs::Pd;
use libc::EBUSY;

use super::device::Context;
use super::{errno, number, object};
use crate::abi::{ibv_context, ibv_pd};

/// A protection domain, which counts the objects in it.
#[repr(C)]
pub(crate) struct PdObject {
    base: ibv_pd,
    pub(super) pd: Pd,
    users: AtomicU32,
}

/// An object in a protection domain, or a user of another object. Dropping the value ends the use.
#[derive(Debug)]
pub(super) struct User(*const AtomicU32);

impl User {
    /// Counts one more user of the object that has this count.
    ///
    /// # Safety
    /// The count outlives the user: its object refuses to be destroyed while it has a user.
    pub(super) unsafe fn new(count: *const AtomicU32) -> User {
        // SAFETY: the caller says that the count is live.
        unsafe { &*count }.fetch_add(1, Ordering::AcqRel);
        User(count)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // SAFETY: the count is live, as the caller of `new` promised.
        unsafe { &*self.0 }.fetch_sub(1, Ordering::AcqRel);
    }
}

impl PdObject {
    /// Returns the object of a program's pointer.
    ///
    /// # Safety
    /// The C contract: `pd` is live for as long as `'a`.
    pub(super) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a PdObject {
        // SAFETY: the structure is the first field of a `PdObject`.
        unsafe { &*pd.cast::<PdObject>() }
    }

    pub(super) fn context(&self) -> &Context {
        // SAFETY: by the C contract, a context outlives the objects made in it.
        unsafe { Context::of(self.base.context) }
    }

    pub(super) fn user(&self) -> User {
        // SAFETY: `ibv_dealloc_pd` refuses while the domain has users.
        unsafe { User::new(&raw const self.users) }
    }
}

/// Makes a protection domain.
///
/// # Safety
/// The C contract: `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object(|| {
        // SAFETY: the caller keeps the C contract.
        let pd = unsafe { Context::of(context) }.device.alloc_pd().map_err(|e| errno::of(&e))?;
        let base = ibv_pd { context, handle: pd.0 };
        Ok(Box::into_raw(Box::new(PdObject { base, pd, users: AtomicU32::new(0) })).cast())
    })
}

/// Frees a protection domain. Returns `EBUSY` while it holds objects.
///
/// # Safety
/// The caller keeps the C contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    number(|| {
        // SAFETY: the caller keeps the C contract.
        let object = unsafe { PdObject::of(pd) };
        if object.users.load(Ordering::Acquire) != 0 {
            return Err(EBUSY);
        }
        object.context().device.dealloc_pd(object.pd).map_err(|e| errno::of(&e))?;
        // SAFETY: this is the box that `ibv_alloc_pd` made; no object uses it.
        drop(unsafe { Box::from_raw(pd.cast::<PdObject>()) });
        Ok(())
    })
}
