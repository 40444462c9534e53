//! Memory windows.
//!
//! A window of type 1 is bound at once, by the call itself, and its completion is the library's own.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use heddle_verbs::{Queue, Window};
use libc::{EINVAL, ENOMEM, EOPNOTSUPP};

use super::mr::{self, MrObject};
use super::pd::{PdObject, User};
use super::post;
use super::qp::QpObject;
use super::{errno, number, object};
use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED, IBV_MW_TYPE_1, IBV_MW_TYPE_2,
    IBV_SEND_SIGNALED, IBV_WC_BIND_MW, IBV_WC_SUCCESS, ibv_mw, ibv_mw_bind, ibv_mw_bind_info,
    ibv_pd, ibv_qp, ibv_send_wr,
};

/// A memory window.
#[repr(C)]
pub(crate) struct MwObject {
    base: ibv_mw,
    state: Mutex<State>,
    _pd: User,
}

struct State {
    window: Window,
    /// The region that it shows a part of.
    _region: Option<User>,
}

/// # Safety
/// The C contract.
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    object(|| {
        match kind {
            IBV_MW_TYPE_1 => {}
            IBV_MW_TYPE_2 => return Err(EOPNOTSUPP),
            _ => return Err(EINVAL),
        }
        // SAFETY: the C contract.
        let domain = unsafe { PdObject::of(pd) };
        let window = domain.context().device.alloc_window(domain.pd).map_err(|e| errno::of(&e))?;
        // SAFETY: the C contract.
        let context = unsafe { (*pd).context };
        let base = ibv_mw { context, pd, rkey: 0, handle: 0, r#type: kind };
        let state = Mutex::new(State { window, _region: None });
        Ok(Box::into_raw(Box::new(MwObject { base, state, _pd: domain.user() })).cast())
    })
}

/// # Safety
/// The C contract.
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    number(|| {
        // SAFETY: the box that `alloc_mw` made.
        drop(unsafe { Box::from_raw(mw.cast::<MwObject>()) });
        Ok(())
    })
}

/// Binds a window of type 1, or has it show nothing; its rkey is another one afterwards.
///
/// # Safety
/// The C contract: `qp`, `mw` and the region of `bind` are live.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    number(|| {
        // SAFETY: the C contract.
        let (object, window, bind) = unsafe { (QpObject::of(qp), &*mw.cast::<MwObject>(), &*bind) };
        if !post::is_posting(object) {
            return Err(EINVAL);
        }
        if object.qp.has_ended() {
            return post::flush(object, Queue::Sq, bind.wr_id, IBV_WC_BIND_MW);
        }
        // SAFETY: the C contract.
        let rkey = unsafe { show(window, &bind.bind_info) }?;
        // SAFETY: a word of the structure, which the program does not use while it binds.
        unsafe { (*mw).rkey = rkey };
        if object.sig_all || bind.send_flags & IBV_SEND_SIGNALED != 0 {
            let done = post::completion(&object.qp, bind.wr_id, IBV_WC_BIND_MW, IBV_WC_SUCCESS);
            let cq = object.send_cq();
            if !cq.flushed.push(done) {
                return Err(ENOMEM);
            }
            cq.cq.notify();
        }
        Ok(())
    })
}

/// # Safety
/// The C contract: the region is live.
unsafe fn show(mw: &MwObject, info: &ibv_mw_bind_info) -> Result<u32, i32> {
    const RIGHTS: u32 = IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_ZERO_BASED;
    let mut state = mw.state.lock().unwrap_or_else(PoisonError::into_inner);
    if info.mr.is_null() || info.length == 0 {
        state.window.unbind();
        state._region = None;
        return Ok(mw.base.rkey);
    }
    if info.mw_access_flags & !(RIGHTS | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND) != 0 {
        return Err(EINVAL);
    }
    // SAFETY: the C contract.
    let region = unsafe { MrObject::of(info.mr) };
    let mr = region.mr().ok_or(EINVAL)?;
    let off = info.addr.checked_sub(mr.to()).and_then(|off| usize::try_from(off).ok());
    let (off, len) = (off.ok_or(EINVAL)?, u32::try_from(info.length).map_err(|_| EINVAL)?);
    let to = if info.mw_access_flags & IBV_ACCESS_ZERO_BASED == 0 { info.addr } else { 0 };
    let rights = mr::access(info.mw_access_flags & RIGHTS);
    let bound = state.window.bind(mr, (off, len), to, rights).map_err(errno::of_bind)?;
    // SAFETY: the region refuses to be deregistered while it has users.
    state._region = Some(unsafe { User::new(&raw const region.users) });
    Ok(bound.0)
}

/// Posts a bind of a window of type 2.
///
/// # Safety
/// The C contract: the request's window and region are live.
#[cold]
pub(super) unsafe fn post_bind(object: &QpObject, wr: &ibv_send_wr) -> Result<(), i32> {
    let bind = &wr.bind_mw;
    // SAFETY: the C contract.
    unsafe {
        bind_by_request(object, (wr.wr_id, wr.send_flags), bind.mw, bind.rkey, &bind.bind_info)
    }
}

/// # Safety
/// The C contract: the window and region are live.
pub(super) unsafe fn bind_by_request(
    _object: &QpObject,
    _request: (u64, u32),
    _mw: *mut ibv_mw,
    _rkey: u32,
    _info: &ibv_mw_bind_info,
) -> Result<(), i32> {
    Err(EOPNOTSUPP)
}
