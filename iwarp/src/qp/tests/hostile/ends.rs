//! Local errors, and Terminates of the peer.

use super::*;
use heddle_types::{CqeStatus, SendOp, Sge};

#[test]
fn test_request_using_memory_of_another_domain_ends_the_stream() {
    for op in [
        SendOp::Send { solicited: false, invalidate: None },
        SendOp::Write { stag: Stag(9), to: 0 },
        SendOp::Read { stag: Stag(9), to: 0 },
    ] {
        let mut t = Target::new();
        let other = t.mrs.register(Pd(4), 0, 0, 100, rights()).unwrap().stag;
        let sges = [Sge { stag: other, to: 0, len: 8 }];
        t.qp.post_send(&SendWr { op, ..SendWr::send(3, &sges).unsignaled() }).unwrap();
        t.post(4, SendOp::Write { stag: Stag(9), to: 0 });
        let posted = t.posted();
        // The QP sends the Terminate instead of the request.
        let sent = t.transmit();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0][2..24][18..], [0, 0, 0, 0]);
        let done = completions(&mut t.qp);
        assert_eq!(done.len(), posted.len());
        assert_eq!((done[0].wr_id, done[0].status), (3, CqeStatus::LocalProtection));
        assert!(done[1..].iter().all(|c| c.status == CqeStatus::Flushed));
        assert_eq!(t.qp.counters().err_local, 1);
        assert_eq!(t.qp.state(), ConnectedState::Terminate);
    }
}

/// The Terminate reports the first of several errors.
#[test]
fn test_terminate_reports_the_first_of_two_errors() {
    let mut t = Target::new();
    let mut bytes = framed(&send(9, 0, true, 8), true);
    bytes.extend(framed(&write(Stag(1), 0, 8), true));
    assert_eq!(t.feed_raw(&bytes), bytes.len());
    assert_eq!((t.qp.counters().err_msn, t.qp.counters().err_stag), (1, 0));
    let code = TermCode::new(1, 2, 3);
    let local = QpEvent::Terminated { by: Side::Local, code };
    assert_eq!(events(&mut t.qp), [local]);
}

fn peers_terminate(body: &[u8]) -> Vec<u8> {
    cat(&untagged(Opcode::TERMINATE, true, 2, 1, 0), body)
}

#[test]
fn test_queue_pair_flushes_and_does_not_answer_terminate_of_peer() {
    let mut t = Target::new();
    t.post(1, SendOp::Write { stag: Stag(9), to: 0 });
    t.post(2, SendOp::Send { solicited: false, invalidate: None });
    assert_eq!(t.transmit().len(), 2);
    // The Terminate is about the Send: queue 0, MSN 1.
    let mut body = vec![0x12, 2, 0xc0, 0, 0, 218];
    body.extend(untagged(Opcode::SEND, true, 0, 1, 0));
    t.feed(&peers_terminate(&body));
    assert_eq!(t.qp.state(), ConnectedState::Error);
    let code = TermCode::new(1, 2, 2);
    assert_eq!(events(&mut t.qp), [QpEvent::Terminated { by: Side::Remote, code }]);
    let done: Vec<_> = completions(&mut t.qp).iter().map(|c| (c.wr_id, c.status)).collect();
    let flushed = CqeStatus::Flushed;
    let hit = CqeStatus::RemoteOperation(code);
    // TCP may have to retransmit the requests that are in FPDUs, so only the receives complete.
    assert_eq!(done, [(100, flushed), (101, flushed)]);
    t.qp.handle_acked(StreamPos(t.qp.tx_end().0 - 1));
    let done: Vec<_> = completions(&mut t.qp).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [(1, flushed)]);
    t.qp.handle_acked(t.qp.tx_end());
    let done: Vec<_> = completions(&mut t.qp).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [(2, hit)]);
    assert!(t.transmit().is_empty());
    assert!(!t.qp.has_transmit());
    assert_eq!(t.qp.counters().rx_terminates, 1);
}

#[test]
fn test_terminate_fails_the_write_or_read_whose_header_it_carries() {
    for (header, want) in [
        (tagged(Opcode::WRITE, true, Stag(9), 100), Some(1)),
        (tagged(Opcode::WRITE, true, Stag(9), 5000), Some(2)),
        (untagged(Opcode::READ_REQUEST, true, 1, 1, 0), Some(3)),
        // As siw writes it, with the size in place of the MSN: it means the oldest Read.
        (untagged(Opcode::READ_REQUEST, true, 1, 200, 0), Some(3)),
        // A Terminate about a request that is over, and one about no particular request.
        (tagged(Opcode::WRITE, true, Stag(8), 0), None),
        (Vec::new(), Some(1)),
    ] {
        let mut t = Target::new();
        t.post(1, SendOp::Write { stag: Stag(9), to: 0 });
        t.post(2, SendOp::Write { stag: Stag(9), to: 5000 });
        t.post(3, SendOp::Read { stag: Stag(9), to: 0 });
        t.post(4, SendOp::Write { stag: Stag(9), to: 0 });
        assert_eq!(t.transmit().len(), 4);
        let bits = if header.is_empty() { 0 } else { 0xc0 };
        let mut body = vec![0x11, 1, bits, 0, 0, 0];
        body.extend(header);
        t.feed(&peers_terminate(&body));
        t.qp.handle_acked(t.qp.tx_end());
        let hits: Vec<_> = completions(&mut t.qp)
            .iter()
            .filter(|c| c.status == CqeStatus::RemoteAccess(TermCode::new(1, 1, 1)))
            .map(|c| c.wr_id)
            .collect();
        assert_eq!(hits, want.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn test_queue_pair_understands_terminate_in_layout_of_siw() {
    let mut t = Target::new();
    let mut body = vec![0x21, 2, 3, 0, 0, 20];
    body.extend(untagged(Opcode::SEND, true, 0, 1, 0));
    t.feed(&peers_terminate(&body));
    let code = TermCode::new(1, 2, 2);
    assert_eq!(events(&mut t.qp)[0], QpEvent::Terminated { by: Side::Remote, code });
}

/// The error code stands if the Terminate contains it.
#[test]
fn test_terminate_cut_short_or_too_long_still_ends_the_stream() {
    let remote = QpEvent::Terminated { by: Side::Remote, code: TermCode::new(1, 2, 2) };
    let failed = QpEvent::Failed { code: TermCode::new(0, 2, 7) };
    for (body, event, malformed) in [
        (&[][..], failed, 1),
        (&[0x12], failed, 1),
        (&[0x12, 2, 0], failed, 1),
        (&[0x12, 2, 0xc0, 0], remote, 1),
        (&[0x12, 2, 0xe0, 0, 0, 9, 1, 2], remote, 1),
        (&[0x12, 2, 0, 0], remote, 0),
        (&[0x12, 2, 0, 0, 7, 7, 7, 7], remote, 0),
        (&[[0x12, 2, 0, 0], [7; 4]].concat().repeat(100), remote, 0),
    ] {
        let mut t = Target::new();
        t.feed(&peers_terminate(body));
        assert_eq!(t.qp.state(), ConnectedState::Error);
        assert_eq!(events(&mut t.qp), [event]);
        assert_eq!(completions(&mut t.qp).len(), 2);
        assert!(t.transmit().is_empty());
        let c = t.qp.counters();
        assert_eq!((c.rx_terminates, c.err_malformed), (1, malformed), "{body:?}");
    }
}

/// A Terminate that is not the first message of its queue, or not in one segment at offset 0, is an
/// error itself, and the QP does not answer it either. The QP blames no request for its contents.
#[test]
fn test_terminate_out_of_sequence_ends_the_stream_unanswered() {
    for (last, msn, mo, code, counter) in [
        (true, 0, 0, 3, "err_msn"),
        (true, 2, 0, 3, "err_msn"),
        (true, u32::MAX, 0, 3, "err_msn"),
        (true, 1, 1, 4, "err_offset"),
        (true, 1, u32::MAX, 4, "err_offset"),
        (false, 1, 0, 7, "err_malformed"),
    ] {
        let mut t = Target::new();
        t.post(1, SendOp::Write { stag: Stag(9), to: 0 });
        assert_eq!(t.transmit().len(), 1);
        t.feed(&cat(&untagged(Opcode::TERMINATE, last, 2, msn, mo), &[0x11, 0, 0, 0]));
        let code = if last { TermCode::new(1, 2, code) } else { TermCode::new(0, 2, code) };
        assert_eq!(events(&mut t.qp), [QpEvent::Failed { code }]);
        assert_eq!(t.qp.state(), ConnectedState::Error);
        t.qp.handle_acked(t.qp.tx_end());
        let done = completions(&mut t.qp);
        assert_eq!(done.len(), 3);
        assert!(done.iter().all(|c| c.status == CqeStatus::Flushed));
        assert!(t.transmit().is_empty() && !t.qp.has_transmit());
        assert_eq!(t.qp.received_terminate(), None);
        let mut errors = Vec::new();
        t.qp.counters().for_each(|name, _, v| {
            if (name.starts_with("err_") || name == "rx_terminates") && v > 0 {
                errors.push((name, v));
            }
        });
        errors.sort_unstable();
        assert_eq!(errors, [(counter, 1), ("rx_terminates", 1)]);
    }
}

/// The application can read the headers that the peer repeats.
#[test]
fn test_terminate_of_peer_is_reported_with_its_headers() {
    let mut t = Target::new();
    t.post(1, SendOp::Read { stag: Stag(9), to: 0 });
    assert_eq!(t.transmit().len(), 1);
    assert_eq!(t.qp.received_terminate(), None);
    // Base or bounds violation, after 150 of the 200 bytes.
    let request = ReadRequest {
        sink_stag: t.all,
        sink_to: TO + 150,
        size: 50,
        src_stag: Stag(9),
        src_to: 150,
    };
    let header = untagged(Opcode::READ_REQUEST, true, 1, 1, 0);
    let mut body = vec![0x01, 1, 0xe0, 0, 0, 46];
    body.extend(&header);
    body.extend(request.emit());
    t.feed(&peers_terminate(&body));
    let code = TermCode::new(0, 1, 1);
    assert_eq!(events(&mut t.qp), [QpEvent::Terminated { by: Side::Remote, code }]);
    let told = t.qp.received_terminate().unwrap();
    assert_eq!((told.code, told.segment_len), (code, Some(46)));
    assert_eq!(told.ddp.unwrap().as_bytes(), header);
    assert_eq!(told.read_request, Some(request));
    assert_eq!(completions(&mut t.qp)[0].status, CqeStatus::RemoteAccess(code));
}

/// siw announces an RDMAP header for a Send with Invalidate too, and sends none: the DDP header
/// still names the Send.
#[test]
fn test_terminate_of_siw_about_invalidation_fails_only_that_send() {
    let mut t = Target::new();
    t.post(1, SendOp::Write { stag: Stag(9), to: 0 });
    t.post(2, SendOp::Send { solicited: false, invalidate: Some(Stag(7)) });
    assert_eq!(t.transmit().len(), 2);
    let mut body = vec![0x10, 9, 7, 0, 0, 218];
    body.extend(untagged(Opcode::SEND_INV, true, 0, 1, 0));
    t.feed(&peers_terminate(&body));
    let code = TermCode::new(0, 1, 9);
    assert_eq!(events(&mut t.qp), [QpEvent::Terminated { by: Side::Remote, code }]);
    t.qp.handle_acked(t.qp.tx_end());
    let done: Vec<_> = completions(&mut t.qp).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done.last(), Some(&(2, CqeStatus::RemoteAccess(code))));
    let blamed = done.iter().filter(|(_, s)| *s != CqeStatus::Flushed).count();
    assert_eq!(blamed, 1);
}

#[test]
fn test_terminating_queue_pair_ignores_terminate_of_peer() {
    let mut t = Target::new();
    t.feed(&send(9, 0, true, 8));
    assert_eq!(t.qp.state(), ConnectedState::Terminate);
    events(&mut t.qp);
    t.feed(&peers_terminate(&[0x12, 2, 0, 0]));
    assert_eq!(t.qp.state(), ConnectedState::Terminate);
    assert!(events(&mut t.qp).is_empty());
    assert_eq!(t.transmit().len(), 1);
}

#[test]
fn test_aborted_queue_pair_drops_its_unsent_terminate() {
    let mut t = Target::new();
    t.feed(&send(9, 0, true, 8));
    t.qp.abort();
    assert_eq!(t.qp.state(), ConnectedState::Error);
    assert!(t.transmit().is_empty());
}

/// Refused access has a status of its own: any remote protection error of RDMAP, and in DDP the
/// errors of tagged buffers except the version error, which belongs to the same type.
#[test]
fn test_terminate_about_refused_access_has_its_own_status() {
    let access = [(0, 1, 0), (0, 1, 4), (0, 1, 0xff), (1, 1, 0), (1, 1, 1), (1, 1, 2), (1, 1, 3)];
    let other = [(1, 1, 4), (1, 1, 5), (1, 1, 0xff), (1, 2, 1), (1, 0, 0), (0, 2, 1), (0, 0, 0)];
    for (layer, etype, code) in access {
        let code = TermCode::new(layer, etype, code);
        assert_eq!(CqeStatus::of_terminate(code), CqeStatus::RemoteAccess(code));
    }
    for (layer, etype, code) in other.into_iter().chain([(2, 1, 2), (2, 0, 1)]) {
        let code = TermCode::new(layer, etype, code);
        assert_eq!(CqeStatus::of_terminate(code), CqeStatus::RemoteOperation(code));
    }
}

/// A Read that was answered before the end has succeeded, although the Write before it waits for
/// its acknowledgment, and the owner withdraws the FPDUs made after the Read.
#[test]
fn test_withdrawal_keeps_the_success_of_an_answered_read() {
    let mut t = Target::new();
    t.post(1, SendOp::Write { stag: Stag(9), to: 0 });
    t.post(2, SendOp::Read { stag: Stag(77), to: 0 });
    assert_eq!(t.transmit().len(), 2);
    t.accepts(&response(t.all, TO, true, 200));
    let sent = t.qp.tx_end();
    t.post(3, SendOp::Write { stag: Stag(9), to: 0 });
    assert_eq!(t.transmit().len(), 1);
    t.feed(&send(9, 0, true, 8));
    t.qp.handle_withdrawn(sent);
    t.qp.handle_acked(sent);
    let done: Vec<_> = completions(&mut t.qp).iter().map(|c| (c.wr_id, c.status)).collect();
    let (ok, flushed) = (CqeStatus::Success, CqeStatus::Flushed);
    assert_eq!(done, [(100, flushed), (101, flushed), (1, flushed), (2, ok), (3, flushed)]);
}
