//! Messages of version 2 that belong together: the parts of an RPC message (draft section 6.6.2),
//! and the sets of properties (sections 6.3.3 and 6.3.4).
//!
//! A [`Sequence`] looks at the headers that one end receives, in order, and reports where each
//! payload belongs. A sequence holds no payloads; the receiver that does learns the length of the
//! whole stream from the first part.
//!
//! ```text
//!   CALL_MIDDLE  remaining 900   │ payload 100   offset   0, of 1000
//!   CALL_MIDDLE  remaining 400   │ payload 500   offset 100
//!   CALL_INLINE                  │ payload 400   offset 600, the last
//! ```
//!
//! GRANT and ERROR may come in between, although the draft's wording allows nothing but the next
//! part. Otherwise an end that is within a sequence and out of credit could get no help from a peer
//! in the same state (`docs/rpcrdma-v2-notes.md`). The receiver refuses all other messages with
//! RDMA2_ERR_INVAL_CONT, and forgets the sequence. It silently discards the remaining parts of a
//! refused message (section 7.1.4).

#[cfg(test)]
mod tests;

use crate::header::{Answer, Direction, Refusal, Xid};
use crate::v2::{self, Body, Header, htype};
use crate::xdr::Reader;

/// The role of a message in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The message is no part of a sequence: an error, a grant, a call or reply in a chunk.
    Alone,
    /// The message is a further part of a refused message, and is discarded.
    Discard,
    /// The message is a part of the Payload stream of a call or reply.
    Part {
        /// Whether the stream is a call or a reply.
        direction: Direction,
        /// XID of the RPC message.
        xid: Xid,
        /// Offset of the payload in the stream, in bytes.
        offset: u32,
        /// Length of the stream in bytes: the receiver holds up to this many until the last part.
        total: u32,
        /// True if this part completes the stream; its header is then the header of the whole
        /// message.
        last: bool,
    },
    /// The message is a set of properties.
    Properties {
        /// True if the set is the last, so that all properties have come and apply.
        last: bool,
    },
}

/// The role of a message that could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The message is no part of a sequence.
    Other,
    /// The message is a part of a stream, which will never be complete; its remaining parts are
    /// discarded.
    Part,
    /// The message is a further part of a refused message, and is discarded silently.
    Discard,
}

/// The reason why a message may not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Another message had to follow.
    #[error("not the next part")]
    Next,
    /// The stream's length by this message differs from its length by the previous part.
    #[error("{told} bytes in all, {expected} before")]
    Length {
        /// Length of the stream in bytes by this message.
        told: u64,
        /// Length of the stream in bytes by the previous parts.
        expected: u64,
    },
    /// The RPC message is longer than the receiver's limit.
    #[error("RPC message of {told} bytes")]
    TooLong {
        /// Length of the stream in bytes.
        told: u64,
    },
    /// The XID of the header differs from the XID of the RPC message.
    #[error("XID {inner:#x} in the RPC message")]
    XidMismatch {
        /// XID of the RPC message.
        inner: u32,
    },
    /// Properties came after the last set.
    #[error("properties behind the last")]
    PropertiesOver,
}

/// A [`Fault`] in a sequence, with the message that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct Error {
    /// The fault of the message.
    pub fault: Fault,
    xid: Xid,
    direction: Option<Direction>,
}

impl Error {
    /// Returns the answer that the sender waits for. A faulty reply gets none; it is discarded
    /// silently, and its call fails.
    pub fn answer(&self) -> Option<Answer> {
        if self.direction == Some(Direction::Reply) {
            return None;
        }
        let refusal = match self.fault {
            Fault::XidMismatch { .. } => v2::Refusal::BadXdr,
            Fault::TooLong { .. } => v2::Refusal::System,
            Fault::Next | Fault::Length { .. } | Fault::PropertiesOver => v2::Refusal::InvalCont,
        };
        let refusal = Refusal::V2(refusal);
        Some(Answer { xid: self.xid, version: v2::VERSION, refusal })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Any message may come.
    Between,
    /// More of a stream must come.
    Within { direction: Direction, xid: Xid, offset: u32, total: u32 },
    /// More properties must come.
    Properties,
    /// More parts of a refused message may come.
    Refused { direction: Direction, xid: Xid },
}

/// The sequences that one end receives on a connection of version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    state: State,
    /// True if the last properties have come.
    properties: bool,
    max: u32,
}

impl Sequence {
    /// Starts on a new connection. RPC messages that come in parts have at most `max` bytes.
    pub const fn new(max: u32) -> Sequence {
        Sequence { state: State::Between, properties: false, max }
    }

    /// Handles a received message. Returns its role, with the offset of its payload if it has one.
    ///
    /// # Errors
    /// Returns an error when the message may not follow: the receiver discards it, and
    /// [answers](Error::answer).
    pub fn receive(&mut self, header: &Header<'_>, payload: &[u8]) -> Result<Step, Error> {
        let (xid, direction) = (header.xid, header.direction());
        let more = matches!(header.body, Body::CallMiddle { .. } | Body::ReplyMiddle { .. });
        let rest = match direction {
            Some(direction) if more => State::Refused { direction, xid },
            _ => State::Between,
        };
        if let State::Refused { direction: of, xid: refused } = self.state {
            if (direction, xid) == (Some(of), refused) && header.has_payload() {
                self.state = rest;
                return Ok(Step::Discard);
            }
            if !matches!(header.body, Body::Error(_) | Body::Grant) {
                self.state = State::Between;
            }
        }
        self.step(header, payload).map_err(|fault| {
            self.state = rest;
            Error { fault, xid, direction }
        })
    }

    /// Handles a received message of this header type and XID that could not be decoded. If the
    /// message was the last part of a stream, that stream is over and another message may follow.
    /// If the message was an earlier part, the remaining parts are discarded (draft section 7.1.4).
    pub fn unread(&mut self, kind: u32, xid: Xid) -> Unread {
        let (direction, more) = match kind {
            htype::CALL_MIDDLE => (Direction::Call, true),
            htype::CALL_INLINE => (Direction::Call, false),
            htype::REPLY_MIDDLE => (Direction::Reply, true),
            htype::REPLY_INLINE => (Direction::Reply, false),
            _ => return Unread::Other,
        };
        let was = match self.state {
            State::Within { direction: of, xid: whose, .. } if (of, whose) == (direction, xid) => {
                Unread::Part
            }
            State::Refused { direction: of, xid: whose } if (of, whose) == (direction, xid) => {
                Unread::Discard
            }
            State::Between | State::Refused { .. } if more => Unread::Part,
            _ => return Unread::Other,
        };
        self.state = if more { State::Refused { direction, xid } } else { State::Between };
        was
    }

    fn step(&mut self, header: &Header<'_>, payload: &[u8]) -> Result<Step, Fault> {
        match header.body {
            Body::Error(_) | Body::Grant => Ok(Step::Alone),
            Body::ConnProp { last, .. } => self.properties(last),
            Body::CallExternal { .. } | Body::ReplyExternal { .. } => match self.state {
                State::Between => Ok(Step::Alone),
                _ => Err(Fault::Next),
            },
            Body::CallMiddle { remaining } => {
                self.part(Direction::Call, header.xid, payload, Some(remaining))
            }
            Body::ReplyMiddle { remaining } => {
                self.part(Direction::Reply, header.xid, payload, Some(remaining))
            }
            Body::CallInline { .. } => self.part(Direction::Call, header.xid, payload, None),
            Body::ReplyInline { .. } => self.part(Direction::Reply, header.xid, payload, None),
        }
    }

    fn properties(&mut self, last: bool) -> Result<Step, Fault> {
        match self.state {
            State::Within { .. } => Err(Fault::Next),
            _ if self.properties => Err(Fault::PropertiesOver),
            _ => {
                self.state = if last { State::Between } else { State::Properties };
                self.properties = last;
                Ok(Step::Properties { last })
            }
        }
    }

    /// Handles a part of a stream; `remaining` is `None` in the last part.
    fn part(
        &mut self,
        direction: Direction,
        xid: Xid,
        payload: &[u8],
        remaining: Option<u32>,
    ) -> Result<Step, Fault> {
        let start = State::Within { direction, xid, offset: 0, total: 0 };
        let (is_first, state) = match self.state {
            State::Between => (true, start),
            state => (false, state),
        };
        let State::Within { direction: expected, xid: of, offset, total } = state else {
            return Err(Fault::Next);
        };
        if (direction, xid) != (expected, of) {
            return Err(Fault::Next);
        }
        let len = payload.len() as u64;
        let told = u64::from(offset) + len + u64::from(remaining.unwrap_or(0));
        if is_first {
            // The header's decoder has checked that the payload has a first word.
            let inner = Reader::new(payload).u32().unwrap_or(!xid.0);
            if inner != xid.0 {
                return Err(Fault::XidMismatch { inner });
            }
        } else if told != u64::from(total) {
            return Err(Fault::Length { told, expected: total.into() });
        }
        // A message in one part is as long as its Receive, so the receiver need not hold more and
        // needs no limit.
        let max = if is_first && remaining.is_none() { u32::MAX } else { self.max };
        let fits = u32::try_from(told).ok().filter(|&told| told <= max);
        let Some(total) = fits else { return Err(Fault::TooLong { told }) };
        let last = remaining.is_none();
        self.state = match remaining {
            // No underflow: `total` is the sum of the offset, this payload and `remaining`.
            Some(remaining) => State::Within { direction, xid, offset: total - remaining, total },
            None => State::Between,
        };
        Ok(Step::Part { direction, xid, offset, total, last })
    }
}

/// Divides a sender's stream of `total` bytes into parts: for each part its offset, its length, and
/// the number of bytes that remain after it. The draft lets a sender divide the stream anywhere;
/// here every part but the last fills its message.
///
/// `header` is the length of the longest header of the parts, `threshold` the length of the longest
/// Send, both in bytes. An XDR stream is a multiple of four, and so is each part: no part is
/// shorter than the word that the draft counts as part of the header ([`v2`]).
///
/// Returns `None` when there is no room for a word, or when `total` is not the length of a stream.
pub fn parts(
    total: u32,
    header: u32,
    threshold: u32,
) -> Option<impl Iterator<Item = (u32, u32, u32)>> {
    let room = threshold.checked_sub(header).map(|r| r / 4 * 4).filter(|&r| r > 0)?;
    if total == 0 || !total.is_multiple_of(4) {
        return None;
    }
    let mut left = total;
    Some(core::iter::from_fn(move || {
        let len = left.min(room);
        let offset = total - left;
        left -= len;
        (len > 0).then_some((offset, len, left))
    }))
}
