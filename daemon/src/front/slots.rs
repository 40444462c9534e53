//! Places for clients of the control socket, of which no user gets all.

use core::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Number of places of each user.
#[derive(Clone, Debug, Default)]
pub(super) struct Seats(Rc<RefCell<HashMap<u32, usize>>>);

/// A place; free again when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Seats,
    uid: u32,
}

impl Seats {
    /// Takes a place for a client of user `uid`, of `most` places in all. No user gets more than
    /// half, so that another user can still look at the appliance.
    pub(super) fn take(&self, uid: u32, most: usize) -> Option<Seat> {
        let mut taken = self.0.borrow_mut();
        let (all, own) = (taken.values().sum::<usize>(), taken.get(&uid).copied().unwrap_or(0));
        if all >= most || own >= most.div_ceil(2) {
            return None;
        }
        taken.insert(uid, own + 1);
        Some(Seat { seats: self.clone(), uid })
    }

    /// Returns the number of places taken.
    pub(super) fn taken(&self) -> usize {
        self.0.borrow().values().sum()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.0.borrow_mut();
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
    fn test_user_gets_at_most_half_of_seats_and_freed_seats_return() {
        let seats = Seats::default();
        let mut mine: Vec<_> = (0..2).map(|_| seats.take(1, 4).unwrap()).collect();
        assert!(seats.take(1, 4).is_none(), "half of them");
        let theirs = [seats.take(2, 4).unwrap(), seats.take(3, 4).unwrap()];
        assert!(seats.take(4, 4).is_none(), "all of them");
        mine.pop();
        assert!(seats.take(4, 4).is_some());
        drop((mine, theirs));
        assert_eq!(seats.taken(), 0);
        assert!(seats.take(1, 1).is_some(), "one is half of one");
    }
}
