//! Messages as pieces of registered memory: what is in octets is copied once, what lies apart is named
//! where it is. A short one without items is named as it is, and copied when it is sent.
//!
//! ```text
//!   registered   header │ octets      │ padding │ octets │
//!   pieces       ───────────────┐  item          ┌────────
//! ```

use std::sync::Arc;

use heddle_rpcrdma::conn::{BufferId, Sge};
use heddle_rpcrdma::xdr::padded;

use super::store::{Store, Stored};
use crate::memory::{Memory, NoMemory};
use crate::message::Message;

/// A message in a connection's memory. Its lists are used again for other messages.
#[derive(Debug, Default)]
pub(crate) struct Laid {
    /// Its pieces, in order.
    pub(crate) stream: Vec<Sge>,
    /// Names to be given back when it is not needed any more.
    pub(crate) ids: Vec<BufferId>,
}

impl Laid {
    /// It is not needed any more.
    pub(crate) fn clear(&mut self, store: &mut Store) {
        self.stream.clear();
        self.ids.drain(..).for_each(|id| drop(store.remove(id)));
    }
}

/// Puts a message into memory, and notes in `laid`, which is empty, where it is. A server's are replies; a
/// client's memory keeps nothing for them. One of up to `inline` octets, of which nothing may be placed, goes in
/// one Send for certain, or in several, and by no other operation.
///
/// # Errors
/// [`NoMemory`] for what is copied.
pub(crate) fn lay_out(
    message: &Arc<Message>,
    inline: usize,
    memory: &Memory,
    store: &mut Store,
    laid: &mut Laid,
) -> Result<(), NoMemory> {
    let (header, body) = (message.header(), message.body());
    // What may be placed goes by Write where the peer has room for it, however short it is.
    let is_whole = body.items().is_empty() && message.placeable().is_empty();
    if is_whole && message.weight() <= inline {
        let id = store.put(Stored::Short(message.clone()));
        laid.ids.push(id);
        laid.stream.push(piece(id, 0, message.weight()));
        return Ok(());
    }
    let padding: usize = body.items().iter().map(|i| padded(i.data.len()) - i.data.len()).sum();
    let len = header.len() + body.octets().len() + padding;
    let buffer = memory.take_for_reply(store.share(), len)?;
    let id = store.put(Stored::Registered(buffer.clone()));
    laid.ids.push(id);
    // Where the next octets go, and where those begin that no piece has yet.
    let (mut at, mut from) = (0, 0);
    let put = |octets: &[u8], at: &mut usize| {
        // It was taken for all of them.
        let inside = buffer.write(*at, octets);
        debug_assert!(inside.is_ok());
        *at += octets.len();
    };
    put(header, &mut at);
    let (mut octets, mut passed) = (body.octets(), 0);
    for item in body.items() {
        // Of the octets, those in front of the item.
        let before = (item.position as usize).saturating_sub(passed).min(octets.len());
        let (front, rest) = octets.split_at(before);
        put(front, &mut at);
        laid.stream.push(piece(id, from, at - from));
        let data = store.put(Stored::Registered(item.data.clone()));
        laid.ids.push(data);
        laid.stream.push(piece(data, 0, item.data.len()));
        from = at;
        let whole = padded(item.data.len());
        put(&[0; 3][..(whole - item.data.len()).min(3)], &mut at);
        (octets, passed) = (rest, passed + before + whole);
    }
    put(octets, &mut at);
    if at > from {
        laid.stream.push(piece(id, from, at - from));
    }
    Ok(())
}

/// A piece of a buffer. No buffer is longer than a message.
pub(crate) fn piece(buffer: BufferId, offset: usize, len: usize) -> Sge {
    let length = u32::try_from(len).unwrap_or(u32::MAX);
    Sge { buffer, offset: offset as u64, length }
}
