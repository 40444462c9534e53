//! Registered memory that send queues keep: references to it, and snapshots of it.

use std::sync::Arc;

use heddle_iwarp::{Buffers, Fpdu};
use heddle_mr::Pins;

/// Accounts of all send queues of one RNIC. A send queue enters every FPDU when it queues the FPDU,
/// and removes it from the accounts when the FPDU leaves the queue, for whatever reason.
#[derive(Debug)]
pub(crate) struct Snapshots {
    pub(crate) pins: Arc<Pins>,
    /// Bytes of snapshots in all queues, and their limit.
    snapshots: usize,
    limit: usize,
    /// Memory of FPDUs that have left, for new FPDUs that have to own their bytes.
    pub(crate) buffers: Buffers,
}

impl Snapshots {
    pub(crate) fn new(pins: Arc<Pins>, limit: usize, sums: bool) -> Snapshots {
        Snapshots { pins, snapshots: 0, limit, buffers: Buffers::new(sums) }
    }

    /// Returns true if a queue that keeps `own` bytes of snapshots must wait for acknowledgments
    /// before it takes more. The share of a queue is as large as what all queues leave free, so
    /// that a few queues cannot take everything. This function never refuses a queue that keeps
    /// nothing, so each queue always makes progress.
    #[inline]
    pub(crate) fn is_full(&self, own: usize) -> bool {
        own > 0 && own >= self.limit.saturating_sub(self.snapshots)
    }

    /// Returns the bytes of snapshots in all queues.
    pub(crate) fn snapshots(&self) -> usize {
        self.snapshots
    }

    /// Enters an FPDU that stays in a queue; returns the bytes of its snapshot.
    #[inline]
    pub(crate) fn enter(&mut self, fpdu: &Fpdu) -> usize {
        if let Some(range) = fpdu.payload() {
            self.pins.pin(range);
            return 0;
        }
        let len = fpdu.snapshot_len() as usize;
        self.snapshots += len;
        len
    }

    /// Removes an FPDU that has left its queue; returns the bytes of its snapshot.
    #[inline]
    pub(crate) fn leave(&mut self, fpdu: &mut Fpdu) -> usize {
        if let Some(range) = fpdu.payload() {
            self.pins.unpin(range);
        }
        let len = fpdu.snapshot_len() as usize;
        self.snapshots -= len;
        fpdu.clear(&mut self.buffers);
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many queues ask, together they stay below the limit plus one FPDU each, and each
    /// queue gets something.
    #[test]
    fn test_snapshot_shares_leave_room_for_every_queue() {
        let mut kept = Snapshots::new(Arc::new(Pins::new(0)), 100_000, true);
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
        // A single queue takes half of the limit.
        let mut kept = Snapshots::new(Arc::new(Pins::new(0)), 100_000, true);
        let mut own = 0;
        while !kept.is_full(own) {
            own += 1000;
            kept.snapshots += 1000;
        }
        assert_eq!(own, 50_000);
        assert!(!kept.is_full(0));
    }
}
