//! A worker's resources for bytes that wait: buffers, a budget, and the runs that the bytes form.
//!
//! All connections share a pool. Its budget counts buffers, not payload: a frame keeps the port
//! from receiving into a whole buffer, and a copy takes [`COPY_BUF`] bytes, however few bytes there
//! are in either. The pool shares buffers by the rule of switches that share one packet memory: a
//! connection may hold as many as are still free (a dynamic threshold with alpha 1). A connection
//! alone gets half of the pool; `n` greedy connections get `1/(n + 1)` of the pool each and leave
//! as much for the next. The same rule bounds, by a separate count, the FPDUs that are placed and
//! wait for delivery, which take some tens of bytes each.

use heddle_base::{Chunks, StreamPos};
use heddle_iwarp::PlacedFpdu;

use super::budget::Budget;

/// Bytes of a buffer for copies. A buffer holds a stretch of the stream that starts at a multiple
/// of its size, each byte at its place, so that bytes find room beside their neighbors from
/// whichever side they come.
pub(crate) const COPY_BUF: usize = 2048;

/// Empty buffers kept for the next copies, so that occasional loss does not call the allocator each
/// time.
pub(super) const SPARE_BUFS: usize = 64;

/// Nodes allocated at first; a larger budget allocates more as the pool uses it.
const NODES: usize = 1 << 16;

/// The index of no node.
const NIL: u32 = u32::MAX;

/// Stream bytes, and the one buffer that holds them.
#[derive(Debug)]
pub(super) struct Held<F> {
    pub(super) pos: StreamPos,
    pub(super) len: usize,
    /// Whether the buffer is charged to the pool: the buffers of frames and of bytes that came
    /// beyond a gap are. Others are copies of bytes in order.
    pub(super) charged: bool,
    pub(super) body: Body<F>,
}

/// The place that holds the bytes of a piece.
#[derive(Debug)]
pub(super) enum Body<F> {
    /// A frame of the port holds the bytes, from `off` on.
    Frame { frame: F, off: usize },
    /// A copy buffer holds each byte at its position modulo [`COPY_BUF`].
    Copied(Box<[u8; COPY_BUF]>),
    /// The application's buffers hold the bytes: an FPDU that waits for delivery.
    Placed(PlacedFpdu),
}

/// Returns the index of position `pos` in its copy buffer.
fn place(pos: StreamPos) -> usize {
    // The remainder is below COPY_BUF, so it fits any width of usize.
    usize::try_from(pos.0 % COPY_BUF as u64).unwrap_or(0)
}

/// Returns the number of the copy buffer that position `pos` belongs to.
pub(super) fn page(pos: StreamPos) -> u64 {
    pos.0 / COPY_BUF as u64
}

impl<F: Chunks> Held<F> {
    /// Returns the position after the last byte.
    pub(super) fn end(&self) -> StreamPos {
        self.pos + self.len as u64
    }

    pub(super) fn is_copy(&self) -> bool {
        matches!(self.body, Body::Copied(_))
    }

    pub(super) fn is_placed(&self) -> bool {
        matches!(self.body, Body::Placed(_))
    }

    /// Drops the first `n` bytes of the piece.
    pub(super) fn skip(&mut self, n: usize) {
        let n = n.min(self.len);
        self.pos += n as u64;
        self.len -= n;
        if let Body::Frame { off, .. } = &mut self.body {
            *off += n;
        }
    }

    /// Returns the longest contiguous chunk that starts `off` bytes into the piece.
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

    /// Returns the number of bytes that `append` has room for; 0 unless the piece is a copy.
    pub(super) fn room(&self) -> usize {
        match &self.body {
            Body::Frame { .. } | Body::Placed(_) => 0,
            Body::Copied(_) => COPY_BUF - place(self.pos) - self.len,
        }
    }

    /// Appends a copy of `n` bytes of `frame`; the piece must have room.
    pub(super) fn append(&mut self, frame: &F, off: usize, n: usize) {
        if let Body::Copied(bytes) = &mut self.body {
            let at = place(self.pos) + self.len;
            self.len += frame.copy_at(off, &mut bytes[at..at + n]);
        }
    }

    /// Takes `next`, which follows this piece, into this buffer if both are copies of one stretch
    /// of the stream; this function moves the shorter to the longer. Returns the buffer that is
    /// empty now, and true if one buffer less is to be charged; otherwise returns `next`.
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

/// Bytes beyond a gap, contiguous: pieces that follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) start: StreamPos,
    pub(super) end: StreamPos,
    first: u32,
    last: u32,
}

impl Run {
    /// Returns true if `pop` has taken all pieces of the run.
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

/// The pool; see the module's documentation.
#[derive(Debug)]
pub(crate) struct HoldPool<F> {
    spare: Vec<Buf>,
    nodes: Vec<Node<F>>,
    free_node: u32,
    /// Buffers charged, for all connections.
    used: usize,
    /// FPDUs that wait for delivery, of all connections.
    placed: usize,
    limit: usize,
    /// The budget for unfinished FPDUs.
    pub(super) budget: Budget,
    /// Bytes and entries moved, for tests of the work that a segment causes.
    #[cfg(test)]
    pub(super) work: u64,
}

impl<F> HoldPool<F> {
    /// Returns a pool of `limit` buffers, frames and copies together, with a budget of `unfinished`
    /// bytes for unfinished FPDUs.
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

    /// Returns the number of buffers charged.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Returns the bytes charged to unfinished FPDUs.
    pub(crate) fn unfinished(&self) -> usize {
        self.budget.used()
    }

    /// Returns true if a connection that holds `held` buffers may have `more`.
    pub(super) fn allows(&self, held: usize, more: usize) -> bool {
        held + more <= self.limit.saturating_sub(self.used)
    }

    /// Returns true if a connection with `placed` FPDUs that wait for delivery may have one more: a
    /// connection may have as many as are still free, of as many as the pool has buffers.
    pub(super) fn allows_placed(&self, placed: usize) -> bool {
        placed < self.limit.saturating_sub(self.placed)
    }

    pub(super) fn charge_placed(&mut self) {
        self.placed += 1;
    }

    pub(super) fn refund_placed(&mut self) {
        self.placed = self.placed.saturating_sub(1);
    }

    /// Returns the number of FPDUs that wait for delivery.
    #[cfg(test)]
    pub(super) fn placed(&self) -> usize {
        self.placed
    }

    /// Returns true if the RNIC may keep frames that it could as well copy: such frames must not
    /// take from the half of the pool that belongs to bytes beyond gaps.
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
    /// Returns an empty piece with room for copies from `pos` on.
    pub(super) fn empty_copy(&mut self, pos: StreamPos) -> Held<F> {
        Held { pos, len: 0, charged: false, body: Body::Copied(self.take_buf()) }
    }

    /// Returns a run that consists of the piece `held`.
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
                // A piece is a buffer, and there are far fewer buffers than indices.
                u32::try_from(self.nodes.len() - 1).unwrap_or(NIL)
            }
        };
        Run { start, end, first: index, last: index }
    }

    /// Takes the first piece out of a run.
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

    /// Returns the first piece of a run.
    pub(super) fn first(&self, run: &Run) -> Option<&Held<F>> {
        self.nodes.get(run.first as usize)?.held.as_ref()
    }

    /// Returns the last piece of a run.
    pub(super) fn last(&self, run: &Run) -> Option<&Held<F>> {
        self.nodes.get(run.last as usize)?.held.as_ref()
    }

    /// Joins two runs of which the second begins where the first ends. Returns true if the join
    /// saved a buffer.
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
                // `run` takes the node that `pop` has just freed.
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

    /// Appends the pieces of `b` to those of `a`.
    fn link(&mut self, a: &mut Run, b: Run) {
        if let Some(node) = self.nodes.get_mut(a.last as usize) {
            node.next = b.first;
        }
        a.last = b.last;
    }

    /// Returns true if the last piece of a run (the first if `end` is false) is a copy.
    pub(super) fn ends_in_copy(&self, run: &Run, end: bool) -> bool {
        let piece = if end { self.last(run) } else { self.first(run) };
        piece.is_some_and(Held::is_copy)
    }
}
