//! A lock that lets one thread at a time configure devices.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// DPDK requires that its user configure devices from one thread at a time; any thread may drop
/// queues, and with them the device.
static CONTROL: Mutex<()> = Mutex::new(());

/// Held around calls that configure, but never while an [`EthDev`](super::ethdev::EthDev) is
/// dropped.
pub(crate) fn control() -> MutexGuard<'static, ()> {
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}
