//! Completions that the application's end holds itself, before those that workers write.
//!
//! A queue pair may end in two ways that no worker reports to the queue: its application destroys
//! the queue pair, and wants none of its completions any more; or its RNIC, another process, no
//! longer exists, and no worker completes the posted requests. In both cases the application's end
//! sets the completions in the rings aside, and removes or adds completions there.

use std::sync::atomic::Ordering;

use heddle_rings::layout::cq as at;
use heddle_rings::{cqe, low32};
use heddle_types::{Cqe, CqeStatus, Qpn, Queue};

use super::{Consumer, Cq, Inner, retired_word, start_of};

impl Cq {
    /// Drops the completions of a queue pair that has ended: no poll returns them from here on.
    pub fn forget(&self, qpn: Qpn) {
        let mut consumer = self.consumer();
        self.0.set_aside(&mut consumer);
        consumer.aside.retain(|c| c.qpn != qpn);
        self.0.tell_aside(&consumer);
    }

    /// Returns true if a request of this queue pair has succeeded, and its completion waits to be polled.
    pub fn has_success_of(&self, qpn: Qpn) -> bool {
        let consumer = self.consumer();
        let is_wanted = |c: &Cqe| c.qpn == qpn && c.status == CqeStatus::Success;
        let in_rings = || {
            self.0.ends.iter().zip(&consumer.rings).enumerate().any(|(ring, (end, entries))| {
                let head = end.head.load(Ordering::Relaxed);
                let tail = self.0.block.words().get(start_of(ring).wrapping_add(at::TAIL));
                let tail = tail.map_or(head, |w| w.load(Ordering::Acquire));
                let waiting = tail.wrapping_sub(head).min(entries.size);
                let slots = (0..waiting).map(|i| entries.slot(ring, head.wrapping_add(i)));
                slots
                    .flatten()
                    .filter_map(|slot| cqe::decode(cqe::load(slot)))
                    .any(|c| is_wanted(&c))
            })
        };
        consumer.aside.iter().any(is_wanted) || in_rings()
    }

    /// Adds completions of one queue of a queue pair that no worker writes any more, after those
    /// already there. The queue pair's worker may have staged completions: they come before the
    /// added ones if `retired`, the number of requests that the worker has retired (modulo 2^32),
    /// covers them. Their requests are complete then, and `all` contains none of these requests.
    pub(crate) fn complete(
        &self,
        (qpn, queue): (Qpn, Queue),
        retired: u32,
        all: impl Iterator<Item = Cqe>,
    ) {
        let mut consumer = self.consumer();
        // A ring may have completions in room that its worker has left, which the first pass takes,
        // and in the room where its worker writes, which the second pass takes.
        for _ in 0..2 {
            self.0.set_aside(&mut consumer);
        }
        for ring in 0..self.0.ends.len() {
            self.0.take_staged(&mut consumer, ring, |c, after| {
                c.qpn == qpn && c.queue == queue && retired.wrapping_sub(after) <= u32::MAX / 2
            });
        }
        consumer.aside.extend(all);
        self.0.tell_aside(&consumer);
    }

    /// Follows each ring to the room where its worker writes. Returns true if all workers write to
    /// the newest room.
    pub(super) fn follow_all(&self) -> bool {
        let words = self.0.block.words();
        let newest = words.get(at::GENERATION).map(|w| w.load(Ordering::Acquire));
        let mut consumer = self.consumer();
        let has_followed =
            |consumer: &Consumer| consumer.rings.iter().all(|ring| Some(ring.generation) == newest);
        if has_followed(&consumer) {
            return true;
        }
        // The first pass takes the completions in the old room, and the second finds the old room
        // empty.
        for _ in 0..2 {
            self.0.set_aside(&mut consumer);
        }
        self.0.tell_aside(&consumer);
        has_followed(&consumer)
    }
}

impl Inner {
    /// Moves the completions in the rings to those set aside.
    fn set_aside(&self, consumer: &mut Consumer) {
        let mut aside = std::mem::take(&mut consumer.aside);
        self.tell_aside(consumer);
        self.take(consumer, usize::MAX, |c| aside.push_back(c));
        consumer.aside = aside;
    }

    /// Takes completions that a ring's worker has staged and not published, as far as `is_wanted`
    /// returns true for them. `is_wanted` also gets the number of requests of the completion's
    /// queue that are retired with the completion.
    fn take_staged(
        &self,
        consumer: &mut Consumer,
        ring: usize,
        is_wanted: impl Fn(&Cqe, u32) -> bool,
    ) {
        let get = |i: usize| {
            let word = self.block.words().get(start_of(ring).wrapping_add(i));
            word.map_or(0, |w| w.load(Ordering::Acquire))
        };
        let (tail, staged) = (get(at::TAIL), get(at::STAGED));
        let Consumer { rings, aside, .. } = consumer;
        let Some(entries) = rings.get(ring) else { return };
        // A worker of an older build stages nothing, and leaves the word at 0.
        if staged.wrapping_sub(tail) > entries.size {
            return;
        }
        let slots =
            (0..staged.wrapping_sub(tail)).map(|i| entries.slot(ring, tail.wrapping_add(i)));
        let all = slots.flatten().filter_map(|slot| cqe::decode(cqe::load(slot)));
        aside.extend(all.filter(|c| is_wanted(c, low32(get(retired_word(c.queue))))));
    }

    #[cold]
    pub(super) fn take_aside(&self, consumer: &mut Consumer) -> Option<Cqe> {
        let oldest = consumer.aside.pop_front();
        self.tell_aside(consumer);
        oldest
    }

    /// Shows threads that poll, and look without the lock, whether completions are set aside. None
    /// of these threads looks at the rings meanwhile: this end has emptied all rings.
    fn tell_aside(&self, consumer: &Consumer) {
        let Some(first) = self.ends.first() else { return };
        let head = first.head.load(Ordering::Relaxed);
        let some = u64::from(!consumer.aside.is_empty());
        first.tail.store(head.wrapping_sub(some), Ordering::Release);
    }
}
