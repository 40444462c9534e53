//! From stream bytes to DDP segments: framing, CRC, versions, and the placement of payload.

use super::cqe::QpEvent;
use super::fault::Fault;
use super::hdr::{Header, TAGGED_LEN, UNTAGGED_LEN};
use super::terminate::Culprit;
use super::{Qp, QpEnv};
use crate::{MemRange, Memory};
use heddle_base::Chunks;

/// Where one FPDU lies in the stream that was shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Of its length field.
    pub(super) at: usize,
    /// ULPDU bytes: DDP header and payload.
    pub(super) ulpdu: u16,
}

/// A segment whose frame, CRC and versions are good.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) header: Header,
    /// Of the payload, in the stream that was shown.
    pub(super) at: usize,
    /// Bytes of payload.
    pub(super) len: u32,
}

/// Length field, ULPDU, pad and CRC.
const fn fpdu_len(ulpdu: u16) -> usize {
    (2 + ulpdu as usize).next_multiple_of(4) + 4
}

impl Qp {
    /// Takes the whole FPDUs at the front of `stream` and returns how many bytes they were; the
    /// rest must be shown again when more has come behind it.
    ///
    /// `stream` is the peer's stream from [`rx_next`](Qp::rx_next) on, in order and without gaps,
    /// in any number of pieces. After the end of the RDMAP stream everything is taken and dropped.
    pub fn handle_stream<M: Memory, C: Chunks + ?Sized>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
    ) -> usize {
        let total = stream.len();
        let mut at = 0;
        while self.state.is_live() {
            let mut length = [0; 2];
            if stream.copy_at(at, &mut length) < 2 {
                break;
            }
            let frame = Frame { at, ulpdu: u16::from_be_bytes(length) };
            let len = fpdu_len(frame.ulpdu);
            if total - at < len {
                break;
            }
            if let Err(fault) = self.handle_fpdu(env, &stream, frame) {
                self.fail(fault);
            }
            at += len;
        }
        if !self.state.is_live() {
            self.counters.rx_dropped_bytes += (total - at) as u64;
            at = total;
        }
        self.rx_pos += at as u64;
        at
    }

    #[inline]
    fn handle_fpdu<M: Memory, C: Chunks>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        frame: Frame,
    ) -> Result<(), Culprit> {
        if self.crc && !crc_is_right(env.mem, stream, frame) {
            return Err(Fault::Crc.into());
        }
        let ulpdu = usize::from(frame.ulpdu);
        if ulpdu < TAGGED_LEN {
            return Err(Fault::Short.into());
        }
        // A tagged header is shorter than an untagged one: with no payload the copy would run
        // into the CRC, and those bytes are not looked at.
        let mut header = Header([0; UNTAGGED_LEN]);
        stream.copy_at(frame.at + 2, &mut header.0);
        let Some(payload) = ulpdu.checked_sub(header.len()) else {
            return Err(Fault::Short.into());
        };
        let seg = Segment {
            header,
            at: frame.at + 2 + header.len(),
            len: u32::try_from(payload).unwrap_or(0),
        };
        if !header.ddp_version_ok() {
            return Err(seg.blame(Fault::DdpVersion { tagged: header.tagged() }));
        }
        if !header.rdmap_version_ok() {
            return Err(seg.blame(Fault::RdmapVersion));
        }
        if header.tagged() {
            self.handle_tagged(env, stream, &seg)?;
        } else {
            self.handle_untagged(env, stream, &seg)?;
        }
        self.counters.rx_fpdus += 1;
        if !self.seen_fpdu {
            self.seen_fpdu = true;
            self.hold = false;
            self.raise(QpEvent::FirstFpdu);
        }
        Ok(())
    }
}

impl Segment {
    /// A fault of this segment.
    pub(super) fn blame(&self, fault: Fault) -> Culprit {
        Culprit { fault, segment: Some((self.header, self.ulpdu())), read: None, request: None }
    }

    fn ulpdu(&self) -> u16 {
        u16::try_from(self.len as usize + self.header.len()).unwrap_or(u16::MAX)
    }
}

fn crc_is_right<M: Memory, C: Chunks>(mem: &M, stream: &C, frame: Frame) -> bool {
    let body = fpdu_len(frame.ulpdu) - 4;
    let mut crc = 0;
    stream.for_each_chunk(frame.at, body, |piece| crc = mem.crc(crc, piece));
    let mut field = [0; 4];
    stream.copy_at(frame.at + body, &mut field);
    u32::from_le_bytes(field) == crc
}

/// Copies `ranges`' worth of payload from position `at` of the stream.
#[inline]
pub(super) fn place<M: Memory, C: Chunks>(mem: &M, stream: &C, mut at: usize, ranges: &[MemRange]) {
    for range in ranges {
        let mut done = 0;
        stream.for_each_chunk(at, range.len() as usize, |piece| {
            let n = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            if let Some(dst) = range.slice(done, n) {
                mem.place(dst, piece);
            }
            done += n;
        });
        at += range.len() as usize;
    }
}
