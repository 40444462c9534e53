//! Completion queues.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_verbs::{Arm, Cq, Cqe, CqeOp, CqeStatus, DeviceError, Qp};
use libc::{EBUSY, EINVAL, EOPNOTSUPP};

use super::channel::ChannelObject;
use super::cq_ex::Current;
use super::device::Context;
use super::events::Key;
use super::flush::Flushed;
use super::lingering::Lingering;
use super::pd::User;
use super::{errno, number, object};
use crate::abi::{
    IBV_WC_BIND_MW, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR,
    IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOCAL_INV, IBV_WC_MW_BIND_ERR, IBV_WC_RDMA_READ,
    IBV_WC_RDMA_WRITE, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SEND, IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM, IBV_WC_WITH_INV, IBV_WC_WR_FLUSH_ERR, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_cq_ex, ibv_modify_cq_attr, ibv_wc,
};
use crate::memory::fork::wait_for_fork;

/// A completion queue. Programs see an extended queue as an `ibv_cq_ex`, whose first words are an
/// `ibv_cq`'s.
#[repr(C)]
pub(crate) struct CqObject {
    pub(super) base: ibv_cq_ex,
    pub(super) cq: Cq,
    /// The tag of the queue's events in its channel.
    tag: u64,
    /// Completions of requests that the program posted after the end of their connection.
    pub(super) flushed: Flushed,
    /// Queue pairs that the program has destroyed and the RNIC has not ended.
    pub(super) lingering: Lingering,
    /// The program's position in an extended queue.
    pub(super) current: Mutex<Current>,
    users: AtomicU32,
    events: Events,
}

/// Counts of fetched and acknowledged events, both from the channel and asynchronous.
#[derive(Default)]
pub(super) struct Events {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Default)]
struct Counts {
    fetched: u64,
    acknowledged: u64,
}

impl Events {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an event that the program has fetched.
    pub(super) fn fetched(&self) {
        self.counts().fetched += 1;
    }

    /// Counts `count` events that the program has handled.
    pub(super) fn acknowledge(&self, count: u64) {
        self.counts().acknowledged += count;
        self.changed.notify_all();
    }

    /// Waits until the program has acknowledged every fetched event.
    pub(super) fn settle(&self) {
        let mut counts = self.counts();
        while counts.acknowledged < counts.fetched {
            counts = self.changed.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl CqObject {
    /// Returns the object of a program's pointer.
    ///
    /// # Safety
    /// The C contract: `cq` is live for as long as `'a`.
    #[inline]
    pub(super) unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a CqObject {
        // SAFETY: the structure's words are the first words of a `CqObject`.
        unsafe { &*cq.cast::<CqObject>() }
    }

    /// Counts a queue pair that uses this queue.
    pub(super) fn user(&self) -> User {
        // SAFETY: `ibv_destroy_cq` refuses while there are users.
        unsafe { User::new(&raw const self.users) }
    }

    /// Drops the completions of a queue pair, as NICs do when a program destroys it; with `lingers`
    /// also those that are still to come.
    pub(super) fn forget(&self, qp: &Qp, lingers: bool) {
        // First, so that no completion comes between.
        if lingers {
            self.lingering.add(qp);
        }
        self.cq.forget(qp.qpn());
        self.flushed.forget(qp.qpn().0);
    }

    /// Takes the oldest completion that the RNIC has written.
    #[inline]
    pub(super) fn take_one(&self) -> Option<Cqe> {
        if !self.lingering.is_some() {
            return self.cq.poll();
        }
        let mut found = None;
        self.lingering.poll_batch(&self.cq, 1, |cqe| found = Some(cqe));
        found
    }

    /// Calls `f` with up to `most` completions that the RNIC has written, and returns their number.
    #[inline]
    pub(super) fn take(&self, most: usize, f: impl FnMut(Cqe)) -> usize {
        match self.lingering.is_some() {
            false => self.cq.poll_batch(most, f),
            true => self.lingering.poll_batch(&self.cq, most, f),
        }
    }

    pub(super) fn context(&self) -> *mut c_void {
        self.base.base.cq_context
    }

    pub(super) fn event_fetched(&self) {
        self.events.fetched();
    }

    pub(super) fn acknowledge(&self, count: c_uint) {
        self.events.acknowledge(count.into());
    }

    /// Returns the counts of this queue's events, for asynchronous events.
    pub(super) fn events(&self) -> &Events {
        &self.events
    }
}

/// The longest time that a resize waits for the resize before it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Makes a queue for `depth` completions, which programs see as the structure `base`.
///
/// # Safety
/// The C contract: `context` is open, `channel` is null or live.
pub(super) unsafe fn create(
    context: *mut ibv_context,
    depth: u32,
    (cq_context, channel): (*mut c_void, *mut ibv_comp_channel),
    vector: u32,
    mut base: ibv_cq_ex,
) -> Result<*mut CqObject, i32> {
    // SAFETY: the caller keeps the C contract.
    let owner = unsafe { Context::of(context) };
    let device = &owner.device;
    if vector != 0 || depth == 0 || depth > device.limits().max_cqes {
        return Err(EINVAL);
    }
    base.base.context = context;
    base.base.channel = channel;
    base.base.cq_context = cq_context;
    base.base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    base.base.cond = libc::PTHREAD_COND_INITIALIZER;
    // SAFETY: the caller keeps the C contract.
    let on = (!channel.is_null()).then(|| unsafe { ChannelObject::of(channel) });
    let tag = ChannelObject::tag();
    let made = match on {
        Some(on) => device.create_cq_on(depth, &on.channel, tag),
        None => device.create_cq(depth, None),
    };
    let cq = made.map_err(|e| errno::of(&e))?;
    base.base.cqe = c_int::try_from(cq.depth()).unwrap_or(c_int::MAX);
    let object = Box::into_raw(Box::new(CqObject {
        base,
        cq,
        tag,
        flushed: Flushed::default(),
        lingering: Lingering::default(),
        current: Mutex::default(),
        users: AtomicU32::new(0),
        events: Events::default(),
    }));
    // SAFETY: the box was just made and is live.
    let number = unsafe { &*object }.cq.number();
    owner.events.enter(Key::Cq(number), object.cast());
    if let Some(on) = on {
        on.enter(tag, object.cast());
    }
    Ok(object)
}

/// Makes a completion queue.
///
/// # Safety
/// The C contract: `context` is open, `channel` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    object(|| {
        let depth = u32::try_from(cqe).map_err(|_| EINVAL)?;
        let vector = u32::try_from(comp_vector).map_err(|_| EINVAL)?;
        // SAFETY: the structure consists of pointers, integers and optional functions, for which
        // all zeros are valid.
        let base: ibv_cq_ex = unsafe { std::mem::zeroed() };
        // SAFETY: the caller keeps the C contract.
        let made = unsafe { create(context, depth, (cq_context, channel), vector, base) }?;
        Ok(made.cast())
    })
}

/// Gives a queue room for more or fewer completions.
///
/// # Safety
/// The caller keeps the C contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    number(|| {
        // SAFETY: the caller keeps the C contract.
        let object = unsafe { CqObject::of(cq) };
        // SAFETY: by the C contract, the context is open.
        let device = &unsafe { Context::of(object.base.base.context) }.device;
        let depth = u32::try_from(cqe).ok().filter(|n| *n > 0).ok_or(EINVAL)?;
        let until = Instant::now() + PATIENCE;
        loop {
            match device.resize_cq(&object.cq, depth) {
                // The worker switches to the room of the last resize at its next turn.
                Err(DeviceError::CqResizing) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                Err(DeviceError::CqTooSmall { .. }) => return Err(EINVAL),
                done => break done.map_err(|e| errno::of(&e))?,
            }
        }
        // SAFETY: the program may only read this word of the structure, and only this call changes
        // it.
        unsafe { (*cq).cqe = c_int::try_from(depth.next_power_of_two()).unwrap_or(c_int::MAX) };
        Ok(())
    })
}

/// Destroys a queue that no queue pair uses, after the program has acknowledged all its events.
///
/// # Safety
/// The caller keeps the C contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    number(|| {
        // SAFETY: the caller keeps the C contract.
        let object = unsafe { CqObject::of(cq) };
        if object.users.load(Ordering::Acquire) != 0 {
            return Err(EBUSY);
        }
        let base = &object.base.base;
        // SAFETY: by the C contract, the context is open.
        let events = &unsafe { Context::of(base.context) }.events;
        events.leave(Key::Cq(object.cq.number()), cq.cast());
        if !base.channel.is_null() {
            // SAFETY: a channel outlives its queues.
            unsafe { ChannelObject::of(base.channel) }.leave(object.tag);
        }
        // The program can fetch no event from here on; wait until it acknowledges the events that
        // it has fetched.
        object.events.settle();
        // SAFETY: this is the box that `create` made, and this is its last use.
        drop(unsafe { Box::from_raw(cq.cast::<CqObject>()) });
        Ok(())
    })
}

/// # Safety
/// The caller keeps the C contract.
pub(super) unsafe extern "C" fn modify_cq(
    _cq: *mut ibv_cq,
    _attr: *mut ibv_modify_cq_attr,
) -> c_int {
    // There is nothing to moderate: a worker wakes a program only once for each time that the
    // program arms the queue.
    EOPNOTSUPP
}

/// # Safety
/// The caller keeps the C contract.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int {
    let arm = if solicited == 0 { Arm::Next } else { Arm::Solicited };
    number(|| {
        // SAFETY: the caller keeps the C contract.
        unsafe { CqObject::of(cq) }.cq.arm(arm);
        Ok(())
    })
}

/// Returns the libibverbs status of a completion.
#[inline]
pub(super) fn status_of(status: CqeStatus) -> c_int {
    match status {
        CqeStatus::Success => IBV_WC_SUCCESS,
        CqeStatus::Flushed => IBV_WC_WR_FLUSH_ERR,
        CqeStatus::LocalLength => IBV_WC_LOC_LEN_ERR,
        CqeStatus::LocalProtection => IBV_WC_LOC_PROT_ERR,
        CqeStatus::LocalQpOperation(_) => IBV_WC_LOC_QP_OP_ERR,
        CqeStatus::LocalBind(_) => IBV_WC_MW_BIND_ERR,
        CqeStatus::RemoteAccess(_) => IBV_WC_REM_ACCESS_ERR,
        CqeStatus::RemoteOperation(_) => IBV_WC_REM_OP_ERR,
        CqeStatus::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
        CqeStatus::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
    }
}

/// Converts a completion to the program's form. `slid`, `sl` and the like are 0, because iWARP has
/// none of them.
#[inline]
pub(super) fn completion(cqe: &Cqe) -> ibv_wc {
    let opcode = match cqe.op {
        CqeOp::Recv if cqe.immediate.is_some() => IBV_WC_RECV_RDMA_WITH_IMM,
        CqeOp::Recv => IBV_WC_RECV,
        CqeOp::Send | CqeOp::Immediate => IBV_WC_SEND,
        CqeOp::Write => IBV_WC_RDMA_WRITE,
        CqeOp::Read => IBV_WC_RDMA_READ,
        CqeOp::FetchAdd => IBV_WC_FETCH_ADD,
        CqeOp::CmpSwap => IBV_WC_COMP_SWAP,
        CqeOp::BindWindow | CqeOp::FastRegister => IBV_WC_BIND_MW,
        CqeOp::LocalInvalidate => IBV_WC_LOCAL_INV,
    };
    let (imm_data, wc_flags) = match (cqe.immediate, cqe.invalidated) {
        // The low half, where the peer's library has put the immediate data.
        #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
        (Some(data), _) => ((data as u32).to_be(), IBV_WC_WITH_IMM),
        (None, Some(stag)) => (stag.0, IBV_WC_WITH_INV),
        (None, None) => (0, 0),
    };
    ibv_wc {
        wr_id: cqe.wr_id,
        status: status_of(cqe.status),
        opcode,
        vendor_err: 0,
        byte_len: cqe.len,
        imm_data,
        qp_num: cqe.qpn.0,
        src_qp: 0,
        wc_flags,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// # Safety
/// The C contract: `wc` has room for `count` completions.
pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller keeps the C contract.
    let object = unsafe { CqObject::of(cq) };
    let Ok(most) = usize::try_from(count) else { return -EINVAL };
    let mut at = wc;
    let mut taken = object.take(most, |cqe| {
        // SAFETY: the queue calls this at most `count` times, and there is room for as many.
        unsafe {
            at.write(completion(&cqe));
            at = at.add(1);
        }
    });
    if object.flushed.is_some() && taken < most {
        // SAFETY: there is room for the completions that were not taken above.
        taken += unsafe { object.flushed.take(most - taken, at) };
    }
    if taken > 0 {
        wait_for_fork();
    }
    // When a program arms a queue that still has completions, the kernel's devices raise the event
    // at once, and programs count on that: perftest arms, takes 16 completions, and waits for an
    // event although more are left.
    if taken == most && !object.base.base.channel.is_null() {
        object.cq.notify_of_rest();
    }
    // The number is not above `count`, so it fits.
    c_int::try_from(taken).unwrap_or(c_int::MAX)
}
