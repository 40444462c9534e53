//! A ring from one thread to one other, in which neither ever waits for the other.
//!
//! A place is written before the index that publishes it is stored, once and with release; the other
//! side looks at the index first. So a thread that stops half-way, for however long, has published
//! nothing and holds up nobody. That there is one thread on each side is a matter of types: both ends
//! are used by exclusive reference.
//!
//! A place is a mutex only because that is how safe code says whose it is at the moment. Nobody
//! finds it locked: the producer touches places that are free, the consumer those that are published.
//! It is for a few items for each connection, not for each packet.

use heddle_base::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use heddle_base::sync::{Arc, Mutex, MutexGuard, TryLockError};

use crossbeam_utils::CachePadded;

/// How a producer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It was dropped.
    Dropped,
    /// It was dropped by a panic.
    Panicked,
}

#[derive(Debug)]
struct Shared<T> {
    places: Box<[Mutex<Option<T>>]>,
    /// Items published since the beginning, modulo the size of a word; the producer's to write.
    tail: CachePadded<AtomicUsize>,
    /// Items taken, in the same way; the consumer's to write.
    head: CachePadded<AtomicUsize>,
    /// Whether, and how, the producer has ended.
    ended: AtomicU8,
    /// Whether the consumer has.
    deserted: AtomicBool,
}

const PRESENT: u8 = 0;
const DROPPED: u8 = 1;
const PANICKED: u8 = 2;

impl<T> Shared<T> {
    fn place(&self, index: usize) -> Option<MutexGuard<'_, Option<T>>> {
        // A power of two, so that indices may wrap.
        match self.places.get(index & (self.places.len() - 1))?.try_lock() {
            Ok(place) => Some(place),
            // Nothing panics with it, and an item is whole or not there.
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

/// The end that takes them out, in order.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
}

/// The two ends of a ring for `size` items, a power of two.
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
    /// Puts an item in; hands it back when there is no room.
    pub(super) fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        let Some(mut place) = self.shared.place(self.tail) else { return Err(item) };
        *place = Some(item);
        drop(place);
        self.tail = self.tail.wrapping_add(1);
        // Release: the item was stored before.
        self.shared.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Whether there is no room at this moment.
    pub(super) fn is_full(&self) -> bool {
        // Acquire: the consumer has emptied a place before it gave it back.
        let head = self.shared.head.load(Ordering::Acquire);
        self.tail.wrapping_sub(head) >= self.shared.places.len()
    }

    /// Whether half of the places or more are taken at this moment.
    pub(super) fn is_half_full(&self) -> bool {
        let head = self.shared.head.load(Ordering::Acquire);
        self.tail.wrapping_sub(head) >= self.shared.places.len() / 2
    }

    /// Whether there is nobody to take anything any more.
    pub(super) fn is_deserted(&self) -> bool {
        self.shared.deserted.load(Ordering::Acquire)
    }

    /// The oldest item that was not taken and never will be: the consumer is gone.
    pub(super) fn reclaim(&mut self) -> Option<T> {
        if !self.is_deserted() {
            return None;
        }
        // The consumer's words are this end's now; the load above acquired them.
        let head = self.shared.head.load(Ordering::Relaxed);
        if head == self.tail {
            return None;
        }
        self.shared.head.store(head.wrapping_add(1), Ordering::Relaxed);
        self.shared.place(head)?.take()
    }

    /// Says that nothing more comes, and whether that is because of a panic.
    pub(super) fn end(&mut self, panicked: bool) {
        let how = if panicked { PANICKED } else { DROPPED };
        // Once. Release: what was published before is seen by whoever sees this.
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
    /// The oldest item.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.is_empty() { None } else { self.take() }
    }

    fn take(&mut self) -> Option<T> {
        let item = self.shared.place(self.head)?.take();
        self.head = self.head.wrapping_add(1);
        // Release: the place was emptied before.
        self.shared.head.store(self.head, Ordering::Release);
        item
    }

    /// Whether there is nothing to take at this moment.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        // Acquire: the items were stored before.
        self.shared.tail.load(Ordering::Acquire) == self.head
    }

    /// How the producer has ended, if it has and everything was taken.
    pub(super) fn end(&self) -> Option<End> {
        // Acquire, and before the look at the items: none is published after it.
        let how = match self.shared.ended.load(Ordering::Acquire) {
            PRESENT => return None,
            PANICKED => End::Panicked,
            _ => End::Dropped,
        };
        self.is_empty().then_some(how)
    }

    /// Leaves what was not taken to the producer.
    pub(super) fn desert(&mut self) {
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
    /// Stops half-way in a push while `f` runs: the place is claimed, written and not published.
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

    /// More items than places: each is taken once, in order, and the end is reported after the last.
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
            // The end before the items: what is taken after it is all there was.
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

    /// The consumer goes while the producer pushes: each item is taken or comes back, once.
    #[test]
    fn test_items_that_a_gone_consumer_left_come_back() {
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

    /// Indices that have wrapped are as good as any.
    #[test]
    fn test_indices_wrap() {
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
    fn test_a_push_that_stops_half_way_holds_nobody_up() {
        let (mut p, mut c) = ring(4);
        p.push(1).unwrap();
        p.half_push(2, || {
            assert_eq!((c.pop(), c.pop(), c.is_empty(), c.end()), (Some(1), None, true, None));
        });
        p.push(3).unwrap();
        assert_eq!(c.pop(), Some(3));
    }

    #[test]
    fn test_an_end_is_told_after_everything_before_it() {
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
    fn test_what_was_not_taken_comes_back_when_the_consumer_is_gone() {
        let (mut p, mut c) = ring(4);
        for n in 1..=4 {
            p.push(n).unwrap();
        }
        assert_eq!((c.pop(), p.is_deserted(), p.reclaim()), (Some(1), false, None));
        drop(c);
        assert!(p.is_deserted());
        // One that comes too late as well.
        p.push(5).unwrap();
        let left: Vec<u8> = std::iter::from_fn(|| p.reclaim()).collect();
        assert_eq!(left, [2, 3, 4, 5]);
    }

    #[test]
    fn test_two_threads() {
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
