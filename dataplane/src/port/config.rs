//! The configuration of a port, and the facts that a port reports.

use std::net::IpAddr;

use heddle_tcp::Vid;

use super::bond::{Bond, Member};
use super::spread::RSS_KEY;
use super::vdev::VdevArg;
use crate::mempool::Mempool;

/// The device of a port.
#[derive(Clone, Debug)]
pub enum PortSource {
    /// A virtual device; the port plugs it in and removes it when the port closes.
    Vdev(VdevArg),
    /// A device that the EAL has already, by its PCI address in any of its forms, or its name. The
    /// port stops the device when it closes, but the device stays with the EAL and can be opened
    /// again.
    Device(String),
    /// Several devices that are one port.
    Bond(Box<Bond>),
}

impl PortSource {
    /// Returns the devices that the EAL must have before the port opens.
    pub fn on_bus(&self) -> impl Iterator<Item = &str> {
        let (own, members) = match self {
            PortSource::Vdev(_) => (None, &[][..]),
            PortSource::Device(name) => (Some(name.as_str()), &[][..]),
            PortSource::Bond(bond) => (None, &bond.members[..]),
        };
        let members = members.iter().filter_map(|member| match member {
            Member::Vdev(_) => None,
            Member::Device(name) => Some(name.as_str()),
        });
        own.into_iter().chain(members)
    }
}

impl std::fmt::Display for PortSource {
    /// Writes the device as users give it; a bond by its mode and its members.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PortSource::Vdev(vdev) => write!(f, "{vdev}"),
            PortSource::Device(name) => f.write_str(name),
            PortSource::Bond(bond) => {
                let members: Vec<String> = bond.members.iter().map(Member::to_string).collect();
                write!(f, "{} bond of {}", bond.mode, members.join(" and "))
            }
        }
    }
}

/// The configuration of a port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Largest IP packet in bytes. A frame with such a packet needs room in the pools
    /// ([`crate::MempoolConfig::for_mtu`]) or a device that scatters frames. If the device has an
    /// interface of the kernel behind it (`net_af_packet`, `net_af_xdp`), the MTU of this interface
    /// must be no less.
    pub mtu: u16,
    /// Receive descriptors of each queue; rounded to a number that the device accepts.
    pub rx_desc: u16,
    /// Transmit descriptors of each queue; rounded to a number that the device accepts.
    pub tx_desc: u16,
    /// Mempools, one for each pair of queues: queue `i` receives into the `i`-th.
    pub pools: Vec<Mempool>,
    /// Whether the device receives frames for every address.
    pub promiscuous: bool,
    /// Whether workers hand on frames of flows that belong to other workers. Without that, several
    /// queues need a device that spreads flows over them in a known way ([`super::QueueSpread`]).
    pub steered: bool,
    /// The key by which the device spreads flows; the device takes as much of it as it needs, 40
    /// bytes or 52.
    pub rss_key: [u8; 52],
    /// The station address; `None` means the device's own, or one made from its name.
    pub mac: Option<[u8; 6]>,
    /// Our IP addresses, which matter only on a device that the kernel of the host shares (mlx5,
    /// mlx4), where all other addresses stay with the host; such a device needs at least one.
    pub addrs: Vec<IpAddr>,
    /// VLANs whose frames the port is to receive, besides frames without a VLAN
    /// ([`Port::set_vlans`](crate::Port::set_vlans) adds more later). If there are any, the device takes
    /// tags out of received frames, if it can. A device that the kernel of the host shares has none.
    pub vlans: Vec<Vid>,
    /// Whether a device that the host's kernel shares takes the ARP requests. The host then
    /// receives no ARP request for itself, which is right only if the host itself has no address on
    /// the device.
    pub broadcast_arp: bool,
    /// The work that the port may do by itself, if the device can.
    pub offloads: Offloads,
    /// Whether queues interrupt, so that a worker can sleep until a frame comes
    /// ([`crate::RxQueue::interrupt`]). A driver without interrupts ignores this; if a driver
    /// refuses interrupts, or the device's kernel driver has only INTx, the port is set up without
    /// interrupts ([`crate::Port::no_interrupts`]).
    pub rx_interrupt: bool,
}

impl PortConfig {
    /// Returns a configuration with one pair of queues that receives into `pool`, at an MTU of
    /// 1500.
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
            vlans: Vec::new(),
            broadcast_arp: false,
            offloads: Offloads::default(),
            rx_interrupt: false,
        }
    }
}

/// The work that a port may do by itself, if its device can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// Checks the checksums of received frames.
    pub rx_checksum: bool,
    /// Fills in the checksums of sent frames.
    pub tx_checksum: bool,
    /// Cuts long frames into segments (TCP segmentation offload); this needs `tx_checksum`.
    pub tso: bool,
    /// Joins received segments of a connection into long frames (large receive offload), or brings
    /// the long frames that a sender on the same host left uncut; this needs `rx_checksum`.
    pub lro: bool,
    /// Ports that rings join leave out what `tx_checksum` and `tso` name: a frame stays in the
    /// memory of this process, so nothing computes its checksums or cuts it, as on a veth pair of
    /// Linux. Both ports of a pair have the same setting.
    pub rings: bool,
}

impl Offloads {
    /// Leaves everything to the RNIC.
    pub const NONE: Offloads =
        Offloads { rx_checksum: false, tx_checksum: false, tso: false, lro: false, rings: false };

    /// The names of the offloads of devices.
    pub const NAMES: [&'static str; 4] = ["rx-checksum", "tx-checksum", "tso", "lro"];

    /// Allows the offload of this name; returns false if there is none.
    pub fn allow(&mut self, name: &str) -> bool {
        match name {
            "rx-checksum" => self.rx_checksum = true,
            "tx-checksum" => self.tx_checksum = true,
            "tso" => self.tso = true,
            "lro" => self.lro = true,
            _ => return false,
        }
        true
    }

    /// Returns the names of the offloads that are allowed.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let Offloads { rx_checksum, tx_checksum, tso, lro, rings: _ } = self;
        let all = Self::NAMES.into_iter().zip([rx_checksum, tx_checksum, tso, lro]);
        all.filter(|(_, on)| *on).map(|(name, _)| name)
    }
}

impl Default for Offloads {
    /// Lets a device do all that it can, and treats rings like the wire of a NIC without offloads.
    fn default() -> Offloads {
        Offloads { rx_checksum: true, tx_checksum: true, tso: true, lro: true, rings: false }
    }
}

/// The work that a port does by itself. Every capability listed here is switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCaps {
    /// The port checks the IPv4 header checksum of received frames.
    pub rx_ip_checksum: bool,
    /// The port checks the TCP checksum of received frames.
    pub rx_tcp_checksum: bool,
    /// The port fills in the IPv4 header checksum on request.
    pub tx_ip_checksum: bool,
    /// The port fills in the TCP checksum on request.
    pub tx_tcp_checksum: bool,
    /// The port cuts long frames into segments (TCP segmentation offload).
    pub tso: bool,
    /// The port brings frames of many segments of a connection (large receive offload).
    pub lro: bool,
    /// The port sends frames of several segments; otherwise the RNIC copies the segments together.
    pub multi_segs: bool,
    /// The port reports, with each frame, the hash by which it spreads flows.
    pub rx_hash: bool,
    /// The port takes the tags of VLANs out of received frames.
    pub rx_vlan_strip: bool,
}

impl PortCaps {
    /// Returns the name of each capability, and whether it is on.
    pub fn each(self) -> [(&'static str, bool); 9] {
        let PortCaps {
            rx_ip_checksum,
            rx_tcp_checksum,
            tx_ip_checksum,
            tx_tcp_checksum,
            tso,
            lro,
            multi_segs,
            rx_hash,
            rx_vlan_strip,
        } = self;
        [
            ("rx-ip-checksum", rx_ip_checksum),
            ("rx-tcp-checksum", rx_tcp_checksum),
            ("tx-ip-checksum", tx_ip_checksum),
            ("tx-tcp-checksum", tx_tcp_checksum),
            ("tso", tso),
            ("lro", lro),
            ("multi-segs", multi_segs),
            ("rx-hash", rx_hash),
            ("rx-vlan-strip", rx_vlan_strip),
        ]
    }
}

/// Counters of a port since it was opened. A driver that does not count leaves zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames dropped because the queue was full.
    pub rx_missed: u64,
    /// Frames received with an error.
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
    /// Adds the counters of another port.
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
    /// Whether the link is up.
    pub up: bool,
    /// Speed in Mb/s; `None` if the device does not know.
    pub mbps: Option<u32>,
    /// Whether both ends may send at once.
    pub full_duplex: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_every_offload_is_allowed_by_its_name() {
        let mut all = Offloads::NONE;
        for (n, name) in Offloads::NAMES.into_iter().enumerate() {
            assert!(all.allow(name));
            assert_eq!(all.names().collect::<Vec<_>>(), Offloads::NAMES[..=n]);
        }
        assert_eq!(all, Offloads::default());
        assert!(!all.allow("gro") && !all.allow(""));
    }
}
