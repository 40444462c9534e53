use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heddle_base::Seed;
use heddle_cm::{CmId, ConnectFailure, Event as CmEvent, ListenFailure, QpFate};
use heddle_iwarp::{Access, MrTable};
use heddle_socket::wire::{Inbox, receive, send};

use super::*;
use crate::device::{ControlPlane, ControlRequest};
use crate::memory::{Region, RegionError, RegionTable, Registry};
use crate::qp::QpInit;
use crate::remote::{Addresses, OpenParams, serve};
use crate::waker::Sleeper;
use crate::{ConnectParams, ListenParams};

/// A control plane that listens and connects to nobody.
#[derive(Debug, Default)]
struct Plane {
    full: std::sync::atomic::AtomicBool,
    gone: Mutex<Vec<AppId>>,
    events: Mutex<HashMap<AppId, Taken>>,
}

impl ControlPlane for Arc<Plane> {
    fn request(&self, request: ControlRequest) -> Result<(), DeviceError> {
        if self.full.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(DeviceError::Overloaded);
        }
        match request {
            ControlRequest::Open { app, taken, .. } => {
                self.events.lock().unwrap().insert(app, taken);
            }
            ControlRequest::ResizeCq { .. } => {}
            ControlRequest::Cm { app, request, qp, events } => {
                let taken = self.events.lock().unwrap().get(&app).cloned().unwrap_or_default();
                match request {
                    heddle_cm::Request::Listen { id, .. } => {
                        events.unwrap().push(CmEvent::Listening { id }, &taken);
                    }
                    heddle_cm::Request::Connect { id, .. } => {
                        let (qp, error) = (qp.unwrap(), ConnectFailure::PeerClosed);
                        qp.unclaim();
                        let qp = QpFate::Free(qp.qpn());
                        events.unwrap().push(CmEvent::ConnectError { id, error, qp }, &taken);
                    }
                    heddle_cm::Request::AppGone => self.gone.lock().unwrap().push(app),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn hub() -> (Arc<Hub>, Arc<Plane>) {
    let regions = Arc::new(RegionTable::new(8, None));
    let mrs = Arc::new(MrTable::new(&Seed::from_u64(1), 64));
    let registry = Arc::new(Registry::new(mrs, regions));
    let plane = Arc::new(Plane::default());
    (Hub::new(registry, Box::new(plane.clone()), 1, &Seed::from_u64(2)), plane)
}

struct Server {
    hub: Arc<Hub>,
    plane: Arc<Plane>,
    thread: JoinHandle<()>,
    /// The server's end.
    socket: UnixStream,
}

const SMALL: OpenParams = OpenParams { memory: 1 << 20, queues: 1 << 20, name: String::new() };

/// A device whose server is a thread of this process.
fn served(policy: Policy) -> (Result<Device, DeviceError>, Server) {
    let (hub, plane) = hub();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (socket, its) = (theirs.try_clone().unwrap(), hub.clone());
    let thread = std::thread::spawn(move || drop(serve(&its, policy, &theirs)));
    (Device::open_on(ours, &SMALL), Server { hub, plane, thread, socket })
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn test_everything_a_device_makes_can_be_made_and_comes_back() {
    let (device, server) = served(Policy::default());
    let device = device.unwrap();
    let pd = device.create_pd().unwrap();
    let sleeper = Sleeper::with_fd().unwrap();
    let cq = device.create_cq(5, Some(sleeper.waker())).unwrap();
    assert_eq!((cq.depth(), cq.poll()), (8, None));
    device.resize_cq(&cq, 32).unwrap();
    assert_eq!(device.resize_cq(&cq, 64), Err(DeviceError::CqResizing));
    assert_eq!(cq.depth(), 32);
    let srq = device.create_srq(pd, 16, 2, Some(sleeper.waker())).unwrap();
    let qp = device.create_qp(pd, QpInit::new(cq.clone()).shared(&srq)).unwrap();
    assert!(srq.clone().destroy().is_err(), "a queue pair has it");
    let own = device.create_qp(pd, QpInit::new(cq.clone())).unwrap();
    device.reset_qp(&own).unwrap();
    let all = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::BIND);
    let mr = device.alloc_mr(pd, 5000, all).unwrap();
    mr.write(1, b"written");
    let first = (mr.to(), mr.stag());
    let mut window = device.alloc_window(pd).unwrap();
    let shown = window.bind(&mr, (10, 20), 7, Access::REMOTE_WRITE).unwrap();
    let bound = mr.deregister().unwrap_err();
    assert_eq!(bound.count, 1);
    let mr = *bound.mr;
    let mrs = server.hub.registry().mrs();
    let reach = |stag| mrs.check(pd, qp.qpn(), stag, 7, 20, Access::REMOTE_WRITE);
    assert!(reach(shown).is_ok());
    window.unbind();
    assert!(reach(shown).is_err());
    mr.deregister().unwrap();
    // The same memory, and clear: peers do not see what was there.
    until("memory comes back", || server.hub.registry().reclaim() == 0);
    let mr = device.alloc_mr(pd, 5000, Access::NONE).unwrap();
    let mut bytes = [1; 16];
    mr.read(0, &mut bytes);
    assert_eq!((bytes, mr.to(), mr.stag() == first.1), ([0; 16], first.0, false));
    let fast = device.alloc_fast_mr_for(&own, 8192).unwrap();
    let tied = device.alloc_window_for(&own).unwrap();
    let mut aside = device.reserve(9000).unwrap();
    while !aside.clear(1000) {}
    let reserved = device.register_reserved(pd, aside, Access::NONE).unwrap();
    drop(device.reserve(100).unwrap());
    let usage = device.mr_usage();
    assert_eq!((usage.regions, usage.windows), (3, 2));
    assert_eq!(device.pd_mr_usage(pd).unwrap().regions, 3);
    drop((mr, fast, tied, reserved, window, qp, own, srq, cq));
    until("STags come back", || device.mr_usage().regions == 0 && device.mr_usage().windows == 0);
    assert_eq!(mrs.len(), 0);
    drop(device);
    server.thread.join().unwrap();
    assert_eq!(server.plane.gone.lock().unwrap().len(), 1);
    until("the device's memory leaves the table", || {
        server.hub.registry().reclaim();
        server.hub.registry().regions().reap() == 0
    });
}

#[test]
fn test_memory_of_the_applications_own_is_mapped_once_and_what_cannot_be_shared_refused() {
    let (device, server) = served(Policy { memory: 2 << 20, ..Policy::default() });
    let device = device.unwrap();
    let pd = device.create_pd().unwrap();
    let region = Arc::new(Region::shared(10_000).unwrap());
    let one = device.register_mr(pd, &region, (0, 5000), 7, Access::NONE).unwrap();
    let two = device.register_mr(pd, &region, (5000, 5000), 7, Access::NONE).unwrap();
    assert_eq!((two.info().off, two.to(), two.len()), (5000, 7, 5000));
    two.write(4999, b"x");
    assert_eq!(region.load(9999), Ok(b'x'));
    assert!(device.register_mr(pd, &region, (1, 10_000), 7, Access::NONE).is_err());
    let alone = Arc::new(Region::anonymous(4096).unwrap());
    let refused = device.register_mr(pd, &alone, (0, 4096), 0, Access::NONE).err();
    assert_eq!(refused, Some(DeviceError::Region(RegionError::NotShared)));
    // The device's own megabyte counts.
    let much = Arc::new(Region::shared((1 << 20) + 4096).unwrap());
    let refused = device.register_mr(pd, &much, (0, 64), 0, Access::NONE).unwrap_err();
    assert!(matches!(&refused, DeviceError::Refused(f) if f.kind == FaultKind::Quota), "{refused}");
    drop((one, two));
    let less = Arc::new(Region::shared((1 << 20) - 16384).unwrap());
    assert!(device.register_mr(pd, &less, (0, 64), 0, Access::NONE).is_ok());
    drop(device);
    server.thread.join().unwrap();
}

#[test]
fn test_quotas_say_what_and_how_many() {
    let limits = DeviceLimitsOf::few();
    let policy = Policy {
        limits,
        listeners: 1,
        connections: 1,
        listen: vec![Addresses { addr: [10, 0, 0, 1].into(), prefix: 32, ports: 7000..=7001 }],
        connect: vec![Addresses { addr: [10, 0, 0, 0].into(), prefix: 8, ports: 1..=9 }],
        ..Policy::default()
    };
    let (device, server) = served(policy);
    let device = device.unwrap();
    let refused = |e: DeviceError, kind: FaultKind, text: &str| match e {
        DeviceError::Refused(f) => assert_eq!((f.kind, f.text.as_str()), (kind, text)),
        other => panic!("{other}"),
    };
    let pd = device.create_pd().unwrap();
    let e = device.create_pd().unwrap_err();
    refused(e, FaultKind::Quota, "no more than 1 protection domains");
    let cq = device.create_cq(8, None).unwrap();
    let e = device.create_cq(8, None).unwrap_err();
    refused(e, FaultKind::Quota, "no more than 1 completion queues");
    let qp = device.create_qp(pd, QpInit::new(cq.clone())).unwrap();
    let e = device.create_qp(pd, QpInit::new(cq.clone())).unwrap_err();
    refused(e, FaultKind::Quota, "no more than 1 queue pairs");
    let _mr = device.alloc_mr(pd, 64, Access::NONE).unwrap();
    let e = device.alloc_mr(pd, 64, Access::NONE).unwrap_err();
    refused(e, FaultKind::Quota, "no more than 1 of this sort are allowed");
    let events = EventQueue::new(None);
    let listen = |at: &str| device.listen(at.parse().unwrap(), ListenParams::default(), &events);
    let e = listen("10.0.0.2:7000").unwrap_err();
    refused(e, FaultKind::Denied, "may not listen at 10.0.0.2:7000");
    let e = listen("0.0.0.0:7000").unwrap_err();
    refused(e, FaultKind::Denied, "may not listen at 0.0.0.0:7000");
    let id = listen("10.0.0.1:7000").unwrap();
    refused(listen("10.0.0.1:7001").unwrap_err(), FaultKind::Quota, "no more than 1 listeners");
    device.unlisten(id).unwrap();
    listen("10.0.0.1:7001").unwrap();
    let connect =
        |at: &str| device.connect(at.parse().unwrap(), ConnectParams::new(qp.clone()), &events);
    let e = connect("10.0.0.1:10").unwrap_err();
    refused(e, FaultKind::Denied, "may not connect to 10.0.0.1:10");
    connect("10.0.0.1:9").unwrap();
    let mut seen = Vec::new();
    until("the events", || {
        seen.extend(std::iter::from_fn(|| events.poll()));
        seen.len() == 3
    });
    // It can be connected again: nothing has come of the first attempt.
    connect("10.0.0.1:9").unwrap();
    drop((device, qp, cq));
    drop(_mr);
    server.thread.join().unwrap();
}

/// Limits of one of each.
struct DeviceLimitsOf;

impl DeviceLimitsOf {
    fn few() -> crate::DeviceLimits {
        crate::DeviceLimits {
            max_pds: 1,
            max_cqs: 1,
            max_qps: 1,
            max_mrs: 1,
            ..crate::DeviceLimits::default()
        }
    }
}

/// A server that is killed: nobody is left waiting.
#[test]
fn test_everything_ends_with_the_server() {
    let (device, server) = served(Policy::default());
    let device = device.unwrap();
    let pd = device.create_pd().unwrap();
    let sleeper = Sleeper::with_fd().unwrap();
    let cq = device.create_cq(8, Some(sleeper.waker())).unwrap();
    let qp = device.create_qp(pd, QpInit::new(cq.clone())).unwrap();
    let mr = device.alloc_mr(pd, 64, Access::NONE).unwrap();
    let woken = Sleeper::with_fd().unwrap();
    let events = EventQueue::new(Some(woken.waker()));
    let at = "10.0.0.1:7174".parse().unwrap();
    let id = device.listen(at, ListenParams::default(), &events).unwrap();
    until("it listens", || events.poll().is_some());
    let waiting = {
        let cq = cq.clone();
        std::thread::spawn(move || cq.wait(&sleeper, Duration::from_secs(60)))
    };
    server.socket.shutdown(std::net::Shutdown::Both).unwrap();
    let lost = waiting.join().unwrap();
    assert!(matches!(lost, Err(crate::WaitError::Overflow(_))), "{lost:?}");
    until("the listener's end", || match events.poll() {
        Some(CmEvent::ListenFailed { id: ended, error }) => {
            assert_eq!((ended, error), (id, ListenFailure::ControlLost));
            true
        }
        None => false,
        other => panic!("{other:?}"),
    });
    let sges = [mr.sge(0, 1)];
    assert_eq!(qp.post_send(&crate::SendWr::send(1, &sges)), Err(crate::PostError::Ended));
    assert!(qp.is_dead());
    assert_eq!(device.create_pd(), Err(DeviceError::Gone));
    assert_eq!(device.listen(at, ListenParams::default(), &events), Err(DeviceError::Gone));
    let params = ConnectParams::new(qp.clone());
    assert_eq!(device.connect(at, params, &events), Err(DeviceError::QpDead));
    assert!(device.create_cq(8, None).is_err());
    drop((mr, qp, cq, device));
    server.thread.join().unwrap();
}

/// A client that says what it likes.
struct Raw {
    session: Session,
    inbox: Inbox,
    next: u64,
}

impl Raw {
    fn new(hub: &Arc<Hub>, policy: Policy) -> Raw {
        let session = Session::new(hub, policy, Sleeper::new().waker());
        Raw { session, inbox: Inbox::new(1 << 16), next: 0 }
    }

    fn opened(hub: &Arc<Hub>) -> Raw {
        let mut raw = Raw::new(hub, Policy::default());
        let args = r#"{"memory":1048576,"queues":1048576,"name":"raw"}"#;
        let (answer, fds) = raw.ask("device-open", args);
        assert_eq!((answer.error, fds.len()), (None, 2));
        raw
    }

    fn ask(&mut self, op: &str, args: &str) -> (Answer, Vec<OwnedFd>) {
        self.next += 1;
        let line = format!(r#"{{"v":1,"id":{},"op":"{op}","args":{args}}}"#, self.next);
        self.session.handle(line.as_bytes(), &mut self.inbox);
        while self.session.has_work() {
            self.session.work();
        }
        let out = self.session.poll_transmit().unwrap();
        (serde_json::from_slice(&out.bytes).unwrap(), out.fds)
    }

    fn refused(&mut self, op: &str, args: &str) -> FaultKind {
        let (answer, _) = self.ask(op, args);
        answer.error.unwrap_or_else(|| panic!("{op} {args} was carried out")).kind
    }

    /// As if it had come with the next request.
    fn bring(&mut self, fd: &impl AsFd) {
        let (a, b) = UnixStream::pair().unwrap();
        send(&a, b"\n", &[fd.as_fd()]).unwrap();
        receive(&b, &mut self.inbox).unwrap();
    }
}

#[test]
fn test_names_of_others_and_nonsense_are_refused_and_nothing_changes() {
    let (hub, _plane) = hub();
    let mut honest = Raw::opened(&hub);
    let (pd, _) = honest.ask("create-pd", "null");
    let pd = pd.ok.unwrap()["pd"].as_u64().unwrap();
    let (cq, _) = honest.ask("create-cq", r#"{"depth":8,"waker":false}"#);
    let cq = cq.ok.unwrap()["off"].as_u64().unwrap();
    let qp = |pd: u64, cq: u64| {
        format!(
            r#"{{"pd":{pd},"send_cq":{cq},"recv_cq":{cq},"srq":null,"sq_depth":4,"rq_depth":4,
            "max_send_sge":1,"max_recv_sge":1,"max_inline":0}}"#
        )
        .replace('\n', "")
    };
    let (made, _) = honest.ask("create-qp", &qp(pd, cq));
    let number = made.ok.unwrap()["qp"].as_u64().unwrap();
    let (mr, _) =
        honest.ask("alloc-mr", &format!(r#"{{"pd":{pd},"len":64,"access":6,"to":0,"qp":null}}"#));
    let mr = mr.ok.unwrap()["id"].as_u64().unwrap();

    let mut bad = Raw::new(&hub, Policy::default());
    assert_eq!(bad.refused("create-pd", "null"), FaultKind::Invalid);
    for (memory, queues) in [(u64::MAX, 1), (1, u64::MAX), (1 << 40, 1)] {
        let args = format!(r#"{{"memory":{memory},"queues":{queues},"name":""}}"#);
        assert_eq!(bad.refused("device-open", &args), FaultKind::Quota);
    }
    let mut bad = Raw::opened(&hub);
    let again = r#"{"memory":1,"queues":1,"name":""}"#;
    assert_eq!(bad.refused("device-open", again), FaultKind::Invalid);
    use FaultKind::{Invalid, Malformed, NotFound, Quota};
    for (op, args, kind) in [
        ("create-qp", qp(pd, cq), NotFound),
        ("reset-qp", format!(r#"{{"qp":{number}}}"#), NotFound),
        ("destroy-qp", format!(r#"{{"qp":{number}}}"#), NotFound),
        ("destroy-cq", format!(r#"{{"off":{cq},"words":1}}"#), NotFound),
        ("destroy-srq", r#"{"off":0,"words":1}"#.into(), NotFound),
        ("destroy-mr", format!(r#"{{"id":{mr}}}"#), NotFound),
        ("deregister-mr", format!(r#"{{"id":{mr}}}"#), NotFound),
        ("destroy-region", r#"{"id":0}"#.into(), NotFound),
        ("destroy-reserved", r#"{"id":0}"#.into(), NotFound),
        ("destroy-stag", r#"{"id":18446744073709551615}"#.into(), NotFound),
        ("alloc-mr", format!(r#"{{"pd":{pd},"len":64,"access":0,"to":0,"qp":null}}"#), NotFound),
        ("alloc-fast", format!(r#"{{"pd":{pd},"qp":null,"len":64}}"#), NotFound),
        ("usage", format!(r#"{{"pd":{pd}}}"#), NotFound),
        ("accept", accept(number, 1 << 63), NotFound),
        ("reject", r#"{"conn":1,"private_data":[],"needs_ord":null}"#.into(), NotFound),
        ("disconnect", r#"{"conn":1}"#.into(), NotFound),
        ("unlisten", r#"{"listener":1}"#.into(), NotFound),
        ("resize-cq", format!(r#"{{"cq":{cq},"depth":4}}"#), NotFound),
        ("create-cq", r#"{"depth":0,"waker":false}"#.into(), Invalid),
        ("create-cq", r#"{"depth":4294967295,"waker":false}"#.into(), Invalid),
        ("create-cq", r#"{"depth":65536,"waker":false}"#.into(), Quota),
        ("create-cq", r#"{"depth":8,"waker":true}"#.into(), Invalid),
        ("reserve", r#"{"len":18446744073709551615}"#.into(), Invalid),
        ("reserve", r#"{"len":2000000}"#.into(), Quota),
        ("add-region", r#"{"len":4096}"#.into(), Invalid),
        ("dance", "null".into(), Malformed),
        ("create-cq", r#"{"depth":-1,"waker":false}"#.into(), Malformed),
        ("create-cq", r#"{"depth":8,"waker":false,"more":1}"#.into(), Malformed),
        ("create-cq", "[]".into(), Malformed),
        ("usage", r#"{"pd":4294967296}"#.into(), Malformed),
    ] {
        assert_eq!(bad.refused(op, &args), kind, "{op} {args}");
    }
    for line in [&b""[..], b"{", b"\xff", b"{\"v\":2,\"id\":1,\"op\":\"create-pd\"}", b"[[[[[[[["] {
        bad.session.handle(line, &mut bad.inbox);
        let out = bad.session.poll_transmit().unwrap();
        let answer: Answer = serde_json::from_slice(&out.bytes).unwrap();
        assert!(answer.error.is_some());
    }
    // Rights of which there are none, and of regions that several queue pairs share.
    let (own, _) = bad.ask("create-pd", "null");
    let own = own.ok.unwrap()["pd"].as_u64().unwrap();
    for access in [64, 255, 8] {
        let args = format!(r#"{{"pd":{own},"len":64,"access":{access},"to":0,"qp":null}}"#);
        assert_eq!(bad.refused("alloc-mr", &args), Invalid, "{access}");
    }
    // The other notices nothing, and can give back what it has once.
    assert_eq!(honest.ask("destroy-mr", &format!(r#"{{"id":{mr}}}"#)).0.error, None);
    assert_eq!(honest.refused("destroy-mr", &format!(r#"{{"id":{mr}}}"#)), NotFound);
    assert_eq!(honest.ask("destroy-qp", &format!(r#"{{"qp":{number}}}"#)).0.error, None);
    assert!(bad.session.counters().refused > 30);
    for raw in [&mut honest, &mut bad] {
        while !raw.session.close() {}
        assert_eq!(raw.refused("create-pd", "null"), Invalid, "closed");
    }
    until("everything comes back", || {
        hub.registry().reclaim();
        hub.registry().mrs().is_empty() && hub.registry().regions().reap() == 0
    });
}

fn accept(qp: u64, conn: u64) -> String {
    format!(r#"{{"conn":{conn},"qp":{qp},"ird":1,"ord":1,"private_data":[]}}"#)
}

#[test]
fn test_descriptors_of_other_kinds_are_refused() {
    let (hub, _plane) = hub();
    let mut raw = Raw::opened(&hub);
    let (pipe, _end) = std::io::pipe().unwrap();
    let waking = r#"{"depth":8,"waker":true}"#;
    raw.bring(&pipe);
    assert_eq!(raw.refused("create-cq", waking), FaultKind::Invalid);
    raw.bring(&pipe);
    assert_eq!(raw.refused("add-region", r#"{"len":4096}"#), FaultKind::Invalid);
    let (plain, _other) = UnixStream::pair().unwrap();
    raw.bring(&plain);
    assert_eq!(raw.refused("add-region", r#"{"len":4096}"#), FaultKind::Invalid);
    let region = Region::shared(4096).unwrap();
    let fd = region.fd().unwrap();
    for len in ["4097", "0", "18446744073709551615"] {
        raw.bring(&fd);
        let refused = raw.refused("add-region", &format!(r#"{{"len":{len}}}"#));
        assert!(matches!(refused, FaultKind::Invalid | FaultKind::Quota), "{len}");
    }
    raw.bring(&fd);
    assert_eq!(raw.refused("create-cq", waking), FaultKind::Invalid, "memory is no waker");
    raw.bring(&fd);
    assert_eq!(raw.ask("add-region", r#"{"len":4096}"#).0.error, None);
    raw.bring(&Sleeper::with_fd().unwrap().waker().fd().unwrap());
    assert_eq!(raw.ask("create-cq", waking).0.error, None);
    while !raw.session.close() {}
}

/// The control plane has no room for a while, and hears of the end all the same.
#[test]
fn test_the_end_of_a_session_is_told_when_there_is_room() {
    use std::sync::atomic::Ordering::Relaxed;
    let (hub, plane) = hub();
    let mut raw = Raw::opened(&hub);
    plane.full.store(true, Relaxed);
    assert!(!raw.session.close() && !raw.session.close());
    plane.full.store(false, Relaxed);
    while !raw.session.close() {}
    assert_eq!(plane.gone.lock().unwrap().len(), 1);
    drop(raw);
    assert_eq!(plane.gone.lock().unwrap().len(), 1, "told twice");
}

/// What is not taken is not asked for any more, and what is taken can be.
#[test]
fn test_events_that_are_not_taken_are_bounded() {
    let (hub, plane) = hub();
    let mut raw = Raw::opened(&hub);
    let app = raw.session.app().unwrap();
    let taken = plane.events.lock().unwrap()[&app].clone();
    let events = raw.session.events.clone();
    for n in 0..MAX_UNTAKEN as u64 {
        let (id, error) = (CmId(n), ConnectFailure::PeerClosed);
        events.push(CmEvent::ConnectError { id, error, qp: QpFate::NoQp }, &taken);
        raw.session.poll_transmit().unwrap();
    }
    assert_eq!(taken.swap(), 0, "nobody has taken one");
    let listen = r#"{"addr":"10.0.0.1:1","params":PARAMS}"#;
    let params = serde_json::to_string(&ListenParams::default()).unwrap();
    let listen = listen.replace("PARAMS", &params);
    assert_eq!(raw.refused("listen", &listen), FaultKind::Busy);
    assert_eq!(raw.ask("taken", r#"{"count":10}"#).0.error, None);
    assert_eq!(taken.swap(), 10);
    assert_eq!(raw.ask("listen", &listen).0.error, None);
    assert_eq!(raw.ask("taken", r#"{"count":4294967295}"#).0.error, None);
    while !raw.session.close() {}
}
