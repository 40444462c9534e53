//! The setup of a port, decided from the device's capabilities and the configuration.
//!
//! Nothing here calls DPDK: [`plan`] takes [`Capabilities`] and returns a [`PortPlan`] or the
//! reason why there is none. `docs/guide/hardware.md` says the same in prose, for each family of
//! drivers.

use heddle_dpdk_sys as sys;

use super::caps::Capabilities;
use super::config::{Offloads, PortCaps, PortConfig};
use super::error::PortError;
use super::queue::TxRules;
use super::quirks::Quirks;
use super::spread::{self, RssPlan};

#[cfg(test)]
pub(super) mod devices;
#[cfg(test)]
pub(super) mod tests;

/// The setup of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// Pairs of queues.
    pub queues: u16,
    /// The MTU that the device gets.
    pub mtu: MtuPlan,
    /// Receive offloads to switch on (`RTE_ETH_RX_OFFLOAD_*`).
    pub rx_offloads: u64,
    /// Transmit offloads to switch on (`RTE_ETH_TX_OFFLOAD_*`).
    pub tx_offloads: u64,
    /// The longest frame in bytes into which the device may join segments; 0 for the driver's own
    /// limit.
    pub max_lro_pktlen: u32,
    /// Receive descriptors of each queue.
    pub rx_desc: u16,
    /// Transmit descriptors of each queue.
    pub tx_desc: u16,
    /// How the device spreads flows over its queues.
    pub rss: Option<RssPlan>,
    /// Why it is unknown to which queue a flow comes, if there are several.
    pub unknown: Option<String>,
    /// The capabilities that are switched on, in the words of users.
    pub caps: PortCaps,
    /// The most mbuf segments that a frame may have; `None` if our frames never have too many.
    pub max_segs: Option<u16>,
    /// The most TCP segments of a frame that the device cuts; 1 if it cuts none.
    pub cuts: u16,
    /// The port's address, and how the device learns it.
    pub mac: MacPlan,
    /// Whether receive queues interrupt: asked for, and possible as far as is known before the
    /// device is configured.
    pub rx_interrupt: bool,
    /// Whether the port reads the link of an interface of the kernel, instead of the device's.
    pub kernel_link: bool,
    /// The processor socket where the port's memory and workers belong.
    pub socket: Option<u32>,
    /// Whether the device reads DPDK's own memory alone: payload in registered memory is copied.
    pub reads_own_memory: bool,
    /// Whether the host's kernel uses the device as well: the kernel gets every frame that no rule
    /// of ours takes.
    pub isolated: bool,
    /// Whether the device is a bond of others.
    pub bonded: bool,
}

impl PortPlan {
    /// Returns the device's requirements for the frames that it gets. `has_prepare` says whether
    /// its driver has a function that must see the frames first, which is known once the device has
    /// started.
    ///
    /// The driver must see the frames if it has such a function and computes checksums: the headers
    /// that it then expects differ between drivers. `TxQueue` itself avoids every other reason for
    /// a refusal: the length and the number of segments.
    pub(super) fn tx_rules(&self, has_prepare: bool) -> TxRules {
        let checksums = self.caps.tx_ip_checksum || self.caps.tx_tcp_checksum;
        let max_segs = if self.caps.multi_segs { self.max_segs.map(usize::from) } else { Some(1) };
        TxRules {
            max_segs: max_segs.unwrap_or(usize::MAX),
            cuts: self.cuts,
            prepares: has_prepare && checksums,
        }
    }
}

impl PortPlan {
    /// Returns true if the device has an offload that joins segments, and is to switch it on.
    pub(super) fn switches_lro(&self) -> bool {
        self.rx_offloads & sys::HEDDLE_RX_OFFLOAD_TCP_LRO != 0
    }

    /// Returns true if the device brings only frames of VLANs that it was told of.
    pub(super) fn filters_vlans(&self) -> bool {
        self.rx_offloads & sys::HEDDLE_RX_OFFLOAD_VLAN_FILTER != 0
    }

    /// Returns the plan for a device that refuses to join segments.
    pub(super) fn without_lro(self) -> PortPlan {
        PortPlan {
            rx_offloads: self.rx_offloads & !sys::HEDDLE_RX_OFFLOAD_TCP_LRO,
            max_lro_pktlen: 0,
            caps: PortCaps { lro: false, ..self.caps },
            ..self
        }
    }
}

/// The MTU that a device gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtuPlan {
    /// The MTU with which its queues are configured.
    pub configured: u16,
    /// The MTU to set afterwards, if the device needs that to change its limit on the wire.
    pub set: Option<u16>,
}

/// The port's address, and how the device learns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MacPlan {
    /// The device's own address.
    Own([u8; 6]),
    /// Another address, which the device need not know: the device passes on every frame.
    Beside([u8; 6]),
    /// Another address in the place of the device's. If the device cannot set the address, it still
    /// receives frames for the address if it can take frames for all addresses.
    Set([u8; 6]),
    /// An additional address, beside that of the host's kernel.
    Add([u8; 6]),
}

impl MacPlan {
    /// Returns the address.
    pub fn addr(self) -> [u8; 6] {
        match self {
            MacPlan::Own(m) | MacPlan::Beside(m) | MacPlan::Set(m) | MacPlan::Add(m) => m,
        }
    }
}

/// Bytes of a frame around the IP packet: Ethernet header and CRC.
const ETHERNET: u32 = 18;
/// Bytes of a VLAN's tag.
const TAG: u32 = 4;

/// Decides how `device` is set up with `queues` pairs of queues that receive into buffers of `room`
/// bytes, headroom not counted.
///
/// # Errors
/// Fails if the device cannot do what the configuration asks for: [`PortError::Limit`],
/// [`PortError::Below`], [`PortError::Spread`], [`PortError::Shared`], [`PortError::Vlans`].
pub(super) fn plan(
    device: &str,
    caps: &Capabilities,
    queues: usize,
    room: u32,
    config: &PortConfig,
) -> Result<PortPlan, PortError> {
    let quirks = Quirks::of(caps);
    let bonded = !caps.members.is_empty();
    let limit = |what, wanted: u32, max: u32| {
        let device = device.to_owned();
        if wanted <= max { Ok(()) } else { Err(PortError::Limit { device, what, wanted, max }) }
    };
    let below = |what, wanted: u32, min: u32| {
        let device = device.to_owned();
        if wanted >= min { Ok(()) } else { Err(PortError::Below { device, what, wanted, min }) }
    };
    let queues = u16::try_from(queues).unwrap_or(u16::MAX);
    let most = caps.max_rx_queues.min(caps.max_tx_queues);
    limit("a number of queues", u32::from(queues), u32::from(most))?;
    below("a number of queues", u32::from(queues), 1)?;

    let mtu = u32::from(config.mtu);
    let around = if config.vlans.is_empty() { ETHERNET } else { ETHERNET + TAG };
    let longest = caps.max_rx_pktlen.saturating_sub(around);
    let longest = if quirks.understates_mtu { u32::MAX } else { longest };
    limit("an MTU", mtu, u32::from(caps.max_mtu).min(longest))?;
    below("an MTU", mtu, u32::from(caps.min_mtu))?;
    if quirks.kernel_mtu
        && let Some(of_kernel) = caps.host_mtu
    {
        limit("an MTU", mtu, of_kernel)?;
    }

    below("receive buffers", room, caps.min_rx_bufsize)?;
    let small = room < mtu + around;
    let scatters = quirks.scatters || caps.rx_offloads & sys::HEDDLE_RX_OFFLOAD_SCATTER != 0;
    if small && !scatters {
        below("receive buffers", room, mtu + around)?;
    }

    let (rss, unknown) = match spread::plan(caps, &quirks, queues, &config.rss_key) {
        Ok(rss) => (rss, None),
        Err(why) if config.steered => (None, Some(why)),
        Err(why) => {
            return Err(PortError::Spread { device: device.to_owned(), queues, why });
        }
    };

    let mut rx = RX_CHECKSUMS;
    if small {
        rx |= sys::HEDDLE_RX_OFFLOAD_SCATTER;
    }
    if rss.is_some() {
        rx |= sys::HEDDLE_RX_OFFLOAD_RSS_HASH;
    }
    if !config.offloads.rx_checksum {
        rx &= !RX_CHECKSUMS;
    }
    if !config.vlans.is_empty() {
        rx |= sys::HEDDLE_RX_OFFLOAD_VLAN_STRIP;
    }
    if quirks.filters_vlans {
        // Without this offload, the driver refuses VLANs.
        rx |= sys::HEDDLE_RX_OFFLOAD_VLAN_FILTER;
    }
    let lro = joins(caps, &quirks, config.offloads);
    if lro && !quirks.joins {
        rx |= sys::HEDDLE_RX_OFFLOAD_TCP_LRO | sys::HEDDLE_RX_OFFLOAD_SCATTER;
    }
    let (rx, tx) = (rx & caps.rx_offloads, tx_offloads(caps, &quirks, config.offloads));
    let uncut = caps.rings && config.offloads.rings;
    let handed = caps.far_end_joins && config.offloads.tso && tx & WHOLE == WHOLE;
    let port_caps = port_caps(rx, tx, &quirks, uncut);
    let port_caps = PortCaps { tso: port_caps.tso || handed, lro: uncut || lro, ..port_caps };
    let cuts = if port_caps.tso { cuts(caps, &quirks) } else { 1 };

    if quirks.bifurcated && config.addrs.is_empty() {
        return Err(PortError::Shared { device: device.to_owned() });
    }
    if quirks.bifurcated && !config.vlans.is_empty() {
        return Err(PortError::Vlans { device: device.to_owned() });
    }
    Ok(PortPlan {
        queues,
        mtu: mtu_plan(caps, &quirks, config.mtu),
        rx_offloads: rx,
        tx_offloads: tx,
        max_lro_pktlen: if lro { caps.max_lro_pktlen } else { 0 },
        rx_desc: caps.rx_desc.fit(rx_desc(caps, config.rx_desc)),
        tx_desc: caps.tx_desc.fit(config.tx_desc),
        rss,
        unknown,
        caps: port_caps,
        max_segs: max_segs(caps, config.mtu),
        cuts,
        mac: mac_plan(device, caps, &quirks, config.mac),
        rx_interrupt: config.rx_interrupt && !bonded && caps.has_message_interrupts(),
        // The members of a bond have interfaces of their own.
        kernel_link: quirks.kernel_link && !bonded,
        socket: caps.socket,
        reads_own_memory: quirks.reads_own_memory,
        isolated: quirks.bifurcated,
        bonded,
    })
}

/// The most receive buffers that the members of a bond may hold for one of its queues.
const BOND_RX_BUFFERS: u16 = 4096;

/// Returns the receive descriptors of a queue: each member of a bond has as many, and buffers in all
/// of them.
fn rx_desc(caps: &Capabilities, wanted: u16) -> u16 {
    let members = u16::try_from(caps.members.len()).unwrap_or(u16::MAX).max(1);
    wanted.min(BOND_RX_BUFFERS / members)
}

const RX_CHECKSUMS: u64 = sys::HEDDLE_RX_OFFLOAD_IPV4_CKSUM | sys::HEDDLE_RX_OFFLOAD_TCP_CKSUM;

/// The offloads without which a device sends no frame of many segments: each segment is a buffer of
/// a chain, and a checksum that only a later device can fill in.
const WHOLE: u64 = sys::HEDDLE_TX_OFFLOAD_TCP_CKSUM | sys::HEDDLE_TX_OFFLOAD_MULTI_SEGS;

/// Returns true if the device joins segments, and may do so. A frame longer than the MTU takes
/// several buffers, and its checksum is that of no segment: the device has to vouch for it.
fn joins(caps: &Capabilities, quirks: &Quirks, may: Offloads) -> bool {
    const TCP: u64 = sys::HEDDLE_RX_OFFLOAD_TCP_CKSUM;
    const LRO: u64 = sys::HEDDLE_RX_OFFLOAD_TCP_LRO | sys::HEDDLE_RX_OFFLOAD_SCATTER;
    let known = quirks.joins || caps.rx_offloads & LRO == LRO;
    may.lro && may.rx_checksum && known && caps.rx_offloads & TCP != 0
}

/// Returns the transmit offloads of the device to switch on.
fn tx_offloads(caps: &Capabilities, quirks: &Quirks, may: Offloads) -> u64 {
    // Never ask for MBUF_FAST_FREE, which forbids external buffers and several mempools.
    let mut tx = sys::HEDDLE_TX_OFFLOAD_MULTI_SEGS;
    if may.tx_checksum && !quirks.no_tx_checksums {
        tx |= sys::HEDDLE_TX_OFFLOAD_IPV4_CKSUM | sys::HEDDLE_TX_OFFLOAD_TCP_CKSUM;
    }
    // A device that cuts a frame writes the checksums of each segment, and the frame is a chain.
    let mut needs = WHOLE;
    if !quirks.cuts_with_ip_checksum {
        needs |= sys::HEDDLE_TX_OFFLOAD_IPV4_CKSUM;
    }
    if may.tso && tx & caps.tx_offloads & needs == needs && cuts(caps, quirks) > 1 {
        tx |= sys::HEDDLE_TX_OFFLOAD_TCP_TSO;
    }
    tx & caps.tx_offloads
}

/// The most segments of a frame that the device cuts: as many FPDUs as a queue pair makes at a
/// time. At an MTU of 1500 they have 45 KiB.
const CUTS: u16 = 32;

/// Returns the most TCP segments of a frame for which the device has enough mbuf segments: each
/// TCP segment is a buffer of its own, or a payload in registered memory and the bytes before it.
fn cuts(caps: &Capabilities, quirks: &Quirks) -> u16 {
    let most = quirks.cut_segs.or((caps.nb_seg_max > 0).then_some(caps.nb_seg_max));
    most.map_or(CUTS, |most| CUTS.min(most.saturating_sub(1) / 2).max(1))
}

fn port_caps(rx: u64, tx: u64, quirks: &Quirks, uncut: bool) -> PortCaps {
    PortCaps {
        rx_ip_checksum: uncut || rx & sys::HEDDLE_RX_OFFLOAD_IPV4_CKSUM != 0,
        rx_tcp_checksum: uncut || rx & sys::HEDDLE_RX_OFFLOAD_TCP_CKSUM != 0,
        tx_ip_checksum: uncut || tx & sys::HEDDLE_TX_OFFLOAD_IPV4_CKSUM != 0,
        tx_tcp_checksum: uncut || tx & sys::HEDDLE_TX_OFFLOAD_TCP_CKSUM != 0,
        tso: uncut || tx & sys::HEDDLE_TX_OFFLOAD_TCP_TSO != 0,
        lro: uncut,
        multi_segs: tx & sys::HEDDLE_TX_OFFLOAD_MULTI_SEGS != 0 || quirks.takes_chains,
        rx_hash: rx & sys::HEDDLE_RX_OFFLOAD_RSS_HASH != 0,
        rx_vlan_strip: rx & sys::HEDDLE_RX_OFFLOAD_VLAN_STRIP != 0,
    }
}

fn mtu_plan(caps: &Capabilities, quirks: &Quirks, mtu: u16) -> MtuPlan {
    let configured = if quirks.understates_mtu { mtu.min(1500) } else { mtu };
    // An interface of the kernel keeps its own MTU; the MTU of an interface that the kernel shares
    // may only be raised.
    let set = if quirks.kernel_mtu || quirks.understates_mtu || !caps.members.is_empty() {
        // A bond sets the MTU of its members when it starts, and not before.
        None
    } else if quirks.bifurcated {
        caps.host_mtu.is_none_or(|of_host| of_host < u32::from(mtu)).then_some(mtu)
    } else {
        Some(mtu)
    };
    MtuPlan { configured, set }
}

/// Returns the most segments of a frame that we make: headers, and then for each FPDU a segment
/// that refers to its payload and a segment for the bytes after it. Payload shorter than 256 bytes
/// is copied instead. A frame can begin and end in the middle of an FPDU.
pub(super) fn longest_chain(mtu: u16) -> u16 {
    let fpdus = u32::from(mtu) / crate::tx::TX_COPY_BELOW;
    u16::try_from(3 + 2 * fpdus).unwrap_or(u16::MAX)
}

/// Returns the limit on the mbuf segments of a frame that leaves as it is, if our frames can exceed
/// it. A driver that reports no limit leaves a zero or the
/// largest number.
fn max_segs(caps: &Capabilities, mtu: u16) -> Option<u16> {
    let said = [caps.nb_mtu_seg_max, caps.nb_seg_max];
    let most = said.into_iter().filter(|&n| n > 0).min()?;
    (most < longest_chain(mtu)).then_some(most)
}

fn mac_plan(device: &str, caps: &Capabilities, quirks: &Quirks, asked: Option<[u8; 6]>) -> MacPlan {
    if let Some(mac) = asked {
        return if quirks.bifurcated { MacPlan::Add(mac) } else { MacPlan::Set(mac) };
    }
    match caps.mac {
        Some(mut mac) if quirks.shares_mac || quirks.bifurcated => {
            // This address is as unique as the one it comes from, but locally administered.
            mac[0] |= 0x02;
            mac[3] ^= 0x80;
            if quirks.bifurcated { MacPlan::Add(mac) } else { MacPlan::Beside(mac) }
        }
        Some(mac) => MacPlan::Own(mac),
        None => {
            let h = crc32c::crc32c(device.as_bytes()).to_be_bytes();
            MacPlan::Set([0x02, 0x48, h[0], h[1], h[2], h[3]])
        }
    }
}
