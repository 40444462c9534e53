//! The memory of a host that peers reach, as a history: every store to it with the time in which it
//! happened or may have happened. The possible values of a byte follow from the history and from
//! the order that RFC 5040 section 5.5 gives the operations of one stream.

/// The source of a store: one direction of one stream, or `None` for the application.
pub type Lane = Option<usize>;

/// A store of some bytes.
#[derive(Debug)]
pub struct Store {
    pub lane: Lane,
    /// The place of the store among the requests of its lane.
    pub seq: u32,
    /// The last request of its lane, up to this one, that waited for Reads.
    pub fence: u32,
    /// Whether stores of this lane may overwrite each other in any order: stores that the RNIC
    /// places beyond gaps (RFC 5040 section 5.5 promises no order of placement).
    pub unordered: bool,
    /// The store did not happen before this time.
    pub start: u64,
    /// The store did not happen after this time.
    pub end: Option<u64>,
    /// The store has happened.
    pub certain: bool,
    pub at: usize,
    pub data: Vec<u8>,
}

/// A look at memory: from when to when, and where in which lane.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub lane: Lane,
    pub seq: u32,
    pub start: u64,
    pub end: u64,
}

impl Look {
    /// Returns a look by the application, at one moment.
    pub fn at(now: u64) -> Look {
        Look { lane: None, seq: 0, start: now, end: now }
    }
}

#[derive(Debug)]
pub struct History {
    pub stores: Vec<Store>,
}

impl Store {
    fn byte(&self, i: usize) -> Option<u8> {
        i.checked_sub(self.at).and_then(|k| self.data.get(k)).copied()
    }

    fn touches(&self, at: usize, len: usize) -> bool {
        self.at < at + len && at < self.at + self.data.len()
    }

    /// Returns true if this store happens after everything that `other` may do.
    fn is_behind(&self, other: &Store) -> bool {
        other.end.is_some_and(|end| end < self.start)
            || !self.unordered
                && self.lane.is_some()
                && self.lane == other.lane
                && other.seq < self.seq
    }

    /// Returns true if the look must find this store done, or overwritten.
    fn is_before(&self, look: &Look) -> bool {
        self.certain && self.end.is_some_and(|end| end < look.start) || self.precedes(look)
    }

    /// Returns true if this store precedes the look in the same lane. The success of the look
    /// proves that the store was carried out.
    fn precedes(&self, look: &Look) -> bool {
        self.lane.is_some() && self.lane == look.lane && self.seq < look.seq
    }

    fn is_after(&self, look: &Look) -> bool {
        self.start > look.end
            || self.lane.is_some() && self.lane == look.lane && self.fence > look.seq
    }
}

impl History {
    pub fn new(data: Vec<u8>) -> History {
        let first = Store {
            lane: None,
            seq: 0,
            fence: 0,
            unordered: false,
            start: 0,
            end: Some(0),
            certain: true,
            at: 0,
            data,
        };
        History { stores: vec![first] }
    }

    /// Notes that the application stores bytes now.
    pub fn store(&mut self, now: u64, at: usize, data: Vec<u8>) {
        self.stores.push(Store {
            lane: None,
            seq: 0,
            fence: 0,
            unordered: false,
            start: now,
            end: Some(now),
            certain: true,
            at,
            data,
        });
    }

    /// Notes that all stores of a lane before `seq` have happened by now.
    pub fn settle(&mut self, lane: usize, before: u32, now: u64) {
        for s in &mut self.stores {
            if s.lane == Some(lane) && s.seq < before && !s.certain {
                (s.certain, s.end) = (true, Some(s.end.map_or(now, |end| end.min(now))));
            }
        }
    }

    /// Notes that a lane will never carry out the stores that it has not carried out by now.
    pub fn cap(&mut self, lane: usize, now: u64) {
        for s in &mut self.stores {
            if s.lane == Some(lane) && s.end.is_none() {
                s.end = Some(now);
            }
        }
    }

    /// Checks that memory at `at` may hold `bytes`.
    pub fn check(&self, at: usize, bytes: &[u8], look: Look, who: &str) {
        let near: Vec<&Store> =
            self.stores.iter().rev().filter(|s| s.touches(at, bytes.len())).collect();
        for (i, found) in bytes.iter().enumerate() {
            let i = at + i;
            let mut all = near.iter().filter(|s| s.byte(i).is_some());
            let may_be = |a: &Store| {
                !a.is_after(&look)
                    && !near
                        .iter()
                        .any(|b| b.byte(i).is_some() && b.is_before(&look) && b.is_behind(a))
            };
            let good = all.any(|a| a.byte(i) == Some(*found) && may_be(a));
            if !good {
                let may: Vec<_> = near
                    .iter()
                    .filter(|a| a.byte(i).is_some() && may_be(a))
                    .map(|a| (a.byte(i), a.lane, a.seq, a.start, a.end, a.certain))
                    .collect();
                panic!("{who}: byte {i} is {found:#x}, {look:?}, may be {may:x?}");
            }
        }
    }
}
