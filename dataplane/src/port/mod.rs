//! Ports: devices and pairs of rings.
//!
//! A [`Port`] is opened, configured and started in one step, and hands out its queues once, each
//! to be owned by one worker. It is stopped, and what was plugged in for it closed and removed, when
//! the last of port and queues is dropped. A port has one owner in the process, however it is named;
//! there is no `stop`, which would pull the device from under a worker in a burst.
//!
//! **Frames of several segments.** A driver takes them when it announces it. `net_pcap` and
//! `net_null` do not, but write and free whole chains (tested); for others that do not, as
//! `net_af_xdp`, [`crate::TxQueue`] copies the frame into one segment and counts it.
//!
//! **What a device is set up to** is decided in [`plan`](PortPlan) from what it says of itself
//! ([`Capabilities`]) and what is asked for, without a call to DPDK; `setup` carries it out and looks
//! what came of it. `docs/guide/hardware.md` has the rules.
//!
//! Who uses whom; no arrow leads back up:
//!
//! ```text
//!   Port (this file) ──▶ queue, setup, interrupt ──▶ ethdev ──▶ ring ──▶ claim, lock
//!        │                  │                          │ └────▶ dma
//!        └──────────────────┴──▶ plan ──▶ spread, caps, quirks, config ──▶ vdev ──▶ error
//! ```

use std::fmt;
use std::sync::{Arc, Weak};

use heddle_dpdk_sys as sys;
use heddle_verbs::Region;

use crate::eal::Eal;

mod caps;
mod claim;
mod config;
mod dma;
mod error;
mod ethdev;
mod interrupt;
mod lock;
mod plan;
pub mod queue;
mod quirks;
mod ring;
mod setup;
mod spread;
mod vdev;

pub use caps::{Capabilities, DescLimits};
pub use config::{Link, PortCaps, PortConfig, PortSource, PortStats};
pub use error::PortError;
pub use interrupt::RxInterrupt;
pub use plan::{MacPlan, MtuPlan, PortPlan};
pub use spread::{QueueSpread, RSS_KEY, RssPlan};
pub use vdev::VdevArg;

use ethdev::{EthDev, attach, plug};
use queue::{RxQueue, TxQueue};
use ring::RingPair;

/// An opened port.
#[derive(Debug)]
pub struct Port {
    device: Arc<EthDev>,
    driver: String,
    mac: [u8; 6],
    mtu: u16,
    caps: PortCaps,
    spread: QueueSpread,
    queues: Vec<(RxQueue, TxQueue)>,
}

impl Port {
    /// Opens, configures and starts a port.
    ///
    /// # Errors
    /// See [`PortError`]; a device plugged in for the port is removed again.
    pub fn open(_eal: &Eal, source: &PortSource, config: &PortConfig) -> Result<Port, PortError> {
        let device = match source {
            PortSource::Vdev(v) => plug(v, config.mtu, config.pools.len())?,
            PortSource::Device(given) => attach(given)?,
        };
        Port::start(device, config)
    }

    /// Two ports joined by rings of `capacity` frames each way and queue: what one sends, the
    /// other receives, as the same mbufs. Queue `i` is joined to queue `i`. `name` sets the pair
    /// apart from others.
    ///
    /// # Errors
    /// When the name is in use or memory is short.
    pub fn ring_pair(
        _eal: &Eal,
        name: &str,
        capacity: u32,
        a: &PortConfig,
        b: &PortConfig,
    ) -> Result<(Port, Port), PortError> {
        let rings = Arc::new(RingPair::new(name, capacity, a.pools.len().max(b.pools.len()))?);
        let open = |side: usize, config: &PortConfig| {
            let (claim, bus_name) = rings.port(side)?;
            let name = format!("{name}.{}", ["a", "b"][side]);
            let device = EthDev::plugged(claim, name, bus_name).with_rings(Arc::clone(&rings));
            Port::start(device, config)
        };
        Ok((open(0, a)?, open(1, b)?))
    }

    fn start(device: EthDev, config: &PortConfig) -> Result<Port, PortError> {
        // From here on dropping the device closes and unplugs it.
        let device = Arc::new(device);
        let (capabilities, info) = device.capabilities()?;
        let plan = plan::plan(&device.name, &capabilities, config)?;
        device.configure(&info, &plan, &config.pools, config.rx_interrupt)?;
        let all = device.set_address(plan.mac)?;
        device.start()?;
        if config.promiscuous || all {
            // Virtual devices that cannot switch it receive everything anyway.
            // SAFETY: a started port.
            let _ = unsafe { sys::rte_eth_promiscuous_enable(device.id) };
        }
        let spread = device.spread(&plan, config.steered)?;
        let (driver, caps, mac) = (capabilities.driver, plan.caps, plan.mac.addr());
        // SAFETY: a started port.
        let has_prepare = unsafe { sys::heddle_tx_has_prepare(device.id) } != 0;
        let rules = plan.tx_rules(has_prepare);
        let queues = (0u16..)
            .zip(&config.pools)
            .map(|(i, pool)| {
                (
                    RxQueue::new(Arc::clone(&device), i, *pool),
                    TxQueue::new(Arc::clone(&device), i, *pool, rules),
                )
            })
            .collect();
        Ok(Port { device, driver, mac, mtu: config.mtu, caps, spread, queues })
    }

    /// The queues, one pair for each mempool of the configuration; empty when taken before.
    pub fn take_queues(&mut self) -> Vec<(RxQueue, TxQueue)> {
        std::mem::take(&mut self.queues)
    }

    /// The port's name.
    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// Name of its driver.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Its Ethernet address. A device without one gets a locally administered one from its name, and
    /// a `net_tap` one that differs from that of the interface it makes: put into a bridge, the
    /// interface keeps frames for its own address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Largest IP packet in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// What it does by itself.
    pub fn caps(&self) -> PortCaps {
        self.caps
    }

    /// How frames come to its queues.
    pub fn spread(&self) -> &QueueSpread {
        &self.spread
    }

    /// State of its link, without waiting.
    pub fn link(&self) -> Link {
        let (mut mbps, mut up, mut full) = (0, 0, 0);
        // SAFETY: a started port; the callee fills all.
        let rc = unsafe { sys::heddle_link_get(self.device.id, &mut mbps, &mut up, &mut full) };
        let known = rc == 0 && mbps != 0 && mbps != u32::MAX;
        Link {
            up: rc == 0 && up == 1,
            mbps: known.then_some(mbps),
            full_duplex: rc == 0 && full == 1,
        }
    }

    /// What the driver counted.
    pub fn stats(&self) -> PortStats {
        let mut s = sys::rte_eth_stats::default();
        // SAFETY: a started port; the callee fills `s`; zeros stay when it cannot.
        let _ = unsafe { sys::rte_eth_stats_get(self.device.id, &mut s) };
        PortStats {
            rx_frames: s.ipackets,
            rx_bytes: s.ibytes,
            rx_missed: s.imissed,
            rx_errors: s.ierrors,
            rx_no_mbuf: s.rx_nombuf,
            tx_frames: s.opackets,
            tx_bytes: s.obytes,
            tx_errors: s.oerrors,
        }
    }

    /// Receives frames for every address, or no longer.
    ///
    /// # Errors
    /// When the device cannot.
    pub fn set_promiscuous(&self, on: bool) -> Result<(), PortError> {
        // SAFETY: a started port.
        let rc = unsafe {
            if on {
                sys::rte_eth_promiscuous_enable(self.device.id)
            } else {
                sys::rte_eth_promiscuous_disable(self.device.id)
            }
        };
        self.device.check("promiscuous mode", rc)
    }

    /// Its device, as what regions are mapped for.
    pub fn dma(&self) -> DmaPorts {
        DmaPorts(vec![Arc::downgrade(&self.device)])
    }
}

/// Devices that have to reach registered memory. It keeps none of them open.
#[derive(Clone, Debug, Default)]
pub struct DmaPorts(Vec<Weak<EthDev>>);

impl DmaPorts {
    /// The devices of both.
    #[must_use]
    pub fn with(mut self, other: DmaPorts) -> DmaPorts {
        self.0.extend(other.0);
        self
    }

    /// Lets every device read and write a region, or none.
    ///
    /// # Errors
    /// When a mapping fails.
    pub(crate) fn map(&self, region: &Arc<Region>) -> Result<(), PortError> {
        for device in self.0.iter().filter_map(Weak::upgrade) {
            if let Err(e) = device.map(region) {
                self.unmap(region);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Takes that back. A device that is gone has done so itself.
    pub(crate) fn unmap(&self, region: &Region) {
        for device in self.0.iter().filter_map(Weak::upgrade) {
            device.unmap(region);
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self.mac;
        write!(f, "{} ({}, MTU {}, ", self.name(), self.driver, self.mtu)?;
        write!(f, "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x})", m[0], m[1], m[2], m[3], m[4], m[5])
    }
}
