//! The configuration of a connection.

use core::time::Duration;

use crate::Limits;
use crate::private_data::{PrivateData, Terms};
use crate::property::Properties;
use crate::v2;

/// The end of the connection that this is. The side decides which end speaks first, and which calls
/// are of the *reverse* direction: the calls that a server makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that initiated the connection.
    Client,
    /// The end that accepted the connection.
    Server,
}

/// The versions that an end speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speaks {
    /// Version 1: RFC 8166.
    pub v1: bool,
    /// Version 2: the draft.
    pub v2: bool,
}

impl Speaks {
    /// Version 1 alone.
    pub const V1: Speaks = Speaks { v1: true, v2: false };
    /// Version 2 alone.
    pub const V2: Speaks = Speaks { v1: false, v2: true };
    /// Version 2 with peers that speak it, version 1 with others.
    pub const BOTH: Speaks = Speaks { v1: true, v2: true };
}

/// The largest [`Config::calls`] and [`Config::served`].
pub const SLOTS_MAX: u16 = 4096;

/// The largest [`Config::credits`].
pub const CREDITS_MAX: u32 = 1 << 16;

/// The smallest [`Config::transfer_timeout`].
pub const TRANSFER_TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// The configuration of a connection. [`Config::new`] sets every field to a default.
#[derive(Clone, Debug)]
pub struct Config {
    /// The end that this configuration is for.
    pub side: Side,
    /// Versions that this end speaks; at least one.
    pub speaks: Speaks,
    /// Calls of this end that may be under way or wait, 1 to [`SLOTS_MAX`].
    pub calls: u16,
    /// Calls of the peer that this end serves at a time, 1 to [`SLOTS_MAX`]. In version 1 the
    /// responder grants as many credits.
    pub served: u16,
    /// Messages of version 2 that this end advertises credits for, 2 to [`CREDITS_MAX`].
    pub credits: u32,
    /// The private data that this end sent when the connection was made (version 1).
    pub private_data: PrivateData,
    /// The private data that the peer sent, if any.
    pub peers_private_data: Option<PrivateData>,
    /// The properties that this end states in version 2. Both sizes are at least
    /// [`v2::INLINE_THRESHOLD`].
    pub properties: Properties,
    /// A host authentication message to send in version 2; none when empty. The message and its
    /// header must fit into [`v2::INLINE_THRESHOLD`].
    pub host_auth: Vec<u8>,
    /// The chunks that this end takes in a call.
    pub limits: Limits,
    /// Length in bytes of the longest RPC message that this end receives, without the data in a
    /// reply's Write chunks.
    pub message_max: u32,
    /// The largest number of Sends that a call may take by continuation. A call that needs more
    /// goes in a Call chunk, if the peer takes chunks.
    pub parts_max: u32,
    /// The largest length of one registration in bytes; longer pieces are registered in several.
    pub registration_max: u32,
    /// RDMA Reads of this end that may be under way: its ORD.
    pub ord: u16,
    /// The largest number of bytes that one RDMA Read, and all RDMA Reads under way together, may
    /// have.
    pub read_max: u32,
    /// How long a client waits for an answer to its first message of version 2, and a server for a
    /// message whose version it knows. In version 2, either end also waits this long, from the same
    /// moment on, for the properties of its peer, when a call needs more than the default
    /// properties allow.
    pub negotiation_timeout: Duration,
    /// How long each transfer that keeps memory of this end may take; at least
    /// [`TRANSFER_TIMEOUT_MIN`]. If a transfer takes over a quarter longer than this, the peer
    /// loses the connection: see
    /// [`CloseReason::TransferTimeout`](super::CloseReason::TransferTimeout).
    pub transfer_timeout: Duration,
}

impl Config {
    /// Creates the configuration of an end that speaks both versions, with values that suit most
    /// uses.
    pub fn new(side: Side) -> Config {
        Config {
            side,
            speaks: Speaks::BOTH,
            calls: 64,
            served: 64,
            credits: 64,
            private_data: PrivateData::DEFAULT,
            peers_private_data: None,
            properties: Properties::DEFAULT,
            host_auth: Vec::new(),
            limits: Limits::DEFAULT,
            message_max: (1 << 20) + (64 << 10),
            parts_max: 4,
            registration_max: 1 << 20,
            ord: 16,
            read_max: 1 << 20,
            negotiation_timeout: Duration::from_secs(10),
            transfer_timeout: Duration::from_secs(30),
        }
    }

    /// Returns the length in bytes of the Receives that the driver posts: each can take any message
    /// of either version.
    pub fn receive_size(&self) -> u32 {
        let v1 = if self.speaks.v1 { self.terms().receive } else { 0 };
        let v2 = if self.speaks.v2 { self.properties.receive_size } else { 0 };
        // A peer that speaks only the other version sends answers shorter than either size.
        v1.max(v2).max(v2::FIRST_MESSAGE_MAX)
    }

    /// Returns the largest length of a transport header in bytes, which the buffer for
    /// [`poll_work`] must have.
    ///
    /// [`poll_work`]: super::Connection::poll_work
    pub fn header_size(&self) -> u32 {
        self.terms().send.max(self.properties.send_size)
    }

    /// Returns the number of Receives that the driver keeps posted, from before the connection is
    /// made until its end.
    pub fn receives(&self) -> u32 {
        // The peer's calls, replies to this end's calls, and one unexpected message.
        let v1 = u32::from(self.calls) + u32::from(self.served) + 1;
        // The advertised messages, a GRANT, and one message more, which the draft's comparison
        // allows.
        let v2 = self.credits.saturating_add(2);
        match self.speaks {
            Speaks { v2: false, .. } => v1,
            Speaks { v1: false, .. } => v2,
            _ => v1.max(v2),
        }
    }

    /// Returns the number of the peer's calls that the connection tracks at a time, including calls
    /// whose replies have not completed.
    pub const fn served_slots(&self) -> u16 {
        // A peer that has a reply may call again before the reply's Send has completed here. And
        // version 2's flow control allows a message or two more than this end advertised.
        self.served.saturating_mul(2).saturating_add(3)
    }

    pub(crate) fn terms(&self) -> Terms {
        Terms::of(&self.private_data, self.peers_private_data)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Config { properties, limits, .. } = self;
        let sizes = properties.send_size.min(properties.receive_size);
        let slots = 1..=SLOTS_MAX;
        let host_auth_max = v2::INLINE_THRESHOLD as usize - super::negotiate::HOST_AUTH_ROOM;
        let bad = [
            (!self.speaks.v1 && !self.speaks.v2, "speaks"),
            (!slots.contains(&self.calls), "calls"),
            (!slots.contains(&self.served), "served"),
            (!(2..=CREDITS_MAX).contains(&self.credits), "credits"),
            (sizes < v2::INLINE_THRESHOLD, "properties: a size below 4096"),
            (properties.segment_size == 0, "properties: segment_size"),
            (self.host_auth.len() > host_auth_max, "host_auth"),
            (usize::from(limits.read_chunks) > CHUNKS_MAX, "limits.read_chunks"),
            (usize::from(limits.write_chunks) > CHUNKS_MAX, "limits.write_chunks"),
            (self.message_max < sizes, "message_max"),
            (self.parts_max == 0, "parts_max"),
            (self.registration_max == 0, "registration_max"),
            (self.ord == 0, "ord"),
            (self.read_max == 0, "read_max"),
            (self.transfer_timeout < TRANSFER_TIMEOUT_MIN, "transfer_timeout"),
        ];
        match bad.iter().find(|(bad, _)| *bad) {
            Some(&(_, field)) => Err(ConfigError { field }),
            None => Ok(()),
        }
    }
}

/// The largest number of Read chunks or Write chunks in a call.
pub const CHUNKS_MAX: usize = crate::binding::ITEMS_MAX;

/// A configuration value that no connection can be made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("connection's configuration: {field}")]
pub struct ConfigError {
    /// Name of the field.
    pub field: &'static str,
}
