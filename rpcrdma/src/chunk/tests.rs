use proptest::prelude::*;

use super::*;
use crate::segment::{Handle, ReadSegment, Segment};
use crate::xdr::{Reader, Writer};

const V1_MSG: Rule = Rule { zero: ZeroPosition::Never, ordered: false };
const V1_NOMSG: Rule = Rule { zero: ZeroPosition::Also, ordered: false };
const ITEMS: Rule = Rule { zero: ZeroPosition::Never, ordered: true };
const CALL: Rule = Rule { zero: ZeroPosition::Only, ordered: true };

fn segment(handle: u32, length: u32) -> Segment {
    Segment { handle: Handle(handle), length, offset: 0x1000 }
}

fn read(position: u32, handle: u32, length: u32) -> ReadSegment {
    ReadSegment { position, target: segment(handle, length) }
}

/// Encodes a Read list, valid or not.
fn bytes(list: &[ReadSegment]) -> Vec<u8> {
    let mut out = vec![0; 24 * list.len() + 4];
    let mut w = Writer::new(&mut out);
    for segment in list {
        w.flag(true);
        segment.encode(&mut w);
    }
    w.flag(false);
    w.finish().unwrap();
    out
}

/// Returns the fault that a receiver finds in the list.
fn fault(list: &[ReadSegment], rule: Rule, limits: &Limits) -> Option<Fault> {
    ReadList::decode(&mut Reader::new(&bytes(list)), rule, limits).err().map(|e| e.fault)
}

fn write_bytes(chunks: &[&[Segment]]) -> Vec<u8> {
    let lens: usize = chunks.iter().map(|c| 8 + 16 * c.len()).sum();
    let mut out = vec![0; lens + 4];
    let mut w = Writer::new(&mut out);
    for chunk in chunks {
        w.flag(true);
        w.u32(u32::try_from(chunk.len()).unwrap());
        chunk.iter().for_each(|s| s.encode(&mut w));
    }
    w.flag(false);
    w.finish().unwrap();
    out
}

/// The example of RFC 8166 section 4.7: `1 PHLOO 1 PHLOO 0`.
#[test]
fn test_read_list_encodes_as_in_rfc_8166() {
    let list = [read(64, 0xa1, 3), read(64, 0xa2, 5)];
    let list = ReadList::new(&list, ZeroPosition::Never).unwrap();
    let mut out = [0; 52];
    let mut w = Writer::new(&mut out);
    list.encode(&mut w);
    assert_eq!(w.finish(), Ok(52));
    #[rustfmt::skip]
    let want = [
        0, 0, 0, 1,  0, 0, 0, 64,  0, 0, 0, 0xa1,  0, 0, 0, 3,  0, 0, 0, 0, 0, 0, 0x10, 0,
        0, 0, 0, 1,  0, 0, 0, 64,  0, 0, 0, 0xa2,  0, 0, 0, 5,  0, 0, 0, 0, 0, 0, 0x10, 0,
        0, 0, 0, 0,
    ];
    assert_eq!(out, want);
    let mut r = Reader::new(&out);
    let decoded = ReadList::decode(&mut r, ITEMS, &Limits::DEFAULT).unwrap();
    assert_eq!((decoded, r.left()), (list, 0));
    let chunk = decoded.items().next().unwrap();
    assert_eq!((chunk.position(), chunk.length(), chunk.segments().count()), (64, 8, 2));
    assert_eq!(decoded.chunks().count(), 1);
}

/// The example of RFC 8166 section 4.7: `1 3 HLOO HLOO HLOO 1 2 HLOO HLOO 0`.
#[test]
fn test_write_list_encodes_as_in_rfc_8166() {
    let (a, b) = ([segment(1, 9), segment(2, 8), segment(3, 7)], [segment(4, 6), segment(5, 5)]);
    let chunks = [WriteChunk::new(&a).unwrap(), WriteChunk::new(&b).unwrap()];
    let list = WriteList::new(&chunks);
    let mut out = [0; 100];
    let mut w = Writer::new(&mut out);
    list.encode(&mut w);
    assert_eq!(w.finish(), Ok(100));
    assert_eq!(out[..12], [0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 1]);
    assert_eq!(out[56..68], [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 4]);
    assert_eq!(out[96..], [0; 4]);
    let decoded = WriteList::decode(&mut Reader::new(&out), &Limits::DEFAULT).unwrap();
    assert_eq!((decoded, decoded.len()), (list, 2));
    assert_eq!(decoded.chunks().map(|c| c.length()).collect::<Vec<_>>(), [24, 11]);
}

#[test]
fn test_position_must_be_a_multiple_of_four() {
    assert_eq!(
        fault(&[read(42, 1, 1)], ITEMS, &Limits::NONE),
        Some(Fault::Unaligned { position: 42 })
    );
    assert_eq!(fault(&[read(44, 1, 1)], ITEMS, &Limits::NONE), None);
}

#[test]
fn test_position_zero_is_for_body_chunks() {
    let (zero, item) = (read(0, 1, 40), read(40, 1, 40));
    assert_eq!(fault(&[zero], ITEMS, &Limits::NONE), Some(Fault::PositionZero));
    assert_eq!(fault(&[zero], V1_MSG, &Limits::NONE), Some(Fault::PositionZero));
    assert_eq!(fault(&[zero, item], V1_NOMSG, &Limits::NONE), None);
    assert_eq!(fault(&[zero, zero], CALL, &Limits::NONE), None);
    let body = Fault::BodyPosition { position: 40 };
    assert_eq!(fault(&[zero, item], CALL, &Limits::NONE), Some(body));
    assert_eq!(fault(&[], CALL, &Limits::NONE), Some(Fault::NoBody));
    assert_eq!(fault(&[], V1_NOMSG, &Limits::NONE), None, "of which a reply may be");
}

#[test]
fn test_positions_increase_in_version_2_and_are_gathered_in_version_1() {
    let list = [read(80, 1, 4), read(40, 2, 8), read(80, 3, 2), read(0, 4, 60)];
    let order = Fault::Order { before: 80, position: 40 };
    assert_eq!(fault(&list[..3], ITEMS, &Limits::NONE), Some(order));
    let bytes = bytes(&list);
    let read = ReadList::decode(&mut Reader::new(&bytes), V1_NOMSG, &Limits::DEFAULT).unwrap();
    let chunks: Vec<_> = read
        .chunks()
        .map(|c| (c.position(), c.segments().map(|s| s.handle.0).collect::<Vec<_>>()))
        .collect();
    assert_eq!(chunks, [(0, vec![4]), (40, vec![2]), (80, vec![1, 3])]);
    assert_eq!(read.body().map(|c| c.length()), Some(60));
    assert_eq!(read.items().map(|c| c.length()).collect::<Vec<_>>(), [8, 6]);
    let order: Vec<_> = read.segments().map(|s| s.target.handle.0).collect();
    assert_eq!(order, [1, 2, 3, 4], "the list stays as it was");
}

#[test]
fn test_chunk_may_not_begin_inside_another() {
    let overlap = Some(Fault::Overlap { before: 40, position: 44 });
    assert_eq!(fault(&[read(40, 1, 5), read(44, 1, 4)], ITEMS, &Limits::NONE), overlap);
    assert_eq!(fault(&[read(44, 1, 4), read(40, 1, 5)], V1_MSG, &Limits::NONE), overlap);
    assert_eq!(fault(&[read(40, 1, 5), read(48, 1, 4)], ITEMS, &Limits::NONE), None);
    assert_eq!(fault(&[read(40, 1, 4), read(44, 1, 4)], ITEMS, &Limits::NONE), None);
    // A body chunk is as long as the rest of the stream, so no position bounds it.
    assert_eq!(fault(&[read(0, 1, 80), read(44, 1, 4)], V1_NOMSG, &Limits::NONE), None);
}

#[test]
fn test_chunks_are_no_longer_than_items_and_end_within_positions() {
    let half = 1 << 31;
    let long = Some(Fault::ChunkLength);
    assert_eq!(fault(&[read(40, 1, half), read(40, 2, half)], ITEMS, &Limits::NONE), long);
    assert_eq!(fault(&[read(40, 1, u32::MAX - 39)], ITEMS, &Limits::NONE), long);
    assert_eq!(fault(&[read(40, 1, u32::MAX - 43)], ITEMS, &Limits::NONE), None);
    let too_long = [segment(1, half), segment(2, half)];
    assert_eq!(WriteChunk::new(&too_long).map_err(|e| e.fault), Err(Fault::ChunkLength));
    let bytes = write_bytes(&[&too_long]);
    let e = WriteList::decode(&mut Reader::new(&bytes), &Limits::NONE).unwrap_err();
    assert_eq!((e.at, e.fault), (8, Fault::ChunkLength));
}

#[test]
fn test_segment_that_wraps_is_refused_in_either_list() {
    let wraps = Segment { handle: Handle(1), length: 2, offset: u64::MAX };
    let list = [ReadSegment { position: 40, target: wraps }];
    assert_eq!(fault(&list, ITEMS, &Limits::NONE), Some(Fault::SegmentWraps));
    let bytes = write_bytes(&[&[segment(1, 1), wraps]]);
    let e = WriteList::decode(&mut Reader::new(&bytes), &Limits::NONE).unwrap_err();
    assert_eq!((e.at, e.fault), (24, Fault::SegmentWraps));
}

#[test]
fn test_chunk_limits_are_inclusive() {
    let limits = Limits { read_chunks: 2, write_chunks: 2, segments: 3 };
    let list: Vec<_> = [40, 48, 56].iter().map(|p| read(*p, 1, 8)).collect();
    assert_eq!(fault(&list[..2], ITEMS, &limits), None);
    assert_eq!(fault(&list, ITEMS, &limits), Some(Fault::ReadChunks { max: 2 }));
    // The body comes on top of the limit.
    let body = [read(0, 1, 40), list[0], list[1]];
    assert_eq!(fault(&body, V1_NOMSG, &limits), None);
    let long = [read(40, 1, 1); 4];
    assert_eq!(fault(&long[..3], ITEMS, &limits), None);
    assert_eq!(fault(&long, ITEMS, &limits), Some(Fault::Segments { max: 3 }));
    let scattered = [long[0], list[1], long[1], list[1], long[2], list[1]];
    assert_eq!(fault(&scattered, V1_MSG, &limits), None);
    let four = [long[0], list[1], long[1], list[1], long[2], long[3]];
    assert_eq!(fault(&four, V1_MSG, &limits), Some(Fault::Segments { max: 3 }));

    let three = [segment(1, 1); 4];
    let count = |chunks: &[&[Segment]]| {
        let bytes = write_bytes(chunks);
        WriteList::decode(&mut Reader::new(&bytes), &limits).err().map(|e| e.fault)
    };
    assert_eq!(count(&[&three[..3], &[]]), None);
    assert_eq!(count(&[&three]), Some(Fault::Segments { max: 3 }));
    assert_eq!(count(&[&[], &[], &[]]), Some(Fault::WriteChunks { max: 2 }));
}

/// A list without an end makes a receiver look at no more segments than its limits allow.
#[test]
fn test_list_without_end_is_not_walked_to_its_end() {
    let limits = Limits { read_chunks: 2, write_chunks: 2, segments: 3 };
    let mut bytes = bytes(&[read(40, 1, 1), read(44, 1, 1)].repeat(4));
    // Nothing is readable after the seventh segment.
    bytes.truncate(7 * 24);
    let e = ReadList::decode(&mut Reader::new(&bytes), V1_MSG, &limits).unwrap_err();
    assert_eq!((e.at, e.fault), (6 * 24 + 4, Fault::ReadChunks { max: 2 }));
    let count = [0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff];
    let e = WriteList::decode(&mut Reader::new(&count), &Limits::NONE).unwrap_err();
    assert_eq!((e.at, e.fault), (4, Fault::Segments { max: u16::MAX }));
}

#[test]
fn test_chunk_is_filled_one_segment_behind_another() {
    let segments = [segment(1, 10), segment(2, 0), segment(3, 10)];
    let chunk = WriteChunk::new(&segments).unwrap();
    let lengths = |c: WriteChunk<'_>| c.segments().map(|s| s.length).collect::<Vec<_>>();
    assert_eq!(lengths(chunk.filled(0)), [0, 0, 0]);
    assert_eq!(lengths(chunk.filled(10)), [10, 0, 0]);
    assert_eq!(lengths(chunk.filled(13)), [10, 0, 3]);
    assert_eq!(lengths(chunk.filled(99)), [10, 0, 10]);
    for n in [0, 9, 10, 13, 20] {
        assert_eq!(chunk.filled(n).returned(&chunk), Ok(n));
        assert_eq!(chunk.filled(n).len(), 3, "all segments are returned");
    }
    // The second `filled` starts from the provided lengths.
    assert_eq!(lengths(chunk.filled(3).filled(20)), [10, 0, 10]);
}

#[test]
fn test_returned_chunk_is_compared_with_the_one_provided() {
    let provided = [segment(1, 10), segment(2, 10)];
    let chunk = WriteChunk::new(&provided).unwrap();
    let check = |segments: &[Segment]| WriteChunk::new(segments).unwrap().returned(&chunk);
    assert_eq!(check(&[]), Ok(0), "unused, as RFC 8267 has it");
    assert_eq!(check(&[segment(1, 0), segment(2, 0)]), Ok(0), "unused, as RFC 8166 has it");
    let count = ReturnedError::Count { provided: 2, returned: 1 };
    assert_eq!(check(&[segment(1, 1)]), Err(count));
    let other = Err(ReturnedError::Other { index: 1 });
    assert_eq!(check(&[segment(1, 10), segment(9, 1)]), other);
    let moved = Segment { offset: 0x2000, ..segment(2, 1) };
    assert_eq!(check(&[segment(1, 10), moved]), other);
    assert_eq!(check(&[segment(1, 11), segment(2, 1)]), Err(ReturnedError::Longer { index: 0 }));
    assert_eq!(check(&[segment(1, 9), segment(2, 1)]), Err(ReturnedError::Gap { index: 1 }));
    assert_eq!(WriteChunk::EMPTY.returned(&WriteChunk::EMPTY), Ok(0));

    let chunks = [chunk, WriteChunk::EMPTY];
    let list = WriteList::new(&chunks);
    assert_eq!(list.returned(&list), Ok(()));
    let wrong = [chunk, chunk];
    let count = ReturnedError::Count { provided: 0, returned: 2 };
    assert_eq!(WriteList::new(&wrong).returned(&list), Err((1, count)));
    let count = ReturnedError::Count { provided: 2, returned: 1 };
    assert_eq!(WriteList::new(&wrong[..1]).returned(&list), Err((1, count)));
}

fn any_segment() -> impl Strategy<Value = Segment> {
    (any::<u32>(), 0u32..1 << 20, any::<u32>()).prop_map(|(h, length, o)| Segment {
        handle: Handle(h),
        length,
        offset: o.into(),
    })
}

proptest! {
    /// For chunks of any lengths, with gaps between them, the sender's view and the receiver's view
    /// are equal, and so are their bytes.
    #[test]
    fn prop_read_list_is_read_as_it_was_written(
        chunks in prop::collection::vec(
            (prop::collection::vec(any_segment(), 1..5), 0u32..9), 0..6),
    ) {
        let mut list = Vec::new();
        let mut position = 40;
        for (segments, gap) in &chunks {
            list.extend(segments.iter().map(|&target| ReadSegment { position, target }));
            let length: u32 = segments.iter().map(|s| s.length).sum();
            position += length.next_multiple_of(4).max(4) + 4 * gap;
        }
        let sent = ReadList::new(&list, ZeroPosition::Never).unwrap();
        let bytes = bytes(&list);
        let limits = Limits { read_chunks: 6, segments: 5, ..Limits::DEFAULT };
        let mut r = Reader::new(&bytes);
        let got = ReadList::decode(&mut r, ITEMS, &limits).unwrap();
        prop_assert_eq!(r.left(), 0);
        prop_assert_eq!(got, sent);
        prop_assert_eq!(got.chunks().count(), chunks.len());
        for (chunk, (segments, _)) in got.chunks().zip(&chunks) {
            prop_assert!(chunk.segments().eq(segments.iter().copied()));
        }
        for list in [got, sent] {
            let mut out = vec![0; bytes.len()];
            let mut w = Writer::new(&mut out);
            list.encode(&mut w);
            prop_assert_eq!(w.finish(), Ok(bytes.len()));
            prop_assert_eq!(&out, &bytes);
        }
    }

    /// A version 1 list has the same chunks in whatever order its segments are.
    #[test]
    fn prop_order_of_segments_does_not_matter_to_version_1(
        positions in prop::collection::vec(0u32..6, 1..30),
    ) {
        let list: Vec<_> =
            (0..).zip(&positions).map(|(i, p)| read(40 + 400 * p, i, 1)).collect();
        let bytes = bytes(&list);
        let got = ReadList::decode(&mut Reader::new(&bytes), V1_MSG, &Limits::NONE).unwrap();
        let mut sorted = list.clone();
        sorted.sort_by_key(|s| s.position);
        let sorted = ReadList::new(&sorted, ZeroPosition::Never).unwrap();
        let all = |l: ReadList<'_>| {
            l.chunks().map(|c| (c.position(), c.segments().collect::<Vec<_>>())).collect::<Vec<_>>()
        };
        prop_assert_eq!(all(got), all(sorted));
    }

    /// The requester finds the length that the responder filled, however much of the chunk that is.
    #[test]
    fn prop_what_is_filled_is_returned(
        segments in prop::collection::vec(any_segment(), 1..6), n in 0u32..1 << 22,
    ) {
        let chunk = WriteChunk::new(&segments).unwrap();
        let mut out = vec![0; 4 + 16 * segments.len()];
        let mut w = Writer::new(&mut out);
        chunk.filled(n).encode(&mut w);
        w.finish().unwrap();
        let got = WriteChunk::decode(&mut Reader::new(&out), &Limits::DEFAULT).unwrap();
        prop_assert_eq!(got.returned(&chunk), Ok(n.min(chunk.length())));
        prop_assert_eq!(got, chunk.filled(n));
    }
}
