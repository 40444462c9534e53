//! What is answered to a message that was not understood.

use super::{Direction, Failure, Fault, KIND_ERROR, Prefix, Xid};
use crate::xdr::{NoRoom, Writer};
use crate::{chunk, v1, v2};

/// What an end of a connection does there. It matters where a header does not tell calls from
/// replies: in version 1, when it is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It serves calls (also when it makes some, in the reverse direction).
    Responder,
    /// It makes calls (also when it serves some, in the reverse direction).
    Requester,
}

/// Why a message was not carried out, in the words of its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Of version 1, or the part that all versions have: versions.
    V1(v1::Refusal),
    /// Of version 2.
    V2(v2::Refusal),
}

/// An RDMA_ERROR or RDMA2_ERROR message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The XID of the message that it answers.
    pub xid: Xid,
    /// The version of the message that it answers, also when that is not spoken.
    pub version: u32,
    /// Why.
    pub refusal: Refusal,
}

impl Answer {
    /// Octets of the longest one.
    pub const MAX_LEN: usize = Prefix::LEN + 12;

    /// Writes the message to the front of `out` and gives its length. `credit` is that of the
    /// connection, by the rules of its version.
    ///
    /// # Errors
    /// When `out` is too short.
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
    /// The answer that the message's sender waits for; `None` when it is to be discarded silently.
    /// The message itself is discarded in either case.
    pub fn answer(&self, role: Role) -> Option<Answer> {
        let Prefix { xid, version, kind, .. } = self.prefix?;
        let refusal = match (self.error.fault, version) {
            // No version answers an error.
            _ if kind == KIND_ERROR => return None,
            // Where version 1 alone is spoken (RFC 8166 section 4.5), and of version 1 anywhere.
            _ if self.octets < MIN_V1
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

    /// Draft section 7.1.2 has a code of its own for a version that is spoken, but not on this
    /// connection. It can be told to a peer that has just used version 2; one that used version 1, or
    /// another, has no such code, and gets what all versions have.
    fn other_version(&self, version: u32) -> Refusal {
        if version == v2::VERSION && self.versions == super::Versions::V1 {
            return Refusal::V2(v2::Refusal::VersMismatch);
        }
        let (low, high) = self.versions.range();
        Refusal::V1(v1::Refusal::Versions { low, high })
    }

    /// RFC 8166 sections 4.5 and 4.6.
    fn refuse_v1(&self, fault: Fault, role: Role) -> Option<v1::Refusal> {
        let discard = fault == Fault::Done
            || match self.direction {
                Some(direction) => direction == Direction::Reply,
                None => role == Role::Requester,
            };
        (!discard).then_some(v1::Refusal::Chunk)
    }

    /// Draft section 7. Calls and properties are answered: their sender waits. Replies and grants are
    /// not.
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

/// Octets of a header of version 1 with three empty lists: what is shorter has no XID that could be
/// trusted. Errors of version 1 are shorter, and are answered in no case.
const MIN_V1: usize = Prefix::LEN + 12;
