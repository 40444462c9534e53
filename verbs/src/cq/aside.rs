//! Completions that the application's end holds itself, before those that workers write.
//!
//! A queue pair may end in two ways of which no worker tells the queue: its application destroys it, and wants none of
//! its completions any more; or its RNIC, another process, is gone, and nobody completes what is posted. In both cases
//! the completions in the rings are set aside, and what is to come out or in is taken out or put in there.

use std::sync::atomic::Ordering;

use heddle_iwarp::{Cqe, Qpn};

use super::{Consumer, Cq, Inner};
use crate::ring::layout::cq as at;

impl Cq {
    /// Drops the completions of a queue pair that has ended: none comes out from here on.
    pub fn forget(&self, qpn: Qpn) {
        let mut consumer = self.consumer();
        self.0.set_aside(&mut consumer);
        consumer.aside.retain(|c| c.qpn != qpn);
        self.0.tell_aside(&consumer);
    }

    /// Adds completions that no worker writes any more, behind those that are there.
    pub(crate) fn complete(&self, all: impl Iterator<Item = Cqe>) {
        let mut consumer = self.consumer();
        self.0.set_aside(&mut consumer);
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
