//! The offer for a reply that a call of the peer carries: Write chunks, a Reply chunk, and a handle
//! that the reply may invalidate. The connection takes the offer out of the transport header once,
//! as the call comes, and keeps it until the reply is sent.

use crate::chunk::{WriteChunk, WriteList};
use crate::segment::Handle;
use crate::v1::Chunks;
use crate::v2;
use crate::xdr::{Writer, measure};

/// See [the module](self).
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer<'a> {
    pub(super) writes: WriteList<'a>,
    pub(super) reply: Option<WriteChunk<'a>>,
    /// The handle that the reply may invalidate: in version 1 the first in the header, in version 2
    /// the handle that the header names.
    pub(super) invalidate: Option<Handle>,
}

impl<'a> Offer<'a> {
    const NONE: Offer<'static> = Offer { writes: WriteList::EMPTY, reply: None, invalidate: None };

    /// Takes the offer of a version 1 call. The responder chooses the handle to invalidate (RFC
    /// 8797 section 4.1): it takes the first of all.
    pub(super) fn of_v1(chunks: &Chunks<'a>) -> Offer<'a> {
        let &Chunks { reads, writes, reply } = chunks;
        let room = writes.chunks().chain(reply).flat_map(|c| c.segments());
        let mut all = reads.segments().map(|s| s.target).chain(room).map(|s| s.handle);
        Offer { writes, reply, invalidate: all.next() }
    }

    pub(super) fn of_v2(header: &v2::Header<'a>) -> Offer<'a> {
        let invalidate = header.invalidate();
        match &header.body {
            v2::Body::CallInline { chunks, .. } | v2::Body::CallExternal { chunks, .. } => {
                Offer { writes: chunks.writes, reply: chunks.reply, invalidate }
            }
            _ => Offer::NONE,
        }
    }

    /// Returns true if the offer has any room for the reply.
    pub(super) fn has_room(&self) -> bool {
        !self.writes.is_empty() || self.reply.is_some()
    }
}

/// An [`Offer`] that outlives the message it came in.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Bytes as they were received: the entries of the Write list, and the Reply chunk.
    bytes: Vec<u8>,
    /// Length of the Write list's entries in bytes.
    list: usize,
    write_chunks: usize,
    has_reply: bool,
    invalidate: Option<Handle>,
}

impl Kept {
    /// Stores this offer in place of the previous offer.
    pub(super) fn keep(&mut self, offer: &Offer<'_>) {
        self.bytes.clear();
        self.write_chunks = offer.writes.len();
        self.has_reply = offer.reply.is_some();
        self.invalidate = offer.invalidate;
        if offer.has_room() {
            let put = |w: &mut Writer<'_>| {
                offer.writes.encode_entries(w);
                let list = w.at();
                offer.reply.iter().for_each(|chunk| chunk.encode_segments(w));
                list
            };
            let len = measure(|w| self.list = put(w));
            self.bytes.resize(len, 0);
            put(&mut Writer::new(&mut self.bytes));
        } else {
            self.list = 0;
        }
    }

    /// Returns the number of Write chunks.
    pub(super) fn write_chunks(&self) -> usize {
        self.write_chunks
    }

    /// Restores the offer that was kept.
    pub(super) fn offer(&self) -> Offer<'_> {
        let (list, reply) = self.bytes.split_at_checked(self.list).unwrap_or((&[], &[]));
        Offer {
            writes: WriteList::received(list, self.write_chunks),
            reply: self.has_reply.then(|| WriteChunk::received(reply)),
            invalidate: self.invalidate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segment;

    #[test]
    fn test_offer_of_chunks_is_stored_unchanged() {
        let segment = |n| Segment { handle: Handle(n), length: 100 + n, offset: n.into() };
        let segments: Vec<_> = (1..=4).map(segment).collect();
        let chunk = |of: &'static [usize]| of.iter().map(|&i| segments[i]).collect::<Vec<_>>();
        let (two, none, one) = (chunk(&[0, 1]), chunk(&[]), chunk(&[3]));
        let list = [WriteChunk::new(&two).unwrap(), WriteChunk::new(&none).unwrap()];
        let reply = WriteChunk::new(&one).unwrap();
        let mut kept = Kept::default();
        for (writes, reply, invalidate) in [
            (&list[..], Some(reply), Some(Handle(4))),
            (&list[..], None, None),
            (&[], Some(reply), Some(Handle(1))),
            (&[], Some(WriteChunk::EMPTY), None),
            (&[], None, None),
        ] {
            let offer = Offer { writes: WriteList::new(writes), reply, invalidate };
            kept.keep(&offer);
            let again = kept.offer();
            assert_eq!(again.writes, offer.writes);
            assert_eq!(again.writes.len(), writes.len());
            assert_eq!(kept.write_chunks(), writes.len());
            assert_eq!((again.reply, again.invalidate), (reply, invalidate));
        }
    }
}
