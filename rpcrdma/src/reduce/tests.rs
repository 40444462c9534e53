use proptest::prelude::*;

use super::*;
use crate::segment::{Handle, Segment};

fn item(offset: u32, length: u32) -> Item {
    Item { offset, length }
}

fn reduce(total: u32, items: &[Item]) -> Result<(u32, Vec<(u32, u32)>), ItemError> {
    let r = Reduction::new(total, 40, items.iter().copied())?;
    assert!(r.items().eq(items.iter().copied()));
    Ok((r.reduced_len(), r.pieces().map(|p| (p.offset, p.length)).collect()))
}

fn assemble(reduced: u32, chunks: &[Item], max: u32) -> Result<(u32, Vec<Part>), AssembleError> {
    let a = Assembly::new(reduced, 40, chunks.iter().copied(), max)?;
    Ok((a.total(), a.parts().collect()))
}

/// An NFS WRITE of five bytes: the data goes with its padding, and the length stays.
#[test]
fn test_item_is_taken_out_with_its_padding() {
    assert_eq!(reduce(88, &[item(80, 5)]), Ok((80, vec![(0, 80)])));
    assert_eq!(reduce(92, &[item(80, 5)]), Ok((84, vec![(0, 80), (88, 4)])));
    assert_eq!(reduce(92, &[]), Ok((92, vec![(0, 92)])));
    let two = [item(40, 4), item(44, 7)];
    assert_eq!(reduce(52, &two), Ok((40, vec![(0, 40)])));
}

#[test]
fn test_item_that_does_not_fit_the_stream_is_refused() {
    assert_eq!(reduce(92, &[item(81, 5)]), Err(ItemError::Unaligned { offset: 81 }));
    assert_eq!(reduce(92, &[item(36, 4)]), Err(ItemError::Order { offset: 36, free: 40 }));
    let within = [item(40, 5), item(44, 4)];
    assert_eq!(reduce(92, &within), Err(ItemError::Order { offset: 44, free: 48 }));
    assert_eq!(reduce(92, &[item(44, 0)]), Err(ItemError::Empty { offset: 44 }));
    for length in [13, u32::MAX] {
        assert_eq!(reduce(92, &[item(80, length)]), Err(ItemError::Beyond { offset: 80 }));
    }
    assert_eq!(reduce(90, &[item(80, 9)]), Err(ItemError::Beyond { offset: 80 }), "padding");
    assert!(reduce(92, &[item(80, 12)]).is_ok());
}

#[test]
fn test_chunk_is_put_back_with_padding() {
    let stream = |from, offset, length| Part::Stream { from, to: Piece { offset, length } };
    let chunk = |index, offset, length| Part::Chunk { index, to: Piece { offset, length } };
    let padding = |offset, length| Part::Padding { to: Piece { offset, length } };
    let parts = vec![stream(0, 0, 80), chunk(0, 80, 5), padding(85, 3), stream(80, 88, 4)];
    assert_eq!(assemble(84, &[item(80, 5)], 92), Ok((92, parts)));
    // In version 1 a chunk may hold padding; the following bytes get the same place.
    let parts = vec![stream(0, 0, 80), chunk(0, 80, 8), stream(80, 88, 4)];
    assert_eq!(assemble(84, &[item(80, 8)], 92), Ok((92, parts)));
    let two = [item(40, 4), item(44, 7)];
    let parts = vec![stream(0, 0, 40), chunk(0, 40, 4), chunk(1, 44, 7), padding(51, 1)];
    assert_eq!(assemble(40, &two, 52), Ok((52, parts)));
    // The first chunk is empty.
    let parts = vec![stream(0, 0, 84), chunk(1, 84, 4)];
    assert_eq!(assemble(84, &[item(80, 0), item(84, 4)], 92), Ok((88, parts)));
    assert_eq!(assemble(84, &[], 92), Ok((84, vec![stream(0, 0, 84)])));
}

#[test]
fn test_chunk_without_a_place_is_refused() {
    assert_eq!(
        assemble(84, &[item(36, 4)], 200),
        Err(AssembleError::Order { position: 36, free: 40 })
    );
    let order = Err(AssembleError::Order { position: 44, free: 48 });
    assert_eq!(assemble(84, &[item(40, 5), item(44, 4)], 200), order);
    let beyond = Err(AssembleError::Beyond { position: 88, end: 84 });
    assert_eq!(assemble(84, &[item(88, 4)], 200), beyond);
    // The first chunk makes the stream long enough for the second.
    assert!(assemble(84, &[item(80, 4), item(88, 4)], 200).is_ok());
    let long = |max| Err(AssembleError::TooLong { max });
    assert_eq!(assemble(84, &[item(80, 5)], 91), long(91));
    assert_eq!(assemble(84, &[item(80, u32::MAX - 83)], u32::MAX), long(u32::MAX));
    assert_eq!(assemble(84, &[item(80, u32::MAX)], u32::MAX), long(u32::MAX));
}

#[test]
fn test_chunk_must_be_as_long_as_its_item() {
    assert!(chunk_fits(5, 5, false) && chunk_fits(5, 5, true));
    assert!(chunk_fits(8, 5, true), "version 1 may have padding");
    assert!(!chunk_fits(8, 5, false), "version 2 has none");
    for chunk in [0, 4, 6, 7, 9, 12] {
        assert!(!chunk_fits(chunk, 5, true), "{chunk}");
    }
}

fn segment(handle: u32, length: u32) -> Segment {
    Segment { handle: Handle(handle), length, offset: 0 }
}

#[test]
fn test_results_go_into_chunks_one_by_one() {
    let (a, b, c) = ([segment(1, 100), segment(2, 100)], [segment(3, 8)], [segment(4, 50)]);
    let chunk = |s| WriteChunk::new(s).unwrap();
    let chunks = [chunk(&a), WriteChunk::EMPTY, chunk(&b), chunk(&c)];
    let writes = WriteList::new(&chunks);
    let items = [item(40, 150), item(200, 9), item(300, 8)];
    let placement = Placement::new(&items, writes).unwrap();
    let placed: Vec<_> = placement.placed().map(|(i, c)| (i, c.length())).collect();
    assert_eq!(placed, [(items[0], 150), (items[2], 8)], "the second stays inline");
    let returned: Vec<_> = placement.returned().collect();
    assert_eq!(returned.iter().map(WriteChunk::length).collect::<Vec<_>>(), [150, 0, 8, 0]);
    assert_eq!(WriteList::new(&returned).returned(&writes), Ok(()));
    // The placed results are exactly those that are taken out of the stream.
    let r = Reduction::new(400, 24, placement.placed().map(|(i, _)| i)).unwrap();
    assert_eq!(r.reduced_len(), 400 - 152 - 8);
    // The reply has more results than chunks.
    let few = Placement::new(&items, WriteList::new(&chunks[..1])).unwrap();
    assert_eq!(few.placed().count(), 1);
}

#[test]
fn test_chunk_that_is_too_short_is_named() {
    let (a, b) = ([segment(1, 100)], [segment(3, 8)]);
    let chunks = [WriteChunk::new(&a).unwrap(), WriteChunk::new(&b).unwrap()];
    let items = [item(40, 100), item(200, 9)];
    let short = Placement::new(&items, WriteList::new(&chunks)).map(drop);
    assert_eq!(short, Err(Shortage { chunk: 2, needed: 9 }));
    let fits = [item(40, 100), item(200, 8)];
    assert!(Placement::new(&fits, WriteList::new(&chunks)).is_ok());
    // An empty result needs no room and stays in the stream.
    let none = [item(40, 0)];
    let placement = Placement::new(&none, WriteList::new(&chunks)).unwrap();
    assert_eq!(placement.placed().count(), 0);
}

/// Returns the bytes of a message with opaque items at some offsets, and the items.
fn message(parts: &[(u32, u32)]) -> (Vec<u8>, Vec<Item>) {
    let mut bytes: Vec<u8> = (0..40).collect();
    let mut items = Vec::new();
    for (i, &(words, length)) in (0u8..).zip(parts) {
        bytes.extend((0..4 * words).map(|n| u8::try_from(n % 251).unwrap()));
        bytes.extend(length.to_be_bytes());
        items.push(item(u32::try_from(bytes.len()).unwrap(), length));
        bytes.extend((0..length).map(|n| u8::try_from((7 * n + 3) % 256).unwrap() ^ i));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    (bytes, items)
}

proptest! {
    /// The message can be assembled again whichever items are taken out, and under either rule of
    /// padding.
    #[test]
    fn prop_what_is_reduced_is_assembled(
        parts in prop::collection::vec((0u32..5, 1u32..60, any::<bool>(), any::<bool>()), 0..8),
    ) {
        let shape: Vec<_> = parts.iter().map(|p| (p.0, p.1)).collect();
        let (bytes, items) = message(&shape);
        let taken: Vec<_> =
            items.iter().zip(&parts).filter(|(_, p)| p.2).map(|(i, p)| (*i, p.3)).collect();
        let total = u32::try_from(bytes.len()).unwrap();
        let at = |p: Piece| p.offset as usize..(p.offset + p.length) as usize;

        let r = Reduction::new(total, 40, taken.iter().map(|t| t.0)).unwrap();
        let reduced: Vec<u8> = r.pieces().flat_map(|p| bytes[at(p)].to_vec()).collect();
        prop_assert_eq!(reduced.len(), r.reduced_len() as usize);
        prop_assert_eq!(reduced.len() % 4, 0);
        // A sender of version 1 may put the padding into the chunk or leave it out.
        let chunks: Vec<_> = taken
            .iter()
            .map(|&(i, pad)| {
                let length = if pad { i.length.next_multiple_of(4) } else { i.length };
                (Item { length, ..i }, bytes[at(Piece { offset: i.offset, length })].to_vec())
            })
            .collect();

        let a = Assembly::new(r.reduced_len(), 40, chunks.iter().map(|c| c.0), total).unwrap();
        prop_assert_eq!(a.total(), total);
        let mut whole = Vec::new();
        for part in a.parts() {
            let (offset, data) = match part {
                Part::Stream { from, to } => {
                    (to.offset, reduced[at(Piece { offset: from, ..to })].to_vec())
                }
                Part::Chunk { index, to } => {
                    prop_assert_eq!(to.length as usize, chunks[index].1.len());
                    (to.offset, chunks[index].1.clone())
                }
                Part::Padding { to } => (to.offset, vec![0; to.length as usize]),
            };
            prop_assert_eq!(offset as usize, whole.len(), "one behind another");
            whole.extend(data);
        }
        prop_assert_eq!(whole, bytes);
    }

    /// Any chunks in any stream are assembled or refused; an assembled stream has no hole.
    #[test]
    fn prop_any_chunks_are_assembled_or_refused(
        reduced in 0u32..300, max in 0u32..600,
        chunks in prop::collection::vec((0u32..120, 0u32..50), 0..5),
    ) {
        let chunks: Vec<_> = chunks.iter().map(|&(p, l)| item(4 * p, l)).collect();
        if let Ok((total, parts)) = assemble(reduced, &chunks, max) {
            prop_assert!(total <= max);
            let (mut at, mut from) = (0, 0);
            for part in parts {
                let to = match part {
                    Part::Stream { from: f, to } => {
                        prop_assert_eq!(f, from);
                        from += to.length;
                        to
                    }
                    Part::Chunk { to, .. } | Part::Padding { to } => to,
                };
                prop_assert_eq!(to.offset, at);
                prop_assert!(to.length > 0);
                at += to.length;
            }
            prop_assert_eq!((at, from), (total, reduced));
        }
    }
}
