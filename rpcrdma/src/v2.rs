//! Transport headers of version 2 (draft section 6).
//!
//! ```text
//!    0  xid │ version 2 │ credit │ header type
//!   16  ERROR            code, and what belongs to it
//!       GRANT            nothing
//!       CONNPROP_*       set of properties
//!       CALL_EXTERNAL    invalidate │ Call chunk │ Read list │ Write list │ Reply chunk
//!       CALL_MIDDLE      remaining, and a part of the Payload stream after
//!       CALL_INLINE      invalidate │ Read list │ Write list │ Reply chunk, and the stream after
//!       REPLY_EXTERNAL   Write list │ Reply chunk
//!       REPLY_MIDDLE     remaining, and a part of the Payload stream after
//!       REPLY_INLINE     Write list, and the stream after
//! ```
//!
//! The draft counts the first word of the stream as the last word of the header. Here that word
//! belongs to the payload, and the decoder refuses a header without it.

mod error;
mod propset;

pub use crate::v1::Chunks;
pub use error::{Recovery, Refusal, code};
pub use propset::{Property, PropertySet};

use crate::chunk::{self, Limits, ReadList, WriteChunk, WriteList, ZeroPosition};
use crate::header::{Direction, Error, Fault, Prefix, Xid};
use crate::segment::Handle;
use crate::xdr::{NoRoom, Reader, Writer, measure};

/// The number of this version.
pub const VERSION: u32 = 2;

/// The inline threshold of both directions in bytes, until properties state another (section
/// 4.2.2).
pub const INLINE_THRESHOLD: u32 = 4096;

/// The largest length in bytes of a client's first message, since its server may know version 1
/// only (section 4.3).
pub const FIRST_MESSAGE_MAX: u32 = 1024;

/// Header types (section 6.1).
pub mod htype {
    /// The receiver did not carry out a message.
    pub const ERROR: u32 = 4;
    /// Credits without a payload.
    pub const GRANT: u32 = 5;
    /// Properties, with more sets to follow.
    pub const CONNPROP_MIDDLE: u32 = 6;
    /// The last set of properties.
    pub const CONNPROP_FINAL: u32 = 7;
    /// A call in a chunk.
    pub const CALL_EXTERNAL: u32 = 8;
    /// A part of a call, except the last.
    pub const CALL_MIDDLE: u32 = 9;
    /// A call, or its last part.
    pub const CALL_INLINE: u32 = 10;
    /// A reply in a chunk.
    pub const REPLY_EXTERNAL: u32 = 11;
    /// A part of a reply, except the last.
    pub const REPLY_MIDDLE: u32 = 12;
    /// A reply, or its last part.
    pub const REPLY_INLINE: u32 = 13;
}

/// The part of a header that depends on the header type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// RDMA2_ERROR (section 6.3.1).
    Error(Refusal),
    /// RDMA2_GRANT (section 6.3.2). Its sender sets the XID to zero, and its receiver ignores the
    /// XID.
    Grant,
    /// RDMA2_CONNPROP_MIDDLE and RDMA2_CONNPROP_FINAL (sections 6.3.3 and 6.3.4).
    ConnProp {
        /// True if no more sets follow.
        last: bool,
        /// The properties in this set.
        props: PropertySet<'a>,
    },
    /// RDMA2_CALL_EXTERNAL (section 6.3.5).
    CallExternal {
        /// The handle that the responder may invalidate with its reply; 0 for none. Use
        /// [`Header::invalidate`].
        invalidate: Handle,
        /// The Call chunk: the Payload stream, without the items in `chunks`.
        call: ReadList<'a>,
        /// Chunks for arguments, and room for the reply.
        chunks: Chunks<'a>,
    },
    /// RDMA2_CALL_MIDDLE (section 6.3.6).
    CallMiddle {
        /// Length in bytes of the Payload stream after this message.
        remaining: u32,
    },
    /// RDMA2_CALL_INLINE (section 6.3.7).
    CallInline {
        /// The handle that the responder may invalidate with its reply; 0 for none. Use
        /// [`Header::invalidate`].
        invalidate: Handle,
        /// Chunks for arguments, and room for the reply.
        chunks: Chunks<'a>,
    },
    /// RDMA2_REPLY_EXTERNAL (section 6.3.8).
    ReplyExternal {
        /// Chunks that hold results.
        writes: WriteList<'a>,
        /// The Reply chunk: the Payload stream, without the items in `writes`.
        reply: WriteChunk<'a>,
    },
    /// RDMA2_REPLY_MIDDLE (section 6.3.9).
    ReplyMiddle {
        /// Length in bytes of the Payload stream after this message.
        remaining: u32,
    },
    /// RDMA2_REPLY_INLINE (section 6.3.10).
    ReplyInline {
        /// Chunks that hold results.
        writes: WriteList<'a>,
    },
}

/// A transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// XID of the RPC message, or of the message that is refused.
    pub xid: Xid,
    /// The number of messages that the peer may have sent in total ([`credit`](crate::credit)).
    pub credit: u32,
    /// The part that depends on the header type.
    pub body: Body<'a>,
}

/// The rule for a list of data items (section 4.5.1).
const ITEMS: chunk::Rule = chunk::Rule { zero: ZeroPosition::Never, ordered: true };
/// The rule for a Call chunk (section 6.6.3).
const CALL: chunk::Rule = chunk::Rule { zero: ZeroPosition::Only, ordered: true };

impl<'a> Header<'a> {
    /// Decodes the rest of the header after `prefix`, and leaves the payload in `r`.
    pub(crate) fn decode(
        prefix: Prefix,
        r: &mut Reader<'a>,
        limits: &Limits,
    ) -> Result<Header<'a>, Error> {
        let body = match prefix.kind {
            htype::ERROR => Body::Error(Refusal::decode(r)?),
            htype::GRANT => Body::Grant,
            htype::CONNPROP_MIDDLE | htype::CONNPROP_FINAL => {
                let last = prefix.kind == htype::CONNPROP_FINAL;
                Body::ConnProp { last, props: PropertySet::decode(r)? }
            }
            htype::CALL_EXTERNAL => Body::CallExternal {
                invalidate: Handle(r.u32()?),
                call: ReadList::decode(r, CALL, limits)?,
                chunks: Chunks::decode(r, ITEMS, limits)?,
            },
            htype::CALL_MIDDLE => Body::CallMiddle { remaining: r.u32()? },
            htype::CALL_INLINE => Body::CallInline {
                invalidate: Handle(r.u32()?),
                chunks: Chunks::decode(r, ITEMS, limits)?,
            },
            htype::REPLY_EXTERNAL => {
                let writes = WriteList::decode(r, limits)?;
                let at = r.at();
                match WriteChunk::decode_optional(r, limits)? {
                    Some(reply) => Body::ReplyExternal { writes, reply },
                    None => return Err(Error { at, fault: Fault::NoPayload }),
                }
            }
            htype::REPLY_MIDDLE => Body::ReplyMiddle { remaining: r.u32()? },
            htype::REPLY_INLINE => Body::ReplyInline { writes: WriteList::decode(r, limits)? },
            kind => return Err(Error { at: 12, fault: Fault::Kind { kind } }),
        };
        let header = Header { xid: prefix.xid, credit: prefix.credit, body };
        if header.has_payload() {
            // The draft counts the first word of the stream as part of the header, so the word must
            // exist.
            let mut first = *r;
            first.u32()?;
        } else {
            r.finish()?;
        }
        Ok(header)
    }

    /// Returns true if a payload of at least four bytes follows the header (section 6.1, table 2).
    pub const fn has_payload(&self) -> bool {
        match self.body {
            Body::CallMiddle { .. }
            | Body::CallInline { .. }
            | Body::ReplyMiddle { .. }
            | Body::ReplyInline { .. } => true,
            Body::Error(_)
            | Body::Grant
            | Body::ConnProp { .. }
            | Body::CallExternal { .. }
            | Body::ReplyExternal { .. } => false,
        }
    }

    /// Returns whether the message belongs to a call or a reply; `None` when it concerns the
    /// connection.
    pub const fn direction(&self) -> Option<Direction> {
        direction(self.htype())
    }

    /// Returns the handle that the responder may invalidate by the Send that carries the reply
    /// (section 6.5): the handle that the requester offers, if the header's chunks contain it. This
    /// check protects a requester that names a wrong handle.
    pub fn invalidate(&self) -> Option<Handle> {
        let (handle, call, chunks) = match &self.body {
            Body::CallExternal { invalidate, call, chunks } => (*invalidate, call, chunks),
            Body::CallInline { invalidate, chunks } => (*invalidate, &ReadList::EMPTY, chunks),
            _ => return None,
        };
        let reads = call.segments().chain(chunks.reads.segments()).map(|s| s.target.handle);
        let writes = chunks.writes.chunks().chain(chunks.reply);
        let mut all = reads.chain(writes.flat_map(|c| c.segments()).map(|s| s.handle));
        (handle != Handle(0) && all.any(|h| h == handle)).then_some(handle)
    }

    /// Returns the code of the header type, defined in [`htype`].
    pub const fn htype(&self) -> u32 {
        match self.body {
            Body::Error(_) => htype::ERROR,
            Body::Grant => htype::GRANT,
            Body::ConnProp { last: false, .. } => htype::CONNPROP_MIDDLE,
            Body::ConnProp { last: true, .. } => htype::CONNPROP_FINAL,
            Body::CallExternal { .. } => htype::CALL_EXTERNAL,
            Body::CallMiddle { .. } => htype::CALL_MIDDLE,
            Body::CallInline { .. } => htype::CALL_INLINE,
            Body::ReplyExternal { .. } => htype::REPLY_EXTERNAL,
            Body::ReplyMiddle { .. } => htype::REPLY_MIDDLE,
            Body::ReplyInline { .. } => htype::REPLY_INLINE,
        }
    }

    fn put(&self, w: &mut Writer<'_>) {
        let kind = self.htype();
        Prefix { xid: self.xid, version: VERSION, credit: self.credit, kind }.encode(w);
        match &self.body {
            Body::Error(refusal) => refusal.encode(w),
            Body::Grant => {}
            Body::ConnProp { props, .. } => props.encode(w),
            Body::CallExternal { invalidate, call, chunks } => {
                w.u32(invalidate.0);
                call.encode(w);
                chunks.encode(w);
            }
            Body::CallMiddle { remaining } | Body::ReplyMiddle { remaining } => w.u32(*remaining),
            Body::CallInline { invalidate, chunks } => {
                w.u32(invalidate.0);
                chunks.encode(w);
            }
            Body::ReplyExternal { writes, reply } => {
                writes.encode(w);
                WriteChunk::encode_optional(Some(reply), w);
            }
            Body::ReplyInline { writes } => writes.encode(w),
        }
    }

    /// Returns the length of the header in bytes, without the payload.
    pub fn encoded_len(&self) -> usize {
        measure(|w| self.put(w))
    }

    /// Writes the header to the front of `out` and returns its length in bytes; the payload follows
    /// the header.
    ///
    /// # Errors
    /// Returns an error when `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let mut w = Writer::new(out);
        self.put(&mut w);
        w.finish()
    }
}

/// Returns whether a header type belongs to a call or a reply.
pub(crate) const fn direction(kind: u32) -> Option<Direction> {
    match kind {
        htype::CALL_EXTERNAL | htype::CALL_MIDDLE | htype::CALL_INLINE => Some(Direction::Call),
        htype::REPLY_EXTERNAL | htype::REPLY_MIDDLE | htype::REPLY_INLINE => Some(Direction::Reply),
        _ => None,
    }
}
