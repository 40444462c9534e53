//! The attacks of a hostile tenant. SECURITY.md bounds the effect of each attack; an attack that
//! finds a broken promise returns an error that names it.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use heddle::connection::{ConnectParams, Ends, ListenParams};
use heddle::memory::Region;
use heddle::queue::PostError;
use heddle::remote::OpenParams;
use heddle::{Connection, Device, SendWr, Stag};
use heddle_base::Random;
use serde_json::{Value, json};

use super::{AREA, NAME, PATIENCE, Raw, Target, hiding, lingering};

/// The end of an attack, and the source of its random choices.
pub struct Course {
    pub until: Instant,
    pub random: Random,
}

impl Course {
    pub fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Returns a random number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.random.below(n as u64)).unwrap()
    }
}

/// An attack, with its function.
pub struct Attack {
    /// The name of the attack in tables.
    pub name: &'static str,
    pub run: fn(&Target, &mut Course) -> Result<(), String>,
}

/// All attacks.
pub const ATTACKS: [Attack; 11] = [
    Attack { name: "holes in its files", run: punch_holes },
    Attack { name: "random words in its queues", run: scribble },
    Attack { name: "files of up to a gigabyte", run: bring_files },
    Attack { name: "devices opened and closed", run: open_and_close },
    Attack { name: "requests without end", run: ask_without_end },
    Attack { name: "descriptors that linger", run: bring_lingering_descriptors },
    Attack { name: "doorbells without end", run: ring_without_end },
    Attack { name: "the shortest requests there are", run: post_without_end },
    Attack { name: "as much as it can get", run: take_all },
    Attack { name: "connections that never come about", run: dial_nobody },
    Attack { name: "listening where it may not", run: squat },
];

/// Punches holes into the files of a device, truncates them, and gives their pages back.
fn punch_holes(target: &Target, course: &mut Course) -> Result<(), String> {
    let raw = Raw::open(target)?;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let len = libc::off_t::try_from(AREA).unwrap();
    while course.goes_on() {
        for (file, mapped) in raw.files.iter().zip(&raw.mapped) {
            let fd = file.as_raw_fd();
            // SAFETY: the calls get a live descriptor; the test is whether the system changes the
            // file.
            let done = unsafe { [libc::fallocate(fd, mode, 0, len), libc::ftruncate(fd, 0)] };
            if done != [-1, -1] {
                return Err("a file of a device can be changed under the worker".to_owned());
            }
            if mapped.remove().is_ok() {
                return Err("pages of a device can be given back under the worker".to_owned());
            }
        }
    }
    Ok(())
}

/// Writes random words into the queues and doorbells of devices with a connection.
fn scribble(target: &Target, course: &mut Course) -> Result<(), String> {
    while course.goes_on() {
        let mut raw = Raw::open(target)?;
        // Go on without a connection: an attack on unused queues is an attack, too.
        let _ = raw.connect(target);
        for _ in 0..200_000 {
            let word = &raw.mapped[0].words()[course.below(AREA / 8)];
            let value = course.random.next_u64();
            // Favour small numbers, because they pass more checks.
            word.store(value >> (value & 63), Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Passes files that fit into its quota, and files that do not.
fn bring_files(target: &Target, course: &mut Course) -> Result<(), String> {
    let mut raw = Raw::open(target)?;
    while course.goes_on() {
        let len = (1 + course.below(64)) << 20;
        for len in [len, 1 << 30] {
            let file = Region::shared(len).map_err(|e| e.to_string())?;
            let _ = raw.ask("add-region", &json!({ "len": len }), &[file.fd().unwrap()]);
        }
    }
    Ok(())
}

/// Opens devices and closes them, a few at a time.
fn open_and_close(target: &Target, course: &mut Course) -> Result<(), String> {
    while course.goes_on() {
        let raws = (0..4).map(|_| Raw::open(target)).collect::<Result<Vec<_>, _>>()?;
        drop(raws);
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Sends requests without reading an answer.
fn ask_without_end(target: &Target, course: &mut Course) -> Result<(), String> {
    let mut raws = (0..8).map(|_| Raw::open(target)).collect::<Result<Vec<_>, _>>()?;
    for raw in &raws {
        raw.socket.set_nonblocking(true).unwrap();
    }
    while course.goes_on() {
        for raw in &mut raws {
            raw.send("create-pd", &Value::Null, &[]);
            raw.send("nonsense", &json!({ "depth": u64::MAX }), &[]);
        }
    }
    Ok(())
}

/// Passes sockets that linger when they are closed, openly or in the queue of another socket.
fn bring_lingering_descriptors(target: &Target, course: &mut Course) -> Result<(), String> {
    const COUNT: u32 = 48;
    let pause = course.left() / COUNT;
    let (sockets, peers): (Vec<_>, Vec<TcpStream>) = (0..COUNT).map(|_| lingering()).unzip();
    let mut raw = Raw::open(target)?;
    let create = json!({ "depth": 8, "waker": 1 });
    let mut ends = Vec::new();
    for (n, socket) in sockets.into_iter().enumerate() {
        let fd = if n % 2 == 0 { socket } else { hiding(socket) };
        raw.send("create-cq", &create, &[fd.as_fd()]);
        // If the appliance has already closed its copy, this close is the one that lingers.
        ends.push(thread::spawn(move || drop(fd)));
        thread::sleep(pause);
    }
    // A socket stops lingering when its peer is gone.
    drop(peers);
    ends.into_iter().for_each(|end| end.join().unwrap());
    Ok(())
}

/// Rings every doorbell of every worker without pause.
fn ring_without_end(target: &Target, course: &mut Course) -> Result<(), String> {
    let mut raw = Raw::open(target)?;
    let _ = raw.connect(target);
    while course.goes_on() {
        for _ in 0..1000 {
            raw.bells().iter().for_each(|word| word.store(u64::MAX, Ordering::SeqCst));
        }
    }
    Ok(())
}

/// Posts Writes of no bytes as fast as they complete, and breaks every other queue pair by a Write
/// to memory that does not exist.
fn post_without_end(target: &Target, course: &mut Course) -> Result<(), String> {
    const DEPTH: u32 = 64;
    let until = Instant::now() + PATIENCE;
    let params = OpenParams { memory: 0, queues: AREA, name: NAME.into(), ..OpenParams::default() };
    let device = loop {
        match Device::open_on(target.connect()?, &params) {
            Ok(device) => break device,
            Err(e) if Instant::now() > until => return Err(format!("no device: {e}")),
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    };
    let pd = device.alloc_pd().map_err(|e| e.to_string())?;
    while course.goes_on() {
        // The peer may be busy, or the quota may not be free again yet.
        let Some(connection) = connected(&device, pd, target, DEPTH) else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let breaks = course.below(2) == 0;
        for id in 0.. {
            if !course.goes_on() || breaks && id == 10_000 {
                break;
            }
            // The peer refuses bytes for an STag that it has not given out.
            let bytes: &[u8] = if breaks && id == 9_999 { b"x" } else { b"" };
            match connection.post_send(&SendWr::write_inline(id, bytes, Stag(0), 0)) {
                Ok(()) => {}
                Err(PostError::Full) => {
                    let _ = connection.wait(Duration::from_millis(1));
                }
                Err(_) => break,
            }
            while connection.cq().poll().is_some() {}
        }
    }
    Ok(())
}

fn connected(
    device: &Device,
    pd: heddle::memory::Pd,
    target: &Target,
    depth: u32,
) -> Option<Connection> {
    let ends = Ends::with(device, pd, 2 * depth, |init| init.depths(depth, 1)).ok()?;
    let params =
        ConnectParams { timeout: Duration::from_secs(1), ..ConnectParams::new(ends.qp.clone()) };
    device.dial_with(target.service, params, ends).ok()?.wait().ok()
}

/// A kind of object, and the function with which a client asks for the next one. `n` counts from 0.
type Kind = (&'static str, fn(&mut Raw, &Target, u16) -> Result<Value, String>);

/// All kinds of objects whose number a rule limits.
const KINDS: [Kind; 7] = [
    ("completion queues", |raw, _, _| {
        raw.ask("create-cq", &json!({ "depth": 1, "waker": null }), &[])
    }),
    ("shared receive queues", |raw, _, _| {
        let pd = raw.pd.clone();
        raw.ask("create-srq", &json!({ "pd": pd, "depth": 1, "max_sge": 1, "waker": null }), &[])
    }),
    ("queue pairs", |raw, _, _| {
        let (pd, cq) = (raw.pd.clone(), raw.cq.clone());
        raw.ask("create-qp", &Raw::qp(&pd, &cq), &[])
    }),
    ("registrations", |raw, _, _| {
        let pd = raw.pd.clone();
        raw.ask(
            "alloc-mr",
            &json!({ "pd": pd, "len": 64, "access": 1, "to": null, "qp": null }),
            &[],
        )
    }),
    ("windows", |raw, _, _| {
        let pd = raw.pd.clone();
        raw.ask("alloc-window", &json!({ "pd": pd, "qp": null }), &[])
    }),
    ("regions", |raw, _, _| {
        let file = Region::shared(4096).map_err(|e| e.to_string())?;
        raw.ask("add-region", &json!({ "len": 4096 }), &[file.fd().unwrap()])
    }),
    ("listeners", |raw, target, n| {
        let addr = SocketAddr::new(target.own.ip(), target.own.port().saturating_add(n));
        raw.ask("listen", &json!({ "addr": addr, "params": ListenParams::default() }), &[])
    }),
];

/// Asks for objects until the server refuses one, and returns their number. A server that never
/// refuses breaks a promise.
fn most(target: &Target, (name, next): &Kind) -> Result<u16, String> {
    let mut raw = Raw::open(target)?;
    raw.parents()?;
    (0..u16::MAX)
        .find(|n| next(&mut raw, target, *n).is_err())
        .ok_or_else(|| format!("{name} have no bound"))
}

/// Takes as many objects of a kind as it can get, and gives them back by closing the device.
fn take_all(target: &Target, course: &mut Course) -> Result<(), String> {
    while course.goes_on() {
        let kind = &KINDS[course.below(KINDS.len())];
        most(target, kind)?;
    }
    Ok(())
}

/// Measures how many objects of each kind a tenant without any can get. The server releases the
/// objects of a device only some time after its end, so the maximum of several attempts counts.
pub fn measure(target: &Target) -> Result<Value, String> {
    const ATTEMPTS: usize = 4;
    let of = |kind: &Kind| {
        let mut found = 0;
        for _ in 0..ATTEMPTS {
            found = found.max(most(target, kind)?);
            thread::sleep(Duration::from_millis(250));
        }
        Ok((kind.0.to_owned(), found.into()))
    };
    KINDS.iter().map(of).collect::<Result<_, String>>().map(Value::Object)
}

/// Asks for connections to an address without a host, each with a timeout of years.
fn dial_nobody(target: &Target, course: &mut Course) -> Result<(), String> {
    let mut raw = Raw::open(target)?;
    raw.parents()?;
    while course.goes_on() {
        let qp = Raw::qp(&raw.pd, &raw.cq);
        let dialed = match raw.ask("create-qp", &qp, &[]) {
            Ok(made) => raw.dial(target.nobody, &made["qp"]),
            Err(e) => Err(e),
        };
        if dialed.is_err() {
            // The quota is used up; closing the device gives all of it back.
            raw = Raw::open(target)?;
            raw.parents()?;
        }
    }
    Ok(())
}

/// Asks to listen on addresses of services.
fn squat(target: &Target, course: &mut Course) -> Result<(), String> {
    let mut raw = Raw::open(target)?;
    while course.goes_on() && !target.forbidden.is_empty() {
        let addr = target.forbidden[course.below(target.forbidden.len())];
        let args = json!({ "addr": addr, "params": ListenParams::default() });
        if raw.ask("listen", &args, &[]).is_ok() {
            return Err(format!("it may listen at {addr}"));
        }
    }
    Ok(())
}
