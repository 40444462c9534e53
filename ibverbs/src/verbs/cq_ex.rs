//! Extended completion queues: the program reads one completion at a time, field by field.

use std::ffi::{c_int, c_uint};
use std::mem::zeroed;
use std::sync::{MutexGuard, PoisonError};

use libc::{EINVAL, ENOENT, EOPNOTSUPP};

use super::cq::{self, CqObject};
use super::{object, query};
use crate::abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_BYTE_LEN,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    IBV_WC_EX_WITH_DLID_PATH_BITS, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL,
    IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_poll_cq_attr, ibv_wc,
};
use crate::memory::fork::wait_for_fork;

/// The completion that a program is reading, and the time when it was taken.
#[derive(Debug, Default)]
pub(crate) struct Current {
    completion: Option<ibv_wc>,
    /// Nanoseconds of the monotonic clock and of the wall clock.
    taken: [u64; 2],
}

/// Fields that every program may read: each has a value, even if iWARP knows only 0.
const FIELDS: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS;

const TIMES: u64 =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// # Safety
/// The C contract: `context` is open, `init` can be read and its channel is null or live.
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    object(|| {
        // SAFETY: the caller keeps the C contract.
        let init = unsafe { &*init };
        if init.wc_flags & !(FIELDS | TIMES) != 0
            || init.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
        {
            return Err(EOPNOTSUPP);
        }
        // Accept both flags: a queue has no overrun that could be ignored, because its queue pairs
        // end when it overruns; and completions are taken in the same way for one thread and for
        // several.
        let flags = if init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS == 0 { 0 } else { init.flags };
        if flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
            return Err(EINVAL);
        }
        if flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0 {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: the structure consists of pointers, integers and optional functions, for which
        // all zeros are valid.
        let mut base: ibv_cq_ex = unsafe { zeroed() };
        operations(&mut base, init.wc_flags);
        let given = (init.cq_context, init.channel);
        // SAFETY: the caller keeps the C contract.
        let made = unsafe { cq::create(context, init.cqe, given, init.comp_vector, base) }?;
        Ok(made.cast())
    })
}

fn operations(base: &mut ibv_cq_ex, fields: u64) {
    base.start_poll = Some(start_poll);
    base.next_poll = Some(next_poll);
    base.end_poll = Some(end_poll);
    base.read_opcode = Some(read_opcode);
    base.read_vendor_err = Some(read_vendor_err);
    base.read_wc_flags = Some(read_wc_flags);
    let has = |field: u64| fields & field != 0;
    base.read_byte_len = has(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len as _);
    base.read_imm_data = has(IBV_WC_EX_WITH_IMM).then_some(read_imm_data as _);
    base.read_qp_num = has(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num as _);
    base.read_src_qp = has(IBV_WC_EX_WITH_SRC_QP).then_some(read_zero as _);
    base.read_slid = has(IBV_WC_EX_WITH_SLID).then_some(read_zero as _);
    base.read_sl = has(IBV_WC_EX_WITH_SL).then_some(read_zero_byte as _);
    base.read_dlid_path_bits = has(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_zero_byte as _);
    base.read_completion_ts = has(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_ts as _);
    base.read_completion_wallclock_ns =
        has(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK).then_some(read_wallclock as _);
}

/// Returns the queue, and the completion that its program is reading.
///
/// # Safety
/// The C contract: `cq` is live for as long as `'a`.
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> (&'a CqObject, MutexGuard<'a, Current>) {
    // SAFETY: the caller keeps the C contract.
    let object = unsafe { CqObject::of(cq.cast()) };
    (object, object.current.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Takes the oldest completion for the program to read; `ENOENT` if there is none.
///
/// # Safety
/// The C contract: only one thread at a time reads completions of an extended queue.
unsafe fn take(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller keeps the C contract.
    let (object, mut current) = unsafe { current(cq) };
    let found = object.take_one().map(|cqe| cq::completion(&cqe));
    current.completion = found.or_else(|| object.flushed.pop());
    let Some(completion) = current.completion else { return ENOENT };
    wait_for_fork();
    // SAFETY: the block only tests whether the functions exist, which never changes.
    let times = unsafe {
        ((*cq).read_completion_ts.is_some(), (*cq).read_completion_wallclock_ns.is_some())
    };
    if times.0 {
        current.taken[0] = nanoseconds(libc::CLOCK_MONOTONIC);
    }
    if times.1 {
        current.taken[1] = nanoseconds(libc::CLOCK_REALTIME);
    }
    // SAFETY: the program reads these words of the structure only between its polls.
    unsafe {
        (*cq).wr_id = completion.wr_id;
        (*cq).status = completion.status;
    }
    0
}

fn nanoseconds(which: libc::clockid_t) -> u64 {
    let now = query::clock(which);
    let (seconds, rest) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    seconds.wrapping_mul(1_000_000_000).wrapping_add(rest)
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: by the C contract, the pointer is null or readable.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return EINVAL;
    }
    // SAFETY: the caller keeps the C contract.
    unsafe { take(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller keeps the C contract.
    unsafe { take(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller keeps the C contract.
    let (object, mut current) = unsafe { current(cq) };
    current.completion = None;
    // `ibv_poll_cq` does the same.
    object.cq.notify_of_rest();
}

/// Returns a field of the completion that the program is reading; 0 between polls.
///
/// # Safety
/// The caller keeps the C contract.
unsafe fn field<T: Default>(cq: *mut ibv_cq_ex, of: impl FnOnce(&ibv_wc) -> T) -> T {
    // SAFETY: the caller keeps the C contract.
    unsafe { current(cq) }.1.completion.as_ref().map(of).unwrap_or_default()
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller keeps the C contract.
    unsafe { field(cq, |c| c.opcode) }
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller keeps the C contract.
    unsafe { field(cq, |c| c.vendor_err) }
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller keeps the C contract.
    unsafe { field(cq, |c| c.byte_len) }
}

/// Returns the immediate data, or the invalidated rkey: the header reads both by this function.
unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller keeps the C contract.
    unsafe { field(cq, |c| c.imm_data) }
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller keeps the C contract.
    unsafe { field(cq, |c| c.qp_num) }
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: the caller keeps the C contract.
    unsafe { field(cq, |c| c.wc_flags) }
}

unsafe extern "C" fn read_zero(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_zero_byte(_cq: *mut ibv_cq_ex) -> u8 {
    0
}

unsafe extern "C" fn read_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the caller keeps the C contract.
    unsafe { current(cq) }.1.taken[0]
}

unsafe extern "C" fn read_wallclock(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the caller keeps the C contract.
    unsafe { current(cq) }.1.taken[1]
}
