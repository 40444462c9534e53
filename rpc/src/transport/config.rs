//! What connections are made with.

use std::time::Duration;

use heddle_rpcrdma::conn::{Config, Side, Speaks, TRANSFER_TIMEOUT_MIN};
use heddle_rpcrdma::private_data::PrivateData;
use heddle_rpcrdma::property::{Properties, ReverseSupport};

/// What connections are made with: versions, sizes, and how much may be under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// Versions of RPC-over-RDMA that are spoken.
    pub speaks: Speaks,
    /// Octets of the longest message that goes in one Send, with its transport header: 4096 to 262144.
    /// The shorter of both ends' counts; in version 1 of what both say in private data.
    pub inline_threshold: u32,
    /// Calls that a client may have on the wire, and that a server serves at a time on each connection.
    pub calls: u16,
    /// Fast registrations that a client may have at a time; calls that need more wait.
    pub registrations: u32,
    /// Octets of each; longer pieces are registered in several.
    pub registration_max: u32,
    /// Octets of the longest RPC message that is received, without results in Write chunks.
    pub message_max: u32,
    /// RDMA Reads that may be under way in each direction.
    pub reads: u16,
    /// How long a transfer may take that keeps memory of this end for the peer: the parts of a message, the
    /// Reads of a call, the Writes and Sends of a reply. Then the connection is closed, at most a quarter
    /// of that time later.
    pub transfer_timeout: Duration,
}

impl Default for TransportConfig {
    /// Both versions, 4 KiB inline, 64 calls, 128 registrations of up to 1 MiB, messages of 1 MiB with
    /// room for their headers, 30 s for a transfer.
    fn default() -> TransportConfig {
        TransportConfig {
            speaks: Speaks::BOTH,
            inline_threshold: 4096,
            calls: 64,
            registrations: 128,
            registration_max: 1 << 20,
            message_max: (1 << 20) + (64 << 10),
            reads: 16,
            transfer_timeout: Duration::from_secs(30),
        }
    }
}

impl TransportConfig {
    /// Inline thresholds that both versions can tell.
    fn inline(&self) -> u32 {
        self.inline_threshold.clamp(4096, heddle_rpcrdma::private_data::SIZE_MAX)
    }

    /// What is said in private data (RFC 8797).
    pub(crate) fn private_data(&self) -> PrivateData {
        let inline = self.inline();
        PrivateData::new(true, inline, inline).unwrap_or_default()
    }

    /// That of a connection's state, which speaks `speaks` and whose peer has said `peers` in private
    /// data.
    pub(crate) fn connection(
        &self,
        side: Side,
        speaks: Speaks,
        peers: Option<PrivateData>,
        ord: u16,
    ) -> Config {
        let inline = self.inline();
        let properties = Properties {
            send_size: inline,
            receive_size: inline,
            segment_size: self.registration_max,
            reverse: ReverseSupport::None,
            ..Properties::DEFAULT
        };
        Config {
            speaks,
            calls: self.calls,
            served: self.calls,
            credits: u32::from(self.calls).max(2),
            private_data: self.private_data(),
            peers_private_data: peers,
            properties,
            message_max: self.message_max,
            registration_max: self.registration_max,
            ord: ord.max(1),
            transfer_timeout: self.transfer_timeout.max(TRANSFER_TIMEOUT_MIN),
            ..Config::new(side)
        }
    }

    /// Octets of a Receive, and of the room for what is sent: whatever the peer will say, messages are
    /// no longer.
    pub(crate) fn message_room(&self) -> u32 {
        self.inline()
    }
}
