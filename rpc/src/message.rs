//! RPC messages on their way: the header and the body behind it.

use std::sync::Arc;

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::binding::{self, Binding, Chunks, Items, Stream};
use heddle_rpcrdma::reduce;
use heddle_rpcrdma::rpc::{Auth, AuthSysError, Call, Procedure, Reply, ReplyBody, Status};
use heddle_rpcrdma::xdr::NoRoom;

use crate::body::Body;
use crate::credential::Credential;

/// A call or a reply. It is not changed once it is made: it may be sent again.
#[derive(Debug)]
pub(crate) struct Message {
    header: Vec<u8>,
    body: Body,
    placeable: Vec<reduce::Item>,
    /// Of a call that has no reply: nothing is sent.
    is_silent: bool,
}

impl Message {
    /// The call of `procedure` with `arguments`.
    pub(crate) fn call(
        xid: Xid,
        procedure: Procedure,
        credential: &Credential,
        arguments: Body,
        binding: &dyn Binding,
    ) -> Result<Arc<Message>, AuthSysError> {
        let header = credential.encoded(|cred| {
            let call = Call { xid, procedure, cred, verf: Auth::NONE };
            encoded(|out| call.encode(out))
        })?;
        let found = items(binding, Part::Arguments(procedure), &arguments);
        let placeable = behind(&header, found.ok());
        Ok(Arc::new(Message { header, body: arguments, placeable, is_silent: false }))
    }

    /// What ends a call that has no reply. In version 1 every call has one, of no results: this.
    pub(crate) fn silence(xid: Xid) -> Arc<Message> {
        let reply = Reply::accepted(xid, Status::Success);
        let header = encoded(|out| reply.encode(out));
        let (body, placeable) = (Body::new(), Vec::new());
        Arc::new(Message { header, body, placeable, is_silent: true })
    }

    /// Whether it is not sent where calls may be without a reply.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// A reply without results.
    pub(crate) fn refusal(xid: Xid, body: ReplyBody<'_>) -> Arc<Message> {
        let reply = Reply { xid, body };
        let header = encoded(|out| reply.encode(out));
        let (body, placeable) = (Body::new(), Vec::new());
        Arc::new(Message { header, body, placeable, is_silent: false })
    }

    /// The reply to a call of `procedure` that was executed.
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
        Arc::new(Message { header, body: results, placeable, is_silent: false })
    }

    /// Octets of the RPC header.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header
    }

    /// What is behind it.
    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    /// Items of it that may be placed, by their offsets in the whole. Where the body is none of its
    /// procedure, nothing may: it goes within the message, and the peer finds out.
    pub(crate) fn placeable(&self) -> &[reduce::Item] {
        &self.placeable
    }

    /// The same with all its octets in one place, apart from registered memory: to be kept.
    pub(crate) fn flat(message: &Arc<Message>) -> Arc<Message> {
        if message.body.items().is_empty() {
            return message.clone();
        }
        let Message { header, body, placeable, is_silent } = &**message;
        let (header, placeable, is_silent) = (header.clone(), placeable.clone(), *is_silent);
        Arc::new(Message { header, body: body.flat(), placeable, is_silent })
    }

    /// `len` octets from `off` on of one without items: those of its header, and those of its body.
    pub(crate) fn part(&self, off: usize, len: usize) -> Option<[&[u8]; 2]> {
        let (header, body) = (&self.header, self.body.octets());
        let split = |at: usize| (at.min(header.len()), at.saturating_sub(header.len()));
        let ((begin, first), (end, last)) = (split(off), split(off.checked_add(len)?));
        Some([header.get(begin..end)?, body.get(first..last)?])
    }

    /// Octets that are kept with it.
    pub(crate) fn weight(&self) -> usize {
        let apart: usize = self.body.items().iter().map(|i| i.data.len()).sum();
        self.header.len() + self.body.octets().len() + apart
    }
}

/// Arguments or results, of which procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Arguments(Procedure),
    Results(Procedure),
}

/// The items of a body that may be placed.
///
/// # Errors
/// When the body is none of its procedure, or an item of it lies apart and is none that may.
pub(crate) fn items(
    binding: &dyn Binding,
    part: Part,
    body: &Body,
) -> Result<Items, binding::Error> {
    let item = |i: &crate::body::Item| reduce::Item {
        offset: i.position,
        length: u32::try_from(i.data.len()).unwrap_or(u32::MAX),
    };
    let apart: Vec<_> = body.items().iter().map(item).collect();
    let chunks = Chunks::Read { chunks: &apart, padding: false };
    let stream = Stream::new(body.octets(), 0, chunks);
    match part {
        Part::Arguments(procedure) => binding.arguments(procedure, stream),
        Part::Results(procedure) => binding.results(procedure, stream),
    }
}

/// Items of a body that is behind this header. One of no octets goes into no chunk, but holds the place of
/// its own: the next item is for the next chunk.
fn behind(header: &[u8], items: Option<Items>) -> Vec<reduce::Item> {
    let header = u32::try_from(header.len()).unwrap_or(u32::MAX);
    let items = items.unwrap_or_default();
    let moved = |i: &reduce::Item| {
        let offset = i.offset.checked_add(header)?;
        Some(reduce::Item { offset, ..*i })
    };
    items.as_slice().iter().filter_map(moved).collect()
}

/// Octets of the longest header: six words, and two fields of authentication.
const HEADER_MAX: usize = 6 * 4 + 2 * (8 + 400);

/// What `encode` writes.
fn encoded(encode: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>) -> Vec<u8> {
    let mut room = [0; HEADER_MAX];
    let len = encode(&mut room);
    debug_assert!(len.is_ok(), "longer than any header");
    room.get(..len.unwrap_or(0)).unwrap_or(&room).to_vec()
}
