//! Looking ahead: the connections of a burst, before its frames are handled.
//!
//! A segment needs its slot of the flow table, then the connection that the slot names. With many
//! connections both come from memory, one after the other, for each frame anew. The stack therefore
//! hashes the flows of a whole burst first; the slots, and later the connections, come while the
//! stack works on the frames before. A look ahead decides nothing: when the frame's turn comes, the
//! stack compares the flow with that of the connection, and looks it up if they differ.

use heddle_base::Fetch;

use super::frame::RxFrame;
use super::plain::{Plain4, Plain6, Shape};
use super::{NONE, Stack};

/// Frames of a burst.
const BURST: usize = 64;

/// Connections from which looking ahead pays: their state, and that of their queue pairs, exceeds
/// the first cache of a processor several times.
const WIDE: usize = 128;

/// The flow of a frame is not looked up yet.
const UNKNOWN: u32 = NONE - 1;
/// The frame belongs to the flow of the frame before.
const SAME: u32 = NONE - 2;

/// The flows of a burst.
#[derive(Debug)]
pub(super) struct Ahead {
    hashes: [u32; BURST],
    /// The index of the connection, or one of the values above.
    found: [u32; BURST],
    /// Frames that were looked at, and the next of them to be handled.
    len: usize,
    next: usize,
}

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead { hashes: [0; BURST], found: [NONE; BURST], len: 0, next: 0 }
    }
}

impl Ahead {
    /// Returns the connection that the next frame seems to be for.
    #[inline]
    pub(super) fn hint(&self) -> Option<u32> {
        (self.next < self.len).then(|| self.found[self.next % BURST])
    }

    /// Notes that the stack has handled so many frames.
    #[inline]
    pub(super) fn pass(&mut self, frames: u32) {
        if self.next < self.len {
            self.next += frames as usize;
        }
    }
}

impl<S> Stack<S> {
    /// Returns true if there are so many connections that looking ahead pays.
    #[inline]
    pub fn is_wide(&self) -> bool {
        self.conns.len() >= WIDE
    }

    /// Looks at the frames of a burst, the next to be handled, and fetches their slots in the flow
    /// table.
    pub fn look_ahead<F: RxFrame>(&mut self, frames: &[Option<F>], fetch: impl Fetch) {
        let Ahead { hashes, found, len, next } = &mut *self.ahead;
        let mut last = None;
        (*len, *next) = (frames.len().min(BURST), 0);
        for ((frame, hash), found) in frames.iter().zip(hashes).zip(found) {
            let flow = frame.as_ref().and_then(|f| {
                let (head, len) = (f.chunk_at(0), f.len());
                let v4 = Plain4::of(head, len, self.station).map(|p| p.flow());
                let flow = v4.or_else(|| Plain6::of(head, len, self.station).map(|p| p.flow()));
                flow.map(|flow| flow.on(f.vid()))
            });
            *found = match flow {
                None => NONE,
                Some(_) if flow == last => SAME,
                Some(flow) => {
                    *hash = self.flows.fetch(flow.hash(&self.ids.flow), fetch);
                    UNKNOWN
                }
            };
            last = flow;
        }
    }

    /// Returns the index of the connection that frame `at` of the burst seems to be for. The caller
    /// asks in the order of the frames.
    pub fn seen_ahead(&mut self, at: usize) -> Option<u32> {
        let Ahead { hashes, found, len, .. } = &mut *self.ahead;
        if at >= (*len).min(BURST) {
            return None;
        }
        found[at] = match found[at] {
            UNKNOWN => self.flows.guess(hashes[at]).unwrap_or(NONE),
            SAME => at.checked_sub(1).map_or(NONE, |before| found[before]),
            known => known,
        };
        (found[at] < SAME).then_some(found[at])
    }

    /// Fetches the state of a connection.
    #[inline]
    pub fn fetch(&self, index: u32, fetch: impl Fetch) {
        self.conns.fetch(index, fetch);
    }

    /// Returns the owner's data for a connection, given its index alone, for a look ahead.
    #[inline]
    pub fn user_at(&self, index: u32) -> Option<&S> {
        self.conns.get(index).map(|e| &e.user)
    }
}
