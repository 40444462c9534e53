//! The answers to messages that this end cannot understand.

use super::{Direction, Failure, Fault, KIND_ERROR, Prefix, Xid};
use crate::xdr::{NoRoom, Writer};
use crate::{chunk, v1, v2};

/// The role of an end on the connection. The role matters where a message does not show whether it
/// is a call or a reply: in version 1, when this end does not understand the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The end serves calls (and may also make calls in the reverse direction).
    Responder,
    /// The end makes calls (and may also serve calls in the reverse direction).
    Requester,
}

/// The reason why a message was not carried out, in the terms of its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A refusal of version 1, or the version error that all versions share.
    V1(v1::Refusal),
    /// A refusal of version 2.
    V2(v2::Refusal),
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Refusal::V1(refusal) => refusal.fmt(f),
            Refusal::V2(refusal) => refusal.fmt(f),
        }
    }
}

/// An RDMA_ERROR or RDMA2_ERROR message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// XID of the message that is answered.
    pub xid: Xid,
    /// Version of the message that is answered, even if this end does not speak that version.
    pub version: u32,
    /// The reason for the refusal.
    pub refusal: Refusal,
}

impl Answer {
    /// Length of the longest answer in bytes.
    pub const MAX_LEN: usize = Prefix::LEN + 12;

    /// Writes the message to the front of `out` and returns its length in bytes. `credit` is the
    /// credit field, by the rules of the connection's version.
    ///
    /// # Errors
    /// Returns an error when `out` is too short.
    pub fn encode(&self, credit: u32, out: &mut [u8]) -> Result<usize, NoRoom> {
        let mut w = Writer::new(out);
        let Answer { xid, version, refusal } = *self;
        Prefix { xid, version, credit, kind: KIND_ERROR }.encode(&mut w);
        match refusal {
            Refusal::V1(refusal) => refusal.encode(&mut w),
            Refusal::V2(refusal) => refusal.encode(&mut w),
        }
        w.finish()
    }
}

impl Failure {
    /// Returns the answer that the sender of the message waits for; `None` when the message must be
    /// discarded silently. This end discards the message itself in either case.
    pub fn answer(&self, role: Role) -> Option<Answer> {
        let Prefix { xid, version, kind, .. } = self.prefix?;
        let refusal = match (self.error.fault, version) {
            // No version allows an answer to an error.
            _ if kind == KIND_ERROR => return None,
            // An end that speaks only version 1 (RFC 8166 section 4.5), and any end that gets a
            // message of version 1, discards short messages.
            _ if self.bytes < MIN_V1
                && (!self.versions.takes(v2::VERSION) || version == v1::VERSION) =>
            {
                return None;
            }
            (Fault::Version { .. }, _) => Some(self.other_version(version)),
            (fault, v2::VERSION) => self.refuse_v2(fault, kind).map(Refusal::V2),
            (fault, _) => self.refuse_v1(fault, role).map(Refusal::V1),
        };
        refusal.map(|refusal| Answer { xid, version, refusal })
    }

    /// Draft section 7.1.2 defines a separate code for a version that this end speaks, but not on
    /// this connection. Only a peer that has just used version 2 understands that code. A peer that
    /// used version 1, or another version, gets the error that all versions share.
    fn other_version(&self, version: u32) -> Refusal {
        if version == v2::VERSION && self.versions == super::Versions::V1 {
            return Refusal::V2(v2::Refusal::VersMismatch);
        }
        let (low, high) = self.versions.range();
        Refusal::V1(v1::Refusal::Versions { low, high })
    }

    /// Refuses a message of version 1 (RFC 8166 sections 4.5 and 4.6).
    fn refuse_v1(&self, fault: Fault, role: Role) -> Option<v1::Refusal> {
        let discard = fault == Fault::Done
            || match self.direction {
                Some(direction) => direction == Direction::Reply,
                None => role == Role::Requester,
            };
        (!discard).then_some(v1::Refusal::Chunk)
    }

    /// Refuses a message of version 2 (draft section 7). Calls and properties get an answer,
    /// because their sender waits; replies and grants do not.
    fn refuse_v2(&self, fault: Fault, kind: u32) -> Option<v2::Refusal> {
        let prop = matches!(kind, v2::htype::CONNPROP_MIDDLE | v2::htype::CONNPROP_FINAL);
        let call = self.direction == Some(Direction::Call);
        Some(match fault {
            Fault::Kind { .. } => v2::Refusal::InvalHtype,
            _ if !prop && !call => return None,
            Fault::Propval { .. } => v2::Refusal::BadPropval,
            Fault::Chunk(chunk::Fault::ReadChunks { max }) => {
                v2::Refusal::ReadChunks { max: max.into() }
            }
            Fault::Chunk(chunk::Fault::WriteChunks { max }) => {
                v2::Refusal::WriteChunks { max: max.into() }
            }
            Fault::Chunk(chunk::Fault::Segments { max }) => {
                v2::Refusal::Segments { max: max.into() }
            }
            _ => v2::Refusal::BadXdr,
        })
    }
}

/// Length in bytes of a version 1 header with three empty lists: the XID of a shorter message
/// cannot be trusted. Errors of version 1 are shorter, and no case answers them.
const MIN_V1: usize = Prefix::LEN + 12;
