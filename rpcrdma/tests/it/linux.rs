//! The messages of the NFS client and server of Linux in version 1. `tests/data/README.md`
//! describes the recording.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeSet, HashMap};

use heddle_rpcrdma::binding::{Binding, Chunks as Missing, NFS3, Stream};
use heddle_rpcrdma::chunk::{ReadList, WriteChunk, WriteList};
use heddle_rpcrdma::header::{Direction, Header, Versions, decode};
use heddle_rpcrdma::private_data::{PrivateData, Terms};
use heddle_rpcrdma::reduce::Item;
use heddle_rpcrdma::rpc::{Auth, Call, Flavor, Procedure, Reply, ReplyBody, Status};
use heddle_rpcrdma::v1::{self, Body, Chunks};
use heddle_rpcrdma::{Limits, Xid};

const RECORDED: &str = include_str!("../data/linux-v1.txt");

/// Names of the procedures of NFS version 3, in order of their numbers.
const NFS3_NAMES: &str = "NULL GETATTR SETATTR LOOKUP ACCESS READLINK READ WRITE CREATE MKDIR \
    SYMLINK MKNOD REMOVE RMDIR RENAME LINK READDIR READDIRPLUS FSSTAT FSINFO PATHCONF COMMIT";

/// A line of the recording: the fields that the recorder read from the message, and the message's
/// bytes.
struct Recorded {
    kind: &'static str,
    fields: HashMap<&'static str, &'static str>,
    bytes: Vec<u8>,
}

impl Recorded {
    fn of(line: &'static str) -> Recorded {
        let mut words: Vec<&str> = line.split(' ').collect();
        let digits = words.pop().unwrap();
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        Recorded {
            kind: words.remove(0),
            fields: words.iter().map(|w| w.split_once('=').unwrap()).collect(),
            bytes: (0..digits.len()).step_by(2).map(byte).collect(),
        }
    }

    fn number(&self, field: &str) -> u32 {
        self.fields[field].parse().unwrap()
    }

    fn xid(&self) -> Xid {
        Xid(u32::from_str_radix(self.fields["xid"], 16).unwrap())
    }

    /// Returns the procedure of the call, or of the call that is replied to; `None` for a call
    /// whose RPC header is in a chunk.
    fn procedure(&self) -> Option<Procedure> {
        let name = self.fields["procedure"];
        if name == "-" {
            return None;
        }
        let (program, number) = name.split_once('.').unwrap();
        let number = || number.parse().unwrap();
        Some(match program {
            "nfs3" => {
                let name = name.strip_prefix("nfs3.").unwrap();
                let at = NFS3_NAMES.split_whitespace().position(|n| n == name).unwrap();
                let procedure = u32::try_from(at).unwrap();
                Procedure { program: 100_003, version: 3, procedure }
            }
            "nfsacl3" => Procedure { program: 100_227, version: 3, procedure: number() },
            program => panic!("{program}"),
        })
    }

    fn describe(&self) -> String {
        format!("{} {:?}", self.kind, self.fields)
    }
}

fn recorded(kind: &str) -> Vec<Recorded> {
    let all = RECORDED.lines().map(Recorded::of);
    let of_kind: Vec<Recorded> = all.filter(|r| r.kind == kind).collect();
    assert!(!of_kind.is_empty(), "there are some of {kind}");
    of_kind
}

fn messages() -> Vec<Recorded> {
    let mut all = recorded("call");
    all.extend(recorded("reply"));
    all
}

/// Decodes the header. Returns the header, and the payload after it.
fn read(r: &Recorded) -> (v1::Header<'_>, &[u8]) {
    let got = decode(&r.bytes, Versions::V1, &Limits::DEFAULT);
    let got = got.unwrap_or_else(|e| panic!("{}: {e}", r.describe()));
    let Header::V1(header) = got.header else { panic!("{}", r.describe()) };
    (header, got.payload)
}

fn chunks<'a>(header: &v1::Header<'a>) -> Chunks<'a> {
    match header.body {
        Body::Msg(chunks) | Body::NoMsg(chunks) => chunks,
        Body::Error(refusal) => panic!("{refusal:?}"),
    }
}

// The following functions format chunk lists as the recording does.

fn joined(parts: impl Iterator<Item = String>, by: &str) -> String {
    parts.collect::<Vec<_>>().join(by)
}

fn or(text: String, nothing: &str) -> String {
    if text.is_empty() { nothing.to_owned() } else { text }
}

fn reads_text(list: &ReadList<'_>) -> String {
    let segment = |s: heddle_rpcrdma::ReadSegment| format!("{}:{}", s.position, s.target.length);
    or(joined(list.segments().map(segment), ","), "-")
}

fn chunk_text(chunk: &WriteChunk<'_>) -> String {
    or(joined(chunk.segments().map(|s| s.length.to_string()), "+"), "0")
}

fn writes_text(list: &WriteList<'_>) -> String {
    or(joined(list.chunks().map(|c| chunk_text(&c)), ","), "-")
}

/// Decoding and encoding a message gives the same bytes: no bit that Linux sets is lost, and no bit
/// that Linux leaves is added.
#[test]
fn test_messages_of_linux_are_written_as_they_were_read() {
    for r in messages() {
        let (header, payload) = read(&r);
        let mut out = vec![0xaa; r.bytes.len()];
        let len = header.encode(&mut out).unwrap();
        assert_eq!(len, header.encoded_len(), "{}", r.describe());
        out[len..].copy_from_slice(payload);
        assert_eq!(out, r.bytes, "{}", r.describe());
    }
}

#[test]
fn test_messages_of_linux_mean_what_the_recorder_read() {
    for r in messages() {
        let what = r.describe();
        let (header, payload) = read(&r);
        let direction = if r.kind == "call" { Direction::Call } else { Direction::Reply };
        assert_eq!(header.direction(payload), Some(direction), "{what}");
        assert_eq!((header.xid, header.credit), (r.xid(), r.number("credit")), "{what}");
        assert_eq!(matches!(header.body, Body::NoMsg(_)), r.fields["type"] == "NOMSG", "{what}");
        let chunks = chunks(&header);
        assert_eq!(reads_text(&chunks.reads), r.fields["reads"], "{what}");
        assert_eq!(writes_text(&chunks.writes), r.fields["writes"], "{what}");
        let reply = chunks.reply.map_or("-".to_owned(), |c| chunk_text(&c));
        assert_eq!(reply, r.fields["reply"], "{what}");
        assert_eq!(payload.len(), r.number("inline") as usize, "{what}");
    }
}

/// The messages have valid RPC headers, and the binding finds the items in the arguments that are
/// in chunks.
#[test]
fn test_calls_of_linux_are_reduced_as_the_binding_has_it() {
    for r in recorded("call").iter().filter(|r| r.fields["type"] == "MSG") {
        let what = r.describe();
        let (header, payload) = read(r);
        let (call, arguments) = Call::decode(payload).unwrap();
        let mut out = vec![0; call.encoded_len()];
        assert_eq!(call.encode(&mut out).unwrap() + arguments.len(), payload.len(), "{what}");
        assert_eq!(out, payload[..out.len()], "{what}");
        assert_eq!((call.xid, Some(call.procedure)), (r.xid(), r.procedure()), "{what}");
        // A NULL call has no user; all other calls carry the user of a process.
        let flavor = if call.procedure.procedure == 0 { Flavor::NONE } else { Flavor::SYS };
        assert_eq!(call.cred.flavor(), flavor, "{what}");
        assert_eq!(call.verf, Auth::NONE, "{what}");
        let reads = chunks(&header).reads;
        let items: Vec<Item> =
            reads.items().map(|c| Item { offset: c.position(), length: c.length() }).collect();
        let missing = Missing::Read { chunks: &items, padding: true };
        let stream = Stream::new(arguments, u32::try_from(out.len()).unwrap(), missing);
        let found = NFS3.arguments(call.procedure, stream);
        let found = found.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(found.as_slice().len() >= items.len(), "{what}");
    }
}

#[test]
fn test_replies_of_linux_are_reduced_as_the_binding_has_it() {
    for r in recorded("reply").iter().filter(|r| r.fields["type"] == "MSG") {
        let what = r.describe();
        let (header, payload) = read(r);
        let (reply, results) = Reply::decode(payload).unwrap();
        let mut out = vec![0; reply.encoded_len()];
        assert_eq!(reply.encode(&mut out).unwrap() + results.len(), payload.len(), "{what}");
        assert_eq!(out, payload[..out.len()], "{what}");
        assert_eq!(reply.xid, r.xid(), "{what}");
        let accepted = ReplyBody::Accepted { verf: Auth::NONE, status: Status::Success };
        assert_eq!(reply.body, accepted, "{what}");
        let lengths: Vec<u32> = chunks(&header).writes.chunks().map(|c| c.length()).collect();
        if let Some(procedure) = r.procedure() {
            let offset = u32::try_from(out.len()).unwrap();
            let stream = Stream::new(results, offset, Missing::Write(&lengths));
            let found = NFS3.results(procedure, stream);
            let found = found.unwrap_or_else(|e| panic!("{what}: {e}"));
            let filled = lengths.iter().filter(|l| **l > 0).count();
            assert!(found.as_slice().len() >= filled, "{what}");
        }
    }
}

/// A reply returns the chunks of its call, none of them longer than it was.
#[test]
fn test_replies_of_linux_return_the_chunks_of_their_calls() {
    let calls = recorded("call");
    let mut pairs = 0;
    for r in recorded("reply") {
        let Some(call) = calls.iter().find(|c| c.xid() == r.xid()) else { continue };
        let (offered, returned) = (chunks(&read(call).0), chunks(&read(&r).0));
        assert_eq!(returned.writes.returned(&offered.writes), Ok(()), "{}", r.describe());
        match (returned.reply, offered.reply) {
            (Some(filled), Some(room)) => assert!(filled.returned(&room).unwrap() > 0),
            (returned, _) => assert_eq!(returned, None, "{}", r.describe()),
        }
        pairs += 1;
    }
    assert!(pairs >= 10, "{pairs} replies with their calls");
}

#[test]
fn test_private_data_of_linux_is_found() {
    let said = |kind| {
        let r = recorded(kind).remove(0);
        let found = PrivateData::find(&r.bytes).unwrap();
        assert_eq!(u32::from(found.invalidate), r.number("invalidate"), "{kind}");
        assert_eq!(found.send_size(), r.number("send"), "{kind}");
        assert_eq!(found.receive_size(), r.number("receive"), "{kind}");
        assert_eq!(found.emit()[..], r.bytes[..], "{kind}: nothing else is there");
        found
    };
    let (client, server) = (said("private-request"), said("private-reply"));
    let terms = Terms::of(&client, Some(server));
    assert_eq!((terms.send, terms.receive), (4096, 4096));
}

/// The recording has a message of each shape; otherwise the tests above would prove little.
#[test]
fn test_linux_recording_has_a_message_of_every_shape() {
    let mut ways = BTreeSet::new();
    for r in messages() {
        let (header, _) = read(&r);
        let chunks = chunks(&header);
        let filled = chunks.writes.chunks().any(|c| c.length() > 0);
        for (way, is) in [
            ("RDMA_NOMSG", matches!(header.body, Body::NoMsg(_))),
            ("Read chunk", chunks.reads.items().next().is_some()),
            ("Write chunk", filled),
            ("Write chunk of nothing", !chunks.writes.is_empty() && !filled),
            ("Reply chunk", chunks.reply.is_some()),
            ("without chunks", chunks == Chunks::NONE),
        ] {
            if is {
                ways.insert((r.kind, way));
            }
        }
    }
    for way in [
        ("call", "Read chunk"),
        ("call", "Write chunk"),
        ("call", "Reply chunk"),
        ("call", "without chunks"),
        ("reply", "RDMA_NOMSG"),
        ("reply", "Write chunk"),
        ("reply", "Reply chunk"),
        ("reply", "without chunks"),
    ] {
        assert!(ways.contains(&way), "no {way:?} in {ways:?}");
    }
}
