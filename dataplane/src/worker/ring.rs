//! A ring from one thread to one other, in which neither ever waits for the other.
//!
//! The producer writes a place before it stores the index that publishes the place, once and with
//! release; the consumer loads the index first. So a thread that stops half-way, for however long,
//! has published nothing and blocks no other thread. The types guarantee that there is one thread
//! on each side: both ends take exclusive references.
//!
//! A place is a mutex only because safe code needs one to access a place that two threads share. No
//! thread finds it locked: the producer touches free places, the consumer published places. The
//! ring is for a few items for each connection, not for each packet.

use heddle_base::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use heddle_base::sync::{Arc, Mutex, MutexGuard, TryLockError};

use crossbeam_utils::CachePadded;

/// How a producer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The producer was dropped without a panic.
    Dropped,
    /// A panic dropped the producer.
    Panicked,
}

#[derive(Debug)]
struct Shared<T> {
    places: Box<[Mutex<Option<T>>]>,
    /// Items published since the beginning, modulo the size of a word; only the producer writes it.
    tail: CachePadded<AtomicUsize>,
    /// Items taken, in the same way; only the consumer writes it.
    head: CachePadded<AtomicUsize>,
    /// Whether, and how, the producer has ended.
    ended: AtomicU8,
    /// Whether the consumer has ended.
    deserted: AtomicBool,
}

const PRESENT: u8 = 0;
const DROPPED: u8 = 1;
const PANICKED: u8 = 2;

impl<T> Shared<T> {
    fn place(&self, index: usize) -> Option<MutexGuard<'_, Option<T>>> {
        // The number of places is a power of two, so that indices may wrap.
        match self.places.get(index & (self.places.len() - 1))?.try_lock() {
            Ok(place) => Some(place),
            // No code panics while it holds the lock, and an item is whole or absent.
            Err(TryLockError::Poisoned(place)) => Some(place.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The end that puts items in.
#[derive(Debug)]
pub(super) struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
}

/// The end that takes items out, in order.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
}

/// Makes the two ends of a ring for `size` items, a power of two.
pub(super) fn ring<T>(size: usize) -> (Producer<T>, Consumer<T>) {
    assert!(size.is_power_of_two());
    let shared = Arc::new(Shared {
        places: (0..size).map(|_| Mutex::new(None)).collect(),
        tail: CachePadded::default(),
        head: CachePadded::default(),
        ended: AtomicU8::new(PRESENT),
        deserted: AtomicBool::new(false),
    });
    (Producer { shared: shared.clone(), tail: 0 }, Consumer { shared, head: 0 })
}

impl<T> Producer<T> {
    /// Puts an item in; returns the item if there is no room.
    pub(super) fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        let Some(mut place) = self.shared.place(self.tail) else { return Err(item) };
        *place = Some(item);
        drop(place);
        self.tail = self.tail.wrapping_add(1);
        // Release: the consumer that sees the new tail sees the item stored before it.
        self.shared.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Returns true if there is no room at this moment.
    pub(super) fn is_full(&self) -> bool {
        // Acquire: the consumer has emptied a place before it advanced the head past the place.
        let head = self.shared.head.load(Ordering::Acquire);
        self.tail.wrapping_sub(head) >= self.shared.places.len()
    }

    /// Returns true if half of the places or more are taken at this moment.
    pub(super) fn is_half_full(&self) -> bool {
        let head = self.shared.head.load(Ordering::Acquire);
        self.tail.wrapping_sub(head) >= self.shared.places.len() / 2
    }

    /// Returns true if the consumer has ended, so that no thread takes items any more.
    pub(super) fn is_deserted(&self) -> bool {
        // Acquire: `reclaim` needs the head that the consumer stored before it ended.
        self.shared.deserted.load(Ordering::Acquire)
    }

    /// Takes back the oldest item that the consumer, which has ended, never takes.
    pub(super) fn reclaim(&mut self) -> Option<T> {
        if !self.is_deserted() {
            return None;
        }
        // The consumer's words belong to this end now; the load above acquired them.
        let head = self.shared.head.load(Ordering::Relaxed);
        if head == self.tail {
            return None;
        }
        self.shared.head.store(head.wrapping_add(1), Ordering::Relaxed);
        self.shared.place(head)?.take()
    }

    /// Notes that nothing more comes, and whether that is because of a panic.
    pub(super) fn end(&mut self, panicked: bool) {
        let how = if panicked { PANICKED } else { DROPPED };
        // Set `ended` only once. Release: a consumer that sees the end sees every item published
        // before.
        let _ =
            self.shared.ended.compare_exchange(PRESENT, how, Ordering::Release, Ordering::Relaxed);
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.end(std::thread::panicking());
    }
}

impl<T> Consumer<T> {
    /// Returns the oldest item.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.is_empty() { None } else { self.take() }
    }

    fn take(&mut self) -> Option<T> {
        let item = self.shared.place(self.head)?.take();
        self.head = self.head.wrapping_add(1);
        // Release: the producer that sees the new head finds the place emptied.
        self.shared.head.store(self.head, Ordering::Release);
        item
    }

    /// Returns true if there is nothing to take at this moment.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        // Acquire: the items were stored before the tail.
        self.shared.tail.load(Ordering::Acquire) == self.head
    }

    /// Returns how the producer has ended, if it has ended and every item was taken.
    pub(super) fn end(&self) -> Option<End> {
        // Acquire, and before `is_empty`: the producer publishes no item after the end.
        let how = match self.shared.ended.load(Ordering::Acquire) {
            PRESENT => return None,
            PANICKED => End::Panicked,
            _ => End::Dropped,
        };
        self.is_empty().then_some(how)
    }

    /// Leaves the items that were not taken to the producer.
    pub(super) fn desert(&mut self) {
        // Release: the producer that sees the end sees the last head.
        self.shared.deserted.store(true, Ordering::Release);
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.desert();
    }
}

#[cfg(test)]
impl<T> Producer<T> {
    /// Stops half-way in a push while `f` runs: the place is claimed and written but not published.
    pub(super) fn half_push<R>(&mut self, item: T, f: impl FnOnce() -> R) -> R {
        let mut place = self.shared.place(self.tail).expect("it is free");
        *place = Some(item);
        let result = f();
        *place = None;
        result
    }
}

#[cfg(all(test, feature = "loom"))]
mod model {
    //! `cargo test -p heddle-dataplane --features loom --lib model`; see `heddle_base::sync`.

    use loom::thread;

    use super::*;

    /// With more items than places, the consumer takes each item once, in order, and the end comes
    /// after the last.
    #[test]
    fn test_items_come_in_order_and_the_end_after_them() {
        loom::model(|| {
            let (mut p, mut c) = ring(2);
            p.push(1).unwrap();
            let producer = thread::spawn(move || {
                p.push(2).unwrap();
                if p.push(3).is_ok() { 3 } else { 2 }
            });
            let mut seen: Vec<u32> = c.pop().into_iter().collect();
            // Load the end before the items: no item may come after it.
            let ended = c.end().is_some();
            let rest = std::iter::from_fn(|| c.pop());
            let found = rest.count();
            assert!(!ended || found == 0, "an item came after the end");
            seen.extend(2..2 + found as u32);
            let pushed = producer.join().unwrap();
            let left = std::iter::from_fn(|| c.pop()).count();
            assert_eq!((seen.len() + left, c.end()), (pushed, Some(End::Dropped)));
        });
    }

    /// The consumer ends while the producer pushes: each item is taken or comes back, once.
    #[test]
    fn test_each_item_is_taken_or_reclaimed_once_when_consumer_ends() {
        loom::model(|| {
            let (mut p, mut c) = ring(2);
            p.push(1).unwrap();
            let consumer = thread::spawn(move || c.pop().is_some());
            let pushed = p.push(2).is_ok();
            let taken = consumer.join().unwrap();
            let back: Vec<u32> = std::iter::from_fn(|| p.reclaim()).collect();
            assert_eq!(back, if taken { &[2][..] } else { &[1, 2] });
            assert!(pushed);
        });
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn test_items_come_out_in_order_and_a_full_ring_hands_them_back() {
        let (mut p, mut c) = ring(4);
        let (mut next, mut seen) = (0, 0);
        for round in 0..50 {
            while p.push(next).is_ok() {
                next += 1;
            }
            assert_eq!((next - seen, p.is_full(), p.push(999)), (4, true, Err(999)));
            for _ in 0..=round % 4 {
                assert_eq!(c.pop(), Some(seen));
                seen += 1;
            }
        }
        let rest: Vec<i32> = std::iter::from_fn(|| c.pop()).collect();
        assert_eq!((rest, c.is_empty()), ((seen..next).collect(), true));
    }

    /// Indices work after they have wrapped.
    #[test]
    fn test_ring_works_after_indices_wrap() {
        let (mut p, mut c) = ring(2);
        let near = usize::MAX - 1;
        (p.tail, c.head) = (near, near);
        p.shared.tail.store(near, Ordering::Relaxed);
        p.shared.head.store(near, Ordering::Relaxed);
        for n in 0..5 {
            assert_eq!((p.push(n), p.push(n + 1), p.push(0)), (Ok(()), Ok(()), Err(0)));
            assert_eq!((c.pop(), c.pop(), c.pop()), (Some(n), Some(n + 1), None));
        }
    }

    #[test]
    fn test_half_finished_push_does_not_block_consumer() {
        let (mut p, mut c) = ring(4);
        p.push(1).unwrap();
        p.half_push(2, || {
            assert_eq!((c.pop(), c.pop(), c.is_empty(), c.end()), (Some(1), None, true, None));
        });
        p.push(3).unwrap();
        assert_eq!(c.pop(), Some(3));
    }

    #[test]
    fn test_consumer_sees_end_after_all_items_pushed_before() {
        let (mut p, mut c) = ring(4);
        p.push(1).unwrap();
        assert_eq!(c.end(), None);
        drop(p);
        assert_eq!((c.end(), c.pop(), c.end()), (None, Some(1), Some(End::Dropped)));
        let (p, c) = ring::<u8>(4);
        let panicked = std::thread::spawn(move || {
            let _p = p;
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert_eq!(c.end(), Some(End::Panicked));
    }

    #[test]
    fn test_producer_reclaims_items_left_by_dropped_consumer() {
        let (mut p, mut c) = ring(4);
        for n in 1..=4 {
            p.push(n).unwrap();
        }
        assert_eq!((c.pop(), p.is_deserted(), p.reclaim()), (Some(1), false, None));
        drop(c);
        assert!(p.is_deserted());
        // An item that is pushed too late comes back as well.
        p.push(5).unwrap();
        let left: Vec<u8> = std::iter::from_fn(|| p.reclaim()).collect();
        assert_eq!(left, [2, 3, 4, 5]);
    }

    #[test]
    fn test_two_threads_pass_everything_in_order() {
        const N: u32 = 5_000;
        let (mut p, mut c) = ring(16);
        let taker = std::thread::spawn(move || {
            let mut next = 0;
            while c.end().is_none() {
                match c.pop() {
                    Some(n) => {
                        assert_eq!(n, next);
                        next += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
            next
        });
        for n in 0..N {
            while p.push(n).is_err() {
                std::thread::yield_now();
            }
        }
        drop(p);
        assert_eq!(taker.join().unwrap(), N);
    }
}
