//! What a worker has for bytes that wait: buffers, a budget, and the runs they form.
//!
//! One pool serves all connections. Its budget counts buffers, not payload: a frame keeps a whole
//! buffer of the port from being received into, and a copy takes [`COPY_BUF`] octets, however few
//! bytes there are in either. Who may take how many is the rule of switches that share one packet
//! memory: a connection may hold as many as are still free (a dynamic threshold with alpha 1). One
//! connection alone gets half of the pool; `n` greedy ones get `1/(n + 1)` of it each and leave as
//! much for the next. The same rule bounds, by a count of its own, the FPDUs that are placed and wait to
//! be delivered: some tens of octets each.

use heddle_base::{Chunks, StreamPos};
use heddle_iwarp::PlacedFpdu;

use super::budget::Budget;

/// Octets of a buffer for copied bytes. A buffer holds a stretch of the stream that starts at a
/// multiple of its size, each byte at its place, so that bytes find room beside their neighbors
/// from whichever side they come.
pub(crate) const COPY_BUF: usize = 2048;

/// Empty buffers kept for the next copies: what is held now and then under loss shall not go to
/// the allocator each time.
pub(super) const SPARE_BUFS: usize = 64;

/// Nodes made room for at first; a larger budget finds room as it is used.
const NODES: usize = 1 << 16;

/// The index of no node.
const NIL: u32 = u32::MAX;

/// Stream bytes and the one buffer they lie in.
#[derive(Debug)]
pub(super) struct Held<F> {
    pub(super) pos: StreamPos,
    pub(super) len: usize,
    /// Its buffer is charged to the pool: those of frames are, and those of bytes that came ahead of a
    /// gap. Others are copies of bytes in order.
    pub(super) charged: bool,
    pub(super) body: Body<F>,
}

/// Where bytes lie.
#[derive(Debug)]
pub(super) enum Body<F> {
    /// From `off` on in a frame of the port.
    Frame { frame: F, off: usize },
    /// Each at its position modulo [`COPY_BUF`].
    Copied(Box<[u8; COPY_BUF]>),
    /// In the buffers they are for: an FPDU that waits to be delivered.
    Placed(PlacedFpdu),
}

/// Where position `pos` lies in its copy buffer.
fn place(pos: StreamPos) -> usize {
    // Below COPY_BUF whatever the width of usize.
    usize::try_from(pos.0 % COPY_BUF as u64).unwrap_or(0)
}

/// Which copy buffer position `pos` lies in.
pub(super) fn page(pos: StreamPos) -> u64 {
    pos.0 / COPY_BUF as u64
}

impl<F: Chunks> Held<F> {
    /// One past the last byte.
    pub(super) fn end(&self) -> StreamPos {
        self.pos + self.len as u64
    }

    pub(super) fn is_copy(&self) -> bool {
        matches!(self.body, Body::Copied(_))
    }

    pub(super) fn is_placed(&self) -> bool {
        matches!(self.body, Body::Placed(_))
    }

    /// Lets go of the first `n` bytes.
    pub(super) fn skip(&mut self, n: usize) {
        let n = n.min(self.len);
        self.pos += n as u64;
        self.len -= n;
        if let Body::Frame { off, .. } = &mut self.body {
            *off += n;
        }
    }

    /// The longest contiguous piece `off` bytes in.
    pub(super) fn chunk_at(&self, off: usize) -> &[u8] {
        if off >= self.len {
            return &[];
        }
        let c = match &self.body {
            Body::Frame { frame, off: start } => frame.chunk_at(start + off),
            Body::Copied(bytes) => &bytes[place(self.pos)..][off..],
            Body::Placed(_) => &[],
        };
        &c[..c.len().min(self.len - off)]
    }

    /// Octets that can be appended; none but to a copy.
    pub(super) fn room(&self) -> usize {
        match &self.body {
            Body::Frame { .. } | Body::Placed(_) => 0,
            Body::Copied(_) => COPY_BUF - place(self.pos) - self.len,
        }
    }

    /// Appends a copy of `n` bytes of `frame`; there is room.
    pub(super) fn append(&mut self, frame: &F, off: usize, n: usize) {
        if let Body::Copied(bytes) = &mut self.body {
            let at = place(self.pos) + self.len;
            self.len += frame.copy_at(off, &mut bytes[at..at + n]);
        }
    }

    /// Takes `next`, which follows, into this buffer when both are copies of one stretch of the
    /// stream; the shorter moves to the longer. Gives the buffer that is empty now, and whether a
    /// buffer less is to be charged, or `next` back.
    pub(super) fn absorb(&mut self, next: Held<F>) -> Result<(Buf, bool), Held<F>> {
        let Held { pos, len, charged, body } = next;
        match (&mut self.body, body) {
            (Body::Copied(a), Body::Copied(mut b)) if page(self.pos) == page(pos) => {
                let (from, mid) = (place(self.pos), place(pos));
                if self.len < len {
                    core::mem::swap(a, &mut b);
                    a[from..mid].copy_from_slice(&b[from..mid]);
                } else {
                    a[mid..mid + len].copy_from_slice(&b[mid..mid + len]);
                }
                self.len += len;
                let both = self.charged && charged;
                self.charged |= charged;
                Ok((b, both))
            }
            (_, body) => Err(Held { pos, len, charged, body }),
        }
    }
}

/// A buffer for copied bytes.
pub(super) type Buf = Box<[u8; COPY_BUF]>;

/// Bytes ahead of a gap without a gap in them: pieces that follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) start: StreamPos,
    pub(super) end: StreamPos,
    first: u32,
    last: u32,
}

impl Run {
    /// Whether all its pieces have been taken.
    pub(super) fn is_empty(&self) -> bool {
        self.first == NIL
    }
}

#[derive(Debug)]
struct Node<F> {
    held: Option<Held<F>>,
    /// The next piece of the run, or the next free node.
    next: u32,
}

/// The pool; see above.
#[derive(Debug)]
pub(crate) struct HoldPool<F> {
    spare: Vec<Buf>,
    nodes: Vec<Node<F>>,
    free_node: u32,
    /// Buffers charged, of all connections.
    used: usize,
    /// FPDUs that wait to be delivered, of all connections.
    placed: usize,
    limit: usize,
    /// For FPDUs that are not whole.
    pub(super) budget: Budget,
    /// Octets and entries moved, for tests of the work a segment makes.
    #[cfg(test)]
    pub(super) work: u64,
}

impl<F> HoldPool<F> {
    /// A pool of `limit` buffers, frames and copies together, with a budget of `unfinished` octets for
    /// FPDUs that are not whole.
    pub(crate) fn new(limit: usize, unfinished: usize) -> HoldPool<F> {
        HoldPool {
            spare: (0..SPARE_BUFS).map(|_| Box::new([0; COPY_BUF])).collect(),
            nodes: Vec::with_capacity(limit.min(NODES)),
            free_node: NIL,
            used: 0,
            placed: 0,
            limit,
            budget: Budget::new(unfinished),
            #[cfg(test)]
            work: 0,
        }
    }

    /// Buffers charged.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Octets that FPDUs which are not whole are charged with.
    pub(crate) fn unfinished(&self) -> usize {
        self.budget.used()
    }

    /// Whether a connection that holds `held` buffers may have `more`.
    pub(super) fn allows(&self, held: usize, more: usize) -> bool {
        held + more <= self.limit.saturating_sub(self.used)
    }

    /// Whether a connection that has `placed` FPDUs waiting to be delivered may have one more: as many
    /// as are still free, of as many as there are buffers.
    pub(super) fn allows_placed(&self, placed: usize) -> bool {
        placed < self.limit.saturating_sub(self.placed)
    }

    pub(super) fn charge_placed(&mut self) {
        self.placed += 1;
    }

    pub(super) fn refund_placed(&mut self) {
        self.placed = self.placed.saturating_sub(1);
    }

    /// FPDUs that wait to be delivered.
    #[cfg(test)]
    pub(super) fn placed(&self) -> usize {
        self.placed
    }

    /// Whether frames may be kept that could as well be copied: not out of the half that belongs
    /// to what lies ahead of gaps.
    pub(super) fn is_half_free(&self) -> bool {
        self.used < self.limit.div_ceil(2)
    }

    pub(super) fn charge(&mut self, buffers: usize) {
        self.used += buffers;
    }

    pub(super) fn refund(&mut self, buffers: usize) {
        self.used = self.used.saturating_sub(buffers);
    }

    pub(super) fn take_buf(&mut self) -> Buf {
        self.spare.pop().unwrap_or_else(|| Box::new([0; COPY_BUF]))
    }

    pub(super) fn give_buf(&mut self, buf: Buf) {
        if self.spare.len() < SPARE_BUFS {
            self.spare.push(buf);
        }
    }

    #[cfg(test)]
    pub(super) fn spare(&self) -> usize {
        self.spare.len()
    }
}

impl<F: Chunks> HoldPool<F> {
    /// A piece with room for copies from `pos` on.
    pub(super) fn empty_copy(&mut self, pos: StreamPos) -> Held<F> {
        Held { pos, len: 0, charged: false, body: Body::Copied(self.take_buf()) }
    }

    /// A run of the one piece `held`.
    pub(super) fn run(&mut self, held: Held<F>) -> Run {
        let (start, end) = (held.pos, held.end());
        let node = Node { held: Some(held), next: NIL };
        let index = match self.nodes.get_mut(self.free_node as usize) {
            Some(free) => {
                let index = self.free_node;
                self.free_node = free.next;
                *free = node;
                index
            }
            None => {
                self.nodes.push(node);
                // A piece is a buffer, and there are far fewer of those.
                u32::try_from(self.nodes.len() - 1).unwrap_or(NIL)
            }
        };
        Run { start, end, first: index, last: index }
    }

    /// Takes the first piece off a run.
    pub(super) fn pop(&mut self, run: &mut Run) -> Option<Held<F>> {
        let index = run.first;
        let node = self.nodes.get_mut(index as usize)?;
        run.first = node.next;
        node.next = self.free_node;
        self.free_node = index;
        let held = node.held.take();
        run.start = held.as_ref().map_or(run.end, Held::end);
        held
    }

    /// The first piece of a run.
    pub(super) fn first(&self, run: &Run) -> Option<&Held<F>> {
        self.nodes.get(run.first as usize)?.held.as_ref()
    }

    /// The last piece of a run.
    pub(super) fn last(&self, run: &Run) -> Option<&Held<F>> {
        self.nodes.get(run.last as usize)?.held.as_ref()
    }

    /// Joins two runs of which the second begins where the first ends. True when that saved a
    /// buffer.
    pub(super) fn concat(&mut self, a: &mut Run, mut b: Run) -> bool {
        debug_assert_eq!(a.end, b.start);
        a.end = b.end;
        let after = b.first;
        let Some(head) = self.pop(&mut b) else { return false };
        #[cfg(test)]
        let shorter = head.len;
        let Some(tail) = self.nodes.get_mut(a.last as usize).and_then(|n| n.held.as_mut()) else {
            return false;
        };
        #[cfg(test)]
        {
            self.work += shorter.min(tail.len) as u64;
        }
        match tail.absorb(head) {
            Ok((buf, _)) => {
                self.give_buf(buf);
                if b.first == NIL {
                    return true;
                }
                self.link(a, b);
                true
            }
            Err(head) => {
                // The node just freed is the one taken again.
                let rest = b;
                let mut b = self.run(head);
                debug_assert_eq!(b.first, after);
                if rest.first != NIL {
                    self.link(&mut b, rest);
                }
                self.link(a, b);
                false
            }
        }
    }

    /// Chains the pieces of `b` behind those of `a`.
    fn link(&mut self, a: &mut Run, b: Run) {
        if let Some(node) = self.nodes.get_mut(a.last as usize) {
            node.next = b.first;
        }
        a.last = b.last;
    }

    /// Whether the piece at the end (or else the beginning) of a run is a copy.
    pub(super) fn ends_in_copy(&self, run: &Run, end: bool) -> bool {
        let piece = if end { self.last(run) } else { self.first(run) };
        piece.is_some_and(Held::is_copy)
    }
}
