//! The transport messages of a connection: their contents, and the rules that they break.
//!
//! A verdict that depends on all earlier messages is only given while none is missing.

mod version1;
mod version2;

use heddle_rpcrdma::chunk::{WriteChunk, WriteList};
use heddle_rpcrdma::credit;
use heddle_rpcrdma::header::{Failure, Header, Message, Prefix, Versions, decode};
use heddle_rpcrdma::private_data::{self, PrivateData};
use heddle_rpcrdma::property::Properties;
use heddle_rpcrdma::rpc::{self, AuthSys};
use heddle_rpcrdma::sequence::Sequence;
use heddle_rpcrdma::{Limits, Segment, v1, v2};

use crate::item::{ChunkName, ChunkOf, Memory, Place, ReadChunk, Rpc, Rule, Transport, Verdict};
use crate::memory::{Call, Calls, Found};
use crate::messages::SEND_MAX;
use crate::names;

/// Above the limits of any implementation, so that the decoder shows what an implementation
/// refuses; low enough that a forged message costs little work.
const LIMITS: Limits = Limits { read_chunks: 256, write_chunks: 256, segments: 4096 };

/// The index of a connection's end: the initiator is 0.
pub(crate) type Side = usize;

/// The record of one end's messages.
#[derive(Debug)]
struct End {
    /// The calls of this end.
    calls: Calls,
    /// Version 1: the account of this end's calls, which the other end keeps.
    account: credit::v1::Responder,
    /// Version 2: the account of this end's messages.
    watch: credit::v2::Watch,
    sequence: Sequence,
    private_data: Option<PrivateData>,
    properties: Properties,
}

/// The transport messages of both ends of a connection.
#[derive(Debug)]
pub(crate) struct Exchange {
    ends: [End; 2],
    /// The version of the messages so far.
    version: Option<u32>,
    /// The responder has sent a message of that version.
    settled: bool,
    /// No message is missing so far.
    certain: bool,
}

/// The result of decoding a Send.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) transport: Transport,
    pub(crate) verdicts: Vec<Verdict>,
}

impl Sent {
    fn wrong(&mut self, rule: Rule, text: impl ToString) {
        self.verdicts.push(Verdict { rule, text: text.to_string() });
    }
}

/// Returns true if the bytes begin with a transport header of either version.
pub(crate) fn is_transport(bytes: &[u8]) -> bool {
    decode(bytes, Versions::Open { v1: true, v2: true }, &LIMITS).is_ok()
}

impl Exchange {
    /// Makes the record of a new connection, with the private data that its ends exchanged at the
    /// start.
    pub(crate) fn new(private_data: [Option<PrivateData>; 2]) -> Exchange {
        let end = |private_data| End {
            calls: Calls::default(),
            account: credit::v1::Responder::new(1),
            watch: credit::v2::Watch::new(),
            sequence: Sequence::new(u32::MAX),
            private_data,
            properties: Properties::DEFAULT,
        };
        Exchange { ends: private_data.map(end), version: None, settled: false, certain: true }
    }

    /// Records that messages are missing.
    pub(crate) fn interrupt(&mut self) {
        self.certain = false;
        for end in &mut self.ends {
            end.calls.clear();
            end.sequence = Sequence::new(u32::MAX);
        }
    }

    fn end(&mut self, side: Side) -> &mut End {
        let [initiator, responder] = &mut self.ends;
        if side == 0 { initiator } else { responder }
    }

    /// Decodes a Send of `side`. `bytes` are its bytes, or, if it has more, the first of them;
    /// `total` is their number.
    pub(crate) fn send(
        &mut self,
        side: Side,
        bytes: &[u8],
        total: u64,
        invalidate: Option<u32>,
    ) -> Sent {
        let mut sent = Sent::default();
        sent.transport.bytes = usize::try_from(total).unwrap_or(usize::MAX);
        sent.transport.invalidate = invalidate;
        if total > bytes.len() as u64 {
            sent.wrong(Rule::Limit, format!("more than {SEND_MAX} bytes in a Send"));
            self.interrupt();
        }
        // `check_version` compares the versions later: the decoder shows a message of either
        // version.
        match decode(bytes, Versions::Open { v1: true, v2: true }, &LIMITS) {
            Ok(message) => self.understood(side, &message, &mut sent),
            Err(failure) => self.failed(side, &failure, &mut sent),
        }
        self.check_length(side, &mut sent);
        sent
    }

    fn understood(&mut self, side: Side, message: &Message<'_>, sent: &mut Sent) {
        match &message.header {
            Header::V1(header) => {
                let error = matches!(header.body, v1::Body::Error(_));
                self.check_version(side, v1::VERSION, error, sent);
                self.version_1(side, header, message.payload, sent);
            }
            Header::V2(header) => {
                let error = matches!(header.body, v2::Body::Error(_));
                self.check_version(side, v2::VERSION, error, sent);
                self.version_2(side, header, message.payload, sent);
            }
        }
    }

    /// Describes a message that cannot be decoded, as far as it can be read.
    fn failed(&mut self, side: Side, failure: &Failure, sent: &mut Sent) {
        let t = &mut sent.transport;
        t.header = "unknown";
        if let Some(Prefix { xid, version, credit, kind }) = failure.prefix {
            (t.xid, t.version, t.credits) = (xid.0, version, credit);
            match version {
                v1::VERSION => t.header = names::procedure_v1(kind),
                v2::VERSION => t.header = names::htype_v2(kind),
                _ => {}
            }
        }
        sent.wrong(Rule::Header, failure);
        // In version 2 every message counts, whatever its contents; in version 1 it may have been a
        // call.
        match (sent.transport.version, failure.prefix) {
            (v2::VERSION, Some(prefix)) => self.count_v2(side, prefix.credit, sent),
            _ => self.certain = false,
        }
    }

    /// Checks the version of a message. An error may have the version of the message that it
    /// answers, and sets no version.
    fn check_version(&mut self, side: Side, version: u32, error: bool, sent: &mut Sent) {
        match self.version {
            _ if error => return,
            // A client goes from version 2 to version 1 when its server does not know version 2.
            Some(v2::VERSION) if version == v1::VERSION && !self.settled => {}
            Some(is) if is != version => {
                let text = format!("version {version} on a connection of version {is}");
                return sent.wrong(Rule::Version, text);
            }
            _ => {}
        }
        self.version = Some(version);
        self.settled |= side == 1;
    }

    /// Checks that a Send has at most as many bytes as both ends have agreed on. Properties may
    /// change while Sends are under way, so the default size is always allowed.
    fn check_length(&mut self, side: Side, sent: &mut Sent) {
        let [a, b] = &self.ends;
        let (from, to) = if side == 0 { (a, b) } else { (b, a) };
        let most = match sent.transport.version {
            v1::VERSION => {
                let of = from.private_data.unwrap_or_default();
                private_data::Terms::of(&of, to.private_data).send
            }
            v2::VERSION => {
                let agreed = from.properties.send_size.min(to.properties.receive_size);
                agreed.max(v2::INLINE_THRESHOLD)
            }
            _ => return,
        };
        if sent.transport.bytes > most as usize {
            let text = format!("{} bytes in a Send, {most} are taken", sent.transport.bytes);
            sent.wrong(Rule::Inline, text);
        }
    }

    /// Records that a call has come, in whole or its first part.
    fn called(&mut self, side: Side, xid: u32, call: Call, sent: &mut Sent) {
        let certain = self.certain;
        let calls = &mut self.end(side).calls;
        if calls.get(xid).is_some() {
            sent.wrong(Rule::Xid, format!("call {xid:#010x} is under way already"));
        }
        if calls.add(xid, call) && certain {
            sent.wrong(Rule::Limit, "so many calls are under way that the oldest are forgotten");
            self.certain = false;
        }
    }

    /// Handles a reply with its lists, or an error, either of which ends a call of the other end.
    fn ended(
        &mut self,
        side: Side,
        xid: u32,
        lists: Option<(&WriteList<'_>, Option<&WriteChunk<'_>>)>,
        sent: &mut Sent,
    ) -> Option<Call> {
        let certain = self.certain;
        let call = self.end(1 - side).calls.end(xid);
        if let Some(call) = &call {
            if let Some((writes, reply)) = lists {
                for text in call.returned(writes, reply) {
                    sent.wrong(Rule::Chunks, text);
                }
            }
            if let Some(handle) = sent.transport.invalidate {
                let may = match sent.transport.version {
                    v2::VERSION => call.invalidate.is_some_and(|h| h.0 == handle),
                    _ => call.has(handle),
                };
                if !may {
                    sent.wrong(
                        Rule::Memory,
                        format!("invalidates {handle:#010x}, not offered for it"),
                    );
                }
            }
        } else if certain {
            sent.wrong(Rule::Xid, format!("answers {xid:#010x}, which is no call under way"));
        }
        call
    }

    /// Handles that `side` has written bytes, which begin with `head`.
    pub(crate) fn wrote(
        &mut self,
        side: Side,
        place: Place,
        bytes: u64,
        head: &[u8],
        verdicts: &mut Vec<Verdict>,
    ) -> (Option<ChunkOf>, Option<Rpc>) {
        let found = self.end(1 - side).calls.moved(true, place, bytes);
        let of = self.judge(found, "written", place, verdicts);
        // A whole reply in its chunk begins with an RPC header.
        let rpc = of.filter(|of| of.chunk == ChunkName::Reply && of.at == 0).and_then(|of| {
            let procedure = self.end(1 - side).calls.get(of.xid).and_then(|c| c.procedure);
            reply(head, procedure).ok()
        });
        (of, rpc)
    }

    /// Handles that `side` reads bytes.
    pub(crate) fn asked(
        &mut self,
        side: Side,
        place: Place,
        bytes: u64,
        verdicts: &mut Vec<Verdict>,
    ) -> Option<ChunkOf> {
        let found = self.end(1 - side).calls.moved(false, place, bytes);
        self.judge(found, "read", place, verdicts)
    }

    /// Handles that `side` has answered a Read of `of`; returns the RPC header in the answer.
    pub(crate) fn answered(&mut self, side: Side, of: ChunkOf, head: &[u8]) -> Option<Rpc> {
        if of.chunk != ChunkName::Call || of.at != 0 {
            return None;
        }
        let (rpc, procedure) = call(head).ok()?;
        if let Some(call) = self.end(side).calls.get(of.xid) {
            call.procedure = Some(procedure);
        }
        Some(rpc)
    }

    fn judge(
        &self,
        found: Found,
        how: &str,
        place: Place,
        verdicts: &mut Vec<Verdict>,
    ) -> Option<ChunkOf> {
        let Place { handle, offset } = place;
        let (of, text) = match found {
            Found::In(of) => return Some(of),
            Found::Misused(of) => (Some(of), "which was not offered for that"),
            Found::Beyond(of) => (Some(of), "beyond the end of its segment"),
            Found::Ended => (None, "of a call that has ended"),
            Found::Nowhere => (None, "which was never offered"),
        };
        if self.certain || of.is_some() {
            let text = format!("{how}: {handle:#010x} at {offset:#x}, {text}");
            verdicts.push(Verdict { rule: Rule::Memory, text });
        }
        of
    }
}

fn memory(s: Segment) -> Memory {
    Memory { handle: s.handle.0, length: s.length, offset: s.offset }
}

/// Shows the lists of a header.
fn show(t: &mut Transport, chunks: &v1::Chunks<'_>) {
    t.reads = chunks
        .reads
        .chunks()
        .map(|c| ReadChunk { position: c.position(), segments: c.segments().map(memory).collect() })
        .collect();
    show_writes(t, &chunks.writes, chunks.reply.as_ref());
}

fn show_writes(t: &mut Transport, writes: &WriteList<'_>, reply: Option<&WriteChunk<'_>>) {
    t.writes = writes.chunks().map(|c| c.segments().map(memory).collect()).collect();
    t.reply = reply.map(|c| c.segments().map(memory).collect());
}

/// Decodes the header of a call.
fn call(bytes: &[u8]) -> Result<(Rpc, crate::item::Procedure), rpc::CallError> {
    let (call, _) = rpc::Call::decode(bytes)?;
    let procedure = names::procedure(call.procedure);
    let uid = AuthSys::decode(&call.cred).ok().map(|sys| sys.uid);
    Ok((Rpc::Call { procedure, credential: call.cred.flavor().0, uid }, procedure))
}

/// Decodes the header of a reply to a call of `procedure`.
fn reply(
    bytes: &[u8],
    procedure: Option<crate::item::Procedure>,
) -> Result<Rpc, heddle_rpcrdma::xdr::Error> {
    let (reply, results) = rpc::Reply::decode(bytes)?;
    let status = names::status(&reply.body);
    let first = results.first_chunk().map(|word| u32::from_be_bytes(*word));
    let nfs_status = first.filter(|_| procedure.as_ref().is_some_and(names::has_status));
    Ok(Rpc::Reply { procedure, status, nfs_status })
}
