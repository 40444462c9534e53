//! The history of the ports' bonds.

use std::cell::RefCell;

use heddle_dataplane::{BondMode, BondState, Lacp, MemberState, Port as DpdkPort};
use heddle_metrics::{BondSample, MemberSample};
use heddle_socket::admin::{PortBond, PortLacp, PortMember};

use super::answers::counters;

/// A bond, and its changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct History {
    /// The state that was seen last.
    state: BondState,
    /// Number of times that another member of an active-backup bond took over.
    switches: u64,
    /// Number of times that the link of each member came up or went down.
    changes: Vec<u64>,
    /// The member of an active-backup bond that was active last.
    last: Option<usize>,
}

/// The histories of the bonds among all ports.
#[derive(Debug, Default)]
pub(crate) struct Bonds(RefCell<Vec<Option<History>>>);

/// Returns the active member of an active-backup bond.
fn active(state: &BondState) -> Option<usize> {
    let backup = state.mode == BondMode::ActiveBackup;
    state.members.iter().position(|m| m.active).filter(|_| backup)
}

impl Bonds {
    /// Starts with the present state of the bonds; ports that are none have no state.
    pub(super) fn new(bonds: impl Iterator<Item = Option<BondState>>) -> Bonds {
        let history = |state: BondState| History {
            switches: 0,
            changes: vec![0; state.members.len()],
            last: active(&state),
            state,
        };
        Bonds(RefCell::new(bonds.map(|state| state.map(history)).collect()))
    }

    /// Returns the history of the bond of a port, by the port's number.
    pub(crate) fn of(&self, port: usize) -> Option<History> {
        self.0.borrow().get(port).cloned().flatten()
    }

    /// Records and logs the state of the bond of `port`, whose name is `name`. Returns true if another
    /// member has taken over, so that switches have to learn where our address is.
    pub(super) fn changed(&self, port: usize, state: BondState, name: &str) -> bool {
        let mut all = self.0.borrow_mut();
        let Some(Some(history)) = all.get_mut(port) else { return false };
        let before = std::mem::replace(&mut history.state, state);
        let members = before.members.iter().zip(&history.state.members);
        for ((old, new), changes) in members.zip(&mut history.changes) {
            let member = new.device.as_str();
            if old.up != new.up {
                *changes += 1;
                match new.up {
                    true => tracing::info!(port = name, member, "the link of the member is up"),
                    false => tracing::warn!(port = name, member, "the link of the member is down"),
                }
            }
            if new.gone && !old.gone {
                tracing::error!(port = name, member, "the member is gone");
            }
            if history.state.mode == BondMode::Lacp && old.active != new.active {
                log_agreement(name, new);
            }
        }
        let Some(now) = active(&history.state) else { return false };
        let taken_over = history.last.is_some_and(|last| last != now);
        history.last = Some(now);
        if taken_over {
            history.switches += 1;
            let member = history.state.members[now].device.as_str();
            tracing::warn!(port = name, member, "the member has taken over");
        }
        taken_over
    }
}

fn log_agreement(port: &str, member: &MemberState) {
    let device = member.device.as_str();
    match member.lacp.filter(|_| member.active) {
        Some(lacp) => {
            let partner = station(lacp.system);
            tracing::info!(port, member = device, partner, "the member carries frames");
        }
        None => tracing::warn!(port, member = device, "the member carries no frames"),
    }
}

/// Writes a station address.
pub(super) fn station([a, b, c, d, e, f]: [u8; 6]) -> String {
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

/// Returns the answer about a port's bond, with its present state.
pub(super) fn answer(port: &DpdkPort, history: &History) -> PortBond {
    let state = port.bond().unwrap_or_else(|| history.state.clone());
    let device = |n: usize| state.members.get(n).map(|m| m.device.clone());
    let lacp = |l: Lacp| PortLacp {
        aggregator: l.aggregator.and_then(device),
        actor: l.actor.to_string(),
        partner: l.partner.to_string(),
        system: station(l.system),
        key: l.key,
        port: l.port,
    };
    let stats = port.member_stats();
    let members = state.members.iter().zip(&history.changes).zip(&stats);
    let member = |((m, changes), stats): ((&MemberState, &u64), _)| PortMember {
        device: m.device.clone(),
        up: m.up,
        active: m.active,
        gone: m.gone,
        link_changes: *changes,
        lacp: m.lacp.map(lacp),
        counters: counters(stats),
    };
    PortBond {
        mode: state.mode.to_string(),
        switches: history.switches,
        backup_drops: state.backup_drops,
        members: members.map(member).collect(),
    }
}

/// Returns the metrics of a port's bond, with its present state.
pub(crate) fn sample(port: &DpdkPort, history: &History) -> BondSample {
    let state = port.bond().unwrap_or_else(|| history.state.clone());
    let members = state.members.into_iter().zip(&history.changes).zip(port.member_stats());
    let member = |((m, changes), stats): ((MemberState, &u64), _)| MemberSample {
        device: m.device,
        up: m.up,
        active: m.active,
        link_changes: *changes,
        stats,
    };
    BondSample {
        switches: history.switches,
        backup_drops: state.backup_drops,
        members: members.map(member).collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn state(mode: BondMode, members: [(bool, bool); 2]) -> BondState {
        let member = |(n, (up, active)): (usize, (bool, bool))| MemberState {
            device: format!("net_tap{n}"),
            up,
            active,
            gone: false,
            lacp: None,
        };
        let members = members.into_iter().enumerate().map(member).collect();
        BondState { mode, members, backup_drops: 0 }
    }

    #[test]
    fn test_bond_announces_when_another_member_has_taken_over() {
        let of = |members| state(BondMode::ActiveBackup, members);
        let bonds = Bonds::new([None, Some(of([(true, true), (true, false)]))].into_iter());
        assert_eq!(bonds.of(0), None);
        assert!(!bonds.changed(0, of([(true, true), (true, false)]), "a"), "it is no bond");
        let seen = |members, announces| {
            assert_eq!(bonds.changed(1, of(members), "a"), announces, "{members:?}");
            let history = bonds.of(1).unwrap();
            (history.switches, history.changes)
        };
        assert_eq!(seen([(true, true), (false, false)], false), (0, vec![0, 1]));
        assert_eq!(seen([(true, true), (true, false)], false), (0, vec![0, 2]));
        assert_eq!(seen([(false, false), (true, true)], true), (1, vec![1, 2]));
        // With no link at all nothing is announced; the same member needs nothing afterwards, because
        // the link of the port has come up, and another one has taken over in between.
        assert_eq!(seen([(false, false), (false, false)], false), (1, vec![1, 3]));
        assert_eq!(seen([(false, false), (true, true)], false), (1, vec![1, 4]));
        assert_eq!(seen([(false, false), (false, false)], false), (1, vec![1, 5]));
        assert_eq!(seen([(true, true), (false, false)], true), (2, vec![2, 5]));
    }

    #[test]
    fn test_members_of_an_aggregate_take_over_from_none() {
        let of = |members| state(BondMode::Lacp, members);
        let bonds = Bonds::new([Some(of([(true, false), (true, false)]))].into_iter());
        for members in [
            [(true, true), (true, false)],
            [(true, true), (true, true)],
            [(false, false), (true, true)],
        ] {
            assert!(!bonds.changed(0, of(members), "a"));
        }
        assert_eq!(bonds.of(0).unwrap().switches, 0);
        assert_eq!(bonds.of(0).unwrap().changes, [1, 0]);
    }
}
