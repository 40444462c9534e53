//! The states of a queue pair, as its application sees them, and its use for another connection.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use heddle_verbs::{CmEvent, CqeStatus, DeviceError, EventQueue, QpState};

use crate::common::*;

/// Makes the peer reset the connection.
fn lose(net: &mut Net, h: &Honest, events: &EventQueue) {
    net.peer.stack.abort(h.conn);
    let ended = net.event(events);
    assert!(matches!(ended, CmEvent::Disconnected { id, .. } if id == h.id), "{ended:?}");
}

#[test]
fn test_queue_pair_goes_through_its_states_and_is_used_again() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let device = net.us.device().clone();
    let events = listen(&mut net, PORT, |_| {});
    let mut end = End::new(&net.us);
    assert_eq!(end.qp.qp_state(), QpState::Init);
    for life in 0..4 {
        let mut h = Honest::with(&mut net, PORT, &events, end);
        assert_eq!(h.end.qp.qp_state(), QpState::Rts);
        assert_eq!(device.reset_qp(&h.end.qp), Err(DeviceError::QpState(QpState::Rts)));
        for _ in 0..=life {
            h.exchange(&mut net);
        }
        // Requests that are posted when the connection ends complete, and do not appear in the next
        // life.
        h.end.post_recv(7, 0, 64);
        net.settle();
        if life % 2 == 0 {
            lose(&mut net, &h, &events);
        } else {
            device.disconnect(h.id).unwrap();
            net.settle();
            assert_eq!(h.end.qp.qp_state(), QpState::Closing);
            assert_eq!(device.reset_qp(&h.end.qp), Err(DeviceError::QpState(QpState::Closing)));
            lose(&mut net, &h, &events);
        }
        assert_eq!(h.end.qp.qp_state(), QpState::Error);
        let done = h.end.completions();
        assert!(
            matches!(done[..], [c] if c.wr_id == 7 && c.status == CqeStatus::Flushed),
            "life {life}: {done:?}"
        );
        let params = heddle_verbs::ConnectParams::new(h.end.qp.clone());
        let again = device.connect((PEER, PORT).into(), params, &events).err();
        assert_eq!(again, Some(DeviceError::QpDead));
        device.reset_qp(&h.end.qp).unwrap();
        assert_eq!(h.end.qp.qp_state(), QpState::Init);
        end = h.end;
    }
}

#[test]
fn test_reset_discards_requests_posted_before_connecting() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let device = net.us.device().clone();
    let events = listen(&mut net, PORT, |_| {});
    let end = End::new(&net.us);
    for wr_id in 0..16 {
        end.post_recv(100 + wr_id, 0, 8);
    }
    device.reset_qp(&end.qp).unwrap();
    // The whole queue is free, and the first message goes to the first receive posted from here on.
    for wr_id in 0..15 {
        end.post_recv(wr_id, 0, 256);
    }
    let h = Honest::with(&mut net, PORT, &events, end);
    net.peer.send(h.conn, &fpdu(send_header(1), &[5; 100]));
    net.settle();
    let done = h.end.completions();
    assert!(matches!(done[..], [c] if c.wr_id == 0 && c.status.is_success()), "{done:?}");
}

#[test]
fn test_connecting_queue_pair_refuses_reset() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let device = net.us.device().clone();
    let (end, events) = (End::new(&net.us), EventQueue::new(None));
    net.peer.deaf = true;
    let id = end.connect(&net.us, PORT, &events);
    net.settle();
    assert_eq!(end.qp.qp_state(), QpState::Connecting);
    assert_eq!(device.reset_qp(&end.qp), Err(DeviceError::QpState(QpState::Connecting)));
    device.disconnect(id).unwrap();
    assert!(matches!(net.event(&events), CmEvent::ConnectError { .. }));
    assert_eq!(end.qp.qp_state(), QpState::Init);
    let other = net.us.hub().open(&heddle_hub::DeviceConfig::default()).unwrap();
    assert_eq!(other.reset_qp(&end.qp), Err(DeviceError::ForeignQp(end.qp.qpn())));
    device.reset_qp(&end.qp).unwrap();
}

#[test]
fn test_queue_pair_stays_in_terminate_state_until_connection_ends() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let device = net.us.device().clone();
    let events = listen(&mut net, PORT, |_| {});
    let h = Honest::new(&mut net, PORT, &events);
    // There is no buffer for this message.
    net.peer.send(h.conn, &fpdu(send_header(1), &[5; 100]));
    net.settle();
    assert_eq!(h.end.qp.qp_state(), QpState::Terminate);
    let refused = device.reset_qp(&h.end.qp);
    assert_eq!(refused, Err(DeviceError::QpState(QpState::Terminate)));
    lose(&mut net, &h, &events);
    assert_eq!(h.end.qp.qp_state(), QpState::Error);
    device.reset_qp(&h.end.qp).unwrap();
}
