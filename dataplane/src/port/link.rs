//! Changes of a link.

use std::sync::{Mutex, PoisonError};

use super::bond::BondState;
use super::config::Link;

/// The last known state of a link.
#[derive(Debug)]
pub(super) struct LinkWatch(Mutex<Link>);

impl LinkWatch {
    /// Returns a watch that starts with `known`, the present state.
    pub(super) fn new(known: Link) -> LinkWatch {
        LinkWatch(Mutex::new(known))
    }

    /// Returns the new state of the link if it has changed since the last call.
    pub(super) fn news(&self, link: Link) -> Option<Link> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::replace(&mut *known, link) != link).then_some(link)
    }
}

/// The last known state of a bond; `None` for a port that is none.
#[derive(Debug)]
pub(super) struct BondWatch(Mutex<Option<BondState>>);

impl BondWatch {
    /// Returns a watch that starts with `known`, the present state.
    pub(super) fn new(known: Option<BondState>) -> BondWatch {
        BondWatch(Mutex::new(known))
    }

    /// Returns the new state if the members have changed since the last call.
    pub(super) fn news(&self, state: BondState) -> Option<BondState> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = known.as_ref().is_some_and(|k| k.members == state.members);
        *known = Some(state.clone());
        (!same).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bond::{BondMode, MemberState};
    use super::*;

    #[test]
    fn test_bond_watch_reports_changes_of_members_and_not_of_counters() {
        let member =
            |up| MemberState { device: "a".into(), up, active: up, gone: false, lacp: None };
        let bond = |up, backup_drops| BondState {
            mode: BondMode::ActiveBackup,
            members: vec![member(up)],
            backup_drops,
        };
        let watch = BondWatch::new(Some(bond(true, 0)));
        assert_eq!(watch.news(bond(true, 5)), None);
        assert_eq!(watch.news(bond(false, 5)), Some(bond(false, 5)));
        assert_eq!(watch.news(bond(false, 6)), None);
    }

    #[test]
    fn test_link_watch_reports_each_change_of_state_or_speed_once() {
        const UP: Link = Link { up: true, mbps: Some(25_000), full_duplex: true };
        const DOWN: Link = Link { up: false, mbps: None, full_duplex: false };
        let w = LinkWatch::new(DOWN);
        assert_eq!(w.news(DOWN), None);
        assert_eq!(w.news(UP), Some(UP));
        assert_eq!(w.news(UP), None);
        let slow = Link { mbps: Some(1000), ..UP };
        assert_eq!(w.news(slow), Some(slow));
    }
}
