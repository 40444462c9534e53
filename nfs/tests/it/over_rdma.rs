//! The service on queue pairs, called by an RPC client: each on an RNIC of its own, and one thread
//! polls both; the service's threads carry out the calls.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::eal::eal;
use heddle_base::Seed;
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_nfs::wire::{
    Create, Created, DirEntryName, Fattr, Handle, How, IO_MAX, LookupOk, OfHandle, Opaque, Read,
    ReadOk, ReadlinkOk, Sattr, Stable, Status, WccData, WriteOk, Xdr, mount, procedure,
};
use heddle_nfs::{Options, Service, rdma};
use heddle_rpc::binding::NFS3;
use heddle_rpc::client::PendingCall;
use heddle_rpc::{
    Body, CallError, Client, ClientConfig, Credential, Procedure, Server, Speaks, SysCredential,
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(120);
const ADDR: &str = "10.0.0.2:20049";
/// Bytes of the server's registered memory: fewer than all the calls of a connection can need.
const MEMORY: usize = 12 << 20;

/// A directory, its server, and a client.
struct World {
    dir: TempDir,
    client: Client,
    server: Server,
    service: Arc<Service>,
    _threads: rdma::Threads,
    a: Endpoint,
    b: Endpoint,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    fn new(speaks: Speaks, read_only: bool) -> World {
        World::with_memory(speaks, read_only, MEMORY)
    }

    /// Makes a world whose server has `memory` bytes of registered memory.
    fn with_memory(speaks: Speaks, read_only: bool, memory: usize) -> World {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (eal, turn) = eal();
        let dir = tempfile::tempdir().unwrap();
        let options = Options { read_only, sync: false, ..Options::default() };
        let service = Arc::new(Service::new(dir.path(), "/data", options).unwrap());
        let name = format!("nfs{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let config = |n: u8| EndpointConfig {
            frames: 2047,
            max_conns: 64,
            ..EndpointConfig::with_seed(
                vec![format!("10.0.0.{n}/24").parse().unwrap()],
                Seed::from_u64(n.into()),
            )
        };
        let (a, b) = Endpoint::ring_pair(&eal, &name, &config(1), &config(2)).unwrap();
        let mut client = ClientConfig { binding: Box::new(NFS3), ..ClientConfig::default() };
        client.transport.speaks = speaks;
        client.memory = 32 << 20;
        let credential = SysCredential { uid: 7, machine: b"loom".to_vec(), ..Default::default() };
        client.credential = Credential::Sys(credential);
        let mut config = rdma::config(memory);
        config.transport.speaks = speaks;
        let client = Client::new(a.device(), ADDR.parse().unwrap(), client).unwrap();
        let mut server = Server::new(b.device(), ADDR.parse().unwrap(), config).unwrap();
        let threads = rdma::serve(&mut server, &service, 2).unwrap();
        let mut world =
            World { dir, client, server, service, _threads: threads, a, b, _turn: turn };
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
            self.client.step();
            self.server.step();
            if let Some(t) = found(self) {
                return t;
            }
            assert!(Instant::now() < end, "{what} did not come: {:?}", self.server.counters());
        }
    }

    fn call(&mut self, p: Procedure, arguments: Body) -> Result<Body, CallError> {
        let mut call = self.client.call(p).arguments(arguments).timeout(PATIENCE);
        // The binding knows the sizes of results only for NFS.
        if p.program == mount::PROGRAM {
            call = call.results_max(1024);
        }
        let mut call = call.send().unwrap();
        self.until("a reply", |_| call.try_take())
    }

    /// Makes a call whose arguments lie in one piece, and returns its results or status.
    fn ask<'a, R: Xdr<'static>, F: Xdr<'static>>(
        &mut self,
        p: Procedure,
        arguments: &impl Xdr<'a>,
    ) -> Result<R, Status> {
        let results = self.call(p, Body::of(arguments.bytes()).unwrap()).unwrap();
        let bytes: &'static [u8] = bytes(&results).leak();
        Result::<R, (Status, F)>::whole(bytes).unwrap().map_err(|(status, _)| status)
    }

    fn mount(&mut self, path: &'static [u8]) -> Result<Handle, Status> {
        let path: mount::DirPath<'_> = Opaque(path);
        self.ask::<mount::Mounted, ()>(mount::MNT, &path).map(|m| m.handle)
    }

    fn create(&mut self, dir: Handle, name: &[u8]) -> Result<Handle, Status> {
        let how = How::Guarded(Sattr { mode: Some(0o644), ..Sattr::default() });
        let call = Create { at: DirEntryName { dir, name: Opaque(name) }, how };
        let made = self.ask::<Created, WccData>(procedure::CREATE, &call);
        made.map(|made| made.object.unwrap())
    }

    fn lookup(&mut self, dir: Handle, name: &[u8]) -> Result<Handle, Status> {
        let call = DirEntryName { dir, name: Opaque(name) };
        let found = self.ask::<LookupOk, Option<Fattr>>(procedure::LOOKUP, &call);
        found.map(|found| found.object)
    }

    /// Makes a WRITE whose data lies apart, so that the server fetches the data by RDMA Read.
    fn write(&mut self, file: Handle, offset: u64, data: &[u8]) -> Result<u32, Status> {
        let arguments = self.writing(file, offset, data);
        written(&self.call(procedure::WRITE, arguments).unwrap())
    }

    /// Returns the arguments of a WRITE.
    fn writing(&self, file: Handle, offset: u64, data: &[u8]) -> Body {
        let mut arguments = Body::new();
        arguments.raw(&file.bytes()).unwrap().u64(offset).unwrap();
        arguments.u32(u32::try_from(data.len()).unwrap()).unwrap();
        arguments.raw(&Stable::Unstable.bytes()).unwrap();
        arguments.item(self.client.memory().take_copy(data).unwrap()).unwrap();
        arguments
    }

    /// Sends a call, to be awaited together with others.
    fn send(&self, p: Procedure, arguments: Body) -> PendingCall {
        self.client.call(p).arguments(arguments).timeout(PATIENCE).send().unwrap()
    }
}

/// Returns the number of bytes that a WRITE has written.
fn written(results: &Body) -> Result<u32, Status> {
    let bytes = bytes(results);
    let written = Result::<WriteOk, (Status, WccData)>::whole(&bytes).unwrap();
    written.map(|w| w.count).map_err(|(status, _)| status)
}

/// Returns the data that a READ has read.
fn read_data(results: &Body) -> Result<Vec<u8>, Status> {
    let bytes = bytes(results);
    let read = Result::<ReadOk<'_>, (Status, Option<Fattr>)>::whole(&bytes).unwrap();
    read.map(|read| read.data.0.to_vec()).map_err(|(status, _)| status)
}

/// Returns all bytes of results, with items in their places.
fn bytes(body: &Body) -> Vec<u8> {
    let mut all = Vec::new();
    let mut rest = body.bytes();
    for item in body.items() {
        let (front, behind) = rest.split_at(item.position as usize - all.len());
        all.extend_from_slice(front);
        all.extend(item.data.to_vec());
        all.resize(all.len().next_multiple_of(4), 0);
        rest = behind;
    }
    all.extend_from_slice(rest);
    all
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(((i * 7) ^ (i >> 8)) & 0xff).unwrap()).collect()
}

/// Returns the versions of RPC-over-RDMA, each alone.
fn versions() -> [Speaks; 2] {
    [Speaks::V1, Speaks::V2]
}

#[test]
fn test_client_mounts_directory_and_moves_a_mebibyte_both_ways() {
    for speaks in versions() {
        let mut w = World::new(speaks, false);
        assert_eq!(w.mount(b"/elsewhere"), Err(Status::NOENT));
        let root = w.mount(b"/data").unwrap();
        let file = w.create(root, b"file").unwrap();
        let data = pattern(IO_MAX as usize);
        assert_eq!(w.write(file, 0, &data), Ok(IO_MAX));
        assert!(std::fs::read(w.path("file")).unwrap() == data, "as it was written");
        // Writes after the end, with a length that needs padding.
        assert_eq!(w.write(file, IO_MAX.into(), &data[..5001]), Ok(5001));
        for (offset, count) in [(0, IO_MAX), (1, 4097), (u64::from(IO_MAX), 6000), (7, 3)] {
            let call = Read { file, offset, count };
            let read = w.ask::<ReadOk<'_>, Option<Fattr>>(procedure::READ, &call).unwrap();
            let whole = std::fs::read(w.path("file")).unwrap();
            let wanted = &whole[usize::try_from(offset).unwrap()..];
            let wanted = &wanted[..wanted.len().min(count as usize)];
            assert!(read.data.0 == wanted, "{count} bytes from {offset}");
            assert_eq!(read.eof, offset + wanted.len() as u64 == whole.len() as u64);
        }
        assert_eq!(w.service.counts().written_bytes, u64::from(IO_MAX) + 5001);
        let version = if speaks == Speaks::V1 { 1 } else { 2 };
        assert_eq!(w.client.version(), Some(version));
    }
}

#[test]
fn test_short_and_long_symlink_targets_are_read_over_rdma() {
    for speaks in versions() {
        let mut w = World::new(speaks, false);
        let root = w.mount(b"/").unwrap();
        for (name, len) in [("short", 5), ("long", 4095)] {
            let path = "x".repeat(len);
            std::os::unix::fs::symlink(&path, w.path(name)).unwrap();
            let object = w.lookup(root, name.as_bytes()).unwrap();
            let call = OfHandle { object };
            let link = w.ask::<ReadlinkOk<'_>, Option<Fattr>>(procedure::READLINK, &call).unwrap();
            assert_eq!(link.path.0, path.as_bytes());
        }
    }
}

#[test]
fn test_read_only_export_refuses_changes_over_rdma() {
    let mut w = World::new(Speaks::BOTH, true);
    std::fs::write(w.path("file"), "as it is").unwrap();
    let root = w.mount(b"/data").unwrap();
    assert_eq!(w.create(root, b"other"), Err(Status::ROFS));
    let file = w.lookup(root, b"file").unwrap();
    assert_eq!(w.write(file, 0, &pattern(100_000)), Err(Status::ROFS));
    assert_eq!(std::fs::read(w.path("file")).unwrap(), b"as it is");
}

/// The replies hold more data than there is registered memory, so they wait for one another's
/// memory.
#[test]
fn test_concurrent_reads_beyond_registered_memory_all_succeed() {
    let mut w = World::new(Speaks::V1, false);
    let data = pattern(IO_MAX as usize);
    std::fs::write(w.path("file"), &data).unwrap();
    let root = w.mount(b"/data").unwrap();
    let file = w.lookup(root, b"file").unwrap();
    let read = Read { file, offset: 0, count: IO_MAX }.bytes();
    let mut calls: Vec<_> =
        (0..24).map(|_| w.send(procedure::READ, Body::of(read.clone()).unwrap())).collect();
    while let Some(mut call) = calls.pop() {
        let results = w.until("a reply", |_| call.try_take()).unwrap();
        assert!(read_data(&results).as_deref() == Ok(&*data));
    }
}

/// The memory holds the data of four WRITEs at a time, and of one READ beside them.
#[test]
fn test_concurrent_reads_and_writes_with_little_memory_all_succeed() {
    const CALLS: u64 = 12;
    const MIB: u64 = IO_MAX as u64;
    for speaks in versions() {
        let mut w = World::with_memory(speaks, false, 6 << 20);
        let root = w.mount(b"/data").unwrap();
        let data = |n: u64| -> Vec<u8> {
            let number = u8::try_from(n).unwrap();
            pattern(IO_MAX as usize).iter().map(|byte| byte.wrapping_add(number)).collect()
        };
        let file = w.create(root, b"file").unwrap();
        let writes = |w: &World, first: u64| -> Vec<_> {
            let numbers = (first..first + CALLS).map(|n| (n, n * MIB));
            let send = |(n, at)| w.send(procedure::WRITE, w.writing(file, at, &data(n)));
            numbers.map(send).collect()
        };
        let done =
            |w: &mut World, mut call: PendingCall| w.until("a reply", |_| call.try_take()).unwrap();
        for call in writes(&w, 0) {
            assert_eq!(written(&done(&mut w, call)), Ok(IO_MAX));
        }
        let alone = w.server.counters();
        assert!(alone.memory_waits >= CALLS / 2, "{alone:?}");

        // Each READ returns the data of the WRITE before it, while other WRITEs write after that
        // range.
        let reads: Vec<_> = (0..CALLS)
            .map(|n| {
                let read = Read { file, offset: n * MIB, count: IO_MAX };
                w.send(procedure::READ, Body::of(read.bytes()).unwrap())
            })
            .collect();
        for (number, call) in writes(&w, CALLS).into_iter().chain(reads).enumerate() {
            let results = done(&mut w, call);
            match (number as u64).checked_sub(CALLS) {
                None => assert_eq!(written(&results), Ok(IO_MAX)),
                Some(n) => assert!(read_data(&results) == Ok(data(n)), "READ {n}"),
            }
        }
        let counters = w.server.counters();
        assert_eq!((counters.calls_repeated, w.service.counts().failed), (0, 0), "{counters:?}");
        let all: Vec<u8> = (0..2 * CALLS).flat_map(data).collect();
        assert!(std::fs::read(w.path("file")).unwrap() == all);
        let memory = w.server.memory().clone();
        w.until("the memory", |_| (memory.available() == memory.len()).then_some(()));
    }
}

/// Linux makes these calls on every mount; no client should make the others.
#[test]
fn test_missing_programs_and_procedures_are_reported_over_rdma() {
    let mut w = World::new(Speaks::V1, false);
    let of = |program, version, procedure| Procedure { program, version, procedure };
    let nothing = Body::new;
    let acl = w.call(of(100_227, 3, 0), nothing());
    assert!(matches!(acl, Err(CallError::ProgUnavail)), "{acl:?}");
    let old = w.call(of(procedure::PROGRAM, 2, 1), nothing());
    assert!(matches!(old, Err(CallError::ProgMismatch { low: 3, high: 3 })), "{old:?}");
    let unknown = w.call(of(procedure::PROGRAM, 3, 22), nothing());
    assert!(matches!(unknown, Err(CallError::ProcUnavail)), "{unknown:?}");
    let garbage = w.call(procedure::GETATTR, nothing());
    assert!(matches!(garbage, Err(CallError::GarbageArgs)), "{garbage:?}");
    assert!(w.call(procedure::NULL, nothing()).is_ok());
}
