use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heddle_base::Seed;
use heddle_mr::{Kind, MrTable};
use heddle_shm::{PageSize, Region, RegionError, Sleeper};
use heddle_socket::wire::{Inbox, receive, send};
use heddle_types::{
    Access, Bind, CmId, ConnectFailure, Event as CmEvent, ListenFailure, QpFate, TcpTerms,
};
use heddle_verbs::remote::OpenParams;
use heddle_verbs::{AcceptParams, ConnectParams, EventQueue, ListenParams, MrInit, QpInit};

use super::*;
use crate::Addresses;
use crate::memory::{RegionTable, Registry};
use crate::serve;
use crate::{ControlPlane, ControlRequest};

mod hostile;
mod quotas;
mod raw;
mod sparse;

/// A control plane that starts no listener and makes no connection.
#[derive(Debug, Default)]
struct Plane {
    full: std::sync::atomic::AtomicBool,
    /// The plane makes no connection and sends no event about that.
    silent: std::sync::atomic::AtomicBool,
    /// Backlogs of the listeners that were requested.
    backlogs: Mutex<Vec<usize>>,
    /// Settings of TCP of the listeners and connections that were requested.
    tcp: Mutex<Vec<TcpTerms>>,
    gone: Mutex<Vec<AppId>>,
    events: Mutex<HashMap<AppId, TakenEvents>>,
}

impl ControlPlane for Arc<Plane> {
    fn request(&self, request: ControlRequest) -> Result<(), DeviceError> {
        if self.full.load(Relaxed) {
            return Err(DeviceError::Overloaded);
        }
        match request {
            ControlRequest::Open { app, taken, .. } => {
                self.events.lock().unwrap().insert(app, taken);
            }
            ControlRequest::ResizeCq { .. } | ControlRequest::FailQp { .. } => {}
            ControlRequest::Cm { app, request, qp, events } => {
                let taken = self.events.lock().unwrap().get(&app).cloned().unwrap_or_default();
                match request {
                    heddle_types::Request::Listen { id, params, .. } => {
                        self.backlogs.lock().unwrap().push(params.backlog);
                        self.tcp.lock().unwrap().push(params.tcp);
                        events.unwrap().push(CmEvent::Listening { id }, &taken);
                    }
                    heddle_types::Request::Connect { .. } if self.silent.load(Relaxed) => {}
                    heddle_types::Request::Connect { id, params, .. } => {
                        self.tcp.lock().unwrap().push(params.tcp);
                        let (qp, error) = (qp.unwrap(), ConnectFailure::PeerClosed);
                        qp.unclaim();
                        let qp = QpFate::Free(qp.qpn());
                        events.unwrap().push(CmEvent::ConnectError { id, error, qp }, &taken);
                    }
                    heddle_types::Request::AppGone => self.gone.lock().unwrap().push(app),
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
    /// The server's end of the socket.
    socket: UnixStream,
}

const SMALL: OpenParams =
    OpenParams { memory: 1 << 20, queues: 1 << 20, pages: PageSize::Small, name: String::new() };

/// Returns a device whose server is a thread of this process.
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
fn test_each_object_of_a_device_can_be_created_and_is_freed() {
    let (device, server) = served(Policy::default());
    let device = device.unwrap();
    let pd = device.alloc_pd().unwrap();
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
    // The device gets the same memory again, and it is clear: peers do not see the old data.
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
fn test_window_of_any_queue_pair_ends_before_queue_pair_number_is_reused() {
    let (device, server) = served(Policy::default());
    let device = device.unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(5, None).unwrap();
    let qps = [0; 2].map(|_| device.create_qp(pd, QpInit::new(cq.clone())).unwrap());
    let mr = device.alloc_mr(pd, 5000, Access::BIND).unwrap();
    let window = device.alloc_window_for_any(pd).unwrap();
    let mrs = server.hub.registry().mrs();
    // The worker that has a queue pair does this for its requests.
    let bind = |qp: &Qp, key| {
        let bind = Bind { stag: window.stag(key), to: 0, access: Access::REMOTE_READ };
        mrs.bind((pd, qp.qpn()), Kind::QpWindow, &bind, [(mr.stag(), mr.to(), 64)])
    };
    let reach = |qpn, key| mrs.check(pd, qpn, window.stag(key), 0, 64, Access::REMOTE_READ).is_ok();
    let [first, second] = qps.each_ref().map(Qp::qpn);
    bind(&qps[0], 1).unwrap();
    assert_eq!((reach(first, 1), reach(second, 1)), (true, false));
    let [one, other] = qps;
    device.reset_qp(&other).unwrap();
    assert!(reach(first, 1), "the reset of another queue pair");
    device.reset_qp(&one).unwrap();
    assert!(!reach(first, 1));
    bind(&other, 2).unwrap();
    drop(other);
    until("the window ends with its queue pair", || !reach(second, 2));
    bind(&one, 3).unwrap();
    drop(window);
    until("the window is given back", || device.mr_usage().windows == 0);
    assert_eq!(mrs.bound(mr.stag()), 0);
    drop((mr, one, cq, device));
    server.thread.join().unwrap();
}

#[test]
fn test_application_memory_is_mapped_once_and_unshareable_memory_refused() {
    let (device, server) = served(Policy { memory: 2 << 20, ..Policy::default() });
    let device = device.unwrap();
    let pd = device.alloc_pd().unwrap();
    let region = Arc::new(Region::shared(10_000).unwrap());
    let one = device.register_mr(pd, &region, (0, 5000), 7, Access::NONE).unwrap();
    let two = device.register_mr(pd, &region, (5000, 5000), 7, Access::NONE).unwrap();
    assert_eq!((two.info().off, two.to(), two.len()), (5000, 7, 5000));
    two.write(4999, b"x");
    let long = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.sge(0, 1 << 32)));
    assert!(long.is_err(), "the length of an element has 32 bits");
    assert_eq!(region.load(9999), Ok(b'x'));
    assert!(device.register_mr(pd, &region, (1, 10_000), 7, Access::NONE).is_err());
    // The device calls the closure once, and does not call it where it has not asked the server.
    let mut done = 0;
    let mut register = |range, to| {
        let init = MrInit { to, ..MrInit::default() };
        device.register_mr_while(pd, &region, range, &init, &mut || done += 1).map(drop)
    };
    assert_eq!(register((0, 64), None), Ok(()));
    assert!(register((0, 64), Some(u64::MAX)).is_err() && register((1, 10_000), None).is_err());
    assert_eq!(done, 2);
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

/// The server is killed: no thread waits for ever.
#[test]
fn test_device_objects_fail_when_server_is_killed() {
    let (device, server) = served(Policy::default());
    let device = device.unwrap();
    let pd = device.alloc_pd().unwrap();
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
    // This queue pair has requests posted, and a completion queue of its own.
    let other = device.create_cq(8, None).unwrap();
    let posted = device.create_qp(pd, QpInit::new(other.clone())).unwrap();
    posted.post_recv(&heddle_verbs::RecvWr { wr_id: 31, sges: &[] }).unwrap();
    posted.post_send(&heddle_verbs::SendWr::send(32, &[mr.sge(0, 1)])).unwrap();
    server.socket.shutdown(std::net::Shutdown::Both).unwrap();
    let lost = waiting.join().unwrap();
    let mut ended = Vec::new();
    until("the flushed requests", || {
        ended.extend(other.poll().map(|c| (c.wr_id, c.status)));
        ended.len() == 2
    });
    let flushed = heddle_verbs::CqeStatus::Flushed;
    assert_eq!(ended, [(32, flushed), (31, flushed)]);
    assert!(matches!(lost, Err(heddle_verbs::WaitError::Overflow(_))), "{lost:?}");
    until("the listener's end", || match events.poll() {
        Some(CmEvent::ListenFailed { id: ended, error }) => {
            assert_eq!((ended, error), (id, ListenFailure::ControlLost));
            true
        }
        None => false,
        other => panic!("{other:?}"),
    });
    let sges = [mr.sge(0, 1)];
    assert_eq!(
        qp.post_send(&heddle_verbs::SendWr::send(1, &sges)),
        Err(heddle_verbs::PostError::Ended)
    );
    assert!(qp.is_dead());
    let (reported, report) = std::sync::mpsc::channel();
    device.when_ended(move |why| drop(reported.send(why.to_string())));
    let why = report.recv().unwrap();
    assert_eq!(why, "the RNIC at a socket without a name has closed the connection");
    let ended = device.ended().unwrap();
    assert_eq!(ended.to_string(), why);
    assert_eq!(device.alloc_pd(), Err(ended.clone()));
    assert_eq!(device.listen(at, ListenParams::default(), &events), Err(ended));
    let params = ConnectParams::new(qp.clone());
    assert_eq!(device.connect(at, params, &events), Err(DeviceError::QpDead));
    assert!(device.create_cq(8, None).is_err());
    drop((mr, qp, cq, posted, other, device));
    server.thread.join().unwrap();
}

/// A peer may end a connection at any time; the application has done nothing wrong.
#[test]
fn test_requests_about_ended_connection_are_not_errors() {
    let (device, server) = served(Policy::default());
    let device = device.unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(8, None).unwrap();
    let qp = device.create_qp(pd, QpInit::new(cq)).unwrap();
    let (id, events) = (CmId(1 << 63 | 7), EventQueue::new(None));
    // The queue pair is as good as before.
    for _ in 0..2 {
        device.accept_on(id, AcceptParams::new(qp.clone()), &events).unwrap();
        let error = ConnectFailure::Request(heddle_types::RequestError::NoConnection);
        let qp = QpFate::Free(qp.qpn());
        assert_eq!(events.poll(), Some(CmEvent::ConnectError { id, error, qp }));
        assert_eq!(events.poll(), None);
    }
    device.accept(id, AcceptParams::new(qp.clone())).unwrap();
    device.reject(id, b"no".to_vec()).unwrap();
    device.disconnect(id).unwrap();
    device.reset_qp(&qp).unwrap();
    drop((qp, device));
    server.thread.join().unwrap();
}
