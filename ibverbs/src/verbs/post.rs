//! Posts lists of work requests: `ibv_post_send` and `ibv_post_recv`.
//!
//! This module allocates nothing, and waits only for the lock of the queue. No thread waits for
//! anything else while it holds that lock.
#![expect(clippy::cast_possible_truncation, reason = "addresses of a 64-bit program have 64 bits")]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use heddle_verbs::{AtomicOp, Data, PostError, Qp, Queue, RecvWr, SendOp, SendWr, Sge, Stag};
use libc::{EINVAL, ENOMEM, EOPNOTSUPP};

use super::qp::QpObject;
use super::{mw, state};
use crate::abi::{
    IBV_QPS_RESET, IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
    IBV_WC_BIND_MW, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_LOCAL_INV, IBV_WC_RDMA_READ,
    IBV_WC_RDMA_WRITE, IBV_WC_RECV, IBV_WC_SEND, IBV_WC_WR_FLUSH_ERR, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_INV, ibv_qp,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};
use crate::memory::fork::wait_for_fork;

/// Most pieces (scatter/gather elements) of one request.
pub(super) const MAX_SGES: usize = 16;

/// Most inline bytes of one request.
pub(super) const MAX_INLINE: usize = 512;

/// Room for the pieces of one request, in the RNIC's form.
pub(super) struct SgeRoom([MaybeUninit<Sge>; MAX_SGES]);

impl SgeRoom {
    #[inline]
    pub(super) fn new() -> SgeRoom {
        SgeRoom([const { MaybeUninit::uninit() }; MAX_SGES])
    }

    /// Converts the pieces of a program's list.
    ///
    /// # Errors
    /// Returns `EINVAL` if the list has more pieces than a request can have.
    ///
    /// # Safety
    /// `list` is readable for `count` pieces.
    #[inline]
    pub(super) unsafe fn fill(
        &mut self,
        list: *const ibv_sge,
        count: c_int,
    ) -> Result<&[Sge], i32> {
        let take = |from: &ibv_sge| Sge { stag: Stag(from.lkey), len: from.length, to: from.addr };
        if count == 1 {
            // Most requests have one piece: handle it without the cost of a loop. SAFETY: the list
            // has one piece.
            return Ok(std::slice::from_ref(self.0[0].write(take(unsafe { &*list }))));
        }
        let count = usize::try_from(count).ok().filter(|n| *n <= MAX_SGES).ok_or(EINVAL)?;
        for (i, to) in self.0.iter_mut().enumerate().take(count) {
            // SAFETY: the index is within the list.
            to.write(take(unsafe { &*list.add(i) }));
        }
        // SAFETY: the loop above has written the first `count` pieces.
        Ok(unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<Sge>(), count) })
    }
}

/// Room for the inline bytes of one request.
pub(super) struct InlineRoom([MaybeUninit<u8>; MAX_INLINE]);

impl InlineRoom {
    #[inline]
    pub(super) fn new() -> InlineRoom {
        InlineRoom([const { MaybeUninit::uninit() }; MAX_INLINE])
    }

    /// Copies the bytes of a program's list, one piece after the other.
    ///
    /// # Errors
    /// Returns `EINVAL` if the pieces are longer than the inline data of any request.
    ///
    /// # Safety
    /// `list` is readable for `count` pieces, and so is the memory of each.
    #[inline]
    unsafe fn fill(&mut self, list: *const ibv_sge, count: c_int) -> Result<&[u8], i32> {
        let count = usize::try_from(count).map_err(|_| EINVAL)?;
        let mut len = 0;
        for i in 0..count {
            // SAFETY: the index is within the list.
            let piece = unsafe { &*list.add(i) };
            let from = std::ptr::with_exposed_provenance::<u8>(piece.addr as usize);
            // SAFETY: the program says that the piece is readable.
            unsafe { self.append(&mut len, from, piece.length as usize) }?;
        }
        // SAFETY: the loop above has written the first `len` bytes.
        Ok(unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>(), len) })
    }

    /// # Safety
    /// `from` is readable for `count` bytes.
    #[inline]
    unsafe fn append(&mut self, len: &mut usize, from: *const u8, count: usize) -> Result<(), i32> {
        if count > MAX_INLINE - *len {
            return Err(EINVAL);
        }
        // SAFETY: the caller says that `from` is readable, and the check above found room.
        unsafe {
            let to = self.0.as_mut_ptr().add(*len).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, to, count);
        }
        *len += count;
        Ok(())
    }
}

/// Returns the errno of a refused request.
#[inline]
pub(super) fn errno_of(error: PostError) -> c_int {
    if error == PostError::Full { ENOMEM } else { EINVAL }
}

/// Returns the operation of a request of an unusual kind.
///
/// # Safety
/// The C contract: the union of the request holds the member for its opcode.
#[inline]
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOp, i32> {
    let solicited = wr.send_flags & IBV_SEND_SOLICITED != 0;
    // SAFETY: every member of the union consists of integers, so any bytes are valid.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let (stag, to) = (Stag(rdma.rkey), rdma.remote_addr);
    Ok(match wr.opcode {
        IBV_WR_SEND_WITH_INV => SendOp::Send { solicited, invalidate: Some(Stag(wr.imm_data)) },
        IBV_WR_RDMA_WRITE_WITH_IMM => {
            let data = u32::from_be(wr.imm_data).into();
            SendOp::WriteImmediate { stag, to, data, solicited }
        }
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            let (compare, swap) = (atomic.compare_add, atomic.swap);
            let op =
                AtomicOp::CmpSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX };
            SendOp::Atomic { stag: Stag(atomic.rkey), to, op }
        }
        IBV_WR_ATOMIC_FETCH_AND_ADD => {
            let op = AtomicOp::FetchAdd { add: atomic.compare_add, mask: 0 };
            SendOp::Atomic { stag: Stag(atomic.rkey), to, op }
        }
        IBV_WR_LOCAL_INV => SendOp::LocalInvalidate { stag: Stag(wr.imm_data) },
        // A Send has no room for immediate data: RFC 7306 sends it as a message of its own.
        _ => return Err(EOPNOTSUPP),
    })
}

/// Posts one request.
///
/// # Safety
/// The C contract: the request's lists are readable.
#[inline]
unsafe fn post_one(object: &QpObject, wr: &ibv_send_wr) -> Result<(), i32> {
    // SAFETY: the caller keeps the C contract.
    unsafe {
        match wr.opcode {
            IBV_WR_BIND_MW => mw::post_bind(object, wr),
            _ => make(object, wr, |wr| post(object, wr)),
        }
    }
}

/// Converts a request to the RNIC's form and passes it to `put`.
///
/// # Safety
/// The conditions of [`post_one`].
#[inline(always)]
unsafe fn make(
    object: &QpObject,
    wr: &ibv_send_wr,
    put: impl FnOnce(&SendWr<'_>) -> Result<(), i32>,
) -> Result<(), i32> {
    // SAFETY: every member of the union consists of integers, so any bytes are valid.
    let rdma = unsafe { wr.wr.rdma };
    let (stag, to) = (Stag(rdma.rkey), rdma.remote_addr);
    let solicited = wr.send_flags & IBV_SEND_SOLICITED != 0;
    // Handle each usual kind by itself, so that the compiler knows the form of the request. SAFETY:
    // the caller keeps the C contract.
    unsafe {
        match wr.opcode {
            IBV_WR_RDMA_WRITE => make_as(object, wr, SendOp::Write { stag, to }, put),
            IBV_WR_RDMA_READ => make_as(object, wr, SendOp::Read { stag, to }, put),
            IBV_WR_SEND => make_as(object, wr, SendOp::Send { solicited, invalidate: None }, put),
            _ => make_other(object, wr, put),
        }
    }
}

/// # Safety
/// The conditions of [`post_one`].
#[inline(never)]
unsafe fn make_other(
    object: &QpObject,
    wr: &ibv_send_wr,
    put: impl FnOnce(&SendWr<'_>) -> Result<(), i32>,
) -> Result<(), i32> {
    // SAFETY: the caller keeps the C contract.
    unsafe { make_as(object, wr, operation(wr)?, put) }
}

/// Builds a request that performs `op`, and passes it to `put`.
///
/// # Safety
/// The conditions of [`post_one`].
#[inline(always)]
unsafe fn make_as(
    object: &QpObject,
    wr: &ibv_send_wr,
    op: SendOp,
    put: impl FnOnce(&SendWr<'_>) -> Result<(), i32>,
) -> Result<(), i32> {
    let (mut sges, mut inline);
    let data = if wr.send_flags & IBV_SEND_INLINE == 0 {
        sges = SgeRoom::new();
        // SAFETY: the caller keeps the C contract.
        Data::Sges(unsafe { sges.fill(wr.sg_list, wr.num_sge) }?)
    } else {
        inline = InlineRoom::new();
        // SAFETY: the caller keeps the C contract.
        Data::Inline(unsafe { inline.fill(wr.sg_list, wr.num_sge) }?)
    };
    put(&request(object, wr.wr_id, wr.send_flags, op, data))
}

/// Builds a request with these flags.
#[inline]
pub(super) fn request<'a>(
    object: &QpObject,
    wr_id: u64,
    flags: u32,
    op: SendOp,
    data: Data<'a>,
) -> SendWr<'a> {
    SendWr {
        wr_id,
        op,
        data,
        signaled: object.sig_all || flags & IBV_SEND_SIGNALED != 0,
        fence: flags & IBV_SEND_FENCE != 0,
    }
}

/// Posts a request in the RNIC's form.
#[inline]
pub(super) fn post(object: &QpObject, wr: &SendWr<'_>) -> Result<(), i32> {
    match object.qp.post_send(wr) {
        Ok(()) => Ok(()),
        Err(PostError::Ended) => flush(object, Queue::Sq, wr.wr_id, opcode_of(&wr.op)),
        Err(error) => Err(errno_of(error)),
    }
}

/// Returns the opcode of a request's completion.
fn opcode_of(op: &SendOp) -> c_int {
    match op {
        SendOp::Send { .. } | SendOp::Immediate { .. } => IBV_WC_SEND,
        SendOp::Write { .. } | SendOp::WriteImmediate { .. } => IBV_WC_RDMA_WRITE,
        SendOp::Read { .. } => IBV_WC_RDMA_READ,
        SendOp::Atomic { op: AtomicOp::CmpSwap { .. }, .. } => IBV_WC_COMP_SWAP,
        SendOp::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => IBV_WC_FETCH_ADD,
        SendOp::FastRegister(_) | SendOp::BindWindow(_) => IBV_WC_BIND_MW,
        SendOp::LocalInvalidate { .. } => IBV_WC_LOCAL_INV,
    }
}

/// Builds a completion that the library itself writes.
pub(super) fn completion(qp: &Qp, wr_id: u64, opcode: c_int, status: c_int) -> ibv_wc {
    ibv_wc {
        wr_id,
        status,
        opcode,
        vendor_err: 0,
        byte_len: 0,
        imm_data: 0,
        qp_num: qp.qpn().0,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// Completes as flushed a request that the RNIC refuses because the connection is over.
#[cold]
pub(super) fn flush(object: &QpObject, queue: Queue, wr_id: u64, opcode: c_int) -> Result<(), i32> {
    let cq = match queue {
        Queue::Sq => object.send_cq(),
        Queue::Rq => object.recv_cq(),
    };
    if !cq.flushed.push(completion(&object.qp, wr_id, opcode, IBV_WC_WR_FLUSH_ERR)) {
        return Err(ENOMEM);
    }
    cq.cq.notify();
    Ok(())
}

/// Returns true if the program may post requests. In RESET it may not: the RNIC empties that
/// state's queues without completions. A connection takes a queue pair out of RESET, even if its
/// program has asked for no other state.
#[inline]
pub(super) fn is_posting(object: &QpObject) -> bool {
    object.asked.load(Ordering::Relaxed) != IBV_QPS_RESET || state::current(object) != IBV_QPS_RESET
}

/// # Safety
/// The C contract: `wr` is a list of requests, `bad` can be written.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller keeps the C contract.
    let (object, first) = unsafe { (QpObject::of(qp), wr.as_ref()) };
    let Some(first) = first else { return 0 };
    wait_for_fork();
    let posted = if !is_posting(object) {
        Err((wr, EINVAL))
    } else if first.next.is_null() {
        // SAFETY: the caller keeps the C contract.
        unsafe { post_one(object, first) }.map_err(|error| (wr, error))
    } else {
        // SAFETY: the caller keeps the C contract.
        unsafe { post_list(object, wr) }
    };
    let Err((which, error)) = posted else { return 0 };
    // SAFETY: the caller keeps the C contract.
    unsafe { bad.write(which) };
    error
}

/// Posts a list with one doorbell for each run of requests between binds, because binds are posted
/// in another way. Returns the first request that could not be posted, and the reason.
///
/// # Safety
/// The C contract: each request of the list is readable.
#[inline(never)]
unsafe fn post_list(
    object: &QpObject,
    mut wr: *mut ibv_send_wr,
) -> Result<(), (*mut ibv_send_wr, i32)> {
    // SAFETY: the caller keeps the C contract.
    while let Some(first) = unsafe { wr.as_ref() } {
        if first.opcode == IBV_WR_BIND_MW {
            // SAFETY: the caller keeps the C contract.
            unsafe { mw::post_bind(object, first) }.map_err(|error| (wr, error))?;
            wr = first.next;
            continue;
        }
        let (mut next, mut failed) = (wr, None);
        let mut sends = object.qp.sends();
        // SAFETY: the caller keeps the C contract.
        while let Some(request) = unsafe { next.as_ref() }
            && request.opcode != IBV_WR_BIND_MW
        {
            let put = |wr: &SendWr<'_>| sends.post(wr).map_err(errno_of);
            // SAFETY: the caller keeps the C contract.
            if let Err(error) = unsafe { make(object, request, put) } {
                failed = Some((next, error));
                break;
            }
            next = request.next;
        }
        if let Err(ended) = sends.finish() {
            // SAFETY: at least as many requests were posted, so the list has them.
            let lost = unsafe { nth(wr, ended.posted, |wr| wr.next) };
            // SAFETY: the caller keeps the C contract.
            return unsafe { post_each(object, lost) };
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        wr = next;
    }
    Ok(())
}

/// Posts requests after the RNIC has stopped accepting any: each completes as flushed.
///
/// # Safety
/// The C contract: each request of the list is readable.
#[cold]
unsafe fn post_each(
    object: &QpObject,
    mut wr: *mut ibv_send_wr,
) -> Result<(), (*mut ibv_send_wr, i32)> {
    // SAFETY: the caller keeps the C contract.
    while let Some(request) = unsafe { wr.as_ref() } {
        // SAFETY: the caller keeps the C contract.
        unsafe { post_one(object, request) }.map_err(|error| (wr, error))?;
        wr = request.next;
    }
    Ok(())
}

/// Returns the entry of a list that has `n` entries before it.
///
/// # Safety
/// The list has these `n` entries, and they are readable.
unsafe fn nth<T>(first: *mut T, n: usize, next: impl Fn(&T) -> *mut T) -> *mut T {
    // SAFETY: the caller says that the entries are readable.
    (0..n).fold(first, |at, _| next(unsafe { &*at }))
}

/// # Safety
/// The C contract: `wr` is a list of requests, `bad` can be written.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller keeps the C contract.
    let (object, first) = unsafe { (QpObject::of(qp), wr.as_ref()) };
    let Some(first) = first else { return 0 };
    let posted = if !is_posting(object) {
        Err((wr, EINVAL))
    } else if first.next.is_null() {
        // SAFETY: the caller keeps the C contract.
        unsafe { receive(object, first) }.map_err(|error| (wr, error))
    } else {
        // SAFETY: the caller keeps the C contract.
        unsafe { receive_list(object, wr) }
    };
    let Err((which, error)) = posted else { return 0 };
    // SAFETY: the caller keeps the C contract.
    unsafe { bad.write(which) };
    error
}

/// Posts a list of receives as [`post_list`] does requests.
///
/// # Safety
/// The C contract: each request of the list is readable.
#[inline(never)]
unsafe fn receive_list(
    object: &QpObject,
    first: *mut ibv_recv_wr,
) -> Result<(), (*mut ibv_recv_wr, i32)> {
    let (mut next, mut failed) = (first, None);
    let mut recvs = object.qp.recvs();
    // SAFETY: the caller keeps the C contract.
    while let Some(wr) = unsafe { next.as_ref() } {
        let put = |wr: &RecvWr<'_>| recvs.post(wr).map_err(errno_of);
        // SAFETY: the caller keeps the C contract.
        if let Err(error) = unsafe { make_receive(wr, put) } {
            failed = Some((next, error));
            break;
        }
        next = wr.next;
    }
    if let Err(ended) = recvs.finish() {
        // SAFETY: at least as many receives were posted, so the list has them.
        let mut lost = unsafe { nth(first, ended.posted, |wr| wr.next) };
        // SAFETY: the caller keeps the C contract.
        while let Some(wr) = unsafe { lost.as_ref() } {
            // SAFETY: the caller keeps the C contract.
            unsafe { receive(object, wr) }.map_err(|error| (lost, error))?;
            lost = wr.next;
        }
        return Ok(());
    }
    failed.map_or(Ok(()), Err)
}

/// # Safety
/// The C contract: the request's list of pieces is readable.
#[inline]
unsafe fn receive(object: &QpObject, wr: &ibv_recv_wr) -> Result<(), i32> {
    let put = |made: &RecvWr<'_>| match object.qp.post_recv(made) {
        Ok(()) => Ok(()),
        Err(PostError::Ended) => flush(object, Queue::Rq, wr.wr_id, IBV_WC_RECV),
        Err(error) => Err(errno_of(error)),
    };
    // SAFETY: the caller keeps the C contract.
    unsafe { make_receive(wr, put) }
}

/// Converts a receive to the RNIC's form and passes it to `put`.
///
/// # Safety
/// The conditions of [`receive`].
#[inline(always)]
unsafe fn make_receive(
    wr: &ibv_recv_wr,
    put: impl FnOnce(&RecvWr<'_>) -> Result<(), i32>,
) -> Result<(), i32> {
    let mut room = SgeRoom::new();
    // SAFETY: the caller keeps the C contract.
    let sges = unsafe { room.fill(wr.sg_list, wr.num_sge) }?;
    put(&RecvWr::new(wr.wr_id, sges))
}
