//! Segments beyond a gap: the RNIC places what it can at once and holds the rest.

use heddle_base::{Skip, StreamPos};
use heddle_iwarp::QpEnv;
use heddle_mr::Memory;
use heddle_tcp::FramePayload;

use crate::conn::{ConnState, Mode};
use crate::frame::RnicFrame;
use crate::shared::Shared;

impl<F: RnicFrame> ConnState<F> {
    /// Keeps the payload of a segment beyond a gap. With markers and CRC, this function places the
    /// whole FPDUs in the segment, and keeps a few bytes of each FPDU to deliver it later.
    /// Otherwise, and for the rest of such a segment, it keeps the bytes. Returns the frame unless
    /// it keeps the frame, and the part of the segment that TCP may accept: the first position and
    /// the number of bytes.
    #[inline]
    pub(crate) fn hold_ahead<M: Memory>(
        &mut self,
        mem: &M,
        p: FramePayload,
        frame: F,
        shared: &mut Shared<F>,
    ) -> (Option<F>, Option<(StreamPos, u32)>) {
        let Some((from, upto, end)) = self.place_ahead(mem, p, &frame, shared) else {
            let len = p.len as usize;
            return match self.held.push_ahead(&mut shared.pool, p.pos, frame, p.frame_off, len) {
                Ok(kept) => {
                    shared.counters.held_copied_bytes += kept.copied as u64;
                    shared.counters.rx_ahead += 1;
                    (None, Some((p.pos, u32::try_from(kept.len).unwrap_or(p.len))))
                }
                Err(frame) => {
                    shared.counters.rx_refused += 1;
                    (Some(frame), None)
                }
            };
        };
        let start = p.pos;
        let (before, behind) = (clamp(from.since(start)), clamp(end.since(upto)));
        // Two ends are left over, but only one of them can keep the frame: the shorter end is
        // copied.
        let mut ends = [(start, before), (upto, behind)];
        if before > behind {
            ends.reverse();
        }
        let (mut accepted, mut frame) = ((from, upto), Some(frame));
        for (i, (pos, len)) in ends.into_iter().enumerate() {
            if len == 0 {
                continue;
            }
            let off = p.frame_off + clamp(pos.since(p.pos));
            let kept = match frame.take() {
                Some(f) if i == 1 => match self.held.push_ahead(&mut shared.pool, pos, f, off, len)
                {
                    Ok(kept) => Some(kept),
                    Err(f) => {
                        frame = Some(f);
                        None
                    }
                },
                Some(f) => {
                    let kept = self.held.copy_ahead(&mut shared.pool, pos, &f, off, len);
                    frame = Some(f);
                    kept
                }
                None => None,
            };
            let Some(kept) = kept else {
                shared.counters.rx_refused += 1;
                continue;
            };
            shared.counters.held_copied_bytes += kept.copied as u64;
            shared.counters.rx_ahead += 1;
            if pos == start && before > 0 {
                accepted.0 = start;
            } else {
                accepted.1 = pos + kept.len as u64;
            }
        }
        let len = u32::try_from(accepted.1.since(accepted.0)).unwrap_or(p.len);
        (frame, Some((accepted.0, len)))
    }

    /// Places those FPDUs of a segment that it can. Returns the position of the first placed byte,
    /// the position after the last placed byte, and the position where the new bytes of the segment
    /// end; `None` if it placed no FPDU.
    fn place_ahead<M: Memory>(
        &mut self,
        mem: &M,
        p: FramePayload,
        frame: &F,
        shared: &mut Shared<F>,
    ) -> Option<(StreamPos, StreamPos, StreamPos)> {
        let Mode::Fpdu(qp) = &self.mode else { return None };
        if !qp.places_early() {
            return None;
        }
        let (start, end) = self.held.free_ahead(p.pos, p.len as usize);
        let off = p.frame_off + clamp(start.since(p.pos));
        let bytes = Skip::new(frame, off, clamp(end.since(start)));
        // After a placed FPDU the next FPDU begins; otherwise a marker has to show where an FPDU
        // begins.
        let first = if self.held.is_behind_placed(&shared.pool, start) {
            0
        } else {
            qp.find_fpdu(start, &bytes)?
        };
        let env = QpEnv { mem, mrs: &shared.mrs, snapshots_full: false, posted: None };
        let from = start + first as u64;
        let mut upto = from;
        while upto < end && self.held.has_room_for_placed(&shared.pool) {
            let at = clamp(upto.since(start));
            let len = clamp(end.since(upto));
            let (rest, crc) = (Skip::new(&bytes, at, len), frame.payload_crc(off + at, len));
            let Some(fpdu) = qp.place_early(&env, upto, &rest, crc) else { break };
            self.held.push_placed(&mut shared.pool, upto, fpdu);
            shared.counters.rx_placed_ahead += 1;
            shared.counters.rx_placed_ahead_bytes += u64::from(fpdu.len());
            upto += u64::from(fpdu.len());
        }
        (upto > from).then_some((from, upto, end))
    }
}

/// Converts a length within a segment.
fn clamp(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
