//! Memory windows.
//!
//! The call that binds a window of type 1 binds it at once, and the library makes its completion. A work request
//! binds a window of type 2 in its turn on the send queue. From then until the window is invalidated, the peer of
//! that queue pair alone may use it.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use heddle_verbs::{Access, Bind, Data, Mr, QpWindow, Queue, SendOp, Sge, Stag, Window};
use libc::{EINVAL, ENOMEM};

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
    kind: Kind,
    _pd: User,
}

enum Kind {
    Type1(Mutex<Shown>),
    /// The program gives the key with each bind. A region has no user for it: the RNIC counts the windows of type 2
    /// that are bound to a region, and a peer may invalidate one without a word to the library.
    Type2(QpWindow),
}

/// A window of type 1, and the region of which it shows a part.
struct Shown {
    window: Window,
    _region: Option<User>,
}

/// # Safety
/// The C contract.
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    object(|| {
        // SAFETY: the C contract.
        let domain = unsafe { PdObject::of(pd) };
        let device = &domain.context().device;
        let (state, rkey) = match kind {
            IBV_MW_TYPE_1 => {
                let window = device.alloc_window(domain.pd).map_err(|e| errno::of(&e))?;
                (Kind::Type1(Mutex::new(Shown { window, _region: None })), 0)
            }
            IBV_MW_TYPE_2 => {
                let window = device.alloc_window_for_any(domain.pd).map_err(|e| errno::of(&e))?;
                let rkey = window.stag(0).0;
                (Kind::Type2(window), rkey)
            }
            _ => return Err(EINVAL),
        };
        // SAFETY: the C contract.
        let context = unsafe { (*pd).context };
        let base = ibv_mw { context, pd, rkey, handle: 0, r#type: kind };
        Ok(Box::into_raw(Box::new(MwObject { base, kind: state, _pd: domain.user() })).cast())
    })
}

/// # Safety
/// The C contract.
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    number(|| {
        // SAFETY: the box that `alloc_mw` made.
        let mut window = unsafe { Box::from_raw(mw.cast::<MwObject>()) };
        // Dropping a window does not wait for the RNIC, and peers may not use it once this call returns.
        match &mut window.kind {
            Kind::Type1(shown) => {
                shown.get_mut().unwrap_or_else(PoisonError::into_inner).window.unbind();
            }
            Kind::Type2(window) => window.unbind(),
        }
        drop(window);
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

/// A part of a region that a program wants a window to show.
struct Part<'a> {
    region: &'a MrObject,
    mr: &'a Mr,
    /// The first byte, as the region counts them, and the number of bytes.
    off: usize,
    len: u32,
    /// The address by which peers call the first byte.
    to: u64,
    access: Access,
}

/// # Safety
/// The C contract: the region is live.
unsafe fn part_of(info: &ibv_mw_bind_info) -> Result<Part<'_>, i32> {
    const RIGHTS: u32 = IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_ZERO_BASED;
    if info.mw_access_flags & !(RIGHTS | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND) != 0 {
        return Err(EINVAL);
    }
    // SAFETY: the C contract.
    let region = unsafe { MrObject::of(info.mr) };
    let mr = region.mr().ok_or(EINVAL)?;
    let off = info.addr.checked_sub(mr.to()).and_then(|off| usize::try_from(off).ok());
    let (off, len) = (off.ok_or(EINVAL)?, u32::try_from(info.length).map_err(|_| EINVAL)?);
    let to = if info.mw_access_flags & IBV_ACCESS_ZERO_BASED == 0 { info.addr } else { 0 };
    let access = mr::access(info.mw_access_flags & RIGHTS);
    Ok(Part { region, mr, off, len, to, access })
}

/// # Safety
/// The C contract: the region is live.
unsafe fn show(mw: &MwObject, info: &ibv_mw_bind_info) -> Result<u32, i32> {
    let Kind::Type1(shown) = &mw.kind else { return Err(EINVAL) };
    let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
    if info.mr.is_null() || info.length == 0 {
        shown.window.unbind();
        shown._region = None;
        return Ok(mw.base.rkey);
    }
    // SAFETY: the C contract.
    let part = unsafe { part_of(info) }?;
    let bound = shown.window.bind(part.mr, (part.off, part.len), part.to, part.access);
    let bound = bound.map_err(errno::of_bind)?;
    // SAFETY: the region refuses to be unregistered while it has users.
    shown._region = Some(unsafe { User::new(&raw const part.region.users) });
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
    object: &QpObject,
    (wr_id, flags): (u64, u32),
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<(), i32> {
    // SAFETY: the C contract.
    let window = unsafe { mw.cast::<MwObject>().as_ref() }.ok_or(EINVAL)?;
    let Kind::Type2(held) = &window.kind else { return Err(EINVAL) };
    let stag = Stag(rkey);
    if held.stag(stag.key()) != stag || info.mr.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: the C contract.
    let part = unsafe { part_of(info) }?;
    // The peer of its queue pair may always invalidate a window of type 2.
    let access = part.access.with(Access::REMOTE_INVALIDATE);
    let op = SendOp::BindWindow(Bind { stag, to: part.to, access });
    let at = part.mr.to().saturating_add(part.off as u64);
    let memory = [Sge { stag: part.mr.stag(), len: part.len, to: at }];
    object.has_bound.store(true, Ordering::Release);
    post::post(object, &post::request(object, wr_id, flags, op, Data::Sges(&memory)))?;
    // SAFETY: a word of the structure, which the program does not use while it posts.
    unsafe { (*mw).rkey = rkey };
    Ok(())
}
