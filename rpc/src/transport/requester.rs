//! Calls of this end: into memory, and their replies out of memory.

use std::sync::Arc;

use arrayvec::ArrayVec;
use heddle_rpcrdma::Xid;
use heddle_rpcrdma::binding::{Binding, Chunks, Stream};
use heddle_rpcrdma::conn::{
    self, CHUNKS_MAX, Call, CallId, CallRefused, IncomingReply, ReplyRoom, ReplyStream, Sge,
};
use heddle_rpcrdma::rpc::{Procedure, Reply};

use super::layout::{Laid, lay_out, piece};
use super::link::Link;
use super::store::Stored;
use crate::body::{Body, Item};
use crate::client::CallError;
use crate::client::calls::Outgoing;
use crate::memory::Buffer;
use crate::message::Message;

/// Length in bytes of the longest reply without results: PROG_MISMATCH, with a verifier of
/// AUTH_NONE. The header of a reply with results is shorter.
const REPLY_HEADER: u32 = 32;

/// Approximate length in bytes of the transport header of a reply in a Send. If a Send has less
/// room left, the reply needs room elsewhere.
const TRANSPORT_HEADER: u32 = 256;

/// Length in bytes of a Send that any peer takes before it announces more.
const SEND_MIN: u32 = 1024;

/// Length in bytes of a call that fits into a Send whatever the peer announces, if its header has
/// few chunks.
const INLINE: usize = (SEND_MIN - TRANSPORT_HEADER) as usize;

/// The result of an attempt to make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// The connection has the call.
    Yes,
    /// This call and the others must be made later.
    Later,
    /// An abandoned call with the same XID is still on the wire. This call is made when that call
    /// has its reply; other calls need not wait for it.
    Again,
}

/// A call of this end that the connection has.
#[derive(Debug)]
pub(crate) struct Active {
    id: CallId,
    xid: Xid,
    procedure: Procedure,
    /// Room for the whole reply.
    whole: Option<Buffer>,
    laid: Laid,
    /// Kept also because items of the message are where the application has put them.
    message: Arc<Message>,
}

impl Link {
    /// Makes a call.
    ///
    /// # Errors
    /// Returns an error when the call cannot be made at all.
    pub(crate) fn call(&mut self, xid: Xid, outgoing: &Outgoing) -> Result<Made, CallError> {
        let Outgoing { procedure, message, results } = outgoing;
        let (has_reply, results_max) = (results.is_some(), results.unwrap_or(0));
        // A call without a reply has room for none.
        let rooms = if has_reply { message.rooms() } else { &[] };
        let whole = match self.whole(results_max)? {
            Whole::None => None,
            Whole::Room(buffer) => Some(buffer),
            Whole::Later => return Ok(Made::Later),
        };
        // Many chunks lengthen the header. If the call does not fit into a Send because of them, it
        // gets memory when that is registered (`Store::promote`).
        let in_sends = message.own_len() <= INLINE;
        let mut laid = self.spare.pop().unwrap_or_default();
        if lay_out(message, in_sends, &self.memory, &mut self.store, &mut laid).is_err() {
            self.spare.push(laid);
            return self.wait_for_memory(message.weight());
        }
        let mut name = |buffer: &Buffer| {
            let id = self.store.put(Stored::Registered(buffer.clone()));
            laid.ids.push(id);
            piece(id, 0, buffer.len())
        };
        // With more results than a call can have, the connection refuses the call as well.
        let taken = rooms.iter().take(CHUNKS_MAX + 1);
        let results: ArrayVec<[Sge; 1], { CHUNKS_MAX + 1 }> = taken.map(|b| [name(b)]).collect();
        let results: ArrayVec<&[Sge], { CHUNKS_MAX + 1 }> =
            results.iter().map(<[Sge; 1]>::as_slice).collect();
        let all = whole.as_ref().map(|buffer| [name(buffer)]);
        let reply = ReplyRoom {
            stream_max: Some(results_max.saturating_add(REPLY_HEADER)),
            items: &results,
            whole: all.as_ref().map_or(&[], <[Sge; 1]>::as_slice),
        };
        let items = message.placeable();
        let reply = has_reply.then_some(reply);
        let call = Call { xid, stream: &laid.stream, items, reply, deadline: None };
        match self.conn.call(&call) {
            Ok(id) => {
                let active = Active {
                    id,
                    xid,
                    procedure: *procedure,
                    whole,
                    laid,
                    message: message.clone(),
                };
                if let Some(slot) = self.active.get_mut(id.index()) {
                    *slot = Some(active);
                    self.active_len += 1;
                }
                Ok(Made::Yes)
            }
            Err(refused) => {
                self.reclaim(laid);
                match refused {
                    CallRefused::Busy | CallRefused::Closed => Ok(Made::Later),
                    CallRefused::Xid => Ok(Made::Again),
                    CallRefused::Stream | CallRefused::Item(_) | CallRefused::Items => {
                        Err(CallError::Refused(refused))
                    }
                }
            }
        }
    }

    /// Returns room for a whole reply with up to `stream` bytes of results, if the reply may not
    /// fit into a Send.
    fn whole(&self, stream: u32) -> Result<Whole, CallError> {
        if stream <= SEND_MIN - TRANSPORT_HEADER {
            return Ok(Whole::None);
        }
        // Results of unknown length have at most 2^32 - 4 bytes, for which no memory has room.
        let len =
            stream.saturating_add(REPLY_HEADER).min(u32::MAX - 3).next_multiple_of(4) as usize;
        match self.memory.take(len) {
            Ok(buffer) => Ok(Whole::Room(buffer)),
            Err(_) => self.wait_for_memory(len).map(|_| Whole::Later),
        }
    }

    /// Lets a call wait for `len` bytes until other calls have ended.
    ///
    /// # Errors
    /// Returns an error when no other calls are under way.
    fn wait_for_memory(&self, len: usize) -> Result<Made, CallError> {
        if self.active_len == 0 {
            return Err(CallError::NoMemory(crate::memory::NoMemory { len }));
        }
        Ok(Made::Later)
    }

    /// Gives up a call. Its memory comes back when the peer can no longer reach the memory.
    pub(crate) fn cancel(&mut self, xid: Xid) {
        let mut active = self.active.iter().flatten();
        if let Some(id) = active.find(|active| active.xid == xid).map(|active| active.id) {
            self.conn.cancel(id);
        }
    }

    /// Takes back a call that has ended and whose memory is safe.
    pub(super) fn release(&mut self, call: CallId) -> Option<Active> {
        let slot = self.active.get_mut(call.index())?;
        let mut active = slot.take_if(|active| active.id == call)?;
        self.active_len -= 1;
        self.reclaim(std::mem::take(&mut active.laid));
        Some(active)
    }

    pub(super) fn failed(
        &mut self,
        call: CallId,
        error: conn::CallError,
    ) -> Option<(Xid, CallError)> {
        let active = self.release(call)?;
        // A lost call is made again, and no application waits for a cancelled call, so neither is
        // reported.
        let told = !matches!(error, conn::CallError::Lost | conn::CallError::Cancelled);
        told.then_some((active.xid, CallError::Transport(error)))
    }

    /// Ends a call without a reply that was sent. Returns its XID.
    pub(super) fn sent_off(&mut self, call: CallId) -> Option<Xid> {
        self.release(call).map(|active| active.xid)
    }

    pub(super) fn replied(
        &mut self,
        call: CallId,
        reply: IncomingReply,
        binding: &dyn Binding,
    ) -> Option<(Xid, Result<Body, CallError>)> {
        let stream = match reply.stream {
            ReplyStream::Buffer { buffer, length } => {
                self.store.remove(buffer).and_then(|stored| stored.into_bytes(length as usize))
            }
            ReplyStream::Chunk { length } => {
                let active = self.active.get(call.index())?.as_ref();
                let whole = active.and_then(|a| a.whole.as_ref());
                whole.and_then(|b| b.part(0, length as usize).ok()).map(|part| part.to_vec())
            }
        };
        let active = self.release(call)?;
        let outcome = match stream {
            Some(stream) => results(&active, stream, reply.filled.as_slice(), binding),
            None => Err(CallError::Misplaced),
        };
        Some((active.xid, outcome))
    }
}

/// Room for a whole reply.
enum Whole {
    /// The reply needs no room.
    None,
    Room(Buffer),
    /// There will be room later.
    Later,
}

/// Returns the results of a reply, which has filled `filled` bytes of each room.
fn results(
    active: &Active,
    mut stream: Vec<u8>,
    filled: &[u32],
    binding: &dyn Binding,
) -> Result<Body, CallError> {
    let (reply, rest) = Reply::decode(&stream).map_err(CallError::BadReply)?;
    if reply.xid != active.xid {
        return Err(CallError::Misplaced);
    }
    if let Some(error) = CallError::of(&reply.body) {
        return Err(error);
    }
    let header = stream.len() - rest.len();
    let walk = Stream::new(rest, 0, Chunks::Write(filled));
    let found = binding.results(active.procedure, walk).map_err(CallError::BadResults)?;
    // A responder must place an eligible result for which there is room (RFC 8166 section 6.1).
    let mut rooms = filled.iter().zip(active.message.rooms()).zip(found.as_slice());
    if rooms.any(|((&bytes, room), item)| bytes == 0 && item.length > 0 && !room.is_empty()) {
        return Err(CallError::Misplaced);
    }
    let mut items = Vec::new();
    for (index, &bytes) in filled.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
        let item = found.as_slice().get(index).filter(|item| item.length == bytes);
        let data = active.message.rooms().get(index).and_then(|b| b.part(0, bytes as usize).ok());
        let (Some(item), Some(data)) = (item, data) else { return Err(CallError::Misplaced) };
        items.push(Item { position: item.offset, data });
    }
    stream.drain(..header);
    Ok(Body::received(stream, items)?)
}
