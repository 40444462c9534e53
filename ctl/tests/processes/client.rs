//! The work of a process that opens its device through the control socket.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use heddle_verbs::remote::OpenParams;
use heddle_verbs::{
    AcceptParams, Access, BindError, CmEvent, ConnectParams, ConnectionError, CqeOp, Device,
    DeviceError, Ends, EventQueue, QpInit, QpState, RecvWr, Region, SendWr, Sleeper, Stag,
};

use crate::child::App;
use crate::world::{PEER, SLOT, SLOTS};

/// The environment variable with the socket's path, which makes this program a client.
pub(crate) const SOCKET: &str = "HEDDLE_TEST_SOCKET";
/// The environment variable with the kind of client.
pub(crate) const KIND: &str = "HEDDLE_TEST_KIND";

/// The address at which a client listens.
pub(crate) const OURS: ([u8; 4], u16) = ([10, 0, 0, 1], 7200);

const DEPTH: u32 = 256;

pub(crate) fn run(path: &str) {
    let kind = std::env::var(KIND).unwrap();
    let params = OpenParams { memory: 4 * SLOTS * SLOT, queues: 1 << 20, ..OpenParams::default() };
    let device = Device::open_with(path, &params).unwrap();
    match kind.as_str() {
        "verbs" => every_verb(&device),
        "work" => work(&device),
        other => panic!("{other}"),
    }
}

/// Makes traffic until standard input ends, and compares every byte; then compares the peer's whole
/// region.
fn work(device: &Device) {
    let (mut app, _keep) = connected(device);
    let (told, over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.send(()).unwrap();
    });
    while over.try_recv().is_err() {
        app.round();
    }
    app.read_all();
}

/// Makes an application whose queue pair is connected to the peer, and returns it with the event
/// queue that the connection needs.
fn connected(device: &Device) -> (App, EventQueue) {
    let pd = device.alloc_pd().unwrap();
    let sleeper = Sleeper::with_fd().unwrap();
    let cq = device.create_cq(2 * DEPTH, Some(sleeper.waker())).unwrap();
    let mut init = QpInit::new(cq.clone()).depths(DEPTH, DEPTH);
    init.max_inline = 256;
    let qp = device.create_qp(pd, init).unwrap();
    let mr = device.alloc_mr(pd, 2 * SLOTS * SLOT, Access::LOCAL_WRITE).unwrap();
    let woken = Sleeper::with_fd().unwrap();
    let events = EventQueue::new(Some(woken.waker()));
    let params =
        ConnectParams { private_data: b"client".to_vec(), ..ConnectParams::new(qp.clone()) };
    device.connect(SocketAddr::from(PEER), params, &events).unwrap();
    let data = loop {
        woken.sleep(Duration::from_secs(30), || !events.is_empty());
        match events.poll() {
            Some(CmEvent::Established { private_data, .. }) => break private_data,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    };
    let stag = Stag(u32::from_be_bytes(*data.first_chunk().unwrap()));
    let to = u64::from_be_bytes(*data.last_chunk().unwrap());
    (App::new((cq, qp, mr), sleeper, (stag, to)), events)
}

const WAIT: Duration = Duration::from_secs(30);

/// Uses every verb once, as a program in the RNIC's process would.
fn every_verb(device: &Device) {
    assert_eq!(device.limits().max_ird, 128);
    listens(device);
    let mut connection = device.dial(SocketAddr::from(PEER)).unwrap().wait().unwrap();
    assert!(connection.agreed().crc);
    assert_eq!(connection.qp().qp_state(), QpState::Rts);
    let pd = connection.qp().pd();
    let data = connection.private_data().to_vec();
    let stag = Stag(u32::from_be_bytes(*data.first_chunk().unwrap()));
    let to = u64::from_be_bytes(*data.last_chunk().unwrap());
    let next = |what: CqeOp| {
        let c = connection.wait(WAIT).unwrap();
        assert!(c.status.is_success() && c.op == what, "{c:?}");
    };
    // Sources: memory of the device, memory that was set aside, and the application's own memory.
    let own = Arc::new(Region::shared(SLOT).unwrap());
    let both = Access::LOCAL_WRITE.with(Access::BIND);
    let mrs = [
        connection.alloc_mr(SLOT, both).unwrap(),
        device.register_reserved(pd, device.reserve(SLOT).unwrap(), both).unwrap(),
        device.register_mr(pd, &own, (0, SLOT), 0x1234, both).unwrap(),
    ];
    let mut back = vec![0; SLOT];
    for (n, mr) in mrs.iter().enumerate() {
        let bytes: Vec<u8> = (0..SLOT).map(|i| (i * 7 + n) as u8).collect();
        mr.write(0, &bytes);
        connection.post_send(&SendWr::write(1, &[mr.sge(0, SLOT)], stag, to)).unwrap();
        next(CqeOp::Write);
        mr.zero(0, SLOT);
        connection.post_send(&SendWr::read(2, &[mr.sge(0, SLOT)], stag, to)).unwrap();
        next(CqeOp::Read);
        mr.read(0, &mut back);
        assert!(back == bytes, "region {n}");
    }
    assert_eq!(own.load(1), Ok(9), "it is the application's own memory");
    // The peer echoes a Send.
    let [mr, ..] = &mrs;
    connection.post_recv(&RecvWr { wr_id: 3, sges: &[mr.sge(100, 100)] }).unwrap();
    mr.write(0, b"hello");
    connection.post_send(&SendWr::send(4, &[mr.sge(0, 5)])).unwrap();
    let ops = [0; 2].map(|_| connection.wait(WAIT).unwrap().op);
    assert!(ops.contains(&CqeOp::Send) && ops.contains(&CqeOp::Recv), "{ops:?}");
    mr.read(100, &mut back[..5]);
    assert_eq!(&back[..5], b"hello");
    // Windows, and fast registrations for this queue pair.
    let mut window = device.alloc_window(pd).unwrap();
    let shown = window.bind(mr, (0, 64), 0, Access::REMOTE_WRITE).unwrap();
    assert_ne!(shown, Stag(0));
    assert_eq!(
        window.bind(mr, (0, 9000), 0, Access::REMOTE_WRITE).err().map(|e| match e {
            BindError::Memory(_) | BindError::Length => (),
            other => panic!("{other}"),
        }),
        Some(())
    );
    let [mr, reserved, owned] = mrs;
    assert_eq!(mr.deregister().unwrap_err().count, 1);
    window.unbind();
    let fast = device.alloc_fast_mr_for(connection.qp(), 4096).unwrap();
    let bind = device.alloc_window_for(connection.qp()).unwrap();
    assert_ne!(fast.stag(1), bind.stag(1));
    device.resize_cq(connection.cq(), 1024).unwrap();
    assert_eq!(connection.cq().depth(), 1024);
    assert!(device.mr_usage().regions >= 3);
    assert_eq!(connection.end(), None);
    // Requests that the server refuses.
    let pipe = device.create_cq(8, Some(Sleeper::new().waker())).err();
    assert_eq!(pipe, Some(DeviceError::WakerWithoutFd));
    assert!(device.alloc_mr(pd, 1 << 30, Access::NONE).is_err());
    drop((reserved, owned));
    let qp = connection.qp().clone();
    connection.disconnect().unwrap();
    assert_eq!(qp.qp_state(), QpState::Error);
    device.reset_qp(&qp).unwrap();
    assert_eq!(qp.qp_state(), QpState::Init);
    // The same queue pair connects again, to a peer that does not exist.
    let events = EventQueue::new(None);
    let nobody = SocketAddr::from((PEER.0, 9));
    device.connect(nobody, ConnectParams::new(qp.clone()), &events).unwrap();
    let error = loop {
        match events.poll() {
            Some(CmEvent::ConnectError { error, .. }) => break error,
            Some(other) => panic!("{other:?}"),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!(error.to_string(), "TCP connection failed: refused by the peer");
    assert_eq!(qp.qp_state(), QpState::Init, "it is free again");
    // A program with a shared receive queue, which the traffic of another test does not use.
    let cq = device.create_cq(8, None).unwrap();
    // The protection domain of the connection was given back with it.
    assert_eq!(device.create_srq(pd, 8, 1, None).unwrap_err(), DeviceError::ForeignPd(pd));
    let pd = device.alloc_pd().unwrap();
    let srq = device.create_srq(pd, 8, 1, None).unwrap();
    let shared = device.create_qp(pd, QpInit::new(cq).shared(&srq)).unwrap();
    assert!(srq.is_empty() && shared.post_recv(&RecvWr { wr_id: 1, sges: &[] }).is_err());
    let (mut app, _keep) = connected(device);
    for _ in 0..20 {
        app.round();
    }
    app.read_all();
}

/// Listens for the peer, rejects its first connection, and accepts and answers the second.
fn listens(device: &Device) {
    let listener = device.bind(SocketAddr::from(OURS)).unwrap();
    let second = device.bind(SocketAddr::from(OURS)).unwrap_err();
    assert!(matches!(second, ConnectionError::Listen(_)), "{second}");
    let first = listener.request(WAIT).unwrap();
    assert_eq!(first.private_data, b"one");
    first.reject(b"no").unwrap();
    let second = listener.request(WAIT).unwrap();
    assert_eq!(second.private_data, b"two");
    let ends = Ends::new(device, device.alloc_pd().unwrap()).unwrap();
    let mr = device.alloc_mr(ends.qp.pd(), 64, Access::LOCAL_WRITE).unwrap();
    mr.write(0, b"welcome");
    // The receive is posted before the accept: the peer sends at once, and a Send that finds no
    // receive ends the connection.
    ends.qp.post_recv(&RecvWr { wr_id: 1, sges: &[mr.sge(32, 32)] }).unwrap();
    let mut connection = second.accept_with(AcceptParams::new(ends.qp.clone()), ends).unwrap();
    let c = connection.wait(WAIT).unwrap();
    assert!(c.status.is_success() && c.op == CqeOp::Recv, "{c:?}");
    connection.post_send(&SendWr::send(2, &[mr.sge(0, 7)])).unwrap();
    assert_eq!(connection.wait(WAIT).unwrap().op, CqeOp::Send);
    while connection.end().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
}
