//! The RDMA IP CM service between two RNICs, through ports, workers and control planes.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::*;
use heddle_ctl::Endpoint;
use heddle_dataplane::{Clock, Eal, ManualClock};
use heddle_verbs::{
    AcceptParams, CmEvent, ConnectFailure, ConnectParams, DisconnectReason, EventQueue,
    ListenParams, Protocol, Qp, QpInit, QpState, Transport,
};

struct Pair {
    ends: [Endpoint; 2],
    hand: ManualClock,
}

impl Pair {
    fn new(eal: &Eal, speaks: [bool; 2]) -> Pair {
        let (clock, hand) = Clock::manual();
        let mut configs = [config(US, &clock), config(PEER, &clock)];
        for (c, speaks) in configs.iter_mut().zip(speaks) {
            c.infiniband = speaks;
        }
        let (a, b) = Endpoint::ring_pair(eal, &name(), &configs[0], &configs[1]).unwrap();
        Pair { ends: [a, b], hand }
    }

    fn qp(&self, end: usize) -> Qp {
        let device = self.ends[end].device();
        let cq = device.create_cq(8, None).unwrap();
        device.create_qp(device.alloc_pd().unwrap(), QpInit::new(cq).depths(4, 4)).unwrap()
    }

    /// Returns the next event, within a minute of virtual time.
    fn event(&mut self, events: &EventQueue) -> CmEvent {
        for _ in 0..60_000 {
            for _ in 0..40 {
                self.ends[0].poll();
                self.ends[1].poll();
            }
            if let Some(event) = events.poll() {
                return event;
            }
            self.hand.advance(MS);
        }
        panic!("no event")
    }

    fn ask(&self, to: SocketAddr, events: &EventQueue) {
        let params = ConnectParams {
            protocol: Protocol::InfiniBand,
            private_data: b"from here".to_vec(),
            ..ConnectParams::new(self.qp(0)).reads(7, 2)
        };
        self.ends[0].device().connect(to, params, events).unwrap();
    }

    fn listen(&mut self, infiniband: bool) -> EventQueue {
        let events = EventQueue::new(None);
        let params = ListenParams { infiniband, ..ListenParams::default() };
        self.ends[1].device().listen((PEER, PORT).into(), params, &events).unwrap();
        assert!(matches!(self.event(&events), CmEvent::Listening { .. }));
        events
    }
}

#[test]
fn test_infiniband_connection_is_established_and_disconnected() {
    let (eal, _turn) = eal();
    let mut p = Pair::new(&eal, [true, true]);
    let (theirs, ours) = (p.listen(true), EventQueue::new(None));
    p.ask((PEER, PORT).into(), &ours);
    let CmEvent::ConnectRequest { id, local, remote, private_data, peer, transport, .. } =
        p.event(&theirs)
    else {
        panic!("request")
    };
    let depths = peer.map(|d| (d.ird.get(), d.ord.get()));
    assert_eq!(
        (transport, local, depths),
        (Transport::InfiniBand, (PEER, PORT).into(), Some((Some(7), Some(2))))
    );
    assert_eq!(
        (remote.ip(), private_data.len(), &private_data[..9]),
        (US.into(), 56, &b"from here"[..])
    );
    let qp = p.qp(1);
    let params =
        AcceptParams { private_data: b"from there".to_vec(), ..AcceptParams::new(qp.clone()) };
    p.ends[1].device().accept(id, params.reads(3, 5)).unwrap();
    let CmEvent::Established { id: ours_id, agreed, local, private_data, .. } = p.event(&ours)
    else {
        panic!("established")
    };
    assert!(!agreed.transport.carries_data());
    assert_eq!(
        (agreed.ird, agreed.ord, local),
        (7, 2, remote),
        "it is known by the port that it said"
    );
    assert_eq!(&private_data[..10], b"from there");
    assert!(matches!(p.event(&theirs), CmEvent::Established { .. }));
    p.ends[0].device().disconnect(ours_id).unwrap();
    for events in [&ours, &theirs] {
        let ended = p.event(events);
        let orderly = DisconnectReason::Orderly;
        assert!(
            matches!(ended, CmEvent::Disconnected { reason, .. } if reason == orderly),
            "{ended:?}"
        );
    }
    // No worker has had the queue pair, so it may have another connection.
    p.ends[1].device().reset_qp(&qp).unwrap();
    assert_eq!(qp.qp_state(), QpState::Init);
    let s = p.ends[1].snapshot();
    assert_eq!(
        (s.worker.engine.stack.rx_datagrams, s.ctl.ib.rx_datagrams),
        (3, 3),
        "REQ, RTU, DREQ"
    );
    assert_eq!((s.worker.engine.stack.tx_datagrams, s.ctl.ib.tx_datagrams), (2, 2), "REP, DREP");
}

/// A listener that has not asked for InfiniBand does not exist for InfiniBand's requests.
#[test]
fn test_listener_without_infiniband_refuses_infiniband_request() {
    let (eal, _turn) = eal();
    let mut p = Pair::new(&eal, [true, true]);
    let (theirs, ours) = (p.listen(false), EventQueue::new(None));
    p.ask((PEER, PORT).into(), &ours);
    let refused = p.event(&ours);
    assert!(
        matches!(refused, CmEvent::ConnectError { error: ConnectFailure::InfiniBand(_), .. }),
        "{refused:?}"
    );
    assert!(theirs.poll().is_none());
}

/// RoCEv2's port is not open: no answer comes back, and no datagram reaches the control plane.
#[test]
fn test_rnic_without_infiniband_does_not_answer_requests() {
    let (eal, _turn) = eal();
    let mut p = Pair::new(&eal, [true, false]);
    let ours = EventQueue::new(None);
    let start = p.hand.now();
    p.ask((PEER, PORT).into(), &ours);
    let failed = p.event(&ours);
    let timed_out = |e: &ConnectFailure| matches!(e, ConnectFailure::TimedOut(_));
    assert!(
        matches!(&failed, CmEvent::ConnectError { error, .. } if timed_out(error)),
        "{failed:?}"
    );
    assert!(p.hand.now().since(start) >= Duration::from_secs(5));
    let s = p.ends[1].snapshot();
    assert_eq!((s.worker.engine.stack.rx_datagrams, s.ctl.ib.rx_datagrams), (0, 0));
    assert!(s.worker.engine.stack.rx_unknown_protocol > 3, "it was asked again");
}
