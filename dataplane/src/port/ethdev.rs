//! A device behind a port: claimed, configured, started; stopped when dropped, and removed if it
//! was plugged in for the port.

use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_dpdk_sys as sys;
use heddle_shm::Region;

use super::claim::Claim;
use super::dma::{BusDevice, Mapping};
use super::error::PortError;
use super::lock::control;
use super::members::Members;
use super::quirks;
use super::ring::RingPair;
use super::vdev::VdevArg;
use crate::eal::pci::{PciFacts, is_absent, pci_name};
use crate::eal::{self, Eal};

/// The other end of a device, if it is a port of this process.
#[derive(Debug)]
pub(super) enum Joint {
    /// Rings, which are freed after the device.
    Rings(Arc<RingPair>),
    /// A front end of vhost-user. It takes frames of many segments if `joins`.
    Front { joins: bool },
    /// The back end of vhost-user. Only its `Drop` matters: the back end serves the front end until
    /// that is closed, and is closed after it.
    Back(#[allow(dead_code, reason = "kept for its drop")] Arc<EthDev>),
}

/// A device that is ours to use, which the handles of port and queues share.
#[derive(Debug)]
pub(crate) struct EthDev {
    pub(crate) id: u16,
    pub(crate) name: String,
    /// Arguments of the virtual device.
    pub(super) args: String,
    /// `None` after the device is closed.
    claim: Option<Claim>,
    /// Name on the virtual bus of a device that was plugged in for the port; `None` for a device
    /// that the EAL had before, which stays with the EAL.
    plugged: Option<CString>,
    /// The device was unplugged, so the EAL has to give it up.
    unplugged: bool,
    /// Dropped after the device.
    joint: Option<Joint>,
    /// The members of a bond, dropped after the device.
    pub(super) members: Option<Members>,
    /// The kernel driver that the device is bound to, if it is a PCI device.
    pub(super) bound_to: Option<String>,
    /// Regions that the device may reach.
    mappings: Mutex<Vec<Mapping>>,
}

impl EthDev {
    fn new(claim: Claim, name: String) -> EthDev {
        EthDev {
            id: claim.port(),
            name,
            args: String::new(),
            claim: Some(claim),
            plugged: None,
            unplugged: false,
            joint: None,
            members: None,
            bound_to: None,
            mappings: Mutex::new(Vec::new()),
        }
    }

    /// Returns a device that was made for the port, under `bus_name` on the virtual bus.
    pub(crate) fn plugged(claim: Claim, name: String, bus_name: CString) -> EthDev {
        let mut device = EthDev::new(claim, name);
        device.plugged = Some(bus_name);
        device
    }

    /// Returns the device with its other end, of which it keeps alive what it needs.
    pub(super) fn joined_by(mut self, joint: Joint) -> EthDev {
        self.joint = Some(joint);
        self
    }

    /// Returns the device with the members that it joins.
    pub(super) fn bonding(mut self, members: Members) -> EthDev {
        self.members = Some(members);
        self
    }

    /// Drops a device that was unplugged, and has the EAL give it up.
    pub(super) fn give_up(mut self) {
        self.unplugged = true;
    }

    /// Notes that the device is a member of the bond of that name.
    pub(super) fn join_bond(&self, bond: &str) {
        if let Some(claim) = &self.claim {
            claim.bonded(bond);
        }
    }

    pub(crate) fn check(&self, step: &'static str, rc: i32) -> Result<(), PortError> {
        if rc == 0 {
            return Ok(());
        }
        let why = eal::reason(rc);
        Err(PortError::Setup { device: self.name.clone(), step, why })
    }

    pub(crate) fn info(&self) -> Result<sys::rte_eth_dev_info, PortError> {
        let mut info = sys::rte_eth_dev_info::default();
        let _control = control();
        eal::clear_log();
        // SAFETY: a valid port; the callee fills `info`.
        let rc = unsafe { sys::rte_eth_dev_info_get(self.id, &mut info) };
        self.check("query", rc)?;
        Ok(info)
    }

    pub(crate) fn start(&self) -> Result<(), PortError> {
        let _control = control();
        eal::clear_log();
        // SAFETY: a configured port with all its queues set up.
        self.check("start", unsafe { sys::rte_eth_dev_start(self.id) })
    }

    /// Returns true if the device was made for the port.
    pub(super) fn is_plugged(&self) -> bool {
        self.plugged.is_some()
    }

    /// Returns true if the device is on a bus, and is no longer there.
    pub(super) fn is_absent(&self) -> bool {
        !self.is_plugged() && pci_name(&self.name).is_some_and(|name| is_absent(&name))
    }

    /// Returns true if every frame that the device sends comes back to it.
    pub(super) fn is_looped(&self) -> bool {
        matches!(&self.joint, Some(Joint::Rings(rings)) if rings.is_looped())
    }

    /// Returns true if the device consists of rings.
    pub(super) fn has_rings(&self) -> bool {
        matches!(self.joint, Some(Joint::Rings(_)))
    }

    /// Returns true if the other end of each queue is the same queue of a port of this process.
    pub(super) fn is_joined(&self) -> bool {
        self.joint.is_some()
    }

    /// Returns true if the other end takes frames of many segments that the driver does not know to
    /// send.
    pub(super) fn far_end_joins(&self) -> bool {
        matches!(self.joint, Some(Joint::Front { joins: true }))
    }
}

/// Returns the name of the driver.
pub(crate) fn driver_name(info: &sys::rte_eth_dev_info) -> String {
    if info.driver_name.is_null() {
        return String::new();
    }
    // SAFETY: DPDK gives NUL-terminated names that live as long as the driver is loaded.
    unsafe { CStr::from_ptr(info.driver_name) }.to_string_lossy().into_owned()
}

impl EthDev {
    /// Lets the device read and write a region (IOMMU mapping), until the region is unmapped or the
    /// port is closed; the port keeps the memory for as long. Virtual devices need no mapping.
    pub(crate) fn map(&self, region: &Arc<Region>) -> Result<(), PortError> {
        if let Some(members) = &self.members {
            return members.map(region);
        }
        let info = self.info()?;
        let Some(len) = region.mapped_len() else { return Ok(()) };
        if self.plugged.is_some() || info.device.is_null() {
            return Ok(());
        }
        let mut mappings = self.mappings();
        if mappings.iter().any(|m| m.is_of(region)) {
            return Ok(());
        }
        let _control = control();
        eal::clear_log();
        // SAFETY: the device of a port that is ours, and stays plugged in until the mappings are
        // dropped.
        let device = unsafe { BusDevice::new(info.device) };
        match Mapping::new(device, region, len) {
            Ok(mapping) => mappings.push(mapping),
            // The bus has no IOMMU, so there is nothing to map.
            Err(libc::ENOTSUP) => {}
            Err(code) => self.check("DMA mapping", -code.abs())?,
        }
        Ok(())
    }

    /// Undoes [`map`](EthDev::map); does nothing if there is no mapping. No frame that the device
    /// still holds may refer to the region.
    pub(crate) fn unmap(&self, region: &Region) {
        if let Some(members) = &self.members {
            members.unmap(region);
        }
        self.mappings().retain(|m| !m.is_of(region));
    }

    fn mappings(&self) -> MutexGuard<'_, Vec<Mapping>> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EthDev {
    fn drop(&mut self) {
        let control = control();
        if let Some(members) = &mut self.members {
            members.leave_running();
        }
        // SAFETY: the port is ours (`claim`) and no queue is left, so no burst runs; stopping a
        // port that is stopped or half set up returns an error code and does no harm.
        let _ = unsafe { sys::rte_eth_dev_stop(self.id) };
        if let Some(members) = &mut self.members {
            members.end_upkeep();
        }
        // Unmap while the device, which the mappings refer to, still exists, and after it has
        // stopped reading and writing.
        self.mappings().clear();
        if let Some(name) = &self.plugged {
            // SAFETY: a stopped port that no other owner has; the device is removed after its port.
            unsafe {
                let _ = sys::rte_eth_dev_close(self.id);
                let _ = sys::rte_eal_hotplug_remove(c"vdev".as_ptr(), name.as_ptr());
            }
        }
        if self.unplugged {
            let mut info = sys::rte_eth_dev_info::default();
            // SAFETY: a stopped port that no other owner has; the callee fills `info`, whose device
            // belongs to the EAL until this call.
            unsafe {
                let known = sys::rte_eth_dev_info_get(self.id, &mut info) == 0;
                if known && !info.device.is_null() {
                    let _ = sys::rte_dev_remove(info.device);
                }
            }
        }
        drop(self.claim.take());
        drop(control);
        drop(self.members.take());
        drop(self.joint.take());
    }
}

/// Makes a virtual device.
pub(crate) fn plug(v: &VdevArg, mtu: u16, queues: usize) -> Result<EthDev, PortError> {
    let args = quirks::arguments(v.name(), v.args(), mtu, queues);
    let (name, c_args) = (v.c_name(), CString::new(args.as_str()).unwrap_or_default());
    let _control = control();
    if let Some(id) = find(v.name()) {
        return Err(in_use(id, v.name()));
    }
    eal::clear_log();
    // SAFETY: the EAL runs; all strings are NUL-terminated (parsing let no NUL through) and copied
    // by the callee.
    let rc = unsafe { sys::rte_eal_hotplug_add(c"vdev".as_ptr(), name.as_ptr(), c_args.as_ptr()) };
    let probe = |why: String| PortError::Probe { device: v.to_string(), why };
    if rc != 0 {
        let why = eal::reason(rc);
        // These two reasons are the EAL's own, of little help to users.
        return Err(probe(if why.starts_with("failed to parse device") {
            "no driver takes a device of this name".into()
        } else if why.starts_with("Driver cannot attach") {
            "the driver refuses it, without a reason; check the arguments".into()
        } else {
            why
        }));
    }
    match find(v.name()).and_then(Claim::take) {
        Some(claim) => {
            let mut device = EthDev::plugged(claim, v.name().to_owned(), name);
            device.args = args;
            Ok(device)
        }
        None => {
            // SAFETY: as above.
            let _ = unsafe { sys::rte_eal_hotplug_remove(c"vdev".as_ptr(), name.as_ptr()) };
            Err(probe("the driver made no port for it".into()))
        }
    }
}

/// Takes a device that the EAL has, unless the device has an owner.
pub(crate) fn attach(given: &str) -> Result<EthDev, PortError> {
    let pci = pci_name(given);
    let _control = control();
    let Some(id) = find(pci.as_deref().unwrap_or(given)) else {
        let why = pci.as_deref().zip(Eal::get()).and_then(|(name, eal)| eal.unusable(name));
        let device = given.to_owned();
        return Err(match why {
            Some(why) => PortError::Unusable { device, why },
            None => PortError::NotFound(device),
        });
    };
    let claim = Claim::take(id).ok_or_else(|| in_use(id, given))?;
    let mut device = EthDev::new(claim, given.to_owned());
    device.bound_to = pci.and_then(|name| PciFacts::read(&name).driver);
    Ok(device)
}

/// Returns the error about a device that has an owner.
fn in_use(id: u16, device: &str) -> PortError {
    let device = device.to_owned();
    match Claim::bond_of(id) {
        Some(bond) => PortError::Bonded { device, bond },
        None => PortError::InUse(device),
    }
}

/// Returns the processor socket of a device that the EAL has.
pub(super) fn socket_of(given: &str) -> Option<u32> {
    let name = pci_name(given).unwrap_or_else(|| given.to_owned());
    let _control = control();
    let id = find(&name)?;
    // SAFETY: a valid port.
    u32::try_from(unsafe { sys::rte_eth_dev_socket_id(id) }).ok()
}

/// Returns true if the PCI device was unplugged, or is about to be: in that case the system waits
/// for the user of the device.
pub(super) fn is_gone(given: &str) -> bool {
    let Some(name) = pci_name(given) else { return false };
    let Ok(c_name) = CString::new(name.as_str()) else { return false };
    // SAFETY: `c_name` is NUL-terminated and outlives the call.
    let asked_back = unsafe { sys::heddle_removed(c_name.as_ptr()) } != 0;
    asked_back || is_absent(&name)
}

pub(super) fn find(name: &str) -> Option<u16> {
    let name = CString::new(name).ok()?;
    let mut id = 0u16;
    // SAFETY: the EAL runs; `name` is NUL-terminated and `id` outlives the call.
    (unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut id) } == 0).then_some(id)
}
