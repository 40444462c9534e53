//! Queues of a port, by bursts.
//!
//! Each is owned by one worker at a time: `Send`, not `Sync`, bursts take `&mut self`.

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
    /// What a receive queue did.
    pub struct RxCounters {
        /// Frames received.
        rx_frames,
        /// Bursts that brought at least one frame.
        rx_bursts,
        /// Frames copied because they lay, in part, in memory that others may write.
        rx_copied_frames,
        /// Bytes of these, headers included.
        rx_copied_frame_bytes,
        /// Such frames dropped because no buffer was free.
        rx_copy_drops,
    }
}

heddle_base::counters! {
    /// What a transmit queue did.
    pub struct TxCounters {
        /// Frames taken by the device.
        tx_frames,
        /// Frames the device had no room for; they stayed with the caller.
        tx_refused,
        /// Frames copied into one segment.
        tx_linearized,
        /// Bytes of all their segments, headers included.
        tx_linearized_bytes,
        /// Frames dropped because no buffer could hold them in one segment.
        tx_linearize_drops,
        /// Frames dropped because the driver would not have them.
        tx_prepare_drops,
    }
}

/// What a device needs of the frames it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TxRules {
    /// Most segments of a frame; the largest number when ours never have more than it takes.
    pub(crate) max_segs: usize,
    /// The driver has to see frames first.
    pub(crate) prepares: bool,
}

/// `Send` but not `Sync`.
type NotSync = PhantomData<Cell<()>>;

/// A receive queue.
#[derive(Debug)]
pub struct RxQueue {
    port: u16,
    queue: u16,
    counters: RxCounters,
    /// Where copies go.
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

    /// Appends received frames to what room `out` has; returns how many. Called by the worker that
    /// owns the queue.
    ///
    /// What is received belongs to the receiver: a frame that refers to memory others may write (a
    /// ring hands over the sender's) is copied into buffers of the queue's pool first, or dropped
    /// when there are none; both are counted.
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

    /// Replaces frames from `first` on that refer to memory others may write.
    #[cold]
    fn take_in<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>, first: usize) {
        let mut originals: ArrayVec<Mbuf, N> = ArrayVec::new();
        // One each, which as a rule is enough; one by one when there are not that many, or not enough.
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
            // As many as `out` has at most.
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

    /// As [`RxQueue::burst`], but leaves frames as they were sent, for tests that look at what a
    /// sender does: their external segments are the sender's memory, and no slice shows them.
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

    /// Returns true if it brings nothing but what its owner has sent: a thread that has sent nothing
    /// since the last burst need not look, nor be woken.
    pub fn is_looped(&self) -> bool {
        self.device.is_looped()
    }

    /// Its interrupt, for whoever polls it ([`Rester`](crate::Rester)).
    pub fn interrupt(&self) -> RxInterrupt {
        RxInterrupt::new(Arc::clone(&self.device), self.queue)
    }

    /// What it did.
    pub fn counters(&self) -> &RxCounters {
        &self.counters
    }

    /// Number of the port in DPDK, for messages.
    pub fn port_id(&self) -> u16 {
        self.device.id
    }
}

/// A transmit queue.
#[derive(Debug)]
pub struct TxQueue {
    port: u16,
    queue: u16,
    /// Frames have to be looked at before they are sent, for one of the next two reasons.
    looks: bool,
    /// Most segments of a frame; longer chains are copied into one.
    max_segs: usize,
    /// What the device needs.
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
    /// in `frames`, in order, and stay the caller's. A frame that must be made one segment and for
    /// which there is no memory, and one that the driver will not have, is dropped and counted. Called
    /// by the worker that owns the queue.
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

    /// Whether the device takes frames of several segments as they are.
    pub fn supports_multi_segs(&self) -> bool {
        self.rules.max_segs > 1
    }

    /// Copies every frame of several segments into one before it is sent, also when the device
    /// would not need it: what leaves then refers to no registered memory. It cannot be switched
    /// off for a device that needs it.
    pub fn set_linearize(&mut self, on: bool) {
        self.set_max_segs(if on { 1 } else { usize::MAX });
    }

    /// Copies every frame of more than `most` segments into one before it is sent; the device's own
    /// limit stays.
    pub fn set_max_segs(&mut self, most: usize) {
        self.max_segs = most.clamp(1, self.rules.max_segs);
        self.looks = self.max_segs < usize::MAX || self.rules.prepares;
    }

    /// What it did.
    pub fn counters(&self) -> &TxCounters {
        &self.counters
    }

    /// Number of the port in DPDK, for messages.
    pub fn port_id(&self) -> u16 {
        self.device.id
    }

    /// Makes frames what the device takes, or drops them.
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
            if usize::from(m.segments()) <= most {
                return true;
            }
            // The first segment usually holds headers only and has room for a frame behind them.
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

    /// Shows the driver the frames; what it refuses would stay in front of the queue for good.
    fn prepare<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) {
        let mut seen = 0;
        while seen < frames.len() {
            let rest = &mut frames[seen..];
            let n = u16::try_from(rest.len()).unwrap_or(u16::MAX);
            // SAFETY: the port is started and stays so while `device` lives; this queue exists and has
            // one owner; `rest` is an array of at least `n` owned chains, which stay ours: the callee
            // may change their headers.
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
