//! The ports of an RNIC, as its applications see them.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An address of a port, and the number of leading bits that the hosts of its link share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PortAddr {
    /// Our address at the port.
    pub addr: IpAddr,
    /// Length of the prefix in bits: 0 to 32, over IPv6 0 to 128.
    pub prefix: u8,
}

/// A route of a port to hosts that are on no link of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PortRoute {
    /// The network to which the route leads.
    pub to: IpAddr,
    /// Length of the network's prefix in bits: 0 to 32, over IPv6 0 to 128.
    pub prefix: u8,
    /// Our addresses from which connections by this route come. The address that has the most bits in
    /// common with the host serves, the first of several.
    pub from: Vec<IpAddr>,
}

/// State and speed of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortLink {
    /// True if the link is up.
    pub up: bool,
    /// Speed in Mb/s; `None` where the device does not know, as virtual devices do not.
    pub mbps: Option<u32>,
}

/// Counters of a port since it was opened. They count the frames of all applications; a device that
/// does not count leaves zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames dropped for want of room or of buffers.
    pub rx_dropped: u64,
    /// Frames received with an error.
    pub rx_errors: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames that the device failed to send.
    pub tx_errors: u64,
}

/// A port of an RNIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// Ethernet address of the port.
    pub mac: [u8; 6],
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// State and speed of the port's link.
    pub link: PortLink,
    /// Addresses of the port, in the order of the configuration.
    pub addresses: Vec<PortAddr>,
    /// Routes of the port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<PortRoute>,
    /// Counters of the port.
    pub counters: PortCounters,
}

/// Queries a port while it runs, from any thread.
pub trait PortProbe: Send + Sync + std::fmt::Debug {
    /// Returns the link as it is now, without waiting for a change. A NIC may take a few register
    /// reads for this.
    fn link(&self) -> PortLink;

    /// Returns the port's counters.
    fn counters(&self) -> PortCounters;
}
