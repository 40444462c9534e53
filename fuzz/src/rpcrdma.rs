//! Messages of RPC-over-RDMA, of either version: the decoder takes any bytes, a message that parses
//! is written as the same bytes, and no answer gets an answer.

use heddle_rpcrdma::binding::{Binding, Chunks as Missing, NFS3, Stream};
use heddle_rpcrdma::chunk::{ReadList, WriteChunk, WriteList, ZeroPosition};
use heddle_rpcrdma::header::{Answer, Direction, Header, Role, Versions, decode};
use heddle_rpcrdma::private_data::PrivateData;
use heddle_rpcrdma::property::{Properties, Value};
use heddle_rpcrdma::reduce::{Assembly, Item, Part};
use heddle_rpcrdma::rpc::{AuthSys, Call, Procedure, Reply};
use heddle_rpcrdma::sequence::{Sequence, Step};
use heddle_rpcrdma::v1::{self, Chunks};
use heddle_rpcrdma::v2::{self, Property, PropertySet};
use heddle_rpcrdma::{Handle, Limits, ReadSegment, Segment, Xid};

use crate::Seeds;

const VERSIONS: [Versions; 5] = [
    Versions::Open { v1: true, v2: true },
    Versions::Open { v1: true, v2: false },
    Versions::Open { v1: false, v2: true },
    Versions::V1,
    Versions::V2,
];

/// Tries one input, whose first byte chooses the decoder.
pub fn run(data: &[u8]) -> bool {
    let Some((&choice, bytes)) = data.split_first() else { return false };
    if let Some(found) = PrivateData::find(bytes) {
        assert_eq!(PrivateData::find(&found.emit()), Some(found));
    }
    let versions = VERSIONS[usize::from(choice) % VERSIONS.len()];
    let limits = match choice >> 7 {
        0 => Limits::DEFAULT,
        _ => Limits { read_chunks: 2, write_chunks: 1, segments: 2 },
    };
    let message = match decode(bytes, versions, &limits) {
        Ok(message) => message,
        Err(failure) => {
            assert!(failure.error.at <= bytes.len());
            for role in [Role::Requester, Role::Responder] {
                if let Some(answer) = failure.answer(role) {
                    silent(answer, versions, &limits);
                }
            }
            return false;
        }
    };
    let mut out = vec![0; bytes.len()];
    let len = match &message.header {
        Header::V1(h) => h.encode(&mut out),
        Header::V2(h) => h.encode(&mut out),
    };
    let len = len.expect("as long as it was");
    assert_eq!((&out[..len], message.payload), bytes.split_at(len));
    match &message.header {
        Header::V1(v1::Header { body: v1::Body::Msg(c) | v1::Body::NoMsg(c), .. }) => {
            chunks(c, &limits);
        }
        Header::V1(_) => {}
        Header::V2(h) => {
            version_2(h, &limits);
            sequence(h, message.payload);
        }
    }
    match message.direction() {
        Some(Direction::Call) => call(message.payload, &message.header),
        Some(Direction::Reply) => reply(message.payload),
        None => {}
    }
    true
}

/// Checks that an RPC message that parses is written as the same bytes, and that its chunks are
/// assembled without holes, or refused.
fn call(payload: &[u8], header: &Header<'_>) {
    let (call, arguments) = match Call::decode(payload) {
        Ok(read) => read,
        Err(e) => {
            let denied = e.reply().is_none_or(|r| !r.has_results());
            assert!(denied && e.at <= payload.len());
            return;
        }
    };
    let mut out = vec![0; payload.len()];
    let len = call.encode(&mut out).expect("as long as it was");
    assert_eq!((&out[..len], arguments), payload.split_at(len));
    if let Ok(sys) = AuthSys::decode(&call.cred) {
        let mut body = [0; AuthSys::MAX_LEN];
        assert_eq!(sys.encode(&mut body), Ok(call.cred));
    }
    let _ = NFS3.reply_size(call.procedure, arguments);
    let (reads, padding) = match header {
        Header::V1(v1::Header { body: v1::Body::Msg(c), .. }) => (c.reads, true),
        Header::V2(v2::Header { body: v2::Body::CallInline { chunks: c, .. }, .. }) => {
            (c.reads, false)
        }
        _ => return,
    };
    let items: Vec<_> =
        reads.items().map(|c| Item { offset: c.position(), length: c.length() }).collect();
    let begin = u32::try_from(len).expect("it is short");
    let whole = u32::try_from(payload.len()).expect("it is short");
    let missing = Missing::Read { chunks: &items, padding };
    let found = NFS3.arguments(call.procedure, Stream::new(arguments, begin, missing));
    let assembly = Assembly::new(whole, begin, items.iter().copied(), 1 << 30);
    if let Ok(assembly) = &assembly {
        let mut at = 0;
        for part in assembly.parts() {
            let (Part::Stream { to, .. } | Part::Chunk { to, .. } | Part::Padding { to }) = part;
            assert!(to.offset == at && to.length > 0);
            at += to.length;
        }
        assert_eq!(at, assembly.total());
    }
    if let Ok(found) = found {
        // Each chunk belongs to an item, and has its place.
        assert!(found.as_slice().len() >= items.len());
        assert!(items.is_empty() || assembly.is_ok() || items.iter().any(|i| i.length > 1 << 29));
    }
}

fn reply(payload: &[u8]) {
    if let Ok((reply, results)) = Reply::decode(payload) {
        let mut out = vec![0; payload.len()];
        let len = reply.encode(&mut out).expect("as long as it was");
        assert_eq!((&out[..len], results), payload.split_at(len));
        let read = Procedure { program: 100_003, version: 3, procedure: 6 };
        for missing in [Missing::None, Missing::Write(&[16])] {
            let stream = Stream::new(results, 24, missing);
            if let Ok(found) = NFS3.results(read, stream) {
                assert!(found.as_slice().len() <= 1);
            }
        }
    }
}

fn version_2(header: &v2::Header<'_>, limits: &Limits) {
    if let Some(handle) = header.invalidate() {
        assert_ne!(handle, Handle(0));
    }
    match &header.body {
        v2::Body::CallExternal { call, chunks: c, .. } => {
            assert!(call.segments().all(|s| s.position == 0));
            assert!(call.body().is_some());
            chunks(c, limits);
        }
        v2::Body::CallInline { chunks: c, .. } => {
            assert!(c.reads.body().is_none());
            chunks(c, limits);
        }
        v2::Body::ReplyExternal { writes, reply } => {
            write_list(writes, limits);
            write_chunk(reply, limits);
        }
        v2::Body::ReplyInline { writes } => write_list(writes, limits),
        v2::Body::ConnProp { props, .. } => {
            assert_eq!(props.properties().count(), props.len());
            assert!(props.properties().all(|p| Value::of(p).is_ok()));
            Properties::default().update(props);
        }
        _ => {}
    }
}

/// Checks that an accepted part lies within the whole, and the whole within the limit.
fn sequence(header: &v2::Header<'_>, payload: &[u8]) {
    let mut sequence = Sequence::new(1 << 16);
    for _ in 0..2 {
        match sequence.receive(header, payload) {
            Ok(Step::Part { offset, total, last, .. }) => {
                let end = offset as usize + payload.len();
                assert!(end <= total as usize && (!last || end == total as usize));
                assert!(total <= 1 << 16 || (last && offset == 0));
            }
            Ok(_) => {}
            Err(e) => {
                let reply = header.direction() == Some(Direction::Reply);
                assert!(e.answer().is_none() == reply);
            }
        }
    }
}

/// Checks that our error report causes no error report from the other end.
fn silent(answer: Answer, versions: Versions, limits: &Limits) {
    let mut out = [0; Answer::MAX_LEN];
    let len = answer.encode(1, &mut out).expect("room for it");
    if let Err(failure) = decode(&out[..len], versions, limits) {
        for role in [Role::Requester, Role::Responder] {
            assert_eq!(failure.answer(role), None);
        }
    }
}

fn chunks(c: &Chunks<'_>, limits: &Limits) {
    let mut end = 0;
    let (mut segments, mut items) = (0, 0);
    for chunk in c.reads.chunks() {
        let n = chunk.segments().count();
        assert!((1..=usize::from(limits.segments)).contains(&n));
        segments += n;
        if chunk.position() != 0 {
            assert!(chunk.position() >= end && chunk.position() % 4 == 0);
            end = chunk.position() + chunk.length();
            items += 1;
        }
    }
    assert_eq!(segments, c.reads.len());
    assert!(items <= usize::from(limits.read_chunks));
    write_list(&c.writes, limits);
    if let Some(reply) = &c.reply {
        write_chunk(reply, limits);
    }
}

fn write_list(list: &WriteList<'_>, limits: &Limits) {
    assert!(list.len() <= usize::from(limits.write_chunks));
    assert_eq!(list.chunks().count(), list.len());
    list.chunks().for_each(|c| write_chunk(&c, limits));
    let _ = list.returned(list);
}

fn write_chunk(chunk: &WriteChunk<'_>, limits: &Limits) {
    assert!(chunk.len() <= usize::from(limits.segments));
    for bytes in [0, 1, chunk.length() / 2, chunk.length(), u32::MAX] {
        assert_eq!(chunk.filled(bytes).returned(chunk), Ok(bytes.min(chunk.length())));
    }
}

pub fn seeds() -> Seeds {
    let segment = |handle, length| Segment { handle: Handle(handle), length, offset: 0x1000 };
    let read = |position, handle| ReadSegment { position, target: segment(handle, 44) };
    let segments = [segment(3, 4096), segment(4, 100)];
    let write = WriteChunk::new(&segments).expect("a chunk");
    let (items, mixed) = ([read(44, 1), read(44, 2), read(200, 1)], [read(0, 1), read(100, 2)]);
    let writes = [write, WriteChunk::EMPTY];
    let writes = WriteList::new(&writes);
    let reads = ReadList::new(&items, ZeroPosition::Never).expect("a list");
    let all = Chunks { reads, writes, reply: Some(write) };
    let long = ReadList::new(&mixed, ZeroPosition::Also).expect("a list");
    let long = Chunks { reads: long, ..Chunks::NONE };
    let call = ReadList::new(&mixed[..1], ZeroPosition::Only).expect("a list");
    let range = v1::Refusal::Versions { low: 1, high: 2 };
    let sizes = Properties::DEFAULT.encoded();
    let sizes = sizes.properties();
    let props = PropertySet::new(&sizes).expect("a set");
    let other =
        [Property { id: 6, data: &[0, 0, 0, 1, 9, 0, 0, 0] }, Property { id: 7, data: &[1] }];
    let other = PropertySet::new(&other).expect("a set");

    let mut seeds = Seeds::new();
    let mut add = |name: &str, header: Header<'_>| {
        let mut out = vec![0; 1024];
        let (choice, len, payload) = match header {
            Header::V1(h) => (3, h.encode(&mut out[1..]), matches!(h.body, v1::Body::Msg(_))),
            Header::V2(h) => (4, h.encode(&mut out[1..]), h.has_payload()),
        };
        out[0] = choice;
        out.truncate(1 + len.expect("room for it"));
        if payload {
            // A WRITE of six bytes, which are in a chunk.
            let arguments = [5, 0x0102_0304, 0x0500_0000, 0, 0x1000, 6, 2, 6];
            for unit in [&[7u32, 0, 2, 100_003, 3, 7, 0, 0, 0, 0], &arguments[..]].concat() {
                out.extend(unit.to_be_bytes());
            }
        }
        seeds.push((name.into(), out));
    };
    let first = |body| Header::V1(v1::Header { xid: Xid(7), credit: 32, body });
    add("1-msg", first(v1::Body::Msg(Chunks::NONE)));
    add("1-msg-chunks", first(v1::Body::Msg(all)));
    add("1-nomsg-call", first(v1::Body::NoMsg(long)));
    add("1-nomsg-reply", first(v1::Body::NoMsg(Chunks { reply: Some(write), ..Chunks::NONE })));
    add("1-error-versions", first(v1::Body::Error(range)));
    add("1-error-chunk", first(v1::Body::Error(v1::Refusal::Chunk)));

    let data = [ReadSegment { position: 72, target: segment(1, 6) }];
    let data = ReadList::new(&data, ZeroPosition::Never).expect("a list");
    let write_call = Chunks { reads: data, ..Chunks::NONE };
    add("1-msg-write", first(v1::Body::Msg(write_call)));

    let second = |body| Header::V2(v2::Header { xid: Xid(7), credit: 32, body });
    let invalidate = Handle(3);
    add("2-grant", second(v2::Body::Grant));
    add("2-connprop-middle", second(v2::Body::ConnProp { last: false, props: other }));
    add("2-connprop-final", second(v2::Body::ConnProp { last: true, props }));
    add("2-call-external", second(v2::Body::CallExternal { invalidate, call, chunks: all }));
    add("2-call-middle", second(v2::Body::CallMiddle { remaining: 100 }));
    add("2-call-inline", second(v2::Body::CallInline { invalidate, chunks: all }));
    add("2-call-inline-write", second(v2::Body::CallInline { invalidate, chunks: write_call }));
    add("2-reply-external", second(v2::Body::ReplyExternal { writes, reply: write }));
    add("2-reply-middle", second(v2::Body::ReplyMiddle { remaining: 100 }));
    add("2-reply-inline", second(v2::Body::ReplyInline { writes }));
    for (name, refusal) in [
        ("versions", v2::Refusal::Versions { low: 1, high: 2 }),
        ("bad-xdr", v2::Refusal::BadXdr),
        ("segments", v2::Refusal::Segments { max: 16 }),
        ("write-resource", v2::Refusal::WriteResource { chunk: 1, needed: 5000 }),
        ("unknown", v2::Refusal::Unknown(50)),
    ] {
        add(&format!("2-error-{name}"), second(v2::Body::Error(refusal)));
    }
    seeds
}
