//! Tables of a fixed size. A row keeps what its lists have allocated, and gets another generation each
//! time it is used, so that a late name of it is recognised.

use crate::header::Xid;

#[derive(Debug)]
struct Row<T> {
    generation: u32,
    used: bool,
    value: T,
}

/// Rows that are found by slot, by slot and generation, and by XID.
#[derive(Debug)]
pub(super) struct Slots<T> {
    rows: Vec<Row<T>>,
    /// Of each row in use. Apart from the rows, so that a search looks at few cache lines.
    xids: Vec<Option<Xid>>,
    free: Vec<u16>,
}

impl<T: Default> Slots<T> {
    pub(super) fn new(count: u16) -> Slots<T> {
        let row = || Row { generation: 0, used: false, value: T::default() };
        Slots {
            rows: (0..count).map(|_| row()).collect(),
            xids: vec![None; count.into()],
            free: (0..count).rev().collect(),
        }
    }

    /// Takes a row for `xid`. Its value is as it was left.
    pub(super) fn take(&mut self, xid: Xid) -> Option<(u16, u32)> {
        let slot = self.free.pop()?;
        let row = self.rows.get_mut(usize::from(slot))?;
        row.used = true;
        row.generation = row.generation.wrapping_add(1);
        if let Some(of) = self.xids.get_mut(usize::from(slot)) {
            *of = Some(xid);
        }
        Some((slot, row.generation))
    }

    pub(super) fn release(&mut self, slot: u16) {
        let Some(row) = self.rows.get_mut(usize::from(slot)).filter(|row| row.used) else { return };
        row.used = false;
        if let Some(of) = self.xids.get_mut(usize::from(slot)) {
            *of = None;
        }
        self.free.push(slot);
    }

    pub(super) fn find(&self, xid: Xid) -> Option<u16> {
        let at = self.xids.iter().position(|of| *of == Some(xid))?;
        u16::try_from(at).ok()
    }

    pub(super) fn at(&self, slot: u16) -> Option<&T> {
        self.rows.get(usize::from(slot)).filter(|row| row.used).map(|row| &row.value)
    }

    pub(super) fn at_mut(&mut self, slot: u16) -> Option<&mut T> {
        self.rows.get_mut(usize::from(slot)).filter(|row| row.used).map(|row| &mut row.value)
    }

    pub(super) fn is(&self, slot: u16, generation: u32) -> bool {
        let row = self.rows.get(usize::from(slot));
        row.is_some_and(|row| row.used && row.generation == generation)
    }

    pub(super) fn generation(&self, slot: u16) -> u32 {
        self.rows.get(usize::from(slot)).map_or(0, |row| row.generation)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.rows.len()
    }

    /// Slots in use.
    pub(super) fn all(&self) -> impl Iterator<Item = u16> + use<'_, T> {
        (0u16..).zip(&self.rows).filter(|(_, row)| row.used).map(|(slot, _)| slot)
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
}
