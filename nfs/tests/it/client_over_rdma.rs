//! The client over RPC-over-RDMA, in both versions: on RNICs that rings connect, all in one thread.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::cell::RefCell;
use std::fs;
use std::io::{self, Cursor};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::common::Lab;
use crate::eal::eal;
use heddle_base::Seed;
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_nfs::client::rdma::{self, RdmaTransport};
use heddle_nfs::client::{Client, ClientError, Pipeline, Transport, TransportError, export_of};
use heddle_nfs::wire::{Handle, Status, mount, procedure};
use heddle_nfs::{Arguments, InReply, Service};
use heddle_rpc::binding::{NFS3, Table};
use heddle_rpc::{Body, Memory, Refusal, Request, Server, ServerConfig, Speaks};
use heddle_rpcrdma::rpc::{Auth, Status as RpcStatus};

const PATIENCE: Duration = Duration::from_secs(240);

/// The service in use: a test replaces it to simulate a server restart.
type Serving = Arc<Mutex<Arc<Service>>>;

fn program(serving: Serving, memory: Memory) -> impl FnMut(Request) + Send {
    move |request: Request| {
        let service = Arc::clone(&serving.lock().unwrap());
        let outcome = carry_out(&service, &memory, &request);
        request.reply(outcome);
    }
}

fn carry_out(service: &Service, memory: &Memory, request: &Request) -> Result<Body, Refusal> {
    let (arguments, mut results) = (request.arguments.to_vec(), Vec::new());
    let done = service.dispatch(
        request.procedure,
        &Auth::NONE,
        Arguments::of(&arguments),
        &mut results,
        &mut InReply,
    );
    let handled = done.map_err(|status| match status {
        RpcStatus::GarbageArgs => Refusal::GarbageArgs,
        RpcStatus::ProcUnavail => Refusal::ProcUnavail,
        _ => Refusal::SystemErr,
    })?;
    let Some(item) = handled.item else { return Ok(Body::of(results)?) };
    let (at, end) = (item.offset as usize, (item.offset + item.length) as usize);
    let mut body = Body::new();
    body.raw(&results[..at - 4])?.item(memory.take_copy(&results[at..end])?)?;
    assert_eq!(results.len(), end.next_multiple_of(4), "it is the last of its message");
    Ok(body)
}

/// Two RNICs and a server on one of them.
struct World {
    a: Endpoint,
    b: Endpoint,
    server: Server,
    /// The server ends its connection after this number of its turns, the next connection after the
    /// next number.
    cuts: Vec<u32>,
    turns: u32,
    end: Instant,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    fn poll(&mut self) {
        // An idle endpoint's control plane runs only now and then.
        for _ in 0..8 {
            self.a.poll();
            self.b.poll();
        }
        self.server.step();
        self.turns += u32::from(self.server.connections() > 0);
        if self.cuts.first().is_some_and(|&at| at <= self.turns) {
            self.cuts.remove(0);
            self.turns = 0;
            self.server.disconnect_all();
        }
        assert!(Instant::now() < self.end, "it takes too long");
    }
}

/// The client's idle function, which lets the rest of the world progress.
type Rest = Box<dyn FnMut(&heddle_rpc::Client)>;

struct Scene {
    world: Rc<RefCell<World>>,
    lab: Lab,
    serving: Serving,
}

impl Scene {
    fn new(speaks: Speaks) -> Scene {
        Scene::with(speaks, true)
    }

    fn with(speaks: Speaks, mounts: bool) -> Scene {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (eal, turn) = eal();
        let name = format!("nfs{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let config = |n: u8| EndpointConfig {
            frames: 2047,
            memory: 64 << 20,
            ..EndpointConfig::with_seed(
                vec![format!("10.0.0.{n}/24").parse().unwrap()],
                Seed::from_u64(n.into()),
            )
        };
        let (a, b) = Endpoint::ring_pair(&eal, &name, &config(1), &config(2)).unwrap();
        let mut config = ServerConfig::default();
        config.transport.speaks = speaks;
        let mut server = Server::new(b.device(), addr(), config).unwrap();
        let lab = Lab::new();
        let serving: Serving = Arc::new(Mutex::new(Arc::clone(&lab.service)));
        let program = || program(serving.clone(), server.memory().clone());
        let (nfs, mounting) = (program(), program());
        server.register(procedure::PROGRAM, 3..=3, NFS3, nfs).unwrap();
        if mounts {
            server.register(mount::PROGRAM, 3..=3, Table(&[]), mounting).unwrap();
        }
        let end = Instant::now() + PATIENCE;
        let mut world = World { a, b, server, cuts: Vec::new(), turns: 0, end, _turn: turn };
        while !world.server.listening().unwrap() {
            world.poll();
        }
        Scene { world: Rc::new(RefCell::new(world)), lab, serving }
    }

    fn client(
        &self,
        pipeline: Pipeline,
        change: impl FnOnce(&mut heddle_rpc::ClientConfig),
    ) -> Client<RdmaTransport<Rest>> {
        let mut config = rdma::config(pipeline, "tester");
        config.timeout = PATIENCE;
        change(&mut config);
        let rpc = heddle_rpc::Client::new(self.world.borrow().a.device(), addr(), config).unwrap();
        let world = Rc::clone(&self.world);
        let rest: Rest = Box::new(move |_| world.borrow_mut().poll());
        Client::new(RdmaTransport::new(rpc, rest), pipeline)
    }

    /// Waits until the client has all of its registered memory back.
    fn all_back(&self, rpc: &heddle_rpc::Client) {
        while rpc.memory().available() < rpc.memory().len() || rpc.outstanding() > 0 {
            rpc.step();
            self.world.borrow_mut().poll();
        }
    }
}

fn addr() -> SocketAddr {
    "10.0.0.2:20049".parse().unwrap()
}

fn contents(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13).to_le_bytes()[0]).collect()
}

/// Writes a file, and reads the file back.
fn copy<T: Transport>(client: &mut Client<T>, lab: &Lab, len: usize) {
    let root = client.mount("/data").unwrap();
    let data = contents(len);
    let file = client.create(root.handle, b"copy", 0o640).unwrap();
    assert_eq!(client.write(file, &mut Cursor::new(&data), |_, _| ()).unwrap(), len as u64);
    assert!(fs::read(lab.path("copy")).unwrap() == data, "{len} bytes as they were written");
    let mut read = Vec::new();
    let sink = |piece: &[u8]| {
        read.extend_from_slice(piece);
        Ok(())
    };
    assert_eq!(client.read(file, len as u64, sink).unwrap(), len as u64);
    assert!(read == data, "{len} bytes as they were read");
}

#[test]
fn test_files_of_many_sizes_are_written_and_read_in_both_versions() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let scene = Scene::new(speaks);
        for pipeline in [Pipeline::default(), Pipeline { size: 5000, depth: 3 }] {
            let mut client = scene.client(pipeline, |c| c.transport.speaks = speaks);
            let long = if pipeline.size == 5000 { 100_003 } else { 3 << 20 };
            for len in [0, 1, 3, 4095, 4097, 70_001, long] {
                copy(&mut client, &scene.lab, len);
            }
            let rpc = client.transport().rpc().clone();
            assert_eq!(rpc.version(), Some(if speaks.v2 { 2 } else { 1 }));
            let counters = rpc.transport_counters().unwrap();
            assert!(counters.registrations > 20, "data goes by chunks: {counters:?}");
            assert_eq!(rpc.counters().connections, 1);
            scene.all_back(&rpc);
        }
    }
}

#[test]
fn test_copies_survive_connections_lost_in_the_middle() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let scene = Scene::new(speaks);
        let mut client = scene.client(Pipeline { size: 65536, depth: 8 }, |c| {
            c.transport.speaks = speaks;
        });
        copy(&mut client, &scene.lab, 100);
        scene.world.borrow_mut().cuts = (4..10).collect();
        copy(&mut client, &scene.lab, 3 << 20);
        copy(&mut client, &scene.lab, 70_001);
        let counters = client.transport().rpc().counters();
        assert!(counters.connections > 2 && counters.retransmissions > 0, "{counters:?}");
        assert_eq!(counters.timeouts, 0);
    }
}

#[test]
fn test_data_that_a_restarted_server_may_have_lost_is_written_again() {
    let mut scene = Scene::new(Speaks::BOTH);
    let mut client = scene.client(Pipeline { size: 65536, depth: 4 }, |_| ());
    let root = client.mount("/data").unwrap();
    let file = client.create(root.handle, b"copy", 0o640).unwrap();
    let (data, serving) = (contents(1 << 20), scene.serving.clone());
    let (lab, mut begun) = (&mut scene.lab, 0);
    let written = client.write(file, &mut Cursor::new(&data), |offset, _| {
        begun += u32::from(offset == 0);
        if offset == 9 * 65536 && begun == 1 {
            lab.restart();
            *serving.lock().unwrap() = Arc::clone(&lab.service);
        }
    });
    assert_eq!((written.unwrap(), begun), (1 << 20, 2));
    assert!(fs::read(scene.lab.path("copy")).unwrap() == data);
}

#[test]
fn test_client_reports_status_of_server_and_keeps_connection() {
    let scene = Scene::new(Speaks::BOTH);
    let mut client = scene.client(Pipeline::default(), |_| ());
    let root = client.mount("/data").unwrap();
    let none = Handle::new(b"of nobody").unwrap();
    for error in [
        client.getattr(none).unwrap_err(),
        client.read(none, 5 << 20, |_| Ok(())).unwrap_err(),
        client.write(none, &mut Cursor::new(contents(300_000)), |_, _| ()).unwrap_err(),
    ] {
        let is = matches!(error, ClientError::Status { status: Status::BADHANDLE, .. });
        assert!(is, "{error}");
    }
    let error = client.mount("/data/nowhere").unwrap_err();
    assert!(matches!(error, ClientError::Status { status: Status::NOENT, .. }), "{error}");
    assert_eq!(client.enter(root.handle).unwrap().handle, root.handle);
    assert_eq!(client.transport().rpc().counters().connections, 1);
}

#[test]
fn test_client_lists_exports_and_recognizes_server_without_mount() {
    let scene = Scene::new(Speaks::BOTH);
    let mut client = scene.client(Pipeline::default(), |_| ());
    let exports = client.exports().unwrap();
    assert_eq!(exports, [b"/data"]);
    assert_eq!(export_of(&exports, b"/data/x"), Some((&b"/data"[..], b"x".to_vec())));
    drop((client, scene));
    let scene = Scene::with(Speaks::BOTH, false);
    let mut client = scene.client(Pipeline::default(), |_| ());
    let error = client.mount("/data").unwrap_err();
    let is = matches!(error, ClientError::Transport(TransportError::ProgUnavail));
    assert!(is, "{error}");
    client.enter(scene.lab.root()).unwrap();
}

#[test]
fn test_calls_wait_for_little_memory_and_aborted_ones_return_theirs() {
    let scene = Scene::new(Speaks::BOTH);
    let pipeline = Pipeline { size: 1 << 20, depth: 16 };
    let mut client = scene.client(pipeline, |c| c.memory = 5 << 19);
    copy(&mut client, &scene.lab, 7 << 20);
    let root = client.mount("/data").unwrap();
    let found = client.walk(&root, b"copy", true).unwrap();
    let mut pieces = 0;
    let error = client.read(found.handle, found.attributes.size, |_| {
        pieces += 1;
        if pieces == 2 { Err(io::Error::other("enough")) } else { Ok(()) }
    });
    assert!(matches!(error.unwrap_err(), ClientError::Local(_)));
    let len = scene.lab.getattr(found.handle).unwrap().size;
    assert_eq!(client.read(found.handle, len, |_| Ok(())).unwrap(), len);
    // Here the memory has no room for data of 1 MiB.
    let mut client = scene.client(pipeline, |c| c.memory = (1 << 20) - 4096);
    let root = client.mount("/data").unwrap();
    let found = client.walk(&root, b"copy", true).unwrap();
    let error = client.read(found.handle, len, |_| Ok(())).unwrap_err();
    assert!(matches!(error, ClientError::Transport(TransportError::Call(_))), "{error}");
}

#[test]
fn test_client_reports_why_absent_server_cannot_be_reached() {
    let scene = Scene::new(Speaks::BOTH);
    let mut config = rdma::config(Pipeline::default(), "tester");
    config.timeout = Duration::from_secs(1);
    let device = scene.world.borrow().a.device().clone();
    let rpc = heddle_rpc::Client::new(&device, "10.0.0.2:7".parse().unwrap(), config).unwrap();
    let world = Rc::clone(&scene.world);
    let transport = RdmaTransport::new(rpc, move |_: &_| world.borrow_mut().poll());
    let error = Client::new(transport, Pipeline::default()).mount("/data").unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("timed out before it was sent: cannot connect"), "{text}");
}
