//! Queue pairs that end at the request of their application, and depths.

use heddle_verbs::{
    Access, CmEvent, Cq, Cqe, CqeStatus, DeviceError, DeviceEvent, DisconnectReason, EventQueue,
    MAX_CQ_DEPTH, Mr, PostError, Qp, QpState, RecvWr, SendWr,
};

use super::*;

/// Waits for `count` completions.
fn completions(cq: &Cq, count: usize) -> Vec<Cqe> {
    let mut all = Vec::new();
    until("completions", || {
        all.extend(std::iter::from_fn(|| cq.poll()));
        (all.len() >= count).then_some(())
    });
    assert_eq!(all.len(), count, "{all:?}");
    all
}

fn flushed(cq: &Cq, marks: &[u64]) {
    let all = completions(cq, marks.len());
    let mut seen: Vec<u64> = all.iter().map(|c| c.wr_id).collect();
    seen.sort_unstable();
    assert_eq!(seen, marks);
    assert!(all.iter().all(|c| c.status == CqeStatus::Flushed), "{all:?}");
}

fn receive(qp: &Qp, mr: &Mr, wr_id: u64) -> Result<(), PostError> {
    qp.post_recv(&RecvWr { wr_id, sges: &[mr.sge(0, 8)] })
}

#[test]
fn test_queue_pair_without_a_connection_is_flushed_on_request_and_used_again() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let events = device.events().unwrap();
        let made = ends(&device, |init| init);
        let (qp, cq) = (made.qp.clone(), made.cq.clone());
        let mr = device.alloc_mr(qp.pd(), 64, Access::LOCAL_WRITE).unwrap();
        for round in 0..3 {
            for wr_id in 0..3 {
                receive(&qp, &mr, wr_id).unwrap();
            }
            // An unsignaled request completes too, because it has not succeeded.
            qp.post_send(&SendWr::send(3, &[mr.sge(0, 8)]).unsignaled()).unwrap();
            assert_eq!(qp.qp_state(), QpState::Init);
            device.fail_qp(&qp).unwrap();
            // No connection takes the queue pair from here on.
            let params = ConnectParams::new(qp.clone());
            let connected = device.connect(addr(THEM, 1), params, &EventQueue::new(None));
            assert!(matches!(connected, Err(DeviceError::QpInUse | DeviceError::QpDead)));
            flushed(&cq, &[0, 1, 2, 3]);
            until("its end", || (qp.qp_state() == QpState::Error).then_some(()));
            assert_eq!(receive(&qp, &mr, 9), Err(PostError::Ended));
            device.fail_qp(&qp).unwrap();
            device.reset_qp(&qp).unwrap();
            assert_eq!(qp.qp_state(), QpState::Init, "{kind:?} {round}");
        }
        // The queue pair connects as any other.
        let (ours, theirs) = nodes.connect(&device, made, 7020);
        let qpn = qp.qpn();
        let wait = events.wait(Some(PATIENCE)).unwrap();
        assert_eq!(wait, Some(DeviceEvent::CommunicationEstablished(qpn)));
        receive(&qp, &mr, 7).unwrap();
        let source = theirs.alloc_mr(8, Access::NONE).unwrap();
        theirs.post_send(&SendWr::send(1, &[source.sge(0, 8)])).unwrap();
        assert!(ours.wait(PATIENCE).unwrap().status.is_success());
    });
}

#[test]
fn test_queue_pair_moved_to_error_is_flushed_and_its_peer_is_reset() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let made = ends(&device, |init| init);
        let (qp, cq) = (made.qp.clone(), made.cq.clone());
        let mr = device.alloc_mr(qp.pd(), 64, Access::LOCAL_WRITE).unwrap();
        let (mut ours, mut theirs) = nodes.connect(&device, made, 7021);
        for wr_id in 0..4 {
            receive(&qp, &mr, wr_id).unwrap();
        }
        assert_eq!(qp.qp_state(), QpState::Rts);
        device.fail_qp(&qp).unwrap();
        flushed(&cq, &[0, 1, 2, 3]);
        let end = until("an end", || ours.end());
        assert!(matches!(end, DisconnectReason::Tcp(_)), "{kind:?} {end:?}");
        let end = until("the peer's end", || theirs.end());
        assert!(matches!(end, DisconnectReason::Tcp(_)), "{kind:?} {end:?}");
        assert_eq!(qp.qp_state(), QpState::Error);
        device.reset_qp(&qp).unwrap();
        assert_eq!(qp.qp_state(), QpState::Init);
    });
}

/// The peer does not answer: the RNIC gives the connection up, and then flushes the queue pair.
#[test]
fn test_queue_pair_that_is_connecting_fails_on_request() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let made = ends(&device, |init| init);
        let (qp, cq) = (made.qp.clone(), made.cq.clone());
        let mr = device.alloc_mr(qp.pd(), 64, Access::LOCAL_WRITE).unwrap();
        receive(&qp, &mr, 1).unwrap();
        let events = EventQueue::new(None);
        let nobody = addr(Ipv4Addr::new(10, 0, 0, 99), 1);
        device.connect(nobody, ConnectParams::new(qp.clone()), &events).unwrap();
        assert_eq!(qp.qp_state(), QpState::Connecting);
        device.fail_qp(&qp).unwrap();
        let event = until("an event", || events.poll());
        assert!(matches!(event, CmEvent::ConnectError { .. }), "{kind:?} {event:?}");
        flushed(&cq, &[1]);
        until("its end", || (qp.qp_state() == QpState::Error).then_some(()));
        device.reset_qp(&qp).unwrap();
    });
}

#[test]
fn test_failed_queue_pair_with_shared_receive_queue_gets_its_last_event() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let events = device.events().unwrap();
        let pd = device.alloc_pd().unwrap();
        let srq = device.create_srq(pd, 16, 1, None).unwrap();
        let cq = device.create_cq(16, None).unwrap();
        let qp = device.create_qp(pd, QpInit::new(cq).shared(&srq)).unwrap();
        device.fail_qp(&qp).unwrap();
        let event = events.wait(Some(PATIENCE)).unwrap();
        assert_eq!(event, Some(DeviceEvent::LastWqeReached(qp.qpn())), "{kind:?}");
    });
}

/// libfabric's rxm asks for this many completions; the queues of a default device have room for
/// them.
#[test]
fn test_device_grants_completion_queue_up_to_maximum_depth_only() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        assert_eq!(device.limits().max_cqes, MAX_CQ_DEPTH);
        let cq = device.create_cq(262_144, None).unwrap();
        assert_eq!(cq.depth(), 262_144, "{kind:?}");
        let deeper = device.create_cq(MAX_CQ_DEPTH + 1, None);
        assert!(matches!(deeper, Err(DeviceError::Limit { .. })), "{deeper:?}");
        let usual = device.create_cq(100, None).unwrap();
        assert_eq!(usual.depth(), 128, "what was granted");
    });
}
