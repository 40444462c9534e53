//! Chunk lists in words: valid lists, and lists that break a rule.

use heddle_rpcrdma::v2;

/// A handle that names no memory.
const NOBODYS: [u32; 4] = [0xdead_be00, 100, 0, 0];

/// Returns the entry of a Read list: a segment of the chunk at this position.
pub fn read(position: u32, segment: [u32; 4]) -> Vec<u32> {
    [&[1, position][..], &segment].concat()
}

/// Returns the three lists of a header: Read list, Write list, and Reply chunk.
pub fn lists(reads: &[Vec<u32>], writes: &[u32], reply: &[u32]) -> Vec<u32> {
    let mut lists = reads.concat();
    lists.push(0);
    lists.extend(writes);
    lists.push(0);
    lists.extend(reply);
    lists
}

/// Returns chunk lists of a call with an item of 100 bytes at position `item`, which a server
/// refuses before it reads or writes anything. Each comes with its name, and with the code and
/// limit that version 2 answers; version 1 has a single code for all.
pub fn bad_lists(item: u32) -> Vec<(&'static str, Vec<u32>, &'static [u32])> {
    const XDR: &[u32] = &[v2::code::BAD_XDR];
    let long = |length: u32| [0xdead_be00, length, 0, 0];
    let write = |segments: u32| {
        let mut chunk = vec![1, segments];
        (0..segments).for_each(|_| chunk.extend(NOBODYS));
        chunk
    };
    let many: Vec<_> = (0..60).map(|n| read(item + 104 * n, NOBODYS)).collect();
    let segments: Vec<_> = (0..60).map(|_| read(item, NOBODYS)).collect();
    vec![
        ("a Read list that goes on and on", lists(&many, &[], &[0]), &[v2::code::READ_CHUNKS, 4]),
        ("a chunk that goes on and on", lists(&segments, &[], &[0]), &[v2::code::SEGMENTS, 16]),
        (
            "too many Write chunks",
            lists(&[], &write(1).repeat(5), &[0]),
            &[v2::code::WRITE_CHUNKS, 4],
        ),
        (
            "a Write chunk of too many segments",
            lists(&[], &write(17), &[0]),
            &[v2::code::SEGMENTS, 16],
        ),
        ("a Reply chunk of too many", lists(&[], &[], &write(17)), &[v2::code::SEGMENTS, 16]),
        (
            "a count of segments that lies",
            vec![0, 1, u32::MAX, 1, 2, 3, 4, 0, 0],
            &[v2::code::SEGMENTS, 16],
        ),
        ("an item flag that is none", vec![2, item, 1, 2, 3, 4, 0, 0, 0], XDR),
        (
            "chunks that overlap",
            lists(&[read(item, long(100)), read(item + 12, NOBODYS)], &[], &[0]),
            XDR,
        ),
        (
            "chunks in the wrong order",
            lists(&[read(item + 104, NOBODYS), read(item, NOBODYS)], &[], &[0]),
            XDR,
        ),
        ("a position within a word", lists(&[read(item + 2, NOBODYS)], &[], &[0]), XDR),
        ("a position within the RPC header", lists(&[read(8, NOBODYS)], &[], &[0]), XDR),
        ("a position beyond the message", lists(&[read(4000, NOBODYS)], &[], &[0]), XDR),
        (
            "an offset that wraps",
            lists(&[read(item, [1, 100, u32::MAX, u32::MAX - 50])], &[], &[0]),
            XDR,
        ),
        (
            "a chunk longer than can be told",
            lists(&[read(item, long(1 << 31)), read(item, long(1 << 31))], &[], &[0]),
            XDR,
        ),
        (
            "a message longer than is taken",
            lists(&[read(item, long(3 << 20))], &[], &[0]),
            &[v2::code::SYSTEM],
        ),
    ]
}
