//! Starts DPDK once in this process.
#![allow(clippy::expect_used, reason = "tests")]

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use heddle::dpdk::Hugepages;
use heddle::{Eal, EalConfig};

/// Starts DPDK at the first call. The guard lets only one test at a time drive workers, because
/// processors are few.
pub(crate) fn eal() -> (Eal, MutexGuard<'static, ()>) {
    static EAL: OnceLock<Eal> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let config = EalConfig { hugepages: Hugepages::Never, memory_mb: 1024, ..EalConfig::default() };
    (*EAL.get_or_init(|| Eal::init(&config).expect("DPDK starts")), turn)
}
