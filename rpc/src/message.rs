//! RPC messages to be sent: the header, and the body after it.

use std::sync::Arc;

use arrayvec::ArrayVec;
use heddle_rpcrdma::Xid;
use heddle_rpcrdma::binding::{self, Binding, Chunks, ITEMS_MAX, Items, Stream};
use heddle_rpcrdma::reduce;
use heddle_rpcrdma::rpc::{Auth, AuthSysError, Call, Procedure, Reply, ReplyBody, Status};
use heddle_rpcrdma::xdr::NoRoom;

use crate::body::Body;
use crate::credential::Credential;
use crate::memory::Buffer;

/// A call or a reply. A message does not change once it is made, since it may be sent again.
#[derive(Debug)]
pub(crate) struct Message {
    header: Vec<u8>,
    body: Body,
    placeable: Vec<reduce::Item>,
    /// Room for the results of a call that may be placed, in their order.
    rooms: Vec<Buffer>,
    /// True for the end of a call without a reply: nothing is sent.
    is_silent: bool,
}

impl Message {
    /// Creates a call of `procedure` with `arguments`, and `rooms` for the results that may be
    /// placed, in their order.
    pub(crate) fn call(
        xid: Xid,
        procedure: Procedure,
        credential: &Credential,
        (arguments, rooms): (Body, Vec<Buffer>),
        binding: &dyn Binding,
    ) -> Result<Arc<Message>, AuthSysError> {
        let header = credential.encoded(|cred| {
            let call = Call { xid, procedure, cred, verf: Auth::NONE };
            encoded(|out| call.encode(out))
        })?;
        let found = items(binding, Part::Arguments(procedure), &arguments);
        let placeable = behind(&header, found.ok());
        Ok(Arc::new(Message { header, body: arguments, placeable, rooms, is_silent: false }))
    }

    /// Creates the end of a call without a reply. In version 1, where every call has a reply, this
    /// message is an actual reply without results.
    pub(crate) fn silence(xid: Xid) -> Arc<Message> {
        let reply = Reply::accepted(xid, Status::Success);
        let header = encoded(|out| reply.encode(out));
        let (body, placeable) = (Body::new(), Vec::new());
        Arc::new(Message { header, body, placeable, rooms: Vec::new(), is_silent: true })
    }

    /// Returns true if the message is not sent where the version allows calls without a reply.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Creates a reply without results.
    pub(crate) fn refusal(xid: Xid, body: ReplyBody<'_>) -> Arc<Message> {
        let reply = Reply { xid, body };
        let header = encoded(|out| reply.encode(out));
        let (body, placeable) = (Body::new(), Vec::new());
        Arc::new(Message { header, body, placeable, rooms: Vec::new(), is_silent: false })
    }

    /// Creates the reply to an executed call of `procedure`.
    pub(crate) fn results(
        xid: Xid,
        procedure: Procedure,
        results: Body,
        binding: &dyn Binding,
    ) -> Arc<Message> {
        let reply = Reply::accepted(xid, Status::Success);
        let header = encoded(|out| reply.encode(out));
        let found = items(binding, Part::Results(procedure), &results);
        let placeable = behind(&header, found.ok());
        Arc::new(Message { header, body: results, placeable, rooms: Vec::new(), is_silent: false })
    }

    /// Returns the bytes of the RPC header.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header
    }

    /// Returns the body after the header.
    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    /// Returns the items that may be placed, by their offsets in the whole message. If the body
    /// does not fit its procedure, no item may be placed: the body goes within the message, and the
    /// peer detects the fault.
    pub(crate) fn placeable(&self) -> &[reduce::Item] {
        &self.placeable
    }

    /// Returns the room for the results of a call that may be placed.
    pub(crate) fn rooms(&self) -> &[Buffer] {
        &self.rooms
    }

    /// Returns the same message with all bytes in one place, outside registered memory, so that it
    /// can be kept.
    pub(crate) fn flat(message: &Arc<Message>) -> Arc<Message> {
        if message.body.items().is_empty() {
            return message.clone();
        }
        let Message { header, body, placeable, is_silent, .. } = &**message;
        let (header, placeable, is_silent) = (header.clone(), placeable.clone(), *is_silent);
        // Only replies are kept, and they have no rooms.
        Arc::new(Message { header, body: body.flat(), placeable, rooms: Vec::new(), is_silent })
    }

    /// Returns `len` bytes from `off` on of a message without its separate items: the bytes in its
    /// header, and the bytes in its body.
    pub(crate) fn part(&self, off: usize, len: usize) -> Option<[&[u8]; 2]> {
        let (header, body) = (&self.header, self.body.bytes());
        let split = |at: usize| (at.min(header.len()), at.saturating_sub(header.len()));
        let ((begin, first), (end, last)) = (split(off), split(off.checked_add(len)?));
        Some([header.get(begin..end)?, body.get(first..last)?])
    }

    /// Returns the number of bytes that belong to no separate item.
    pub(crate) fn own_len(&self) -> usize {
        self.header.len() + self.body.bytes().len()
    }

    /// Returns true if everything but the separate items can go in Sends, whatever goes into chunks:
    /// only separate items may be placed, and none of them has padding, which would be a part of
    /// neither.
    pub(crate) fn is_plain(&self) -> bool {
        let items = self.body.items();
        let is_apart = |placeable: &&reduce::Item| {
            items
                .iter()
                .any(|i| self.header.len() + i.position as usize == placeable.offset as usize)
        };
        self.placeable.iter().all(|item| is_apart(&item))
            && items.iter().all(|i| i.data.len().is_multiple_of(4))
    }

    /// Returns the number of bytes that keeping the message takes.
    pub(crate) fn weight(&self) -> usize {
        let apart: usize = self.body.items().iter().map(|i| i.data.len()).sum();
        self.own_len() + apart
    }
}

/// Arguments or results, with their procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Arguments(Procedure),
    Results(Procedure),
}

/// Returns the items of a body that may be placed.
///
/// # Errors
/// Returns an error when the body does not fit its procedure, or has a separate item that may not
/// be placed.
pub(crate) fn items(
    binding: &dyn Binding,
    part: Part,
    body: &Body,
) -> Result<Items, binding::Error> {
    let item = |i: &crate::body::Item| reduce::Item {
        offset: i.position,
        length: u32::try_from(i.data.len()).unwrap_or(u32::MAX),
    };
    // No walk passes more items than fit, so one more stands for all that do not.
    let apart = body.items().iter().take(ITEMS_MAX + 1).map(item);
    let apart: ArrayVec<_, { ITEMS_MAX + 1 }> = apart.collect();
    let chunks = Chunks::Read { chunks: &apart, padding: false };
    let stream = Stream::new(body.bytes(), 0, chunks);
    match part {
        Part::Arguments(procedure) => binding.arguments(procedure, stream),
        Part::Results(procedure) => binding.results(procedure, stream),
    }
}

/// Returns the items of a body that follows this header. An empty item goes into no chunk but holds
/// the place of its chunk, so that the next item goes into the next chunk.
fn behind(header: &[u8], items: Option<Items>) -> Vec<reduce::Item> {
    let header = u32::try_from(header.len()).unwrap_or(u32::MAX);
    let items = items.unwrap_or_default();
    let moved = |i: &reduce::Item| {
        let offset = i.offset.checked_add(header)?;
        Some(reduce::Item { offset, ..*i })
    };
    items.as_slice().iter().filter_map(moved).collect()
}

/// Length of the longest header in bytes: six words, and two fields of authentication.
const HEADER_MAX: usize = 6 * 4 + 2 * (8 + 400);

/// Length of most headers in bytes: clearing room for the longest would cost more than they do.
const HEADER_USUAL: usize = 80;

/// Returns the bytes that `encode` writes.
fn encoded(encode: impl Fn(&mut [u8]) -> Result<usize, NoRoom>) -> Vec<u8> {
    let mut usual = [0; HEADER_USUAL];
    if let Ok(len) = encode(&mut usual) {
        return usual.get(..len).unwrap_or(&usual).to_vec();
    }
    let mut room = [0; HEADER_MAX];
    let len = encode(&mut room);
    debug_assert!(len.is_ok(), "longer than any header");
    room.get(..len.unwrap_or(0)).unwrap_or(&room).to_vec()
}
