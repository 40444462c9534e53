//! The ports of an RNIC, as its applications see them.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An address of a port, and how many leading bits the hosts of its link share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PortAddr {
    /// The address.
    pub addr: IpAddr,
    /// Bits, 0 to 32.
    pub prefix: u8,
}

/// The link of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortLink {
    /// Whether it is up.
    pub up: bool,
    /// Mb/s; `None` where the device does not know, as virtual devices do not.
    pub mbps: Option<u32>,
}

/// What a port has counted since it was opened. Frames are those of all applications; a device that does not
/// count leaves zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames dropped for want of room or of buffers.
    pub rx_dropped: u64,
    /// Frames received that were wrong.
    pub rx_errors: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames that could not be sent.
    pub tx_errors: u64,
}

/// A port of an RNIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Its link.
    pub link: PortLink,
    /// Its addresses, in the order in which they are configured.
    pub addresses: Vec<PortAddr>,
    /// What it has counted.
    pub counters: PortCounters,
}

/// The way to ask a port while it runs, from any thread.
pub trait PortProbe: Send + Sync + std::fmt::Debug {
    /// Its link, without waiting for it. It may take a NIC a few reads of registers.
    fn link(&self) -> PortLink;

    /// What it has counted.
    fn counters(&self) -> PortCounters;
}
