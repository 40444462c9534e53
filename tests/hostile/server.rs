//! `heddle serve`, as people start it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, SocketAddrV4};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::net::{Lab, SERVER, SERVER_IFACE};

/// The port of the rping service.
pub const RPING: u16 = 7174;
/// The port of the perf service.
pub const PERF: u16 = 7175;
/// The port of the sink.
pub const SINK: u16 = 7176;

/// A running server. Dropping the value ends it.
pub struct Server {
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// Returns a service's address.
pub fn service(port: u16) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(SERVER, port))
}

impl Server {
    /// Starts all three services, with the program's defaults and `more` on its command line.
    pub fn start(lab: &Lab, more: &[&str]) -> Server {
        // Run on one thread, so that the work which a peer causes delays all the others.
        Server::start_placed(lab, &[&["--inline"], more].concat())
    }

    /// Starts the server like [`start`](Self::start), but with threads of its own unless `more`
    /// says otherwise.
    pub fn start_placed(lab: &Lab, more: &[&str]) -> Server {
        // `HEDDLE` selects another program than the one just built, so that a person can see what
        // the tests do with it.
        let built = || env!("CARGO_BIN_EXE_heddle").into();
        let mut c = Command::new(std::env::var_os("HEDDLE").unwrap_or_else(built));
        // Most people use packet sockets; but their driver takes no jumbo frames.
        let vdev = if lab.mtu <= 1500 {
            format!("net_af_packet0,iface={SERVER_IFACE}")
        } else {
            format!("net_pcap0,rx_iface_in={SERVER_IFACE},tx_iface={SERVER_IFACE}")
        };
        let (ip, mtu) = (format!("{SERVER}/16"), lab.mtu.to_string());
        c.args(["serve", "--vdev", &vdev, "--ip", &ip, "--mtu", &mtu]);
        for (port, name) in [(RPING, "rping"), (PERF, "perf"), (SINK, "sink")] {
            c.args(["--listen", &format!("{SERVER}:{port}={name}")]);
        }
        c.args(more).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = lab.server.run(|| c.spawn()).expect("the binary was built");
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let log = Arc::new(Mutex::new(String::new()));
        let into = log.clone();
        let reader = thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut log = into.lock().unwrap_or_else(PoisonError::into_inner);
                log.push_str(&line);
                log.push('\n');
            }
        });
        let mut said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let server = Server { child, log, reader: Some(reader) };
        let listeners = 3 + more.iter().filter(|word| **word == "--listen").count();
        for _ in 0..listeners {
            let line = said.next().and_then(Result::ok).unwrap_or_default();
            assert!(line.contains(" listening on "), "the server says {line:?}; {}", server.log());
        }
        // Read the counters that the server prints at its end, because it could not end while the
        // pipe is full.
        thread::spawn(move || said.by_ref().map_while(Result::ok).for_each(drop));
        server
    }

    /// Returns the server's output on stderr so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a line on stderr with all of `words`. Returns false if none comes in time.
    pub fn says(&self, words: &[&str], within: Duration) -> bool {
        let start = Instant::now();
        loop {
            if self.log().lines().any(|l| words.iter().all(|w| l.contains(w))) {
                return true;
            }
            if start.elapsed() > within {
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the bytes of the server's resident memory.
    pub fn resident(&self) -> u64 {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("it has memory");
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
        kib << 10
    }

    /// Waits for the end of the server.
    pub fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            let status = self.child.try_wait().expect("it is our child");
            if status.is_some() || start.elapsed() > within {
                return status;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Checks that the server has survived the attack.
    pub fn assert_alive(&mut self) {
        let ended = self.child.try_wait().expect("it is our child");
        assert!(ended.is_none(), "the server has ended: {ended:?}\n{}", self.log());
        let log = self.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: the process is our child and we have not waited for it, so the number still
        // belongs to it.
        unsafe {
            libc::kill(libc::pid_t::try_from(self.child.id()).unwrap_or(i32::MAX), libc::SIGTERM)
        };
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > Duration::from_secs(5) {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        if thread::panicking() {
            eprintln!("the server said:\n{}", self.log());
        }
    }
}
