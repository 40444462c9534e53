//! FPDUs that the QP places before their turn: those in a TCP segment ahead of a gap, found by a
//! marker.
//!
//! Placement and delivery are then two steps (RFC 5041 section 5.3). [`QpContext::place_early`]
//! does what may be done out of order: if the CRC and the markers are right and every check of the
//! buffer has passed, the payload goes to its place, and no other state of the queue pair changes.
//! When everything before the FPDU has come, the owner calls [`QpContext::deliver`], which repeats
//! every check as for an FPDU in order, and does all that follows from the message. So the QP finds
//! and reports faults only in order.

use super::ranges::Ranges;
use super::rx::{FpduAt, Tagged, crc_is_right};
use super::stream::{OnePiece, Placed, Stream};
use super::{QpContext, QpEnv};
use crate::Msn;
use crate::ddp::{self, DdpHeader};
use crate::fault::Fault;
use crate::mpa::fpdu::{HEADER_LEN, fpdu_len};
use crate::mpa::markers::Marked;
use crate::rdmap::{Control, Opcode};
use heddle_base::{Chunks, StreamPos};
use heddle_mr::Memory;
use heddle_types::{Access, Sge, mpa::Rtr};

/// Outstanding Reads among which the QP looks for the Read of an early response.
const READS: usize = 16;

/// The record of an FPDU whose payload is in its place and which is not delivered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedFpdu {
    /// The start of the ULPDU: as many bytes as the longest header has.
    raw: [u8; ddp::MAX_LEN],
    /// Bytes of the ULPDU.
    ulpdu: u16,
    /// Bytes of TCP's stream, markers included.
    len: u32,
}

impl PlacedFpdu {
    /// Returns the number of bytes that the FPDU takes of TCP's stream, markers included.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns the start of the ULPDU: its first bytes, or all if it is short.
    fn raw(&self) -> &[u8] {
        self.raw.get(..usize::from(self.ulpdu)).unwrap_or(&self.raw)
    }
}

impl QpContext {
    /// Returns true if the QP can place FPDUs ahead of gaps at all. Only a marker says where an
    /// FPDU begins, and only a CRC confirms that the bytes are an FPDU.
    #[inline]
    pub const fn places_early(&self) -> bool {
        self.recv_markers && self.crc && self.state.is_live()
    }

    /// Returns the index in `stream`, which is the peer's from `pos` on, of the first FPDU that a
    /// marker points to. Returns `None` when no marker does: then nothing says where an FPDU
    /// begins.
    pub fn find_fpdu<C: Chunks>(&self, pos: StreamPos, stream: &C) -> Option<usize> {
        Marked::new(stream, self.marker_offset(pos)).first_start()
    }

    /// Places the FPDU at the start of `stream`, which is the peer's from `pos` on and ahead of a
    /// gap; `pos` is known to be the beginning of an FPDU.
    ///
    /// `crc` is the same as for [`handle_digested`](QpContext::handle_digested).
    ///
    /// Returns `None` and does nothing unless the whole FPDU has come, its CRC and its markers are
    /// right, it is a segment of a Write, a Send or a Read Response, and its buffer exists and
    /// takes it.
    pub fn place_early<M: Memory, C: Chunks>(
        &self,
        env: &QpEnv<'_, M>,
        pos: StreamPos,
        stream: &C,
        crc: Option<u32>,
    ) -> Option<PlacedFpdu> {
        if !self.places_early() {
            return None;
        }
        let offset = self.marker_offset(pos);
        match OnePiece::of(stream) {
            Some(stream) => self.place_first(env, &Marked::new(stream, offset), crc),
            None => self.place_first(env, &Marked::new(stream, offset), crc),
        }
    }

    fn place_first<M: Memory, S: Stream>(
        &self,
        env: &QpEnv<'_, M>,
        stream: &S,
        crc: Option<u32>,
    ) -> Option<PlacedFpdu> {
        let ulpdu = u16::from_be_bytes(stream.read_at(0)?);
        let len = fpdu_len(ulpdu);
        let known = crc.filter(|_| stream.is_filled_by(len));
        if stream.len() < len
            || !crc_is_right(env.mem, stream, FpduAt { at: 0, ulpdu }, known)
            || !stream.markers_agree(0, len)
        {
            return None;
        }
        let mut fpdu = PlacedFpdu {
            raw: [0; ddp::MAX_LEN],
            ulpdu,
            len: u32::try_from(stream.upto(len)).ok()?,
        };
        let n = usize::from(ulpdu).min(ddp::MAX_LEN);
        stream.copy_at(HEADER_LEN, &mut fpdu.raw[..n]);
        let (header, header_len) = DdpHeader::parse(fpdu.raw()).ok()?;
        let control = Control::check(&header).ok()?;
        let payload = u32::from(ulpdu).checked_sub(u32::try_from(header_len).ok()?)?;
        let mut ranges = Ranges::new();
        match header {
            DdpHeader::Tagged { last, stag, to, .. } => {
                let h = Tagged { opcode: control.opcode, last, stag, to };
                self.early_tagged(env, h, payload, &mut ranges)?;
            }
            DdpHeader::Untagged { msn, mo, .. } => match control.opcode {
                Opcode::SEND | Opcode::SEND_INV | Opcode::SEND_SE | Opcode::SEND_SE_INV => {
                    self.early_send(env, msn, (mo, payload), &mut ranges)?;
                }
                // The other messages carry payload for the queue pair itself, which reads it in
                // their turn.
                _ => return None,
            },
        }
        stream.place(env.mem, HEADER_LEN + header_len, &ranges);
        Some(fpdu)
    }

    /// Finds the memory for a Write, or for a Read Response: within the part still to come of an
    /// outstanding Read with that sink.
    fn early_tagged<M>(
        &self,
        env: &QpEnv<'_, M>,
        h: Tagged,
        len: u32,
        out: &mut Ranges,
    ) -> Option<()> {
        if len == 0 {
            // The QP must not check STag and offset of a segment without bytes.
            let known = h.opcode == Opcode::WRITE || h.opcode == Opcode::READ_RESPONSE;
            return known.then_some(());
        }
        let right = match h.opcode {
            Opcode::WRITE => Access::REMOTE_WRITE,
            Opcode::READ_RESPONSE => {
                let end = h.to.checked_add(len.into())?;
                let asked = self.reads.outbound.iter().take(READS).any(|r| {
                    let all = r.to.saturating_add(r.left.into());
                    !r.atomic && r.stag == h.stag && r.to <= h.to && end <= all
                });
                asked.then_some(Access::LOCAL_WRITE)?
            }
            _ => return None,
        };
        self.push_ranges(env, Sge { stag: h.stag, to: h.to, len }, right, out).ok()
    }

    /// Finds the memory for a segment of a Send, in the buffer that its message will get. The
    /// distance of the message from the next one due says which buffer that is.
    ///
    /// The distance is right because each message of the queue takes one number and one buffer. The
    /// Send that says "ready" takes only a number (RFC 6581 section 9.2). So while that Send may
    /// still be in the gap, the buffer of no later message is known.
    fn early_send<M>(
        &self,
        env: &QpEnv<'_, M>,
        msn: Msn,
        (mo, len): (u32, u32),
        out: &mut Ranges,
    ) -> Option<()> {
        if self.expects(Rtr::Send) {
            return None;
        }
        let behind = msn.0.wrapping_sub(self.rq.msn.0);
        if behind as usize >= self.rq.rqes.len() || behind == 0 && mo < self.rq.received {
            return None;
        }
        let rqe = self.rq.rqes.at(self.rq.rqes.head().wrapping_add(behind));
        if rqe.refused.is_some() || mo.checked_add(len)? > rqe.len {
            return None;
        }
        if len == 0 {
            return Some(());
        }
        self.receive_ranges(env, rqe, (mo, len), out).ok()
    }

    /// Delivers an FPDU that was [placed early](QpContext::place_early) at `pos`, after everything
    /// before it has come. The FPDU before it must end exactly at `pos`.
    pub fn deliver<M: Memory>(&mut self, env: &QpEnv<'_, M>, pos: StreamPos, fpdu: &PlacedFpdu) {
        if !self.state.is_live() {
            self.counters.rare().rx_dropped_bytes += u64::from(fpdu.len);
        } else if pos != self.rx_pos {
            // The lengths before this FPDU give another beginning than its marker does.
            self.fail(Fault::Marker.into());
        } else if let Err(culprit) = self.handle_ulpdu(env, &Placed, fpdu.raw(), fpdu.ulpdu, 0) {
            self.fail(culprit);
        }
        self.rx_pos = self.rx_pos.max(pos + u64::from(fpdu.len));
    }
}
