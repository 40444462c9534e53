//! The events and errors that applications and peers get when the control plane panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use heddle_verbs::{
    CmEvent, ConnectFailure, ConnectParams, DeviceError, EventQueue, ListenParams, QpFate, QpInit,
};

use super::*;

/// There is one thread for each kind of wait.
#[test]
fn test_waiting_threads_are_told_when_control_plane_panics() {
    let p = pair("orphan0");
    let (listener, mut here, mut there) = p.connect();
    let (_other, other_here, _other_there) = p.connect_at("10.0.0.1:7175");
    let memory = here.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    let sges = [memory.sge(0, 64)];
    here.post_recv(&RecvWr { wr_id: 1, sges: &sges }).unwrap();
    let device = p.node.device();
    // No host has that address.
    let dialled = device.dial("10.0.0.99:1").unwrap();
    let _dialling = p.peer.device().dial("10.0.0.1:7174").unwrap();
    let incoming = listener.request(PROMPT).unwrap();
    // From here on the worker neither carries requests out nor refuses them.
    p.orders[0].pause.store(true, Ordering::Relaxed);

    let start = OnceLock::new();
    let in_time = |what: &str| {
        let start: &Instant = start.get().expect("it is told before there is a reason");
        assert!(start.elapsed() < PROMPT, "{what}: told after {:?}", start.elapsed());
    };
    let no_listener = |what: &str, error: &ConnectionError| {
        let lost = matches!(error, ConnectionError::Listen(ListenFailure::ControlLost));
        assert!(lost, "{what}: {error}");
        in_time(what);
    };
    let no_connection = |what: &str, error: &ConnectionError| {
        let lost = matches!(error, ConnectionError::Connect(ConnectFailure::ControlLost));
        assert!(lost, "{what}: {error}");
        in_time(what);
    };
    let (qp_waits, requests) = (&here, &p.node.requests);
    thread::scope(|s| {
        let waits = [
            s.spawn(|| no_listener("accept", &listener.accept().unwrap_err())),
            s.spawn(|| no_listener("bind", &device.bind("10.0.0.1:7176").unwrap_err())),
            s.spawn(|| no_connection("dial", &dialled.wait().unwrap_err())),
            s.spawn(|| no_connection("the answer", &incoming.accept().unwrap_err())),
            s.spawn(|| {
                let reason = other_here.disconnect().unwrap();
                assert_eq!(reason, DisconnectReason::ControlLost);
                in_time("disconnect");
            }),
            s.spawn(|| {
                let cqe = qp_waits.wait(3 * PROMPT).unwrap();
                assert_eq!((cqe.wr_id, cqe.status), (1, CqeStatus::Flushed));
                in_time("a completion");
            }),
            s.spawn(|| assert!(answer_of(requests).is_none())),
        ];
        // All threads usually sleep by now, and the control plane has looked at their requests.
        thread::sleep(Duration::from_millis(200));
        start.set(Instant::now()).unwrap();
        requests.send(ThreadRequest::Panic).unwrap();
        for wait in waits {
            wait.join().unwrap();
        }
    });

    assert!(is_woken(here.event_fd().unwrap()) && is_woken(listener.fd().unwrap()));
    assert_eq!(here.end(), Some(DisconnectReason::ControlLost));
    let post = here.post_recv(&RecvWr { wr_id: 2, sges: &sges });
    assert_eq!(post, Err(PostError::Ended));
    let error = device.bind("10.0.0.1:7177").unwrap_err();
    assert!(matches!(error, ConnectionError::Device(DeviceError::Gone)), "{error}");
    let error = device.dial("10.0.0.2:1").unwrap_err();
    assert!(matches!(error, ConnectionError::Device(DeviceError::Gone)), "{error}");
    assert!(!p.node.is_running() && p.node.snapshot().workers[0].counters.is_none());
    // The peer hears of the end too.
    assert_eq!(end_of(&mut there), DisconnectReason::Tcp(CloseReason::Reset));
}

/// The requests are queued after the request that ends the control plane.
#[test]
fn test_requests_queued_behind_control_plane_panic_are_answered() {
    let (eal, _turn) = crate::testing::eal();
    let addr = |n: u8| vec![format!("10.0.0.{n}/24").parse().unwrap()];
    let (memory, frames) = (1 << 20, 2047);
    let config = |n| EndpointConfig { memory, frames, ..EndpointConfig::new(addr(n)) };
    let (a, _b) = Endpoint::ring_pair(&eal, "orphan1", &config(1), &config(2)).unwrap();
    let Endpoint { workers, mut control, requests, device, clock, ports: _ports, .. } = a;
    control.poll(clock.now());
    let events = EventQueue::new(None);
    let cq = device.create_cq(16, None).unwrap();
    let qp = device.create_qp(device.alloc_pd().unwrap(), QpInit::new(cq)).unwrap();
    requests.send(ThreadRequest::Panic).unwrap();
    let local = "10.0.0.1:7174".parse().unwrap();
    let listener = device.listen(local, ListenParams::default(), &events).unwrap();
    let remote = "10.0.0.2:7174".parse().unwrap();
    let conn = device.connect(remote, ConnectParams::new(qp.clone()), &events).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| control.poll(clock.now()))).is_err());
    assert!(events.is_empty());
    drop(workers);
    control.end_after_panic();
    let told: Vec<_> = std::iter::from_fn(|| events.poll()).collect();
    let (id, error) = (listener, ListenFailure::ControlLost);
    let listens = CmEvent::ListenFailed { id, error };
    let (error, fate) = (ConnectFailure::ControlLost, QpFate::Free(qp.qpn()));
    assert_eq!(told, [listens, CmEvent::ConnectError { id: conn, error, qp: fate }]);
    // The queue pair is free again, so it is not the reason for the refusal.
    let error = device.connect(remote, ConnectParams::new(qp), &events).unwrap_err();
    assert_eq!(error, DeviceError::Gone);
    drop(control);
    assert!(events.is_empty(), "each is told once");
}
