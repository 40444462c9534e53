//! What send queues keep of registered memory: references to it, and snapshots of it.

use std::sync::Arc;

use heddle_iwarp::{Fpdu, Pins};

/// Accounts of all send queues of one RNIC. Every FPDU is entered when it is queued and struck out
/// when it leaves, whichever way that is.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) pins: Arc<Pins>,
    /// Octets of snapshots in all queues, and how many there may be.
    snapshots: usize,
    limit: usize,
    /// Memory of FPDUs that are gone, for those that have to own their bytes.
    spare: Vec<Vec<u8>>,
}

/// Buffers kept for use again; beyond it, each comes from the allocator.
const MAX_SPARE: usize = 1024;

impl Kept {
    pub(crate) fn new(pins: Arc<Pins>, limit: usize) -> Kept {
        Kept { pins, snapshots: 0, limit, spare: Vec::new() }
    }

    /// Whether a queue that keeps `own` octets of snapshots must wait for acknowledgments before it
    /// takes more. Its share is what all of them leave free, so that a few cannot take everything;
    /// one that keeps nothing is never refused, and so always gets on.
    #[inline]
    pub(crate) fn is_full(&self, own: usize) -> bool {
        own > 0 && own >= self.limit.saturating_sub(self.snapshots)
    }

    /// Octets of snapshots in all queues.
    pub(crate) fn snapshots(&self) -> usize {
        self.snapshots
    }

    /// An FPDU to fill in, with memory of its own if it may need that.
    #[inline]
    pub(crate) fn fresh(&mut self, wants_memory: bool) -> Fpdu {
        if wants_memory {
            return Fpdu::with_memory(self.spare.pop().unwrap_or_default());
        }
        Fpdu::default()
    }

    /// An FPDU that stays in a queue; octets of its snapshot.
    #[inline]
    pub(crate) fn enter(&mut self, fpdu: &mut Fpdu) -> usize {
        if let Some(range) = fpdu.payload() {
            self.pins.pin(range);
            return 0;
        }
        let unused = fpdu.take_unused();
        self.put_back(unused);
        let len = fpdu.snapshot_len() as usize;
        self.snapshots += len;
        len
    }

    /// An FPDU that has left its queue; octets of its snapshot.
    #[inline]
    pub(crate) fn leave(&mut self, fpdu: Fpdu) -> usize {
        if let Some(range) = fpdu.payload() {
            self.pins.unpin(range);
        }
        let len = fpdu.snapshot_len() as usize;
        self.snapshots -= len;
        self.discard(fpdu);
        len
    }

    /// An FPDU that was never in a queue.
    #[inline]
    pub(crate) fn discard(&mut self, fpdu: Fpdu) {
        self.put_back(fpdu.into_memory());
    }

    #[inline]
    fn put_back(&mut self, memory: Vec<u8>) {
        if memory.capacity() > 0 && self.spare.len() < MAX_SPARE {
            self.spare.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many ask, together they stay below the limit and one FPDU each, and nobody gets
    /// nothing.
    #[test]
    fn test_shares_leave_room_and_nobody_without() {
        let mut kept = Kept::new(Arc::new(Pins::new(0)), 100_000);
        let mut own = vec![0; 20];
        for round in 0..200 {
            let i = round % own.len();
            if !kept.is_full(own[i]) {
                own[i] += 1500;
                kept.snapshots += 1500;
            }
        }
        assert!(own.iter().all(|n| *n >= 1500), "{own:?}");
        assert!(kept.snapshots <= 100_000 + 20 * 1500, "{own:?}");
        // The first on its own takes half.
        let mut kept = Kept::new(Arc::new(Pins::new(0)), 100_000);
        let mut own = 0;
        while !kept.is_full(own) {
            own += 1000;
            kept.snapshots += 1000;
        }
        assert_eq!(own, 50_000);
        assert!(!kept.is_full(0));
    }
}
