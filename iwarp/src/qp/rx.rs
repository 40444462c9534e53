//! From stream bytes to DDP segments: framing, CRC, versions, and the placement of payload.

use super::alike::LEAST;
#[cfg(doc)]
use super::config::QpConfig;
use super::stream::{OnePiece, Stream};
use super::terminate::Culprit;
use super::{QpContext, QpEnv};
use crate::Msn;
use crate::ddp::{self, DdpHeader};
use crate::fault::Fault;
use crate::mpa::fpdu::{CRC_LEN, HEADER_LEN, MAX_FPDU_LEN, crc_from_wire, fpdu_len};
use crate::mpa::markers::Marked;
use crate::rdmap::{Control, CopiedHeader, Opcode};
use heddle_base::{Chunks, Skip, StreamPos};
use heddle_mr::Memory;
use heddle_types::Stag;

/// The place of one FPDU in the stream that the owner shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct FpduAt {
    /// Index of the FPDU's length field.
    pub(super) at: usize,
    /// ULPDU bytes: DDP header and payload.
    pub(super) ulpdu: u16,
}

/// A DDP segment in its frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct DdpSegment<'a> {
    /// The first bytes of the segment, as many as the longest header has or fewer: a Terminate may
    /// have to repeat them.
    raw: &'a [u8],
    ulpdu: u16,
    /// Index of the payload in the stream that the owner shows.
    pub(super) at: usize,
    /// Bytes of payload.
    pub(super) len: u32,
}

/// The fields of the header of a tagged segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tagged {
    pub(super) opcode: Opcode,
    pub(super) last: bool,
    pub(super) stag: Stag,
    pub(super) to: u64,
}

/// The fields of the header of an untagged segment; the queue follows from the opcode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Untagged {
    pub(super) opcode: Opcode,
    pub(super) last: bool,
    /// Meaningful only in the Sends with Invalidate.
    pub(super) invalidate: Stag,
    pub(super) msn: Msn,
    pub(super) mo: u32,
}

impl QpContext {
    /// Takes the whole FPDUs at the front of `stream` and returns their length in bytes. The owner
    /// must show the rest again when more bytes have followed it.
    ///
    /// `stream` is the peer's stream from [`rx_next`](QpContext::rx_next) on, in order and without
    /// gaps, in any number of pieces; it must be able to grow to [`MAX_FPDU_LEN`] bytes and their
    /// markers. After the end of the RDMAP stream the QP takes and drops everything.
    #[inline]
    pub fn handle_stream<M: Memory, C: Chunks + ?Sized>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
    ) -> usize {
        self.handle_digested(env, stream, None)
    }

    /// Takes FPDUs as [`handle_stream`](QpContext::handle_stream) does, of bytes that the caller
    /// has read before and of which it may have computed `crc`: the CRC-32C of all of `stream`,
    /// markers included, except its last [`CRC_LEN`] bytes. When one FPDU fills `stream`, the QP
    /// does not read it again for its CRC.
    ///
    /// The QP does not take a message that [waits for a receive](QpContext::waits_for_receive), nor
    /// anything after it.
    pub fn handle_digested<M: Memory, C: Chunks + ?Sized>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        crc: Option<u32>,
    ) -> usize {
        let used = if self.recv_markers {
            self.handle_marked(env, stream, crc)
        } else {
            match OnePiece::of(stream) {
                Some(piece) if self.take_alone(env, piece.all(), crc) => piece.len(),
                Some(piece) => self.handle_fpdus(env, &piece, crc),
                None if crc.is_some() => self.handle_fpdus(env, &stream, crc),
                None => self.handle_pieces(env, stream),
            }
        };
        self.rx_pos += used as u64;
        used
    }

    /// Returns the number of bytes of TCP's stream that the FPDU at the front of `stream` takes,
    /// markers among them included; `None` while its length has not come. `stream` is the same as
    /// for [`handle_stream`](QpContext::handle_stream), after that call has taken all whole FPDUs.
    pub fn fpdu_extent<C: Chunks + ?Sized>(&self, stream: &C) -> Option<usize> {
        fn extent(stream: &impl Stream) -> Option<usize> {
            let length = stream.read_at(0)?;
            Some(stream.upto(fpdu_len(u16::from_be_bytes(length))))
        }
        if self.recv_markers {
            return extent(&Marked::new(stream, self.marker_offset(self.rx_pos)));
        }
        extent(&stream)
    }

    /// Returns true if a `crc` was of use to the last
    /// [`handle_digested`](QpContext::handle_digested), or would have been: the QP checks CRCs, and
    /// one FPDU filled the stream, as RFC 5044 (section 5.1) wants it of senders.
    #[inline]
    pub const fn wants_crc(&self) -> bool {
        self.crc && self.rx_one_fpdu
    }

    /// Handles FPDUs that lie in several pieces: the segments of a train that no port has cut, each
    /// in a buffer of its own, or buffers that a device has filled one after another. This function
    /// walks the pieces once, and takes an FPDU that lies in one piece from there.
    #[inline(never)]
    fn handle_pieces<M: Memory, C: Chunks + ?Sized>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
    ) -> usize {
        // Bytes of FPDUs handled, and of pieces seen.
        let (mut at, mut seen, mut stopped) = (0, 0, false);
        stream.for_each_chunk(0, stream.len(), |piece| {
            let start = seen;
            seen += piece.len();
            if !stopped && at < start {
                // An FPDU began in an earlier piece.
                let Some(length) = stream.read_at(at) else { return };
                let end = at + fpdu_len(u16::from_be_bytes(length));
                if end > seen {
                    return;
                }
                at += self.handle_fpdus(env, &Skip::new(stream, at, end - at), None);
                stopped = at < end;
            }
            if !stopped
                && let Some(bytes) = piece.get(at - start..)
                && !bytes.is_empty()
            {
                if self.take_alone(env, bytes, None) {
                    at += bytes.len();
                    return;
                }
                at += self.handle_fpdus(env, &OnePiece::bytes(bytes), None);
                stopped = self.waits_for_receive();
            }
        });
        at
    }

    /// Takes `piece` if it is one FPDU, the expected one.
    #[inline(always)]
    fn take_alone<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        piece: &[u8],
        crc: Option<u32>,
    ) -> bool {
        let taken = self.state.is_live() && self.take_expected(env, piece, crc);
        self.rx_one_fpdu |= taken;
        taken
    }

    /// Handles FPDUs with markers among them.
    #[inline(never)]
    fn handle_marked<M: Memory, C: Chunks + ?Sized>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        crc: Option<u32>,
    ) -> usize {
        let offset = self.marker_offset(self.rx_pos);
        match OnePiece::of(stream) {
            Some(stream) => self.handle_fpdus(env, &Marked::new(stream, offset), crc),
            None => self.handle_fpdus(env, &Marked::new(stream, offset), crc),
        }
    }

    /// Returns the distance, modulo 512, of `pos` in the peer's stream from a place of a marker.
    #[inline]
    pub(super) fn marker_offset(&self, pos: StreamPos) -> u64 {
        pos.0.wrapping_sub(u64::from(self.rx_grid))
    }

    /// Compiled for each kind of stream: nearly all TCP segments are in one piece and without
    /// markers, and then each access to them is one to a slice.
    #[inline]
    fn handle_fpdus<M: Memory, S: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &S,
        crc: Option<u32>,
    ) -> usize {
        let total = stream.len();
        let (mut at, mut alone) = (0, false);
        while self.state.is_live() {
            let Some(length) = stream.read_at(at) else { break };
            let frame = FpduAt { at, ulpdu: u16::from_be_bytes(length) };
            let len = fpdu_len(frame.ulpdu);
            debug_assert!(len <= MAX_FPDU_LEN);
            if total - at < len {
                break;
            }
            alone = at == 0 && stream.is_filled_by(len);
            if S::PLAIN
                && u32::from(frame.ulpdu) >= LEAST
                && let Some(fpdu) = stream.piece_at(at, len)
                && self.take_expected(env, fpdu, crc.filter(|_| alone))
            {
                at += len;
                continue;
            }
            if let Err(culprit) = self.handle_fpdu(env, stream, frame, crc.filter(|_| alone))
                && !self.handle_again(env, stream, frame, culprit)
            {
                break;
            }
            at += len;
        }
        self.rx_one_fpdu = alone;
        let taken = stream.upto(at);
        if !self.state.is_live() {
            self.counters.rare().rx_dropped_bytes += (stream.end() - taken) as u64;
            return stream.end();
        }
        taken
    }

    /// Ends the stream for an FPDU that has failed, unless it failed for want of a receive. Such a
    /// failure has changed nothing, so the QP handles the FPDU once more if the owner has more
    /// receives. Otherwise the FPDU waits for a receive if it [may](QpConfig::rnr_wait). Returns
    /// false if it waits.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_again<M: Memory, S: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &S,
        frame: FpduAt,
        culprit: Culprit,
    ) -> bool {
        if self.has_more_posted(env.posted, culprit.fault) {
            if let Err(culprit) = self.handle_fpdu(env, stream, frame, None) {
                self.fail(culprit);
            }
            return true;
        }
        if self.rnr.may_wait() && culprit.fault == Fault::NoReceive {
            self.rnr.begin();
            return false;
        }
        self.fail(culprit);
        true
    }

    #[inline]
    pub(super) fn handle_fpdu<M: Memory, S: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &S,
        frame: FpduAt,
        crc: Option<u32>,
    ) -> Result<(), Culprit> {
        if self.crc && !crc_is_right(env.mem, stream, frame, crc) {
            return Err(Fault::Crc.into());
        }
        if !stream.markers_agree(frame.at, fpdu_len(frame.ulpdu)) {
            return Err(Fault::Marker.into());
        }
        // Usually the header is read in place: loads from a copy made just now would have to wait
        // for the stores.
        let raw_len = usize::from(frame.ulpdu).min(ddp::MAX_LEN);
        let copied;
        let raw = match stream.piece_at(frame.at + HEADER_LEN, raw_len) {
            Some(raw) => raw,
            None => {
                copied = raw_copy(stream, frame.at + HEADER_LEN, raw_len);
                &copied[..raw_len]
            }
        };
        self.handle_ulpdu(env, stream, raw, frame.ulpdu, frame.at + HEADER_LEN)
    }

    /// Handles a DDP segment of `ulpdu` bytes at `at`, which begins with `raw`.
    #[inline(always)]
    pub(super) fn handle_ulpdu<M: Memory, S: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &S,
        raw: &[u8],
        ulpdu: u16,
        at: usize,
    ) -> Result<(), Culprit> {
        let seg = DdpSegment { raw, ulpdu, at, len: u32::from(ulpdu) };
        // Separate the two kinds at once: a value that could be either would be put together and
        // taken apart again byte by byte.
        let (opcode, last, len) = match DdpHeader::parse(raw) {
            Err(e) => return Err(seg.blame(e.into())),
            Ok((header @ DdpHeader::Tagged { last, stag, to, .. }, _)) => {
                let (seg, opcode) = seg.behind(&header)?;
                self.handle_tagged(env, stream, seg, Tagged { opcode, last, stag, to })?;
                (opcode, last, seg.len)
            }
            Ok((header @ DdpHeader::Untagged { last, rsvd_ulp32, msn, mo, .. }, _)) => {
                let (seg, opcode) = seg.behind(&header)?;
                let invalidate = Stag(rsvd_ulp32);
                let untagged = Untagged { opcode, last, invalidate, msn, mo };
                self.handle_untagged(env, stream, seg, untagged)?;
                (opcode, last, seg.len)
            }
        };
        self.counters.rx_fpdus += 1;
        if !self.seen_fpdu && self.state.is_live() {
            self.first_fpdu(opcode, last, len);
        }
        Ok(())
    }
}

/// Copies the first `len` bytes of a segment that lies in several pieces.
#[cold]
fn raw_copy<C: Chunks>(stream: &C, at: usize, len: usize) -> [u8; ddp::MAX_LEN] {
    let mut raw = [0; ddp::MAX_LEN];
    stream.copy_at(at, &mut raw[..len]);
    raw
}

impl<'a> DdpSegment<'a> {
    /// Returns the segment with the bytes after its header as payload, and its opcode.
    #[inline(always)]
    fn behind(self, header: &DdpHeader) -> Result<(DdpSegment<'a>, Opcode), Culprit> {
        let n = header.len();
        // Parsing has made sure that the segment contains the header.
        let len = self.len.saturating_sub(u32::try_from(n).unwrap_or(0));
        let seg = DdpSegment { at: self.at + n, len, ..self };
        match Control::check(header) {
            Ok(control) => Ok((seg, control.opcode)),
            Err(e) => Err(seg.blame(e.into())),
        }
    }

    /// Returns the culprit for a fault of this segment.
    // By value, as everywhere else: an argument passed by address must be in memory, even where
    // nothing is wrong.
    #[cold]
    pub(super) fn blame(self, fault: Fault) -> Culprit {
        let segment = CopiedHeader::of_segment(self.raw).map(|h| (h, self.ulpdu));
        Culprit { segment, ..fault.into() }
    }
}

/// Returns true if an FPDU holds the CRC of the bytes before it, which may be `known`.
#[inline]
pub(super) fn crc_is_right<M: Memory, S: Stream>(
    mem: &M,
    stream: &S,
    frame: FpduAt,
    known: Option<u32>,
) -> bool {
    let body = fpdu_len(frame.ulpdu) - CRC_LEN;
    let crc = known.unwrap_or_else(|| stream.crc(mem, frame.at, body));
    stream.read_at(frame.at + body).is_some_and(|field| crc_from_wire(field) == crc)
}
