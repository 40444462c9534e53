//! Segments ahead of a gap: what can be placed at once is, the rest is held.

use heddle_base::{Instant, Skip, StreamPos};
use heddle_iwarp::{Memory, QpEnv};
use heddle_tcp::{ConnId, FramePayload};

use crate::frame::RnicFrame;
use crate::link::Mode;
use crate::rnic::Rnic;

impl<F: RnicFrame> Rnic<F> {
    /// Keeps the payload of a segment ahead of a gap. With markers and CRC the FPDUs that are whole in
    /// it go to their places, and a few octets of each are kept for its delivery; without, and of
    /// anything else, the bytes are.
    pub(crate) fn hold_ahead<M: Memory>(
        &mut self,
        now: Instant,
        mem: &M,
        conn: ConnId,
        p: FramePayload,
        frame: F,
    ) -> Option<F> {
        let Some((from, upto, end)) = self.place_ahead(mem, conn, p, &frame) else {
            let (_, link) = self.stack.get_mut(conn)?;
            let len = p.len as usize;
            return match link.held.push_ahead(&mut self.pool, p.pos, frame, p.frame_off, len) {
                Ok(kept) => {
                    self.counters.held_copied_bytes += kept.copied as u64;
                    self.counters.rx_ahead += 1;
                    let len = u32::try_from(kept.len).unwrap_or(p.len);
                    self.stack.accept_payload(now, conn, p.pos, len);
                    None
                }
                Err(frame) => {
                    self.counters.rx_refused += 1;
                    Some(frame)
                }
            };
        };
        let (_, link) = self.stack.get_mut(conn)?;
        let start = p.pos;
        let (before, behind) = (clamp(from.since(start)), clamp(end.since(upto)));
        // There is one frame for two ends: the shorter is copied.
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
                Some(f) if i == 1 => match link.held.push_ahead(&mut self.pool, pos, f, off, len) {
                    Ok(kept) => Some(kept),
                    Err(f) => {
                        frame = Some(f);
                        None
                    }
                },
                Some(f) => {
                    let kept = link.held.copy_ahead(&mut self.pool, pos, &f, off, len);
                    frame = Some(f);
                    kept
                }
                None => None,
            };
            let Some(kept) = kept else {
                self.counters.rx_refused += 1;
                continue;
            };
            self.counters.held_copied_bytes += kept.copied as u64;
            self.counters.rx_ahead += 1;
            if pos == start && before > 0 {
                accepted.0 = start;
            } else {
                accepted.1 = pos + kept.len as u64;
            }
        }
        let len = u32::try_from(accepted.1.since(accepted.0)).unwrap_or(p.len);
        self.stack.accept_payload(now, conn, accepted.0, len);
        frame
    }

    /// Places the FPDUs of a segment that can be placed: from which position up to which, and where the
    /// octets of the segment end that are new. `None` when there are none.
    fn place_ahead<M: Memory>(
        &mut self,
        mem: &M,
        conn: ConnId,
        p: FramePayload,
        frame: &F,
    ) -> Option<(StreamPos, StreamPos, StreamPos)> {
        let (_, link) = self.stack.get_mut(conn)?;
        let Mode::Fpdu(qp) = &link.mode else { return None };
        if !qp.places_early() {
            return None;
        }
        let (start, end) = link.held.free_ahead(p.pos, p.len as usize);
        let off = p.frame_off + clamp(start.since(p.pos));
        let bytes = Skip::new(frame, off, clamp(end.since(start)));
        // Behind one that was found the next begins; otherwise a marker has to tell.
        let first = if link.held.is_behind_placed(&self.pool, start) {
            0
        } else {
            qp.find_fpdu(start, &bytes)?
        };
        let env = QpEnv { mem, mrs: &self.mrs, snapshots_full: false };
        let from = start + first as u64;
        let mut upto = from;
        while upto < end && link.held.has_room_for_placed(&self.pool) {
            let at = clamp(upto.since(start));
            let len = clamp(end.since(upto));
            let (rest, crc) = (Skip::new(&bytes, at, len), frame.payload_crc(off + at, len));
            let Some(fpdu) = qp.place_early(&env, upto, &rest, crc) else { break };
            link.held.push_placed(&mut self.pool, upto, fpdu);
            self.counters.rx_placed_ahead += 1;
            self.counters.rx_placed_ahead_bytes += u64::from(fpdu.len());
            upto += u64::from(fpdu.len());
        }
        (upto > from).then_some((from, upto, end))
    }
}

/// Octets of a segment.
fn clamp(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
