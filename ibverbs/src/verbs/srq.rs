//! Shared receive queues.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use heddle_verbs::{RecvWr, Srq};
use libc::{EBUSY, EINVAL, EOPNOTSUPP};

use super::cq::Events;
use super::device::Context;
use super::events::Key;
use super::pd::{PdObject, User};
use super::post::{self, SgeRoom};
use super::{errno, number, object};
use crate::abi::{
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_BASIC,
    ibv_context, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex,
};

/// A shared receive queue and the counts of its users and events.
#[repr(C)]
pub(crate) struct SrqObject {
    base: ibv_srq,
    pub(super) srq: Srq,
    max_sge: u32,
    /// The limit that the program has armed; 0 if none is armed, as after the event.
    limit: AtomicU32,
    users: AtomicU32,
    events: Events,
    _pd: User,
}

impl SrqObject {
    /// Returns the object of a program's pointer.
    ///
    /// # Safety
    /// The C contract: `srq` is live for as long as `'a`.
    #[inline]
    pub(super) unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a SrqObject {
        // SAFETY: the structure is the first field of an `SrqObject`.
        unsafe { &*srq.cast::<SrqObject>() }
    }

    /// Counts one more queue pair that takes receives from the queue.
    pub(super) fn user(&self) -> User {
        // SAFETY: `ibv_destroy_srq` refuses while the queue has users.
        unsafe { User::new(&raw const self.users) }
    }

    /// Disarms the limit after its event.
    pub(super) fn limit_reached(&self) {
        self.limit.store(0, Ordering::Release);
    }

    pub(super) fn events(&self) -> &Events {
        &self.events
    }
}

fn create(
    pd: *mut ibv_pd,
    srq_context: *mut std::ffi::c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq, i32> {
    // SAFETY: each caller has `pd` by the C contract.
    let domain = unsafe { PdObject::of(pd) };
    let context = domain.context();
    let max_sge = u16::try_from(attr.max_sge.max(1)).map_err(|_| EINVAL)?;
    let made = context.device.create_srq(domain.pd, attr.max_wr, max_sge, None);
    let srq = made.map_err(|e| errno::of(&e))?;
    (attr.max_wr, attr.max_sge) = (srq.depth(), max_sge.into());
    let number = srq.number();
    let base = ibv_srq {
        // SAFETY: the caller keeps the C contract.
        context: unsafe { (*pd).context },
        srq_context,
        pd,
        handle: number,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let object = SrqObject {
        base,
        srq,
        max_sge: attr.max_sge,
        limit: AtomicU32::new(0),
        users: AtomicU32::new(0),
        events: Events::default(),
        _pd: domain.user(),
    };
    let object = Box::into_raw(Box::new(object));
    context.events.enter(Key::Srq(number), object.cast());
    Ok(object.cast())
}

/// Makes a shared receive queue.
///
/// # Safety
/// The C contract: `pd` is live, `init` can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    object(|| {
        // SAFETY: the caller keeps the C contract.
        let init = unsafe { &mut *init };
        create(pd, init.srq_context, &mut init.attr)
    })
}

/// # Safety
/// The C contract: `init` can be read and written, and its protection domain is live.
pub(super) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    object(|| {
        // SAFETY: the caller keeps the C contract.
        let init = unsafe { &mut *init };
        let has = |bit: u32| init.comp_mask & bit != 0;
        let is_basic = !has(IBV_SRQ_INIT_ATTR_TYPE) || init.srq_type == IBV_SRQT_BASIC;
        if init.comp_mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0 || !is_basic {
            return Err(EOPNOTSUPP);
        }
        if !has(IBV_SRQ_INIT_ATTR_PD) || init.pd.is_null() {
            return Err(EINVAL);
        }
        create(init.pd, init.srq_context, &mut init.attr)
    })
}

/// Arms a queue for its limit event. The size of the queue stays.
///
/// # Safety
/// The C contract: `attr` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    number(|| {
        // SAFETY: the caller keeps the C contract.
        let (object, attr) = unsafe { (SrqObject::of(srq), &*attr) };
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(EINVAL);
        }
        if mask & IBV_SRQ_MAX_WR != 0 {
            return Err(EOPNOTSUPP);
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            if attr.srq_limit > object.srq.depth() {
                return Err(EINVAL);
            }
            object.limit.store(attr.srq_limit, Ordering::Release);
            object.srq.arm_limit(attr.srq_limit);
        }
        Ok(())
    })
}

/// Reports the size of a queue, and its armed limit.
///
/// # Safety
/// The C contract: `attr` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    number(|| {
        // SAFETY: the caller keeps the C contract.
        let object = unsafe { SrqObject::of(srq) };
        let now = ibv_srq_attr {
            max_wr: object.srq.depth(),
            max_sge: object.max_sge,
            srq_limit: object.limit.load(Ordering::Acquire),
        };
        // SAFETY: the caller keeps the C contract.
        unsafe { attr.write(now) };
        Ok(())
    })
}

/// Destroys a queue that no queue pair uses.
///
/// # Safety
/// The caller keeps the C contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    number(|| {
        // SAFETY: the caller keeps the C contract.
        let object = unsafe { SrqObject::of(srq) };
        if object.users.load(Ordering::Acquire) != 0 {
            return Err(EBUSY);
        }
        // SAFETY: by the C contract, the context is open.
        let events = &unsafe { Context::of(object.base.context) }.events;
        events.leave(Key::Srq(object.srq.number()), srq.cast());
        object.events.settle();
        // SAFETY: this is the box that `create` made.
        drop(unsafe { Box::from_raw(srq.cast::<SrqObject>()) });
        Ok(())
    })
}

/// # Safety
/// The C contract: `out` can be written.
pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, out: *mut u32) -> c_int {
    // SAFETY: the caller keeps the C contract.
    unsafe { out.write(SrqObject::of(srq).srq.number()) };
    0
}

/// # Safety
/// The C contract: `wr` is a list of requests, `bad` can be written.
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller keeps the C contract.
    let object = unsafe { SrqObject::of(srq) };
    // SAFETY: by the C contract, each request of the list is readable.
    while let Some(request) = unsafe { wr.as_ref() } {
        let mut room = SgeRoom::new();
        // SAFETY: by the C contract, the request's list of pieces is readable.
        let posted = match unsafe { room.fill(request.sg_list, request.num_sge) } {
            Ok(sges) => {
                object.srq.post_recv(&RecvWr::new(request.wr_id, sges)).map_err(post::errno_of)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = posted {
            // SAFETY: the caller keeps the C contract.
            unsafe { bad.write(wr) };
            return error;
        }
        wr = request.next;
    }
    0
}
