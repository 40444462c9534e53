//! Calls of the peer's: out of memory, and their replies into it.

use std::sync::Arc;

use heddle_rpcrdma::conn::{IncomingCall, ServedId};
use heddle_rpcrdma::reduce::chunk_fits;
use heddle_rpcrdma::v2::Refusal;
use heddle_rpcrdma::xdr::padded;

use super::layout::{Laid, lay_out};
use super::link::{Link, LinkEvent};
use super::store::Stored;
use crate::body::Item;
use crate::memory::{Buffer, NoMemory, octets};
use crate::message::Message;

impl Link {
    /// A call has come: what is told of it.
    pub(super) fn called(&mut self, call: &IncomingCall) -> Option<LinkEvent> {
        let parts = match self.store.remove(call.buffer) {
            Some(Stored::Registered(buffer)) => split(&buffer, call),
            // It has come in one Send.
            Some(stored) => stored.into_octets(call.length as usize).map(|all| (all, Vec::new())),
            None => {
                let _ = self.conn.refuse(call.id, Refusal::System);
                return None;
            }
        };
        // The connection compares the XID of a stream that comes in Sends. A stream in a Read chunk is
        // first seen here (RFC 8166 section 4.2.1).
        let is_its_own = |(stream, _): &(Vec<u8>, _)| stream.starts_with(&call.xid.0.to_be_bytes());
        let Some((stream, items)) = parts.filter(is_its_own) else {
            let _ = self.conn.refuse(call.id, Refusal::BadXdr);
            return None;
        };
        Some(LinkEvent::Call { call: call.id.to_bits(), stream, items })
    }

    /// Memory may be there again: replies go on that wait for it, and then calls; whether any does.
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

    /// Whether calls or replies wait for memory.
    pub(crate) fn is_waiting(&self) -> bool {
        self.conn.waiting() > 0 || !self.late.is_empty()
    }

    /// It waits for memory no more: others have their turn.
    pub(crate) fn leave(&self) {
        self.store.leave();
    }

    /// Replies to a call. A reply for which there is no memory waits, if it is short enough to find some
    /// for certain; otherwise the transport refuses. A call that is gone with its connection is passed over.
    pub(crate) fn reply(&mut self, call: u64, message: &Arc<Message>) {
        let id = ServedId::from_bits(call);
        // Version 1 takes no silence, and has the message instead.
        if message.is_silent() && self.conn.dismiss(id).is_ok() {
            return;
        }
        let own = message.body().items().iter().all(|i| self.has(&i.data));
        let inline = self.conn.reply_inline_max(id) as usize;
        let mut laid = self.spare.pop().unwrap_or_default();
        let (memory, store) = (&self.served_memory, &mut self.store);
        match own.then(|| lay_out(message, inline, memory, store, &mut laid)) {
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

    /// Whether a buffer is of memory that this end sends from.
    fn has(&self, buffer: &Buffer) -> bool {
        self.served_memory.has(buffer) || self.memory.has(buffer)
    }

    /// A call that nobody replies to: the connection is about to end.
    pub(crate) fn leave_call(&mut self) {
        self.left += 1;
    }

    /// Whether all calls that were told of are replied to, and the replies with the peer.
    pub(crate) fn has_replied(&self) -> bool {
        let sent = self.replies.iter().all(Option::is_none);
        sent && self.late.is_empty() && self.conn.serving() == self.left
    }

    /// Refuses a call whose chunks are not of its items.
    pub(crate) fn refuse(&mut self, call: u64) {
        let _ = self.conn.refuse(ServedId::from_bits(call), Refusal::BadXdr);
    }

    /// The memory of a reply is free.
    pub(super) fn replied_to(&mut self, id: ServedId) {
        if let Some((_, laid)) = self.replies.get_mut(id.index()).and_then(Option::take) {
            self.reclaim(laid);
        }
    }

    /// A message of ours is not needed any more.
    pub(super) fn reclaim(&mut self, mut laid: Laid) {
        laid.clear(&mut self.store);
        // There are no more than messages at a time.
        self.spare.push(laid);
    }
}

/// A call's octets without those of items that came in Read chunks, and these. In version 1 a chunk may
/// have its item's padding: how long the item is, the word in front of it says.
fn split(buffer: &Buffer, call: &IncomingCall) -> Option<(Vec<u8>, Vec<Item>)> {
    let length = call.length as usize;
    if call.reads.as_slice().is_empty() {
        let mut stream = octets(length);
        buffer.read(0, &mut stream).ok()?;
        return Some((stream, Vec::new()));
    }
    let (mut stream, mut items, mut from) = (Vec::new(), Vec::new(), 0);
    let take = |from: usize, to: usize, stream: &mut Vec<u8>| {
        let at = stream.len();
        stream.resize(at + to.checked_sub(from)?, 0);
        buffer.read(from, stream.get_mut(at..)?).ok()
    };
    for item in call.reads.as_slice() {
        let offset = item.offset as usize;
        take(from, offset, &mut stream)?;
        let told = stream.last_chunk().map(|word| u32::from_be_bytes(*word))?;
        let octets = if chunk_fits(item.length, told, true) { told } else { item.length };
        items
            .push(Item { position: item.offset, data: buffer.part(offset, octets as usize).ok()? });
        from = offset.checked_add(padded(octets as usize))?;
    }
    take(from, length, &mut stream)?;
    Some((stream, items))
}
