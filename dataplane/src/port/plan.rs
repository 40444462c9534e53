//! What a port is set up to, decided from what the device says and what is asked for.
//!
//! Nothing here calls DPDK: [`plan`] takes [`Capabilities`] and gives a [`PortPlan`] or the reason
//! there is none. `docs/guide/hardware.md` says the same in prose, for each family of drivers.

use heddle_dpdk_sys as sys;

use super::caps::Capabilities;
use super::config::{PortCaps, PortConfig};
use super::error::PortError;
use super::queue::TxRules;
use super::quirks::Quirks;
use super::spread::{self, RssPlan};

#[cfg(test)]
pub(super) mod devices;
#[cfg(test)]
pub(super) mod tests;

/// What a port is set up to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// Pairs of queues.
    pub queues: u16,
    /// What the device is told of the MTU.
    pub mtu: MtuPlan,
    /// Receive offloads to switch on.
    pub rx_offloads: u64,
    /// Transmit offloads to switch on.
    pub tx_offloads: u64,
    /// Receive descriptors of each queue.
    pub rx_desc: u16,
    /// Transmit descriptors of each queue.
    pub tx_desc: u16,
    /// How the device is to spread flows over its queues.
    pub rss: Option<RssPlan>,
    /// Why it is not known which queue a flow comes to, when there are several.
    pub unknown: Option<String>,
    /// What is switched on, in the words of users.
    pub caps: PortCaps,
    /// Most segments a frame may have; `None`: as many as ours have.
    pub max_segs: Option<u16>,
    /// The port's address, and how the device is to learn it.
    pub mac: MacPlan,
    /// Whether receive queues are to interrupt: asked for, and possible as far as is known before the
    /// device is configured.
    pub rx_interrupt: bool,
    /// Whether the link is that of an interface of the kernel, which is asked instead of the device.
    pub kernel_link: bool,
    /// The processor socket where its memory and its workers belong.
    pub socket: Option<u32>,
    /// The host's kernel uses the device as well: it takes all that no rule of ours takes.
    pub isolated: bool,
}

impl PortPlan {
    /// What the device needs of the frames it is given. `has_prepare` says whether its driver has
    /// something to see them with, which is known once it has started.
    ///
    /// It has to see them when it has that and computes checksums: what it then wants in the headers
    /// differs between drivers. All else that it could object to is kept from it: the length and the
    /// number of segments.
    pub(super) fn tx_rules(&self, has_prepare: bool) -> TxRules {
        let checksums = self.caps.tx_ip_checksum || self.caps.tx_tcp_checksum;
        let max_segs = if self.caps.multi_segs { self.max_segs.map(usize::from) } else { Some(1) };
        TxRules { max_segs: max_segs.unwrap_or(usize::MAX), prepares: has_prepare && checksums }
    }
}

/// What a device is told of the MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtuPlan {
    /// When its queues are configured.
    pub configured: u16,
    /// Afterwards, where it has to be told so that the wire's side follows.
    pub set: Option<u16>,
}

/// The port's address, and how the device is to learn it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MacPlan {
    /// The device's own.
    Own([u8; 6]),
    /// Another one, that the device need not be told: it passes on whatever comes.
    Beside([u8; 6]),
    /// Another one in the place of the device's. One that cannot be set is received for all the same
    /// by a device that takes frames for all addresses.
    Set([u8; 6]),
    /// One more, beside that of the host's kernel.
    Add([u8; 6]),
}

impl MacPlan {
    /// The address.
    pub fn addr(self) -> [u8; 6] {
        match self {
            MacPlan::Own(m) | MacPlan::Beside(m) | MacPlan::Set(m) | MacPlan::Add(m) => m,
        }
    }
}

/// Octets of a frame around the IP packet: Ethernet header and CRC.
const ETHERNET: u32 = 18;

/// Decides how `device` is set up with `queues` pairs of queues that receive into buffers of `room`
/// octets, headroom not counted.
///
/// # Errors
/// What it cannot do of what is asked for: [`PortError::Limit`], [`PortError::Below`],
/// [`PortError::Spread`], [`PortError::Shared`].
pub(super) fn plan(
    device: &str,
    caps: &Capabilities,
    (queues, room): (usize, u32),
    config: &PortConfig,
) -> Result<PortPlan, PortError> {
    let quirks = Quirks::of(&caps.driver, &caps.args);
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
    let longest = caps.max_rx_pktlen.saturating_sub(ETHERNET);
    let longest = if quirks.understates_mtu { u32::MAX } else { longest };
    limit("an MTU", mtu, u32::from(caps.max_mtu).min(longest))?;
    below("an MTU", mtu, u32::from(caps.min_mtu))?;
    if quirks.kernel_mtu
        && let Some(of_kernel) = caps.host_mtu
    {
        limit("an MTU", mtu, of_kernel)?;
    }

    below("receive buffers", room, caps.min_rx_bufsize)?;
    let small = room < mtu + ETHERNET;
    let scatters = quirks.scatters || caps.rx_offloads & sys::HEDDLE_RX_OFFLOAD_SCATTER != 0;
    if small && !scatters {
        below("receive buffers", room, mtu + ETHERNET)?;
    }

    let (rss, unknown) = match spread::plan(caps, &quirks, queues, &config.rss_key) {
        Ok(rss) => (rss, None),
        Err(why) if config.steered => (None, Some(why)),
        Err(why) => {
            return Err(PortError::Spread { device: device.to_owned(), queues, why });
        }
    };

    let mut rx = sys::HEDDLE_RX_OFFLOAD_IPV4_CKSUM | sys::HEDDLE_RX_OFFLOAD_TCP_CKSUM;
    if small {
        rx |= sys::HEDDLE_RX_OFFLOAD_SCATTER;
    }
    if rss.is_some() {
        rx |= sys::HEDDLE_RX_OFFLOAD_RSS_HASH;
    }
    // Never MBUF_FAST_FREE: it forbids external buffers and several mempools.
    let mut tx = sys::HEDDLE_TX_OFFLOAD_IPV4_CKSUM | sys::HEDDLE_TX_OFFLOAD_MULTI_SEGS;
    if !quirks.wrong_tcp_checksum {
        tx |= sys::HEDDLE_TX_OFFLOAD_TCP_CKSUM;
    }
    let (rx, tx) = (rx & caps.rx_offloads, tx & caps.tx_offloads);

    if quirks.bifurcated && config.addrs.is_empty() {
        return Err(PortError::Shared { device: device.to_owned() });
    }
    Ok(PortPlan {
        queues,
        mtu: mtu_plan(caps, &quirks, config.mtu),
        rx_offloads: rx,
        tx_offloads: tx,
        rx_desc: caps.rx_desc.fit(config.rx_desc),
        tx_desc: caps.tx_desc.fit(config.tx_desc),
        rss,
        unknown,
        caps: port_caps(rx, tx, &quirks),
        max_segs: max_segs(caps, config.mtu),
        mac: mac_plan(device, caps, &quirks, config.mac),
        rx_interrupt: config.rx_interrupt && caps.has_message_interrupts(),
        kernel_link: quirks.kernel_link,
        socket: caps.socket,
        isolated: quirks.bifurcated,
    })
}

fn port_caps(rx: u64, tx: u64, quirks: &Quirks) -> PortCaps {
    PortCaps {
        rx_ip_checksum: rx & sys::HEDDLE_RX_OFFLOAD_IPV4_CKSUM != 0,
        rx_tcp_checksum: rx & sys::HEDDLE_RX_OFFLOAD_TCP_CKSUM != 0,
        tx_ip_checksum: tx & sys::HEDDLE_TX_OFFLOAD_IPV4_CKSUM != 0,
        tx_tcp_checksum: tx & sys::HEDDLE_TX_OFFLOAD_TCP_CKSUM != 0,
        multi_segs: tx & sys::HEDDLE_TX_OFFLOAD_MULTI_SEGS != 0 || quirks.takes_chains,
        rx_hash: rx & sys::HEDDLE_RX_OFFLOAD_RSS_HASH != 0,
    }
}

fn mtu_plan(caps: &Capabilities, quirks: &Quirks, mtu: u16) -> MtuPlan {
    let configured = if quirks.understates_mtu { mtu.min(1500) } else { mtu };
    // An interface of the kernel keeps its own; one that the kernel shares is only raised.
    let set = if quirks.kernel_mtu || quirks.understates_mtu {
        None
    } else if quirks.bifurcated {
        caps.host_mtu.is_none_or(|of_host| of_host < u32::from(mtu)).then_some(mtu)
    } else {
        Some(mtu)
    };
    MtuPlan { configured, set }
}

/// Most segments of a frame we make: headers, and then for each FPDU one segment that refers to its
/// payload, which is copied when it is shorter than 256 octets, and one for what follows. A frame can
/// begin and end in the middle of one.
pub(super) fn longest_chain(mtu: u16) -> u16 {
    let fpdus = u32::from(mtu) / crate::tx::TX_COPY_BELOW;
    u16::try_from(3 + 2 * fpdus).unwrap_or(u16::MAX)
}

/// We never ask for TSO, so what counts is the limit for a frame that goes out as it is. A driver that
/// names none leaves a zero or the largest number.
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
            // As unlike others as the one it comes from, but locally administered.
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
