//! Shared receive buffers: which of them a peer's messages take, and which not.

use super::*;
use arrayvec::ArrayVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use heddle_engine::{SharedBroken, SharedReceives};
use heddle_types::Sge;

/// As many buffers of 64 bytes as there are left, marked 200, 201, and so on; or a broken queue.
#[derive(Debug)]
struct Shelf {
    taken: Arc<AtomicU64>,
    total: u64,
    broken: bool,
    sge: Sge,
}

impl SharedReceives for Shelf {
    fn take(&mut self, sges: &mut ArrayVec<Sge, MAX_SGES>) -> Result<Option<u64>, SharedBroken> {
        if self.broken {
            return Err(SharedBroken);
        }
        if self.taken.load(Relaxed) == self.total {
            return Ok(None);
        }
        sges.push(self.sge);
        Ok(Some(200 + self.taken.fetch_add(1, Relaxed)))
    }
}

/// Returns a target that has used up its own two buffers, so that Send 3 is next.
fn sharing(total: u64, broken: bool) -> (Target, Arc<AtomicU64>) {
    let mut t = Target::new();
    let (taken, sge) = (Arc::default(), Sge { stag: t.all, to: TO, len: BUFFER });
    t.qp.share_receives(Box::new(Shelf { taken: Arc::clone(&taken), total, broken, sge }));
    for (msn, wr_id) in [(1, 100), (2, 101)] {
        t.accepts(&send(msn, 0, true, 8));
        assert_eq!(completions(&mut t.qp)[0].wr_id, wr_id, "its own come first");
    }
    assert_eq!(taken.load(Relaxed), 0);
    (t, taken)
}

#[test]
fn test_each_message_takes_one_shared_buffer() {
    let (mut t, taken) = sharing(3, false);
    for s in [send(3, 0, false, 8), send(3, 8, false, 8), send(3, 16, true, 8)] {
        t.accepts(&s);
        assert_eq!(taken.load(Relaxed), 1);
    }
    t.accepts(&send(4, 0, true, 64));
    t.accepts(&cat(&untagged(Opcode::IMMEDIATE, true, 0, 5, 0), &[7; 8]));
    let got = completions(&mut t.qp);
    let got: Vec<_> = got.iter().map(|c| (c.wr_id, c.len, c.immediate)).collect();
    let immediate = Some(0x0707_0707_0707_0707);
    assert_eq!(got, [(200, 24, None), (201, 64, None), (202, 0, immediate)]);
    // The shelf is empty: as wrong as a Send without a receive of its own (RFC 5041 section 7.2).
    t.refuses(&send(6, 0, true, 8), 0x1202, 18, "err_no_buffer");
}

/// The other queue pairs need the buffers too.
#[test]
fn test_segment_that_begins_no_message_takes_no_shared_buffer() {
    for (s, code, counter) in [
        (send(4, 0, true, 8), 0x1203, "err_msn"),
        (send(2, 0, true, 8), 0x1203, "err_msn"),
        (send(3, 8, true, 8), 0x1202, "err_no_buffer"),
    ] {
        let (mut t, taken) = sharing(3, false);
        t.refuses(&s, code, 18, counter);
        assert_eq!(taken.load(Relaxed), 0);
    }
}

/// A broken shared queue is a mistake of this side, and the Terminate says no more than that.
#[test]
fn test_broken_shared_queue_ends_the_stream() {
    let (mut t, _) = sharing(3, true);
    t.refuses(&send(3, 0, true, 8), 0x0000, 0, "err_local");
}
