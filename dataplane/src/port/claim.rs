//! Who has which port: one owner in the process.
//!
//! A device that the EAL has already can be named by anybody ([`super::PortSource::Device`]), also
//! while a worker polls it. So nothing is done to a port before it is claimed.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

static CLAIMED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port nobody else may configure, stop or close; given up when dropped.
#[derive(Debug)]
pub(crate) struct Claim(u16);

impl Claim {
    /// `None` when somebody has it. Called, like the drop, under [`super::lock::control`], so that
    /// the number of a port that is just closed is not that of one just made.
    pub(crate) fn take(port: u16) -> Option<Claim> {
        let free = claimed().insert(port);
        // Not `then_some`: a claim that is made is given up, also when it was never granted.
        free.then(|| Claim(port))
    }

    /// The port's number in DPDK.
    pub(crate) fn port(&self) -> u16 {
        self.0
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        claimed().remove(&self.0);
    }
}

fn claimed() -> MutexGuard<'static, BTreeSet<u16>> {
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_port_has_one_owner_at_a_time() {
        // Numbers that no device of another test has.
        let claim = Claim::take(60_001).unwrap();
        assert!(Claim::take(60_001).is_none());
        assert_eq!(Claim::take(60_002).map(|c| c.port()), Some(60_002));
        drop(claim);
        assert!(Claim::take(60_001).is_some());
    }
}
