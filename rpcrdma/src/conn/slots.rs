//! Tables of a fixed size. A row keeps the memory of its lists from use to use, and gets a new
//! generation for each use, so that the table recognises an outdated name.

use crate::header::Xid;

#[derive(Debug)]
struct Row<T> {
    generation: u32,
    /// Index in the list of rows in use; `None` for a free row.
    at: Option<u16>,
    value: T,
}

/// Rows that callers find by slot, by slot and generation, and by XID.
#[derive(Debug)]
pub(super) struct Slots<T> {
    rows: Vec<Row<T>>,
    /// XIDs and slots of the rows in use, in no order. The list is apart from the rows so that a
    /// search touches few cache lines and no free row.
    used: Vec<(Xid, u16)>,
    free: Vec<u16>,
}

impl<T: Default> Slots<T> {
    pub(super) fn new(count: u16) -> Slots<T> {
        let row = || Row { generation: 0, at: None, value: T::default() };
        Slots {
            rows: (0..count).map(|_| row()).collect(),
            used: Vec::with_capacity(count.into()),
            free: (0..count).rev().collect(),
        }
    }

    /// Takes a row for `xid`. The row's value is as its last user left it.
    pub(super) fn take(&mut self, xid: Xid) -> Option<(u16, u32)> {
        let slot = self.free.pop()?;
        let row = self.rows.get_mut(usize::from(slot))?;
        row.at = u16::try_from(self.used.len()).ok();
        row.generation = row.generation.wrapping_add(1);
        self.used.push((xid, slot));
        Some((slot, row.generation))
    }

    pub(super) fn release(&mut self, slot: u16) {
        let Some(at) = self.rows.get_mut(usize::from(slot)).and_then(|row| row.at.take()) else {
            return;
        };
        let hole = usize::from(at);
        if hole < self.used.len() {
            self.used.swap_remove(hole);
        }
        // `swap_remove` has moved the last entry to the hole.
        if let Some(&(_, moved)) = self.used.get(hole)
            && let Some(row) = self.rows.get_mut(usize::from(moved))
        {
            row.at = Some(at);
        }
        self.free.push(slot);
    }

    pub(super) fn find(&self, xid: Xid) -> Option<u16> {
        self.used.iter().find(|(of, _)| *of == xid).map(|&(_, slot)| slot)
    }

    /// Returns all rows with this XID. A peer may have several calls with one XID: a call whose
    /// reply is on its way, and the next call with the same XID.
    pub(super) fn with(&self, xid: Xid) -> impl Iterator<Item = &T> {
        let of = self.used.iter().filter(move |(of, _)| *of == xid);
        of.filter_map(|&(_, slot)| self.at(slot))
    }

    pub(super) fn at(&self, slot: u16) -> Option<&T> {
        let row = self.rows.get(usize::from(slot))?;
        row.at.is_some().then_some(&row.value)
    }

    pub(super) fn at_mut(&mut self, slot: u16) -> Option<&mut T> {
        let row = self.rows.get_mut(usize::from(slot))?;
        row.at.is_some().then_some(&mut row.value)
    }

    pub(super) fn is(&self, slot: u16, generation: u32) -> bool {
        let row = self.rows.get(usize::from(slot));
        row.is_some_and(|row| row.at.is_some() && row.generation == generation)
    }

    pub(super) fn generation(&self, slot: u16) -> u32 {
        self.rows.get(usize::from(slot)).map_or(0, |row| row.generation)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// Returns the slots in use, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = u16> + use<'_, T> {
        self.used.iter().map(|&(_, slot)| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_row_is_found_by_its_present_name_only() {
        let mut slots = Slots::<u8>::new(2);
        let (a, first) = slots.take(Xid(7)).unwrap();
        let (b, _) = slots.take(Xid(8)).unwrap();
        assert_eq!(slots.take(Xid(9)), None);
        assert_eq!((slots.find(Xid(7)), slots.find(Xid(8))), (Some(a), Some(b)));
        slots.release(a);
        slots.release(a);
        assert_eq!((slots.find(Xid(7)), slots.at(a)), (None, None));
        let (again, second) = slots.take(Xid(9)).unwrap();
        assert_eq!(again, a);
        assert!(slots.is(a, second) && !slots.is(a, first));
        assert_eq!(slots.take(Xid(1)), None, "one release frees one row");
        assert_eq!((slots.all().count(), slots.is_empty()), (2, false));
        slots.release(a);
        slots.release(b);
        assert!(slots.is_empty());
    }

    #[test]
    fn test_rows_are_found_in_whatever_order_others_go() {
        let mut slots = Slots::<u8>::new(4);
        let of: Vec<_> = (0..4).map(|xid| slots.take(Xid(xid)).unwrap().0).collect();
        for (gone, left) in [(1, vec![0, 2, 3]), (0, vec![2, 3]), (3, vec![2]), (2, vec![])] {
            slots.release(of[gone]);
            for (xid, &slot) in (0..).zip(&of) {
                let there = left.contains(&xid);
                assert_eq!(slots.find(Xid(xid)), there.then_some(slot), "{gone} {xid}");
                assert_eq!(slots.at(slot).is_some(), there, "{gone} {xid}");
            }
            assert_eq!(slots.all().count(), left.len());
        }
        assert_eq!((0..5).filter(|&xid| slots.take(Xid(xid)).is_some()).count(), 4);
    }

    #[test]
    fn test_all_rows_of_an_xid_are_found() {
        let mut slots = Slots::<u8>::new(3);
        for (xid, value) in [(7, 1), (8, 2), (7, 3)] {
            let (slot, _) = slots.take(Xid(xid)).unwrap();
            *slots.at_mut(slot).unwrap() = value;
        }
        assert_eq!(slots.with(Xid(7)).copied().collect::<Vec<_>>(), [1, 3]);
    }
}
