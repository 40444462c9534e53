//! The messages that consist of two communication ids and little else.
//!
//! ```text
//!         0                 4                  8                              private data from
//!   MRA   local comm id 32  remote comm id 32  answered 2, reserved 6 │ timeout 5, reserved 3  10
//!   REJ   local             remote             answered 2, reserved 6 │ ARI length 7, res. 1
//!                                              │ reason 16 │ ARI, 72 bytes                      84
//!   RTU   local             remote                                                             8
//!   DREQ  local             remote             remote QPN 24 │ reserved 8                      12
//!   DREP  local             remote                                                             8
//!   LAP   local             remote             (ignored)
//!   APR   local             remote             ARI length 8 │ status 8 │ reserved 16 │ ARI 72  84
//! ```

use heddle_types::ib::RejReason;

use crate::bytes::{array, be16, be24, be32, put, put24};
use crate::mad::Data;
use crate::types::{CommId, Qpn, TimeCode};

/// The message that an MRA or a REJ answers: its two bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered(pub u8);

impl Answered {
    /// The message answers a REQ.
    pub const REQ: Answered = Answered(0);
    /// The message answers a REP.
    pub const REP: Answered = Answered(1);
    /// In an MRA a LAP; in a REJ no message (the REJ reports a timeout).
    pub const OTHER: Answered = Answered(2);
}

/// MRA: a message has come, and its answer takes longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// The receiver's name of the connection.
    pub remote_comm_id: CommId,
    /// The message that the MRA answers.
    pub answered: Answered,
    /// Additional time that the answer takes.
    pub service_timeout: TimeCode,
    /// The application's private data.
    pub private_data: [u8; Mra::PRIVATE_LEN],
}

impl Mra {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 222;

    /// Reads a message, which may have any value.
    pub fn parse(b: &Data) -> Mra {
        Mra {
            local_comm_id: CommId(be32(b, 0)),
            remote_comm_id: CommId(be32(b, 4)),
            answered: Answered(b[8] >> 6),
            service_timeout: TimeCode::new(b[9] >> 3),
            private_data: array(b, 10),
        }
    }

    pub(super) fn emit(&self, b: &mut Data) {
        comm_ids(b, self.local_comm_id, self.remote_comm_id);
        b[8] = self.answered.0 << 6;
        b[9] = self.service_timeout.get() << 3;
        put(b, 10, &self.private_data);
    }
}

/// REJ: refuses a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's name of the connection; 0 when it has none.
    pub local_comm_id: CommId,
    /// The receiver's name of the connection.
    pub remote_comm_id: CommId,
    /// The message that the REJ answers.
    pub answered: Answered,
    /// The reason for the refusal.
    pub reason: RejReason,
    /// Valid bytes of the additional reject information, 7 bits; a peer may state more than the
    /// field has.
    pub ari_len: u8,
    /// Additional reject information.
    pub ari: [u8; Rej::ARI_LEN],
    /// The application's private data.
    pub private_data: [u8; Rej::PRIVATE_LEN],
}

impl Rej {
    /// Size of the field of additional reject information, in bytes.
    pub const ARI_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 148;

    /// Returns the valid bytes of the additional reject information.
    pub fn ari(&self) -> &[u8] {
        &self.ari[..usize::from(self.ari_len).min(Rej::ARI_LEN)]
    }

    /// Reads a message, which may have any value.
    pub fn parse(b: &Data) -> Rej {
        Rej {
            local_comm_id: CommId(be32(b, 0)),
            remote_comm_id: CommId(be32(b, 4)),
            answered: Answered(b[8] >> 6),
            ari_len: b[9] >> 1,
            reason: RejReason(be16(b, 10)),
            ari: array(b, 12),
            private_data: array(b, 84),
        }
    }

    pub(super) fn emit(&self, b: &mut Data) {
        comm_ids(b, self.local_comm_id, self.remote_comm_id);
        b[8] = self.answered.0 << 6;
        b[9] = self.ari_len << 1;
        put(b, 10, &self.reason.0.to_be_bytes());
        put(b, 12, &self.ari);
        put(b, 84, &self.private_data);
    }
}

/// RTU: the REP has come, and the connection is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rtu {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// The receiver's name of the connection.
    pub remote_comm_id: CommId,
    /// The application's private data.
    pub private_data: [u8; Rtu::PRIVATE_LEN],
}

impl Rtu {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 224;

    /// Reads a message, which may have any value.
    pub fn parse(b: &Data) -> Rtu {
        Rtu {
            local_comm_id: CommId(be32(b, 0)),
            remote_comm_id: CommId(be32(b, 4)),
            private_data: array(b, 8),
        }
    }

    pub(super) fn emit(&self, b: &mut Data) {
        comm_ids(b, self.local_comm_id, self.remote_comm_id);
        put(b, 8, &self.private_data);
    }
}

/// DREQ: asks to end the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// The receiver's name of the connection.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair: a sender that knows its number is no stranger.
    pub remote_qpn: Qpn,
    /// The application's private data.
    pub private_data: [u8; Dreq::PRIVATE_LEN],
}

impl Dreq {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 220;

    /// Reads a message, which may have any value.
    pub fn parse(b: &Data) -> Dreq {
        Dreq {
            local_comm_id: CommId(be32(b, 0)),
            remote_comm_id: CommId(be32(b, 4)),
            remote_qpn: Qpn::new(be24(b, 8)),
            private_data: array(b, 12),
        }
    }

    pub(super) fn emit(&self, b: &mut Data) {
        comm_ids(b, self.local_comm_id, self.remote_comm_id);
        put24(b, 8, self.remote_qpn.get());
        put(b, 12, &self.private_data);
    }
}

/// DREP: the connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drep {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// The receiver's name of the connection.
    pub remote_comm_id: CommId,
    /// The application's private data.
    pub private_data: [u8; Drep::PRIVATE_LEN],
}

impl Drep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 224;

    /// Reads a message, which may have any value.
    pub fn parse(b: &Data) -> Drep {
        Drep {
            local_comm_id: CommId(be32(b, 0)),
            remote_comm_id: CommId(be32(b, 4)),
            private_data: array(b, 8),
        }
    }

    pub(super) fn emit(&self, b: &mut Data) {
        comm_ids(b, self.local_comm_id, self.remote_comm_id);
        put(b, 8, &self.private_data);
    }
}

/// LAP: offers an alternate path. Contains only the connection; the codec ignores the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// The receiver's name of the connection.
    pub remote_comm_id: CommId,
}

impl Lap {
    /// Reads a message, which may have any value.
    pub fn parse(b: &Data) -> Lap {
        Lap { local_comm_id: CommId(be32(b, 0)), remote_comm_id: CommId(be32(b, 4)) }
    }

    pub(super) fn emit(self, b: &mut Data) {
        comm_ids(b, self.local_comm_id, self.remote_comm_id);
    }
}

/// APR: accepts or refuses an offered path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apr {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// The receiver's name of the connection.
    pub remote_comm_id: CommId,
    /// A constant of this type, or another value.
    pub status: u8,
    /// Valid bytes of the additional information.
    pub ari_len: u8,
    /// Additional information.
    pub ari: [u8; Apr::ARI_LEN],
    /// The application's private data.
    pub private_data: [u8; Apr::PRIVATE_LEN],
}

impl Apr {
    /// Size of the field of additional information, in bytes.
    pub const ARI_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 148;
    /// Status: the receiver has no such connection.
    pub const INVALID_COMM_ID: u8 = 1;
    /// Status: the receiver does not support alternate paths.
    pub const UNSUPPORTED: u8 = 2;

    /// Reads a message, which may have any value.
    pub fn parse(b: &Data) -> Apr {
        Apr {
            local_comm_id: CommId(be32(b, 0)),
            remote_comm_id: CommId(be32(b, 4)),
            ari_len: b[8],
            status: b[9],
            ari: array(b, 12),
            private_data: array(b, 84),
        }
    }

    pub(super) fn emit(&self, b: &mut Data) {
        comm_ids(b, self.local_comm_id, self.remote_comm_id);
        b[8] = self.ari_len;
        b[9] = self.status;
        put(b, 12, &self.ari);
        put(b, 84, &self.private_data);
    }
}

fn comm_ids(b: &mut Data, local: CommId, remote: CommId) {
    put(b, 0, &local.0.to_be_bytes());
    put(b, 4, &remote.0.to_be_bytes());
}
