//! How a port is set up, and what it says of itself.

use std::net::IpAddr;

use super::spread::RSS_KEY;
use super::vdev::VdevArg;
use crate::mempool::Mempool;

/// What a port is made of.
#[derive(Clone, Debug)]
pub enum PortSource {
    /// A virtual device, plugged in for the port and removed with it.
    Vdev(VdevArg),
    /// A device the EAL has already, by its PCI address in any of its forms, or its name. It is
    /// stopped with the port, but stays with the EAL and can be opened again.
    Device(String),
}

/// How a port is set up.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Largest IP packet in bytes. Frames of it need room in the pools
    /// ([`crate::MempoolConfig::for_mtu`]) or a device that scatters them, and an interface of the
    /// kernel behind the device (`net_af_packet`, `net_af_xdp`) has to be set to no less.
    pub mtu: u16,
    /// Receive descriptors of each queue; rounded to what the device takes.
    pub rx_desc: u16,
    /// Transmit descriptors of each queue; rounded to what the device takes.
    pub tx_desc: u16,
    /// Mempools, one for each pair of queues: queue `i` receives into the `i`-th.
    pub pools: Vec<Mempool>,
    /// Receive frames for every address.
    pub promiscuous: bool,
    /// Workers hand on frames of flows that are others'. Without that, several queues need a device
    /// that spreads flows over them in a way that is known ([`super::QueueSpread`]).
    pub steered: bool,
    /// The key flows are spread by; the device takes as much of it as it needs, 40 octets or 52.
    pub rss_key: [u8; 52],
    /// The station address; `None`: the device's, or one made from its name.
    pub mac: Option<[u8; 6]>,
    /// Addresses of the network layer that are ours. They are of use on a device that the kernel of
    /// the host shares (mlx5, mlx4), where all others stay with the host; there, at least one is needed.
    pub addrs: Vec<IpAddr>,
    /// On such a device, take requests of ARP from the host. It then hears of none that are for it:
    /// right where the host itself has no address on the device.
    pub broadcast_arp: bool,
    /// Let queues interrupt, so that a worker can sleep until a frame comes
    /// ([`crate::RxQueue::interrupt`]). A driver without interrupts ignores it; one that refuses them is
    /// set up without, and so is a device whose kernel driver has INTx alone
    /// ([`crate::Port::no_interrupts`]).
    pub rx_interrupt: bool,
}

impl PortConfig {
    /// One pair of queues that receives into `pool`, at an MTU of 1500.
    pub fn new(pool: Mempool) -> PortConfig {
        PortConfig {
            mtu: 1500,
            rx_desc: 1024,
            tx_desc: 1024,
            pools: vec![pool],
            promiscuous: false,
            steered: false,
            rss_key: RSS_KEY,
            mac: None,
            addrs: Vec::new(),
            broadcast_arp: false,
            rx_interrupt: false,
        }
    }
}

/// What a port does by itself. Everything listed is switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCaps {
    /// Checks the IPv4 header checksum of received frames.
    pub rx_ip_checksum: bool,
    /// Checks the TCP checksum of received frames.
    pub rx_tcp_checksum: bool,
    /// Fills in the IPv4 header checksum when asked.
    pub tx_ip_checksum: bool,
    /// Fills in the TCP checksum when asked.
    pub tx_tcp_checksum: bool,
    /// Sends frames of several segments; otherwise they are copied together.
    pub multi_segs: bool,
    /// Gives the hash that flows are spread by with each frame.
    pub rx_hash: bool,
}

impl PortCaps {
    /// Each by its name, and whether it is on.
    pub fn each(self) -> [(&'static str, bool); 6] {
        let PortCaps {
            rx_ip_checksum,
            rx_tcp_checksum,
            tx_ip_checksum,
            tx_tcp_checksum,
            multi_segs,
            rx_hash,
        } = self;
        [
            ("rx-ip-checksum", rx_ip_checksum),
            ("rx-tcp-checksum", rx_tcp_checksum),
            ("tx-ip-checksum", tx_ip_checksum),
            ("tx-tcp-checksum", tx_tcp_checksum),
            ("multi-segs", multi_segs),
            ("rx-hash", rx_hash),
        ]
    }
}

/// What a port counted since it was opened. A driver that does not count leaves zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames dropped because the queue was full.
    pub rx_missed: u64,
    /// Frames that were wrong.
    pub rx_errors: u64,
    /// Frames dropped because the mempool was empty.
    pub rx_no_mbuf: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames that could not be sent.
    pub tx_errors: u64,
}

impl PortStats {
    /// Adds what another port counted.
    pub fn add(&mut self, other: &PortStats) {
        let PortStats {
            rx_frames,
            rx_bytes,
            rx_missed,
            rx_errors,
            rx_no_mbuf,
            tx_frames,
            tx_bytes,
            tx_errors,
        } = *other;
        self.rx_frames += rx_frames;
        self.rx_bytes += rx_bytes;
        self.rx_missed += rx_missed;
        self.rx_errors += rx_errors;
        self.rx_no_mbuf += rx_no_mbuf;
        self.tx_frames += tx_frames;
        self.tx_bytes += tx_bytes;
        self.tx_errors += tx_errors;
    }
}

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether it is up.
    pub up: bool,
    /// Mb/s; `None` when the device does not know.
    pub mbps: Option<u32>,
    /// Whether both ends may send at once.
    pub full_duplex: bool,
}
