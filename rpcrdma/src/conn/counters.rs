//! The counters of a connection.

/// Events counted since the connection was made. The numbers only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of this end whose last part was posted.
    pub calls_sent: u64,
    /// Replies that ended a call of this end.
    pub replies_received: u64,
    /// Calls that the connection handed to the upper layer.
    pub calls_received: u64,
    /// Replies whose last part was posted.
    pub replies_sent: u64,
    /// Sends of all kinds.
    pub sends: u64,
    /// Received Sends of all kinds.
    pub receives: u64,
    /// GRANTs sent (version 2).
    pub grants_sent: u64,
    /// GRANTs received (version 2).
    pub grants_received: u64,
    /// Error messages sent to the peer.
    pub errors_sent: u64,
    /// Error messages received from the peer.
    pub errors_received: u64,
    /// RDMA Reads posted.
    pub reads: u64,
    /// Bytes that the posted RDMA Reads ask for.
    pub read_bytes: u64,
    /// RDMA Writes posted.
    pub writes: u64,
    /// Bytes that the posted RDMA Writes carry.
    pub write_bytes: u64,
    /// Handles registered.
    pub registrations: u64,
    /// Handles that this end invalidated.
    pub invalidations: u64,
    /// Handles that the peer invalidated.
    pub remote_invalidations: u64,
    /// Registrations that had to wait for memory.
    pub registration_waits: u64,
    /// Messages that the connection did not understand.
    pub bad_messages: u64,
    /// Discarded calls, because a call with the same XID is being served.
    pub duplicate_calls: u64,
    /// Discarded replies and errors that belong to no call.
    pub stray_replies: u64,
    /// Calls of the peer that had to wait for memory.
    pub memory_waits: u64,
    /// Calls that the connection refused for lack of memory or slots.
    pub overloads: u64,
    /// Messages in parts that were abandoned.
    pub broken_sequences: u64,
    /// Transfers that took longer than
    /// [`Config::transfer_timeout`](super::Config::transfer_timeout) allows.
    pub transfer_timeouts: u64,
    /// Calls of this end whose deadline passed.
    pub timeouts: u64,
}
