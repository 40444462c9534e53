//! Slots for clients of the control socket, of which no user gets all.

use core::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Number of slots that each user has.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots(Rc<RefCell<HashMap<u32, usize>>>);

/// The slot of one client; free again when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Slots,
    uid: u32,
}

impl Slots {
    /// Takes a slot for a client of user `uid`, of `most` slots in all. No user gets more than
    /// half, so that another user can still look at the appliance.
    pub(super) fn take(&self, uid: u32, most: usize) -> Option<Slot> {
        let mut taken = self.0.borrow_mut();
        let (all, own) = (taken.values().sum::<usize>(), taken.get(&uid).copied().unwrap_or(0));
        if all >= most || own >= most.div_ceil(2) {
            return None;
        }
        taken.insert(uid, own + 1);
        Some(Slot { slots: self.clone(), uid })
    }

    /// Returns the number of slots taken.
    pub(super) fn taken(&self) -> usize {
        self.0.borrow().values().sum()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.0.borrow_mut();
        if let Some(n) = taken.get_mut(&self.uid) {
            *n -= 1;
            if *n == 0 {
                taken.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_user_gets_at_most_half_of_slots_and_freed_slots_return() {
        let slots = Slots::default();
        let mut mine: Vec<_> = (0..2).map(|_| slots.take(1, 4).unwrap()).collect();
        assert!(slots.take(1, 4).is_none(), "half of them");
        let theirs = [slots.take(2, 4).unwrap(), slots.take(3, 4).unwrap()];
        assert!(slots.take(4, 4).is_none(), "all of them");
        mine.pop();
        assert!(slots.take(4, 4).is_some());
        drop((mine, theirs));
        assert_eq!(slots.taken(), 0);
        assert!(slots.take(1, 1).is_some(), "one is half of one");
    }
}
