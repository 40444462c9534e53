//! Captures: frames of any bytes, in any order. The dissector shows each item in one line, counts
//! each verdict, and lists items in the order of their frames.

use heddle_dissect::testing::{Wire, call, decode, reply};
use heddle_dissect::{Item, What, line};
use heddle_rpcrdma::chunk::{ReadList, WriteChunk, WriteList, ZeroPosition};
use heddle_rpcrdma::property::Properties;
use heddle_rpcrdma::v1::{self, Chunks};
use heddle_rpcrdma::v2::{self, PropertySet};
use heddle_rpcrdma::{Handle, ReadSegment, Segment};

use crate::Seeds;

/// Reads frames, each after a length of two bytes.
pub fn run(mut data: &[u8]) -> bool {
    let mut frames = Vec::new();
    while let [a, b, rest @ ..] = data {
        let len = usize::from(u16::from_be_bytes([*a, *b])).min(rest.len());
        let (frame, rest) = rest.split_at(len);
        frames.push(frame.to_vec());
        data = rest;
    }
    let (items, summary) = decode(&frames);
    let mut verdicts = 0;
    let mut last = 0;
    for item in &items {
        let shown = line(item, 0);
        assert!(!shown.contains('\n') && item.frame >= last);
        last = item.frame;
        assert!(last <= summary.frames);
        assert!(serde_json::to_string(item).is_ok_and(|d| d.contains("\"kind\":")));
        verdicts += u64::from(matches!(item.what, What::Verdict(_)));
    }
    assert_eq!(verdicts, summary.verdicts);
    assert!(summary.segments <= summary.frames && summary.frames == frames.len() as u64);
    items.iter().any(understood)
}

fn understood(item: &Item) -> bool {
    matches!(item.what, What::Rpcrdma(_) | What::Rdma(_))
}

fn written(wire: &Wire) -> Vec<u8> {
    let mut out = Vec::new();
    for frame in &wire.frames {
        out.extend(u16::try_from(frame.len()).expect("a frame").to_be_bytes());
        out.extend(frame);
    }
    out
}

pub fn seeds() -> Seeds {
    let segment = |handle| Segment { handle: Handle(handle), length: 200, offset: 0x1000 };
    let body = |position| [ReadSegment { position, target: segment(1) }];
    let (zero, item) = (body(0), body(40));
    let reads = |list, zero| ReadList::new(list, zero).expect("a list");
    let room = [segment(2)];
    let room = WriteChunk::new(&room).expect("a chunk");
    let writes = [room];
    let writes = WriteList::new(&writes);
    let filled = [room.filled(100)];
    let filled = WriteList::new(&filled);
    let none = Chunks::NONE;

    let mut first = Wire::new(true, false);
    let chunks = Chunks { reads: reads(&item, ZeroPosition::Never), writes, reply: None };
    first.v1(0, 1, 1, v1::Body::Msg(chunks), &call(1, 6));
    first.read(1, 1, 0x1000, 200);
    first.respond(0, &[7; 200]);
    first.write(1, 2, 0x1000, &[8; 100]);
    first.v1(1, 1, 1, v1::Body::Msg(Chunks { writes: filled, ..none }), &reply(1, 0));

    let mut long = Wire::new(false, true);
    let chunks = Chunks { reads: reads(&zero, ZeroPosition::Also), reply: Some(room), ..none };
    long.v1(0, 2, 1, v1::Body::NoMsg(chunks), &[]);
    long.read(1, 1, 0x1000, 200);
    long.respond(0, &[call(2, 16), vec![0; 160]].concat());
    long.write(1, 2, 0x1000, &reply(2, 0));
    let chunks = Chunks { reply: Some(room.filled(28)), ..none };
    long.v1(1, 2, 1, v1::Body::NoMsg(chunks), &[]);
    long.v1(1, 3, 1, v1::Body::Error(v1::Refusal::Chunk), &[]);

    let mut second = Wire::new(true, true);
    let sizes = Properties::DEFAULT.encoded();
    let sizes = sizes.properties();
    let props = PropertySet::new(&sizes).expect("a set");
    second.v2(0, None, (1, 9), v2::Body::ConnProp { last: true, props }, &[]);
    second.v2(1, None, (0, 9), v2::Body::Grant, &[]);
    let chunks = Chunks { writes, ..none };
    second.v2(0, None, (2, 9), v2::Body::CallMiddle { remaining: 8 }, &call(2, 6));
    let body = v2::Body::CallInline { invalidate: Handle(2), chunks };
    second.v2(0, None, (2, 9), body, &[0; 8]);
    second.write(1, 2, 0x1000, &[8; 100]);
    let body = v2::Body::ReplyInline { writes: filled };
    second.v2(1, Some(2), (2, 9), body, &reply(2, 0));
    second.v2(1, None, (2, 9), v2::Body::Error(v2::Refusal::BadXdr), &[]);

    let mut gap = second.clone();
    // A frame is missing, and two others change places.
    gap.frames.remove(6);
    gap.frames.swap(4, 5);
    [("1", &first), ("1-long", &long), ("2", &second), ("2-gap", &gap)]
        .map(|(name, wire)| (name.into(), written(wire)))
        .into()
}
