//! MPA Request and Reply frames (RFC 5044 section 7.1.1, RFC 6581 sections 6 and 9).
//!
//! ```text
//! | key (16) | M C R S res(4) | revision (8) | PD length (16) | private data (0..=512) |
//! private data with S: | A B IRD(14) | C D ORD(14) | the application's data |
//! ```
//!
//! S and the words after it exist from revision 2 on. In revision 1 the S bit is one of the
//! reserved bits, which a sender sets to zero and a receiver ignores.

use heddle_types::mpa::{Depth, FrameError, PrivateDataError, Revision, Rtr, RtrSet};

/// Bytes before the private data.
pub const HEADER_LEN: usize = 20;
/// Most bytes of private data, the two words of RFC 6581 included.
pub const MAX_PRIVATE_DATA: usize = 512;
/// Bytes of the longest frame.
pub const MAX_FRAME_LEN: usize = HEADER_LEN + MAX_PRIVATE_DATA;
/// Bytes of the IRD and ORD words.
pub const ENHANCED_LEN: usize = 4;

const KEY_LEN: usize = 16;
const REQUEST_KEY: &[u8; KEY_LEN] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; KEY_LEN] = b"MPA ID Rep Frame";

mod flag {
    pub(super) const MARKERS: u8 = 0x80;
    pub(super) const CRC: u8 = 0x40;
    pub(super) const REJECT: u8 = 0x20;
    pub(super) const ENHANCED: u8 = 0x10;
}

/// The two kinds of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

impl Kind {
    const fn key(self) -> &'static [u8; KEY_LEN] {
        match self {
            Kind::Request => REQUEST_KEY,
            Kind::Reply => REPLY_KEY,
        }
    }

    const fn other(self) -> Kind {
        match self {
            Kind::Request => Kind::Reply,
            Kind::Reply => Kind::Request,
        }
    }
}

/// The two words of RFC 6581, which carry depths and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enhanced {
    /// Reads that the sender can serve at a time.
    pub ird: Depth,
    /// Reads that the sender may have outstanding.
    pub ord: Depth,
    /// The peer-to-peer model (flag A): the initiator says by a first message that it is ready.
    pub peer_to_peer: bool,
    /// The first messages that the sender can send (Request) or accept (Reply): flags B, C, D.
    /// Empty unless `peer_to_peer`.
    pub rtr: RtrSet,
}

impl Enhanced {
    const A: u16 = 0x8000;
    const B: u16 = 0x4000;

    fn parse(b: [u8; ENHANCED_LEN]) -> Enhanced {
        let (w0, w1) = (u16::from_be_bytes([b[0], b[1]]), u16::from_be_bytes([b[2], b[3]]));
        let peer_to_peer = w0 & Enhanced::A != 0;
        let mut rtr = RtrSet::NONE;
        // Without A the other flags mean nothing and are ignored (section 9.2).
        if peer_to_peer {
            for (set, r) in [
                (w0 & Enhanced::B, Rtr::Send),
                (w1 & Enhanced::A, Rtr::Write),
                (w1 & Enhanced::B, Rtr::Read),
            ] {
                if set != 0 {
                    rtr = rtr.with(RtrSet::of(r));
                }
            }
        }
        Enhanced { ird: Depth::from_bits(w0), ord: Depth::from_bits(w1), peer_to_peer, rtr }
    }

    fn emit(&self) -> [u8; ENHANCED_LEN] {
        let bit = |set: bool, bit: u16| if set && self.peer_to_peer { bit } else { 0 };
        let w0 =
            self.ird.bits() | bit(true, Enhanced::A) | bit(self.rtr.has(Rtr::Send), Enhanced::B);
        let w1 = self.ord.bits()
            | bit(self.rtr.has(Rtr::Write), Enhanced::A)
            | bit(self.rtr.has(Rtr::Read), Enhanced::B);
        let ([a, b], [c, d]) = (w0.to_be_bytes(), w1.to_be_bytes());
        [a, b, c, d]
    }
}

/// A Request or Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The kind of the frame.
    pub kind: Kind,
    /// The sender needs markers in what it receives (M).
    pub markers: bool,
    /// The sender wants CRCs (C); they are used if either side does.
    pub crc: bool,
    /// The responder refuses (R); false in a Request, whatever its bit is.
    pub reject: bool,
    /// Revision of MPA that the frame names.
    pub revision: Revision,
    /// The words of RFC 6581, if the frame has them (S).
    pub enhanced: Option<Enhanced>,
    /// The application's private data.
    pub private_data: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads a frame of the expected kind, of revision 1..=`max`, from the start of `bytes`, and
    /// returns it with its length; `None` if more bytes are needed.
    ///
    /// # Errors
    /// Fails as soon as the bytes cannot become such a frame: for a wrong key at its first wrong
    /// byte.
    pub fn parse(
        kind: Kind,
        max: Revision,
        bytes: &'a [u8],
    ) -> Result<Option<(Frame<'a>, usize)>, FrameError> {
        if let Some(at) = bytes.iter().zip(kind.key()).position(|(a, b)| a != b) {
            // The two keys differ in one byte; up to that byte, the frame may be of the other kind.
            return Err(if bytes[at] == kind.other().key()[at] {
                FrameError::SameRole
            } else {
                FrameError::Key { at }
            });
        }
        let Some((&flags, rest)) = bytes.get(KEY_LEN..).and_then(<[u8]>::split_first) else {
            return Ok(None);
        };
        let Some((&revision, rest)) = rest.split_first() else {
            return Ok(None);
        };
        let revision = Revision(revision);
        if revision < Revision::V1 || revision > max {
            return Err(FrameError::Revision { got: revision, max });
        }
        let Some((len, rest)) = rest.split_first_chunk::<2>() else {
            return Ok(None);
        };
        let len = usize::from(u16::from_be_bytes(*len));
        if len > MAX_PRIVATE_DATA {
            return Err(FrameError::PrivateDataTooLong { len });
        }
        let has_enhanced = revision >= Revision::V2 && flags & flag::ENHANCED != 0;
        if has_enhanced && len < ENHANCED_LEN {
            return Err(FrameError::EnhancedTooShort { len });
        }
        let Some(mut private_data) = rest.get(..len) else {
            return Ok(None);
        };
        let mut enhanced = None;
        if has_enhanced && let Some((words, rest)) = private_data.split_first_chunk() {
            enhanced = Some(Enhanced::parse(*words));
            private_data = rest;
        }
        let frame = Frame {
            kind,
            markers: flags & flag::MARKERS != 0,
            crc: flags & flag::CRC != 0,
            // The bit means nothing in a Request, so ignore it there.
            reject: kind == Kind::Reply && flags & flag::REJECT != 0,
            revision,
            enhanced,
            private_data,
        };
        Ok(Some((frame, HEADER_LEN + len)))
    }

    /// Returns the frame as on the wire.
    ///
    /// # Errors
    /// Fails with a [`PrivateDataError`] when the private data does not fit.
    pub fn emit(&self) -> Result<Vec<u8>, PrivateDataError> {
        let words = self.enhanced.map(|e| e.emit());
        let words = words.as_ref().map_or(&[][..], |w| w);
        let max = MAX_PRIVATE_DATA - words.len();
        let len = self.private_data.len();
        let total = match u16::try_from(words.len() + len) {
            Ok(total) if len <= max => total,
            _ => return Err(PrivateDataError { len, max }),
        };
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let mut out = Vec::with_capacity(HEADER_LEN + usize::from(total));
        out.extend_from_slice(self.kind.key());
        out.push(
            flag(self.markers, flag::MARKERS)
                | flag(self.crc, flag::CRC)
                | flag(self.reject && self.kind == Kind::Reply, flag::REJECT)
                | flag(self.enhanced.is_some(), flag::ENHANCED),
        );
        out.push(self.revision.0);
        out.extend_from_slice(&total.to_be_bytes());
        out.extend_from_slice(words);
        out.extend_from_slice(self.private_data);
        Ok(out)
    }
}

#[cfg(test)]
mod tests;
