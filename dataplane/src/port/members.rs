//! The members of a bond, and DPDK's bond device over them.
//!
//! DPDK starts, stops and configures the members with the bond, and looks after their links on its
//! own thread. Beside that, a bond needs what DPDK leaves to its user: bursts even when there are no
//! frames (LACP), emptying the queues of members that carry nothing, and the frames that such members
//! keep. The thread that polls a queue of the bond does this work within its bursts
//! (`heddle_bond_upkeep` in the shim), so no other thread touches a member's queues.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_dpdk_sys as sys;
use heddle_shm::Region;

use super::bond::{
    self, Bond, BondMode, BondState, Lacp, LacpState, MAX_MEMBERS, Member, MemberState,
};
use super::caps::Capabilities;
use super::claim::Claim;
use super::config::PortStats;
use super::error::PortError;
use super::ethdev::{self, EthDev, attach, find, is_gone, plug};
use super::lock::control;
use super::quirks::Quirks;
use crate::eal;
use crate::interface::Interface;

/// A member as long as the bond has it.
#[derive(Debug)]
struct Place {
    name: String,
    id: u16,
    /// Absent when the member was unplugged.
    device: Option<EthDev>,
    /// The kernel's interface behind a virtual device; 0 if there was none.
    interface: u32,
    /// The counters that were read last.
    counted: PortStats,
}

impl Place {
    /// Returns the counters; those of a member that was unplugged stay as they were.
    fn count(&mut self) -> PortStats {
        // A NIC that is no longer in its slot has all ones in every register.
        if let Some(device) = self.device.as_ref().filter(|d| !d.is_absent()) {
            self.counted = super::stats(device);
        }
        self.counted
    }

    /// Returns true if the member was unplugged, or the system asks it back, and the bond has it still.
    fn is_lost(&self) -> bool {
        self.device.as_ref().is_some_and(|device| match device.is_plugged() {
            true => self.interface != 0 && Interface::is_gone(self.interface),
            false => is_gone(&self.name),
        })
    }
}

/// The members of a bond.
#[derive(Debug)]
pub(super) struct Members {
    mode: BondMode,
    bond: u16,
    places: Mutex<Vec<Place>>,
    capabilities: Vec<Capabilities>,
    /// Milliseconds between two looks at the members' links.
    interval: u32,
    /// The upkeep of each queue, once the bond has started.
    upkeep: Mutex<Vec<Upkeep>>,
}

/// The work of a queue beside frames.
#[derive(Debug)]
struct Upkeep(NonNull<sys::heddle_bond_upkeep>);

// SAFETY: the calls on it that other threads make use atomic operations; the thread that polls the
// queue reaches it by DPDK's callback.
unsafe impl Send for Upkeep {}

/// The time in which a worker that polls takes its next bursts, with some to spare: no nap is longer
/// than 10 ms.
const PATIENCE: Duration = Duration::from_millis(200);

impl Members {
    /// Returns what the members' drivers report.
    pub(super) fn capabilities(&self) -> &[Capabilities] {
        &self.capabilities
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn upkeep(&self) -> MutexGuard<'_, Vec<Upkeep>> {
        self.upkeep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets each member reach a region, or none.
    pub(super) fn map(&self, region: &Arc<Region>) -> Result<(), PortError> {
        let places = self.places();
        let mut devices = places.iter().filter_map(|p| p.device.as_ref());
        let mapped = devices.try_for_each(|device| device.map(region));
        if mapped.is_err() {
            places.iter().filter_map(|p| p.device.as_ref()).for_each(|d| d.unmap(region));
        }
        mapped
    }

    /// Undoes [`map`](Self::map).
    pub(super) fn unmap(&self, region: &Region) {
        self.places().iter().filter_map(|p| p.device.as_ref()).for_each(|d| d.unmap(region));
    }

    /// Makes each member take frames for groups of stations: an active-backup bond itself passes
    /// this on to the active member alone, and not to a primary that takes over again.
    pub(super) fn hear_groups(&self) {
        for place in self.places().iter().filter(|p| p.device.is_some()) {
            // SAFETY: a started port, which stays ours while the places are locked.
            let _ = unsafe { sys::rte_eth_allmulticast_enable(place.id) };
        }
    }

    /// Completes the start of the bond with `queues` pairs of queues, for which DPDK has started the
    /// members. `all` says whether the members are to take frames for every address.
    pub(super) fn started(&self, device: &EthDev, queues: u16, all: bool) -> Result<(), PortError> {
        let _control = control();
        let places = self.places();
        if self.mode == BondMode::Lacp {
            let mut addr = sys::rte_ether_addr { addr_bytes: device.address().unwrap_or_default() };
            for place in places.iter() {
                // DPDK gives the bond's address to the first member whose link comes up, and not to
                // the others.
                // SAFETY: a started port of ours; the address is copied.
                let _ = unsafe { sys::rte_eth_dev_default_mac_addr_set(place.id, &mut addr) };
            }
            // DPDK drops broadcasts and groups, and so ARP, unless the bond is told to take groups.
            // SAFETY: a started port.
            let groups = unsafe { sys::rte_eth_allmulticast_enable(self.bond) } == 0;
            if !groups || all {
                eal::clear_log();
                // SAFETY: a started port.
                let rc = unsafe { sys::rte_eth_promiscuous_enable(self.bond) };
                device.check(if groups { "taking all frames" } else { "taking groups" }, rc)?;
            }
        }
        let ids: Vec<u16> = places.iter().map(|p| p.id).collect();
        let lacp = i32::from(self.mode == BondMode::Lacp);
        let count = u16::try_from(ids.len()).unwrap_or(0);
        let mut upkeep = self.upkeep();
        for queue in 0..queues {
            // SAFETY: a started port with that queue, which no thread polls yet; the list is copied.
            let made =
                unsafe { sys::heddle_bond_upkeep_add(self.bond, queue, lacp, ids.as_ptr(), count) };
            let why = || eal::error_text(eal::last_errno());
            upkeep.push(Upkeep(NonNull::new(made).ok_or_else(|| PortError::Setup {
                device: device.name.clone(),
                step: "upkeep of members",
                why: why(),
            })?));
        }
        Ok(())
    }

    /// Ends the upkeep of a bond that has stopped, or failed to start, and that no thread polls any
    /// more. Waits for DPDK's last look at the members' links: an interval.
    pub(super) fn end_upkeep(&mut self) {
        // SAFETY: the EAL runs.
        unsafe { sys::heddle_bond_await_monitor(self.interval) };
        for Upkeep(upkeep) in self.upkeep().drain(..) {
            // SAFETY: made by `started` and deleted only here; no burst runs.
            unsafe { sys::heddle_bond_upkeep_del(upkeep.as_ptr()) };
        }
    }

    /// Makes members leave the bond before it stops whose drivers ask for it. No thread may poll the bond
    /// any more.
    pub(super) fn leave_running(&mut self) {
        for (place, capabilities) in self.places().iter().zip(&self.capabilities) {
            if place.device.is_some() && Quirks::of(capabilities).leaves_running {
                // SAFETY: our bond, and a port of ours; no burst runs.
                unsafe { sys::heddle_bond_remove_running(self.bond, place.id) };
            }
        }
    }

    /// Returns the state of the bond.
    pub(super) fn state(&self) -> BondState {
        let places = self.places();
        let mut up = [0u16; MAX_MEMBERS];
        let len = u16::try_from(up.len()).unwrap_or(0);
        // SAFETY: our bond; the callee writes at most `len` numbers.
        let n = unsafe { sys::heddle_bond_up_get(self.bond, up.as_mut_ptr(), len) };
        let up = &up[..usize::try_from(n).unwrap_or(0).min(MAX_MEMBERS)];
        // SAFETY: our bond.
        let primary = unsafe { sys::heddle_bond_primary_get(self.bond) };
        let number = |id: u16| places.iter().position(|p| p.id == id);
        let members = places
            .iter()
            .map(|place| {
                let gone = place.device.is_none();
                let is_up = !gone && up.contains(&place.id);
                let lacp = (self.mode == BondMode::Lacp && is_up)
                    .then(|| self.lacp(place.id, number))
                    .flatten();
                let active = match self.mode {
                    BondMode::ActiveBackup => is_up && i32::from(place.id) == primary,
                    BondMode::Lacp => lacp.is_some_and(|l| l.carries()),
                };
                MemberState { device: place.name.clone(), up: is_up, active, gone, lacp }
            })
            .collect();
        drop(places);
        // SAFETY: upkeep of this bond, not deleted while it is locked.
        let dropped = |u: &Upkeep| unsafe { sys::heddle_bond_upkeep_dropped(u.0.as_ptr()) };
        let backup_drops = self.upkeep().iter().map(dropped).sum();
        BondState { mode: self.mode, members, backup_drops }
    }

    fn lacp(&self, member: u16, number: impl Fn(u16) -> Option<usize>) -> Option<Lacp> {
        let mut info = sys::heddle_lacp::default();
        // SAFETY: our bond, and a port; the callee fills `info`.
        let rc = unsafe { sys::heddle_bond_lacp(self.bond, member, &mut info) };
        (rc == 0).then(|| Lacp {
            aggregator: number(info.aggregator).filter(|_| info.selected != 0),
            actor: LacpState(info.actor_state),
            partner: LacpState(info.partner_state),
            system: info.partner_system,
            key: info.partner_key,
            port: info.partner_port,
        })
    }

    /// Returns true if a member carries frames.
    pub(super) fn carries(&self) -> bool {
        self.state().members.iter().any(|m| m.active)
    }

    /// Returns the counters of each member, in the order of the description. A member that was
    /// unplugged keeps its counters.
    pub(super) fn stats(&self) -> Vec<PortStats> {
        self.places().iter_mut().map(Place::count).collect()
    }

    /// Returns true if a member is on a bus.
    pub(super) fn are_on_bus(&self) -> bool {
        let on_bus = |place: &Place| place.device.as_ref().is_some_and(|d| !d.is_plugged());
        self.places().iter().any(on_bus)
    }

    /// Gives the bond's station address to the member that is active by now.
    pub(super) fn readdress(&self, device: &EthDev) {
        let Some(mac) = device.address().filter(|_| self.mode == BondMode::ActiveBackup) else {
            return;
        };
        let _control = control();
        // SAFETY: our bond; the address is copied.
        let _ = unsafe { sys::heddle_bond_mac_set(self.bond, mac.as_ptr()) };
    }

    /// Gives back members that were unplugged, or that the system asks back: it waits until then.
    /// Virtual devices whose interface the kernel has no more go as well. Returns their names. The
    /// call takes milliseconds if there are any, and [`PATIENCE`] if a worker takes no turns; the
    /// members that are left then stay, until the next call.
    pub(super) fn release_lost(&self) -> Vec<String> {
        let mut released = Vec::new();
        let lost = |places: &[Place]| -> Vec<u16> {
            places.iter().filter(|p| p.is_lost()).map(|p| p.id).collect()
        };
        let lost = lost(&self.places());
        for id in lost {
            // A bond without members goes on polling the last that it had.
            if self.places().iter().filter(|p| p.device.is_some()).count() == 1 {
                break;
            }
            {
                let _control = control();
                for upkeep in self.upkeep().iter() {
                    // SAFETY: upkeep of this bond, not deleted while it is locked.
                    unsafe { sys::heddle_bond_upkeep_leave(upkeep.0.as_ptr(), id) };
                }
                // SAFETY: our bond. The call fails if the member has left already.
                let _ = unsafe { sys::heddle_bond_remove(self.bond, id) };
            }
            // A further member must not leave meanwhile: it may be the last that the bond has.
            if !self.bursts_have_ended() {
                break;
            }
            let mut places = self.places();
            let Some(place) = places.iter_mut().find(|p| p.id == id) else { continue };
            place.count();
            let device = place.device.take();
            released.push(place.name.clone());
            drop(places);
            if let Some(device) = device {
                device.give_up();
            }
        }
        released
    }

    /// Waits until each thread that polls a queue of the bond has ended the bursts that it was in.
    fn bursts_have_ended(&self) -> bool {
        let bursts = || -> Vec<u64> {
            // SAFETY: upkeep of this bond, not deleted while it is locked.
            let of = |u: &Upkeep| unsafe { sys::heddle_bond_upkeep_bursts(u.0.as_ptr()) };
            self.upkeep().iter().map(of).collect()
        };
        let before = bursts();
        let until = Instant::now() + PATIENCE;
        // A burst for receiving counts at its end, and one for sending lies between two of them.
        while !bursts().iter().zip(&before).all(|(now, before)| *now >= before + 2) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// Opens the members and joins them in a bond, which is not configured yet.
pub(super) fn bond(bond: &Bond, mtu: u16, queues: usize) -> Result<EthDev, PortError> {
    let problem = |why| PortError::BadDevice { device: "bond".into(), why };
    bond.problem().map_or(Ok(()), |why| Err(problem(why)))?;
    let devices = bond
        .members
        .iter()
        .map(|member| match member {
            Member::Vdev(vdev) => plug(vdev, mtu, queues),
            Member::Device(name) => attach(name),
        })
        .collect::<Result<Vec<_>, _>>()?;
    join(bond, devices)
}

/// Joins devices in a bond.
pub(super) fn join(bond: &Bond, devices: Vec<EthDev>) -> Result<EthDev, PortError> {
    let mut capabilities = Vec::with_capacity(devices.len());
    let mut interfaces = Vec::with_capacity(devices.len());
    for device in &devices {
        let (caps, info) = device.capabilities()?;
        // A number that is none of this namespace's now says nothing later.
        let known = Interface::numbered(info.if_index).is_some() && device.is_plugged();
        interfaces.push(if known { info.if_index } else { 0 });
        if let Some(why) = bond::refusal(bond.mode, &caps) {
            return Err(PortError::NoMember { device: device.name.clone(), why: why.into() });
        }
        capabilities.push(caps);
    }
    let (device, bus_name, name) = make(bond.mode)?;
    let id = device.port();
    let places = devices
        .into_iter()
        .zip(interfaces)
        .map(|(device, interface)| {
            device.join_bond(&name);
            let (name, id, counted) = (device.name.clone(), device.id, PortStats::default());
            Place { name, id, device: Some(device), interface, counted }
        })
        .collect::<Vec<_>>();
    let ids: Vec<(u16, String)> = places.iter().map(|p| (p.id, p.name.clone())).collect();
    let interval = u32::try_from(bond.interval.as_millis()).unwrap_or(u32::MAX);
    let members = Members {
        mode: bond.mode,
        interval,
        bond: id,
        places: Mutex::new(places),
        capabilities,
        upkeep: Mutex::new(Vec::new()),
    };
    // From here on, dropping the device takes the bond and its members apart.
    let device = EthDev::plugged(device, name, bus_name).bonding(members);
    let _control = control();
    for (member, name) in &ids {
        eal::clear_log();
        // SAFETY: a bond that is not started, and a stopped port, both ours.
        let rc = unsafe { sys::heddle_bond_add(id, *member) };
        if rc != 0 {
            let why = eal::reason(rc);
            return Err(PortError::NoMember { device: name.clone(), why });
        }
    }
    eal::clear_log();
    // SAFETY: our bond, which is not started.
    let rc = unsafe { sys::heddle_bond_hash_set(id, bond.hash.raw()) };
    device.check("transmit hash", rc)?;
    // SAFETY: as above.
    let rc = unsafe { sys::heddle_bond_interval_set(id, interval) };
    device.check("interval of looks at links", rc)?;
    let primary = bond.primary.as_ref().and_then(|p| ids.iter().find(|(_, name)| name == p));
    if let Some((primary, _)) = primary {
        // SAFETY: as above, and one of its members.
        device.check("primary member", unsafe { sys::heddle_bond_primary_set(id, *primary) })?;
    }
    Ok(device)
}

/// Makes a bond without members, under the first free name. Returns its claim, its name on the bus and
/// its name.
fn make(mode: BondMode) -> Result<(Claim, std::ffi::CString, String), PortError> {
    let raw = match mode {
        BondMode::ActiveBackup => sys::HEDDLE_BOND_ACTIVE_BACKUP,
        BondMode::Lacp => sys::HEDDLE_BOND_8023AD,
    };
    let _control = control();
    let name = (0..=sys::RTE_MAX_ETHPORTS)
        .map(|n| format!("net_bonding{n}"))
        .find(|name| find(name).is_none())
        .unwrap_or_default();
    let c_name = std::ffi::CString::new(name.as_str()).unwrap_or_default();
    eal::clear_log();
    // SAFETY: the EAL runs; the name is NUL-terminated and copied.
    let id = unsafe { sys::heddle_bond_create(c_name.as_ptr(), raw) };
    match u16::try_from(id).ok().and_then(Claim::take) {
        Some(claim) => Ok((claim, c_name, name)),
        None => Err(PortError::Probe { device: name, why: eal::reason(id) }),
    }
}

/// Returns true if all members were unplugged.
pub(super) fn all_gone(bond: &Bond) -> bool {
    bond.members.iter().all(|m| matches!(m, Member::Device(name) if ethdev::is_gone(name)))
}
