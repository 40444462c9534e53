//! A client whose calls wait for the disk, or that has many calls, beside a client that the server
//! serves meanwhile: over RDMA, with calls on the service's threads, and a disk that takes a change
//! when the test says so.
#![allow(clippy::result_large_err, reason = "results of the protocol are as large when they fail")]

use std::io;
use std::net::TcpListener;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::eal::eal;
use heddle_base::Seed;
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_nfs::client::{Client as Nfs, Pipeline};
use heddle_nfs::tcp::{self, TcpTransport};
use heddle_nfs::wire::{
    Create, Created, DirEntryName, Fattr, Handle, How, LookupOk, Opaque, Sattr, Stable, Status,
    WccData, Write, WriteOk, Xdr, mount, procedure,
};
use heddle_nfs::{Disk, Extent, Options, Service, SystemDisk, rdma};
use heddle_rpc::binding::NFS3;
use heddle_rpc::client::PendingCall;
use heddle_rpc::{Body, Client, ClientConfig, Procedure, Server};
use tempfile::TempDir;

/// A limit that only a hang reaches; it does not measure speed.
const PATIENCE: Duration = Duration::from_secs(120);
const ADDR: &str = "10.0.0.2:20049";

/// A disk that takes no change while it is shut.
#[derive(Debug, Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    /// The number of rounds that have begun.
    begun: AtomicU64,
}

impl Gate {
    fn shut(&self, shut: bool) {
        *self.is_shut.lock().unwrap() = shut;
        self.opened.notify_all();
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }
}

impl Disk for Gate {
    fn sync(&self, file: BorrowedFd<'_>, extent: Extent) -> io::Result<()> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let shut = self.is_shut.lock().unwrap();
        drop(self.opened.wait_while(shut, |shut| *shut).unwrap());
        SystemDisk.sync(file, extent)
    }
}

/// A directory, its server, and two clients.
struct World {
    dir: TempDir,
    gate: Arc<Gate>,
    clients: [Client; 2],
    server: Server,
    service: Arc<Service>,
    threads: Option<rdma::Threads>,
    a: Endpoint,
    b: Endpoint,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    fn new(threads: usize) -> World {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (eal, turn) = eal();
        let dir = tempfile::tempdir().unwrap();
        let gate = Arc::new(Gate::default());
        let service =
            Service::with_disk(dir.path(), "/data", Options::default(), gate.clone()).unwrap();
        let service = Arc::new(service);
        let name = format!("fair{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let config = |n: u8| EndpointConfig {
            frames: 2047,
            max_conns: 64,
            ..EndpointConfig::with_seed(
                vec![format!("10.0.0.{n}/24").parse().unwrap()],
                Seed::from_u64(n.into()),
            )
        };
        let (a, b) = Endpoint::ring_pair(&eal, &name, &config(1), &config(2)).unwrap();
        let client = || {
            let config = ClientConfig { binding: Box::new(NFS3), ..ClientConfig::default() };
            Client::new(a.device(), ADDR.parse().unwrap(), config).unwrap()
        };
        let clients = [client(), client()];
        let config = rdma::config(12 << 20);
        let mut server = Server::new(b.device(), ADDR.parse().unwrap(), config).unwrap();
        let threads = Some(rdma::serve(&mut server, &service, threads).unwrap());
        let mut world = World { dir, gate, clients, server, service, threads, a, b, _turn: turn };
        world.until("a listener", |w| w.server.listening().unwrap().then_some(()));
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut World) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            for _ in 0..8 {
                self.a.poll();
                self.b.poll();
            }
            for client in &self.clients {
                client.step();
            }
            self.server.step();
            if let Some(t) = found(self) {
                return t;
            }
            assert!(Instant::now() < end, "{what} did not come: {:?}", self.server.counters());
        }
    }

    fn send<'a>(&self, client: usize, p: Procedure, arguments: &impl Xdr<'a>) -> PendingCall {
        let arguments = Body::of(arguments.bytes()).unwrap();
        let call = self.clients[client].call(p).arguments(arguments).timeout(PATIENCE);
        let call = if p.program == mount::PROGRAM { call.results_max(1024) } else { call };
        call.send().unwrap()
    }

    fn done<R: Xdr<'static>, F: Xdr<'static>>(
        &mut self,
        mut call: PendingCall,
    ) -> Result<R, Status> {
        let results = self.until("a reply", |_| call.try_take()).unwrap();
        let bytes: &'static [u8] = results.to_vec().leak();
        Result::<R, (Status, F)>::whole(bytes).unwrap().map_err(|(status, _)| status)
    }

    fn create(&self, client: usize, dir: Handle, name: &str) -> PendingCall {
        let how = How::Guarded(Sattr { mode: Some(0o644), ..Sattr::default() });
        let at = DirEntryName { dir, name: Opaque(name.as_bytes()) };
        self.send(client, procedure::CREATE, &Create { at, how })
    }

    fn lookup(&mut self, client: usize, dir: Handle, name: &str) -> Result<Handle, Status> {
        let at = DirEntryName { dir, name: Opaque(name.as_bytes()) };
        let call = self.send(client, procedure::LOOKUP, &at);
        self.done::<LookupOk, Option<Fattr>>(call).map(|found| found.object)
    }
}

#[test]
fn test_disk_waits_of_one_client_delay_no_call_of_another() {
    let mut w = World::new(2);
    let root = w.service.shares()[0].export().root();
    std::fs::write(w.path("there"), "as it is").unwrap();
    w.lookup(1, root, "there").unwrap();
    w.gate.shut(true);
    let mut creates: Vec<_> = (0..12).map(|n| w.create(0, root, &format!("new{n}"))).collect();
    let (gate, all) = (Arc::clone(&w.gate), 12);
    w.until("the disk", |_| (gate.begun() > 0).then_some(()));
    w.until("all files", |w| {
        let made = std::fs::read_dir(w.dir.path()).unwrap().count() - 1;
        (made == all).then_some(())
    });
    // These calls are in the same directory, whose change is not on the disk yet.
    w.lookup(1, root, "there").unwrap();
    w.lookup(1, root, "new3").unwrap();
    let file = w.lookup(1, root, "there").unwrap();
    let write = Write { file, offset: 0, count: 2, stable: Stable::Unstable, data: Opaque(b"is") };
    let call = w.send(1, procedure::WRITE, &write);
    assert_eq!(w.done::<WriteOk, WccData>(call).map(|w| w.count), Ok(2));
    assert!(creates.iter_mut().all(|call| call.try_take().is_none()), "none is on the disk");
    w.gate.shut(false);
    for call in creates {
        w.done::<Created, WccData>(call).unwrap();
    }
    // Each file has one round; the directory has as many as followed one another.
    assert!(gate.begun() < 2 * 12, "one round of the directory answers many: {}", gate.begun());
}

/// The owner of an export drops it while the disk hangs.
#[test]
fn test_reply_arrives_though_threads_were_dropped_while_disk_hung() {
    let mut w = World::new(2);
    let root = w.service.shares()[0].export().root();
    w.gate.shut(true);
    let call = w.create(0, root, "new");
    let gate = Arc::clone(&w.gate);
    w.until("the disk", |_| (gate.begun() > 0).then_some(()));
    drop(w.threads.take());
    w.gate.shut(false);
    w.done::<Created, WccData>(call).unwrap();
}

/// The connection's thread waits for the disk, and the owner of the server does not.
#[test]
fn test_tcp_server_can_be_dropped_while_disk_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let service = Service::with_disk(dir.path(), "/", Options::default(), gate.clone()).unwrap();
    let root = service.shares()[0].export().root();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = tcp::Server::start(listener, Arc::new(service), tcp::Limits::default()).unwrap();
    let transport = TcpTransport::connect(server.address(), "tester", PATIENCE).unwrap();
    let mut client = Nfs::new(transport, Pipeline::default());
    gate.shut(true);
    let how = How::Guarded(Sattr::default());
    let at = DirEntryName { dir: root, name: Opaque(b"new") };
    let _token = client.submit(procedure::CREATE, &Create { at, how }).unwrap();
    let begun = Instant::now();
    while gate.begun() == 0 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    let (dropped, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(server);
        dropped.send(()).unwrap();
    });
    let heard = heard.recv_timeout(PATIENCE);
    gate.shut(false);
    assert!(heard.is_ok(), "it waits for the disk");
}

/// `cargo test --release -p heddle-nfs --test it -- --ignored --nocapture creations`, with TMPDIR
/// on the disk.
#[test]
#[ignore = "measures"]
fn measure_creations_of_eight_clients_in_one_directory() {
    const EACH: usize = 500;
    for clients in [1, 8] {
        let dir = tempfile::tempdir().unwrap();
        let service = Arc::new(Service::new(dir.path(), "/", Options::default()).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = tcp::Server::start(listener, service, tcp::Limits::default()).unwrap();
        let address = server.address();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for number in 0..clients {
                scope.spawn(move || {
                    let transport = TcpTransport::connect(address, "bench", PATIENCE).unwrap();
                    let mut client = Nfs::new(transport, Pipeline::default());
                    let root = client.mount("/").unwrap();
                    for n in 0..EACH {
                        let name = format!("{number}-{n}");
                        client.create(root.handle, name.as_bytes(), 0o644).unwrap();
                    }
                });
            }
        });
        let rate = |begun: Instant| (clients * EACH) as f64 / begun.elapsed().as_secs_f64();
        let (served, begun) = (rate(begun), Instant::now());
        create_locally(clients, EACH);
        let local = rate(begun);
        println!("{clients} clients: {served:.0} creations a second; local threads: {local:.0}");
    }
}

/// Makes the same creations in threads of this process, each with the two fsync calls that make it
/// durable, to measure how fast the disk is at this moment.
fn create_locally(threads: usize, each: usize) {
    let dir = tempfile::tempdir().unwrap();
    let handle = std::fs::File::open(dir.path()).unwrap();
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (path, handle) = (dir.path(), &handle);
            scope.spawn(move || {
                for n in 0..each {
                    let file = std::fs::File::create_new(path.join(format!("{number}-{n}")));
                    file.unwrap().sync_all().unwrap();
                    handle.sync_all().unwrap();
                }
            });
        }
    });
}
