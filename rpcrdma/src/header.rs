//! A received Send: its version, its transport header and its payload; and the answer to a message
//! that this end cannot understand (RFC 8166 section 4.5, draft section 7).
//!
//! The first four words are the same in all versions (RFC 8166 section 4.2):
//!
//! ```text
//!    0  xid │ version │ credit │ procedure or header type
//! ```
//!
//! This end never answers a message that is itself an error, a reply or a grant, so two ends that
//! do not understand each other fall silent.

mod answer;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Refusal, Role};

use crate::chunk::{self, Limits};
use crate::xdr::{self, Reader, Writer};
use crate::{v1, v2};

/// A transaction identifier: names a call among the calls whose reply the sender has not received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xid(pub u32);

/// The direction of an RPC message (RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A call, from a requester to its responder.
    Call,
    /// A reply, from a responder to its requester.
    Reply,
}

impl Direction {
    /// Returns the direction of the RPC message that begins with `payload`; `None` when the payload
    /// does not state any.
    pub fn peek(payload: &[u8]) -> Option<Direction> {
        let mut r = Reader::new(payload);
        r.u32().ok()?;
        match r.u32().ok()? {
            0 => Some(Direction::Call),
            1 => Some(Direction::Reply),
            _ => None,
        }
    }
}

/// The words that the headers of all versions begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The XID, which joins a reply or an error to its call.
    pub xid: Xid,
    /// Version of the header.
    pub version: u32,
    /// Flow control, by the version's own rules.
    pub credit: u32,
    /// Procedure (version 1) or header type (version 2).
    pub kind: u32,
}

impl Prefix {
    /// Length of the encoded prefix in bytes.
    pub const LEN: usize = 16;

    fn decode(r: &mut Reader<'_>) -> Result<Prefix, xdr::Error> {
        Ok(Prefix { xid: Xid(r.u32()?), version: r.u32()?, credit: r.u32()?, kind: r.u32()? })
    }

    pub(crate) fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.xid.0);
        w.u32(self.version);
        w.u32(self.credit);
        w.u32(self.kind);
    }
}

/// RDMA_ERROR of version 1, and RDMA2_ERROR: the same in all versions (RFC 8166 section 4.1.2).
pub(crate) const KIND_ERROR: u32 = 4;

/// The versions of messages that this end takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// The connection's first message may have version 1, version 2 or either.
    Open {
        /// True if this end speaks version 1.
        v1: bool,
        /// True if this end speaks version 2.
        v2: bool,
    },
    /// The connection speaks version 1.
    V1,
    /// The connection speaks version 2.
    V2,
}

impl Versions {
    fn takes(self, version: u32) -> bool {
        match self {
            Versions::Open { v1, v2 } => {
                (v1 && version == v1::VERSION) || (v2 && version == v2::VERSION)
            }
            Versions::V1 => version == v1::VERSION,
            Versions::V2 => version == v2::VERSION,
        }
    }

    /// Returns the lowest and the highest version.
    fn range(self) -> (u32, u32) {
        match self {
            Versions::Open { v1: true, v2: true } => (v1::VERSION, v2::VERSION),
            Versions::Open { v1: true, v2: false } | Versions::V1 => (v1::VERSION, v1::VERSION),
            Versions::Open { v1: false, .. } | Versions::V2 => (v2::VERSION, v2::VERSION),
        }
    }
}

/// A header of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header<'a> {
    /// A header of version 1.
    V1(v1::Header<'a>),
    /// A header of version 2.
    V2(v2::Header<'a>),
}

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The transport header of the message.
    pub header: Header<'a>,
    /// The bytes after the header: the Payload stream or a part of it, or nothing.
    pub payload: &'a [u8],
}

impl Message<'_> {
    /// Returns whether the message belongs to a call or a reply; `None` when it belongs to neither,
    /// or does not state which.
    pub fn direction(&self) -> Option<Direction> {
        match &self.header {
            Header::V1(header) => header.direction(self.payload),
            Header::V2(header) => header.direction(),
        }
    }
}

/// The reason why a message is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The message is shorter than any header, so its XID cannot be trusted.
    #[error("{have} bytes are no header")]
    Short {
        /// Length of the message in bytes.
        have: usize,
    },
    /// The message has a version that this end does not take.
    #[error("version {version}")]
    Version {
        /// Version in the message.
        version: u32,
    },
    /// The bytes are not XDR of the expected type.
    #[error(transparent)]
    Xdr(#[from] xdr::Fault),
    /// A chunk list is invalid.
    #[error(transparent)]
    Chunk(chunk::Fault),
    /// The procedure or header type is unknown.
    #[error("header type {kind}")]
    Kind {
        /// The procedure or header type.
        kind: u32,
    },
    /// The message is an RDMA_MSGP, which is obsolete.
    #[error("RDMA_MSGP")]
    MsgPadded,
    /// The message is an RDMA_DONE, which is obsolete.
    #[error("RDMA_DONE")]
    Done,
    /// Neither the message nor a chunk holds the Payload stream.
    #[error("no Payload stream")]
    NoPayload,
    /// A reply has Read chunks.
    #[error("Read chunks in a reply")]
    ReadsInReply,
    /// The XID of the header differs from the XID of the RPC message.
    #[error("XID {inner:#x} in the RPC message")]
    XidMismatch {
        /// XID of the RPC message.
        inner: u32,
    },
    /// The value of a property is not of the property's type.
    #[error("value of property {id}")]
    Propval {
        /// Code of the property.
        id: u32,
    },
}

/// A [`Fault`] and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {fault}")]
pub struct Error {
    /// Byte offset in the message.
    pub at: usize,
    /// The fault at that place.
    pub fault: Fault,
}

impl From<xdr::Error> for Error {
    fn from(e: xdr::Error) -> Error {
        Error { at: e.at, fault: e.fault.into() }
    }
}

impl From<chunk::Error> for Error {
    fn from(e: chunk::Error) -> Error {
        let fault = match e.fault {
            chunk::Fault::Xdr(fault) => fault.into(),
            fault => Fault::Chunk(fault),
        };
        Error { at: e.at, fault }
    }
}

/// A message that this end could not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Failure {
    /// Length of the message in bytes.
    pub bytes: usize,
    /// The first words, if the message has them. In version 2 the credits count whatever the rest
    /// is.
    pub prefix: Option<Prefix>,
    /// The direction, as far as the message shows it.
    pub direction: Option<Direction>,
    /// Versions that this end would have taken.
    pub versions: Versions,
    /// The fault in the message.
    pub error: Error,
}

/// Decodes a received message; `bytes` has the length of the Send.
///
/// Compares the XID in the payload only in version 1, where the payload of a message is always the
/// beginning of an RPC message. In version 2 the payload may continue an RPC message, and
/// [`sequence`](crate::sequence) compares the XIDs.
///
/// # Errors
/// Returns the fault in the message, which may require an [answer](Failure::answer).
pub fn decode<'a>(
    bytes: &'a [u8],
    versions: Versions,
    limits: &Limits,
) -> Result<Message<'a>, Failure> {
    let fail = |prefix, direction, error| {
        let bytes = bytes.len();
        Failure { bytes, prefix, direction, versions, error }
    };
    let mut r = Reader::new(bytes);
    let Ok(prefix) = Prefix::decode(&mut r) else {
        let error = Error { at: 0, fault: Fault::Short { have: bytes.len() } };
        return Err(fail(None, None, error));
    };
    let version = prefix.version;
    if !versions.takes(version) && !is_first_answer(&prefix, versions) {
        let error = Error { at: 4, fault: Fault::Version { version } };
        return Err(fail(Some(prefix), None, error));
    }
    if version == v2::VERSION {
        let direction = v2::direction(prefix.kind);
        let header = v2::Header::decode(prefix, &mut r, limits)
            .map_err(|error| fail(Some(prefix), direction, error))?;
        return Ok(Message { header: Header::V2(header), payload: r.rest() });
    }
    let header = v1::Header::decode(prefix, &mut r, limits)
        .map_err(|error| fail(Some(prefix), None, error))?;
    let payload = r.rest();
    let direction = header.direction(payload);
    check_v1(&header, payload, direction, r)
        .map_err(|error| fail(Some(prefix), direction, error))?;
    Ok(Message { header: Header::V1(header), payload })
}

/// Returns true for the answer to a client's first message of version 2 from a server that speaks
/// only version 1. The version of that error is 2 by the draft (section 7), and may be 1 if the
/// server does not echo the version. This end reads either, because RDMA_ERROR is the same in all
/// versions; neither of them chooses a version.
fn is_first_answer(prefix: &Prefix, versions: Versions) -> bool {
    let open = matches!(versions, Versions::Open { .. });
    open && prefix.kind == KIND_ERROR && [v1::VERSION, v2::VERSION].contains(&prefix.version)
}

/// Checks the rules of version 1 that concern a header and its payload together.
fn check_v1(
    header: &v1::Header<'_>,
    payload: &[u8],
    direction: Option<Direction>,
    mut r: Reader<'_>,
) -> Result<(), Error> {
    let at = r.at();
    let reads = match &header.body {
        v1::Body::Msg(chunks) => {
            debug_assert_eq!(payload.len(), r.left());
            let inner = r.u32()?;
            if inner != header.xid.0 {
                return Err(Error { at, fault: Fault::XidMismatch { inner } });
            }
            &chunks.reads
        }
        v1::Body::NoMsg(chunks) => &chunks.reads,
        v1::Body::Error(_) => return Ok(()),
    };
    // Section 4.3.1: the requester sends Read chunks with the call, so a reply has none.
    if direction == Some(Direction::Reply) && !reads.is_empty() {
        return Err(Error { at: Prefix::LEN, fault: Fault::ReadsInReply });
    }
    Ok(())
}
