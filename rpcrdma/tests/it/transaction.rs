//! Whole transactions of NFS between two ends without a connection: a Send is a byte string, and
//! RDMA is a copy.
#![allow(clippy::unwrap_used, reason = "tests")]

use heddle_rpcrdma::binding::{Binding, Chunks as Missing, NFS3, Stream};
use heddle_rpcrdma::chunk::{ReadList, WriteChunk, WriteList, ZeroPosition};
use heddle_rpcrdma::header::{Direction, Header, Message, Versions, decode};
use heddle_rpcrdma::reduce::{Assembly, Item, Part, Piece, Placement, Reduction};
use heddle_rpcrdma::rpc::{Auth, Call, Procedure, Reply, Status};
use heddle_rpcrdma::v1::{self, Chunks};
use heddle_rpcrdma::{Handle, Limits, ReadSegment, Segment, Xid, v2};

const XID: Xid = Xid(0x1234_5678);
const READ: Procedure = Procedure { program: 100_003, version: 3, procedure: 6 };
const WRITE: Procedure = Procedure { program: 100_003, version: 3, procedure: 7 };

fn u32len(n: usize) -> u32 {
    u32::try_from(n).unwrap()
}

fn range(p: Piece) -> std::ops::Range<usize> {
    p.offset as usize..(p.offset + p.length) as usize
}

/// The memory of a requester, which its chunks name.
#[derive(Default)]
struct Memory(Vec<u8>);

impl Memory {
    /// Stores bytes, in segments of at most `most` bytes.
    fn register(&mut self, bytes: &[u8], most: usize) -> Vec<Segment> {
        let register = |piece: &[u8]| {
            let offset = self.0.len() as u64;
            self.0.extend(piece);
            Segment { handle: Handle(1), length: u32len(piece.len()), offset }
        };
        bytes.chunks(most).map(register).collect()
    }

    fn at(&mut self, s: Segment) -> &mut [u8] {
        let from = usize::try_from(s.offset).unwrap();
        &mut self.0[from..from + s.length as usize]
    }
}

fn call(procedure: Procedure, args: &[u8]) -> Vec<u8> {
    let call = Call { xid: XID, procedure, cred: Auth::NONE, verf: Auth::NONE };
    let mut out = vec![0; call.encoded_len()];
    call.encode(&mut out).unwrap();
    out.extend(args);
    out
}

fn reply(results: &[u8]) -> Vec<u8> {
    let reply = Reply::accepted(XID, Status::Success);
    let mut out = vec![0; reply.encoded_len()];
    reply.encode(&mut out).unwrap();
    out.extend(results);
    out
}

fn send(version: u32, chunks: Chunks<'_>, direction: Direction, stream: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 1024];
    let len = match (version, direction) {
        (1, _) => v1::Header { xid: XID, credit: 1, body: v1::Body::Msg(chunks) }.encode(&mut out),
        (_, Direction::Call) => {
            let body = v2::Body::CallInline { invalidate: Handle(1), chunks };
            v2::Header { xid: XID, credit: 1, body }.encode(&mut out)
        }
        (_, Direction::Reply) => {
            let body = v2::Body::ReplyInline { writes: chunks.writes };
            v2::Header { xid: XID, credit: 1, body }.encode(&mut out)
        }
    };
    out.truncate(len.unwrap());
    out.extend(stream);
    out
}

fn receive(version: u32, bytes: &[u8]) -> (Chunks<'_>, &[u8]) {
    let versions = if version == 1 { Versions::V1 } else { Versions::V2 };
    let message = decode(bytes, versions, &Limits::DEFAULT).unwrap();
    let Message { header, payload } = message;
    let chunks = match header {
        Header::V1(v1::Header { body: v1::Body::Msg(chunks), .. }) => chunks,
        Header::V2(h) => match h.body {
            v2::Body::CallInline { chunks, .. } => {
                assert_eq!(h.invalidate(), Some(Handle(1)));
                chunks
            }
            v2::Body::ReplyInline { writes } => Chunks { writes, ..Chunks::NONE },
            body => panic!("{body:?}"),
        },
        Header::V1(h) => panic!("{h:?}"),
    };
    (chunks, payload)
}

fn gather(message: &[u8], items: impl Iterator<Item = Item> + Clone, header: u32) -> Vec<u8> {
    let reduction = Reduction::new(u32len(message.len()), header, items).unwrap();
    reduction.pieces().flat_map(|p| message[range(p)].to_vec()).collect()
}

/// A WRITE of any length whose data the responder reads; in version 1 the chunk also has padding.
#[test]
fn test_write_goes_through_a_read_chunk() {
    for (version, length, pad) in [(1, 5u32, false), (1, 5, true), (2, 5, false), (2, 4096, false)]
    {
        let data: Vec<u8> = (0..length).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut args = vec![0, 0, 0, 4, 9, 9, 9, 9];
        args.extend([0; 16]);
        args.extend(length.to_be_bytes());
        args.extend(&data);
        args.resize(args.len().next_multiple_of(4), 0);
        let message = call(WRITE, &args);

        // The requester sends the call.
        let found = NFS3.arguments(WRITE, Stream::new(&args, 40, Missing::None)).unwrap();
        let items = found.as_slice();
        assert_eq!(items, [Item { offset: 68, length }]);
        let stream = gather(&message, items.iter().copied(), 40);
        assert_eq!(stream.len(), 68);
        let mut memory = Memory::default();
        let mut chunk = message[range(Piece { offset: 68, length })].to_vec();
        chunk.resize(if pad { chunk.len().next_multiple_of(4) } else { chunk.len() }, 0);
        let reads: Vec<_> = memory
            .register(&chunk, 1500)
            .iter()
            .map(|&target| ReadSegment { position: 68, target })
            .collect();
        let reads = ReadList::new(&reads, ZeroPosition::Never).unwrap();
        let sent = send(version, Chunks { reads, ..Chunks::NONE }, Direction::Call, &stream);

        // The responder receives the call.
        let (chunks, payload) = receive(version, &sent);
        let (call, args) = Call::decode(payload).unwrap();
        let header = u32len(payload.len() - args.len());
        let read: Vec<_> = chunks
            .reads
            .items()
            .map(|c| Item { offset: c.position(), length: c.length() })
            .collect();
        let missing = Missing::Read { chunks: &read, padding: version == 1 };
        NFS3.arguments(call.procedure, Stream::new(args, header, missing)).unwrap();
        let total = u32len(payload.len());
        let assembly = Assembly::new(total, header, read.iter().copied(), 1 << 20).unwrap();
        let mut whole = vec![0; assembly.total() as usize];
        for part in assembly.parts() {
            match part {
                Part::Stream { from, to } => {
                    whole[range(to)].copy_from_slice(&payload[range(Piece { offset: from, ..to })]);
                }
                Part::Chunk { index, to } => {
                    let chunk = chunks.reads.items().nth(index).unwrap();
                    let data: Vec<_> =
                        chunk.segments().flat_map(|s| memory.at(s).to_vec()).collect();
                    whole[range(to)].copy_from_slice(&data);
                }
                Part::Padding { to } => whole[range(to)].fill(0),
            }
        }
        assert_eq!(whole, message, "version {version}, {length} bytes, {pad}");
    }
}

/// A READ whose data the responder writes into two segments, and which is shorter than the room.
#[test]
fn test_read_comes_through_a_write_chunk() {
    for version in [1, 2] {
        let args = [[0, 0, 0, 4], [9; 4], [0; 4], [0; 4], [0, 0, 0x20, 0]].concat();
        let message = call(READ, &args);

        // The requester provides as much room as it asks data for.
        let size = NFS3.reply_size(READ, &args).unwrap();
        assert_eq!((size.stream, size.item), (104, 0x2000));
        let mut memory = Memory::default();
        let room = memory.register(&vec![0; size.item as usize], 4096);
        let room = [WriteChunk::new(&room).unwrap()];
        let provided = WriteList::new(&room);
        let chunks = Chunks { writes: provided, ..Chunks::NONE };
        let sent = send(version, chunks, Direction::Call, &message);

        // The responder replies.
        let (chunks, payload) = receive(version, &sent);
        let data: Vec<u8> = (0..5001u32).map(|n| u8::try_from(n % 253).unwrap()).collect();
        let (_, args) = Call::decode(payload).unwrap();
        assert_eq!(args.len(), 20);
        let mut results = vec![0; 8];
        results.extend([0, 0, 0x13, 0x89, 0, 0, 0, 1, 0, 0, 0x13, 0x89]);
        results.extend(&data);
        results.resize(results.len().next_multiple_of(4), 0);
        let message = reply(&results);
        let found = NFS3.results(READ, Stream::new(&results, 24, Missing::None)).unwrap();
        let placement = Placement::new(found.as_slice(), chunks.writes).unwrap();
        for (item, chunk) in placement.placed() {
            let mut from = item.offset as usize;
            for segment in chunk.segments() {
                let to = memory.at(segment);
                to.copy_from_slice(&message[from..from + to.len()]);
                from += to.len();
            }
        }
        let stream = gather(&message, placement.placed().map(|(item, _)| item), 24);
        let returned: Vec<_> = placement.returned().collect();
        let chunks = Chunks { writes: WriteList::new(&returned), ..Chunks::NONE };
        let sent = send(version, chunks, Direction::Reply, &stream);
        assert!(sent.len() < 200);

        // The requester receives the reply.
        let (chunks, payload) = receive(version, &sent);
        assert_eq!(chunks.writes.returned(&provided), Ok(()));
        let filled: Vec<_> = chunks.writes.chunks().map(|c| c.length()).collect();
        assert_eq!(filled, [5001]);
        let (reply, results) = Reply::decode(payload).unwrap();
        assert!(reply.xid == XID && reply.has_results());
        let missing = Missing::Write(&filled);
        let found = NFS3.results(READ, Stream::new(results, 24, missing)).unwrap();
        assert_eq!(found.as_slice(), [Item { offset: 44, length: 5001 }]);
        let chunk = chunks.writes.chunks().next().unwrap();
        let got: Vec<_> = chunk.segments().flat_map(|s| memory.at(s).to_vec()).collect();
        assert_eq!(got, data, "version {version}");
    }
}
