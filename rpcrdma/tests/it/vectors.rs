//! Transport headers of both versions, unit by unit in the order of the XDR in RFC 8166 and the
//! draft.
#![allow(clippy::unwrap_used, reason = "tests")]

use heddle_rpcrdma::chunk::{ReadList, WriteChunk, WriteList, ZeroPosition};
use heddle_rpcrdma::header::{Header, Message, Versions, decode};
use heddle_rpcrdma::v1::{self, Chunks};
use heddle_rpcrdma::v2::{self, Property, PropertySet};
use heddle_rpcrdma::{Handle, Limits, ReadSegment, Segment, Xid};

const BOTH: Versions = Versions::Open { v1: true, v2: true };
const XID: u32 = 0xfeed_0001;

/// A call of the NULL procedure, and the part of a reply that the tests look at.
const CALL: [u32; 10] = [XID, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
const REPLY: [u32; 6] = [XID, 1, 0, 0, 0, 0];

fn bytes(units: &[u32]) -> Vec<u8> {
    units.iter().flat_map(|u| u.to_be_bytes()).collect()
}

const fn segment(handle: u32, length: u32, offset: u64) -> Segment {
    Segment { handle: Handle(handle), length, offset }
}

const A: Segment = segment(0x0a0a_0a0a, 0x100, 0x1_0000_0002);
const B: Segment = segment(0x0b0b_0b0b, 0x0ff, 0x2_0000_0003);
const A_UNITS: [u32; 4] = [0x0a0a_0a0a, 0x100, 1, 2];
const B_UNITS: [u32; 4] = [0x0b0b_0b0b, 0x0ff, 2, 3];

const BODY: [ReadSegment; 2] =
    [ReadSegment { position: 0, target: A }, ReadSegment { position: 0, target: B }];
const ITEM: [ReadSegment; 2] =
    [ReadSegment { position: 48, target: A }, ReadSegment { position: 48, target: B }];

struct Vector {
    name: &'static str,
    bytes: Vec<u8>,
    /// Length in bytes of the part before the payload; a payload has at least four bytes.
    header: usize,
}

/// Checks that the units decode to the header and that the header encodes to the units. Returns the
/// encoding.
fn vector(name: &'static str, header: &[u32], payload: &[u32], want: &Header<'_>) -> Vector {
    let all = bytes(&[header, payload].concat());
    let payload = bytes(payload);
    let got = decode(&all, BOTH, &Limits::DEFAULT).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(got, Message { header: *want, payload: &payload }, "{name}");
    for header in [&got.header, want] {
        assert_eq!(encode(header, &payload), all, "{name}");
    }
    Vector { name, header: all.len() - payload.len(), bytes: all }
}

fn encode(header: &Header<'_>, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0xaa; 4096];
    let len = match header {
        Header::V1(h) => {
            let len = h.encode(&mut out).unwrap();
            assert_eq!(len, h.encoded_len());
            assert!(h.encode(&mut out[..len - 1].to_vec()).is_err());
            len
        }
        Header::V2(h) => {
            let len = h.encode(&mut out).unwrap();
            assert_eq!(len, h.encoded_len());
            assert!(h.encode(&mut out[..len - 1].to_vec()).is_err());
            len
        }
    };
    out.truncate(len);
    out.extend(payload);
    out
}

fn v1_vectors() -> Vec<Vector> {
    let head = |kind| [XID, 1, 32, kind];
    let make = |name, units: &[&[u32]], payload: &[u32], body| {
        let want = Header::V1(v1::Header { xid: Xid(XID), credit: 32, body });
        vector(name, &units.concat(), payload, &want)
    };
    let (segments, empty) = ([A, B], [WriteChunk::EMPTY]);
    let write = WriteChunk::new(&segments).unwrap();
    let writes = [write, empty[0]];
    let all = Chunks {
        reads: ReadList::new(&ITEM, ZeroPosition::Never).unwrap(),
        writes: WriteList::new(&writes),
        reply: Some(write),
    };
    let item = [&[1, 48][..], &A_UNITS, &[1, 48], &B_UNITS, &[0]].concat();
    let body = [&[1, 0][..], &A_UNITS, &[1, 0], &B_UNITS].concat();
    let two = [&[2][..], &A_UNITS, &B_UNITS].concat();
    let list = [&[1][..], &two, &[1, 0], &[0]].concat();
    let mut with_item = BODY.to_vec();
    with_item.push(ITEM[0]);
    let special =
        Chunks { reads: ReadList::new(&with_item, ZeroPosition::Also).unwrap(), ..Chunks::NONE };
    let reply = Chunks { reply: Some(write.filled(0x180)), ..Chunks::NONE };
    let half = [B_UNITS[0], 0x80, B_UNITS[2], B_UNITS[3]];
    let returned = Chunks { writes: WriteList::new(&empty), ..Chunks::NONE };
    let range = v1::Refusal::Versions { low: 1, high: 2 };
    vec![
        make("short call", &[&head(0), &[0, 0, 0]], &CALL, v1::Body::Msg(Chunks::NONE)),
        make("short reply", &[&head(0), &[0, 0, 0]], &REPLY, v1::Body::Msg(Chunks::NONE)),
        make(
            "call with all lists",
            &[&head(0), &item, &list, &[1], &two],
            &CALL,
            v1::Body::Msg(all),
        ),
        make(
            "reply with an empty Write chunk",
            &[&head(0), &[0, 1, 0, 0, 0]],
            &REPLY,
            v1::Body::Msg(returned),
        ),
        make(
            "long call",
            &[&head(1), &body, &[1, 48], &A_UNITS, &[0, 0, 0]],
            &[],
            v1::Body::NoMsg(special),
        ),
        make(
            "long reply",
            &[&head(1), &[0, 0, 1, 2], &A_UNITS, &half],
            &[],
            v1::Body::NoMsg(reply),
        ),
        make("ERR_VERS", &[&head(4), &[1, 1, 2]], &[], v1::Body::Error(range)),
        make("ERR_CHUNK", &[&head(4), &[2]], &[], v1::Body::Error(v1::Refusal::Chunk)),
    ]
}

fn v2_vectors() -> Vec<Vector> {
    let make = |name, kind, units: &[&[u32]], payload: &[u32], body| {
        let want = Header::V2(v2::Header { xid: Xid(XID), credit: 0x8000_0001, body });
        let units = [&[XID, 2, 0x8000_0001, kind], &units.concat()[..]].concat();
        vector(name, &units, payload, &want)
    };
    let segments = [A, B];
    let write = WriteChunk::new(&segments).unwrap();
    let writes = [write];
    let writes = WriteList::new(&writes);
    let call = ReadList::new(&BODY, ZeroPosition::Only).unwrap();
    let reads = ReadList::new(&ITEM, ZeroPosition::Never).unwrap();
    let chunks = Chunks { reads, writes, reply: Some(write) };
    let item = [&[1, 48][..], &A_UNITS, &[1, 48], &B_UNITS, &[0]].concat();
    let body = [&[1, 0][..], &A_UNITS, &[1, 0], &B_UNITS, &[0]].concat();
    let two = [&[2][..], &A_UNITS, &B_UNITS].concat();
    let list = [&[1][..], &two, &[0]].concat();
    let handle = Handle(A_UNITS[0]);
    let size = [0, 0, 0x20, 0];
    let props = [
        Property { id: 1, data: &size },
        Property { id: 2, data: &[] },
        Property { id: 6, data: &[0, 0, 0, 5, b'h', b'e', b'l', b'l', b'o', 0, 0, 0] },
        Property { id: 0x7fff_ffff, data: &[1, 2, 3] },
    ];
    let props = PropertySet::new(&props).unwrap();
    let prop_units: [u32; 13] =
        [4, 1, 4, 0x2000, 2, 0, 6, 12, 5, 0x6865_6c6c, 0x6f00_0000, 0x7fff_ffff, 3];
    let last = [0x0102_0300];
    let mut all = vec![
        make("GRANT", 5, &[], &[], v2::Body::Grant),
        make(
            "CONNPROP_MIDDLE",
            6,
            &[&prop_units, &last],
            &[],
            v2::Body::ConnProp { last: false, props },
        ),
        make(
            "CONNPROP_FINAL of nothing",
            7,
            &[&[0]],
            &[],
            v2::Body::ConnProp { last: true, props: PropertySet::EMPTY },
        ),
        make(
            "CALL_EXTERNAL",
            8,
            &[&[handle.0], &body, &item, &list, &[1], &two],
            &[],
            v2::Body::CallExternal { invalidate: handle, call, chunks },
        ),
        make("CALL_MIDDLE", 9, &[&[77]], &CALL, v2::Body::CallMiddle { remaining: 77 }),
        make(
            "CALL_INLINE",
            10,
            &[&[0], &item, &list, &[1], &two],
            &CALL,
            v2::Body::CallInline { invalidate: Handle(0), chunks },
        ),
        make(
            "CALL_INLINE without chunks",
            10,
            &[&[0, 0, 0, 0]],
            &CALL,
            v2::Body::CallInline { invalidate: Handle(0), chunks: Chunks::NONE },
        ),
        make(
            "REPLY_EXTERNAL",
            11,
            &[&list, &[1], &two],
            &[],
            v2::Body::ReplyExternal { writes, reply: write },
        ),
        make("REPLY_MIDDLE", 12, &[&[0]], &REPLY, v2::Body::ReplyMiddle { remaining: 0 }),
        make("REPLY_INLINE", 13, &[&list], &REPLY, v2::Body::ReplyInline { writes }),
    ];
    let errors: [(&'static str, &[u32], v2::Refusal); 13] = [
        ("ERR_VERS", &[1, 1, 1], v2::Refusal::Versions { low: 1, high: 1 }),
        ("ERR_BAD_XDR", &[2], v2::Refusal::BadXdr),
        ("ERR_BAD_PROPVAL", &[3], v2::Refusal::BadPropval),
        ("ERR_INVAL_HTYPE", &[4], v2::Refusal::InvalHtype),
        ("ERR_INVAL_CONT", &[5], v2::Refusal::InvalCont),
        ("ERR_READ_CHUNKS", &[6, 0], v2::Refusal::ReadChunks { max: 0 }),
        ("ERR_WRITE_CHUNKS", &[7, 1], v2::Refusal::WriteChunks { max: 1 }),
        ("ERR_SEGMENTS", &[8, 16], v2::Refusal::Segments { max: 16 }),
        ("ERR_WRITE_RESOURCE", &[9, 1, 99], v2::Refusal::WriteResource { chunk: 1, needed: 99 }),
        ("ERR_REPLY_RESOURCE", &[10, 9999], v2::Refusal::ReplyResource { needed: 9999 }),
        ("ERR_VERS_MISMATCH", &[11], v2::Refusal::VersMismatch),
        ("ERR_SYSTEM", &[100], v2::Refusal::System),
        ("an error that is not assigned", &[12], v2::Refusal::Unknown(12)),
    ];
    for (name, units, refusal) in errors {
        all.push(make(name, 4, &[units], &[], v2::Body::Error(refusal)));
    }
    all
}

fn vectors() -> Vec<Vector> {
    let mut all = v1_vectors();
    all.extend(v2_vectors());
    all
}

#[test]
fn test_every_header_of_version_1_has_the_units_of_its_xdr() {
    assert_eq!(v1_vectors().len(), 8);
}

#[test]
fn test_every_header_of_version_2_has_the_units_of_its_xdr() {
    let vectors = v2_vectors();
    let kinds: std::collections::BTreeSet<_> = vectors.iter().map(|v| v.bytes[15]).collect();
    assert_eq!(kinds, (4..=13).collect(), "all ten types");
}

/// A message that ends early is refused, wherever it ends: in its header, or before the first word
/// of its payload.
#[test]
fn test_truncated_header_is_never_a_message() {
    for Vector { name, bytes, header } in vectors() {
        let least = if bytes.len() > header { header + 4 } else { header };
        for len in 0..least {
            let got = decode(&bytes[..len], BOTH, &Limits::DEFAULT);
            assert!(got.is_err(), "{name}: {len} of {least} bytes are {got:?}");
        }
        assert!(decode(&bytes[..least], BOTH, &Limits::DEFAULT).is_ok(), "{name}");
    }
}

/// A message without a payload ends with its header.
#[test]
fn test_nothing_may_follow_a_header_without_payload() {
    for Vector { name, mut bytes, header } in vectors() {
        let bare = bytes.len() == header;
        bytes.extend([0; 4]);
        let got = decode(&bytes, BOTH, &Limits::DEFAULT);
        assert_eq!(got.is_err(), bare, "{name}");
    }
}

/// A message with any bit changed is refused or decodes to another message: never to the same
/// message, and never to a message with another encoding.
#[test]
fn test_message_with_any_bit_changed_never_decodes_to_the_same() {
    for Vector { name, bytes, .. } in vectors() {
        let was = decode(&bytes, BOTH, &Limits::DEFAULT).unwrap();
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 0x80 >> (bit % 8);
            if let Ok(got) = decode(&changed, BOTH, &Limits::DEFAULT) {
                assert_ne!(got, was, "{name}: bit {bit}");
                assert_eq!(encode(&got.header, got.payload), changed, "{name}: bit {bit}");
            }
        }
    }
}
