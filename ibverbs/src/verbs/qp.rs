//! Queue pairs.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use heddle_socket::document::FaultKind;
use heddle_verbs::{DeviceError, Qp, QpInit, QpState};
use libc::{EINVAL, EOPNOTSUPP};

use super::cq::{CqObject, Events};
use super::device::Context;
use super::events::Key;
use super::pd::{PdObject, User};
use super::srq::SrqObject;
use super::wr::{self, Batch};
use super::{errno, number, object};
use crate::abi::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_SQD, IBV_QPT_RC, ibv_context, ibv_pd, ibv_qp, ibv_qp_cap,
    ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use crate::{memory, rnic};

/// A queue pair. Programs see an extended one as an `ibv_qp_ex`, whose first words are an
/// `ibv_qp`'s.
#[repr(C)]
pub(crate) struct QpObject {
    pub(super) base: ibv_qp_ex,
    pub(super) qp: Qp,
    pub(super) sig_all: bool,
    /// The state that the program requested last.
    pub(super) asked: AtomicI32,
    pub(super) cap: ibv_qp_cap,
    /// Requests between `ibv_wr_start` and `ibv_wr_complete`; `None` if the queue pair is not
    /// extended.
    pub(super) batch: Option<UnsafeCell<Batch>>,
    events: Events,
    /// True once the program has bound a window of type 2 with this queue pair.
    pub(super) has_bound: AtomicBool,
    /// The queue pair's uses of its protection domain, completion queues and shared receive queue.
    _uses: [Option<User>; 4],
}

impl QpObject {
    /// Returns the object of a program's pointer.
    ///
    /// # Safety
    /// The C contract: `qp` is live for as long as `'a`.
    #[inline]
    pub(super) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a QpObject {
        // SAFETY: the structure's words are the first words of a `QpObject`.
        unsafe { &*qp.cast::<QpObject>() }
    }

    /// Returns the queue for completions of its send queue.
    pub(super) fn send_cq(&self) -> &CqObject {
        // SAFETY: the completion queues outlive the queue pair, because they refuse to be destroyed
        // before it.
        unsafe { CqObject::of(self.base.qp_base.send_cq) }
    }

    /// Returns the queue for completions of its receive queue.
    pub(super) fn recv_cq(&self) -> &CqObject {
        // SAFETY: as above.
        unsafe { CqObject::of(self.base.qp_base.recv_cq) }
    }

    pub(super) fn context(&self) -> &Context {
        // SAFETY: by the C contract, a context outlives the objects made in it.
        unsafe { Context::of(self.base.qp_base.context) }
    }

    pub(super) fn events(&self) -> &Events {
        &self.events
    }
}

/// Inline bytes that every send queue accepts, even if its program asks for fewer. The kernel's
/// devices give more than programs ask for, and programs have come to count on that: `rdma_xclient`
/// asks for none and posts 16. A ring has room for this many beside the longest head.
const INLINE: u32 = 64;

/// Returns the capacities for the RNIC to make and for the program to see: at least those that the
/// program asked for.
fn capacities(asked: &ibv_qp_cap, shared: bool) -> Result<ibv_qp_cap, i32> {
    let fits = |n: u32| u16::try_from(n).is_ok();
    if ![asked.max_send_sge, asked.max_recv_sge, asked.max_inline_data].into_iter().all(fits) {
        return Err(EINVAL);
    }
    Ok(ibv_qp_cap {
        max_send_wr: asked.max_send_wr.max(1),
        max_recv_wr: if shared { 0 } else { asked.max_recv_wr.max(1) },
        max_send_sge: asked.max_send_sge.max(1),
        max_recv_sge: if shared { 0 } else { asked.max_recv_sge.max(1) },
        max_inline_data: asked.max_inline_data.max(INLINE),
    })
}

fn short(n: u32) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// # Safety
/// The C contract: `pd` and the queues of `init` are live.
unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    extended: bool,
) -> Result<*mut ibv_qp, i32> {
    if init.qp_type != IBV_QPT_RC {
        return Err(EOPNOTSUPP);
    }
    if init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: the caller keeps the C contract.
    let (domain, send_cq, recv_cq, srq) = unsafe {
        let srq = (!init.srq.is_null()).then(|| SrqObject::of(init.srq));
        (PdObject::of(pd), CqObject::of(init.send_cq), CqObject::of(init.recv_cq), srq)
    };
    let cap = capacities(&init.cap, srq.is_some())?;
    let device = &domain.context().device;
    let made = device.create_qp(
        domain.pd,
        QpInit {
            send_cq: send_cq.cq.clone(),
            recv_cq: recv_cq.cq.clone(),
            srq: srq.map(|srq| srq.srq.clone()),
            sq_depth: cap.max_send_wr,
            rq_depth: cap.max_recv_wr.max(1),
            max_send_sge: short(cap.max_send_sge),
            max_recv_sge: short(cap.max_recv_sge.max(1)),
            max_inline: short(cap.max_inline_data),
        },
    );
    let qp = made.map_err(|e| errno::of(&e))?;
    // SAFETY: the structure consists of pointers, integers and optional functions, for which all
    // zeros are valid.
    let mut base: ibv_qp_ex = unsafe { zeroed() };
    let seen = &mut base.qp_base;
    // SAFETY: the caller keeps the C contract.
    seen.context = unsafe { (*pd).context };
    (seen.qp_context, seen.pd, seen.srq) = (init.qp_context, pd, init.srq);
    (seen.send_cq, seen.recv_cq) = (init.send_cq, init.recv_cq);
    (seen.handle, seen.qp_num) = (qp.qpn().0, qp.qpn().0);
    (seen.state, seen.qp_type) = (IBV_QPS_RESET, IBV_QPT_RC);
    seen.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    seen.cond = libc::PTHREAD_COND_INITIALIZER;
    if extended {
        wr::operations(&mut base);
    }
    init.cap = cap;
    let number = qp.qpn().0;
    let uses =
        [Some(domain.user()), Some(send_cq.user()), Some(recv_cq.user()), srq.map(SrqObject::user)];
    let object = QpObject {
        base,
        qp,
        sig_all: init.sq_sig_all != 0,
        asked: AtomicI32::new(IBV_QPS_RESET),
        cap,
        batch: extended.then(|| UnsafeCell::new(Batch::new(&cap))),
        events: Events::default(),
        has_bound: AtomicBool::new(false),
        _uses: uses,
    };
    rnic::enter_qp(&object.qp, [object.send_cq().cq.clone(), object.recv_cq().cq.clone()]);
    let object = Box::into_raw(Box::new(object));
    domain.context().events.enter(Key::Qp(number), object.cast());
    Ok(object.cast())
}

/// Makes a queue pair, which starts in the state RESET.
///
/// # Safety
/// The C contract: `pd` is live, `init` can be read and written, its queues are live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller keeps the C contract.
    object(|| unsafe { create(pd, &mut *init, false) })
}

/// # Safety
/// The C contract: `init` can be read and written, its protection domain and queues are live.
pub(super) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const KNOWN: u32 =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    object(|| {
        // SAFETY: the caller keeps the C contract.
        let all = unsafe { &*init };
        let has = |bit: u32| all.comp_mask & bit != 0;
        let extended = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
        if all.comp_mask & !KNOWN != 0
            || has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && all.create_flags != 0
            || extended && all.send_ops_flags & !wr::OPERATIONS != 0
        {
            return Err(EOPNOTSUPP);
        }
        if !has(IBV_QP_INIT_ATTR_PD) || all.pd.is_null() {
            return Err(EINVAL);
        }
        let pd = all.pd;
        // SAFETY: the extended structure begins with the fields of the plain one, in their order.
        unsafe { create(pd, &mut *init.cast::<ibv_qp_init_attr>(), extended) }
    })
}

/// Returns the extended form of a queue pair; null if the queue pair was made without operations of
/// its own.
///
/// # Safety
/// The caller keeps the C contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller keeps the C contract.
    if unsafe { QpObject::of(qp) }.batch.is_some() { qp.cast() } else { std::ptr::null_mut() }
}

/// The longest time for the orderly end of a connection while its queue pair is destroyed, after
/// which the RNIC cuts it off.
const ORDERLY: Duration = Duration::from_millis(300);

/// The longest time that the RNIC may take for that, and for the end of windows. An RNIC of a busy
/// machine can be off its processors for seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The interval between looks at what the RNIC has done.
const LOOK: Duration = Duration::from_micros(50);

/// Makes the RNIC release a queue pair that the program destroys. Afterwards the RNIC writes nothing
/// to memory that the program may free, and no completion of the queue pair follows. Returns false
/// if the RNIC has not done that in time.
fn end(object: &QpObject) -> bool {
    let device = &object.context().device;
    let ended = |limit: Duration| comes_true(limit, || object.qp.has_ended());
    // If no worker has the queue pair, and the program has not moved it to ERR, it has nothing left
    // to complete.
    let asked = object.asked.load(Ordering::Acquire);
    let is_connected = matches!(object.qp.qp_state(), QpState::Rts | QpState::Connecting);
    let may_follow = is_connected || asked == IBV_QPS_ERR || object.qp.is_with_worker();
    if !may_follow || object.qp.has_ended() || asked == IBV_QPS_SQD && ended(ORDERLY) {
        return true;
    }
    // An RNIC with many requests refuses this one, and takes it later. Otherwise an error means that
    // the RNIC is gone, or that this process is a child of the one that made the queue pair.
    let until = Instant::now() + PATIENCE;
    loop {
        match device.fail_qp(&object.qp) {
            Ok(()) => return ended(PATIENCE),
            Err(e) if is_busy(&e) && Instant::now() < until => std::thread::sleep(LOOK),
            // The device's thread completes what was posted to an RNIC that is gone, perhaps only now.
            Err(_) => return object.qp.has_ended(),
        }
    }
}

/// Returns true if the RNIC may carry out the same request later.
fn is_busy(error: &DeviceError) -> bool {
    match error {
        DeviceError::Overloaded => true,
        DeviceError::Refused(fault) => fault.kind == FaultKind::Busy,
        _ => false,
    }
}

/// Ends the windows that the queue pair has bound. The RNIC ends them when it frees the queue pair
/// too, but it frees a queue pair when its last user has let go of it, and the program may unregister
/// the windows' region at once.
fn end_windows(object: &QpObject) {
    if !object.has_bound.load(Ordering::Acquire) {
        return;
    }
    let device = &object.context().device;
    // The end of the connection may still be on its way to this process. An RNIC that is gone has
    // no windows, and a child of the process that made the queue pair leaves them alone.
    comes_true(PATIENCE, || {
        use DeviceError::{Ended, ForeignQp, Gone, Socket};
        let refused = device.reset_qp(&object.qp).err();
        refused.is_none_or(|e| matches!(e, Gone | Ended { .. } | Socket(_) | ForeignQp(_)))
    });
}

/// Waits until `is_true` returns true, at most for `limit`. Returns false after that.
fn comes_true(limit: Duration, is_true: impl Fn() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !is_true() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// Destroys a queue pair after the program has acknowledged its events. Its completions that the
/// program has not polled are lost, and none follows.
///
/// # Safety
/// The caller keeps the C contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // The server of qperf destroys the queue pair of its identifier (`rdma_destroy_qp`) when it has
    // none any more.
    if qp.is_null() {
        return EINVAL;
    }
    number(|| {
        // SAFETY: the caller keeps the C contract.
        let object = unsafe { QpObject::of(qp) };
        rnic::remove_qp(object.qp.qpn());
        // The connection ends with the queue pair, and at once unless the program has asked for an
        // orderly end before.
        let lingers = !end(object);
        if lingers {
            memory::log(&format!("the RNIC has not ended queue pair {} in time", object.qp.qpn()));
        }
        end_windows(object);
        object.context().events.leave(Key::Qp(object.qp.qpn().0), qp.cast());
        object.events.settle();
        object.send_cq().forget(&object.qp, lingers);
        object.recv_cq().forget(&object.qp, lingers);
        // SAFETY: this is the box that `create` made.
        drop(unsafe { Box::from_raw(qp.cast::<QpObject>()) });
        Ok(())
    })
}
