//! What send queues keep of registered memory: references to it, and snapshots of it.

use std::sync::Arc;

use heddle_iwarp::{Buffers, Fpdu, Pins};

/// Accounts of all send queues of one RNIC. Every FPDU is entered when it is queued and struck out
/// when it leaves, whichever way that is.
#[derive(Debug)]
pub(crate) struct Snapshots {
    pub(crate) pins: Arc<Pins>,
    /// Octets of snapshots in all queues, and how many there may be.
    snapshots: usize,
    limit: usize,
    /// Memory of FPDUs that are gone, for those that have to own their bytes.
    pub(crate) buffers: Buffers,
}

impl Snapshots {
    pub(crate) fn new(pins: Arc<Pins>, limit: usize) -> Snapshots {
        Snapshots { pins, snapshots: 0, limit, buffers: Buffers::default() }
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

    /// An FPDU that stays in a queue; octets of its snapshot.
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

    /// An FPDU that has left its queue; octets of its snapshot.
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

    /// However many ask, together they stay below the limit and one FPDU each, and nobody gets
    /// nothing.
    #[test]
    fn test_shares_leave_room_and_nobody_without() {
        let mut kept = Snapshots::new(Arc::new(Pins::new(0)), 100_000);
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
        let mut kept = Snapshots::new(Arc::new(Pins::new(0)), 100_000);
        let mut own = 0;
        while !kept.is_full(own) {
            own += 1000;
            kept.snapshots += 1000;
        }
        assert_eq!(own, 50_000);
        assert!(!kept.is_full(0));
    }
}
