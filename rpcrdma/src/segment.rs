//! Segments: the location of a contiguous piece of registered memory (RFC 8166 section 3.4.3, draft
//! section 4.4.1). The two versions encode segments alike.

use crate::xdr::{Error, Reader, Writer};

/// A steering tag or R_key that a requester gives to its responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u32);

/// A contiguous piece of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The handle of the region that contains the piece.
    pub handle: Handle,
    /// Length in bytes; 0 makes an empty segment.
    pub length: u32,
    /// Tagged offset or address of the first byte.
    pub offset: u64,
}

impl Segment {
    /// Length of the encoding in bytes.
    pub const LEN: usize = 16;

    /// Returns true if all bytes of the segment have offsets below 2^64.
    pub const fn fits(&self) -> bool {
        // Check the offset of the last byte, because a segment may end exactly where the address
        // space ends.
        let last = self.length.saturating_sub(1) as u64;
        self.offset.checked_add(last).is_some()
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Segment, Error> {
        Ok(Segment { handle: Handle(r.u32()?), length: r.u32()?, offset: r.u64()? })
    }

    pub(crate) fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.handle.0);
        w.u32(self.length);
        w.u64(self.offset);
    }

    /// Restores a segment from bytes that were decoded before.
    pub(crate) fn of(bytes: &[u8]) -> Segment {
        Segment::decode(&mut Reader::new(bytes)).unwrap_or_default()
    }
}

/// A segment of a Read chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadSegment {
    /// Offset of the chunk's first byte in the unreduced Payload stream: the same in all segments
    /// of a chunk, and a multiple of four.
    pub position: u32,
    /// The memory that holds the bytes.
    pub target: Segment,
}

impl ReadSegment {
    /// Length of the encoding in bytes.
    pub const LEN: usize = 4 + Segment::LEN;

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<ReadSegment, Error> {
        Ok(ReadSegment { position: r.u32()?, target: Segment::decode(r)? })
    }

    pub(crate) fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.position);
        self.target.encode(w);
    }

    /// Restores a segment from bytes that were decoded before.
    pub(crate) fn of(bytes: &[u8]) -> ReadSegment {
        ReadSegment::decode(&mut Reader::new(bytes)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_segment_may_end_at_end_of_address_space_and_not_beyond() {
        let at = |offset, length| Segment { handle: Handle(1), length, offset };
        assert!(at(u64::MAX, 1).fits());
        assert!(at(u64::MAX, 0).fits());
        assert!(!at(u64::MAX, 2).fits());
        assert!(at(u64::MAX - 0xffff_fffe, u32::MAX).fits());
        assert!(!at(u64::MAX - 0xffff_fffd, u32::MAX).fits());
    }

    #[test]
    fn test_read_segment_encodes_to_its_xdr_bytes() {
        let target = Segment { handle: Handle(0x0102_0304), length: 5, offset: 0x0607 << 48 };
        let mut out = [0; ReadSegment::LEN];
        let mut w = Writer::new(&mut out);
        ReadSegment { position: 8, target }.encode(&mut w);
        assert_eq!(w.finish(), Ok(ReadSegment::LEN));
        assert_eq!(out, [0, 0, 0, 8, 1, 2, 3, 4, 0, 0, 0, 5, 6, 7, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ReadSegment::of(&out), ReadSegment { position: 8, target });
    }
}
