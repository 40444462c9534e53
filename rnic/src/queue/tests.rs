use std::sync::Arc;

use heddle_base::Seed;
use heddle_iwarp::{QpConfig, QpContext, QpEnv};
use heddle_mr::{MrTable, Pins, testing::TestMemory};
use heddle_types::{SendWr, Stag};

use super::*;

/// Queues `n` FPDUs and acknowledges them.
fn burst(q: &mut FpduQueue, kept: &mut Snapshots, n: usize) {
    for _ in 0..n {
        // The FPDUs are empty, because only their number matters.
        q.push_fpdu(kept, |_, _| true);
    }
    q.release(kept, q.end());
    assert!(q.fpdus.is_empty());
}

#[test]
fn test_memory_of_a_burst_is_given_back_when_little_is_needed_for_a_while() {
    let mut kept = Snapshots::new(Arc::new(Pins::new(0)), 0, true);
    let mut q = FpduQueue::default();
    // A burst now and then keeps the memory of the queue.
    for _ in 0..3 {
        burst(&mut q, &mut kept, 5000);
        for _ in 1..CALM {
            burst(&mut q, &mut kept, 1);
        }
        assert!(q.room() >= 5000);
    }
    burst(&mut q, &mut kept, 1);
    assert!(q.room() <= SMALL, "{}", q.room());
}

/// Queues an FPDU for the Write of each length in `lens`, in bytes of inline data.
fn cut(q: &mut FpduQueue, kept: &mut Snapshots, qp: &mut QpContext, lens: &[usize]) {
    let (mem, mrs) = (TestMemory::new(0, 0), MrTable::new(&Seed::from_u64(1), 1));
    let env = QpEnv { mem: &mem, mrs: &mrs, snapshots_full: false, posted: None };
    for len in lens {
        let bytes: Vec<u8> = (0..).take(*len).collect();
        qp.post_send(&SendWr::write_inline(1, &bytes, Stag(1), 0)).unwrap();
        q.push_fpdu(kept, |buffers, fpdu| qp.poll_transmit_into(&env, 1442, buffers, fpdu));
    }
}

fn queue() -> (FpduQueue, Snapshots, QpContext) {
    let kept = Snapshots::new(Arc::new(Pins::new(0)), 0, true);
    (FpduQueue::default(), kept, QpContext::new(&QpConfig::default()))
}

/// `fill` sums short FPDUs together, including those that own their bytes, and each FPDU with the
/// FPDUs before it, in any order of lengths.
#[test]
fn test_fill_checksums_the_bytes_it_writes() {
    let (mut q, mut kept, mut qp) = queue();
    cut(&mut q, &mut kept, &mut qp, &[8, 0, 100, 8, 31, 200, 7]);
    let mem = TestMemory::new(0, 0);
    let len = q.segment_len(StreamPos::START, 1460);
    assert_eq!(q.end(), StreamPos(len.into()), "all of them in one segment");
    let found = q.whole(StreamPos::START, len).unwrap();
    assert!(found.fillable);
    let mut frame = vec![0xee; len as usize];
    let (sum, digested) = q.fill(&mem, found, &mut frame, true);
    assert_eq!(sum.folded() % 0xffff, Sum::of(&frame).folded() % 0xffff);
    assert_eq!(digested, 0);
    let mut pieces = Vec::new();
    q.pieces(StreamPos::START, len, |p| match p {
        Piece::Bytes(b) => pieces.extend_from_slice(b),
        Piece::Memory(_) => unreachable!("nothing lies elsewhere"),
    });
    assert_eq!(frame, pieces);
}

/// The queue forgets its last search result when it takes FPDUs back, because other FPDUs take
/// their place.
#[test]
fn test_queue_forgets_last_search_result_when_it_withdraws_fpdus() {
    let (mut q, mut kept, mut qp) = queue();
    cut(&mut q, &mut kept, &mut qp, &[0, 0, 0]);
    assert_eq!(q.segment_len(StreamPos::START, 1460), 60);
    q.withdraw(&mut kept, StreamPos(20));
    cut(&mut q, &mut kept, &mut qp, &[20]);
    let found = q.whole(StreamPos::START, 60).unwrap();
    assert_eq!((found.first, found.end), (0, 2));
}
