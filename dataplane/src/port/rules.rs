//! The flow rules that a device has, and their changes while the device runs.
//!
//! A change leaves no gap for flows with a rule in both sets: the change does not touch such rules,
//! and makes new rules before it deletes old ones. The calls to the device come in as a [`Maker`].

use super::flow::FlowRule;

/// The operations of a device on rules.
pub(super) trait Maker {
    /// The device's handle for a rule that it has.
    type Handle;
    /// The reason why the device refuses an operation.
    type Error;
    /// Makes a rule.
    fn make(&mut self, rule: &FlowRule) -> Result<Self::Handle, Self::Error>;
    /// Deletes a rule. A rule that the device cannot delete stays as before.
    fn delete(&mut self, handle: &Self::Handle) -> Result<(), Self::Error>;
}

/// The difference between the rules `before` and `after`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Rules to make first, in this order.
    pub(super) make: Vec<FlowRule>,
    /// Rules to delete afterwards.
    pub(super) delete: Vec<FlowRule>,
}

impl Difference {
    pub(super) fn of(before: &[FlowRule], after: &[FlowRule]) -> Difference {
        let without = |all: &[FlowRule], others: &[FlowRule]| {
            all.iter().filter(|r| !others.contains(r)).copied().collect()
        };
        Difference { make: without(after, before), delete: without(before, after) }
    }
}

/// The rules that a device has.
#[derive(Debug)]
pub(super) struct Rules<H>(Vec<(FlowRule, H)>);

impl<H> Default for Rules<H> {
    fn default() -> Rules<H> {
        Rules(Vec::new())
    }
}

impl<H> Rules<H> {
    /// Changes the rules of the device to `after`.
    ///
    /// # Errors
    /// - The device cannot make a rule: this function deletes the rules that it made before, and
    ///   nothing has changed.
    /// - The device cannot delete a rule: this function deletes all others. The rule stays, and the
    ///   next change tries to delete it again.
    pub(super) fn change<M: Maker<Handle = H>>(
        &mut self,
        after: &[FlowRule],
        device: &mut M,
    ) -> Result<(), M::Error> {
        let before: Vec<FlowRule> = self.0.iter().map(|(rule, _)| *rule).collect();
        let Difference { make, delete } = Difference::of(&before, after);
        for rule in &make {
            match device.make(rule) {
                Ok(handle) => self.0.push((*rule, handle)),
                Err(e) => {
                    // Report why the rule could not be made; the next change deletes rules that
                    // stay for now.
                    let _ = self.delete(&make, device);
                    return Err(e);
                }
            }
        }
        self.delete(&delete, device)
    }

    fn delete<M: Maker<Handle = H>>(
        &mut self,
        gone: &[FlowRule],
        device: &mut M,
    ) -> Result<(), M::Error> {
        let mut outcome = Ok(());
        self.0.retain(|(rule, handle)| {
            if !gone.contains(rule) {
                return true;
            }
            let deleted = device.delete(handle);
            let stays = deleted.is_err();
            outcome = std::mem::replace(&mut outcome, Ok(())).and(deleted);
            stays
        });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::port::flow::rules;
    use crate::port::plan::{devices, plan, tests::config};

    /// Returns the rules of a shared device with these addresses.
    fn of(addrs: &[u8]) -> Vec<FlowRule> {
        let addrs: Vec<_> = addrs.iter().map(|&n| IpAddr::from([10, 0, 0, n])).collect();
        let config = crate::port::PortConfig { addrs: vec![[10, 0, 0, 1].into()], ..config() };
        let plan = plan("dev", &devices::mlx5(), 4, 2048, &config).unwrap();
        rules(&plan, &addrs, false)
    }

    /// Names rules by numbers, and refuses what a test tells it to refuse.
    #[derive(Default)]
    struct Device {
        has: Vec<(u32, FlowRule)>,
        next: u32,
        said: Vec<String>,
        /// Refuses the rules for this address.
        full_for: Option<u8>,
        /// Deletes no rule.
        stuck: bool,
    }

    fn named(r: &FlowRule) -> String {
        let what = if r.tcp { "tcp" } else { "rest" };
        format!("{what} {}", r.dst_ip.map_or("arp".into(), |a| a.to_string()))
    }

    impl Maker for Device {
        type Handle = u32;
        type Error = String;

        fn make(&mut self, rule: &FlowRule) -> Result<u32, String> {
            if self.full_for.is_some_and(|n| rule.dst_ip == Some([10, 0, 0, n].into())) && !rule.tcp
            {
                return Err("no room".into());
            }
            self.next += 1;
            self.has.push((self.next, *rule));
            self.said.push(format!("+{}", named(rule)));
            Ok(self.next)
        }

        fn delete(&mut self, handle: &u32) -> Result<(), String> {
            if self.stuck {
                return Err("busy".into());
            }
            let at = self.has.iter().position(|(n, _)| n == handle).expect("it has that one");
            let (_, rule) = self.has.remove(at);
            self.said.push(format!("-{}", named(&rule)));
            Ok(())
        }
    }

    impl Device {
        fn rules(&self) -> Vec<FlowRule> {
            self.has.iter().map(|(_, r)| *r).collect()
        }

        fn said(&mut self) -> Vec<String> {
            std::mem::take(&mut self.said)
        }
    }

    #[test]
    fn test_rules_common_to_both_sets_are_left_in_place() {
        assert_eq!(Difference::of(&of(&[1, 2]), &of(&[2, 1])), Difference::default());
        let d = Difference::of(&of(&[1, 2]), &of(&[2, 3]));
        let names = |rules: &[FlowRule]| rules.iter().map(named).collect::<Vec<_>>();
        assert_eq!(names(&d.make), ["tcp 10.0.0.3", "rest 10.0.0.3"]);
        assert_eq!(names(&d.delete), ["tcp 10.0.0.1", "rest 10.0.0.1"]);
        assert_eq!(Difference::of(&[], &of(&[1])).make, of(&[1]), "ARP with the first");
    }

    #[test]
    fn test_new_rules_are_made_before_old_ones_go() {
        let (mut device, mut rules) = (Device::default(), Rules::default());
        rules.change(&of(&[1]), &mut device).unwrap();
        assert_eq!(device.said(), ["+tcp 10.0.0.1", "+rest 10.0.0.1", "+rest arp"]);
        rules.change(&of(&[2]), &mut device).unwrap();
        let said = ["+tcp 10.0.0.2", "+rest 10.0.0.2", "-tcp 10.0.0.1", "-rest 10.0.0.1"];
        assert_eq!(device.said(), said);
        rules.change(&of(&[2]), &mut device).unwrap();
        assert!(device.said().is_empty());
    }

    #[test]
    fn test_failed_rule_change_leaves_all_rules_unchanged() {
        let (mut device, mut rules) = (Device::default(), Rules::default());
        rules.change(&of(&[1]), &mut device).unwrap();
        let before = device.rules();
        device.full_for = Some(3);
        assert_eq!(rules.change(&of(&[2, 3, 4]), &mut device), Err("no room".into()));
        assert_eq!(device.rules(), before);
        device.full_for = None;
        rules.change(&of(&[2, 3, 4]), &mut device).unwrap();
        assert_eq!(device.rules().len(), of(&[2, 3, 4]).len());
    }

    #[test]
    fn test_rule_that_could_not_be_deleted_is_deleted_later() {
        let (mut device, mut rules) = (Device::default(), Rules::default());
        rules.change(&of(&[1, 2]), &mut device).unwrap();
        device.stuck = true;
        assert_eq!(rules.change(&of(&[2]), &mut device), Err("busy".into()));
        // The address is wanted again meanwhile, and its rule is still there.
        rules.change(&of(&[1, 2]), &mut device).unwrap();
        assert_eq!(rules.change(&of(&[2]), &mut device), Err("busy".into()));
        device.stuck = false;
        rules.change(&of(&[2]), &mut device).unwrap();
        assert_eq!(device.rules().len(), of(&[2]).len());
    }
}
