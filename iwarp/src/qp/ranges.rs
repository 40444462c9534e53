//! From STags to memory: the ranges that a segment's payload comes from or goes to.
//!
//! A piece named by an STag is usually one range. In a fast registration the piece can be several
//! ranges, where its pages are not contiguous ([`heddle_mr`]); then the STag table returns the
//! first of them, which is shorter than the piece. The QP finds all ranges before it places a byte:
//! if a check fails because another thread has just invalidated the STag, the QP has placed
//! nothing.

use super::stream::Stream;
use super::{QpContext, QpEnv};
use arrayvec::ArrayVec;
use heddle_mr::{MemRange, Memory};
use heddle_types::{
    Access, MrFault, Sge,
    mr::{MAX_RUNS, PAGE},
    wr::MAX_SGES,
};

/// Most ranges of the payload of one segment: one for each SGE, and one more wherever a page ends
/// in the payload.
const MAX_RANGES: usize = 2 * MAX_SGES + 16;
const _: () = assert!(16 * PAGE > u16::MAX as u64, "longer than a segment");
const _: () = assert!(MAX_SGES <= MAX_RUNS, "a page list that a request names has room");

/// The memory of one segment, in order.
pub(super) type Ranges = ArrayVec<MemRange, MAX_RANGES>;

impl QpContext {
    /// Copies the payload of a segment, which is at `at` of `stream`, to the memory that `s` names.
    #[inline(always)]
    pub(super) fn place_at<M: Memory, C: Stream>(
        &self,
        env: &QpEnv<'_, M>,
        (stream, at): (&C, usize),
        s: Sge,
        need: Access,
    ) -> Result<(), MrFault> {
        let range = env.mrs.check(self.pd, self.qpn, s.stag, s.to, s.len, need)?;
        if range.len() < s.len {
            return self.place_in_pages(env, (stream, at), s, need);
        }
        stream.place(env.mem, at, &[range]);
        Ok(())
    }

    /// Copies the payload as [`place_at`](Self::place_at) does, to memory that is not contiguous.
    #[cold]
    #[inline(never)]
    fn place_in_pages<M: Memory, C: Stream>(
        &self,
        env: &QpEnv<'_, M>,
        (stream, at): (&C, usize),
        s: Sge,
        need: Access,
    ) -> Result<(), MrFault> {
        let mut ranges = Ranges::new();
        self.push_pages(env, s, need, &mut ranges)?;
        stream.place(env.mem, at, &ranges);
        Ok(())
    }

    /// Adds the memory that `s` names to `out`.
    #[inline]
    pub(super) fn push_ranges<M>(
        &self,
        env: &QpEnv<'_, M>,
        s: Sge,
        need: Access,
        out: &mut Ranges,
    ) -> Result<(), MrFault> {
        let range = env.mrs.check(self.pd, self.qpn, s.stag, s.to, s.len, need)?;
        if range.len() < s.len {
            return self.push_pages(env, s, need, out);
        }
        out.try_push(range).map_err(|_| MrFault::Bounds)
    }

    /// Adds the memory as [`push_ranges`](Self::push_ranges) does, where it is not contiguous.
    #[cold]
    #[inline(never)]
    fn push_pages<M>(
        &self,
        env: &QpEnv<'_, M>,
        s: Sge,
        need: Access,
        out: &mut Ranges,
    ) -> Result<(), MrFault> {
        let mut done = 0;
        while done < s.len {
            // A check has made sure that the offset of the last byte does not wrap.
            let to = s.to.wrapping_add(done.into());
            let range = env.mrs.check(self.pd, self.qpn, s.stag, to, s.len - done, need)?;
            done += range.len();
            out.try_push(range).map_err(|_| MrFault::Bounds)?;
        }
        Ok(())
    }
}
