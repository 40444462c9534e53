//! The capabilities of a device: the facts from which [`plan`](super::plan) makes a plan.
//!
//! Capabilities are plain values, so that tests can try the rules on devices that the machine does
//! not have: `plan/devices.rs` has the capabilities that the drivers of DPDK 22.11 report for their
//! NICs.

use heddle_dpdk_sys as sys;

/// The capabilities that a device reports, and the arguments with which it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Name of the device's driver in DPDK.
    pub driver: String,
    /// Arguments with which a virtual device was made.
    pub args: String,
    /// The smallest MTU that the device accepts, in bytes.
    pub min_mtu: u16,
    /// The largest MTU that the device accepts, in bytes.
    pub max_mtu: u16,
    /// The longest frame that the device receives, in bytes with Ethernet header and CRC.
    pub max_rx_pktlen: u32,
    /// The longest frame in bytes into which the device joins segments; 0 if it reports none.
    pub max_lro_pktlen: u32,
    /// The smallest receive buffer that the device accepts, in bytes without headroom.
    pub min_rx_bufsize: u32,
    /// Receive queues of the device.
    pub max_rx_queues: u16,
    /// Transmit queues of the device.
    pub max_tx_queues: u16,
    /// Offloads on receiving (`RTE_ETH_RX_OFFLOAD_*`).
    pub rx_offloads: u64,
    /// Offloads on sending (`RTE_ETH_TX_OFFLOAD_*`).
    pub tx_offloads: u64,
    /// Limits for the descriptors of a receive queue.
    pub rx_desc: DescLimits,
    /// Limits for the descriptors of a transmit queue.
    pub tx_desc: DescLimits,
    /// The most segments of a frame that the device cuts (TSO); 0 if unknown.
    pub nb_seg_max: u16,
    /// The most segments of a frame that the device sends as it is; 0 if unknown.
    pub nb_mtu_seg_max: u16,
    /// Headers by which the device spreads frames over its queues (`RTE_ETH_RSS_*`).
    pub rss_types: u64,
    /// Entries of the device's redirection table; 0 if the device shows none.
    pub reta_size: u16,
    /// Bytes of the key of the device's hash; 0 if unknown.
    pub hash_key_size: u8,
    /// The kernel driver that a PCI device is bound to; `None` if there is none, or it is no PCI
    /// device.
    pub bound_to: Option<String>,
    /// The processor socket where the device is; `None` if unknown, or irrelevant.
    pub socket: Option<u32>,
    /// The device's station address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// MTU of the host's interface behind the device, if there is one.
    pub host_mtu: Option<u32>,
    /// The device consists of rings to another port of this process.
    pub rings: bool,
    /// The other end of each queue is the same queue of another port of this process.
    pub joined: bool,
    /// The other end of the device is a port of this process, which takes frames of many segments
    /// uncut and without a TCP checksum, although the driver does not know that it may send them.
    pub far_end_joins: bool,
    /// The members of a bond; empty if the device is none.
    pub members: Vec<Capabilities>,
}

/// How many descriptors a queue may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescLimits {
    /// The smallest number.
    pub min: u16,
    /// The largest number.
    pub max: u16,
    /// The number must be a multiple of this; 0 means 1.
    pub align: u16,
}

impl Default for DescLimits {
    /// Returns limits that allow any number.
    fn default() -> DescLimits {
        DescLimits { min: 0, max: u16::MAX, align: 1 }
    }
}

impl DescLimits {
    /// Returns the number nearest to `wanted` that the device accepts, rounded up if there is room.
    #[must_use]
    pub fn fit(self, wanted: u16) -> u16 {
        let align = self.align.max(1);
        let most = self.max - self.max % align;
        let up = wanted.max(self.min).checked_next_multiple_of(align).unwrap_or(most);
        up.min(most.max(self.min))
    }
}

impl From<sys::rte_eth_desc_lim> for DescLimits {
    fn from(l: sys::rte_eth_desc_lim) -> DescLimits {
        // A driver that leaves the maximum out has no limit of its own.
        let max = if l.nb_max == 0 { u16::MAX } else { l.nb_max };
        DescLimits { min: l.nb_min, max, align: l.nb_align }
    }
}

impl Capabilities {
    /// Returns true unless the kernel's driver of the device supports only INTx. The kernel
    /// switches off an interrupt line that stays asserted while no driver serves it, for all
    /// devices that share the line.
    pub(super) fn has_message_interrupts(&self) -> bool {
        self.bound_to.as_deref() != Some("uio_pci_generic")
    }

    /// Returns the capabilities of a bond of `members`. DPDK's description of the bond, which is
    /// `self`, leaves some of the members' limits out.
    pub(super) fn bonded(self, members: Vec<Capabilities>) -> Capabilities {
        let least = |of: fn(&Capabilities) -> u32| members.iter().map(of).min();
        let most = |of: fn(&Capabilities) -> u32| members.iter().map(of).max();
        let socket = members.first().and_then(|m| m.socket);
        Capabilities {
            min_mtu: members.iter().map(|m| m.min_mtu).max().unwrap_or(self.min_mtu),
            max_mtu: members.iter().map(|m| m.max_mtu).min().unwrap_or(self.max_mtu),
            max_rx_pktlen: least(|m| m.max_rx_pktlen).unwrap_or(0).min(self.max_rx_pktlen),
            max_lro_pktlen: least(|m| m.max_lro_pktlen).unwrap_or(0),
            min_rx_bufsize: most(|m| m.min_rx_bufsize).unwrap_or(0),
            host_mtu: members.iter().filter_map(|m| m.host_mtu).min(),
            socket: socket.filter(|_| members.iter().all(|m| m.socket == socket)),
            members,
            ..self
        }
    }

    /// Returns the capabilities in DPDK's description of a device; the caller fills in the rest.
    pub(super) fn of(info: &sys::rte_eth_dev_info) -> Capabilities {
        Capabilities {
            min_mtu: info.min_mtu,
            max_mtu: info.max_mtu,
            max_rx_pktlen: info.max_rx_pktlen,
            max_lro_pktlen: info.max_lro_pkt_size,
            min_rx_bufsize: info.min_rx_bufsize,
            max_rx_queues: info.max_rx_queues,
            max_tx_queues: info.max_tx_queues,
            rx_offloads: info.rx_offload_capa,
            tx_offloads: info.tx_offload_capa,
            rx_desc: info.rx_desc_lim.into(),
            tx_desc: info.tx_desc_lim.into(),
            nb_seg_max: info.tx_desc_lim.nb_seg_max,
            nb_mtu_seg_max: info.tx_desc_lim.nb_mtu_seg_max,
            rss_types: info.flow_type_rss_offloads,
            reta_size: info.reta_size,
            hash_key_size: info.hash_key_size,
            ..Capabilities::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_descriptors_fit_limits_and_alignment() {
        let ice = DescLimits { min: 64, max: 4096, align: 32 };
        for (wanted, got) in
            [(0, 64), (64, 64), (65, 96), (1024, 1024), (4096, 4096), (65_535, 4096)]
        {
            assert_eq!(ice.fit(wanted), got, "{wanted}");
        }
        let odd = DescLimits { min: 10, max: 100, align: 32 };
        assert_eq!((odd.fit(1), odd.fit(97)), (32, 96));
        assert_eq!(DescLimits::default().fit(1000), 1000);
        assert_eq!(DescLimits { align: 0, ..ice }.fit(65), 65);
        assert_eq!(DescLimits { min: 0, max: u16::MAX, align: 32 }.fit(u16::MAX), 65_504);
    }
}
