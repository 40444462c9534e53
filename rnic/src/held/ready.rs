//! Bytes in order: those kept for an unfinished FPDU, and those that become ready when a gap
//! closes.

use heddle_base::{Chunks, StreamPos};

use super::pool::{Body, Held, HoldPool};
use super::{HOLD_COPY_ABOVE, HOLD_COPY_BELOW, Lists};

/// Frames that one connection may keep for an unfinished FPDU; beyond this number, it copies the
/// bytes.
const READY_FRAMES: usize = 64;

impl<F: Chunks> Lists<F> {
    /// See [`HeldBytes::push_ready`].
    pub(super) fn push_ready(
        &mut self,
        pool: &mut HoldPool<F>,
        pos: StreamPos,
        frame: F,
        off: usize,
        len: usize,
    ) -> usize {
        self.ready_len += len;
        let keeps = len >= HOLD_COPY_BELOW && frame.len() <= HOLD_COPY_ABOVE;
        if keeps && self.ready.len() < READY_FRAMES && pool.is_half_free() {
            self.charge(pool, 1);
            let body = Body::Frame { frame, off };
            self.ready.push_back(Held { pos, len, charged: true, body });
            return 0;
        }
        let mut done = 0;
        while done < len {
            match self.ready.back_mut() {
                Some(last) if last.room() > 0 => {
                    let n = last.room().min(len - done);
                    last.append(&frame, off + done, n);
                    done += n;
                }
                _ => self.ready.push_back(pool.empty_copy(pos + done as u64)),
            }
        }
        len
    }

    /// See [`HeldBytes::close_gap`].
    #[inline]
    pub(super) fn close_gap(&mut self, pool: &mut HoldPool<F>, mut next: StreamPos) -> usize {
        let mut moved = 0;
        while let Some(mut run) = self.ahead.pop_front_if(|r| r.start <= next) {
            loop {
                if pool.first(&run).is_some_and(Held::is_placed) {
                    self.ahead.push_front(run);
                    return moved;
                }
                let Some(mut h) = pool.pop(&mut run) else { break };
                // The buffer stays charged: it may belong to an FPDU that the budget has no room
                // for.
                h.skip(usize::try_from(next.since(h.pos)).unwrap_or(usize::MAX));
                if h.len == 0 {
                    self.drop_ready(pool, h);
                    continue;
                }
                moved += h.len;
                next = h.end();
                self.ready_len += h.len;
                let h = match self.ready.back_mut() {
                    Some(last) => last.absorb(h),
                    None => Err(h),
                };
                match h {
                    Ok((buf, charged)) => {
                        if charged {
                            self.refund(pool);
                        }
                        pool.give_buf(buf);
                    }
                    Err(h) => self.ready.push_back(h),
                }
            }
        }
        moved
    }

    /// See [`HeldBytes::truncate_ready`](super::HeldBytes::truncate_ready).
    pub(super) fn truncate_ready(&mut self, pool: &mut HoldPool<F>, mut n: usize) {
        self.ready_len = self.ready_len.saturating_sub(n);
        while n > 0
            && let Some(last) = self.ready.back_mut()
        {
            if n < last.len {
                last.len -= n;
                break;
            }
            n -= last.len;
            if let Some(last) = self.ready.pop_back() {
                self.drop_ready(pool, last);
            }
        }
    }

    /// Drops the first `n` ready bytes.
    pub(super) fn consume(&mut self, pool: &mut HoldPool<F>, mut n: usize) {
        self.ready_len = self.ready_len.saturating_sub(n);
        while let Some(first) = self.ready.front_mut() {
            if n < first.len {
                first.skip(n);
                break;
            }
            n -= first.len;
            if let Some(first) = self.ready.pop_front() {
                self.drop_ready(pool, first);
            }
        }
    }
}

/// The in-order bytes of a [`HeldBytes`].
pub(crate) struct Ready<'a, F>(pub(super) Option<&'a Lists<F>>);

impl<F: Chunks> Chunks for Ready<'_, F> {
    fn len(&self) -> usize {
        self.0.map_or(0, |l| l.ready_len)
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        // When a gap closes, a whole window of frames becomes ready at once, and the queue pair
        // asks for each FPDU in it several times: search by bisection.
        let Some(Lists { ready, .. }) = self.0 else { return &[] };
        let Some(first) = ready.front() else { return &[] };
        if off < first.len {
            return first.chunk_at(off);
        }
        let pos = first.pos + off as u64;
        let Some(h) = ready.get(ready.partition_point(|h| h.end() <= pos)) else { return &[] };
        h.chunk_at(usize::try_from(pos - h.pos).unwrap_or(usize::MAX))
    }
}
