//! The items found in a capture. Serialized, an [`Item`] is a flat document with a `kind`.

use core::net::SocketAddr;

use serde::Serialize;

/// An event, message or broken rule that the decoder has found in a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// Capture time of the frame, in nanoseconds since 1970.
    pub time: u64,
    /// Number of the frame that brought the item's last byte, from 1.
    pub frame: u64,
    /// Address of the sender.
    pub from: SocketAddr,
    /// Address of the receiver.
    pub to: SocketAddr,
    /// The event, message or verdict itself.
    #[serde(flatten)]
    pub what: What,
}

/// The kinds of items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum What {
    /// An event of TCP.
    Tcp(Tcp),
    /// A frame of the MPA start-up.
    Mpa(Mpa),
    /// An RDMA message, except for a Send that is a transport message.
    Rdma(Rdma),
    /// A transport message of RPC-over-RDMA, in a Send.
    Rpcrdma(Box<Transport>),
    /// A broken rule, or bytes that are not what they should be.
    Verdict(Verdict),
}

/// An event of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Tcp {
    /// The segment repeats bytes that came before.
    Retransmission {
        /// Number of repeated bytes.
        bytes: u64,
    },
    /// Bytes before the segment are missing, and may still come.
    OutOfOrder {
        /// Number of missing bytes.
        missing: u64,
    },
    /// Bytes of the stream are not in the capture.
    Gap {
        /// Number of missing bytes.
        bytes: u64,
    },
    /// The decoder has found FPDUs again after a gap.
    Resumed {
        /// Number of bytes that it could not read, the gap included.
        bytes: u64,
    },
    /// The sender has reset the connection.
    Reset,
    /// The sender has closed its direction.
    Fin,
}

/// An MPA Request or Reply (RFC 5044 section 7.1.1, RFC 6581 section 9).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mpa {
    /// True for the Reply, false for the Request.
    pub reply: bool,
    /// Revision of MPA that the frame names.
    pub revision: u8,
    /// The frame's sender needs markers.
    pub markers: bool,
    /// The frame's sender wants CRCs.
    pub crc: bool,
    /// The responder refuses the connection.
    pub reject: bool,
    /// IRD, if the frame has one that is a number.
    pub ird: Option<u16>,
    /// ORD, if the frame has one that is a number.
    pub ord: Option<u16>,
    /// First messages of the peer-to-peer model; `None` for the client-server model.
    pub ready_to_receive: Option<Vec<&'static str>>,
    /// Bytes of private data after the words of RFC 6581.
    pub private_data: usize,
    /// The private data of RPC-over-RDMA version 1 (RFC 8797), if there are any.
    pub rpcrdma: Option<PrivateData>,
}

/// The fields of an RFC 8797 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PrivateData {
    /// Size of the longest Send, in bytes.
    pub send_size: u32,
    /// Size of Receive buffers, in bytes.
    pub receive_size: u32,
    /// Replies may invalidate.
    pub invalidate: bool,
}

/// An RDMA message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rdma {
    /// Name of the opcode.
    pub operation: &'static str,
    /// Bytes of payload; for a Read Request, the bytes that it asks for.
    pub bytes: u64,
    /// The region that receives the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_memory: Option<Place>,
    /// The region that the peer reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_memory: Option<Place>,
    /// The STag that the peer invalidates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalidate: Option<u32>,
    /// The error that a Terminate reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The chunk that the payload belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<ChunkOf>,
    /// The header of the RPC message with which the payload begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<Rpc>,
}

/// A place in tagged memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// STag of the memory, which RPC-over-RDMA calls a handle.
    pub handle: u32,
    /// Tagged offset, in bytes.
    pub offset: u64,
}

/// A part of a chunk that a call has offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChunkOf {
    /// XID of the call.
    pub xid: u32,
    /// The chunk of that call.
    pub chunk: ChunkName,
    /// Byte offset in the chunk.
    pub at: u64,
}

/// The name of a chunk within its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "list", rename_all = "kebab-case")]
pub enum ChunkName {
    /// The chunk of a Read list with this position.
    Read {
        /// Byte offset in the Payload stream.
        position: u32,
    },
    /// The call itself: version 1's chunk at position zero, version 2's Call chunk.
    Call,
    /// A chunk of a Write list.
    Write {
        /// Index in the list, from 0.
        index: usize,
    },
    /// The Reply chunk.
    Reply,
}

/// A transport message of RPC-over-RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Transport {
    /// Version of the header.
    pub version: u32,
    /// Procedure (version 1) or header type (version 2).
    pub header: &'static str,
    /// XID of the transaction.
    pub xid: u32,
    /// The credit field of the header.
    pub credits: u32,
    /// Bytes of the Send.
    pub bytes: usize,
    /// The STag that the Send invalidates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalidate: Option<u32>,
    /// The handle that the reply may invalidate (version 2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub may_invalidate: Option<u32>,
    /// Bytes of the RPC message that further messages carry.
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
    /// The error that an error message reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Transport properties.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<Property>,
    /// The header of the RPC message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<Rpc>,
}

/// A segment of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Handle of the region.
    pub handle: u32,
    /// Length in bytes.
    pub length: u32,
    /// Tagged offset.
    pub offset: u64,
}

/// A Read chunk of a Read list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadChunk {
    /// Byte offset in the Payload stream.
    pub position: u32,
    /// The memory of the chunk.
    pub segments: Vec<Memory>,
}

/// A transport property of version 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Property {
    /// The name, or the number of an unknown property.
    pub name: String,
    /// The value; `None` for the default, and for a value that is not a number.
    pub value: Option<u32>,
}

/// The header of an RPC message (RFC 5531 section 9).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub enum Rpc {
    /// A request of a client to a server (RFC 5531 section 9).
    Call {
        /// The procedure that the client calls.
        #[serde(flatten)]
        procedure: Procedure,
        /// Flavor of the credential.
        credential: u32,
        /// User id of the credential, if it is of AUTH_SYS.
        uid: Option<u32>,
    },
    /// The server's answer to a call (RFC 5531 section 9).
    Reply {
        /// The procedure that was called, if the call is in the capture.
        #[serde(flatten)]
        procedure: Option<Procedure>,
        /// The status that the server reports.
        status: String,
        /// The status with which results of NFS version 3 or MOUNT begin.
        nfs_status: Option<u32>,
    },
}

/// An RPC procedure, and its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Procedure {
    /// Number of the program.
    pub program: u32,
    /// Version of the program's protocol.
    pub program_version: u32,
    /// Number of the procedure within that version.
    pub procedure: u32,
    /// Names of program and procedure, if the decoder knows them.
    pub name: Option<(&'static str, &'static str)>,
}

/// A broken rule, as the decoder reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The kind of the rule.
    pub rule: Rule,
    /// The details of the fault, for people.
    pub text: String,
}

/// The kinds of rules that verdicts are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// A frame that is cut off or malformed.
    Frame,
    /// The MPA start-up.
    Startup,
    /// CRC, markers, DDP and RDMAP headers of an FPDU.
    Fpdu,
    /// Message sequence numbers and offsets.
    Order,
    /// A Read Response without a request, or another than the request asked for.
    Read,
    /// A transport header that the decoder cannot decode.
    Header,
    /// A version other than that of the connection.
    Version,
    /// A Send longer than the other side accepts.
    Inline,
    /// Flow control.
    Credits,
    /// XIDs: of calls that are already under way, of replies without a call.
    Xid,
    /// Memory that the other end has not offered, or not for this use.
    Memory,
    /// Chunks of a reply that differ from those of its call.
    Chunks,
    /// Messages of version 2 that do not follow each other correctly.
    Sequence,
    /// The header of the RPC message.
    Rpc,
    /// More calls than this decoder keeps account of.
    Limit,
}
