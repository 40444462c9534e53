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
//!        ├──▶ link          │                          │ └────▶ dma
//!        ├──▶ rules ──▶ flow│
//!        └──────────────────┴──▶ conf ──▶ plan ──▶ spread, caps, quirks, config ──▶ vdev ──▶ error
//! ```

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use heddle_dpdk_sys as sys;
use heddle_verbs::Region;

use crate::eal::Eal;
use crate::mempool::HEADROOM;

mod caps;
mod claim;
mod conf;
mod config;
mod dma;
mod error;
mod ethdev;
mod flow;
mod interrupt;
mod link;
mod lock;
mod plan;
pub mod queue;
mod quirks;
mod ring;
mod rules;
mod setup;
mod spread;
mod vdev;

pub use caps::{Capabilities, DescLimits};
pub use config::{Link, PortCaps, PortConfig, PortSource, PortStats};
pub use error::PortError;
pub use flow::FlowRule;
pub use interrupt::RxInterrupt;
pub use plan::{MacPlan, MtuPlan, PortPlan};
pub use spread::{QueueSpread, RSS_KEY, RssPlan};
pub use vdev::VdevArg;

use ethdev::{EthDev, attach, plug};
use link::LinkWatch;
use queue::{RxQueue, TxQueue};
use ring::RingPair;
use rules::Rules;
use setup::{FlowHandle, RuleMaker};

impl PortSource {
    /// The processor socket the device is at, so that its pools can be made there before it is opened;
    /// `None` when there is no such device, or it is of no matter.
    pub fn socket(&self, _eal: &Eal) -> Option<u32> {
        match self {
            PortSource::Vdev(_) => None,
            PortSource::Device(given) => ethdev::socket_of(given),
        }
    }

    /// Returns true if it is a PCI device that was unplugged, or that the system asks back because it is
    /// to be unplugged. The kernel waits until the process ends then: a port is never opened anew.
    pub fn is_gone(&self) -> bool {
        matches!(self, PortSource::Device(given) if ethdev::is_gone(given))
    }
}

/// An opened port.
#[derive(Debug)]
pub struct Port {
    device: Arc<EthDev>,
    capabilities: Capabilities,
    plan: PortPlan,
    mtu: u16,
    spread: QueueSpread,
    /// What the device takes from the host; none where it is ours alone.
    flows: Mutex<Rules<FlowHandle>>,
    broadcast_arp: bool,
    /// The kernel's interface whose link it has; 0 where the device has one of its own.
    interface: u32,
    watch: LinkWatch,
    /// Why its queues do not interrupt though they were to.
    no_interrupts: Option<String>,
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

    /// A port joined to itself by rings of `capacity` frames for each queue: what a queue sends comes back
    /// to it, as the same mbufs. `name` sets the port apart from others. Both halves of a pair of queues
    /// belong to one thread.
    ///
    /// # Errors
    /// When the name is in use or memory is short.
    pub fn looped(
        _eal: &Eal,
        name: &str,
        capacity: u32,
        config: &PortConfig,
    ) -> Result<Port, PortError> {
        let rings = Arc::new(RingPair::looped(name, capacity, config.pools.len())?);
        let (claim, bus_name) = rings.port(0)?;
        let device = EthDev::plugged(claim, name.to_owned(), bus_name).with_rings(rings);
        Port::start(device, config)
    }

    /// Returns true if all that its queues bring is what they have sent ([`Port::looped`]).
    pub fn is_looped(&self) -> bool {
        self.device.is_looped()
    }

    /// Dropping the device closes and unplugs it, also where a step fails.
    fn start(device: EthDev, config: &PortConfig) -> Result<Port, PortError> {
        let (capabilities, info) = device.capabilities()?;
        let room =
            config.pools.iter().map(|p| u32::from(p.data_room()) - u32::from(HEADROOM)).min();
        let buffers = (config.pools.len(), room.unwrap_or(0));
        let plan = plan::plan(&device.name, &capabilities, buffers, config)?;
        let (all, refused) = device.set_up(&info, &plan, &config.pools)?;
        let device = Arc::new(device);
        let mut flows = Rules::default();
        let wanted = flow::rules(&plan, &config.addrs, config.broadcast_arp);
        flows.change(&wanted, &mut RuleMaker { device: &device, plan: &plan })?;
        if config.promiscuous || all {
            // Virtual devices that cannot switch it receive everything anyway.
            // SAFETY: a started port.
            let _ = unsafe { sys::rte_eth_promiscuous_enable(device.id) };
        }
        let spread = device.spread(&plan, config.steered)?;
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
        let interface = if plan.kernel_link { info.if_index } else { 0 };
        let watch = LinkWatch::new(read_link(device.id, interface));
        let no_interrupts = (config.rx_interrupt && !plan.rx_interrupt)
            .then(|| "its kernel driver knows INTx alone".to_owned())
            .or(refused);
        Ok(Port {
            device,
            capabilities,
            plan,
            mtu: config.mtu,
            spread,
            flows: Mutex::new(flows),
            broadcast_arp: config.broadcast_arp,
            interface,
            watch,
            no_interrupts,
            queues,
        })
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
        &self.capabilities.driver
    }

    /// Its Ethernet address. A device without one gets a locally administered one from its name, and
    /// a `net_tap` one that differs from that of the interface it makes: put into a bridge, the
    /// interface keeps frames for its own address.
    pub fn mac(&self) -> [u8; 6] {
        self.plan.mac.addr()
    }

    /// Largest IP packet in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// What it does by itself.
    pub fn caps(&self) -> PortCaps {
        self.plan.caps
    }

    /// What the device says of itself.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// What it was set up to.
    pub fn plan(&self) -> &PortPlan {
        &self.plan
    }

    /// How frames come to its queues.
    pub fn spread(&self) -> &QueueSpread {
        &self.spread
    }

    /// Has a device that the kernel of the host shares take what is for these addresses, and for no others,
    /// as [`PortConfig::addrs`] had it take when it was opened. What is for addresses that it has had
    /// before goes on to come. On any other device there is nothing to do. It may take milliseconds.
    ///
    /// # Errors
    /// [`PortError::Setup`]: there is no rule for one of them, and nothing has changed; or the rule for
    /// one that went stays for now, until the next change.
    pub fn set_addrs(&self, addrs: &[IpAddr]) -> Result<(), PortError> {
        let wanted = flow::rules(&self.plan, addrs, self.broadcast_arp);
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        flows.change(&wanted, &mut RuleMaker { device: &self.device, plan: &self.plan })
    }

    /// The processor socket it is at; `None` when that is not known, or of no matter: a device that is
    /// not on a bus is where its workers are.
    pub fn socket(&self) -> Option<u32> {
        self.plan.socket.filter(|_| !self.device.is_plugged())
    }

    /// State of its link, without waiting.
    pub fn link(&self) -> Link {
        read_link(self.device.id, self.interface)
    }

    /// Waits until the link is up, for `limit` at most; what it is then. A NIC takes seconds to
    /// agree on a speed with its switch, and what is sent before is lost.
    pub fn wait_link(&self, limit: Duration) -> Link {
        const PAUSE: Duration = Duration::from_millis(10);
        let start = Instant::now();
        loop {
            let link = self.link();
            let left = limit.saturating_sub(start.elapsed());
            if link.up || left.is_zero() {
                return link;
            }
            std::thread::sleep(PAUSE.min(left));
        }
    }

    /// What the link has become since the last call, or since the port was opened; `None` when it is as
    /// it was. Each call asks the device, which takes a NIC a few reads of registers or a question to its
    /// firmware, and an interface of the kernel a system call or three: for the control plane, now and
    /// then.
    pub fn poll_link(&self) -> Option<Link> {
        self.watch.news(self.link())
    }

    /// Returns true if the device was on a bus before the port was opened: a NIC, as a rule, which is
    /// slower to ask than a virtual device.
    pub fn is_on_bus(&self) -> bool {
        !self.device.is_plugged()
    }

    /// Why receive queues do not interrupt though [`PortConfig::rx_interrupt`] asked for it; `None`: they
    /// were not asked to, or the device took it. Whether interrupts do arrive is another matter
    /// ([`crate::Rester`]).
    pub fn no_interrupts(&self) -> Option<&str> {
        self.no_interrupts.as_deref()
    }

    /// What the driver counted.
    pub fn stats(&self) -> PortStats {
        stats(&self.device)
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

    /// The way to ask about its link and counters while another has the port. It does not keep the port open.
    pub fn probe(&self) -> PortProbe {
        PortProbe { device: Arc::downgrade(&self.device), interface: self.interface }
    }

    /// Its device, as what regions are mapped for.
    pub fn dma(&self) -> DmaPorts {
        DmaPorts(vec![Arc::downgrade(&self.device)])
    }
}

/// What the driver of a device counted.
fn stats(device: &EthDev) -> PortStats {
    let mut s = sys::rte_eth_stats::default();
    // SAFETY: the device is open, and stays so while it is borrowed; the callee fills `s`; zeros stay when
    // it cannot.
    let _ = unsafe { sys::rte_eth_stats_get(device.id, &mut s) };
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

/// See [`Port::probe`].
#[derive(Clone, Debug)]
pub struct PortProbe {
    device: Weak<EthDev>,
    interface: u32,
}

impl PortProbe {
    /// State of the link, without waiting; `None` when the port is closed.
    pub fn link(&self) -> Option<Link> {
        let device = self.device.upgrade()?;
        Some(read_link(device.id, self.interface))
    }

    /// What the driver counted; `None` when the port is closed.
    pub fn stats(&self) -> Option<PortStats> {
        self.device.upgrade().map(|device| stats(&device))
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
        let m = self.mac();
        write!(f, "{} ({}, MTU {}, ", self.name(), self.driver(), self.mtu)?;
        write!(f, "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x})", m[0], m[1], m[2], m[3], m[4], m[5])
    }
}

fn read_link(port: u16, interface: u32) -> Link {
    let (mut mbps, mut up, mut full) = (0, 0, 0);
    // SAFETY: a started port; the callee fills all.
    let rc = unsafe { sys::heddle_link_get(port, &mut mbps, &mut up, &mut full) };
    let known = rc == 0 && mbps != 0 && mbps != u32::MAX;
    let up = rc == 0 && up == 1 && setup::runs(interface).unwrap_or(true);
    Link { up, mbps: known.then_some(mbps), full_duplex: rc == 0 && full == 1 }
}
