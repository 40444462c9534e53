//! RDMA2_ERROR: why a message was not carried out (draft sections 6.3.1 and 7).

use crate::xdr::{Error, Reader, Writer};

/// Codes of errors (section 8.4).
pub mod code {
    /// Version not supported.
    pub const VERS: u32 = 1;
    /// The header is not understood.
    pub const BAD_XDR: u32 = 2;
    /// The value of a property is not of its type.
    pub const BAD_PROPVAL: u32 = 3;
    /// Header type not known.
    pub const INVAL_HTYPE: u32 = 4;
    /// Not what had to follow.
    pub const INVAL_CONT: u32 = 5;
    /// Too many Read chunks.
    pub const READ_CHUNKS: u32 = 6;
    /// Too many Write chunks.
    pub const WRITE_CHUNKS: u32 = 7;
    /// Too many segments in a chunk.
    pub const SEGMENTS: u32 = 8;
    /// A Write chunk is too short.
    pub const WRITE_RESOURCE: u32 = 9;
    /// The Reply chunk is too short.
    pub const REPLY_RESOURCE: u32 = 10;
    /// Another version than that of the connection.
    pub const VERS_MISMATCH: u32 = 11;
    /// Anything else.
    pub const SYSTEM: u32 = 100;
}

/// Why a message was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// RDMA2_ERR_VERS: its version is not spoken. This part of a header is the same in all versions.
    Versions {
        /// The lowest version that is.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// RDMA2_ERR_BAD_XDR: the header is not understood.
    BadXdr,
    /// RDMA2_ERR_BAD_PROPVAL: the value of a property that is known is not of its type.
    BadPropval,
    /// RDMA2_ERR_INVAL_HTYPE: the header type is not known.
    InvalHtype,
    /// RDMA2_ERR_INVAL_CONT: it is not what had to follow the message before.
    InvalCont,
    /// RDMA2_ERR_READ_CHUNKS: too many Read chunks.
    ReadChunks {
        /// As many as are taken.
        max: u32,
    },
    /// RDMA2_ERR_WRITE_CHUNKS: too many Write chunks.
    WriteChunks {
        /// As many as are taken.
        max: u32,
    },
    /// RDMA2_ERR_SEGMENTS: too many segments in a chunk.
    Segments {
        /// As many as are taken.
        max: u32,
    },
    /// RDMA2_ERR_WRITE_RESOURCE: a Write chunk is shorter than its result.
    WriteResource {
        /// Which one, from 1; 0 when that is not known.
        chunk: u32,
        /// Octets of the result.
        needed: u32,
    },
    /// RDMA2_ERR_REPLY_RESOURCE: the Reply chunk is shorter than the reply.
    ReplyResource {
        /// Octets of the reply; 0 when asking again is of no use.
        needed: u32,
    },
    /// RDMA2_ERR_VERS_MISMATCH: its version is not that of the connection.
    VersMismatch,
    /// RDMA2_ERR_SYSTEM: anything else.
    System,
    /// A code that is not of the draft: the message is discarded silently (section 7).
    Unknown(u32),
}

impl Refusal {
    /// The code.
    pub const fn code(self) -> u32 {
        match self {
            Refusal::Versions { .. } => code::VERS,
            Refusal::BadXdr => code::BAD_XDR,
            Refusal::BadPropval => code::BAD_PROPVAL,
            Refusal::InvalHtype => code::INVAL_HTYPE,
            Refusal::InvalCont => code::INVAL_CONT,
            Refusal::ReadChunks { .. } => code::READ_CHUNKS,
            Refusal::WriteChunks { .. } => code::WRITE_CHUNKS,
            Refusal::Segments { .. } => code::SEGMENTS,
            Refusal::WriteResource { .. } => code::WRITE_RESOURCE,
            Refusal::ReplyResource { .. } => code::REPLY_RESOURCE,
            Refusal::VersMismatch => code::VERS_MISMATCH,
            Refusal::System => code::SYSTEM,
            Refusal::Unknown(code) => code,
        }
    }

    /// What a requester does about the call that has the error's XID.
    pub const fn recovery(self) -> Recovery {
        match self {
            // One with a range that leaves nothing to choose ends it as well; the caller sees that.
            Refusal::Versions { .. } | Refusal::VersMismatch => Recovery::OtherVersion,
            Refusal::ReadChunks { .. } | Refusal::WriteChunks { .. } | Refusal::Segments { .. } => {
                Recovery::OtherChunks
            }
            Refusal::WriteResource { needed: 0, .. } | Refusal::ReplyResource { needed: 0 } => {
                Recovery::End
            }
            Refusal::WriteResource { .. } | Refusal::ReplyResource { .. } => Recovery::MoreRoom,
            Refusal::BadXdr
            | Refusal::BadPropval
            | Refusal::InvalHtype
            | Refusal::InvalCont
            | Refusal::System => Recovery::End,
            Refusal::Unknown(_) => Recovery::Discard,
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Refusal, Error> {
        Ok(match r.u32()? {
            code::VERS => Refusal::Versions { low: r.u32()?, high: r.u32()? },
            code::BAD_XDR => Refusal::BadXdr,
            code::BAD_PROPVAL => Refusal::BadPropval,
            code::INVAL_HTYPE => Refusal::InvalHtype,
            code::INVAL_CONT => Refusal::InvalCont,
            code::READ_CHUNKS => Refusal::ReadChunks { max: r.u32()? },
            code::WRITE_CHUNKS => Refusal::WriteChunks { max: r.u32()? },
            code::SEGMENTS => Refusal::Segments { max: r.u32()? },
            code::WRITE_RESOURCE => Refusal::WriteResource { chunk: r.u32()?, needed: r.u32()? },
            code::REPLY_RESOURCE => Refusal::ReplyResource { needed: r.u32()? },
            code::VERS_MISMATCH => Refusal::VersMismatch,
            code::SYSTEM => Refusal::System,
            code => Refusal::Unknown(code),
        })
    }

    pub(crate) fn encode(self, w: &mut Writer<'_>) {
        w.u32(self.code());
        match self {
            Refusal::Versions { low: a, high: b }
            | Refusal::WriteResource { chunk: a, needed: b } => {
                w.u32(a);
                w.u32(b);
            }
            Refusal::ReadChunks { max: a }
            | Refusal::WriteChunks { max: a }
            | Refusal::Segments { max: a }
            | Refusal::ReplyResource { needed: a } => w.u32(a),
            Refusal::BadXdr
            | Refusal::BadPropval
            | Refusal::InvalHtype
            | Refusal::InvalCont
            | Refusal::VersMismatch
            | Refusal::System
            | Refusal::Unknown(_) => {}
        }
    }
}

/// What may be done about a call that was refused (section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing: the call has failed.
    End,
    /// It may be made again with a version that the peer speaks.
    OtherVersion,
    /// It may be made again with fewer chunks or segments, by continuation or in a Call chunk.
    OtherChunks,
    /// It may be made again with more room for the reply.
    MoreRoom,
    /// The error is passed over; the call goes on.
    Discard,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_only_errors_that_say_how_may_be_tried_again() {
        assert_eq!(Refusal::ReplyResource { needed: 0 }.recovery(), Recovery::End);
        assert_eq!(Refusal::ReplyResource { needed: 9 }.recovery(), Recovery::MoreRoom);
        let short = |needed| Refusal::WriteResource { chunk: 1, needed };
        assert_eq!(short(0).recovery(), Recovery::End);
        assert_eq!(short(1).recovery(), Recovery::MoreRoom);
        assert_eq!(Refusal::Segments { max: 0 }.recovery(), Recovery::OtherChunks);
        assert_eq!(Refusal::InvalHtype.recovery(), Recovery::End);
        assert_eq!(Refusal::Unknown(12).recovery(), Recovery::Discard);
    }

    #[test]
    fn test_codes_that_are_not_assigned_are_kept() {
        for unknown in [0u32, 12, 99, 101, u32::MAX] {
            let octets = unknown.to_be_bytes();
            let read = Refusal::decode(&mut Reader::new(&octets));
            assert_eq!(read, Ok(Refusal::Unknown(unknown)));
        }
    }
}
