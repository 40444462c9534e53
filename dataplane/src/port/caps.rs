//! What a device says of itself: the facts a [`plan`](super::plan) is made from.
//!
//! Plain values, so that the rules can be tried on devices that are not there: `plan/devices.rs` has
//! what the drivers of DPDK 22.11 say of the NICs they are for.

use heddle_dpdk_sys as sys;

/// What a device says of itself, and how it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Name of its driver in DPDK.
    pub driver: String,
    /// Arguments a virtual device was made with.
    pub args: String,
    /// Shortest MTU it can be set to, in octets.
    pub min_mtu: u16,
    /// Longest one.
    pub max_mtu: u16,
    /// Longest frame it receives, in octets with Ethernet header and CRC.
    pub max_rx_pktlen: u32,
    /// Shortest receive buffer it takes, in octets without headroom.
    pub min_rx_bufsize: u32,
    /// Receive queues it has.
    pub max_rx_queues: u16,
    /// Transmit queues it has.
    pub max_tx_queues: u16,
    /// What it can do on receiving (`RTE_ETH_RX_OFFLOAD_*`).
    pub rx_offloads: u64,
    /// What it can do on sending (`RTE_ETH_TX_OFFLOAD_*`).
    pub tx_offloads: u64,
    /// Descriptors of a receive queue.
    pub rx_desc: DescLimits,
    /// Descriptors of a transmit queue.
    pub tx_desc: DescLimits,
    /// Segments of a frame that is cut by the device (TSO); 0: not said.
    pub nb_seg_max: u16,
    /// Segments of a frame as it is; 0: not said.
    pub nb_mtu_seg_max: u16,
    /// What it spreads over its queues by (`RTE_ETH_RSS_*`).
    pub rss_types: u64,
    /// Entries of its redirection table; 0: it has none that is shown.
    pub reta_size: u16,
    /// Octets of the key of its hash; 0: not said.
    pub hash_key_size: u8,
    /// The kernel's driver that a PCI device is bound to; `None`: none, or no PCI device.
    pub bound_to: Option<String>,
    /// The processor socket it is at; `None`: not known, or of no matter.
    pub socket: Option<u32>,
    /// Its station address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// MTU of the host's interface behind it, if there is one.
    pub host_mtu: Option<u32>,
    /// Made of rings to another port of this process.
    pub rings: bool,
}

/// How many descriptors a queue may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescLimits {
    /// At least.
    pub min: u16,
    /// At most.
    pub max: u16,
    /// In multiples of this; 0 is 1.
    pub align: u16,
}

impl Default for DescLimits {
    /// No limit.
    fn default() -> DescLimits {
        DescLimits { min: 0, max: u16::MAX, align: 1 }
    }
}

impl DescLimits {
    /// The number nearest to `wanted`, upwards where there is room, that the device takes.
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
        // A driver that leaves it out has no limit of its own.
        let max = if l.nb_max == 0 { u16::MAX } else { l.nb_max };
        DescLimits { min: l.nb_min, max, align: l.nb_align }
    }
}

impl Capabilities {
    /// Returns true unless the kernel's driver of the device knows INTx alone. A line that stays asserted
    /// while nobody serves it is switched off by the kernel, for all devices that share it.
    pub(super) fn has_message_interrupts(&self) -> bool {
        self.bound_to.as_deref() != Some("uio_pci_generic")
    }

    /// What is in DPDK's description of a device; the rest is as it is asked for elsewhere.
    pub(super) fn of(info: &sys::rte_eth_dev_info) -> Capabilities {
        Capabilities {
            min_mtu: info.min_mtu,
            max_mtu: info.max_mtu,
            max_rx_pktlen: info.max_rx_pktlen,
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
