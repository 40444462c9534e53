//! From STags to memory: the ranges that a segment's payload comes from or goes to.
//!
//! A piece named by an STag is one range as a rule. Of a fast registration it can be several, where its
//! pages do not lie together ([`crate::mr`]); then the STag table gives the first of them, which is
//! shorter than what was asked for. All of them are found before an octet is placed: what fails,
//! because the STag is taken away just now, leaves nothing half done.

use super::stream::Stream;
use super::wr::{MAX_SGES, Sge};
use super::{QpContext, QpEnv};
use crate::mr::{MAX_RUNS, MrFault, PAGE};
use crate::{Access, MemRange, Memory};
use arrayvec::ArrayVec;

/// Ranges of the payload of one segment: one for each SGE, and one more wherever a page ends in it.
const MAX_RANGES: usize = 2 * MAX_SGES + 16;
const _: () = assert!(16 * PAGE > u16::MAX as u64, "longer than a segment");
const _: () = assert!(MAX_SGES <= MAX_RUNS, "a page list that a request names has room");

/// Memory of one segment, in order.
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

    /// The same where it does not lie together.
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

    /// Adds the memory that `s` names.
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

    /// The same where it does not lie together.
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
            // The offset of the last octet has been checked not to wrap.
            let to = s.to.wrapping_add(done.into());
            let range = env.mrs.check(self.pd, self.qpn, s.stag, to, s.len - done, need)?;
            done += range.len();
            out.try_push(range).map_err(|_| MrFault::Bounds)?;
        }
        Ok(())
    }
}
