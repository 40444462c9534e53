//! The used places of a send queue.
//!
//! Most requests are signaled. Some requests are unsignaled and precede a signaled request, and
//! their places come back with the places of that request. A connection asks for work without
//! knowing the depth of the queue, so the link asks it only when the largest piece of work has
//! room.

use std::collections::VecDeque;

use heddle_verbs::{PostError, Qp, SendWr};

/// The name of requests that belong to no named work of the connection.
pub(crate) const UNNAMED: u64 = u64::MAX;

/// The number of unsignaled requests in a row after which a request that need not be signaled is:
/// a fraction of the shortest send queue.
const LOOSE_MAX: u32 = 16;

/// The places of a send queue.
#[derive(Debug)]
pub(crate) struct Places {
    depth: u32,
    used: u32,
    /// Places of each signaled request, with those of the unsignaled requests before it, in order.
    signaled: VecDeque<u32>,
    /// Places of unsignaled requests since the last signaled request.
    loose: u32,
}

impl Places {
    /// Creates the places of a queue of `depth`.
    pub(crate) fn new(depth: u32) -> Places {
        let signaled = VecDeque::with_capacity(depth as usize);
        Places { depth, used: 0, signaled, loose: 0 }
    }

    /// Returns true if `requests` requests have room.
    pub(crate) const fn has_room(&self, requests: u32) -> bool {
        self.depth - self.used >= requests
    }

    /// Returns true if so many unsignaled requests have been posted in a row that the next should be
    /// signaled.
    pub(crate) const fn is_signal_due(&self) -> bool {
        self.loose >= LOOSE_MAX
    }

    /// Takes the place of a posted request.
    fn take(&mut self, signaled: bool) {
        self.used += 1;
        self.loose += 1;
        if signaled {
            self.signaled.push_back(std::mem::take(&mut self.loose));
        }
    }

    /// Frees the places of the oldest signaled request, which has completed.
    pub(crate) fn completed(&mut self) {
        self.used -= self.signaled.pop_front().unwrap_or(0);
    }

    /// Posts a request.
    pub(crate) fn post(&mut self, qp: &Qp, wr: &SendWr<'_>) -> Result<(), PostError> {
        qp.post_send(wr)?;
        self.take(wr.signaled);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_places_of_unsignaled_requests_come_back_with_the_next_signaled() {
        let mut places = Places::new(4);
        [true, false, false, true].into_iter().for_each(|signaled| places.take(signaled));
        assert!(!places.has_room(1));
        places.completed();
        assert!(places.has_room(1) && !places.has_room(2));
        places.completed();
        assert!(places.has_room(4));
        // A completion too many is a defect elsewhere, and harmless here.
        places.completed();
        assert!(places.has_room(4) && !places.has_room(5));
    }
}
