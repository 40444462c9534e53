//! Posts work requests one by one: `ibv_wr_start`, `ibv_wr_send` and the like, `ibv_wr_complete`.
//!
//! The library stores the requests that a program describes between start and complete in room that
//! it allocates with the queue pair, and posts them at complete; until then `ibv_wr_abort` takes
//! them back. The thread holds a lock from start to complete, as the interface demands of every
//! device: only one thread at a time describes requests.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;

use heddle_verbs::{AtomicOp, Data, SendOp, SendWr, Sge, Stag};
use libc::{EINVAL, ENOMEM, EOPNOTSUPP};

use super::post::{self, MAX_INLINE, MAX_SGES};
use super::qp::QpObject;
use super::{caught, mw};
use crate::abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_INV,
    IBV_SEND_SOLICITED, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_cap, ibv_qp_ex, ibv_sge,
};
use crate::memory::fork::wait_for_fork;

/// Operations that a queue pair can offer.
pub(super) const OPERATIONS: u64 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_SEND_WITH_INV;

/// Requests that the program has described but not posted yet.
pub(crate) struct Batch {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    requests: Vec<Described>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// The errno of the first request that makes the batch invalid; 0 if none does.
    failed: c_int,
}

/// A described request. Its pieces, or its inline bytes, are a range of the batch's.
struct Described {
    wr_id: u64,
    flags: u32,
    what: What,
    data: Payload,
}

enum What {
    Op(SendOp),
    Bind(*mut ibv_mw, u32, ibv_mw_bind_info),
}

enum Payload {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl Batch {
    pub(super) fn new(cap: &ibv_qp_cap) -> Batch {
        let depth = cap.max_send_wr as usize;
        Batch {
            lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            requests: Vec::with_capacity(depth),
            sges: Vec::with_capacity(depth * cap.max_send_sge as usize),
            inline: Vec::with_capacity(depth * cap.max_inline_data as usize),
            failed: 0,
        }
    }

    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.failed = 0;
    }

    fn fail(&mut self, errno: c_int) {
        if self.failed == 0 {
            self.failed = errno;
        }
    }
}

/// Returns the batch of a queue pair, which the calling thread has locked by `ibv_wr_start`.
///
/// # Safety
/// The C contract: the thread is between start and complete, and `'a` ends before complete.
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> Option<&'a mut Batch> {
    // SAFETY: the caller keeps the C contract.
    let object = unsafe { QpObject::of(qp.cast()) };
    // SAFETY: the thread has the lock of the batch.
    object.batch.as_ref().map(|batch| unsafe { &mut *batch.get() })
}

pub(super) fn operations(base: &mut ibv_qp_ex) {
    base.wr_start = Some(wr_start);
    base.wr_complete = Some(wr_complete);
    base.wr_abort = Some(wr_abort);
    base.wr_rdma_write = Some(wr_rdma_write);
    base.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    base.wr_rdma_read = Some(wr_rdma_read);
    base.wr_send = Some(wr_send);
    base.wr_send_inv = Some(wr_send_inv);
    base.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    base.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    base.wr_local_inv = Some(wr_local_inv);
    base.wr_bind_mw = Some(wr_bind_mw);
    base.wr_set_sge = Some(wr_set_sge);
    base.wr_set_sge_list = Some(wr_set_sge_list);
    base.wr_set_inline_data = Some(wr_set_inline_data);
    base.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    // A program that did not request these operations should not call them; if it does, `complete`
    // fails.
    base.wr_send_imm = Some(wr_send_imm);
    base.wr_send_tso = Some(wr_send_tso);
    base.wr_set_ud_addr = Some(wr_set_ud_addr);
    base.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    base.wr_atomic_write = Some(wr_atomic_write);
}

/// # Safety
/// The caller keeps the C contract.
unsafe fn lock_of(qp: *mut ibv_qp_ex) -> Option<*mut libc::pthread_mutex_t> {
    // SAFETY: the caller keeps the C contract.
    let object = unsafe { QpObject::of(qp.cast()) };
    // SAFETY: the block makes no reference to the batch, only a pointer to its lock.
    object
        .batch
        .as_ref()
        .map(|batch| unsafe { UnsafeCell::raw_get(&raw const (*batch.get()).lock) })
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller keeps the C contract; the mutex lives as long as the queue pair.
    unsafe {
        if let Some(lock) = lock_of(qp) {
            libc::pthread_mutex_lock(lock);
        }
        if let Some(batch) = batch(qp) {
            batch.clear();
        }
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: by the C contract, this thread has the lock.
    unsafe {
        if let Some(lock) = lock_of(qp) {
            libc::pthread_mutex_unlock(lock);
        }
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let posted = caught(libc::EIO, || {
        // SAFETY: the caller keeps the C contract.
        let object = unsafe { QpObject::of(qp.cast()) };
        // SAFETY: this thread has the lock of the batch.
        let Some(batch) = (unsafe { batch(qp) }) else { return EINVAL };
        if batch.failed != 0 {
            return batch.failed;
        }
        if !post::is_posting(object) {
            return EINVAL;
        }
        wait_for_fork();
        post_batch(object, batch).err().unwrap_or(0)
    });
    // SAFETY: as above.
    unsafe { wr_abort(qp) };
    posted
}

/// Posts the described requests, with one doorbell for each run of requests between binds.
fn post_batch(object: &QpObject, batch: &Batch) -> Result<(), i32> {
    let mut left = batch.requests.as_slice();
    while let Some((first, others)) = left.split_first() {
        if matches!(first.what, What::Bind(..)) {
            post_described(object, batch, first)?;
            left = others;
            continue;
        }
        let is_bind = |r: &Described| matches!(r.what, What::Bind(..));
        let (run, rest) = left.split_at(left.iter().position(is_bind).unwrap_or(left.len()));
        let mut sends = object.qp.sends();
        let mut put = |wr: &SendWr<'_>| sends.post(wr).map_err(post::errno_of);
        let failed = run.iter().try_for_each(|r| make(object, batch, r, &mut put));
        if let Err(ended) = sends.finish() {
            // The library completes as flushed the requests that the RNIC has not accepted.
            let lost = left.get(ended.posted..).unwrap_or_default();
            return lost.iter().try_for_each(|r| post_described(object, batch, r));
        }
        failed?;
        left = rest;
    }
    Ok(())
}

fn post_described(object: &QpObject, batch: &Batch, described: &Described) -> Result<(), i32> {
    make(object, batch, described, |wr| post::post(object, wr))
}

/// Converts a request to the RNIC's form and passes it to `put`; posts a bind directly.
fn make(
    object: &QpObject,
    batch: &Batch,
    described: &Described,
    put: impl FnOnce(&SendWr<'_>) -> Result<(), i32>,
) -> Result<(), i32> {
    let Described { wr_id, flags, what, data } = described;
    let data = match data {
        Payload::Sges(range) => Data::Sges(batch.sges.get(range.clone()).ok_or(EINVAL)?),
        Payload::Inline(range) => Data::Inline(batch.inline.get(range.clone()).ok_or(EINVAL)?),
    };
    match what {
        What::Op(op) => put(&post::request(object, *wr_id, *flags, *op, data)),
        // SAFETY: by the C contract, the window and its region are live until complete.
        What::Bind(mw, rkey, info) => unsafe {
            mw::bind_by_request(object, (*wr_id, *flags), *mw, *rkey, info)
        },
    }
}

/// Begins a request with the `wr_id` and flags that the program has set.
///
/// # Safety
/// The caller keeps the C contract.
unsafe fn begin(qp: *mut ibv_qp_ex, what: impl FnOnce(bool) -> What) {
    caught((), || {
        // SAFETY: by the C contract, the program sets these words before each request.
        let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
        // SAFETY: the caller keeps the C contract.
        let Some(batch) = (unsafe { batch(qp) }) else { return };
        if batch.requests.len() == batch.requests.capacity() {
            return batch.fail(ENOMEM);
        }
        let what = what(flags & IBV_SEND_SOLICITED != 0);
        batch.requests.push(Described { wr_id, flags, what, data: Payload::Sges(0..0) });
    });
}

/// Refuses a request that this device does not support.
///
/// # Safety
/// The caller keeps the C contract.
unsafe fn refuse(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller keeps the C contract.
    if let Some(batch) = unsafe { batch(qp) } {
        batch.fail(EOPNOTSUPP);
    }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, to: u64) {
    // SAFETY: the caller keeps the C contract.
    unsafe { begin(qp, |_| What::Op(SendOp::Write { stag: Stag(rkey), to })) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, to: u64, imm: u32) {
    let (stag, data) = (Stag(rkey), u32::from_be(imm).into());
    let op = |solicited| What::Op(SendOp::WriteImmediate { stag, to, data, solicited });
    // SAFETY: the caller keeps the C contract.
    unsafe { begin(qp, op) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, to: u64) {
    // SAFETY: the caller keeps the C contract.
    unsafe { begin(qp, |_| What::Op(SendOp::Read { stag: Stag(rkey), to })) };
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller keeps the C contract.
    unsafe { begin(qp, |solicited| What::Op(SendOp::Send { solicited, invalidate: None })) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    let invalidate = Some(Stag(rkey));
    // SAFETY: the caller keeps the C contract.
    unsafe { begin(qp, |solicited| What::Op(SendOp::Send { solicited, invalidate })) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    to: u64,
    compare: u64,
    swap: u64,
) {
    let op = AtomicOp::CmpSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX };
    // SAFETY: the caller keeps the C contract.
    unsafe { begin(qp, |_| What::Op(SendOp::Atomic { stag: Stag(rkey), to, op })) };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, to: u64, add: u64) {
    let op = AtomicOp::FetchAdd { add, mask: 0 };
    // SAFETY: the caller keeps the C contract.
    unsafe { begin(qp, |_| What::Op(SendOp::Atomic { stag: Stag(rkey), to, op })) };
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the caller keeps the C contract.
    unsafe { begin(qp, |_| What::Op(SendOp::LocalInvalidate { stag: Stag(rkey) })) };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: by the C contract, `info` is readable.
    unsafe { begin(qp, |_| What::Bind(mw, rkey, *info)) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, _imm: u32) {
    // SAFETY: the caller keeps the C contract.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _header: *mut c_void, _len: u16, _mss: u16) {
    // SAFETY: the caller keeps the C contract.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, _ah: *mut c_void, _qpn: u32, _key: u32) {
    // SAFETY: the caller keeps the C contract.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, _srqn: u32) {
    // SAFETY: the caller keeps the C contract.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, _rkey: u32, _to: u64, _p: *const c_void) {
    // SAFETY: the caller keeps the C contract.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let piece = ibv_sge { addr, length, lkey };
    // SAFETY: `piece` is one live piece.
    unsafe { wr_set_sge_list(qp, 1, &raw const piece) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    caught((), || {
        // SAFETY: the caller keeps the C contract.
        let Some(batch) = (unsafe { batch(qp) }) else { return };
        let first = batch.sges.len();
        if count > MAX_SGES || count > batch.sges.capacity() - first {
            return batch.fail(EINVAL);
        }
        for i in 0..count {
            // SAFETY: by the C contract, the list is readable.
            let from = unsafe { &*list.add(i) };
            batch.sges.push(Sge { stag: Stag(from.lkey), len: from.length, to: from.addr });
        }
        let range = first..batch.sges.len();
        match batch.requests.last_mut() {
            Some(request) => request.data = Payload::Sges(range),
            None => batch.fail(EINVAL),
        }
    });
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let piece = ibv_data_buf { addr, length };
    // SAFETY: `piece` is one live piece.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const piece) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    caught((), || {
        // SAFETY: the caller keeps the C contract.
        let Some(batch) = (unsafe { batch(qp) }) else { return };
        let first = batch.inline.len();
        for i in 0..count {
            // SAFETY: by the C contract, the list is readable.
            let from = unsafe { &*list.add(i) };
            let len = batch.inline.len();
            let left = (MAX_INLINE - (len - first)).min(batch.inline.capacity() - len);
            if from.length > left {
                return batch.fail(EINVAL);
            }
            // SAFETY: by the C contract, each piece is readable. The batch has room, so the call
            // allocates nothing.
            batch.inline.extend_from_slice(unsafe {
                std::slice::from_raw_parts(from.addr.cast::<u8>(), from.length)
            });
        }
        let range = first..batch.inline.len();
        match batch.requests.last_mut() {
            Some(request) => request.data = Payload::Inline(range),
            None => batch.fail(EINVAL),
        }
    });
}
