//! Words that only atomic operations change: the values that these operations found must fit one
//! order of all operations, which keeps the order within each stream and that of operations that
//! did not overlap in time.

use std::collections::HashSet;

/// An atomic operation, in terms of the model.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Add { add: u64, mask: u64 },
    Swap { compare: u64, compare_mask: u64, swap: u64, swap_mask: u64 },
}

impl Change {
    /// Returns the new value, computed bit by bit, as in the pseudocode of RFC 7306.
    pub fn apply(self, old: u64) -> u64 {
        match self {
            Change::Add { add, mask } => {
                let (mut carry, mut sum) = (0, 0);
                for bit in 0..64 {
                    let digit = (old >> bit & 1) + (add >> bit & 1) + carry;
                    sum |= (digit & 1) << bit;
                    carry = if mask >> bit & 1 == 1 { 0 } else { digit >> 1 };
                }
                sum
            }
            Change::Swap { compare, compare_mask, swap, swap_mask } => {
                let differs = |bit: u64| (old ^ compare) & compare_mask & bit != 0;
                if (0..64).any(|b| differs(1 << b)) {
                    return old;
                }
                let bits = (0..64).map(|b| 1 << b);
                bits.map(|b| if swap_mask & b != 0 { swap & b } else { old & b }).sum()
            }
        }
    }
}

/// An atomic operation that was posted.
#[derive(Clone, Copy, Debug)]
pub struct Atom {
    pub change: Change,
    pub start: u64,
    /// The time of its completion, and the value that it found. If it did not complete, the model
    /// does not know whether it was carried out, nor the operations after it in its lane; none of
    /// them was if it was not.
    pub found: Option<(u64, u64)>,
}

/// All operations on one word, by lane in the order of posting.
#[derive(Debug)]
pub struct Word {
    pub first: u64,
    pub lanes: Vec<Vec<Atom>>,
}

impl Word {
    pub fn new(first: u64, lanes: usize) -> Word {
        Word { first, lanes: vec![Vec::new(); lanes] }
    }

    /// Checks that some order of the operations leads to `last`.
    pub fn check(&self, last: u64) {
        let mut seen = HashSet::new();
        let mut places = vec![0; self.lanes.len()];
        assert!(
            self.leads_to(last, self.first, &mut places, &mut seen),
            "no order of these gives {last:#x}: {self:x?}"
        );
        // If all operations were sums of 64 bits, the result is exact.
        let all = || self.lanes.iter().flatten();
        let add = |a: &Atom| match (a.change, a.found) {
            (Change::Add { add, mask: 0 }, Some(_)) => Some(add),
            _ => None,
        };
        if let Some(adds) = all().map(add).collect::<Option<Vec<u64>>>() {
            let sum = adds.iter().fold(self.first, |a, b| a.wrapping_add(*b));
            assert_eq!(sum, last, "the sum of what was added");
        }
    }

    fn leads_to(
        &self,
        last: u64,
        value: u64,
        places: &mut Vec<usize>,
        seen: &mut HashSet<(Vec<usize>, u64)>,
    ) -> bool {
        if !seen.insert((places.clone(), value)) {
            return false;
        }
        let left = |places: &[usize]| {
            let all = self.lanes.iter().zip(places.to_vec());
            all.flat_map(|(lane, at)| lane[at..].iter()).filter_map(|a| a.found).collect::<Vec<_>>()
        };
        let must = left(places);
        if must.is_empty() && value == last {
            return true;
        }
        for lane in 0..places.len() {
            let Some(atom) = self.lanes[lane].get(places[lane]) else { continue };
            // All operations that had completed when this one was posted must come before it.
            if must.iter().any(|(end, _)| *end < atom.start) {
                continue;
            }
            if atom.found.is_some_and(|(_, found)| found != value) {
                continue;
            }
            places[lane] += 1;
            if self.leads_to(last, atom.change.apply(value), places, seen) {
                return true;
            }
            places[lane] -= 1;
        }
        false
    }
}
