//! The end of a stream: the QP flushes posted requests in order, each once, and none before TCP has
//! finished with its bytes.

use super::pair::BASE;
use super::*;
use crate::fault::Fault;
use heddle_types::{CqeStatus, SendOp, Sge};

/// A Read and three Writes of 4000 bytes, of which one and a third are in FPDUs.
struct Under {
    p: Pair,
    /// Ends of the Read Request, of the first segment and of the whole of the first Write, and of
    /// all FPDUs made.
    read: StreamPos,
    segment: StreamPos,
    write: StreamPos,
    made: StreamPos,
}

impl Under {
    fn way() -> Under {
        let mut p = Pair::open(PairConfig::default());
        let (stag, src) = (p.nodes[1].stag, [p.nodes[0].sge(0, 4000)]);
        let sink = [p.nodes[0].sge(5000, 10)];
        p.send(0, 1, SendOp::Read { stag, to: BASE }, sink);
        for id in 2..5 {
            p.send(0, id, SendOp::Write { stag, to: BASE }, src);
        }
        let read = p.nodes[0].qp.tx_end() + 52;
        let write = read + 2 * 1448 + 1164;
        p.transmit(0, 5);
        assert_eq!(p.nodes[0].qp.tx_end(), write + 1448);
        Under { p, read, segment: read + 1448, write, made: write + 1448 }
    }

    fn qp(&mut self) -> &mut QpContext {
        &mut self.p.nodes[0].qp
    }

    /// Returns the new completions, which must all be flushed.
    fn flushed(&mut self) -> Vec<u64> {
        let done = completions(self.qp());
        assert!(done.iter().all(|c| c.status == CqeStatus::Flushed), "{done:?}");
        done.iter().map(|c| c.wr_id).collect()
    }
}

/// A Terminate about a Write that the application did not post.
const NAMES_NONE: [u8; 20] =
    [0x11, 1, 0xc0, 0, 0, 14, 0xc1, 0x40, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn test_ended_queue_pair_flushes_requests_as_they_are_acknowledged() {
    for ending in 0..3 {
        let mut u = Under::way();
        match ending {
            0 => u.qp().fail(Fault::Crc.into()),
            1 => u.qp().terminated_by_peer(&NAMES_NONE).unwrap(),
            // With a Read outstanding, the peer's close ends the stream.
            _ => u.qp().handle_peer_closed(false),
        }
        assert_eq!(u.flushed(), [1], "a Read Request refers to no memory");
        // A request posted now waits too.
        u.qp().post_send(&SendWr::send(5, &[])).unwrap();
        let (read, write, made) = (u.read, u.write, u.made);
        let before = |pos: StreamPos| StreamPos(pos.0 - 1);
        for (upto, want) in [
            (read, &[][..]),
            (before(write), &[]),
            (write, &[2]),
            (before(made), &[]),
            (made, &[3, 4, 5]),
            (made, &[]),
        ] {
            u.qp().handle_acked(upto);
            assert_eq!(u.flushed(), want, "{ending}: {upto:?}");
        }
        u.qp().abort();
        assert!(u.flushed().is_empty());
        assert_eq!(u.qp().counters().flushed, 5);
        assert_eq!(u.qp().sq_retired(), 6);
    }
}

#[test]
fn test_aborted_queue_pair_flushes_all_requests_at_once() {
    let mut u = Under::way();
    u.qp().abort();
    assert_eq!(u.flushed(), [1, 2, 3, 4]);
    let mut u = Under::way();
    u.qp().fail(Fault::Crc.into());
    assert_eq!(u.flushed(), [1]);
    u.qp().abort();
    assert_eq!(u.flushed(), [2, 3, 4]);
    assert!(!u.qp().has_transmit(), "no Terminate either");
}

#[test]
fn test_ended_queue_pair_does_not_wait_for_withdrawn_fpdus() {
    let mut u = Under::way();
    u.qp().fail(Fault::Crc.into());
    assert_eq!(u.flushed(), [1]);
    let segment = u.segment;
    u.qp().handle_withdrawn(segment);
    assert_eq!(u.qp().tx_end(), segment, "the Terminate follows there");
    assert!(u.flushed().is_empty());
    u.qp().handle_acked(segment);
    assert_eq!(u.flushed(), [2, 3, 4]);
    // The peer had acknowledged everything that was sent.
    let mut u = Under::way();
    u.qp().handle_acked(segment);
    u.qp().fail(Fault::Crc.into());
    assert_eq!(u.flushed(), [1]);
    u.qp().handle_withdrawn(segment);
    assert_eq!(u.flushed(), [2, 3, 4]);
}

#[test]
fn test_running_queue_pair_ignores_withdrawal() {
    let mut u = Under::way();
    let (segment, made) = (u.segment, u.made);
    u.qp().handle_withdrawn(segment);
    assert_eq!(u.qp().tx_end(), made);
    assert!(completions(u.qp()).is_empty());
}

/// Each request posted after the close, however many there are, completes once, says why, and
/// completes no other request with it.
#[test]
fn test_closing_queue_pair_completes_each_late_request_once() {
    let mut p = Pair::open(PairConfig::default());
    p.a().qp.close();
    for wr_id in 0..200 {
        p.send(0, wr_id, SendOp::Write { stag: Stag(1), to: 0 }, []);
        let done = completions(&mut p.a().qp);
        let done: Vec<_> = done.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(done, [(wr_id, CqeStatus::LocalQpOperation(PostError::Closing))]);
    }
    assert!(!p.nodes[0].qp.has_transmit());
}

/// A receive buffer that broke the rules reports the broken rule, even if no message came for it;
/// the buffers around it are flushed.
#[test]
fn test_malformed_receive_reports_its_fault_even_if_never_used() {
    let mut p = Pair::open(PairConfig::default());
    let many = [Sge::default(); MAX_SGES + 1];
    p.recv(0, 1, []);
    p.recv(0, 2, many);
    p.recv(0, 3, []);
    p.a().qp.abort();
    p.recv(0, 4, many);
    let done = completions(&mut p.a().qp);
    let done: Vec<_> = done.iter().map(|c| (c.wr_id, c.status)).collect();
    let why = CqeStatus::LocalQpOperation(PostError::TooManySges);
    assert_eq!(done, [(1, CqeStatus::Flushed), (2, why), (3, CqeStatus::Flushed), (4, why)]);
    assert_eq!(p.nodes[0].qp.counters().flushed, 2);
}
