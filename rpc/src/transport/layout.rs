//! Lays out messages as pieces of registered memory. The bytes of a message are copied once; a
//! separate item becomes a piece at its own place. The bytes of a message of which everything but
//! separate items goes in Sends need no memory: they are copied when they are sent.
//!
//! ```text
//!   registered   header │ bytes       │ padding │ bytes  │
//!   pieces       ───────────────┐  item          ┌────────
//! ```

use std::sync::Arc;

use heddle_rpcrdma::conn::{BufferId, Sge};
use heddle_rpcrdma::xdr::padded;

use super::store::{Store, Stored};
use crate::memory::{Memory, NoMemory};
use crate::message::Message;

/// A message in a connection's memory. Other messages reuse its lists.
#[derive(Debug, Default)]
pub(crate) struct Laid {
    /// Pieces of the message, in order.
    pub(crate) stream: Vec<Sge>,
    /// Names to be given back when the message is no longer needed.
    pub(crate) ids: Vec<BufferId>,
}

impl Laid {
    /// Gives back the memory of a message that is no longer needed.
    pub(crate) fn clear(&mut self, store: &mut Store) {
        self.stream.clear();
        self.ids.drain(..).for_each(|id| drop(store.remove(id)));
    }
}

/// Puts a message into memory, and records its place in `laid`, which is empty before. The messages
/// of a server are replies; the memory of a client keeps no part for replies. If `in_sends`, and only
/// separate items may be placed, all bytes of the message but theirs go in one Send, or in several,
/// and by no other operation.
///
/// # Errors
/// [`NoMemory`] for the bytes that are copied.
pub(crate) fn lay_out(
    message: &Arc<Message>,
    in_sends: bool,
    memory: &Memory,
    store: &mut Store,
    laid: &mut Laid,
) -> Result<(), NoMemory> {
    let (header, body) = (message.header(), message.body());
    // However short an item that may be placed is, it goes by Write where the peer has room for it.
    if in_sends && message.is_plain() {
        lay_out_short(message, store, laid);
        return Ok(());
    }
    let padding: usize = body.items().iter().map(|i| padded(i.data.len()) - i.data.len()).sum();
    let len = header.len() + body.bytes().len() + padding;
    let buffer = memory.take_for_reply(store.share(), len)?;
    let id = store.put(Stored::Registered(buffer.clone()));
    laid.ids.push(id);
    // The offset of the next byte to put, and the offset of the first byte without a piece.
    let (mut at, mut from) = (0, 0);
    let put = |bytes: &[u8], at: &mut usize| {
        // The buffer was taken for all of the bytes, so the write fits.
        let inside = buffer.write(*at, bytes);
        debug_assert!(inside.is_ok());
        *at += bytes.len();
    };
    put(header, &mut at);
    let (mut bytes, mut passed) = (body.bytes(), 0);
    for item in body.items() {
        // The number of bytes that precede the item and are not put yet.
        let before = (item.position as usize).saturating_sub(passed).min(bytes.len());
        let (front, rest) = bytes.split_at(before);
        put(front, &mut at);
        laid.stream.push(piece(id, from, at - from));
        let data = store.put(Stored::Registered(item.data.clone()));
        laid.ids.push(data);
        laid.stream.push(piece(data, 0, item.data.len()));
        from = at;
        let whole = padded(item.data.len());
        put(&[0; 3][..(whole - item.data.len()).min(3)], &mut at);
        (bytes, passed) = (rest, passed + before + whole);
    }
    put(bytes, &mut at);
    if at > from {
        laid.stream.push(piece(id, from, at - from));
    }
    Ok(())
}

/// Names the bytes of a message where they are, and its separate items.
fn lay_out_short(message: &Arc<Message>, store: &mut Store, laid: &mut Laid) {
    let (header, all) = (message.header().len(), message.own_len());
    let own = store.put(Stored::Short(message.clone()));
    laid.ids.push(own);
    // The bytes of the message that have a piece, and those of the items before them.
    let (mut from, mut passed) = (0, 0);
    for item in message.body().items() {
        let to = (header + item.position as usize).saturating_sub(passed).clamp(from, all);
        laid.stream.push(piece(own, from, to - from));
        let data = store.put(Stored::Registered(item.data.clone()));
        laid.ids.push(data);
        laid.stream.push(piece(data, 0, item.data.len()));
        (from, passed) = (to, passed + item.data.len());
    }
    if all > from {
        laid.stream.push(piece(own, from, all - from));
    }
}

/// Returns a piece of a buffer. No buffer is longer than a message, so the length fits.
pub(crate) fn piece(buffer: BufferId, offset: usize, len: usize) -> Sge {
    let length = u32::try_from(len).unwrap_or(u32::MAX);
    Sge { buffer, offset: offset as u64, length }
}
