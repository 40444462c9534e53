//! RDMA2_ERROR: the reason why a message was not carried out (draft sections 6.3.1 and 7).

use crate::xdr::{Error, Reader, Writer};

/// Codes of errors (section 8.4).
pub mod code {
    /// Version not supported.
    pub const VERS: u32 = 1;
    /// The receiver does not understand the header.
    pub const BAD_XDR: u32 = 2;
    /// The value of a property does not have the property's type.
    pub const BAD_PROPVAL: u32 = 3;
    /// The receiver does not know the header type.
    pub const INVAL_HTYPE: u32 = 4;
    /// The message is not the one that had to follow.
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
    /// The message has another version than the connection.
    pub const VERS_MISMATCH: u32 = 11;
    /// Any other reason.
    pub const SYSTEM: u32 = 100;
}

/// The reason why a message was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// RDMA2_ERR_VERS: the receiver does not speak the message's version. This part of a header is
    /// the same in all versions.
    Versions {
        /// Lowest version that the receiver speaks.
        low: u32,
        /// Highest version that the receiver speaks.
        high: u32,
    },
    /// RDMA2_ERR_BAD_XDR: the receiver does not understand the header.
    BadXdr,
    /// RDMA2_ERR_BAD_PROPVAL: the value of a known property does not have the property's type.
    BadPropval,
    /// RDMA2_ERR_INVAL_HTYPE: the receiver does not know the header type.
    InvalHtype,
    /// RDMA2_ERR_INVAL_CONT: the message is not one that may follow the previous message.
    InvalCont,
    /// RDMA2_ERR_READ_CHUNKS: too many Read chunks.
    ReadChunks {
        /// Largest number that the receiver takes.
        max: u32,
    },
    /// RDMA2_ERR_WRITE_CHUNKS: too many Write chunks.
    WriteChunks {
        /// Largest number that the receiver takes.
        max: u32,
    },
    /// RDMA2_ERR_SEGMENTS: too many segments in a chunk.
    Segments {
        /// Largest number that the receiver takes.
        max: u32,
    },
    /// RDMA2_ERR_WRITE_RESOURCE: a Write chunk is shorter than its result.
    WriteResource {
        /// Number of the chunk, from 1; 0 when unknown.
        chunk: u32,
        /// Length of the result in bytes.
        needed: u32,
    },
    /// RDMA2_ERR_REPLY_RESOURCE: the Reply chunk is shorter than the reply.
    ReplyResource {
        /// Length of the reply in bytes; 0 when another attempt is of no use.
        needed: u32,
    },
    /// RDMA2_ERR_VERS_MISMATCH: the message has another version than the connection.
    VersMismatch,
    /// RDMA2_ERR_SYSTEM: any other reason.
    System,
    /// A code that the draft does not define: the receiver discards the message silently (section
    /// 7).
    Unknown(u32),
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Refusal::Versions { low, high } => {
                write!(f, "the peer speaks versions {low} to {high} of RPC-over-RDMA")
            }
            Refusal::BadXdr => f.write_str("the peer does not understand the header"),
            Refusal::BadPropval => f.write_str("a property has a value of another type"),
            Refusal::InvalHtype => f.write_str("the peer does not know the header type"),
            Refusal::InvalCont => f.write_str("the message may not follow the one before"),
            Refusal::ReadChunks { max } => write!(f, "more than {max} Read chunks"),
            Refusal::WriteChunks { max } => write!(f, "more than {max} Write chunks"),
            Refusal::Segments { max } => write!(f, "more than {max} segments in a chunk"),
            Refusal::WriteResource { chunk, needed } => {
                write!(f, "Write chunk {chunk} is shorter than its result of {needed} bytes")
            }
            Refusal::ReplyResource { needed } => {
                write!(f, "the Reply chunk is shorter than the reply of {needed} bytes")
            }
            Refusal::VersMismatch => f.write_str("the message has another version"),
            Refusal::System => f.write_str("the peer cannot carry out the message"),
            Refusal::Unknown(_) => f.write_str("an error without a name"),
        }?;
        write!(f, " (RDMA2_ERROR {})", self.code())
    }
}

impl Refusal {
    /// Returns the code of the error.
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

    /// Returns how a requester may recover the call that has the error's XID.
    pub const fn recovery(self) -> Recovery {
        match self {
            // If the range leaves no version to choose, the call ends as well; the caller checks
            // that.
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

/// The recovery of a refused call (section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// No recovery: the call has failed.
    End,
    /// The requester may repeat the call with a version that the peer speaks.
    OtherVersion,
    /// The requester may repeat the call with fewer chunks or segments, by continuation or in a
    /// Call chunk.
    OtherChunks,
    /// The requester may repeat the call with more room for the reply.
    MoreRoom,
    /// The requester ignores the error; the call goes on.
    Discard,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_call_is_retried_only_after_errors_that_say_how() {
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
    fn test_unassigned_error_codes_are_preserved() {
        for unknown in [0u32, 12, 99, 101, u32::MAX] {
            let bytes = unknown.to_be_bytes();
            let read = Refusal::decode(&mut Reader::new(&bytes));
            assert_eq!(read, Ok(Refusal::Unknown(unknown)));
        }
    }
}
