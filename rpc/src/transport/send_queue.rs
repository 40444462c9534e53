//! How much of a send queue is used.
//!
//! Most requests are signaled; some in front of another are not, and their places come back with that
//! one's. A connection asks for work without knowing how deep the queue is, so it is only asked when the
//! largest piece of work has room.

use std::collections::VecDeque;

use heddle_verbs::{PostError, Qp, SendWr};

/// The name of requests that no work of the connection is.
pub(crate) const UNNAMED: u64 = u64::MAX;

/// The places of a send queue.
#[derive(Debug)]
pub(crate) struct Places {
    depth: u32,
    used: u32,
    /// Places of each signaled request, with those of the unsignaled in front of it, in order.
    signaled: VecDeque<u32>,
    /// Unsignaled since the last that is signaled.
    loose: u32,
}

impl Places {
    /// Of a queue of `depth`.
    pub(crate) fn new(depth: u32) -> Places {
        let signaled = VecDeque::with_capacity(depth as usize);
        Places { depth, used: 0, signaled, loose: 0 }
    }

    /// Whether so many requests have room.
    pub(crate) const fn has_room(&self, requests: u32) -> bool {
        self.depth - self.used >= requests
    }

    /// A request was posted.
    fn take(&mut self, signaled: bool) {
        self.used += 1;
        self.loose += 1;
        if signaled {
            self.signaled.push_back(std::mem::take(&mut self.loose));
        }
    }

    /// A signaled request has completed.
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
        // One too many is a defect elsewhere, and harmless.
        places.completed();
        assert!(places.has_room(4) && !places.has_room(5));
    }
}
