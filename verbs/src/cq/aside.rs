//! Completions that the application's end holds itself, before those that workers write.
//!
//! A queue pair may end in two ways of which no worker tells the queue: its application destroys it, and wants none of
//! its completions any more; or its RNIC, another process, is gone, and nobody completes what is posted. In both cases
//! the completions in the rings are set aside, and what is to come out or in is taken out or put in there.

use std::sync::atomic::Ordering;

use heddle_iwarp::{Cqe, Qpn, Queue};

use super::{Consumer, Cq, Inner, retired_word, start_of};
use crate::ring::layout::cq as at;
use crate::ring::{cqe, low32};

impl Cq {
    /// Drops the completions of a queue pair that has ended: none comes out from here on.
    pub fn forget(&self, qpn: Qpn) {
        let mut consumer = self.consumer();
        self.0.set_aside(&mut consumer);
        consumer.aside.retain(|c| c.qpn != qpn);
        self.0.tell_aside(&consumer);
    }

    /// Adds completions of one queue of a queue pair that no worker writes any more, behind those that are there.
    /// Its worker may have staged some: they come before these if `retired`, the requests that the worker has retired
    /// (modulo 2^32), covers them. Their requests are complete then, and are none of `all`.
    pub(crate) fn complete(
        &self,
        (qpn, queue): (Qpn, Queue),
        retired: u32,
        all: impl Iterator<Item = Cqe>,
    ) {
        let mut consumer = self.consumer();
        // The first takes what lies in room that the worker has left, and the second what lies where it writes.
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

    /// Goes with each ring to where its worker writes. Returns true if all of them write to the newest room.
    pub(super) fn follow_all(&self) -> bool {
        let words = self.0.block.words();
        let newest = words.get(at::GENERATION).map(|w| w.load(Ordering::Acquire));
        let mut consumer = self.consumer();
        let has_followed =
            |consumer: &Consumer| consumer.rings.iter().all(|ring| Some(ring.generation) == newest);
        if has_followed(&consumer) {
            return true;
        }
        // The first takes what lies in the old room, and the second finds it empty.
        for _ in 0..2 {
            self.0.set_aside(&mut consumer);
        }
        self.0.tell_aside(&consumer);
        has_followed(&consumer)
    }
}

impl Inner {
    /// Takes what is in the rings.
    fn set_aside(&self, consumer: &mut Consumer) {
        let mut aside = std::mem::take(&mut consumer.aside);
        self.tell_aside(consumer);
        self.take(consumer, usize::MAX, |c| aside.push_back(c));
        consumer.aside = aside;
    }

    /// Takes those of the completions that a ring's worker has staged and not published which `is_wanted`, told
    /// how many requests of the completion's queue are retired with it.
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

    /// Tells threads that poll, and look without the lock, whether completions are set aside. None of them looks at the
    /// rings meanwhile: this end has emptied all of them.
    fn tell_aside(&self, consumer: &Consumer) {
        let Some(first) = self.ends.first() else { return };
        let head = first.head.load(Ordering::Relaxed);
        let some = u64::from(!consumer.aside.is_empty());
        first.tail.store(head.wrapping_sub(some), Ordering::Release);
    }
}
