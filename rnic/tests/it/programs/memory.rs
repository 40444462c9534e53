//! The memory of a host that peers reach, as a history: every store to it with the time in which it
//! happened or may have happened. What an octet may hold follows from that and from the order that
//! RFC 5040 section 5.5 gives the operations of one stream.

/// Who stores: one direction of one stream, or nobody of them (the application).
pub type Lane = Option<usize>;

/// A store of some octets.
#[derive(Debug)]
pub struct Store {
    pub lane: Lane,
    /// Its place among the requests of its lane.
    pub seq: u32,
    /// The last request of its lane, itself included, that waited for Reads.
    pub fence: u32,
    /// Whether stores of its lane may come one over the other in any order: those that are placed ahead
    /// of gaps (RFC 5040 section 5.5 promises no order of placement).
    pub unordered: bool,
    /// It did not happen before.
    pub start: u64,
    /// Nor behind this.
    pub end: Option<u64>,
    /// It has happened.
    pub certain: bool,
    pub at: usize,
    pub data: Vec<u8>,
}

/// Who looks: from when to when, and where in which lane.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub lane: Lane,
    pub seq: u32,
    pub start: u64,
    pub end: u64,
}

impl Look {
    /// By the application, at one moment.
    pub fn at(now: u64) -> Look {
        Look { lane: None, seq: 0, start: now, end: now }
    }
}

#[derive(Debug)]
pub struct History {
    pub stores: Vec<Store>,
}

impl Store {
    fn octet(&self, i: usize) -> Option<u8> {
        i.checked_sub(self.at).and_then(|k| self.data.get(k)).copied()
    }

    fn touches(&self, at: usize, len: usize) -> bool {
        self.at < at + len && at < self.at + self.data.len()
    }

    /// Behind everything that `other` may do.
    fn is_behind(&self, other: &Store) -> bool {
        other.end.is_some_and(|end| end < self.start)
            || !self.unordered
                && self.lane.is_some()
                && self.lane == other.lane
                && other.seq < self.seq
    }

    /// Whoever looks finds it done, or what was stored over it.
    fn is_before(&self, look: &Look) -> bool {
        self.certain && self.end.is_some_and(|end| end < look.start) || self.precedes(look)
    }

    /// In the same lane. That the look succeeded says that this was carried out.
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

    /// The application stores, now.
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

    /// All stores of a lane before `seq` have happened by now.
    pub fn settle(&mut self, lane: usize, before: u32, now: u64) {
        for s in &mut self.stores {
            if s.lane == Some(lane) && s.seq < before && !s.certain {
                (s.certain, s.end) = (true, Some(s.end.map_or(now, |end| end.min(now))));
            }
        }
    }

    /// What a lane has not done by now it never will.
    pub fn cap(&mut self, lane: usize, now: u64) {
        for s in &mut self.stores {
            if s.lane == Some(lane) && s.end.is_none() {
                s.end = Some(now);
            }
        }
    }

    /// Whether `bytes` may be found at `at`.
    pub fn check(&self, at: usize, bytes: &[u8], look: Look, who: &str) {
        let near: Vec<&Store> =
            self.stores.iter().rev().filter(|s| s.touches(at, bytes.len())).collect();
        for (i, found) in bytes.iter().enumerate() {
            let i = at + i;
            let mut all = near.iter().filter(|s| s.octet(i).is_some());
            let may_be = |a: &Store| {
                !a.is_after(&look)
                    && !near
                        .iter()
                        .any(|b| b.octet(i).is_some() && b.is_before(&look) && b.is_behind(a))
            };
            let good = all.any(|a| a.octet(i) == Some(*found) && may_be(a));
            if !good {
                let may: Vec<_> = near
                    .iter()
                    .filter(|a| a.octet(i).is_some() && may_be(a))
                    .map(|a| (a.octet(i), a.lane, a.seq, a.start, a.end, a.certain))
                    .collect();
                panic!("{who}: octet {i} is {found:#x}, {look:?}, may be {may:x?}");
            }
        }
    }
}
