//! Queues of a port, which move bursts of frames.
//!
//! Each queue has one owner at a time, a worker: queues are `Send` but not `Sync`, and bursts take
//! `&mut self`.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use arrayvec::ArrayVec;
use heddle_dpdk_sys as sys;

use super::ethdev::EthDev;
use super::interrupt::RxInterrupt;
use crate::mbuf::{FrameBuilder, Mbuf, RawMbuf};
use crate::mempool::Mempool;

heddle_base::counters! {
    /// Counters of a receive queue.
    pub struct RxCounters {
        /// Frames received.
        rx_frames,
        /// Bursts that brought at least one frame.
        rx_bursts,
        /// Frames copied because they lay, in part, in memory that others may write.
        rx_copied_frames,
        /// Bytes of the copied frames, headers included.
        rx_copied_frame_bytes,
        /// Frames of this kind dropped because no buffer was free for the copy.
        rx_copy_drops,
    }
}

heddle_base::counters! {
    /// Counters of a transmit queue.
    pub struct TxCounters {
        /// Frames that the device took.
        tx_frames,
        /// Frames that the device had no room for; they stayed with the caller.
        tx_refused,
        /// Frames copied into one segment.
        tx_linearized,
        /// Bytes of all segments of the copied frames, headers included.
        tx_linearized_bytes,
        /// Frames dropped because no buffer could hold them in one segment.
        tx_linearize_drops,
        /// Frames dropped because the driver refused them.
        tx_prepare_drops,
    }
}

/// A device's requirements for the frames that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TxRules {
    /// The most segments of a frame; `usize::MAX` if our frames never have more than the device
    /// takes.
    pub(crate) max_segs: usize,
    /// The most TCP segments of a frame that the device cuts into segments; 1 if it cuts none.
    pub(crate) cuts: u16,
    /// The driver must see frames before they are sent.
    pub(crate) prepares: bool,
}

/// Makes a queue `Send` but not `Sync`.
type NotSync = PhantomData<Cell<()>>;

/// A receive queue.
#[derive(Debug)]
pub struct RxQueue {
    port: u16,
    queue: u16,
    counters: RxCounters,
    /// The pool that holds copies.
    pool: Mempool,
    device: Arc<EthDev>,
    _owner: NotSync,
}

impl RxQueue {
    pub(crate) fn new(device: Arc<EthDev>, queue: u16, pool: Mempool) -> RxQueue {
        RxQueue {
            port: device.id,
            queue,
            counters: RxCounters::default(),
            pool,
            device,
            _owner: PhantomData,
        }
    }

    /// Appends received frames to `out`, as far as it has room; returns how many. The worker that
    /// owns the queue calls this function.
    ///
    /// Received frames belong to the receiver: if a frame refers to memory that others may write (a
    /// ring hands over the sender's memory), this function first copies the frame into buffers of
    /// the queue's pool, or drops the frame if there are none, and counts either.
    #[inline]
    pub fn burst<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let before = out.len();
        let n = self.burst_as_sent(out);
        if out[before..].iter().any(Mbuf::has_external) {
            self.take_in(out, before);
            return out.len() - before;
        }
        n
    }

    /// Replaces frames from `first` on that refer to memory that others may write.
    #[cold]
    fn take_in<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>, first: usize) {
        let mut originals: ArrayVec<Mbuf, N> = ArrayVec::new();
        // Allocate a buffer for each frame, which as a rule is enough; allocate one by one if the
        // pool has fewer, or if a frame needs more.
        let mut spare: ArrayVec<RawMbuf, N> = ArrayVec::new();
        self.pool
            .alloc_raw_bulk(&mut spare, out[first..].iter().filter(|m| m.has_external()).count());
        let pool = self.pool;
        let mut alloc = || {
            if spare.is_empty() {
                pool.alloc_raw_bulk(&mut spare, 1);
            }
            spare.pop()
        };
        let mut at = first;
        while at < out.len() {
            if !out[at].has_external() {
                at += 1;
                continue;
            }
            // `originals` has room for as many frames as `out`.
            if let Some(copy) = FrameBuilder::copy(&out[at], &mut alloc) {
                self.counters.rx_copied_frames += 1;
                self.counters.rx_copied_frame_bytes += copy.pkt_len() as u64;
                originals.push(std::mem::replace(&mut out[at], copy));
                at += 1;
            } else {
                self.counters.rx_copy_drops += 1;
                originals.push(out.remove(at));
            }
        }
        Mbuf::free_bulk(&mut originals);
    }

    /// Like [`RxQueue::burst`], but leaves frames as they were sent, for tests that look at the
    /// sender's behavior: external segments are the sender's memory, and no slice shows them.
    #[inline]
    pub fn burst_as_sent<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let len = out.len();
        let room = u16::try_from(out.remaining_capacity()).unwrap_or(u16::MAX);
        if room == 0 {
            return 0;
        }
        // SAFETY: the port is started and stays so while `device` lives; this queue exists and has
        // one owner; the spare capacity of `out` takes `room` pointers, `Mbuf` is a transparent
        // non-null pointer, and the callee writes as many valid chains as it returns, which are
        // ours then.
        let n = unsafe {
            let dst = out.as_mut_ptr().add(len).cast::<*mut sys::rte_mbuf>();
            let n = usize::from(sys::heddle_rx_burst(self.port, self.queue, dst, room));
            out.set_len(len + n);
            n
        };
        self.counters.rx_frames += n as u64;
        self.counters.rx_bursts += u64::from(n > 0);
        n
    }

    /// Returns true if the queue brings only frames that its owner has sent: a thread that has sent
    /// nothing since the last burst need not look, nor be woken.
    pub fn is_looped(&self) -> bool {
        self.device.is_looped()
    }

    /// Returns the queue's interrupt, for the thread that polls the queue
    /// ([`Parker`](crate::Parker)).
    pub fn interrupt(&self) -> RxInterrupt {
        RxInterrupt::new(Arc::clone(&self.device), self.queue)
    }

    /// Returns the queue's counters.
    pub fn counters(&self) -> &RxCounters {
        &self.counters
    }

    /// Returns the number of the port in DPDK, for messages.
    pub fn port_id(&self) -> u16 {
        self.device.id
    }
}

/// A transmit queue.
#[derive(Debug)]
pub struct TxQueue {
    port: u16,
    queue: u16,
    /// Whether `burst` has to look at frames before it sends them, because of `max_segs` or
    /// `rules`.
    looks: bool,
    /// The most segments of a frame; the queue copies longer chains into one segment.
    max_segs: usize,
    /// The device's requirements.
    rules: TxRules,
    counters: TxCounters,
    pool: Mempool,
    device: Arc<EthDev>,
    _owner: NotSync,
}

impl TxQueue {
    pub(crate) fn new(device: Arc<EthDev>, queue: u16, pool: Mempool, rules: TxRules) -> TxQueue {
        let mut tx = TxQueue {
            port: device.id,
            queue,
            looks: false,
            max_segs: rules.max_segs,
            rules,
            counters: TxCounters::default(),
            pool,
            device,
            _owner: PhantomData,
        };
        tx.set_max_segs(rules.max_segs);
        tx
    }

    /// Sends frames from the front of `frames`; returns how many the device took. The others stay
    /// in `frames`, in order, and stay the caller's. If the queue must copy a frame into one
    /// segment and has no memory for that, or if the driver refuses a frame, the queue drops and
    /// counts the frame. The worker that owns the queue calls this function.
    #[inline]
    pub fn burst<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) -> usize {
        if self.looks {
            self.look_at(frames);
        }
        let len = frames.len();
        let offered = u16::try_from(len).unwrap_or(u16::MAX);
        if offered == 0 {
            return 0;
        }
        // SAFETY: the port is started and stays so while `device` lives; this queue exists and has
        // one owner; `frames` is an array of at least `offered` owned chains. The callee takes
        // ownership of the first `sent`; the rest is moved to the front and the length cut, so
        // that each chain has one owner at every time (nothing here unwinds).
        let sent = unsafe {
            frames.set_len(0);
            let p = frames.as_mut_ptr();
            let sent = usize::from(sys::heddle_tx_burst(self.port, self.queue, p.cast(), offered));
            std::ptr::copy(p.add(sent), p, len - sent);
            frames.set_len(len - sent);
            sent
        };
        self.counters.tx_frames += sent as u64;
        self.counters.tx_refused += (len - sent) as u64;
        sent
    }

    /// Returns true if the device takes frames of several segments as they are.
    pub fn supports_multi_segs(&self) -> bool {
        self.rules.max_segs > 1
    }

    /// Returns the most TCP segments of a frame that the device cuts into segments; 1 if it cuts
    /// none.
    pub(crate) fn cuts(&self) -> u16 {
        self.rules.cuts
    }

    /// Makes the queue copy every frame of several segments into one before it sends the frame,
    /// even if the device does not need that: no frame then refers to registered memory. A caller
    /// cannot switch this off for a device that needs it.
    pub fn set_linearize(&mut self, on: bool) {
        self.set_max_segs(if on { 1 } else { usize::MAX });
    }

    /// Makes the queue copy every frame of more than `most` segments into one before it sends the
    /// frame; the device's own limit stays.
    pub fn set_max_segs(&mut self, most: usize) {
        self.max_segs = most.clamp(1, self.rules.max_segs);
        self.looks = self.max_segs < usize::MAX || self.rules.prepares;
    }

    /// Returns the queue's counters.
    pub fn counters(&self) -> &TxCounters {
        &self.counters
    }

    /// Returns the number of the port in DPDK, for messages.
    pub fn port_id(&self) -> u16 {
        self.device.id
    }

    /// Changes frames into a form that the device takes, or drops them.
    #[cold]
    #[inline(never)]
    fn look_at<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) {
        if self.max_segs < usize::MAX {
            self.linearize_longer(frames);
        }
        if self.rules.prepares {
            self.prepare(frames);
        }
    }

    fn linearize_longer<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) {
        let (pool, most, counters) = (self.pool, self.max_segs, &mut self.counters);
        frames.retain(|m| {
            if usize::from(m.segments()) <= most || m.is_cut() {
                return true;
            }
            // The first segment usually holds headers only and has room for the rest of a frame
            // after them.
            let whole = m.linearize()
                || match m.copy(&pool) {
                    Some(copy) if copy.segments() == 1 => {
                        *m = copy;
                        true
                    }
                    _ => false,
                };
            if whole {
                counters.tx_linearized += 1;
                counters.tx_linearized_bytes += m.pkt_len() as u64;
            } else {
                counters.tx_linearize_drops += 1;
            }
            whole
        });
    }

    /// Shows the driver the frames, and drops a frame that it refuses: the device would never take
    /// it, and the frame would block the front of the queue for good.
    fn prepare<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) {
        let mut seen = 0;
        while seen < frames.len() {
            let rest = &mut frames[seen..];
            let n = u16::try_from(rest.len()).unwrap_or(u16::MAX);
            // SAFETY: the port is started and stays so while `device` lives; this queue exists and
            // has one owner; `rest` is an array of at least `n` owned chains, which stay ours: the
            // callee may change their headers.
            let good = unsafe {
                sys::heddle_tx_prepare(self.port, self.queue, rest.as_mut_ptr().cast(), n)
            };
            seen += usize::from(good.min(n));
            if good < n {
                frames.remove(seen);
                self.counters.tx_prepare_drops += 1;
            }
        }
    }
}
