use super::*;
use crate::xdr::Fault;

fn nfs(procedure: u32) -> Procedure {
    Procedure { program: 100_003, version: 3, procedure }
}

fn bytes(units: &[u32]) -> Vec<u8> {
    units.iter().flat_map(|u| u.to_be_bytes()).collect()
}

/// The front of WRITE's arguments: a handle of five bytes, offset, count, FILE_SYNC.
const WRITE: [u32; 7] = [5, 0x0102_0304, 0x0500_0000, 0, 0x1000, 6, 2];

fn write(data: &[u32]) -> Vec<u8> {
    bytes(&[&WRITE, data].concat())
}

fn item(offset: u32, length: u32) -> Item {
    Item { offset, length }
}

fn read_chunks(chunks: &[Item], padding: bool) -> Chunks<'_> {
    Chunks::Read { chunks, padding }
}

fn arguments(procedure: u32, bytes: &[u8], chunks: Chunks<'_>) -> Result<Vec<Item>, Error> {
    let stream = Stream::new(bytes, 40, chunks);
    NFS3.arguments(nfs(procedure), stream).map(|items| items.as_slice().to_vec())
}

fn results(procedure: u32, bytes: &[u8], chunks: Chunks<'_>) -> Result<Vec<Item>, Error> {
    let stream = Stream::new(bytes, 24, chunks);
    NFS3.results(nfs(procedure), stream).map(|items| items.as_slice().to_vec())
}

#[test]
fn test_data_of_write_may_be_placed() {
    let whole = write(&[6, 0x6162_6364, 0x6566_0000]);
    assert_eq!(arguments(7, &whole, Chunks::None), Ok(vec![item(72, 6)]));
    let reduced = write(&[6]);
    for (length, padding) in [(6, false), (6, true), (8, true)] {
        let chunk = [item(72, length)];
        let got = arguments(7, &reduced, read_chunks(&chunk, padding));
        assert_eq!(got, Ok(vec![item(72, 6)]), "{length}");
    }
}

#[test]
fn test_chunk_of_another_length_than_the_data_is_refused() {
    let reduced = write(&[6]);
    for (length, padding) in [(5, false), (8, false), (7, true), (12, true), (0, false)] {
        let chunk = [item(72, length)];
        let want = Err(Error::Length { offset: 72, chunk: length, length: 6 });
        assert_eq!(arguments(7, &reduced, read_chunks(&chunk, padding)), want);
    }
}

#[test]
fn test_chunk_that_matches_no_item_is_refused() {
    let whole = write(&[6, 0x6162_6364, 0x6566_0000]);
    let at = |position| [item(position, 8)];
    for position in [40, 44, 68, 76, 80] {
        let want = Err(Error::Ineligible { position });
        assert_eq!(arguments(7, &whole, read_chunks(&at(position), false)), want);
    }
    // Procedures without items, and programs that the binding does not know.
    let fh = bytes(&[4, 1]);
    let want = Err(Error::Ineligible { position: 48 });
    assert_eq!(arguments(1, &fh, read_chunks(&at(48), false)), want);
    assert_eq!(arguments(99, &fh, read_chunks(&at(48), false)), want);
    assert_eq!(arguments(99, &fh, Chunks::None), Ok(vec![]));
    let reduced = write(&[8]);
    let two = [item(72, 8), item(80, 4)];
    let want = Err(Error::Ineligible { position: 80 });
    assert_eq!(arguments(7, &reduced, read_chunks(&two, false)), want);
}

#[test]
fn test_truncated_arguments_are_refused() {
    let whole = write(&[6, 0x6162_6364, 0x6566_0000]);
    for len in 0..whole.len() {
        let got = arguments(7, &whole[..len], Chunks::None);
        assert!(matches!(got, Err(Error::Xdr(_))), "{len}: {got:?}");
    }
    let handle = bytes(&[65]);
    let long = xdr::Error { at: 0, fault: Fault::Length { len: 65, max: 64 } };
    assert_eq!(arguments(7, &handle, Chunks::None), Err(Error::Xdr(long)));
}

/// The attributes set some fields and not others: mode but not user, group but not size; the server
/// sets one time, the client sets the other.
#[test]
fn test_path_of_symlink_may_be_placed() {
    let front = [4, 1, 2, 0x6162_0000, 1, 0o777, 0, 1, 100, 0, 1, 2, 1, 2];
    let reduced = bytes(&[&front[..], &[11]].concat());
    let chunk = [item(100, 11)];
    assert_eq!(arguments(10, &reduced, read_chunks(&chunk, false)), Ok(vec![item(100, 11)]));
    let whole = bytes(&[&front[..], &[3, 0x2f61_6200]].concat());
    assert_eq!(arguments(10, &whole, Chunks::None), Ok(vec![item(100, 3)]));
}

#[test]
fn test_data_of_reads_result_may_be_placed() {
    let front = [&[0, 1][..], &[7; 21], &[6, 1]].concat();
    let whole = bytes(&[&front[..], &[6, 0x6162_6364, 0x6566_0000]].concat());
    assert_eq!(results(6, &whole, Chunks::None), Ok(vec![item(128, 6)]));
    // The responder left the item in the stream.
    assert_eq!(results(6, &whole, Chunks::Write(&[0])), Ok(vec![item(128, 6)]));
    let reduced = bytes(&[&front[..], &[6]].concat());
    assert_eq!(results(6, &reduced, Chunks::Write(&[6])), Ok(vec![item(128, 6)]));
    let want = Err(Error::Length { offset: 128, chunk: 8, length: 6 });
    assert_eq!(results(6, &reduced, Chunks::Write(&[8])), want, "never with padding");
    let want = Err(Error::Ineligible { position: 1 });
    assert_eq!(results(6, &reduced, Chunks::Write(&[6, 4])), want);
    assert_eq!(results(6, &reduced, Chunks::Write(&[6, 0])), Ok(vec![item(128, 6)]));
}

/// Failed results have no data, so the responder returns the provided chunk unused.
#[test]
fn test_failed_results_have_nothing_to_place() {
    let failed = bytes(&[2, 0]);
    for procedure in [5, 6] {
        assert_eq!(results(procedure, &failed, Chunks::Write(&[0])), Ok(vec![]));
        let want = Err(Error::Ineligible { position: 0 });
        assert_eq!(results(procedure, &failed, Chunks::Write(&[4])), want);
    }
}

#[test]
fn test_path_of_readlinks_result_may_be_placed() {
    let reduced = bytes(&[0, 0, 9]);
    assert_eq!(results(5, &reduced, Chunks::Write(&[9])), Ok(vec![item(36, 9)]));
}

#[test]
fn test_replies_have_their_longest_sizes() {
    let size = |procedure, args: &[u32]| NFS3.reply_size(nfs(procedure), &bytes(args));
    let stream = |stream| Some(ReplySize { stream, item: 0 });
    // Computed by hand from the types of RFC 1813.
    let fixed = [
        (0, 0),
        (1, 88),
        (2, 120),
        (3, 248),
        (4, 96),
        (7, 136),
        (8, 280),
        (9, 280),
        (10, 280),
        (11, 280),
        (12, 120),
        (13, 120),
        (14, 236),
        (15, 208),
        (18, 144),
        (19, 140),
        (20, 116),
        (21, 128),
    ];
    for (procedure, bytes) in fixed {
        assert_eq!(size(procedure, &[]), stream(bytes), "{procedure}");
    }
    assert_eq!(size(5, &[]), Some(ReplySize { stream: 96, item: 4096 }));
    assert_eq!(size(6, &[4, 1, 0, 0, 65536]), Some(ReplySize { stream: 104, item: 65536 }));
    assert_eq!(size(6, &[4, 1, 0, 0]), None, "arguments that are none");
    assert_eq!(size(16, &[4, 1, 0, 0, 0, 0, 512]), stream(516));
    assert_eq!(size(16, &[4, 1, 0, 0, 0, 0, 5]), stream(92), "room for a failure");
    assert_eq!(size(17, &[4, 1, 0, 0, 0, 0, 512, 8192]), stream(8196));
    assert_eq!(size(17, &[4, 1, 0, 0, 0, 0, 512, u32::MAX]), stream(u32::MAX));
    assert_eq!(size(22, &[]), None);
}

/// A message has several items, and only some of them are in chunks.
#[test]
fn test_offsets_behind_a_missing_item_are_those_of_the_whole_stream() {
    let table = Table(&[Entry {
        procedure: nfs(1),
        arguments: Some(|s| {
            s.item()?;
            s.u32()?;
            s.item()?;
            s.item()
        }),
        results: None,
        reply: Reply::Unknown,
    }]);
    // 5 bytes in a chunk, a word, 3 bytes in the stream, 4 bytes in a chunk.
    let reduced = bytes(&[5, 99, 3, 0x6162_6300, 4]);
    let chunks = [item(44, 5), item(68, 4)];
    let stream = Stream::new(&reduced, 40, read_chunks(&chunks, false));
    let items = table.arguments(nfs(1), stream).unwrap();
    assert_eq!(items.as_slice(), [item(44, 5), item(60, 3), item(68, 4)]);
}

#[test]
fn test_more_items_than_the_limit_are_refused() {
    let table = Table(&[Entry {
        procedure: nfs(1),
        arguments: Some(|s| {
            loop {
                s.item()?;
            }
        }),
        results: None,
        reply: Reply::Unknown,
    }]);
    let many = bytes(&[0; ITEMS_MAX + 1]);
    let stream = Stream::new(&many, 40, Chunks::None);
    assert_eq!(table.arguments(nfs(1), stream), Err(Error::TooMany));
}
