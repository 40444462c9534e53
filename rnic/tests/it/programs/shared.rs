//! Receive buffers that streams of a host share: the queue, and the stream that has each buffer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use arrayvec::ArrayVec;
use heddle_base::Random;
use heddle_engine::{SharedBroken, SharedReceives};
use heddle_types::{Sge, wr::MAX_SGES};

use crate::programs::stream::{Buffer, NO_BUFFER};
use crate::programs::world::{GUARD, World};

/// The fewest bytes of each buffer.
pub const SHARED_BUFFER: usize = 1500;

/// The bound (exclusive) of the bytes beyond [`SHARED_BUFFER`].
pub const MORE: usize = 40;

/// The application's end, and that of all queue pairs.
pub type Queue = Arc<Mutex<Buffers>>;

#[derive(Debug, Default)]
pub struct Buffers {
    left: VecDeque<(Buffer, Vec<Sge>)>,
    /// Buffers taken since the last look, and the stream that took each.
    taken: Vec<(usize, Buffer)>,
}

/// A queue pair's end.
#[derive(Debug)]
pub struct Taker {
    pub stream: usize,
    pub queue: Queue,
}

impl SharedReceives for Taker {
    fn take(&mut self, sges: &mut ArrayVec<Sge, MAX_SGES>) -> Result<Option<u64>, SharedBroken> {
        let mut queue = self.queue.lock().unwrap();
        let Some((buffer, pieces)) = queue.left.pop_front() else { return Ok(None) };
        let id = buffer.id;
        sges.extend(pieces);
        queue.taken.push((self.stream, buffer));
        Ok(Some(id))
    }
}

impl World {
    /// Posts a buffer for the stream that gets the next message.
    pub fn post_shared(&mut self, r: &mut Random, me: usize) {
        let len = SHARED_BUFFER + r.below(MORE as u64) as usize;
        let Some(at) = self.allocate(me, len) else { return self.starve(me) };
        let sges = self.pieces(r, self.regions[me].receives.stag, at, len);
        let buffer = Buffer { id: 1_000_000 + at as u64, at, len };
        self.shared[me].lock().unwrap().left.push_back((buffer, sges));
    }

    /// Notes that there may be fewer buffers than messages.
    pub fn starve(&mut self, host: usize) {
        for stream in self.streams.iter_mut().filter(|s| s.plan.shared[host]) {
            stream.excuse(&[NO_BUFFER]);
        }
    }

    /// Assigns the buffers taken to the streams that have taken them.
    pub fn hand_out(&mut self, me: usize) {
        for (s, buffer) in std::mem::take(&mut self.shared[me].lock().unwrap().taken) {
            let end = &mut self.streams[s].ends[me];
            assert_eq!(end.over, None, "a stream that is over took {buffer:?}");
            end.buffers.push_back(buffer);
            self.outcome.count("taken", 1);
        }
    }

    /// Checks that a queue pair has at most one buffer that is not complete.
    pub fn check_held(&self, me: usize) {
        for stream in self.streams.iter().filter(|s| s.plan.shared[me]) {
            let held = &stream.ends[me].buffers;
            assert!(held.len() <= 1, "took more than it needs: {held:?}");
        }
    }

    /// Checks that buffers that no stream took are unchanged.
    pub fn check_left(&mut self, me: usize) {
        let queue = self.shared[me].clone();
        let queue = queue.lock().unwrap();
        for (buffer, _) in &queue.left {
            let found = self.pair.hosts[me].mem.read(buffer.at, buffer.len);
            assert!(found.iter().all(|b| *b == GUARD), "stores to a buffer that nobody took");
        }
        self.outcome.count("left", queue.left.len() as u64);
    }
}
