//! What a connection is made with.

use core::time::Duration;

use crate::Limits;
use crate::private_data::{PrivateData, Terms};
use crate::property::Properties;
use crate::v2;

/// Which end of the connection this is. It decides who speaks first, and which calls are of the
/// *reverse* direction: those that a server makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It made the connection.
    Client,
    /// It accepted the connection.
    Server,
}

/// Versions that are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speaks {
    /// RFC 8166.
    pub v1: bool,
    /// The draft.
    pub v2: bool,
}

impl Speaks {
    /// Version 1 alone.
    pub const V1: Speaks = Speaks { v1: true, v2: false };
    /// Version 2 alone.
    pub const V2: Speaks = Speaks { v1: false, v2: true };
    /// Version 2 with those who speak it, version 1 with others.
    pub const BOTH: Speaks = Speaks { v1: true, v2: true };
}

/// Most [`Config::calls`] and [`Config::served`].
pub const SLOTS_MAX: u16 = 4096;

/// Most [`Config::credits`].
pub const CREDITS_MAX: u32 = 1 << 16;

/// Least [`Config::transfer_timeout`].
pub const TRANSFER_TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// What a connection is made with. [`Config::new`] has values for all of it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which end this is.
    pub side: Side,
    /// Versions that are spoken; at least one.
    pub speaks: Speaks,
    /// Calls of our own that may be under way or wait, 1 to [`SLOTS_MAX`].
    pub calls: u16,
    /// Calls of the peer's that are served at a time, 1 to [`SLOTS_MAX`]. Version 1 grants as many.
    pub served: u16,
    /// Messages of version 2 that are advertised, 2 to [`CREDITS_MAX`].
    pub credits: u32,
    /// What this end has said in the private data of the connection's making (version 1).
    pub private_data: PrivateData,
    /// What its peer has said there, if anything.
    pub peers_private_data: Option<PrivateData>,
    /// What this end says in version 2. Both sizes are at least [`v2::INLINE_THRESHOLD`].
    pub properties: Properties,
    /// A host authentication message to send in version 2; none when empty. It and the header must
    /// fit into [`v2::INLINE_THRESHOLD`].
    pub host_auth: Vec<u8>,
    /// Chunks that are taken in a call.
    pub limits: Limits,
    /// Octets of the longest RPC message that is received, without what a reply's Write chunks hold.
    pub message_max: u32,
    /// Sends that a call may go in by continuation; longer ones go in a Call chunk, where the peer takes
    /// chunks.
    pub parts_max: u32,
    /// Octets that one registration can have; longer pieces are registered in several.
    pub registration_max: u32,
    /// RDMA Reads that may be under way: our ORD.
    pub ord: u16,
    /// Octets of the longest RDMA Read that is made, and that may be under way at a time.
    pub read_max: u32,
    /// How long a client waits for an answer to its first message of version 2, and a server for a message
    /// of which it knows the version; and in version 2, from the same moment on, either for the properties
    /// of its peer, when a call needs more than the default ones allow.
    pub negotiation_timeout: Duration,
    /// How long each transfer that keeps memory of this end may take; at least [`TRANSFER_TIMEOUT_MIN`]. A
    /// peer with which one takes more than a quarter longer loses the connection: see
    /// [`CloseReason::TransferTimeout`](super::CloseReason::TransferTimeout).
    pub transfer_timeout: Duration,
}

impl Config {
    /// Of one end that speaks both versions, with what suits most.
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

    /// Octets of the Receives that the driver posts: one takes any message of either version.
    pub fn receive_size(&self) -> u32 {
        let v1 = if self.speaks.v1 { self.terms().receive } else { 0 };
        let v2 = if self.speaks.v2 { self.properties.receive_size } else { 0 };
        // Answers of a peer that speaks the other version only are shorter than either.
        v1.max(v2).max(v2::FIRST_MESSAGE_MAX)
    }

    /// Octets that a transport header may have: of the buffer for [`poll_work`].
    ///
    /// [`poll_work`]: super::Connection::poll_work
    pub fn header_size(&self) -> u32 {
        self.terms().send.max(self.properties.send_size)
    }

    /// Receives that the driver keeps posted, from before the connection is made until its end.
    pub fn receives(&self) -> u32 {
        // Calls of the peer's, replies to ours, and a message that nobody expects.
        let v1 = u32::from(self.calls) + u32::from(self.served) + 1;
        // What is announced; a GRANT; and a message by the draft's comparison.
        let v2 = self.credits.saturating_add(2);
        match self.speaks {
            Speaks { v2: false, .. } => v1,
            Speaks { v1: false, .. } => v2,
            _ => v1.max(v2),
        }
    }

    /// Calls of the peer's that are known at a time, with those whose replies have not completed.
    pub const fn served_slots(&self) -> u16 {
        // A peer may call again when it has a reply, before its Send has completed here; and flow
        // control of version 2 allows a message or two more than was advertised.
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

/// Most Read chunks or Write chunks of a call.
pub const CHUNKS_MAX: usize = crate::binding::ITEMS_MAX;

/// A value that no connection can be made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("connection's configuration: {field}")]
pub struct ConfigError {
    /// Which one.
    pub field: &'static str,
}
