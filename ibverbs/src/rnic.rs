//! The RNIC of the process: one [`Device`], opened at first use, and its queue pairs by number.
//!
//! librdmacm knows a queue pair only by its number, so `verbs` enters each queue pair here and
//! `ucma` finds it again.

use std::collections::HashMap;
use std::env;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use heddle_socket::descriptor;
use heddle_verbs::remote::OpenParams;
use heddle_verbs::{Cq, Device, DeviceError, Qp, Qpn};
use net::Net;
use rustix::process::{Resource, getrlimit};

pub(crate) mod fork;
pub(crate) mod interfaces;
pub(crate) mod net;

/// The node GUID of the device: locally administered, and the same in each process, so that
/// programs of one host agree on it.
pub const GUID: u64 = 0x0200_00ff_fe48_4401;

/// The environment variable that names the control socket of the RNIC.
pub const SOCKET: &str = "HEDDLE_SOCKET";

/// The default control socket, for a process without [`SOCKET`].
pub const DEFAULT_SOCKET: &str = "/run/heddle.sock";

/// Returns the control socket of this process's RNIC.
pub fn socket() -> PathBuf {
    env::var_os(SOCKET).map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from)
}

/// The device of this process, leaked, so that references to it stay valid as long as the process
/// lives.
static DEVICE: AtomicPtr<Device> = AtomicPtr::new(null_mut());
static OPENING: Mutex<()> = Mutex::new(());

/// Returns the device of this process. The first successful call opens the device, which then stays
/// open.
///
/// A child that the process forks has no part in the session of its parent: the child's first call
/// opens a device of its own.
///
/// # Errors
/// Returns the errors of [`Device::open_with`]. A later call tries again.
pub fn device() -> Result<&'static Device, DeviceError> {
    // SAFETY: the pointer is null or a leaked box.
    if let Some(device) = unsafe { DEVICE.load(Ordering::Acquire).as_ref() } {
        return Ok(device);
    }
    fork::watch();
    let _guard = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: as above.
    if let Some(device) = unsafe { DEVICE.load(Ordering::Acquire).as_ref() } {
        return Ok(device);
    }
    // Programs register their own memory here, so ask the RNIC for none.
    let params = OpenParams { memory: 0, ..OpenParams::default() };
    let device = set(Device::open_with(socket(), &params)?);
    device.when_ended(crate::verbs::report_end);
    Ok(device)
}

/// Makes `device`, of an RNIC that this process runs itself, the device of the process: the
/// program's calls then reach it without a socket. Returns false, without any change, if the
/// process has already opened a device.
pub fn adopt(device: Device) -> bool {
    let _guard = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let none = DEVICE.load(Ordering::Acquire).is_null();
    if none {
        set(device);
    }
    none
}

fn set(device: Device) -> &'static Device {
    let device: &'static Device = Box::leak(Box::new(device));
    DEVICE.store(std::ptr::from_ref(device).cast_mut(), Ordering::Release);
    device
}

/// Keeps the library's own descriptors out of the numbers that programs expect to get. The library
/// takes only numbers from half of the program's limit on; no program counts on getting so many.
pub fn keep_descriptors_high() {
    const MOST: RawFd = 512;
    let may = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    descriptor::keep_from(RawFd::try_from(may / 2).unwrap_or(MOST).min(MOST));
}

/// Returns the addresses of a device, for a question about `addr`. The device has none if the RNIC
/// is gone.
pub(crate) fn net(device: &Device, addr: SocketAddr) -> Net {
    // Only a link-local address has a scope, so no other question takes the system calls.
    let link = matches!(addr, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local());
    let interfaces = if link { interfaces::all() } else { Vec::new() };
    Net::new(device.ports().unwrap_or_default(), interfaces)
}

/// A queue pair of the program, and its completion queues.
struct Entered {
    qp: Qp,
    cqs: [Cq; 2],
}

fn queue_pairs() -> MutexGuard<'static, HashMap<Qpn, Entered>> {
    static QUEUE_PAIRS: OnceLock<Mutex<HashMap<Qpn, Entered>>> = OnceLock::new();
    QUEUE_PAIRS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters a queue pair, so that [`find_qp`] finds it.
pub fn enter_qp(qp: &Qp, cqs: [Cq; 2]) {
    queue_pairs().insert(qp.qpn(), Entered { qp: qp.clone(), cqs });
}

/// Removes a queue pair that the program destroys.
pub fn remove_qp(qpn: Qpn) {
    queue_pairs().remove(&qpn);
}

/// Returns the queue pair with this number, if the program has one.
pub fn find_qp(qpn: Qpn) -> Option<Qp> {
    queue_pairs().get(&qpn).map(|entered| entered.qp.clone())
}

/// Returns true if requests of this queue pair have succeeded and the program has not polled all their completions.
pub(crate) fn has_unpolled(qpn: Qpn) -> bool {
    let cqs = queue_pairs().get(&qpn).map(|entered| entered.cqs.clone());
    cqs.is_some_and(|cqs| cqs.iter().any(|cq| cq.has_success_of(qpn)))
}
