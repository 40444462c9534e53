//! How many Terminates there can be, and what they take: one each way, and no buffer of anybody.

use super::*;

fn terminate(body: [u8; 4]) -> Vec<u8> {
    cat(&untagged(Opcode::TERMINATE, true, 2, 1, 0), &body)
}

/// There is room for the peer's Terminate whatever the application has posted, and it takes none of
/// that: the receives are flushed, not filled.
#[test]
fn test_rts_terminate_has_a_buffer_of_its_own() {
    for (received, left) in [(0, vec![100, 101]), (2, vec![])] {
        let mut t = Target::new();
        for msn in 1..=received {
            t.accepts(&send(msn, 0, true, 8));
        }
        completions(&mut t.qp);
        let memory = t.mem.snapshot();
        t.feed(&terminate([0x12, 0x02, 0, 0]));
        let remote = QpEvent::Terminated { by: Side::Remote, code: TermCode::DDP_NO_BUFFER };
        assert_eq!(events(&mut t.qp).last(), Some(&remote));
        let done = completions(&mut t.qp);
        assert!(done.iter().all(|c| c.status == CqeStatus::Flushed));
        assert_eq!(done.iter().map(|c| c.wr_id).collect::<Vec<_>>(), left);
        assert_eq!(t.mem.snapshot(), memory);
    }
}

/// The buffer is taken by the first: a second changes and tells nothing.
#[test]
fn test_rts_second_terminate_of_the_peer_is_dropped() {
    let mut t = Target::new();
    let both = [terminate([0x12, 0x02, 0, 0]), terminate([0x11, 0x01, 0, 0])];
    let bytes: Vec<u8> = both.iter().flat_map(|s| framed(s, true)).collect();
    assert_eq!(t.feed_raw(&bytes), bytes.len());
    let remote = QpEvent::Terminated { by: Side::Remote, code: TermCode::DDP_NO_BUFFER };
    assert_eq!(events(&mut t.qp), [remote]);
    let c = t.qp.counters();
    assert_eq!((c.rx_terminates, c.rx_dropped_bytes), (1, bytes.len() as u64 / 2));
    assert!(t.transmit().is_empty(), "and neither is answered");
}

/// Ours: one, and nothing behind it, whatever more goes wrong and is posted.
#[test]
fn test_rts_one_terminate_is_sent_and_nothing_behind_it() {
    let mut t = Target::new();
    t.post(1, SendOp::Write { stag: Stag(9), to: 0 });
    t.feed(&send(9, 0, true, 8));
    assert_eq!(t.transmit().len(), 1);
    t.feed(&write(Stag(1), 0, 8));
    t.feed(&read_request(1, t.all, TO, 8));
    t.post(2, SendOp::Write { stag: Stag(9), to: 0 });
    t.qp.close();
    assert!(!t.qp.has_transmit());
    assert!(t.transmit().is_empty());
}
