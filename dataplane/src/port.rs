//! Ports: devices and pairs of rings.
//!
//! [`Port`]'s constructors open, configure and start a port in one step. A [`Port`] hands out its
//! queues once, each for one worker to own. When the last of the port and its queues is dropped,
//! the device is stopped, and closed and removed if it was plugged in for the port. A port has one
//! owner in the process, however callers name it; there is no `stop`, which would pull the device
//! from under a worker in a burst.
//!
//! **Frames of several segments.** A driver takes such frames if it announces this. `net_pcap` and
//! `net_null` do not, but write and free whole chains (tested); for others that do not, such as
//! `net_af_xdp`, [`crate::TxQueue`] copies the frame into one segment and counts the copy.
//!
//! **The setup of a device** follows from the device's [`Capabilities`] and the configuration:
//! [`plan`](PortPlan) decides it without a call to DPDK, and `setup` carries the plan out and
//! checks the result. `docs/guide/hardware.md` has the rules.
//!
//! The uses between these modules; no arrow leads back up:
//!
//! ```text
//!   Port (this file) ──▶ queue, setup, interrupt ──▶ ethdev ──▶ ring ──▶ claim, lock
//!        ├──▶ link          │                          │ └────▶ dma
//!        ├──▶ rules ──▶ flow│
//!        └──────────────────┴──▶ conf ──▶ plan ──▶ spread, caps, quirks, config ──▶ vdev ──▶ error
//! ```
//!
//! A bond is a device that has devices: `ethdev`, `setup` and `members` use each other, and `members`
//! uses `bond`, which has its rules.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use heddle_dpdk_sys as sys;
use heddle_shm::Region;
use heddle_tcp::Vid;

use crate::eal::Eal;
use crate::mempool::HEADROOM;

mod bond;
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
mod members;
mod plan;
pub mod queue;
mod quirks;
mod ring;
mod rules;
mod setup;
mod spread;
mod vdev;
mod vhost;

pub use bond::{
    Bond, BondMode, BondState, Lacp, LacpState, MAX_MEMBERS, Member, MemberState, TransmitHash,
};
pub use caps::{Capabilities, DescLimits};
pub use config::{Link, Offloads, PortCaps, PortConfig, PortSource, PortStats};
pub use error::PortError;
pub use flow::FlowRule;
pub use interrupt::RxInterrupt;
pub use plan::{MacPlan, MtuPlan, PortPlan};
pub use spread::{QueueSpread, RSS_KEY, RssPlan};
pub use vdev::VdevArg;
pub use vhost::VHOST_BUFFERS;

use ethdev::{EthDev, Joint, attach, plug};
use link::{BondWatch, LinkWatch};
pub(crate) use lock::control;
use members::Members;
use queue::{RxQueue, TxQueue};
use ring::RingPair;
use rules::Rules;
use setup::{FlowHandle, RuleMaker};

impl PortSource {
    /// Returns the processor socket of the device, so that the caller can make its pools there
    /// before it opens the device; `None` if there is no such device, or its socket is irrelevant.
    pub fn socket(&self, _eal: &Eal) -> Option<u32> {
        match self {
            PortSource::Vdev(_) => None,
            PortSource::Device(given) => ethdev::socket_of(given),
            PortSource::Bond(_) => self.on_bus().next().and_then(ethdev::socket_of),
        }
    }

    /// Returns true if this is a PCI device that was unplugged, or that the system asks back
    /// because it is about to be unplugged. The kernel then waits until the process ends: a process
    /// never reopens a port. A bond is gone with its last member; for the others see
    /// [`Port::release_lost`].
    pub fn is_gone(&self) -> bool {
        match self {
            PortSource::Vdev(_) => false,
            PortSource::Device(given) => ethdev::is_gone(given),
            PortSource::Bond(bond) => members::all_gone(bond),
        }
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
    /// The rules by which the device takes frames from the host; none if the device is ours alone.
    flows: Mutex<Rules<FlowHandle>>,
    broadcast_arp: bool,
    /// VLANs that the device was told of.
    vlans: Mutex<Vec<Vid>>,
    /// The kernel's interface whose link the port has; 0 if the device has a link of its own.
    interface: u32,
    watch: LinkWatch,
    bond: BondWatch,
    /// Why the queues do not interrupt although the configuration asks for it.
    no_interrupts: Option<String>,
    queues: Vec<(RxQueue, TxQueue)>,
}

impl Port {
    /// Opens, configures and starts a port.
    ///
    /// # Errors
    /// See [`PortError`]; a device that was plugged in for the port is removed again.
    pub fn open(_eal: &Eal, source: &PortSource, config: &PortConfig) -> Result<Port, PortError> {
        let device = match source {
            PortSource::Vdev(v) => plug(v, config.mtu, config.pools.len())?,
            PortSource::Device(given) => attach(given)?,
            PortSource::Bond(bond) => members::bond(bond, config.mtu, config.pools.len())?,
        };
        Port::start(device, config)
    }

    /// Opens two ports joined by rings of `capacity` frames each way and queue: each receives the
    /// frames that the other sends, as the same mbufs. Queue `i` is joined to queue `i`. `name`
    /// sets the pair apart from others.
    ///
    /// # Errors
    /// Fails if the name is in use or memory is short.
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
            let joint = Joint::Rings(Arc::clone(&rings));
            let device = EthDev::plugged(claim, name, bus_name).joined_by(joint);
            Port::start(device, config)
        };
        Ok((open(0, a)?, open(1, b)?))
    }

    /// Opens two bonds, each of `links` rings to the other, as [`Port::ring_pair`] joins two ports: a
    /// wire for LACP without devices. An active-backup bond of rings does not start, because rings
    /// take no station address.
    ///
    /// # Errors
    /// Fails as [`Port::ring_pair`] and [`Port::open`] do.
    pub fn bonded_rings(
        _eal: &Eal,
        name: &str,
        capacity: u32,
        hash: TransmitHash,
        [links, queues]: [usize; 2],
        [a, b]: [&PortConfig; 2],
    ) -> Result<(Port, Port), PortError> {
        let rings = |n| RingPair::new(&format!("{name}{n}"), capacity, queues).map(Arc::new);
        let pairs = (0..links).map(rings).collect::<Result<Vec<_>, _>>()?;
        let open = |side: usize, config: &PortConfig| {
            let member = |(n, rings): (usize, &Arc<RingPair>)| {
                let (claim, bus_name) = rings.port(side)?;
                let name = format!("{name}{n}.{}", ["a", "b"][side]);
                let joint = Joint::Rings(Arc::clone(rings));
                Ok(EthDev::plugged(claim, name, bus_name).joined_by(joint))
            };
            let devices = pairs.iter().enumerate().map(member).collect::<Result<Vec<_>, _>>()?;
            let bond = Bond { hash, ..Bond::new(BondMode::Lacp, Vec::new()) };
            Port::start(members::join(&bond, devices)?, config)
        };
        Ok((open(0, a)?, open(1, b)?))
    }

    /// Opens a port joined to itself by rings of `capacity` frames for each queue: the frames that
    /// a queue sends come back to it, as the same mbufs. `name` sets the port apart from others.
    /// Both halves of a pair of queues belong to one thread.
    ///
    /// # Errors
    /// Fails if the name is in use or memory is short.
    pub fn looped(
        _eal: &Eal,
        name: &str,
        capacity: u32,
        config: &PortConfig,
    ) -> Result<Port, PortError> {
        let rings = RingPair::looped(name, capacity, config.pools.len())?;
        let (claim, bus_name) = rings.port(0)?;
        let joint = Joint::Rings(Arc::new(rings));
        let device = EthDev::plugged(claim, name.to_owned(), bus_name).joined_by(joint);
        Port::start(device, config)
    }

    /// Returns true if the queues bring only the frames that they have sent ([`Port::looped`]).
    pub fn is_looped(&self) -> bool {
        self.device.is_looped()
    }

    /// Sets up and starts a device. If a step fails, dropping the device closes and unplugs it.
    fn start(device: EthDev, config: &PortConfig) -> Result<Port, PortError> {
        let (capabilities, info) = device.capabilities()?;
        let room =
            config.pools.iter().map(|p| u32::from(p.data_room()) - u32::from(HEADROOM)).min();
        let (queues, room) = (config.pools.len(), room.unwrap_or(0));
        let mut plan = plan::plan(&device.name, &capabilities, queues, room, config)?;
        let (all, refused) = match device.set_up(&info, &plan, &config.pools) {
            // Drivers list the offload though the device, or the rest of the setup, rules it out.
            Err(_) if plan.switches_lro() => {
                plan = plan.without_lro();
                device.set_up(&info, &plan, &config.pools)?
            }
            result => result?,
        };
        if let Some(members) = &device.members {
            // The bond itself looks at the addresses of frames, and does not know one beside its own.
            let beside = matches!(plan.mac, MacPlan::Beside(_));
            members.started(&device, plan.queues, beside)?;
        }
        let device = Arc::new(device);
        let mut flows = Rules::default();
        let wanted = flow::rules(&plan, &config.addrs, config.broadcast_arp);
        flows.change(&wanted, &mut RuleMaker { device: &device, plan: &plan })?;
        device.hear_groups(&config.addrs);
        if config.promiscuous || all {
            // Virtual devices without promiscuous mode receive everything anyway.
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
        let watch = LinkWatch::new(read_link(&device, interface));
        let known = if plan.bonded {
            "DPDK's bonds have none"
        } else {
            "its kernel driver knows INTx alone"
        };
        let no_interrupts =
            (config.rx_interrupt && !plan.rx_interrupt).then(|| known.to_owned()).or(refused);
        let bond = BondWatch::new(device.members.as_ref().map(Members::state));
        let port = Port {
            device,
            capabilities,
            plan,
            mtu: config.mtu,
            spread,
            flows: Mutex::new(flows),
            broadcast_arp: config.broadcast_arp,
            vlans: Mutex::new(Vec::new()),
            interface,
            watch,
            bond,
            no_interrupts,
            queues,
        };
        port.set_vlans(&config.vlans)?;
        Ok(port)
    }

    /// Returns the queues, one pair for each mempool of the configuration; none if taken before.
    pub fn take_queues(&mut self) -> Vec<(RxQueue, TxQueue)> {
        std::mem::take(&mut self.queues)
    }

    /// Returns the port's name.
    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// Returns the name of the port's driver.
    pub fn driver(&self) -> &str {
        &self.capabilities.driver
    }

    /// Returns the port's Ethernet address. A device without an address gets a locally administered
    /// one made from its name, and a `net_tap` device one that differs from that of the interface
    /// that it makes: in a bridge, the interface would keep frames for its own address.
    pub fn mac(&self) -> [u8; 6] {
        self.plan.mac.addr()
    }

    /// Returns the largest IP packet in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Returns the work that the port does by itself.
    pub fn caps(&self) -> PortCaps {
        self.plan.caps
    }

    /// Returns the capabilities that the device reports.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Returns the plan by which the port was set up.
    pub fn plan(&self) -> &PortPlan {
        &self.plan
    }

    /// Returns how frames come to the port's queues.
    pub fn spread(&self) -> &QueueSpread {
        &self.spread
    }

    /// Makes a device that the kernel of the host shares take frames for these addresses, and for
    /// no others, as [`PortConfig::addrs`] made it take frames when it was opened. Frames for
    /// addresses that are in both sets come without a gap. With an IPv6 address, any device takes
    /// frames for groups of stations from now on. The call may take milliseconds.
    ///
    /// # Errors
    /// Returns [`PortError::Setup`] if the device takes no rule for one of the addresses, and then
    /// nothing has changed; or if the device does not remove the rule for an old address, which
    /// then stays until the next change.
    pub fn set_addrs(&self, addrs: &[IpAddr]) -> Result<(), PortError> {
        self.device.hear_groups(addrs);
        let wanted = flow::rules(&self.plan, addrs, self.broadcast_arp);
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        flows.change(&wanted, &mut RuleMaker { device: &self.device, plan: &self.plan })
    }

    /// Makes the device take frames of these VLANs, and of no others if it filters VLANs. Frames of
    /// no VLAN come as well, with or without a tag for their priority. Devices without such a filter
    /// bring the frames of all VLANs.
    ///
    /// # Errors
    /// Returns [`PortError::Vlans`] on a device that the kernel of the host shares, and
    /// [`PortError::Setup`] if the device does not take a VLAN; VLANs before it in the list are
    /// taken.
    pub fn set_vlans(&self, vlans: &[Vid]) -> Result<(), PortError> {
        if self.plan.isolated && !vlans.is_empty() {
            return Err(PortError::Vlans { device: self.device.name.clone() });
        }
        if !self.plan.filters_vlans() {
            return Ok(());
        }
        let mut known = self.vlans.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            if vlans.is_empty() {
                return Ok(());
            }
            // Frames with a priority alone.
            self.device.filter_vlan(Vid::NONE, true)?;
            known.push(Vid::NONE);
        }
        for vid in vlans {
            if !known.contains(vid) {
                self.device.filter_vlan(*vid, true)?;
                known.push(*vid);
            }
        }
        let gone = |vid: &Vid| !vid.is_none() && !vlans.contains(vid);
        for vid in known.extract_if(.., |vid| gone(vid)) {
            self.device.filter_vlan(vid, false)?;
        }
        Ok(())
    }

    /// Returns the processor socket of the port; `None` if it is unknown or irrelevant: a device
    /// that is not on a bus is where its workers are.
    pub fn socket(&self) -> Option<u32> {
        let members = self.device.members.as_ref();
        let on_bus = members.map_or(!self.device.is_plugged(), Members::are_on_bus);
        self.plan.socket.filter(|_| on_bus)
    }

    /// Returns the state of the link, without waiting. The link of a bond is up while a member carries
    /// frames; its speed is that of all members whose link is up, or of the active one.
    pub fn link(&self) -> Link {
        read_link(&self.device, self.interface)
    }

    /// Returns the state of the port's bond; `None` if the port is none.
    pub fn bond(&self) -> Option<BondState> {
        self.device.members.as_ref().map(Members::state)
    }

    /// Returns the new state of the port's bond if it has changed, counters aside, since the last call
    /// or since the port was opened. After a change of the active member, this call sees to it that the
    /// member has the bond's station address.
    pub fn poll_bond(&self) -> Option<BondState> {
        let members = self.device.members.as_ref()?;
        let news = self.bond.news(members.state())?;
        members.readdress(&self.device);
        Some(news)
    }

    /// Returns the counters of each member of the port's bond; empty if the port is none. The counters
    /// of a member that was unplugged stay as they were.
    pub fn member_stats(&self) -> Vec<PortStats> {
        self.device.members.as_ref().map(Members::stats).unwrap_or_default()
    }

    /// Gives back members of the port's bond that were unplugged, or that the system asks back, so
    /// that it waits for this process no longer; and virtual devices whose interface the kernel has no
    /// more. Returns their names. The last member stays. The call
    /// takes some milliseconds if there are such members; it waits for up to 200 ms for a worker that
    /// takes no turn, and leaves the member to the next call.
    pub fn release_lost(&self) -> Vec<String> {
        self.device.members.as_ref().map(Members::release_lost).unwrap_or_default()
    }

    /// Waits until the link is up, for `limit` at most, and returns its state then. A NIC takes
    /// seconds to agree on a speed with its switch, and frames sent before that are lost.
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

    /// Returns the new state of the link if it has changed since the last call, or since the port
    /// was opened. Each call asks the device, which costs a NIC a few reads of registers or a
    /// question to its firmware, and an interface of the kernel up to three system calls: the
    /// control plane calls this function now and then.
    pub fn poll_link(&self) -> Option<Link> {
        self.watch.news(self.link())
    }

    /// Returns true if the device was on a bus before the port was opened: as a rule a NIC, which
    /// is slower to ask than a virtual device.
    pub fn is_on_bus(&self) -> bool {
        !self.device.is_plugged()
    }

    /// Returns the reason why receive queues do not interrupt although [`PortConfig::rx_interrupt`]
    /// asks for it; `None` if the configuration does not ask, or the device accepted. Whether
    /// interrupts do arrive is another matter ([`crate::Parker`]).
    pub fn no_interrupts(&self) -> Option<&str> {
        self.no_interrupts.as_deref()
    }

    /// Returns the counters of the driver.
    pub fn stats(&self) -> PortStats {
        stats(&self.device)
    }

    /// Starts or stops receiving frames for every address.
    ///
    /// # Errors
    /// Fails if the device cannot do so.
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

    /// Returns a handle that asks about the port's link and counters while another owner has the
    /// port. The handle does not keep the port open.
    pub fn probe(&self) -> PortProbe {
        PortProbe { device: Arc::downgrade(&self.device), interface: self.interface }
    }

    /// Returns the port's device, for mapping regions.
    pub fn dma(&self) -> DmaPorts {
        DmaPorts {
            devices: vec![Arc::downgrade(&self.device)],
            own_memory: self.plan.reads_own_memory,
        }
    }
}

/// Returns the counters of a device's driver; those of a bond are its members' together, also of
/// members that were unplugged: DPDK counts only those that the bond has now.
fn stats(device: &EthDev) -> PortStats {
    if let Some(members) = &device.members {
        let mut all = PortStats::default();
        members.stats().iter().for_each(|s| all.add(s));
        return all;
    }
    let mut s = sys::rte_eth_stats::default();
    // SAFETY: the device is open, and stays so while it is borrowed; the callee fills `s`, and
    // zeros stay if it cannot.
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

/// A handle to a port's link and counters; see [`Port::probe`].
#[derive(Clone, Debug)]
pub struct PortProbe {
    device: Weak<EthDev>,
    interface: u32,
}

impl PortProbe {
    /// Returns the state of the link, without waiting; `None` if the port is closed.
    pub fn link(&self) -> Option<Link> {
        let device = self.device.upgrade()?;
        Some(read_link(&device, self.interface))
    }

    /// Returns the counters of the driver; `None` if the port is closed.
    pub fn stats(&self) -> Option<PortStats> {
        self.device.upgrade().map(|device| stats(&device))
    }
}

/// Devices that have to reach registered memory. This list keeps none of them open.
#[derive(Clone, Debug, Default)]
pub struct DmaPorts {
    devices: Vec<Weak<EthDev>>,
    /// True if a device can read no memory but DPDK's own (`virtio_user`).
    own_memory: bool,
}

impl DmaPorts {
    /// Returns the devices of both lists.
    #[must_use]
    pub fn with(mut self, other: DmaPorts) -> DmaPorts {
        self.devices.extend(other.devices);
        self.own_memory |= other.own_memory;
        self
    }

    /// Returns true if each device can be made to read registered memory.
    pub(crate) fn read_regions(&self) -> bool {
        !self.own_memory
    }

    /// Lets every device read and write a region, or none.
    ///
    /// # Errors
    /// Fails if a mapping fails.
    pub(crate) fn map(&self, region: &Arc<Region>) -> Result<(), PortError> {
        for device in self.devices.iter().filter_map(Weak::upgrade) {
            if let Err(e) = device.map(region) {
                self.unmap(region);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Undoes [`map`](Self::map). A closed device has already done so itself.
    pub(crate) fn unmap(&self, region: &Region) {
        for device in self.devices.iter().filter_map(Weak::upgrade) {
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

fn read_link(device: &EthDev, interface: u32) -> Link {
    let (mut mbps, mut up, mut full) = (0, 0, 0);
    // SAFETY: a started port; the callee fills all.
    let rc = unsafe { sys::heddle_link_get(device.id, &mut mbps, &mut up, &mut full) };
    let known = rc == 0 && mbps != 0 && mbps != u32::MAX;
    let carries = device.members.as_ref().is_none_or(Members::carries);
    let up = rc == 0 && up == 1 && carries && setup::runs(interface).unwrap_or(true);
    Link { up, mbps: known.then_some(mbps), full_duplex: rc == 0 && full == 1 }
}
