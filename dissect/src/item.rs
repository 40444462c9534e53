//! What is found in a capture. Serialized, an [`Item`] is a flat document with a `kind`.

use core::net::SocketAddr;

use serde::Serialize;

/// Something found in a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// Nanoseconds since 1970, of the frame.
    pub time: u64,
    /// Number of the frame that brought the last octet of it, from 1.
    pub frame: u64,
    /// Who sent it.
    pub from: SocketAddr,
    /// To whom.
    pub to: SocketAddr,
    /// The thing.
    #[serde(flatten)]
    pub what: What,
}

/// The kinds of things.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum What {
    /// An event of TCP.
    Tcp(Tcp),
    /// A frame of the MPA start-up.
    Mpa(Mpa),
    /// An RDMA message, but for a Send that is a transport message.
    Rdma(Rdma),
    /// A transport message of RPC-over-RDMA, in a Send.
    Rpcrdma(Box<Transport>),
    /// A rule that is broken, or octets that are not what they should be.
    Verdict(Verdict),
}

/// An event of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Tcp {
    /// Octets that came before.
    Retransmission {
        /// How many.
        octets: u64,
    },
    /// Octets in front of these are missing, and may still come.
    OutOfOrder {
        /// How many.
        missing: u64,
    },
    /// Octets are not in the capture.
    Gap {
        /// How many.
        octets: u64,
    },
    /// FPDUs were found again behind a gap.
    Resumed {
        /// Octets that could not be read, the gap among them.
        octets: u64,
    },
    /// The connection was reset.
    Reset,
    /// The sender ends.
    Fin,
}

/// An MPA Request or Reply (RFC 5044 section 7.1.1, RFC 6581 section 9).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mpa {
    /// Whether it is the Reply.
    pub reply: bool,
    /// Its revision.
    pub revision: u8,
    /// Whether its sender needs markers.
    pub markers: bool,
    /// Whether its sender wants CRCs.
    pub crc: bool,
    /// Whether the connection is refused.
    pub reject: bool,
    /// IRD and ORD, if they are there and are numbers.
    pub ird: Option<u16>,
    /// See `ird`.
    pub ord: Option<u16>,
    /// First messages of the peer-to-peer model; `None` for the client-server model.
    pub ready_to_receive: Option<Vec<&'static str>>,
    /// Octets of private data behind the words of RFC 6581.
    pub private_data: usize,
    /// What they say of RPC-over-RDMA version 1 (RFC 8797).
    pub rpcrdma: Option<PrivateData>,
}

/// The message of RFC 8797.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PrivateData {
    /// Octets of the longest Send.
    pub send_size: u32,
    /// Octets of Receive buffers.
    pub receive_size: u32,
    /// Whether replies may invalidate.
    pub invalidate: bool,
}

/// An RDMA message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rdma {
    /// Its opcode's name.
    pub operation: &'static str,
    /// Octets of payload; of a Read Request, those that are asked for.
    pub octets: u64,
    /// The region the payload goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_memory: Option<Place>,
    /// The region that is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_memory: Option<Place>,
    /// The STag that is invalidated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalidate: Option<u32>,
    /// What a Terminate says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whose chunk the payload is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<ChunkOf>,
    /// The header of the RPC message that the payload begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<Rpc>,
}

/// A place in tagged memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// STag, or handle.
    pub handle: u32,
    /// Tagged offset.
    pub offset: u64,
}

/// A part of a chunk that was offered in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChunkOf {
    /// The call.
    pub xid: u32,
    /// The chunk.
    pub chunk: ChunkName,
    /// Offset in the chunk.
    pub at: u64,
}

/// Which chunk of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "list", rename_all = "kebab-case")]
pub enum ChunkName {
    /// That of a Read list with this position.
    Read {
        /// Offset in the Payload stream.
        position: u32,
    },
    /// The call itself: version 1's chunk at position zero, version 2's Call chunk.
    Call,
    /// One of a Write list.
    Write {
        /// From 0.
        index: usize,
    },
    /// The Reply chunk.
    Reply,
}

/// A transport message of RPC-over-RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Transport {
    /// Version of its header.
    pub version: u32,
    /// Procedure (version 1) or header type (version 2).
    pub header: &'static str,
    /// Transaction.
    pub xid: u32,
    /// The credit field.
    pub credits: u32,
    /// Octets of the Send.
    pub octets: usize,
    /// The STag that the Send invalidates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalidate: Option<u32>,
    /// The handle that the reply may invalidate (version 2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub may_invalidate: Option<u32>,
    /// Octets of the RPC message that follow in further messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u32>,
    /// The Call chunk (version 2).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub call: Vec<Memory>,
    /// The Read list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<ReadChunk>,
    /// The Write list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<Vec<Memory>>,
    /// The Reply chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<Vec<Memory>>,
    /// What an error message says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Transport properties.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<Property>,
    /// The header of the RPC message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<Rpc>,
}

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Of the region.
    pub handle: u32,
    /// Octets.
    pub length: u32,
    /// Tagged offset.
    pub offset: u64,
}

/// A Read chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadChunk {
    /// Offset in the Payload stream.
    pub position: u32,
    /// Where it is.
    pub segments: Vec<Memory>,
}

/// A transport property of version 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Property {
    /// Its name, or its number.
    pub name: String,
    /// Its value; `None` for the default, and for one that is not a number.
    pub value: Option<u32>,
}

/// The header of an RPC message (RFC 5531 section 9).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub enum Rpc {
    /// A call.
    Call {
        /// What is called.
        #[serde(flatten)]
        procedure: Procedure,
        /// Flavor of the credential.
        credential: u32,
        /// Its user, if it is of AUTH_SYS.
        uid: Option<u32>,
    },
    /// A reply.
    Reply {
        /// What was called, if the call is in the capture.
        #[serde(flatten)]
        procedure: Option<Procedure>,
        /// What has come of it.
        status: String,
        /// The status the results of NFS version 3 or MOUNT begin with.
        nfs_status: Option<u32>,
    },
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Procedure {
    /// Program.
    pub program: u32,
    /// Its version.
    pub program_version: u32,
    /// Procedure of it.
    pub procedure: u32,
    /// What both are called, if they are known.
    pub name: Option<(&'static str, &'static str)>,
}

/// A rule that is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Which one.
    pub rule: Rule,
    /// How.
    pub text: String,
}

/// What verdicts are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// A frame that is cut off, or is none.
    Frame,
    /// The MPA start-up.
    Startup,
    /// CRC, markers, DDP and RDMAP headers of an FPDU.
    Fpdu,
    /// Message sequence numbers and offsets.
    Order,
    /// A Read Response that nobody asked for, or another than was.
    Read,
    /// A transport header that is not understood.
    Header,
    /// Another version than that of the connection.
    Version,
    /// A Send longer than the other side takes.
    Inline,
    /// Flow control.
    Credits,
    /// XIDs: of calls under way, of replies to nothing.
    Xid,
    /// Memory that was not offered, or not for this.
    Memory,
    /// Chunks of a reply that are not those of its call.
    Chunks,
    /// Messages of version 2 that do not follow each other.
    Sequence,
    /// The header of the RPC message.
    Rpc,
    /// More than this reader keeps account of.
    Limit,
}
