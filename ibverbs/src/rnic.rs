//! The RNIC of the process: one [`Device`], opened at first use, and its queue pairs by number.
//!
//! librdmacm knows a queue pair by its number alone, so `verbs` enters each queue pair here and `ucma` finds
//! it again.

use std::collections::HashMap;
use std::env;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use heddle_verbs::{Device, DeviceError, Qp, Qpn};

/// The node GUID of the device: locally administered, and the same in each process, so that programs of one host
/// agree on it.
pub const GUID: u64 = 0x0200_00ff_fe48_4401;

/// The variable that names the control socket of the RNIC.
pub const SOCKET: &str = "HEDDLE_SOCKET";

/// The control socket that is taken when [`SOCKET`] is not set.
pub const DEFAULT_SOCKET: &str = "/run/heddle.sock";

/// The control socket of this process's RNIC.
pub fn socket() -> PathBuf {
    env::var_os(SOCKET).map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from)
}

/// The device of this process. The first successful call opens it, and it stays open.
///
/// # Errors
/// Those of [`Device::open`]. A later call tries again.
pub fn device() -> Result<&'static Device, DeviceError> {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    static OPENING: Mutex<()> = Mutex::new(());
    if let Some(device) = DEVICE.get() {
        return Ok(device);
    }
    let _guard = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = DEVICE.get() {
        return Ok(device);
    }
    let device = Device::open(socket())?;
    Ok(DEVICE.get_or_init(|| device))
}

/// The addresses of a device, with the bits of their networks.
pub fn addresses(_device: &Device) -> Vec<(Ipv4Addr, u8)> {
    env::var("HEDDLE_ADDR").ok().and_then(|a| a.parse().ok()).map(|a| (a, 24)).into_iter().collect()
}

fn queue_pairs() -> MutexGuard<'static, HashMap<Qpn, Qp>> {
    static QUEUE_PAIRS: OnceLock<Mutex<HashMap<Qpn, Qp>>> = OnceLock::new();
    QUEUE_PAIRS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters a queue pair, so that [`find_qp`] finds it.
pub fn enter_qp(qp: &Qp) {
    queue_pairs().insert(qp.qpn(), qp.clone());
}

/// Removes a queue pair that the program destroys.
pub fn remove_qp(qpn: Qpn) {
    queue_pairs().remove(&qpn);
}

/// The queue pair of that number, if the program has one.
pub fn find_qp(qpn: Qpn) -> Option<Qp> {
    queue_pairs().get(&qpn).cloned()
}
