//! The request of the application that a Terminate of the peer is about.

use super::*;
use heddle_types::{CqeStatus, SendOp, Sge};

/// Returns a Terminate about a segment that begins with `header`, or that repeats no header.
fn about(header: Option<Vec<u8>>) -> Vec<u8> {
    let mut s = untagged(Opcode::TERMINATE, true, 2, 1, 0);
    match header {
        Some(h) => s.extend([&[0x12, 0x02, 0xc0, 0, 0, 200][..], &h].concat()),
        None => s.extend([0x12, 0x02, 0, 0]),
    }
    s
}

/// Returns the requests that the Terminate blames: those with another status than flushed.
fn blamed(t: &mut Target, header: Option<Vec<u8>>) -> Vec<u64> {
    t.accepts(&write(t.all, TO, 0));
    t.feed(&about(header));
    // The application's memory is free once TCP has ended.
    t.qp.abort();
    let done = completions(&mut t.qp);
    let blamed = done.iter().filter(|c| c.status != CqeStatus::Flushed);
    let blamed: Vec<_> = blamed.map(|c| (c.wr_id, c.status)).collect();
    let status = CqeStatus::of_terminate(TermCode::DDP_NO_BUFFER);
    assert!(blamed.iter().all(|(_, s)| *s == status), "{blamed:?}");
    blamed.into_iter().map(|(id, _)| id).collect()
}

#[test]
fn test_terminate_blames_the_request_whose_header_it_repeats() {
    let msn = |opcode, qn, msn| Some(untagged(opcode, true, qn, msn, 0));
    let write = |to| Some(tagged(Opcode::WRITE, true, Stag(9), to));
    for (header, want) in [
        (msn(Opcode::SEND, 0, 1), vec![1]),
        (msn(Opcode::READ_REQUEST, 1, 1), vec![2]),
        (write(500), vec![3]),
        (write(700), vec![3]),
        (msn(Opcode::READ_REQUEST, 1, 2), vec![4]),
        (msn(Opcode::SEND, 0, 2), vec![5]),
        // The headers here name no request of this side, or one that is not sent yet.
        (write(499), vec![]),
        (write(701), vec![]),
        (Some(tagged(Opcode::WRITE, true, Stag(8), 500)), vec![]),
        (msn(Opcode::SEND, 0, 3), vec![]),
        (msn(Opcode::TERMINATE, 2, 1), vec![]),
        // A peer that does not give the MSN means the Read that it answers next.
        (msn(Opcode::READ_REQUEST, 1, 200), vec![2]),
        // Without a header the Terminate means the oldest request that is not done.
        (None, vec![1]),
    ] {
        let mut t = Target::new();
        let read = SendOp::Read { stag: Stag(77), to: 0 };
        let send = SendOp::Send { solicited: false, invalidate: None };
        for (wr_id, op) in [
            (1, send),
            (2, read),
            (3, SendOp::Write { stag: Stag(9), to: 500 }),
            (4, read),
            (5, send),
        ] {
            t.post(wr_id, op);
        }
        assert_eq!(t.transmit().len(), 5);
        t.post(6, send);
        assert_eq!(blamed(&mut t, header.clone()), want, "{header:02x?}");
    }
}

/// A request that was not started cannot be the cause; one that was started can.
#[test]
fn test_terminate_without_header_blames_only_started_requests() {
    let mut t = Target::new();
    t.post(1, SendOp::Write { stag: Stag(9), to: 0 });
    assert_eq!(blamed(&mut t, None), []);
    let mut t = Target::new();
    let sges = [Sge { stag: t.all, to: TO, len: 1000 }; 2];
    t.qp.post_send(&SendWr::write(1, &sges, Stag(9), 0)).unwrap();
    let env = QpEnv { mem: &t.mem, mrs: &t.mrs, snapshots_full: false, posted: None };
    assert!(t.qp.poll_transmit(&env, 1442).is_some_and(|f| !f.ends_message()));
    assert_eq!(blamed(&mut t, None), [1]);
}
