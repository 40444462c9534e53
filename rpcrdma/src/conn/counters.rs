//! What a connection counts.

/// What has happened on a connection since it was made. Numbers only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of ours of which the last part was posted.
    pub calls_sent: u64,
    /// Replies that ended a call of ours.
    pub replies_received: u64,
    /// Calls that were handed up.
    pub calls_received: u64,
    /// Replies of which the last part was posted.
    pub replies_sent: u64,
    /// Sends of all kinds.
    pub sends: u64,
    /// Received Sends of all kinds.
    pub receives: u64,
    /// GRANTs sent (version 2).
    pub grants_sent: u64,
    /// GRANTs received (version 2).
    pub grants_received: u64,
    /// Errors sent.
    pub errors_sent: u64,
    /// Errors received.
    pub errors_received: u64,
    /// RDMA Reads posted.
    pub reads: u64,
    /// Octets of them.
    pub read_octets: u64,
    /// RDMA Writes posted.
    pub writes: u64,
    /// Octets of them.
    pub write_octets: u64,
    /// Handles registered.
    pub registrations: u64,
    /// Handles invalidated here.
    pub invalidations: u64,
    /// Handles invalidated by the peer.
    pub remote_invalidations: u64,
    /// Registrations that had to wait for memory.
    pub registration_waits: u64,
    /// Messages that were not understood.
    pub bad_messages: u64,
    /// Calls with the XID of a call that is being served: discarded.
    pub duplicate_calls: u64,
    /// Replies and errors that are of no call: discarded.
    pub stray_replies: u64,
    /// Calls of the peer's that had to wait for memory.
    pub memory_waits: u64,
    /// Calls that were refused for want of memory or slots.
    pub overloads: u64,
    /// Messages in parts that were given up.
    pub broken_sequences: u64,
    /// Transfers that took longer than they may.
    pub transfer_timeouts: u64,
    /// Calls of ours whose deadline passed.
    pub timeouts: u64,
}
