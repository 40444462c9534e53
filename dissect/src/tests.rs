//! Tests of whole connections, made by the encoders of the crates whose decoders this crate uses.
//! The tests in `tests/` compare with tshark and Linux.

mod hostile;
mod rules;
mod tcp;
mod transports;

use heddle_rpcrdma::chunk::{ReadList, WriteChunk, WriteList, ZeroPosition};
use heddle_rpcrdma::v1::Chunks;
use heddle_rpcrdma::{Handle, ReadSegment, Segment};

use crate::item::{Item, Rule, What};
use crate::text::line;

/// Returns a segment of a thousand bytes whose offset follows from its handle.
fn segment(handle: u32) -> Segment {
    Segment { handle: Handle(handle), length: 1000, offset: at(handle) }
}

fn at(handle: u32) -> u64 {
    u64::from(handle) << 12
}

/// Calls `f` with one Read chunk, one Write chunk and a Reply chunk of these handles; 0 for none.
fn with_chunks<T>(handles: [u32; 3], position: u32, f: impl FnOnce(Chunks<'_>) -> T) -> T {
    let [read, write, reply] = handles;
    let reads = [ReadSegment { position, target: segment(read) }];
    let reads = if read == 0 { &[] } else { &reads[..] };
    let zero = if position == 0 { ZeroPosition::Also } else { ZeroPosition::Never };
    let writes = [segment(write)];
    let writes = [WriteChunk::new(&writes).unwrap()];
    let writes = if write == 0 { &[] } else { &writes[..] };
    let reply_segments = [segment(reply)];
    let reply = (reply != 0).then(|| WriteChunk::new(&reply_segments).unwrap());
    let reads = ReadList::new(reads, zero).unwrap();
    f(Chunks { reads, writes: WriteList::new(writes), reply })
}

/// Calls `f` with a Write list of one chunk, of which `bytes` bytes are filled.
fn returned<T>(handle: u32, bytes: u32, f: impl FnOnce(WriteList<'_>) -> T) -> T {
    let segments = [segment(handle)];
    let chunks = [WriteChunk::new(&segments).unwrap().filled(bytes)];
    f(WriteList::new(&chunks))
}

fn verdicts(items: &[Item]) -> Vec<Rule> {
    let of = |i: &Item| match &i.what {
        What::Verdict(v) => Some(v.rule),
        _ => None,
    };
    items.iter().filter_map(of).collect()
}

/// Returns the items' lines without time and frame, and with an arrow in place of the two
/// addresses.
fn lines(items: &[Item]) -> Vec<String> {
    let short = |i: &Item| {
        let line = line(i, 0);
        let (who, text) = line.split_once(" > ").unwrap();
        let arrow = if who.ends_with(":40000") { ">" } else { "<" };
        format!("{arrow} {}", text.split_once("  ").unwrap().1)
    };
    items.iter().map(short).collect()
}
