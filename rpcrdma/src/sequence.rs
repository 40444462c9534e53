//! Messages of version 2 that belong together: parts of an RPC message (draft section 6.6.2), and sets
//! of properties (sections 6.3.3 and 6.3.4).
//!
//! A [`Sequence`] looks at the headers that one end receives, in order, and says where each payload
//! belongs. It holds no payloads: whoever does has the length of the whole from the first part on.
//!
//! ```text
//!   CALL_MIDDLE  remaining 900   │ payload 100   offset   0, of 1000
//!   CALL_MIDDLE  remaining 400   │ payload 500   offset 100
//!   CALL_INLINE                  │ payload 400   offset 600, the last
//! ```
//!
//! GRANT and ERROR may come in between, though the draft's words allow nothing but the next part: an
//! end that is within a sequence and out of credit could not otherwise be helped by a peer that is,
//! too (`docs/rpcrdma-v2-notes.md`). All others are refused with RDMA2_ERR_INVAL_CONT, and the
//! sequence is forgotten. Of a message that was refused, the parts that follow are discarded silently
//! (section 7.1.4).

#[cfg(test)]
mod tests;

use crate::header::{Answer, Direction, Refusal, Xid};
use crate::v2::{self, Body, Header, htype};
use crate::xdr::Reader;

/// What a message is in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is no part of any: an error, a grant, a call or reply in a chunk.
    Alone,
    /// It is a further part of a message that was refused: it is discarded.
    Discard,
    /// A part of the Payload stream of a call or reply.
    Part {
        /// Which of the two.
        direction: Direction,
        /// That of the RPC message.
        xid: Xid,
        /// Offset of the payload in the stream.
        offset: u32,
        /// Octets of the stream: as many as are to be held until the last part.
        total: u32,
        /// Whether the stream is whole with this part, and the header that of all of it.
        last: bool,
    },
    /// A set of properties, and whether it is the last.
    Properties {
        /// Whether all are there, and all may be used.
        last: bool,
    },
}

/// What a message that could not be read was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// No part of a message that is coming.
    Other,
    /// A part of one, which will never be whole: more of it is discarded.
    Part,
    /// A further part of a message that was refused: it is discarded silently.
    Discard,
}

/// What does not follow, or is too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Another message had to follow.
    #[error("not the next part")]
    Next,
    /// It tells of more or less octets than the part before it did.
    #[error("{told} octets in all, {expected} before")]
    Length {
        /// Octets of the stream by this message.
        told: u64,
        /// Octets of the stream by the ones before.
        expected: u64,
    },
    /// The RPC message is longer than the receiver takes.
    #[error("RPC message of {told} octets")]
    TooLong {
        /// Octets of the stream.
        told: u64,
    },
    /// The XID of the header is not that of the RPC message.
    #[error("XID {inner:#x} in the RPC message")]
    XidMismatch {
        /// That of the RPC message.
        inner: u32,
    },
    /// Properties behind the last.
    #[error("properties behind the last")]
    PropertiesOver,
}

/// A [`Fault`] of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct Error {
    /// What is wrong.
    pub fault: Fault,
    xid: Xid,
    direction: Option<Direction>,
}

impl Error {
    /// The answer that the sender waits for. A reply is discarded silently, and its call fails.
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
    /// More of a stream must.
    Within { direction: Direction, xid: Xid, offset: u32, total: u32 },
    /// More properties must.
    Properties,
    /// More of what was refused may.
    Refused { direction: Direction, xid: Xid },
}

/// What one end receives on a connection of version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    state: State,
    /// Whether the last properties have come.
    properties: bool,
    max: u32,
}

impl Sequence {
    /// Of a new connection. RPC messages that come in parts have at most `max` octets.
    pub const fn new(max: u32) -> Sequence {
        Sequence { state: State::Between, properties: false, max }
    }

    /// A message has come. Its payload begins at the offset that is given, or is nothing.
    ///
    /// # Errors
    /// When it may not follow: it is discarded, and [answered](Error::answer).
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

    /// A message has come with this header type and XID, and could not be read. What it was the last part
    /// of is over, so that another may follow; of what it was an earlier part of, the rest is discarded (draft
    /// section 7.1.4).
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

    /// `remaining` is `None` in the last part.
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
            // Decoding has seen to it that there is a first word.
            let inner = Reader::new(payload).u32().unwrap_or(!xid.0);
            if inner != xid.0 {
                return Err(Fault::XidMismatch { inner });
            }
        } else if told != u64::from(total) {
            return Err(Fault::Length { told, expected: total.into() });
        }
        // A message in one part is as long as the Receive that it came in; no more need be held.
        let max = if is_first && remaining.is_none() { u32::MAX } else { self.max };
        let fits = u32::try_from(told).ok().filter(|&told| told <= max);
        let Some(total) = fits else { return Err(Fault::TooLong { told }) };
        let last = remaining.is_none();
        self.state = match remaining {
            // What remains has been subtracted from what fits.
            Some(remaining) => State::Within { direction, xid, offset: total - remaining, total },
            None => State::Between,
        };
        Ok(Step::Part { direction, xid, offset, total, last })
    }
}

/// The parts in which a sender's stream of `total` octets goes: for each its offset, its length, and
/// what remains behind it. The draft lets a sender divide where it likes; here every part but the last
/// fills its message.
///
/// `header` is the longest header of the parts, `threshold` what a Send may have; both in octets. An
/// XDR stream is a multiple of four, and so is each part: none is shorter than the word that belongs to
/// the header ([`v2`]).
///
/// `None` when there is no room for a word, or the stream is none.
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
