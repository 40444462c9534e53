//! A hostile tenant: an application with its own user that obeys no rule of the control socket or
//! of shared memory. `tests/appliance` measures the cost of its attacks to an honest application,
//! and the program `tenant` (`program.rs`) runs them for `scripts/soak`.

use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use heddle::connection::{MpaOptions, Protocol};
use heddle::hub::Bells;
use heddle::memory::Region;
use heddle_socket::wire::send;
use serde_json::{Value, json};

pub mod attacks;
mod descriptors;

pub use descriptors::{hiding, lingering};

/// The longest time for an answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of each of the two files of a device.
const AREA: usize = 1 << 20;

/// The owner's name that the appliance shows for a device.
pub const NAME: &str = "hostile";

/// The appliance under attack.
pub struct Target {
    /// Its control socket.
    pub socket: PathBuf,
    /// The user to connect as; this process's own user if absent.
    pub user: Option<u32>,
    /// A service of a peer, to which the tenant may connect.
    pub service: SocketAddr,
    /// An address on the link that no host has.
    pub nobody: SocketAddr,
    /// The first address at which the tenant may listen; further ones count up from its port.
    pub own: SocketAddr,
    /// Addresses at which the tenant may not listen.
    pub forbidden: Vec<SocketAddr>,
}

impl Target {
    /// Connects to the control socket.
    pub fn connect(&self) -> Result<UnixStream, String> {
        let connect = || UnixStream::connect(&self.socket).map_err(|e| e.to_string());
        match self.user {
            Some(uid) => as_user(uid, connect),
            None => connect(),
        }
    }
}

/// Calls `f` as a process of this user would: on a new thread with that user's credentials.
pub fn as_user<T: Send>(uid: u32, f: impl FnOnce() -> T + Send) -> T {
    let run = || {
        // Call the kernel directly, because the C library would change all threads of the process.
        // SAFETY: the call changes only the user of this thread, which ends after `f`.
        let set = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        assert_eq!(set, 0, "needs root");
        f()
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// A client with a device and without a library.
pub struct Raw {
    pub socket: UnixStream,
    pub files: [OwnedFd; 2],
    /// The device's two files. The server seals both, so the tenant maps them before it sends them.
    pub mapped: [Mapped; 2],
    /// The server's answer to the request for the device.
    opened: Value,
    /// The names of the client's protection domain and completion queue, once it has them.
    pub pd: Value,
    pub cq: Value,
    next: u64,
    text: Vec<u8>,
}

impl Raw {
    /// Opens a device. The server frees the places of earlier devices one after the other, so this
    /// tries again while the server refuses.
    pub fn open(target: &Target) -> Result<Raw, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            match Raw::try_open(target) {
                Ok(raw) => return Ok(raw),
                Err(e) if Instant::now() > until => return Err(format!("no device: {e}")),
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn try_open(target: &Target) -> Result<Raw, String> {
        let file = |_| Region::shared(AREA).unwrap().fd().unwrap().try_clone_to_owned().unwrap();
        let files: [OwnedFd; 2] = [0, 1].map(file);
        let socket = target.connect()?;
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mapped = files.each_ref().map(|f| Mapped::new(f.as_fd()));
        let (opened, pd, cq) = (Value::Null, Value::Null, Value::Null);
        let mut raw = Raw { socket, files, mapped, opened, pd, cq, next: 0, text: Vec::new() };
        let fds = raw.files.each_ref().map(|f| f.try_clone().unwrap());
        let args = json!({ "memory": AREA, "queues": AREA, "name": NAME });
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        raw.opened = raw.ask("device-open", &args, &fds)?;
        Ok(raw)
    }

    /// Sends a request. The server may have ended the client, so this ignores errors.
    pub fn send(&mut self, op: &str, args: &Value, fds: &[BorrowedFd<'_>]) -> u64 {
        self.next += 1;
        let line = json!({ "v": 1, "id": self.next, "op": op, "args": args }).to_string() + "\n";
        let _ = send(&self.socket, line.as_bytes(), fds);
        self.next
    }

    /// Sends a request and returns its answer, skipping the events before it.
    pub fn ask(&mut self, op: &str, args: &Value, fds: &[BorrowedFd<'_>]) -> Result<Value, String> {
        let id = self.send(op, args, fds);
        loop {
            let line = self.line()?;
            if line["id"] == id {
                let error = line["error"]["text"].as_str().map(str::to_owned);
                return error.map_or_else(|| Ok(line["ok"].clone()), Err);
            }
        }
    }

    /// Returns the next document from the server.
    pub fn line(&mut self) -> Result<Value, String> {
        loop {
            if let Some(end) = self.text.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|e| e.to_string());
            }
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err("the server has closed the connection".to_owned()),
                Ok(n) => self.text.extend(&bytes[..n]),
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    /// Makes a protection domain and a completion queue, which most objects need.
    pub fn parents(&mut self) -> Result<(), String> {
        self.pd = self.ask("create-pd", &Value::Null, &[])?["pd"].clone();
        self.cq =
            self.ask("create-cq", &json!({ "depth": 64, "waker": null }), &[])?["off"].clone();
        Ok(())
    }

    /// Returns the arguments of a request for a queue pair.
    pub fn qp(pd: &Value, cq: &Value) -> Value {
        json!({ "pd": pd, "send_cq": cq, "recv_cq": cq, "srq": null, "sq_depth": 16, "rq_depth": 16,
            "max_send_sge": 1, "max_recv_sge": 1, "max_inline": 0 })
    }

    /// Asks for a connection with an unlimited timeout.
    pub fn dial(&mut self, remote: SocketAddr, qp: &Value) -> Result<Value, String> {
        let protocol = Protocol::Mpa(MpaOptions::new());
        let timeout = json!({ "secs": 1_u64 << 40, "nanos": 0 });
        let connect = json!({ "remote": remote, "local": null, "qp": qp, "protocol": protocol, "ird": 4,
            "ord": 4, "private_data": [], "timeout": timeout });
        self.ask("connect", &connect, &[])
    }

    /// Makes a queue pair and connects it to the target's peer.
    pub fn connect(&mut self, target: &Target) -> Result<(), String> {
        self.parents()?;
        let qp = self.ask("create-qp", &Raw::qp(&self.pd, &self.cq), &[])?["qp"].clone();
        self.dial(target.service, &qp)?;
        let told = self.line()?;
        if told["event"]["Established"].is_object() { Ok(()) } else { Err(told.to_string()) }
    }

    /// Returns the words of the doorbells of all workers.
    pub fn bells(&self) -> &[AtomicU64] {
        let number = |v: &Value| usize::try_from(v.as_u64().unwrap_or(0)).unwrap();
        let first = number(&self.opened["bells"]) / 8;
        let words = Bells::bytes(number(&self.opened["workers"])) / 8;
        &self.mapped[0].words()[first..first + words]
    }

    /// Sends the tenant's own end of the control socket through the socket itself, openly or in the
    /// queue of another socket: the server then holds that end itself, and the stream never ends.
    pub fn leave_own_end_behind(&self, hidden: bool) {
        leave_own_end_behind(&self.socket, hidden);
    }
}

/// Does the same as [`Raw::leave_own_end_behind`], for a client whose `socket` has a device.
pub fn leave_own_end_behind(socket: &UnixStream, hidden: bool) {
    let end = socket.try_clone().unwrap().into();
    let end = if hidden { hiding(end) } else { end };
    // Send half a line, so that the server keeps the descriptor that came with it.
    let _ = send(socket, b"{\"v\":1,", &[end.as_fd()]);
}

/// A mapped file of a device.
pub struct Mapped(NonNull<AtomicU64>);

impl Mapped {
    fn new(fd: BorrowedFd<'_>) -> Mapped {
        let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: the call makes a new mapping of a file of that length, and no reference to it
        // exists here.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), AREA, read_write, shared, fd.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Mapped(NonNull::new(at.cast()).unwrap())
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: AREA bytes stay mapped until the value is dropped, and all accesses are of atomic
        // words.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), AREA / 8) }
    }

    /// Gives the pages back to the system, and returns the system's answer.
    pub fn remove(&self) -> std::io::Result<()> {
        // SAFETY: the pages then read as zeros, which are valid atomic words.
        let result = unsafe { libc::madvise(self.0.as_ptr().cast(), AREA, libc::MADV_REMOVE) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping has this length, and no reference to it is left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), AREA) };
    }
}
