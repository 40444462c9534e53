//! Transport headers of version 1 (RFC 8166 section 4).
//!
//! ```text
//!    0  xid │ version 1 │ credit │ procedure
//!   16  RDMA_MSG      Read list │ Write list │ Reply chunk, and the Payload stream after
//!       RDMA_NOMSG    Read list │ Write list │ Reply chunk
//!       RDMA_ERROR    1, lowest │ highest version; or 2
//! ```
//!
//! RDMA_MSGP and RDMA_DONE are obsolete (section 4.6): decoding returns an error, and
//! [`header::Failure::answer`](crate::header::Failure::answer) answers or discards the message as
//! that section requires.

use crate::chunk::{Limits, ReadList, WriteChunk, WriteList, ZeroPosition};
use crate::header::{Direction, Error, Fault, Prefix, Xid};
use crate::xdr::{NoRoom, Reader, Writer, measure};
use crate::{chunk, xdr};

/// The number of this version.
pub const VERSION: u32 = 1;

/// The inline threshold of both directions in bytes, unless private data state another (section
/// 3.3.3).
pub const INLINE_THRESHOLD: u32 = 1024;

/// Procedures (section 4.2.4).
pub mod procedure {
    /// The Payload stream follows.
    pub const MSG: u32 = 0;
    /// The Payload stream is in a chunk.
    pub const NOMSG: u32 = 1;
    /// Obsolete: the Payload stream follows, padded.
    pub const MSGP: u32 = 2;
    /// Obsolete: the other side has read the chunks.
    pub const DONE: u32 = 3;
    /// The receiver did not understand a message.
    pub const ERROR: u32 = 4;
}

/// The chunk lists of RDMA_MSG and RDMA_NOMSG (section 4.3), and of version 2's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks<'a> {
    /// Arguments, and with RDMA_NOMSG a whole call at position zero.
    pub reads: ReadList<'a>,
    /// Room for results in a call, the filled room in a reply.
    pub writes: WriteList<'a>,
    /// Room for a whole reply in a call, the filled room in a reply.
    pub reply: Option<WriteChunk<'a>>,
}

impl<'a> Chunks<'a> {
    /// The lists of a message without chunks.
    pub const NONE: Chunks<'static> =
        Chunks { reads: ReadList::EMPTY, writes: WriteList::EMPTY, reply: None };

    pub(crate) fn decode(
        r: &mut Reader<'a>,
        rule: chunk::Rule,
        limits: &Limits,
    ) -> Result<Chunks<'a>, chunk::Error> {
        Ok(Chunks {
            reads: ReadList::decode(r, rule, limits)?,
            writes: WriteList::decode(r, limits)?,
            reply: WriteChunk::decode_optional(r, limits)?,
        })
    }

    pub(crate) fn encode(&self, w: &mut Writer<'_>) {
        self.reads.encode(w);
        self.writes.encode(w);
        WriteChunk::encode_optional(self.reply.as_ref(), w);
    }
}

/// The reason why a message was not carried out (section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// ERR_VERS: the receiver does not speak the message's version. This part of a header is the
    /// same in all versions.
    Versions {
        /// Lowest version that the receiver speaks.
        low: u32,
        /// Highest version that the receiver speaks.
        high: u32,
    },
    /// ERR_CHUNK: any other reason.
    Chunk,
}

/// ERR_VERS, which is 1 in all versions.
pub(crate) const ERR_VERS: u32 = 1;
const ERR_CHUNK: u32 = 2;

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Refusal::Versions { low, high } => {
                write!(f, "the peer speaks versions {low} to {high} of RPC-over-RDMA (ERR_VERS)")
            }
            Refusal::Chunk => f.write_str("the peer cannot carry out the message (ERR_CHUNK)"),
        }
    }
}

impl Refusal {
    fn decode(r: &mut Reader<'_>) -> Result<Refusal, xdr::Error> {
        let at = r.at();
        match r.u32()? {
            ERR_VERS => Ok(Refusal::Versions { low: r.u32()?, high: r.u32()? }),
            ERR_CHUNK => Ok(Refusal::Chunk),
            value => Err(xdr::Error { at, fault: xdr::Fault::Enum { value } }),
        }
    }

    pub(crate) fn encode(self, w: &mut Writer<'_>) {
        match self {
            Refusal::Versions { low, high } => {
                w.u32(ERR_VERS);
                w.u32(low);
                w.u32(high);
            }
            Refusal::Chunk => w.u32(ERR_CHUNK),
        }
    }
}

/// The part of a header that depends on the procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// RDMA_MSG: the Payload stream, without the items in chunks, follows the header.
    Msg(Chunks<'a>),
    /// RDMA_NOMSG: the Payload stream is in the chunk at position zero (a call), or in the Reply
    /// chunk (a reply).
    NoMsg(Chunks<'a>),
    /// RDMA_ERROR, with its reason.
    Error(Refusal),
}

/// A transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// XID of the RPC message.
    pub xid: Xid,
    /// Credits that a call asks for, or a reply grants (section 4.2.3).
    pub credit: u32,
    /// The part that depends on the procedure.
    pub body: Body<'a>,
}

impl<'a> Header<'a> {
    /// Decodes the rest of the header after `prefix`, and leaves the Payload stream in `r`.
    pub(crate) fn decode(
        prefix: Prefix,
        r: &mut Reader<'a>,
        limits: &Limits,
    ) -> Result<Header<'a>, Error> {
        let body = match prefix.kind {
            procedure::MSG => {
                let rule = chunk::Rule { zero: ZeroPosition::Never, ordered: false };
                Body::Msg(Chunks::decode(r, rule, limits)?)
            }
            procedure::NOMSG => {
                let rule = chunk::Rule { zero: ZeroPosition::Also, ordered: false };
                let chunks = Chunks::decode(r, rule, limits)?;
                // Either of the two must hold the Payload stream; which of them does shows the
                // direction.
                if chunks.reads.body().is_none() && chunks.reply.is_none() {
                    return Err(Error { at: Prefix::LEN, fault: Fault::NoPayload });
                }
                r.finish()?;
                Body::NoMsg(chunks)
            }
            procedure::ERROR => {
                let refusal = Refusal::decode(r)?;
                r.finish()?;
                Body::Error(refusal)
            }
            procedure::MSGP => return Err(Error { at: 12, fault: Fault::MsgPadded }),
            procedure::DONE => return Err(Error { at: 12, fault: Fault::Done }),
            kind => return Err(Error { at: 12, fault: Fault::Kind { kind } }),
        };
        Ok(Header { xid: prefix.xid, credit: prefix.credit, body })
    }

    /// Returns whether the message is a call or a reply. Version 1 has no field for that: the
    /// second word of the `payload` shows the direction of an RDMA_MSG, and the chunk that holds
    /// the Payload stream shows that of an RDMA_NOMSG. Returns `None` when the payload does not
    /// show a direction, or is missing.
    pub fn direction(&self, payload: &[u8]) -> Option<Direction> {
        match &self.body {
            Body::Msg(_) => Direction::peek(payload),
            Body::NoMsg(chunks) if chunks.reads.body().is_some() => Some(Direction::Call),
            Body::NoMsg(_) => Some(Direction::Reply),
            Body::Error(_) => None,
        }
    }

    fn put(&self, w: &mut Writer<'_>) {
        let kind = match self.body {
            Body::Msg(_) => procedure::MSG,
            Body::NoMsg(_) => procedure::NOMSG,
            Body::Error(_) => procedure::ERROR,
        };
        Prefix { xid: self.xid, version: VERSION, credit: self.credit, kind }.encode(w);
        match &self.body {
            Body::Msg(chunks) | Body::NoMsg(chunks) => chunks.encode(w),
            Body::Error(refusal) => refusal.encode(w),
        }
    }

    /// Returns the length of the header in bytes. The inline threshold limits this length, for
    /// RDMA_MSG together with the Payload stream.
    pub fn encoded_len(&self) -> usize {
        measure(|w| self.put(w))
    }

    /// Writes the header to the front of `out` and returns its length in bytes.
    ///
    /// # Errors
    /// Returns an error when `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let mut w = Writer::new(out);
        self.put(&mut w);
        w.finish()
    }
}
