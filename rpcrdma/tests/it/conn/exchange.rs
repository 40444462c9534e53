//! Calls and replies with contents, and comparisons of sent and received messages.

use heddle_base::Random;
use heddle_rpcrdma::Xid;
use heddle_rpcrdma::conn::{BufferId, IncomingReply, ReplyStream, Sge};
use heddle_rpcrdma::reduce::Item;

use super::model::Mem;

/// An RPC message and its items that may be placed.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) items: Vec<Item>,
}

fn u32of(n: usize) -> u32 {
    u32::try_from(n).unwrap()
}

/// Appends random bytes in which no two places are alike.
fn fill(bytes: &mut Vec<u8>, length: usize, random: &mut Random) {
    let start = random.next_u64();
    let words = (0u64..).map(|n| (start ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    bytes.extend(words.take(length.div_ceil(8)).flatten().take(length));
}

/// Builds a message with these items, and `rest` words around them. Padding is zero.
pub(crate) fn message(
    xid: Xid,
    direction: u32,
    items: &[u32],
    rest: usize,
    random: &mut Random,
) -> Message {
    let mut bytes = [xid.0.to_be_bytes(), direction.to_be_bytes()].concat();
    fill(&mut bytes, 32, random);
    let mut found = Vec::new();
    for &length in items {
        bytes.extend(length.to_be_bytes());
        let offset = bytes.len();
        fill(&mut bytes, length as usize, random);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        found.push(Item { offset: u32of(offset), length });
    }
    fill(&mut bytes, rest * 4, random);
    Message { bytes, items: found }
}

/// Spreads bytes over up to four pieces, each with other bytes around it.
pub(crate) fn scatter(bytes: &[u8], mem: &mut Mem, random: &mut Random) -> Vec<Sge> {
    let pieces = 1 + random.below(4);
    let mut left = bytes;
    let mut sges = Vec::new();
    for n in (0..pieces).rev() {
        let most = left.len() as u64;
        let length = if n == 0 { most } else { random.below(most + 1) };
        let (piece, rest) = left.split_at(usize::try_from(length).unwrap());
        left = rest;
        let buffer = mem.new_buffer([&[0x55; 3], piece, &[0x55; 5]].concat());
        sges.push(Sge { buffer, offset: 3, length: u32of(piece.len()) });
    }
    sges
}

/// The memory that the upper layer lends for a call or reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lent {
    pub(crate) stream: Vec<Sge>,
    pub(crate) rooms: Vec<Vec<Sge>>,
    pub(crate) whole: Vec<Sge>,
}

impl Lent {
    pub(crate) fn buffers(&self) -> Vec<BufferId> {
        let rooms = self.rooms.iter().flatten();
        self.stream.iter().chain(rooms).chain(&self.whole).map(|sge| sge.buffer).collect()
    }

    pub(crate) fn free(self, mem: &mut Mem) {
        for buffer in self.buffers() {
            let bytes = mem.buffers.remove(&buffer.0).unwrap();
            assert_eq!((&bytes[..3], &bytes[bytes.len() - 5..]), (&[0x55; 3][..], &[0x55; 5][..]));
        }
    }
}

/// Returns the message without these items and their padding.
fn without(message: &Message, items: &[Item]) -> Vec<u8> {
    let mut bytes = message.bytes.clone();
    for item in items.iter().rev() {
        let end = item.offset as usize + (item.length as usize).next_multiple_of(4);
        bytes.drain(item.offset as usize..end);
    }
    bytes
}

/// Compares a received reply with the reply that was sent.
pub(crate) fn assert_reply(sent: &Message, got: &IncomingReply, lent: &Lent, mem: &mut Mem) {
    let filled = got.filled.as_slice();
    let mut placed = Vec::new();
    for (index, &bytes) in filled.iter().enumerate() {
        if bytes > 0 {
            let item = sent.items[index];
            assert_eq!(item.length, bytes);
            let room = mem.gather(&lent.rooms[index]);
            let from = item.offset as usize;
            assert!(room[..bytes as usize] == sent.bytes[from..from + bytes as usize]);
            placed.push(item);
        }
    }
    let expected = without(sent, &placed);
    let stream = match got.stream {
        ReplyStream::Buffer { buffer, length } => mem.taken(buffer, length),
        ReplyStream::Chunk { length } => mem.gather(&lent.whole)[..length as usize].to_vec(),
    };
    assert!(stream == expected, "{} bytes, {} expected", stream.len(), expected.len());
}
