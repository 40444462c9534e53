//! Takes apart a direction of a stream in FPDU mode: for captures, tests and tools.
//!
//! This code copies the bytes and looks at all of them; the data path does neither. The decoder
//! goes on after an FPDU with a bad CRC and trusts its length, because a reader of a capture wants
//! to see more than the first fault; a receiver must not do so.

use super::fpdu::{self, CRC_LEN, HEADER_LEN};
use super::markers::{self, MarkerError};
use crate::ddp::{DdpError, DdpHeader};
use crate::fault::Fault;
use crate::rdmap::{Control, ControlError};
use std::borrow::Cow;

/// The framing that the start-up settled for this direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// CRCs are in use.
    pub crc: bool,
    /// The stream contains markers.
    pub markers: bool,
}

/// The result of checking the CRC of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrcVerdict {
    /// CRCs are not in use: the field may hold anything.
    Unused,
    /// The field holds the CRC of the bytes.
    Good,
    /// The field holds another number.
    Bad {
        /// The CRC computed of the bytes.
        computed: u32,
        /// The CRC that the field holds.
        received: u32,
    },
}

/// The reasons for which a receiver cannot pass an FPDU on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FpduError {
    /// The CRC is wrong, so no other field of the FPDU can be trusted.
    #[error("FPDU with CRC {received:#010x}, not {computed:#010x}")]
    Crc {
        /// The CRC computed of the bytes.
        computed: u32,
        /// The CRC that the field holds.
        received: u32,
    },
    /// A marker in the FPDU is wrong.
    #[error(transparent)]
    Marker(#[from] MarkerError),
    /// The DDP header is wrong.
    #[error(transparent)]
    Ddp(#[from] DdpError),
    /// The queue or the RDMAP control byte is wrong.
    #[error(transparent)]
    Rdmap(#[from] ControlError),
}

impl FpduError {
    /// Returns the fault that a receiver would report.
    pub fn fault(self) -> Fault {
        match self {
            FpduError::Crc { .. } => Fault::Crc,
            FpduError::Marker(e) => e.into(),
            FpduError::Ddp(e) => e.into(),
            FpduError::Rdmap(e) => e.into(),
        }
    }
}

/// An FPDU of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// Where the FPDU starts in the FPDU stream: at its length, or at the marker before its length.
    pub offset: u64,
    /// Bytes of the stream that the FPDU took, markers included.
    pub wire_len: usize,
    /// The DDP segment.
    pub ulpdu: Cow<'a, [u8]>,
    /// The pad, which is zero from a sender that keeps the rules.
    pub pad: [u8; 3],
    /// The result of the CRC check.
    pub crc: CrcVerdict,
    /// The first marker that is wrong.
    pub marker: Result<(), MarkerError>,
}

impl Decoded<'_> {
    /// Returns the headers, checked in the order that a receiver has to keep: CRC, markers, DDP,
    /// RDMAP. The queue pair checks them by the very same functions.
    ///
    /// # Errors
    /// Fails with the error of the first check that fails.
    pub fn headers(&self) -> Result<(DdpHeader, Control), FpduError> {
        if let CrcVerdict::Bad { computed, received } = self.crc {
            return Err(FpduError::Crc { computed, received });
        }
        self.marker?;
        let (ddp, _) = DdpHeader::parse(&self.ulpdu)?;
        Ok((ddp, Control::check(&ddp)?))
    }

    /// Returns the bytes after the DDP header; empty if the header cannot be read.
    pub fn payload(&self) -> &[u8] {
        DdpHeader::parse(&self.ulpdu).map_or(&[], |(_, n)| &self.ulpdu[n..])
    }
}

/// Iterates over the whole FPDUs at the start of `stream`, whose first byte is the first of FPDU
/// mode; [`Fpdus::rest`] has the remaining bytes when the iteration ends.
pub const fn decode(stream: &[u8], framing: Framing) -> Fpdus<'_> {
    decode_from(stream, 0, framing)
}

/// Iterates as [`decode`] does, over bytes that begin with an FPDU `offset` bytes into the FPDU
/// stream. The iterator expects markers where the whole stream has them.
pub const fn decode_from(stream: &[u8], offset: u64, framing: Framing) -> Fpdus<'_> {
    Fpdus { rest: stream, offset, framing }
}

/// The iterator of [`decode`].
#[derive(Clone, Debug)]
pub struct Fpdus<'a> {
    rest: &'a [u8],
    offset: u64,
    framing: Framing,
}

impl<'a> Fpdus<'a> {
    /// Returns the bytes not decoded: at the end of the iteration, an FPDU that is incomplete.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns the position in the FPDU stream at which those bytes start.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    fn plain(&self) -> Option<(Decoded<'a>, usize)> {
        let len = self.rest.first_chunk::<HEADER_LEN>()?;
        let ulpdu_len = u16::from_be_bytes(*len);
        let fpdu = self.rest.get(..fpdu::fpdu_len(ulpdu_len))?;
        let computed =
            if self.framing.crc { fpdu::crc(0, &fpdu[..fpdu.len() - CRC_LEN]) } else { 0 };
        let ulpdu = Cow::Borrowed(&fpdu[HEADER_LEN..HEADER_LEN + usize::from(ulpdu_len)]);
        Some((self.decoded(fpdu, ulpdu, computed, Ok(())), fpdu.len()))
    }

    fn marked(&self) -> Option<(Decoded<'a>, usize)> {
        let u = markers::remove(self.rest, self.offset)?;
        let ulpdu_len = usize::from(u16::from_be_bytes([u.fpdu[0], u.fpdu[1]]));
        let ulpdu = Cow::Owned(u.fpdu[HEADER_LEN..HEADER_LEN + ulpdu_len].to_vec());
        Some((self.decoded(&u.fpdu, ulpdu, u.crc, u.marker), u.consumed))
    }

    fn decoded(
        &self,
        fpdu: &[u8],
        ulpdu: Cow<'a, [u8]>,
        computed: u32,
        marker: Result<(), MarkerError>,
    ) -> Decoded<'a> {
        let (body, field) = fpdu.split_at(fpdu.len() - CRC_LEN);
        let received = field.first_chunk().map_or(0, |f| fpdu::crc_from_wire(*f));
        let mut pad = [0; 3];
        for (to, from) in pad.iter_mut().zip(&body[HEADER_LEN + ulpdu.len()..]) {
            *to = *from;
        }
        let crc = match self.framing.crc {
            false => CrcVerdict::Unused,
            true if computed == received => CrcVerdict::Good,
            true => CrcVerdict::Bad { computed, received },
        };
        Decoded { offset: self.offset, wire_len: 0, ulpdu, pad, crc, marker }
    }
}

impl<'a> Iterator for Fpdus<'a> {
    type Item = Decoded<'a>;

    fn next(&mut self) -> Option<Decoded<'a>> {
        let (mut d, consumed) = if self.framing.markers { self.marked()? } else { self.plain()? };
        d.wire_len = consumed;
        self.rest = &self.rest[consumed..];
        self.offset += consumed as u64;
        Some(d)
    }
}

#[cfg(test)]
mod tests;
