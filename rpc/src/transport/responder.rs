//! Calls of the peer: out of memory, and their replies into memory.

use std::sync::Arc;

use heddle_rpcrdma::conn::{IncomingCall, ServedId};
use heddle_rpcrdma::reduce::chunk_fits;
use heddle_rpcrdma::v2::Refusal;
use heddle_rpcrdma::xdr::padded;

use super::layout::{Laid, lay_out};
use super::link::{Link, LinkEvent};
use super::store::Stored;
use crate::body::Item;
use crate::memory::{Buffer, NoMemory, bytes};
use crate::message::Message;

impl Link {
    /// Handles a received call. Returns the event for it, if the call is valid.
    pub(super) fn called(&mut self, call: &IncomingCall) -> Option<LinkEvent> {
        let parts = match self.store.remove(call.buffer) {
            Some(Stored::Registered(buffer)) => split(&buffer, call),
            // The call has come in one Send.
            Some(stored) => stored.into_bytes(call.length as usize).map(|all| (all, Vec::new())),
            None => {
                let _ = self.conn.refuse(call.id, Refusal::System);
                return None;
            }
        };
        // The connection compares the XID of a stream that comes in Sends. A stream in a Read chunk
        // is seen here for the first time (RFC 8166 section 4.2.1).
        let is_its_own = |(stream, _): &(Vec<u8>, _)| stream.starts_with(&call.xid.0.to_be_bytes());
        let Some((stream, items)) = parts.filter(is_its_own) else {
            let _ = self.conn.refuse(call.id, Refusal::BadXdr);
            return None;
        };
        Some(LinkEvent::Call { call: call.id.to_bits(), stream, items })
    }

    /// Lets replies that wait, and then calls, use memory that may have come back. Returns true if
    /// any of them goes on.
    pub(crate) fn memory_returned(&mut self) -> bool {
        let late = std::mem::take(&mut self.late);
        let waited = late.len();
        for (call, message) in late {
            self.reply(call, &message);
        }
        let calls = self.conn.memory_returned(&mut self.store);
        let any = calls || self.late.len() < waited;
        if any {
            self.post();
        }
        any
    }

    /// Returns true if calls or replies wait for memory.
    pub(crate) fn is_waiting(&self) -> bool {
        self.conn.waiting() > 0 || !self.late.is_empty()
    }

    /// Stops waiting for memory, so that other links have their turn.
    pub(crate) fn leave(&self) {
        self.store.leave();
    }

    /// Replies to a call. A reply for which there is no memory waits, if it is short enough to be
    /// certain of finding some; otherwise the transport refuses the call. A call that was lost with
    /// its connection is ignored.
    pub(crate) fn reply(&mut self, call: u64, message: &Arc<Message>) {
        let id = ServedId::from_bits(call);
        // In version 1 `dismiss` fails, so the message is sent as a reply without results.
        if message.is_silent() && self.conn.dismiss(id).is_ok() {
            return;
        }
        let own = message.body().items().iter().all(|i| self.has(&i.data));
        let inline = self.conn.reply_inline_max(id, message.placeable()) as usize;
        let in_sends = message.weight() <= inline;
        let mut laid = self.spare.pop().unwrap_or_default();
        let (memory, store) = (&self.served_memory, &mut self.store);
        match own.then(|| lay_out(message, in_sends, memory, store, &mut laid)) {
            Some(Ok(())) => {}
            Some(Err(NoMemory { len })) if len <= self.served_memory.for_replies() => {
                self.spare.push(laid);
                self.late.push_back((call, message.clone()));
                return;
            }
            Some(Err(_)) | None => {
                self.spare.push(laid);
                let _ = self.conn.refuse(id, Refusal::System);
                return;
            }
        }
        let replied = self.conn.reply(id, &laid.stream, message.placeable());
        if self.replies.len() <= id.index() {
            self.replies.resize_with(id.index() + 1, || None);
        }
        let Some(slot) = self.replies.get_mut(id.index()).filter(|_| replied.is_ok()) else {
            self.reclaim(laid);
            let _ = self.conn.refuse(id, Refusal::System);
            return;
        };
        *slot = Some((message.clone(), laid));
    }

    /// Returns true if a buffer is in memory from which this end sends.
    fn has(&self, buffer: &Buffer) -> bool {
        self.served_memory.has(buffer) || self.memory.has(buffer)
    }

    /// Counts a call that gets no reply, because the connection is about to end.
    pub(crate) fn leave_call(&mut self) {
        self.left += 1;
    }

    /// Returns true if all reported calls are replied to, and the peer has the replies.
    pub(crate) fn has_replied(&self) -> bool {
        let sent = self.replies.iter().all(Option::is_none);
        sent && self.late.is_empty() && self.conn.serving() == self.left
    }

    /// Refuses a call whose chunks do not belong to its items.
    pub(crate) fn refuse(&mut self, call: u64) {
        let _ = self.conn.refuse(ServedId::from_bits(call), Refusal::BadXdr);
    }

    /// Frees the memory of a reply.
    pub(super) fn replied_to(&mut self, id: ServedId) {
        if let Some((_, laid)) = self.replies.get_mut(id.index()).and_then(Option::take) {
            self.reclaim(laid);
        }
    }

    /// Takes back the lists of a message that is no longer needed.
    pub(super) fn reclaim(&mut self, mut laid: Laid) {
        laid.clear(&mut self.store);
        // Messages under way bound the number of spare lists.
        self.spare.push(laid);
    }
}

/// Splits a call into its bytes outside Read chunks, and the items that came in Read chunks. In
/// version 1 a chunk may also hold its item's padding: the word in front of the item states the
/// item's length.
fn split(buffer: &Buffer, call: &IncomingCall) -> Option<(Vec<u8>, Vec<Item>)> {
    let length = call.length as usize;
    if call.reads.as_slice().is_empty() {
        let mut stream = bytes(length);
        buffer.read(0, &mut stream).ok()?;
        return Some((stream, Vec::new()));
    }
    let apart = call.reads.as_slice().iter().map(|item| item.length as usize).sum();
    let mut stream = Vec::with_capacity(length.saturating_sub(apart));
    let (mut items, mut from) = (Vec::new(), 0);
    let take = |from: usize, to: usize, stream: &mut Vec<u8>| {
        let at = stream.len();
        stream.resize(at + to.checked_sub(from)?, 0);
        buffer.read(from, stream.get_mut(at..)?).ok()
    };
    for item in call.reads.as_slice() {
        let offset = item.offset as usize;
        take(from, offset, &mut stream)?;
        let told = stream.last_chunk().map(|word| u32::from_be_bytes(*word))?;
        let bytes = if chunk_fits(item.length, told, true) { told } else { item.length };
        items.push(Item { position: item.offset, data: buffer.part(offset, bytes as usize).ok()? });
        from = offset.checked_add(padded(bytes as usize))?;
    }
    take(from, length, &mut stream)?;
    Some((stream, items))
}
