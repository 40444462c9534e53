//! The configuration of connections.

use std::time::Duration;

use heddle_rpcrdma::conn::{Config, Side, Speaks, TRANSFER_TIMEOUT_MIN};
use heddle_rpcrdma::private_data::PrivateData;
use heddle_rpcrdma::property::Properties;

/// The configuration of connections: versions, sizes, and how much may be under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// Versions of RPC-over-RDMA that this end speaks.
    pub speaks: Speaks,
    /// Length in bytes of the longest message that goes in one Send, with its transport header:
    /// 4096 to 262144. The smaller value of both ends counts; in version 1 both values come from
    /// private data.
    pub inline_threshold: u32,
    /// True if this end sends private data for version 1, which state how long its messages may be
    /// and that replies may invalidate (RFC 8797). If either end sends none, messages have at most
    /// 1024 bytes, and the end that registers memory invalidates it.
    pub private_data: bool,
    /// The number of calls that a client may have on the wire, and that a server serves at a time
    /// on each connection.
    pub calls: u16,
    /// The number of fast registrations that a client may have at a time; calls that need more
    /// wait.
    pub registrations: u32,
    /// Length of the longest registration in bytes; longer pieces are registered in several.
    pub registration_max: u32,
    /// Length in bytes of the longest RPC message that this end receives, without results in Write
    /// chunks.
    pub message_max: u32,
    /// The number of RDMA Reads that may be under way in each direction.
    pub reads: u16,
    /// How long a transfer may take that keeps memory of this end for the peer: the parts of a
    /// message, the Reads of a call, the Writes and Sends of a reply. After that the connection is
    /// closed, at most a quarter of the time later.
    pub transfer_timeout: Duration,
}

impl Default for TransportConfig {
    /// The default speaks both versions. It has 4 KiB inline, 64 calls, 128 registrations of up to
    /// 1 MiB, messages of 1 MiB with room for their headers, and 30 s for a transfer.
    fn default() -> TransportConfig {
        TransportConfig {
            speaks: Speaks::BOTH,
            inline_threshold: 4096,
            private_data: true,
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
    /// Returns the inline threshold, limited to the range that both versions can express.
    fn inline(&self) -> u32 {
        self.inline_threshold.clamp(4096, heddle_rpcrdma::private_data::SIZE_MAX)
    }

    /// Returns the properties of this end in version 1, which its private data state (RFC 8797).
    fn terms(&self) -> PrivateData {
        let inline = self.inline();
        let said = PrivateData::new(true, inline, inline).filter(|_| self.private_data);
        said.unwrap_or_default()
    }

    /// Returns the private data of a connection.
    pub(crate) fn private_data(&self) -> Vec<u8> {
        if self.private_data { self.terms().emit().to_vec() } else { Vec::new() }
    }

    /// Returns the configuration of a connection's state that speaks `speaks`, and whose peer has
    /// sent `peers` in private data.
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
            ..Properties::DEFAULT
        };
        Config {
            speaks,
            calls: self.calls,
            served: self.calls,
            credits: u32::from(self.calls).max(2),
            private_data: self.terms(),
            peers_private_data: peers,
            properties,
            message_max: self.message_max,
            registration_max: self.registration_max,
            ord: ord.max(1),
            transfer_timeout: self.transfer_timeout.max(TRANSFER_TIMEOUT_MIN),
            ..Config::new(side)
        }
    }

    /// Returns the length in bytes of a Receive, and of the room for a Send: no message is longer,
    /// whatever the peer announces.
    pub(crate) fn message_room(&self) -> u32 {
        self.inline()
    }
}
