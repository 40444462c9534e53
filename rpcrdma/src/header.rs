//! A received Send: which version it is of, its transport header and its payload; and when it cannot
//! be understood, what is answered (RFC 8166 section 4.5, draft section 7).
//!
//! The first four words are the same in all versions (RFC 8166 section 4.2):
//!
//! ```text
//!    0  xid │ version │ credit │ procedure or header type
//! ```
//!
//! An answer to a message that is itself an error, a reply or a grant is never made: two ends that do
//! not understand each other fall silent.

mod answer;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Refusal, Role};

use crate::chunk::{self, Limits};
use crate::xdr::{self, Reader, Writer};
use crate::{v1, v2};

/// A transaction identifier: names a call among those its sender has not had the reply of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xid(pub u32);

/// What an RPC message is (RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A call, from a requester to its responder.
    Call,
    /// A reply, from a responder to its requester.
    Reply,
}

impl Direction {
    /// That of the RPC message which begins with `payload`; `None` when it does not say.
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

/// The words that all versions have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Joins a reply or an error to its call.
    pub xid: Xid,
    /// The version of the header.
    pub version: u32,
    /// Flow control, by the version's own rules.
    pub credit: u32,
    /// Procedure (version 1) or header type (version 2).
    pub kind: u32,
}

impl Prefix {
    /// Octets of its encoding.
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

/// RDMA_ERROR of version 1 and RDMA2_ERROR: fixed for all versions (RFC 8166 section 4.1.2).
pub(crate) const KIND_ERROR: u32 = 4;

/// The versions that are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// Of a connection's first message: version 1, version 2 or both.
    Open {
        /// Whether version 1 is spoken.
        v1: bool,
        /// Whether version 2 is spoken.
        v2: bool,
    },
    /// Of all others: version 1.
    V1,
    /// Of all others: version 2.
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

    /// Lowest and highest.
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
    /// Of version 1.
    V1(v1::Header<'a>),
    /// Of version 2.
    V2(v2::Header<'a>),
}

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its transport header.
    pub header: Header<'a>,
    /// What is behind it: the Payload stream or a part of it, or nothing.
    pub payload: &'a [u8],
}

impl Message<'_> {
    /// Whether it is of a call or of a reply; `None` when it is of neither, or does not say.
    pub fn direction(&self) -> Option<Direction> {
        match &self.header {
            Header::V1(header) => header.direction(self.payload),
            Header::V2(header) => header.direction(),
        }
    }
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Shorter than any header: its XID cannot be trusted.
    #[error("{have} octets are no header")]
    Short {
        /// Octets there are.
        have: usize,
    },
    /// Of a version that is not taken.
    #[error("version {version}")]
    Version {
        /// The version.
        version: u32,
    },
    /// Not XDR of its type.
    #[error(transparent)]
    Xdr(#[from] xdr::Fault),
    /// A chunk list that is none.
    #[error(transparent)]
    Chunk(chunk::Fault),
    /// Procedure or header type not known.
    #[error("header type {kind}")]
    Kind {
        /// The type.
        kind: u32,
    },
    /// RDMA_MSGP, which is no longer used.
    #[error("RDMA_MSGP")]
    MsgPadded,
    /// RDMA_DONE, which is no longer used.
    #[error("RDMA_DONE")]
    Done,
    /// Neither the message nor a chunk holds the Payload stream.
    #[error("no Payload stream")]
    NoPayload,
    /// A reply with Read chunks.
    #[error("Read chunks in a reply")]
    ReadsInReply,
    /// The XID of the header is not that of the RPC message.
    #[error("XID {inner:#x} in the RPC message")]
    XidMismatch {
        /// That of the RPC message.
        inner: u32,
    },
    /// A property whose value is not of its type.
    #[error("value of property {id}")]
    Propval {
        /// Which one.
        id: u32,
    },
}

/// A [`Fault`], and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at octet {at}: {fault}")]
pub struct Error {
    /// Offset in the message.
    pub at: usize,
    /// What is wrong.
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

/// A message that was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Failure {
    /// Octets of the message.
    pub octets: usize,
    /// Its first words, when it has them. In version 2 its credits count whatever the rest is.
    pub prefix: Option<Prefix>,
    /// What is known of its direction.
    pub direction: Option<Direction>,
    /// Versions that would have been taken.
    pub versions: Versions,
    /// What is wrong with it.
    pub error: Error,
}

/// Reads a received message, as long as the Send was.
///
/// The XID in the payload is compared in version 1, where a message that has a payload begins an RPC
/// message; in version 2 it may go on with one, and [`sequence`](crate::sequence) compares.
///
/// # Errors
/// What is wrong with it. It may have to be [answered](Failure::answer).
pub fn decode<'a>(
    octets: &'a [u8],
    versions: Versions,
    limits: &Limits,
) -> Result<Message<'a>, Failure> {
    let fail = |prefix, direction, error| {
        let octets = octets.len();
        Failure { octets, prefix, direction, versions, error }
    };
    let mut r = Reader::new(octets);
    let Ok(prefix) = Prefix::decode(&mut r) else {
        let error = Error { at: 0, fault: Fault::Short { have: octets.len() } };
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

/// A server that speaks version 1 only answers a client's first message, of version 2, with an error
/// whose version is 2 by the draft (section 7) and may be 1 by a server that echoes nothing. Either is
/// read, as RDMA_ERROR is fixed for all versions; which one it is does not choose a version.
fn is_first_answer(prefix: &Prefix, versions: Versions) -> bool {
    let open = matches!(versions, Versions::Open { .. });
    open && prefix.kind == KIND_ERROR && [v1::VERSION, v2::VERSION].contains(&prefix.version)
}

/// What version 1 asks of a header and its payload together.
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
    // Section 4.3.1: what a reply takes from its requester, it has taken before.
    if direction == Some(Direction::Reply) && !reads.is_empty() {
        return Err(Error { at: Prefix::LEN, fault: Fault::ReadsInReply });
    }
    Ok(())
}
