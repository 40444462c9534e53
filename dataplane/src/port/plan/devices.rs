//! The capabilities that devices report, from their drivers in DPDK 22.11; those of devices without
//! hardware were read on a machine.

use heddle_dpdk_sys as sys;

use crate::port::{Capabilities, DescLimits};

const RX_SUMS: u64 = sys::HEDDLE_RX_OFFLOAD_IPV4_CKSUM | sys::HEDDLE_RX_OFFLOAD_TCP_CKSUM;
const RX_ALL: u64 = RX_SUMS | sys::HEDDLE_RX_OFFLOAD_SCATTER | sys::HEDDLE_RX_OFFLOAD_RSS_HASH;
const TX_SUMS: u64 = sys::HEDDLE_TX_OFFLOAD_IPV4_CKSUM | sys::HEDDLE_TX_OFFLOAD_TCP_CKSUM;
const TX_ALL: u64 = TX_SUMS | sys::HEDDLE_TX_OFFLOAD_MULTI_SEGS | sys::HEDDLE_TX_OFFLOAD_TCP_TSO;
const TCP: u64 = sys::HEDDLE_RSS_TCP4 | sys::HEDDLE_RSS_TCP6;
/// IPv4 fragments and others, SCTP, and further types that drivers list.
const MORE: u64 = 0b10_1100;

fn desc(min: u16, max: u16, align: u16) -> DescLimits {
    DescLimits { min, max, align }
}

fn nic(driver: &str) -> Capabilities {
    Capabilities {
        driver: driver.into(),
        min_mtu: 68,
        max_mtu: u16::MAX,
        max_rx_pktlen: u32::MAX,
        mac: Some([0x3c, 0xfd, 0xfe, 1, 2, 3]),
        socket: Some(1),
        rx_offloads: RX_ALL,
        tx_offloads: TX_ALL,
        rss_types: TCP | MORE,
        ..Capabilities::default()
    }
}

/// Intel E810.
pub(in crate::port) fn ice() -> Capabilities {
    Capabilities {
        max_mtu: 9728 - 26,
        max_rx_pktlen: 9728,
        min_rx_bufsize: 1024,
        max_rx_queues: 64,
        max_tx_queues: 64,
        rx_desc: desc(64, 4096, 32),
        tx_desc: desc(64, 4096, 32),
        nb_seg_max: 255,
        nb_mtu_seg_max: 8,
        reta_size: 512,
        hash_key_size: 52,
        ..nic("net_ice")
    }
}

/// Intel 82574L, and 82540EM with less; QEMU has both.
pub(in crate::port) fn e1000e() -> Capabilities {
    Capabilities {
        max_mtu: 9234 - 18,
        max_rx_pktlen: 9234,
        min_rx_bufsize: 256,
        max_rx_queues: 1,
        max_tx_queues: 1,
        rx_desc: desc(32, 4096, 8),
        tx_desc: desc(32, 4096, 8),
        nb_seg_max: 255,
        nb_mtu_seg_max: 255,
        tx_offloads: TX_ALL & !sys::HEDDLE_TX_OFFLOAD_TCP_TSO,
        rx_offloads: RX_SUMS | sys::HEDDLE_RX_OFFLOAD_SCATTER,
        rss_types: 0,
        ..nic("net_e1000_em")
    }
}

/// Intel X710.
pub(in crate::port) fn i40e() -> Capabilities {
    Capabilities {
        max_rx_queues: 192,
        max_tx_queues: 192,
        ..Capabilities { driver: "net_i40e".into(), ..ice() }
    }
}

/// Intel 82599.
pub(in crate::port) fn ixgbe() -> Capabilities {
    Capabilities {
        max_mtu: 15_872 - 26,
        max_rx_pktlen: 15_872,
        min_rx_bufsize: 1024,
        max_rx_queues: 128,
        max_tx_queues: 128,
        rx_desc: desc(32, 4096, 8),
        tx_desc: desc(32, 4096, 8),
        nb_seg_max: 40,
        nb_mtu_seg_max: 40,
        reta_size: 128,
        hash_key_size: 40,
        ..nic("net_ixgbe")
    }
}

/// Mellanox ConnectX-5; the host's interface is at its usual MTU.
pub(in crate::port) fn mlx5() -> Capabilities {
    Capabilities {
        max_rx_pktlen: 65_536,
        min_rx_bufsize: 32,
        max_rx_queues: 1024,
        max_tx_queues: 1024,
        rx_desc: desc(0, 32_768, 1),
        tx_desc: desc(0, 32_768, 1),
        nb_seg_max: 46,
        nb_mtu_seg_max: 46,
        reta_size: 512,
        hash_key_size: 40,
        host_mtu: Some(1500),
        ..nic("mlx5_pci")
    }
}

/// Amazon's ENA.
pub(in crate::port) fn ena() -> Capabilities {
    Capabilities {
        min_mtu: 128,
        max_mtu: 9216,
        max_rx_pktlen: 9216 + 18,
        min_rx_bufsize: 64,
        max_rx_queues: 8,
        max_tx_queues: 8,
        rx_desc: desc(128, 1024, 1),
        tx_desc: desc(128, 1024, 1),
        nb_seg_max: 17,
        nb_mtu_seg_max: 17,
        reta_size: 128,
        hash_key_size: 40,
        rx_offloads: RX_SUMS | sys::HEDDLE_RX_OFFLOAD_RSS_HASH,
        ..nic("net_ena")
    }
}

/// A virtio NIC of QEMU without RSS.
pub(in crate::port) fn virtio() -> Capabilities {
    Capabilities {
        max_mtu: 9698,
        max_rx_pktlen: 9728,
        min_rx_bufsize: 64,
        max_rx_queues: 4,
        max_tx_queues: 4,
        rx_desc: desc(32, 32_768, 1),
        tx_desc: desc(32, 32_768, 1),
        nb_seg_max: u16::MAX,
        nb_mtu_seg_max: u16::MAX,
        rx_offloads: sys::HEDDLE_RX_OFFLOAD_TCP_CKSUM | sys::HEDDLE_RX_OFFLOAD_SCATTER,
        tx_offloads: TX_ALL & !sys::HEDDLE_TX_OFFLOAD_IPV4_CKSUM,
        rss_types: 0,
        socket: None,
        ..nic("net_virtio")
    }
}

/// A virtio NIC of QEMU with RSS.
pub(in crate::port) fn virtio_rss() -> Capabilities {
    Capabilities { rss_types: TCP | MORE, reta_size: 128, hash_key_size: 40, ..virtio() }
}

/// VMware's NIC.
pub(in crate::port) fn vmxnet3() -> Capabilities {
    Capabilities {
        min_mtu: 60,
        max_mtu: 9000,
        max_rx_pktlen: 16_384,
        min_rx_bufsize: 1518 + 128,
        max_rx_queues: 16,
        max_tx_queues: 8,
        rx_desc: desc(128, 4096, 1),
        tx_desc: desc(512, 4096, 1),
        nb_seg_max: 255,
        nb_mtu_seg_max: 16,
        rx_offloads: sys::HEDDLE_RX_OFFLOAD_TCP_CKSUM
            | sys::HEDDLE_RX_OFFLOAD_SCATTER
            | sys::HEDDLE_RX_OFFLOAD_RSS_HASH,
        tx_offloads: TX_ALL & !sys::HEDDLE_TX_OFFLOAD_IPV4_CKSUM,
        ..nic("net_vmxnet3")
    }
}

/// The values that DPDK fills in for drivers that report no more.
fn virtual_device(driver: &str) -> Capabilities {
    Capabilities {
        driver: driver.into(),
        min_mtu: 46,
        max_mtu: u16::MAX,
        max_rx_pktlen: u32::MAX,
        nb_seg_max: u16::MAX,
        nb_mtu_seg_max: u16::MAX,
        mac: Some([0x3a, 0x7e, 0xe0, 0xd8, 0xbd, 0x76]),
        ..Capabilities::default()
    }
}

/// `net_af_packet` with two pairs of queues, on an interface with its usual MTU.
pub(in crate::port) fn af_packet() -> Capabilities {
    Capabilities {
        args: "iface=e0,qpairs=2".into(),
        max_rx_pktlen: 1518,
        max_rx_queues: 2,
        max_tx_queues: 2,
        rx_offloads: 1,
        tx_offloads: 1 | sys::HEDDLE_TX_OFFLOAD_MULTI_SEGS,
        host_mtu: Some(1500),
        ..virtual_device("net_af_packet")
    }
}

/// `net_tap`.
pub(in crate::port) fn tap() -> Capabilities {
    Capabilities {
        args: "iface=t0".into(),
        max_rx_pktlen: 1522,
        max_rx_queues: 16,
        max_tx_queues: 16,
        rx_offloads: 8206,
        tx_offloads: 32_814,
        rss_types: 241_596,
        hash_key_size: 40,
        host_mtu: Some(1500),
        ..virtual_device("net_tap")
    }
}

/// `net_memif`.
pub(in crate::port) fn memif() -> Capabilities {
    Capabilities {
        max_rx_pktlen: 1518,
        max_rx_queues: 255,
        max_tx_queues: 255,
        tx_offloads: sys::HEDDLE_TX_OFFLOAD_MULTI_SEGS,
        ..virtual_device("net_memif")
    }
}

/// An end of a pair of rings with four queues.
pub(in crate::port) fn ring() -> Capabilities {
    Capabilities {
        max_rx_queues: 4,
        max_tx_queues: 4,
        rx_offloads: sys::HEDDLE_RX_OFFLOAD_SCATTER,
        tx_offloads: sys::HEDDLE_TX_OFFLOAD_MULTI_SEGS,
        mac: None,
        rings: true,
        joined: true,
        ..virtual_device("net_ring")
    }
}

/// The back end of a vhost-user socket, whose guest is not of this process.
pub(in crate::port) fn vhost() -> Capabilities {
    Capabilities {
        args: "iface=/tmp/s,tso=1".into(),
        max_rx_queues: 1,
        max_tx_queues: 1,
        rx_offloads: sys::HEDDLE_RX_OFFLOAD_TCP_CKSUM | 5,
        tx_offloads: sys::HEDDLE_TX_OFFLOAD_TCP_CKSUM | sys::HEDDLE_TX_OFFLOAD_MULTI_SEGS | 5,
        ..virtual_device("net_vhost")
    }
}

/// Returns all of these devices.
pub(in crate::port) fn all() -> Vec<Capabilities> {
    vec![
        ice(),
        e1000e(),
        i40e(),
        ixgbe(),
        mlx5(),
        ena(),
        virtio(),
        virtio_rss(),
        vmxnet3(),
        af_packet(),
        tap(),
        memif(),
        vhost(),
        ring(),
    ]
}
