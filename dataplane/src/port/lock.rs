//! One thread configures devices at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// DPDK leaves it to its user to configure devices from one thread at a time; queues may be
/// dropped by any thread, and with them the device.
static CONTROL: Mutex<()> = Mutex::new(());

/// Held around calls that configure, but never while an [`EthDev`](super::ethdev::EthDev) is dropped.
pub(crate) fn control() -> MutexGuard<'static, ()> {
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}
