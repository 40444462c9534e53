//! Construction of frames out of mbufs.

use arrayvec::ArrayVec;
use heddle_base::Instant;
use heddle_engine::{Offload, TxSink};
use heddle_hub::memory::{RegionId, RegionMemory};
use heddle_mr::{MemRange, Memory};

use crate::extmem::ExternalMemory;
use crate::fault::FaultInjector;
use crate::mbuf::{FrameBuilder, Mbuf, RawMbuf, TxOffload};
use crate::mempool::{HEADROOM, Mempool};
use crate::worker::steer::TxEnd;

/// Frames that may wait for the port.
pub(crate) const TX_FRAMES: usize = 64;

/// Buffers of waiting frames with which a worker makes no more frames, and the most of a train:
/// headers, and two for each of its 32 segments.
const MANY_BUFFERS: usize = 520;
const MOST_OF_TRAIN: usize = 65;

/// Frames that may wait after fault injection.
const TX_READY: usize = TX_FRAMES;

/// Empty mbufs taken from the pool at a time.
const SPARE_MBUFS: usize = 32;

/// How many of the spare mbufs are prefetched: another processor may have been the last to free
/// them.
const AHEAD: usize = 8;

/// Payload in bytes below which the sink copies it after the header: a copy is cheaper than two
/// more mbufs (one that refers to the memory, and one for the CRC after it).
pub(crate) const TX_COPY_BELOW: u32 = 256;

heddle_base::counters! {
    /// Counters of the construction of frames.
    pub struct TxBuildCounters {
        /// Frames dropped because no mbuf was free.
        tx_no_mbuf,
        /// Payload bytes copied into the frame: short payload, and all payload if the port cannot
        /// gather.
        tx_copied_bytes,
        /// Payload bytes that the port reads from registered memory.
        tx_external_bytes,
        /// Times the port took fewer frames than there were.
        tx_port_full,
    }
}

/// The sending end of a worker: frames in construction, frames that wait, and the port's queue.
#[derive(Debug)]
pub(crate) struct Tx {
    queue: TxEnd,
    pool: Mempool,
    fault: Option<FaultInjector>,
    waiting: ArrayVec<Mbuf, TX_FRAMES>,
    /// Frames that have passed fault injection; empty without faults.
    ready: ArrayVec<Mbuf, TX_READY>,
    spare: ArrayVec<RawMbuf, SPARE_MBUFS>,
    external: ExternalMemory,
    /// Bytes of a frame in one mbuf.
    data_room: usize,
    /// The most segments of a frame that the port cuts into segments; 1 if it cuts none.
    cuts: u32,
    pub(crate) counters: TxBuildCounters,
}

impl Tx {
    pub(crate) fn new(
        queue: TxEnd,
        pool: Mempool,
        external: ExternalMemory,
        fault: Option<FaultInjector>,
    ) -> Tx {
        // A frame that fault injection drops, doubles or delays is a single segment.
        let cuts = if fault.is_some() { 1 } else { u32::from(queue.cuts()) };
        Tx {
            queue,
            cuts,
            pool,
            fault,
            waiting: ArrayVec::new(),
            ready: ArrayVec::new(),
            spare: ArrayVec::new(),
            external,
            data_room: usize::from(pool.data_room().saturating_sub(HEADROOM)),
            counters: TxBuildCounters::default(),
        }
    }

    pub(crate) fn queue(&self) -> &TxEnd {
        &self.queue
    }

    /// Returns the numbers of free and of used buffers of the pool.
    pub(crate) fn buffers(&self) -> (u32, u32) {
        (self.pool.available(), self.pool.in_use())
    }

    pub(crate) fn fault(&self) -> Option<&FaultInjector> {
        self.fault.as_ref()
    }

    /// Sends frames of other workers; returns true if there were any.
    pub(crate) fn relay(&mut self) -> bool {
        self.queue.relay()
    }

    /// Returns true if other workers send their frames through this one.
    pub(crate) fn serves_others(&self) -> bool {
        self.queue.serves_others()
    }

    /// Drops the waiting frames.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.ready.clear();
    }

    /// Returns true if the frames that wait take so many buffers that the worker must not add to
    /// them: its port receives into buffers of the same pool. Only trains take many.
    #[inline]
    fn holds_many_buffers(&self) -> bool {
        let frames = &self.waiting;
        self.cuts > 1
            && frames.len() >= MANY_BUFFERS / MOST_OF_TRAIN
            && frames.iter().map(|f| usize::from(f.segments())).sum::<usize>() >= MANY_BUFFERS
    }

    /// Returns true if no frame waits for the port.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.ready.is_empty()
    }

    /// Returns true if there is nothing to do until frames are built; fault injection may hold some
    /// back.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.fault.is_none()
    }

    /// Returns a builder of frames over `mem`.
    pub(crate) fn sink<'a>(&'a mut self, now: Instant, mem: &'a RegionMemory) -> MbufSink<'a> {
        MbufSink {
            tx: self,
            mem,
            now,
            frame: None,
            failed: false,
            copy_below: TX_COPY_BELOW,
            references: 0,
            slot: 0,
        }
    }

    /// Hands the waiting frames to the port; the frames that the port does not take go on waiting.
    #[inline]
    pub(crate) fn flush(&mut self, now: Instant) {
        if self.fault.is_some() {
            return self.flush_with_faults(now);
        }
        if !self.waiting.is_empty() {
            self.queue.burst(&mut self.waiting);
            self.counters.tx_port_full += u64::from(!self.waiting.is_empty());
        }
    }

    #[cold]
    fn flush_with_faults(&mut self, now: Instant) {
        let Some(fault) = &mut self.fault else { return };
        fault.handle(now, &mut self.waiting);
        fault.poll(now, &mut self.ready);
        if !self.ready.is_empty() {
            self.queue.burst(&mut self.ready);
            self.counters.tx_port_full += u64::from(!self.ready.is_empty());
        }
    }
}

/// Builds frames out of mbufs: headers in an mbuf of the pool, payload by reference if the port
/// gathers.
pub(crate) struct MbufSink<'a> {
    tx: &'a mut Tx,
    mem: &'a RegionMemory,
    now: Instant,
    frame: Option<FrameBuilder>,
    failed: bool,
    /// Payload in bytes below which the sink copies it into the frame.
    copy_below: u32,
    /// References to the memory region in `slot` that are counted and not made yet.
    references: u16,
    slot: u32,
}

/// References counted at a time: one addition to a counter that others use, for half a turn's
/// frames ([`BURST`](crate::BURST)). Dropping the sink gives unused references back.
const REFERENCES: u16 = 32;

impl Drop for MbufSink<'_> {
    fn drop(&mut self) {
        self.give_references();
    }
}

impl Tx {
    #[inline(always)]
    fn spare(&mut self) -> Option<RawMbuf> {
        if self.spare.is_empty() {
            self.pool.alloc_raw_bulk(&mut self.spare, SPARE_MBUFS);
            self.spare.iter().rev().take(AHEAD).for_each(RawMbuf::prefetch_for_write);
        }
        let taken = self.spare.pop();
        if let Some(later) = self.spare.len().checked_sub(AHEAD).and_then(|i| self.spare.get(i)) {
            later.prefetch_for_write();
        }
        taken
    }
}

impl MbufSink<'_> {
    /// Appends another segment to the frame.
    #[inline]
    fn grow(&mut self) -> Option<&mut FrameBuilder> {
        let segment = self.tx.spare()?;
        match &mut self.frame {
            Some(f) => f.chain(segment.into_later()),
            None => self.frame = Some(FrameBuilder::new(segment.into_first())),
        }
        self.frame.as_mut()
    }

    #[inline]
    fn copy(&mut self, bytes: &[u8]) -> Option<()> {
        if self.frame.as_mut().is_some_and(|f| f.append(bytes)) {
            return Some(());
        }
        self.grow()?.append(bytes).then_some(())
    }

    #[inline]
    fn reference(&mut self, range: MemRange) -> Option<()> {
        let len = range.len();
        if len < self.copy_below || !self.tx.queue.supports_multi_segs() {
            return self.gather(range);
        }
        let Some(payload) = self.external(range) else { return self.gather(range) };
        match &mut self.frame {
            Some(f) => f.chain(payload),
            // Headers come first: there is no frame without them.
            None => return None,
        }
        Some(())
    }

    /// Builds a frame of headers in one segment, payload by reference, and the trailer in a third
    /// segment.
    #[inline(always)]
    fn three_segments(
        &mut self,
        header: &[u8],
        head: &[u8],
        payload: MemRange,
        tail: &[u8],
    ) -> Option<()> {
        let payload = match self.external(payload) {
            Some(p) => p,
            None => {
                self.copy(header)?;
                self.copy(head)?;
                self.gather(payload)?;
                return self.copy(tail);
            }
        };
        let (first, third) = (self.tx.spare()?, self.tx.spare()?);
        // Build the frame in its place: moving it would wait for the stores.
        let frame = self.frame.insert(FrameBuilder::new(first.into_first()));
        let room = frame.reserve(header.len() + head.len())?;
        let (a, b) = room.split_at_mut_checked(header.len())?;
        a.copy_from_slice(header);
        b.copy_from_slice(head);
        frame.chain(payload);
        frame.chain(third.into_later());
        frame.append(tail).then_some(())
    }

    /// Returns a segment that refers to registered memory; `None` if devices cannot read the
    /// memory.
    #[inline(always)]
    fn external(&mut self, range: MemRange) -> Option<Mbuf> {
        let addr = self.mem.dma_ptr(range)?;
        if self.references == 0 || self.slot != range.mr() {
            self.take_references(range)?;
        }
        let len = u16::try_from(range.len()).ok()?;
        let segment = self.tx.spare()?;
        // SAFETY: the address of a range that has passed every check, in the region that the slot's
        // counter keeps since the reference was taken.
        let segment = unsafe { segment.into_external(&self.tx.external, self.slot, addr, len) }?;
        self.references -= 1;
        self.tx.counters.tx_external_bytes += u64::from(len);
        Some(segment)
    }

    fn take_references(&mut self, range: MemRange) -> Option<()> {
        self.give_references();
        let regions = self.mem.regions();
        let region = || regions.get(RegionId::split(range.addr()).0);
        self.tx.external.take(range.mr(), REFERENCES, region)?;
        (self.slot, self.references) = (range.mr(), REFERENCES);
        Some(())
    }

    fn give_references(&mut self) {
        if self.references > 0 {
            self.tx.external.give(self.slot, self.references);
            self.references = 0;
        }
    }

    /// Copies payload into as many segments as it takes.
    fn gather(&mut self, range: MemRange) -> Option<()> {
        let n = range.len() as usize;
        let mem = self.mem;
        self.tx.counters.tx_copied_bytes += n as u64;
        if let Some(dst) = self.frame.as_mut().and_then(|f| f.reserve(n)) {
            mem.gather(range, dst);
            return Some(());
        }
        mem.gather(range, self.grow()?.reserve(n)?);
        Some(())
    }
}

impl TxSink for MbufSink<'_> {
    #[inline]
    fn room(&mut self) -> u32 {
        if self.tx.waiting.is_full() || self.tx.holds_many_buffers() {
            self.tx.flush(self.now);
            if self.tx.holds_many_buffers() {
                return 0;
            }
        }
        u32::try_from(self.tx.waiting.remaining_capacity()).unwrap_or(u32::MAX)
    }

    #[inline]
    fn cuts(&self) -> u32 {
        self.tx.cuts
    }

    #[inline]
    fn begin(&mut self, _len: usize) {
        self.frame = None;
        self.failed = false;
        self.copy_below = TX_COPY_BELOW;
    }

    /// Copies payload that is not most of a segment, so that the chain has no more than two mbufs
    /// for each segment, whatever the lengths of its messages.
    #[inline]
    fn begin_train(&mut self, len: usize, segment: u32) {
        self.begin(len);
        self.copy_below = TX_COPY_BELOW.max(segment / 2 + 1);
    }

    #[inline(always)]
    fn whole(&mut self, len: usize) -> Option<&mut [u8]> {
        // Do not take an mbuf that could not hold the frame.
        if len > self.tx.data_room {
            return None;
        }
        let first = self.tx.spare()?;
        self.frame.insert(FrameBuilder::new(first.into_first())).reserve(len)
    }

    #[inline]
    fn piece(&mut self, len: usize) -> Option<&mut [u8]> {
        self.failed = true;
        if len > self.tx.data_room {
            return None;
        }
        let next = self.tx.spare()?;
        let frame = self.frame.as_mut()?;
        frame.chain(next.into_later());
        self.failed = false;
        frame.reserve(len)
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.failed |= !bytes.is_empty() && self.copy(bytes).is_none();
    }

    #[inline]
    fn memory(&mut self, range: MemRange) {
        self.failed |= self.reference(range).is_none();
    }

    #[inline]
    fn message(&mut self, header: &[u8], head: &[u8], payload: MemRange, tail: &[u8]) {
        if payload.len() < TX_COPY_BELOW || !self.tx.queue.supports_multi_segs() {
            self.bytes(header);
            self.bytes(head);
            self.memory(payload);
            return self.bytes(tail);
        }
        self.failed |= self.three_segments(header, head, payload, tail).is_none();
    }

    #[inline]
    fn end(&mut self, offload: Offload) {
        let Some(frame) = self.frame.take().filter(|_| !self.failed) else {
            self.tx.counters.tx_no_mbuf += 1;
            return;
        };
        let mut frame = frame.finish();
        if offload.ip || offload.tcp {
            frame.set_tx_offload(TxOffload {
                l2_len: offload.l2_len,
                l3_len: u16::from(offload.l3_len),
                l4_len: offload.l4_len,
                ipv6: offload.ipv6,
                ip_checksum: offload.ip,
                tcp_checksum: offload.tcp,
                segment: offload.segment,
            });
        }
        if self.tx.waiting.try_push(frame).is_err() {
            // `room` has promised a place; a caller that did not ask loses the frame.
            self.tx.counters.tx_no_mbuf += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use heddle_hub::memory::RegionTable;

    use super::*;
    use crate::worker::tests::eal;
    use crate::{MempoolConfig, Offloads, Port, PortConfig};

    /// The port is full from the start, and takes nothing.
    #[test]
    fn test_waiting_trains_leave_buffers_of_pool_to_receiver() {
        let eal = eal();
        let pool = Mempool::new(&eal, &MempoolConfig::for_mtu(4095, 1500)).unwrap();
        let offloads = Offloads { rings: true, ..Offloads::default() };
        let config = PortConfig { offloads, ..PortConfig::new(pool) };
        let (mut port, _far) = Port::ring_pair(&eal, "tx-full", 1, &config, &config).unwrap();
        let (_rx, queue) = port.take_queues().pop().unwrap();
        let mut tx = Tx::new(queue.into(), pool, ExternalMemory::new(16), None);
        let mem = RegionMemory::new(Arc::new(RegionTable::new(4, None)));
        let mut sink = tx.sink(Instant::ZERO, &mem);
        assert_eq!(sink.cuts(), 32);
        let train = Offload { tcp: true, ip: true, segment: 1000, ..Offload::default() };
        let mut trains = 0;
        while sink.room() > 0 {
            sink.begin_train(32_000, 1000);
            assert!(sink.whole(1066).is_some());
            for _ in 1..32 {
                assert!(sink.piece(1000).is_some());
            }
            sink.end(train);
            trains += 1;
        }
        drop(sink);
        // The ring has one, the rest waits.
        assert!((MANY_BUFFERS / 32..2 * MANY_BUFFERS / 32).contains(&trains), "{trains}");
        assert_eq!(tx.counters.tx_no_mbuf, 0);
        let (free, used) = tx.buffers();
        assert!(used as usize <= 2 * MANY_BUFFERS && free > 2048, "{used} used, {free} free");
        tx.clear();
        // Single segments may wait in any number up to the port's burst.
        let mut sink = tx.sink(Instant::ZERO, &mem);
        let mut frames = 0;
        while sink.room() > 0 {
            sink.begin(60);
            sink.bytes(&[0; 60]);
            sink.end(Offload::default());
            frames += 1;
        }
        assert_eq!(frames, TX_FRAMES);
    }
}
