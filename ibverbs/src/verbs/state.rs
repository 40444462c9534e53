//! States of a queue pair: `ibv_modify_qp` and `ibv_query_qp`.
//!
//! In iWARP, a connection moves a queue pair from INIT to RTS, and the connection's end moves it on
//! to ERR. Programs request INIT before connecting, RESET and ERR whenever they like, and SQD to
//! end sending; the library grants a request for the state that the connection has brought about.

use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use heddle_verbs::{DeviceError, QpState};
use libc::{EBUSY, EINVAL, EOPNOTSUPP};

use super::qp::QpObject;
use super::{errno, number};
use crate::abi::{
    IBV_QP_CAP, IBV_QP_CUR_STATE, IBV_QP_DEST_QPN, IBV_QP_RATE_LIMIT, IBV_QP_STATE, IBV_QPS_ERR,
    IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr,
};

/// Returns the state that a program sees.
pub(super) fn current(object: &QpObject) -> c_int {
    let asked = object.asked.load(Ordering::Acquire);
    match object.qp.qp_state() {
        _ if asked == IBV_QPS_ERR => IBV_QPS_ERR,
        QpState::Init => asked,
        QpState::Connecting => IBV_QPS_INIT,
        QpState::Rts if asked == IBV_QPS_SQD => IBV_QPS_SQD,
        QpState::Rts => IBV_QPS_RTS,
        QpState::Closing => IBV_QPS_SQD,
        QpState::Terminate => IBV_QPS_SQE,
        QpState::Error => IBV_QPS_ERR,
    }
}

/// Returns true if a program may request the state `next` in the state `now`.
fn is_allowed(now: c_int, next: c_int) -> bool {
    match next {
        IBV_QPS_RESET | IBV_QPS_ERR => true,
        IBV_QPS_INIT => matches!(now, IBV_QPS_RESET | IBV_QPS_INIT),
        // The connection itself brings about RTS, and RTR needs no work: librdmacm requests RTR
        // before it accepts.
        IBV_QPS_RTR => matches!(now, IBV_QPS_INIT | IBV_QPS_RTS),
        IBV_QPS_RTS => matches!(now, IBV_QPS_RTS | IBV_QPS_SQD),
        IBV_QPS_SQD => matches!(now, IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE | IBV_QPS_ERR),
        _ => false,
    }
}

/// Requests a state, and accepts attributes that iWARP does not use.
///
/// # Safety
/// The C contract: `attr` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    /// The mask of all attributes of the interface that are no extensions.
    const STANDARD: c_int = (IBV_QP_DEST_QPN << 1) - 1;
    number(|| {
        // SAFETY: the caller keeps the C contract.
        let (object, attr) = unsafe { (QpObject::of(qp), &*attr) };
        if mask & !(STANDARD | IBV_QP_RATE_LIMIT) != 0 {
            return Err(EINVAL);
        }
        // Queues cannot change their size, and there is only one rate.
        if mask & (IBV_QP_CAP | IBV_QP_RATE_LIMIT) != 0 {
            return Err(EOPNOTSUPP);
        }
        let now = current(object);
        if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != now {
            return Err(EINVAL);
        }
        if mask & IBV_QP_STATE == 0 {
            return Ok(());
        }
        if !is_allowed(now, attr.qp_state) {
            return Err(EINVAL);
        }
        transition(object, attr.qp_state)?;
        // SAFETY: the program only reads this word of the structure.
        unsafe { (*qp).state = current(object) };
        Ok(())
    })
}

fn transition(object: &QpObject, next: c_int) -> Result<(), i32> {
    match next {
        IBV_QPS_RESET => {
            reset(object)?;
            object.send_cq().forget(&object.qp, false);
            object.recv_cq().forget(&object.qp, false);
            object.asked.store(IBV_QPS_RESET, Ordering::Release);
        }
        IBV_QPS_ERR => {
            object.context().device.fail_qp(&object.qp).map_err(|e| errno::of(&e))?;
            object.asked.store(IBV_QPS_ERR, Ordering::Release);
        }
        // In ERR the connection is over already, so the state stays ERR.
        IBV_QPS_SQD if object.asked.load(Ordering::Acquire) == IBV_QPS_ERR => {}
        IBV_QPS_INIT | IBV_QPS_SQD => object.asked.store(next, Ordering::Release),
        IBV_QPS_RTS => object.asked.store(IBV_QPS_INIT, Ordering::Release),
        _ => {}
    }
    Ok(())
}

/// Empties a queue pair. If it has a connection, ends that first, which takes a few turns of its
/// worker.
fn reset(object: &QpObject) -> Result<(), i32> {
    let device = &object.context().device;
    let mut until = None;
    loop {
        match device.reset_qp(&object.qp) {
            Err(DeviceError::QpState(_) | DeviceError::QpInUse) => {
                if until.is_none() {
                    device.fail_qp(&object.qp).map_err(|e| errno::of(&e))?;
                }
                let end = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
                if Instant::now() >= end {
                    return Err(EBUSY);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done.map_err(|e| errno::of(&e)),
        }
    }
}

/// The longest time for a connection to end when its queue pair is reset: longer than any needs on
/// a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reports the state of a queue pair, and the attributes that it was made with.
///
/// # Safety
/// The C contract: `attr` and `init` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    number(|| {
        // SAFETY: the caller keeps the C contract.
        let object = unsafe { QpObject::of(qp) };
        let state = current(object);
        // SAFETY: the structure consists of integers, for which all zeros are valid.
        let mut now: ibv_qp_attr = unsafe { zeroed() };
        (now.qp_state, now.cur_qp_state) = (state, state);
        now.cap = object.cap;
        now.port_num = super::query::PORT;
        let base = &object.base.qp_base;
        let made = ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: object.cap,
            qp_type: base.qp_type,
            sq_sig_all: object.sig_all.into(),
        };
        // SAFETY: the caller keeps the C contract; the program only reads the state's word.
        unsafe {
            attr.write(now);
            init.write(made);
            (*qp).state = state;
        }
        Ok(())
    })
}
