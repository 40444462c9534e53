//! Completion queues.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_verbs::{Arm, Cq, Cqe, CqeOp, CqeStatus, DeviceError, Qpn};
use libc::{EBUSY, EINVAL, EOPNOTSUPP};

use super::channel::ChannelObject;
use super::cq_ex::Current;
use super::device::Context;
use super::events::Key;
use super::flush::Flushed;
use super::pd::User;
use super::{errno, number, object};
use crate::abi::{
    IBV_WC_BIND_MW, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR,
    IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOCAL_INV, IBV_WC_MW_BIND_ERR, IBV_WC_RDMA_READ,
    IBV_WC_RDMA_WRITE, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_OP_ERR, IBV_WC_SEND, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, IBV_WC_WITH_INV,
    IBV_WC_WR_FLUSH_ERR, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr,
    ibv_wc,
};
use crate::memory::fork::wait_for_fork;

/// A completion queue. Programs see an extended one as an `ibv_cq_ex`, whose first words are an `ibv_cq`'s.
#[repr(C)]
pub(crate) struct CqObject {
    pub(super) base: ibv_cq_ex,
    pub(super) cq: Cq,
    /// Of its events in its channel.
    tag: u64,
    /// Completions of requests that were posted after the end of their connection.
    pub(super) flushed: Flushed,
    /// Where an extended queue's program is.
    pub(super) current: Mutex<Current>,
    users: AtomicU32,
    events: Events,
}

/// Events that were fetched and acknowledged: of the channel, and asynchronous ones.
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

    /// One more was handed to the program.
    pub(super) fn fetched(&self) {
        self.counts().fetched += 1;
    }

    /// The program has handled so many.
    pub(super) fn acknowledge(&self, count: u64) {
        self.counts().acknowledged += count;
        self.changed.notify_all();
    }

    /// Waits until all that was fetched is acknowledged.
    pub(super) fn settle(&self) {
        let mut counts = self.counts();
        while counts.acknowledged < counts.fetched {
            counts = self.changed.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl CqObject {
    /// The object that a program's pointer is about.
    ///
    /// # Safety
    /// The C contract: `cq` is live for as long as `'a`.
    #[inline]
    pub(super) unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a CqObject {
        // SAFETY: the first words of a `CqObject`.
        unsafe { &*cq.cast::<CqObject>() }
    }

    /// One more queue pair has it.
    pub(super) fn user(&self) -> User {
        // SAFETY: `ibv_destroy_cq` refuses while there are users.
        unsafe { User::new(&raw const self.users) }
    }

    /// Drops the completions of a queue pair that has ended, as NICs do when it is destroyed.
    pub(super) fn forget(&self, qpn: Qpn) {
        self.cq.forget(qpn);
        self.flushed.forget(qpn.0);
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

    /// The events of this queue, for asynchronous ones.
    pub(super) fn events(&self) -> &Events {
        &self.events
    }
}

/// How long a resize waits for the one before it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A queue for `depth` completions, which programs see as `base` says.
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
    // SAFETY: the C contract.
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
    // SAFETY: the C contract.
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
        current: Mutex::default(),
        users: AtomicU32::new(0),
        events: Events::default(),
    }));
    // SAFETY: just made.
    let number = unsafe { &*object }.cq.number();
    owner.events.enter(Key::Cq(number), object.cast());
    if let Some(on) = on {
        on.enter(tag, object.cast());
    }
    Ok(object)
}

/// A new completion queue.
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
        // SAFETY: pointers, integers and options of functions, which all may be zero.
        let base: ibv_cq_ex = unsafe { std::mem::zeroed() };
        // SAFETY: the C contract.
        let made = unsafe { create(context, depth, (cq_context, channel), vector, base) }?;
        Ok(made.cast())
    })
}

/// Gives a queue room for more or fewer completions.
///
/// # Safety
/// The C contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    number(|| {
        // SAFETY: the C contract.
        let object = unsafe { CqObject::of(cq) };
        // SAFETY: the C contract: the context is open.
        let device = &unsafe { Context::of(object.base.base.context) }.device;
        let depth = u32::try_from(cqe).ok().filter(|n| *n > 0).ok_or(EINVAL)?;
        let until = Instant::now() + PATIENCE;
        loop {
            match device.resize_cq(&object.cq, depth) {
                // The worker goes over to the room of the last resize with its next turn.
                Err(DeviceError::CqResizing) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                Err(DeviceError::CqTooSmall { .. }) => return Err(EINVAL),
                done => break done.map_err(|e| errno::of(&e))?,
            }
        }
        // SAFETY: a word of the structure that the program may only read, and changes by this call alone.
        unsafe { (*cq).cqe = c_int::try_from(depth.next_power_of_two()).unwrap_or(c_int::MAX) };
        Ok(())
    })
}

/// Destroys a queue that no queue pair has, once all its events are acknowledged.
///
/// # Safety
/// The C contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    number(|| {
        // SAFETY: the C contract.
        let object = unsafe { CqObject::of(cq) };
        if object.users.load(Ordering::Acquire) != 0 {
            return Err(EBUSY);
        }
        let base = &object.base.base;
        // SAFETY: the C contract: the context is open.
        let events = &unsafe { Context::of(base.context) }.events;
        events.leave(Key::Cq(object.cq.number()), cq.cast());
        if !base.channel.is_null() {
            // SAFETY: a channel outlives its queues.
            unsafe { ChannelObject::of(base.channel) }.leave(object.tag);
        }
        // No event is fetched from here on; those that were are in the hands of the program.
        object.events.settle();
        // SAFETY: the box that `create` made.
        drop(unsafe { Box::from_raw(cq.cast::<CqObject>()) });
        Ok(())
    })
}

/// # Safety
/// The C contract.
pub(super) unsafe extern "C" fn modify_cq(
    _cq: *mut ibv_cq,
    _attr: *mut ibv_modify_cq_attr,
) -> c_int {
    // There is nothing to moderate: a worker wakes a program once for each time that it armed.
    EOPNOTSUPP
}

/// # Safety
/// The C contract.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int {
    let arm = if solicited == 0 { Arm::Next } else { Arm::Solicited };
    number(|| {
        // SAFETY: the C contract.
        unsafe { CqObject::of(cq) }.cq.arm(arm);
        Ok(())
    })
}

/// The status of a completion.
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
    }
}

/// A completion as programs read it. `slid`, `sl` and the like are 0: iWARP has none of them.
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
        // The low half, as the peer's library has put it there.
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
    // SAFETY: the C contract.
    let object = unsafe { CqObject::of(cq) };
    let Ok(most) = usize::try_from(count) else { return -EINVAL };
    let mut at = wc;
    let mut taken = object.cq.poll_batch(most, |cqe| {
        // SAFETY: called at most `count` times, and there is room for as many.
        unsafe {
            at.write(completion(&cqe));
            at = at.add(1);
        }
    });
    if object.flushed.is_some() && taken < most {
        // SAFETY: room for as many as were not taken above.
        taken += unsafe { object.flushed.take(most - taken, at) };
    }
    if taken > 0 {
        wait_for_fork();
    }
    // Devices of the kernel raise the event of an arm at once where completions are there that were not polled, and
    // programs count on it: perftest arms, takes 16 completions, and waits for an event beside those that are left.
    if taken == most && !object.base.base.channel.is_null() {
        object.cq.notify_of_rest();
    }
    // No more than `count`.
    c_int::try_from(taken).unwrap_or(c_int::MAX)
}
