//! Applications that open their devices through a socket.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heddle_base::{Random, Seed};
use heddle_hub::{Policy, serve};
use heddle_socket::wire::{Inbox, receive, send};
use heddle_verbs::remote::OpenParams;
use heddle_verbs::{
    Access, CmEvent, ConnectParams, Device, EventQueue, QpInit, RecvWr, Region, SendWr,
};

use crate::client::{KIND, OURS, SOCKET};
use crate::world::{Neighbor, World};

/// A socket, with a thread for each client.
struct Server {
    path: PathBuf,
    over: Arc<AtomicBool>,
    /// Number of clients that are being served.
    open: Arc<AtomicUsize>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    fn new(world: &World, policy: &Policy) -> Server {
        let path = std::env::temp_dir().join(format!("heddle-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let (hub, policy) = (world.a.hub().clone(), policy.clone());
        let (over, open) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ends, count) = (over.clone(), open.clone());
        let accepting = std::thread::spawn(move || {
            for socket in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                let (hub, policy, count) = (hub.clone(), policy.clone(), count.clone());
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || {
                    // A client's faults end only its own session, so the result does not matter.
                    let _ = serve(&hub, policy, &socket.unwrap());
                    count.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Server { path, over, open, accepting: Some(accepting) }
    }

    fn spawn(&self, kind: &str) -> Child {
        let exe = std::env::current_exe().unwrap();
        let mut client = Command::new(exe);
        client.env(SOCKET, &self.path).env(KIND, kind).stdin(Stdio::piped());
        client.spawn().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(&self.path);
        self.accepting.take().unwrap().join().unwrap();
        std::fs::remove_file(&self.path).unwrap();
    }
}

/// Waits for a client that has to end with success.
fn finish(world: &mut World, mut client: Child) {
    drop(client.stdin.take());
    let end = Instant::now() + Duration::from_secs(120);
    let status = loop {
        for _ in 0..100 {
            world.poll();
        }
        if let Some(status) = client.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < end, "the client takes too long");
    };
    assert!(status.success(), "the client says what was wrong: {status}");
}

pub(crate) fn every_verb(world: &mut World) {
    let before = world.numbers();
    let server = Server::new(world, &Policy::default());
    let client = server.spawn("verbs");
    // The peer's side of the client's listener.
    let device = world.b.device().clone();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(8, None).unwrap();
    let events = EventQueue::new(None);
    let mr = device.alloc_mr(pd, 64, Access::LOCAL_WRITE).unwrap();
    let connect = |world: &mut World, who: &[u8]| {
        let qp = device.create_qp(pd, QpInit::new(cq.clone()).depths(4, 4)).unwrap();
        loop {
            let params =
                ConnectParams { private_data: who.to_vec(), ..ConnectParams::new(qp.clone()) };
            device.connect(OURS.into(), params, &events).unwrap();
            let mut seen = None;
            world.until("an outcome", |_| {
                seen = events.poll();
                seen.is_some()
            });
            match seen.unwrap() {
                // The client does not listen yet.
                CmEvent::ConnectError { .. } => {}
                other => break (qp, other),
            }
        }
    };
    let (_, rejected) = connect(world, b"one");
    assert!(
        matches!(&rejected, CmEvent::Rejected { private_data, .. } if private_data == b"no"),
        "{rejected:?}"
    );
    let (qp, established) = connect(world, b"two");
    let CmEvent::Established { id, .. } = established else { panic!("{established:?}") };
    qp.post_recv(&RecvWr { wr_id: 1, sges: &[mr.sge(0, 32)] }).unwrap();
    qp.post_send(&SendWr::send(2, &[mr.sge(32, 5)])).unwrap();
    let mut left = 2;
    world.until("the client's welcome", |_| {
        while let Some(c) = cq.poll() {
            assert!(c.status.is_success(), "{c:?}");
            left -= 1;
        }
        left == 0
    });
    let mut bytes = [0; 7];
    mr.read(0, &mut bytes);
    assert_eq!(&bytes, b"welcome");
    device.disconnect(id).unwrap();
    finish(world, client);
    drop((qp, mr, cq));
    world.until("everything comes back", |w| w.numbers() == before);
    world.until("the server has let go", |_| server.open.load(Ordering::Relaxed) == 0);
}

/// The client is killed at any moment: before it has a device, in the middle of a request, with
/// traffic.
pub(crate) fn killed(world: &mut World) {
    const TIMES: usize = 60;
    let server = Server::new(world, &Policy::default());
    let mut neighbor = Neighbor::new(world);
    let mut random = Random::new(&Seed::from_u64(5));
    let before = world.numbers();
    let mut took = Vec::new();
    let mut with_traffic = 0;
    for round in 0..TIMES {
        let sent = world.received();
        let mut client = server.spawn("work");
        let mut until = Instant::now() + Duration::from_micros(random.below(60_000));
        if round % 2 == 0 {
            // Traffic is certain to have begun.
            world.until("the client posts", |w| w.received() != sent && w.received() > 0);
            until = Instant::now() + Duration::from_micros(random.below(5_000));
        }
        while Instant::now() < until {
            world.poll();
        }
        with_traffic += usize::from(world.numbers() != before);
        client.kill().unwrap();
        let _ = client.wait().unwrap();
        let dead = Instant::now();
        world.until("everything comes back", |w| {
            w.numbers() == before && server.open.load(Ordering::Relaxed) == 0
        });
        took.push(dead.elapsed());
        neighbor.exchange(world);
    }
    took.sort_unstable();
    let (median, most) = (took[TIMES / 2], took[TIMES - 1]);
    println!(
        "of {TIMES} clients {with_traffic} had something; it was back within {:.2} ms (median), \
         {:.2} ms (most)",
        median.as_secs_f64() * 1e3,
        most.as_secs_f64() * 1e3
    );
    assert!(with_traffic >= TIMES / 2, "{with_traffic}");
    assert!(most < Duration::from_secs(1), "{most:?}");
    neighbor.end(world);
}

/// The environment variable with the seconds of the next test, if 20 are too few.
const SECONDS: &str = "HEDDLE_SOAK_SECONDS";

/// Five of ten clients are killed in turn and started anew. The others compare every byte, and so
/// does an application in the RNIC's process.
pub(crate) fn ten(world: &mut World) {
    let seconds = std::env::var(SECONDS).ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    let before = world.numbers();
    let server = Server::new(world, &Policy::default());
    let mut neighbor = Neighbor::new(world);
    let mut clients: Vec<Child> = (0..10).map(|_| server.spawn("work")).collect();
    let (start, mut kills) = (Instant::now(), 0u32);
    while start.elapsed() < Duration::from_secs(seconds) {
        let next = start.elapsed() + Duration::from_millis(100);
        while start.elapsed() < next {
            for _ in 0..100 {
                world.poll();
            }
        }
        neighbor.exchange(world);
        let victim = 5 + kills as usize % 5;
        kills += 1;
        clients[victim].kill().unwrap();
        let _ = clients[victim].wait().unwrap();
        clients[victim] = server.spawn("work");
        for client in &mut clients[..5] {
            let status = client.try_wait().unwrap();
            assert!(status.is_none(), "a client ended by itself: {status:?}");
        }
    }
    for client in clients {
        finish(world, client);
    }
    println!("{kills} clients were killed; the neighbor had {} rounds", neighbor.rounds);
    neighbor.end(world);
    world.until("everything comes back", |w| w.numbers() == before);
}

/// Sends lines, descriptors and memory that no real client would send, beside a client that does
/// its own work.
pub(crate) fn hostile(world: &mut World) {
    let before = world.numbers();
    let policy = Policy { memory: 8 << 20, ..Policy::default() };
    let server = Server::new(world, &policy);
    let mut neighbor = Neighbor::new(world);
    let honest = server.spawn("work");
    let (path, over) = (server.path.clone(), Arc::new(AtomicBool::new(false)));
    let ends = over.clone();
    let bad = std::thread::spawn(move || {
        let _ends = SetWhenDropped(ends);
        floods(&path);
        lines(&path);
        holes(&path);
    });
    while !over.load(Ordering::Relaxed) {
        for _ in 0..1000 {
            world.poll();
        }
        neighbor.exchange(world);
    }
    bad.join().unwrap();
    finish(world, honest);
    neighbor.end(world);
    world.until("everything comes back", |w| w.numbers() == before);
}

struct SetWhenDropped(Arc<AtomicBool>);

impl Drop for SetWhenDropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const OPEN: &str =
    r#"{"v":1,"id":1,"op":"device-open","args":{"memory":65536,"queues":65536,"name":"bad"}}"#;

fn open(path: &PathBuf) -> (UnixStream, Inbox) {
    let socket = UnixStream::connect(path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut inbox = Inbox::new(1 << 20);
    let files = [65536, 65536].map(|len| Region::shared(len).unwrap());
    let fds = [0, 1].map(|n: usize| files[n].fd().unwrap());
    send(&socket, format!("{OPEN}\n").as_bytes(), &fds).unwrap();
    let answer = answer(&socket, &mut inbox);
    assert!(answer.contains("\"ok\""), "{answer}");
    (socket, inbox)
}

fn ask(mut socket: &UnixStream, inbox: &mut Inbox, line: &str) -> String {
    use std::io::Write;
    socket.write_all(line.as_bytes()).unwrap();
    socket.write_all(b"\n").unwrap();
    answer(socket, inbox)
}

fn answer(socket: &UnixStream, inbox: &mut Inbox) -> String {
    loop {
        if let Some(line) = inbox.pop() {
            return String::from_utf8(line).unwrap();
        }
        receive(socket.as_fd(), inbox).unwrap();
    }
}

/// Sends a hundred thousand destroys of objects that do not exist, as fast as possible, and then
/// reads one answer.
fn floods(path: &PathBuf) {
    use std::io::Write;
    let (mut socket, mut inbox) = open(path);
    let start = Instant::now();
    let mut lines = String::new();
    for i in 0..100_000u64 {
        lines.push_str(&format!(
            "{{\"v\":1,\"id\":0,\"op\":\"destroy-mr\",\"args\":{{\"id\":{}}}}}\n",
            i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ));
    }
    socket.write_all(lines.as_bytes()).unwrap();
    let last = ask(&socket, &mut inbox, r#"{"v":1,"id":5,"op":"create-pd"}"#);
    assert!(last.contains("\"id\":5") && last.contains("pd"), "{last}");
    println!("100,000 refused requests took {:.2} s", start.elapsed().as_secs_f64());
}

/// Sends lines that are not requests, memory that cannot be used, and descriptors that no request
/// asks for.
fn lines(path: &PathBuf) {
    use std::io::{Read, Write};
    // Half a line, and then the end.
    let (mut socket, _) = open(path);
    socket.write_all(b"{\"v\":1,\"id\":2,\"op\":\"cr").unwrap();
    drop(socket);
    // A line without an end.
    let (mut socket, _) = open(path);
    let long = vec![b'['; 1 << 20];
    let _ = socket.write_all(&long);
    let mut rest = Vec::new();
    // The server closed with unread bytes: the client sees a reset, or an end.
    let _ = socket.read_to_end(&mut rest);
    // Nesting as deep as a line is long.
    let (socket, mut inbox) = open(path);
    let deep = "[".repeat(60_000);
    assert!(ask(&socket, &mut inbox, &deep).contains("malformed"));
    // Memory that its owner could shrink.
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let line = b"{\"v\":1,\"id\":4,\"op\":\"add-region\",\"args\":{\"len\":4096}}\n";
    send(&socket, line, &[file.as_fd()]).unwrap();
    assert!(answer(&socket, &mut inbox).contains("F_SEAL_SHRINK"));
    // A descriptor that no request asks for: the server refuses the request and ends the session.
    let (pipe, _end) = std::io::pipe().unwrap();
    let line = b"{\"v\":1,\"id\":3,\"op\":\"create-cq\",\"args\":{\"depth\":8,\"waker\":1}}\n";
    send(&socket, line, &[pipe.as_fd()]).unwrap();
    assert!(answer(&socket, &mut inbox).contains("ok"));
    let _ = (&socket).read_to_end(&mut rest);
}

/// A process tries to take pages from memory while the RNIC sends from it and writes to it.
fn holes(path: &PathBuf) {
    let params = OpenParams {
        memory: 1 << 20,
        queues: 1 << 20,
        name: "holes".to_owned(),
        ..OpenParams::default()
    };
    let device = Device::open_with(path, &params).unwrap();
    const LEN: usize = 1 << 20;
    let own = Arc::new(Region::shared(LEN).unwrap());
    let connection = device.dial(std::net::SocketAddr::from(crate::world::PEER)).unwrap();
    let connection = connection.wait().unwrap();
    let pd = connection.qp().pd();
    let mr = device.register_mr(pd, &own, (0, LEN), 0, Access::LOCAL_WRITE).unwrap();
    let data = connection.private_data();
    let stag = heddle_verbs::Stag(u32::from_be_bytes(*data.first_chunk().unwrap()));
    let to = u64::from_be_bytes(*data.last_chunk().unwrap());
    let file = std::fs::File::from(own.fd().unwrap().try_clone_to_owned().unwrap());
    assert!(file.set_len(0).is_err(), "it is sealed");
    let memory = device.memory().unwrap().fd().unwrap().try_clone_to_owned().unwrap();
    let area = device.area().fd().unwrap().try_clone_to_owned().unwrap();
    let area = std::fs::File::from(area);
    assert!(area.set_len(0).is_err(), "the area is sealed");
    own.place(0, b"here").unwrap();
    for round in 0..200usize {
        let at = round % 200 * 4096;
        let sges = [mr.sge(at, 4096)];
        connection.post_send(&SendWr::write(1, &sges, stag, to)).unwrap();
        connection.post_send(&SendWr::read(2, &sges, stag, to)).unwrap();
        assert_eq!(punch(&file, LEN), Err(rustix::io::Errno::PERM));
        assert_eq!(punch(&memory, LEN), Err(rustix::io::Errno::PERM));
        assert_eq!(punch(&area, LEN), Err(rustix::io::Errno::PERM));
        for _ in 0..2 {
            let c = connection.wait(Duration::from_secs(30)).unwrap();
            assert!(c.status.is_success(), "{c:?}");
        }
    }
}

fn punch(file: &impl AsFd, len: usize) -> rustix::io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, how, 0, len as u64)
}
