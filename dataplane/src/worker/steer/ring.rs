//! A ring of frames from one worker to one other, in which neither ever waits for the other.
//!
//! This ring works like the ring of orders (`worker/ring.rs`), but for each frame: a place is a
//! pointer, and one store publishes any number of frames. The last of the two ends frees the frames
//! that are left, so a worker that ends leaks nothing and blocks no other worker.

use heddle_base::sync::Arc;
use heddle_base::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;
use heddle_dpdk_sys as sys;
use heddle_rings::wakeup::WorkerWaker;

use crate::Mbuf;

#[derive(Debug)]
struct Shared {
    /// The number of places is a power of two, so that indices may wrap. A place belongs to the
    /// producer, or, after it was published and before it is taken, to the consumer; the indices
    /// say which.
    places: Box<[AtomicPtr<sys::rte_mbuf>]>,
    /// Frames published since the beginning, modulo the size of a word; only the producer writes
    /// it.
    tail: CachePadded<AtomicUsize>,
    /// Frames taken, in the same way; only the consumer writes it.
    head: CachePadded<AtomicUsize>,
    /// The consumer has ended.
    deserted: AtomicBool,
}

impl Shared {
    #[inline]
    fn place(&self, index: usize) -> &AtomicPtr<sys::rte_mbuf> {
        &self.places[index & (self.places.len() - 1)]
    }

    /// Takes the frame out of a published place.
    ///
    /// # Safety
    /// The place was published and not taken, and the caller is the only one that takes from this
    /// ring: no other thread has, or will have, the frame.
    #[inline]
    unsafe fn take(&self, index: usize) -> Option<Mbuf> {
        let frame = NonNull::new(self.place(index).load(Ordering::Relaxed))?;
        // SAFETY: the frame was a whole owned chain when the producer put it in
        // (`Mbuf::into_raw`), and the caller guarantees that the frame is handed out once.
        Some(unsafe { Mbuf::from_raw(frame) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Both ends have been dropped, and the drop of the `Arc` acquires their stores.
        let (head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
        for n in 0..tail.wrapping_sub(head) {
            // SAFETY: published and not taken, and both ends have been dropped.
            drop(unsafe { self.take(head.wrapping_add(n)) });
        }
    }
}

/// The end that puts frames in.
#[derive(Debug)]
pub(super) struct FrameSender {
    shared: Arc<Shared>,
    tail: usize,
    /// The consumer's index when it was last loaded: the consumer may have advanced since.
    head: usize,
    /// Wakes the consumer's thread.
    waker: Option<WorkerWaker>,
}

/// The end that takes frames out, in order.
#[derive(Debug)]
pub(super) struct FrameReceiver {
    shared: Arc<Shared>,
    head: usize,
    /// The producer's index when it was last loaded.
    tail: usize,
}

/// Makes the two ends of a ring for `size` frames, a power of two.
pub(super) fn ring(size: usize) -> (FrameSender, FrameReceiver) {
    assert!(size.is_power_of_two());
    let shared = Arc::new(Shared {
        places: (0..size).map(|_| AtomicPtr::default()).collect(),
        tail: CachePadded::default(),
        head: CachePadded::default(),
        deserted: AtomicBool::new(false),
    });
    (
        FrameSender { shared: shared.clone(), tail: 0, head: 0, waker: None },
        FrameReceiver { shared, head: 0, tail: 0 },
    )
}

impl FrameSender {
    /// Returns this sender with a waker: its frames wake the consumer's thread if the thread
    /// sleeps.
    pub(super) fn waking(self, waker: Option<WorkerWaker>) -> FrameSender {
        FrameSender { waker, ..self }
    }

    /// Moves frames from the front of `frames` into the ring, as many as there is room for; returns
    /// how many.
    #[inline]
    pub(super) fn push_all<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) -> usize {
        let size = self.shared.places.len();
        let mut room = size - self.tail.wrapping_sub(self.head);
        if room < frames.len() {
            // Acquire: the consumer has read a place before it advanced the head past the place.
            self.head = self.shared.head.load(Ordering::Acquire);
            room = size - self.tail.wrapping_sub(self.head);
        }
        let n = room.min(frames.len());
        for frame in frames.drain(..n) {
            self.shared.place(self.tail).store(frame.into_raw().as_ptr(), Ordering::Relaxed);
            self.tail = self.tail.wrapping_add(1);
        }
        // Release: the frames, and their places, were written before.
        self.shared.tail.store(self.tail, Ordering::Release);
        if let Some(waker) = &self.waker {
            waker.wake();
        }
        n
    }

    /// Returns true if the consumer has ended, so that no thread takes frames any more.
    #[inline]
    pub(super) fn is_deserted(&self) -> bool {
        // Relaxed: a late answer does no harm, because dropping the producer's end frees the frames
        // that were pushed meanwhile.
        self.shared.deserted.load(Ordering::Relaxed)
    }
}

impl FrameReceiver {
    /// Appends frames to `out`, at most `most` and no more than it has room for; returns how many.
    #[inline]
    pub(super) fn pop_into<const N: usize>(
        &mut self,
        out: &mut ArrayVec<Mbuf, N>,
        most: usize,
    ) -> usize {
        if self.head == self.tail {
            // Acquire: published frames were written before the tail.
            self.tail = self.shared.tail.load(Ordering::Acquire);
        }
        let there = self.tail.wrapping_sub(self.head);
        let n = there.min(most).min(out.remaining_capacity());
        if n == 0 {
            return 0;
        }
        for _ in 0..n {
            // SAFETY: between the indices: published and not taken, and this is the only consumer.
            out.extend(unsafe { self.shared.take(self.head) });
            self.head = self.head.wrapping_add(1);
        }
        // Release: the places were read before.
        self.shared.head.store(self.head, Ordering::Release);
        n
    }
}

impl Drop for FrameReceiver {
    fn drop(&mut self) {
        // Dropping the producer's end frees frames that come later.
        self.shared.deserted.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl FrameSender {
    /// Begins with other indices. The ring must be empty.
    pub(super) fn start_at(&mut self, index: usize, other: &mut FrameReceiver) {
        (self.tail, self.head, other.head, other.tail) = (index, index, index, index);
        self.shared.tail.store(index, Ordering::Relaxed);
        self.shared.head.store(index, Ordering::Relaxed);
    }
}

#[cfg(all(test, feature = "loom"))]
mod model {
    //! `cargo test -p heddle-dataplane --features loom --lib model`; see `heddle_base::sync`.

    use loom::thread;

    use super::*;

    /// Returns a number as a frame: the test never reads it as an mbuf, and forgets it in time.
    fn frame(n: usize) -> Mbuf {
        let address = NonNull::new(std::ptr::without_provenance_mut(n)).expect("not zero");
        // SAFETY: this is no frame. The tests take the value out again and forget it, which touches
        // no memory.
        unsafe { Mbuf::from_raw(address) }
    }

    fn numbers(frames: &mut ArrayVec<Mbuf, 4>) -> Vec<usize> {
        frames.drain(..).map(|f| f.into_raw().as_ptr().addr()).collect()
    }

    #[test]
    fn test_frames_come_once_and_in_order_through_places_that_are_used_again() {
        loom::model(|| {
            let (mut tx, mut rx) = ring(2);
            let mut first: ArrayVec<Mbuf, 4> = [frame(64), frame(128)].into_iter().collect();
            assert_eq!(tx.push_all(&mut first), 2);
            let sender = thread::spawn(move || {
                let mut more: ArrayVec<Mbuf, 4> = [frame(192), frame(256)].into_iter().collect();
                let sent = tx.push_all(&mut more);
                numbers(&mut more);
                (tx, sent)
            });
            let mut out = ArrayVec::new();
            rx.pop_into(&mut out, 4);
            let mut seen = numbers(&mut out);
            let (_tx, sent) = sender.join().unwrap();
            while rx.pop_into(&mut out, 4) > 0 {
                seen.extend(numbers(&mut out));
            }
            assert_eq!(seen, [64, 128, 192, 256][..2 + sent]);
        });
    }
}
