//! Ownership of ports: each port has one owner in the process.
//!
//! Any caller can name a device that the EAL has already ([`super::PortSource::Device`]), even
//! while a worker polls the device. So a caller must claim a port before it does anything to the
//! port.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Claimed ports, and the bond of each that is a member.
static CLAIMED: Mutex<BTreeMap<u16, Option<String>>> = Mutex::new(BTreeMap::new());

/// The right to configure, stop and close a port, which no other owner has; given up when dropped.
#[derive(Debug)]
pub(crate) struct Claim(u16);

impl Claim {
    /// Claims a port; returns `None` if the port has an owner. Callers, and the drop, hold
    /// [`super::lock::control`], so that the number of a port that was just closed is not that of a
    /// port just made.
    pub(crate) fn take(port: u16) -> Option<Claim> {
        let mut claimed = claimed();
        // `then_some` would make a claim even if it is not granted, and give it up again.
        (!claimed.contains_key(&port)).then(|| {
            claimed.insert(port, None);
            Claim(port)
        })
    }

    /// Notes that the port is a member of `bond`.
    pub(super) fn bonded(&self, bond: &str) {
        claimed().insert(self.0, Some(bond.to_owned()));
    }

    /// Returns the bond that has the port as a member.
    pub(super) fn bond_of(port: u16) -> Option<String> {
        claimed().get(&port).cloned().flatten()
    }

    /// Returns the port's number in DPDK.
    pub(crate) fn port(&self) -> u16 {
        self.0
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        claimed().remove(&self.0);
    }
}

fn claimed() -> MutexGuard<'static, BTreeMap<u16, Option<String>>> {
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_port_has_one_owner_at_a_time() {
        // No device of another test has these numbers.
        let claim = Claim::take(60_001).unwrap();
        assert!(Claim::take(60_001).is_none());
        assert_eq!(Claim::take(60_002).map(|c| c.port()), Some(60_002));
        assert_eq!(Claim::bond_of(60_001), None);
        claim.bonded("bond");
        assert_eq!(Claim::bond_of(60_001).as_deref(), Some("bond"));
        drop(claim);
        assert_eq!(Claim::bond_of(60_001), None);
        assert!(Claim::take(60_001).is_some());
    }
}
