//! Helpers that tests within this crate share.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use heddle_dataplane::{Eal, EalConfig, Hugepages};

/// Returns DPDK, started once in this process, and the right to use it: one test runs at a time.
pub(crate) fn eal() -> (Eal, MutexGuard<'static, ()>) {
    static EAL: OnceLock<Eal> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let config = EalConfig { hugepages: Hugepages::Never, memory_mb: 1024, ..EalConfig::default() };
    (*EAL.get_or_init(|| Eal::init(&config).expect("DPDK starts")), turn)
}
