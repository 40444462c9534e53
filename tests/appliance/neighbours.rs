//! A hostile application of one user beside an honest one of another: what it costs the honest one.
//!
//! On a machine with two processors every program delays every other, and so does the host of a virtual
//! machine: a pause that the honest application sees proves nothing. What a hostile one must not be able to
//! do is to make a worker *wait*. A worker that spins gives its processor up only when the scheduler takes it
//! away; the system counts the times when it goes to sleep itself, be it in a call, for a lock or for a page.

use std::io::Read;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use heddle::{MpaOptions, Protocol};
use heddle_socket::wire::send;
use heddle_verbs::Region;
use serde_json::{Value, json};

use crate::attacks::{Stopped, as_user, hiding, lingering};
use crate::lab::{Appliance, PATIENCE, PEER, Running, heddle};
use crate::net::PEER_IFACE;
use crate::tenants::{ANYBODY, USER, as_program};

/// The hostile user.
const STRANGER: u32 = 54_321;

/// How long each attack goes on.
const ATTACK: Duration = Duration::from_millis(1500);

/// Bytes of each of the two files that a device is made of.
const AREA: usize = 1 << 20;

const QP: &str =
    r#""srq":null,"sq_depth":16,"rq_depth":16,"max_send_sge":1,"max_recv_sge":1,"max_inline":0"#;

/// How often the workers of an appliance have gone to sleep.
fn sleeps(a: &Appliance) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", a.pid())).unwrap();
    let mut workers = 0;
    let of = |task: std::path::PathBuf| {
        let read = |name| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        if !read("comm").starts_with("heddle-w") {
            return 0;
        }
        workers += 1;
        let status = read("status");
        let count = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse::<u64>().unwrap()
    };
    let sum = tasks.map(|t| t.unwrap().path()).map(of).sum();
    assert!(workers > 0, "no worker");
    sum
}

/// An RNIC on the peers' side, with services for both applications.
fn peer(a: &Appliance) -> Running {
    let mut c = heddle();
    let vdev = format!("net_af_packet0,iface={PEER_IFACE}");
    c.args(["serve", "--vdev", &vdev, "--ip", &format!("{PEER}/16")]);
    c.args(["--listen", &format!("{PEER}:7174=rping"), "--listen", &format!("{PEER}:7175=sink")]);
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Running(a.lab.peers.run(|| c.spawn()).unwrap())
}

/// The honest application.
fn honest(a: &Appliance) -> Running {
    let args = ["rping", "-c", "-V", "-S", "1000", "-a", PEER, "-p", "7174"];
    Running(as_program(a, &args).spawn().unwrap())
}

/// Bytes that have come for it.
fn received(a: &Appliance) -> Option<u64> {
    let conns = a.ask(&["conns"]);
    let conns = conns["conns"].as_array().unwrap();
    let of = |c: &&Value| c["remote"] == format!("{PEER}:7174").as_str();
    conns.iter().find(of)?["tcp"]["received"].as_u64()
}

/// A client without a library, of the hostile user.
struct Raw {
    socket: UnixStream,
    files: [OwnedFd; 2],
    /// Nobody maps them to write once they are sealed.
    mapped: [Mapped; 2],
    next: u64,
    text: Vec<u8>,
}

impl Raw {
    /// With a device.
    fn open(a: &Appliance) -> Raw {
        let file = |_| Region::shared(AREA).unwrap().fd().unwrap().try_clone_to_owned().unwrap();
        let files = [0, 1].map(file);
        let socket = as_user(STRANGER, || UnixStream::connect(a.socket()).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mapped = files.each_ref().map(|f| Mapped::new(f.as_fd()));
        let mut raw = Raw { socket, files, mapped, next: 0, text: Vec::new() };
        let fds = raw.files.each_ref().map(|f| f.try_clone().unwrap());
        let args = json!({ "memory": AREA, "queues": AREA, "name": "hostile" });
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        raw.ask("device-open", &args, &fds).unwrap();
        raw
    }

    fn send(&mut self, op: &str, args: &Value, fds: &[BorrowedFd<'_>]) -> u64 {
        self.next += 1;
        let line = json!({ "v": 1, "id": self.next, "op": op, "args": args }).to_string() + "\n";
        // It may have been ended.
        let _ = send(&self.socket, line.as_bytes(), fds);
        self.next
    }

    /// What comes of it, without events that come before.
    fn ask(&mut self, op: &str, args: &Value, fds: &[BorrowedFd<'_>]) -> Result<Value, String> {
        let id = self.send(op, args, fds);
        loop {
            let line = self.line()?;
            if line["id"] == id {
                let error = line["error"]["text"].as_str().map(str::to_owned);
                return error.map_or_else(|| Ok(line["ok"].clone()), Err);
            }
        }
    }

    fn line(&mut self) -> Result<Value, String> {
        loop {
            if let Some(end) = self.text.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|e| e.to_string());
            }
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err("it has been ended".to_owned()),
                Ok(n) => self.text.extend(&bytes[..n]),
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    /// A queue pair, and connected if it can be.
    fn connect(&mut self) -> Result<(), String> {
        let pd = self.ask("create-pd", &Value::Null, &[])?["pd"].clone();
        let cq = self.ask("create-cq", &json!({ "depth": 64, "waker": null }), &[])?["off"].clone();
        let qp = format!(r#"{{"pd":{pd},"send_cq":{cq},"recv_cq":{cq},{QP}}}"#);
        let qp: Value = serde_json::from_str(&qp).unwrap();
        let qp = self.ask("create-qp", &qp, &[])?["qp"].clone();
        let remote = format!("{PEER}:7175");
        let protocol = Protocol::Mpa(MpaOptions::new());
        let timeout = json!({ "secs": 1_u64 << 40, "nanos": 0 });
        let connect = json!({ "remote": remote, "local": null, "qp": qp, "protocol": protocol, "ird": 4,
            "ord": 4, "private_data": [], "timeout": timeout });
        self.ask("connect", &connect, &[])?;
        let told = self.line()?;
        if told["event"]["Established"].is_object() { Ok(()) } else { Err(told.to_string()) }
    }
}

/// A file of a device, mapped.
struct Mapped(NonNull<AtomicU64>);

impl Mapped {
    fn new(fd: BorrowedFd<'_>) -> Mapped {
        let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of a file of that length, which nothing here refers to.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), AREA, read_write, shared, fd.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Mapped(NonNull::new(at.cast()).unwrap())
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: AREA bytes are mapped until this is dropped, and only as atomic words.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), AREA / 8) }
    }

    /// Gives the pages back to the system; what it says.
    fn remove(&self) -> std::io::Result<()> {
        // SAFETY: the pages read as zeros then, which atomic words may.
        let result = unsafe { libc::madvise(self.0.as_ptr().cast(), AREA, libc::MADV_REMOVE) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), AREA) };
    }
}

/// What a hostile application does.
type Attack = fn(&Appliance);

/// Calls `f` over and over while the attack goes on.
fn over_and_over(mut f: impl FnMut()) {
    let end = Instant::now() + ATTACK;
    while Instant::now() < end {
        f();
    }
}

/// Words by which nothing is to be guessed (xorshift).
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn punch_holes(a: &Appliance) {
    let raw = Raw::open(a);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let len = libc::off_t::try_from(AREA).unwrap();
    over_and_over(|| {
        for (file, mapped) in raw.files.iter().zip(&raw.mapped) {
            let fd = file.as_raw_fd();
            // SAFETY: calls on a live descriptor; what the system does to the file is the question.
            let [punched, cut] =
                unsafe { [libc::fallocate(fd, mode, 0, len), libc::ftruncate(fd, 0)] };
            assert_eq!((punched, cut), (-1, -1), "the file can be changed under the worker");
            assert!(mapped.remove().is_err(), "its pages can be given back under the worker");
        }
    });
}

fn scribble(a: &Appliance) {
    let (mut state, mut connected) = (0x9e37_79b9_7f4a_7c15, 0);
    over_and_over(|| {
        let mut raw = Raw::open(a);
        connected += u32::from(raw.connect().is_ok());
        for _ in 0..200_000 {
            let word =
                &raw.mapped[0].words()[usize::try_from(random(&mut state)).unwrap() % (AREA / 8)];
            let value = random(&mut state);
            // Small numbers pass more checks.
            word.store(value >> (value & 63), Ordering::Relaxed);
        }
    });
    assert!(connected > 0, "no queue pair was connected");
}

fn bring_files(a: &Appliance) {
    let mut raw = Raw::open(a);
    over_and_over(|| {
        let len = 64 << 20;
        let file = Region::shared(len).unwrap();
        let _ = raw.ask("add-region", &json!({ "len": len }), &[file.fd().unwrap()]);
        let huge = Region::shared(1 << 30).unwrap();
        let _ = raw.ask("add-region", &json!({ "len": 1 << 30 }), &[huge.fd().unwrap()]);
    });
}

fn open_and_close(a: &Appliance) {
    over_and_over(|| {
        let raws: Vec<_> = (0..4).map(|_| Raw::open(a)).collect();
        drop(raws);
        thread::sleep(Duration::from_millis(1));
    });
}

fn ask_without_end(a: &Appliance) {
    let mut raws: Vec<_> = (0..8).map(|_| Raw::open(a)).collect();
    for raw in &raws {
        raw.socket.set_nonblocking(true).unwrap();
    }
    over_and_over(|| {
        for raw in &mut raws {
            raw.send("create-pd", &Value::Null, &[]);
            raw.send("nonsense", &json!({ "depth": u64::MAX }), &[]);
        }
    });
}

fn bring_lingering_descriptors(a: &Appliance) {
    const COUNT: u32 = 48;
    let (sockets, peers): (Vec<_>, Vec<TcpStream>) = (0..COUNT).map(|_| lingering()).unzip();
    let mut raw = Raw::open(a);
    let create = json!({ "depth": 8, "waker": 1 });
    let mut ends = Vec::new();
    for (n, socket) in sockets.into_iter().enumerate() {
        let fd = if n % 2 == 0 { socket } else { hiding(socket) };
        raw.send("create-cq", &create, &[fd.as_fd()]);
        // Where the appliance was faster, this is the close that lingers.
        ends.push(thread::spawn(move || drop(fd)));
        thread::sleep(ATTACK / COUNT);
    }
    // No socket lingers without its peer.
    drop(peers);
    ends.into_iter().for_each(|end| end.join().unwrap());
}

#[test]
fn test_hostile_application_makes_no_worker_wait_and_leaves_an_honest_one_its_share() {
    let a = Appliance::start(ANYBODY);
    let _peer = peer(&a);
    let mut program = honest(&a);
    let until = Instant::now() + PATIENCE;
    while received(&a).is_none_or(|n| n == 0) {
        assert!(Instant::now() < until, "it does not begin");
        if program.0.try_wait().unwrap().is_some() {
            // The peer was not there yet.
            program = honest(&a);
        }
        thread::sleep(Duration::from_millis(20));
    }

    // A worker that stands still is seen.
    let before = sleeps(&a);
    drop(Stopped::new(&a));
    assert!(sleeps(&a) > before);

    let measure = |attack: Attack| {
        let (slept, moved, start) = (sleeps(&a), received(&a).unwrap(), Instant::now());
        attack(&a);
        let moved = received(&a).expect("its connection stands") - moved;
        let rate = f64::from(u32::try_from(moved).unwrap()) / start.elapsed().as_secs_f64();
        (sleeps(&a) - slept, rate)
    };
    // Of one that only takes a processor.
    let (_, usual) = measure(|_| over_and_over(std::hint::spin_loop));
    let attacks: [(&str, Attack); 6] = [
        ("holes in its files", punch_holes),
        ("random words in its queues", scribble),
        ("files of up to a gigabyte", bring_files),
        ("devices opened and closed", open_and_close),
        ("requests without end", ask_without_end),
        ("descriptors that linger", bring_lingering_descriptors),
    ];
    for (what, attack) in attacks {
        let (slept, rate) = measure(attack);
        println!("{what}: workers slept {slept} times; {:.2} of the usual goodput", rate / usual);
        assert_eq!(slept, 0, "{what}: a worker has waited");
        // What other programs of the machine take is not the attack's: far below that is a stall.
        assert!(rate > usual / 50.0, "{what}: {rate} bytes a second, {usual} usually");
        assert!(
            program.0.try_wait().unwrap().is_none(),
            "{what}: the honest application has ended"
        );
    }
    // It has taken nothing that it does not give back.
    let until = Instant::now() + PATIENCE;
    let others = || {
        let clients = a.ask(&["status"])["clients"].as_array().unwrap().clone();
        clients.iter().filter(|c| c["uid"] != USER).count()
    };
    while others() > 0 {
        assert!(Instant::now() < until, "{}", a.ask(&["status"]));
        thread::sleep(Duration::from_millis(20));
    }
}
