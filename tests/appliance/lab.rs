//! An appliance, and the clients and peers that use it.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::net::{Lab, PEER_IFACE, SERVER, SERVER_IFACE};

/// The longest time that any step may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The address of our own peers.
pub const PEER: &str = "10.77.0.9";

/// A running appliance, its file and its socket. Dropping the value ends the process.
pub struct Appliance {
    pub lab: Lab,
    dir: tempfile::TempDir,
    child: Child,
    log: Option<thread::JoinHandle<String>>,
}

/// Returns the text of a file with one port, followed by `more`.
pub fn file(dir: &std::path::Path, more: &str) -> String {
    let socket = dir.join("sock");
    format!(
        "{more}\n[[port]]\nvdev = \"net_af_packet0,iface={SERVER_IFACE}\"\n\
         addresses = [\"{SERVER}/16\"]\n[control]\nsocket = \"{}\"\nmode = \"0666\"\n",
        socket.display()
    )
}

pub fn listen(port: u16, service: &str) -> String {
    format!("[[listen]]\naddress = \"{SERVER}:{port}\"\nservice = \"{service}\"\n")
}

pub fn heddle() -> Command {
    // `HEDDLE` selects another program than the one just built, so that a person can see what the
    // tests do with it.
    let built = || env!("CARGO_BIN_EXE_heddle").into();
    Command::new(std::env::var_os("HEDDLE").unwrap_or_else(built))
}

impl Appliance {
    /// Starts an appliance with `more` in its file, on new wires.
    pub fn start(more: &str) -> Appliance {
        Appliance::start_in(Lab::new(1500), more)
    }

    /// Starts an appliance with `more` in its file, on the wires of `lab`.
    pub fn start_in(lab: Lab, more: &str) -> Appliance {
        Appliance::start_as(lab, more, |_| {})
    }

    /// Starts an appliance like [`start_in`](Self::start_in), by a command that `change` has
    /// changed.
    pub fn start_as(lab: Lab, more: &str, change: impl FnOnce(&mut Command)) -> Appliance {
        let dir = tempfile::tempdir().unwrap();
        // Other users must be able to reach the socket in the directory.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).unwrap();
        std::fs::write(dir.path().join("heddle.toml"), file(dir.path(), more)).unwrap();
        let mut c = heddle();
        c.args(["serve", "--config"]).arg(dir.path().join("heddle.toml"));
        c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        change(&mut c);
        let mut child = lab.server.run(|| c.spawn()).unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let log = thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        let stdout = child.stdout.take().unwrap();
        thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).for_each(drop));
        let mut a = Appliance { lab, dir, child, log: Some(log) };
        let until = Instant::now() + PATIENCE;
        while UnixStream::connect(a.socket()).is_err() || a.try_ask(&["status"]).is_err() {
            assert!(a.child.try_wait().unwrap().is_none(), "it has ended: {}", a.log());
            assert!(Instant::now() < until, "it does not come up");
            thread::sleep(Duration::from_millis(20));
        }
        a
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    /// Replaces the file's part after the port by `more`.
    pub fn write(&self, more: &str) {
        let text = file(self.dir.path(), more);
        std::fs::write(self.dir.path().join("heddle.toml"), text).unwrap();
    }

    /// Replaces the whole file by `text`.
    pub fn write_as_it_is(&self, text: &str) {
        std::fs::write(self.dir.path().join("heddle.toml"), text).unwrap();
    }

    pub fn command(&self, args: &[&str]) -> Output {
        let mut c = heddle();
        c.args(args).arg("--socket").arg(self.socket());
        c.output().unwrap()
    }

    fn try_ask(&self, args: &[&str]) -> Result<Value, String> {
        let out = self.command(&[args, &["--json"]].concat());
        if !out.status.success() {
            return Err(String::from_utf8_lossy(&out.stderr).into_owned());
        }
        Ok(serde_json::from_slice(&out.stdout).expect("one JSON document"))
    }

    /// Runs a command that must succeed, and returns its answer.
    pub fn ask(&self, args: &[&str]) -> Value {
        self.try_ask(args).unwrap_or_else(|e| panic!("{args:?}: {e}"))
    }

    /// Runs a command that must fail. Returns the program's exit status and its message.
    pub fn refusal(&self, args: &[&str]) -> (i32, String) {
        let out = self.command(args);
        assert!(!out.status.success(), "{args:?} was done");
        (out.status.code().unwrap(), String::from_utf8_lossy(&out.stderr).into_owned())
    }

    /// Waits until the service has `n` connections, and returns them.
    pub fn conns(&self, service: &str, n: usize) -> Vec<Value> {
        let until = Instant::now() + PATIENCE;
        loop {
            let all = self.ask(&["conns"]);
            let all = all["conns"].as_array().unwrap().iter();
            let of: Vec<_> = all.filter(|c| c["service"] == service).cloned().collect();
            let up = of.iter().all(|c| c["state"] == "running");
            if of.len() == n && up {
                return of;
            }
            assert!(Instant::now() < until, "{service}: {of:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the service has one connection past its start-up.
    pub fn conns_of(&self, service: &str) {
        let until = Instant::now() + PATIENCE;
        let up = |c: &Value| c["service"] == service && !c["agreed"].is_null();
        while !self.ask(&["conns"])["conns"].as_array().unwrap().iter().any(up) {
            assert!(Instant::now() < until, "no connection of {service}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts a client of `rping` on the peers' side that runs without end.
    pub fn rping(&self, port: u16) -> Running {
        let mut c = heddle();
        let vdev = format!("net_af_packet0,iface={PEER_IFACE}");
        let ip = format!("{PEER}/16");
        c.args(["rping", "-c", "-V", "-S", "1000", "-a", &SERVER.to_string()]);
        c.args(["-p", &port.to_string(), "--vdev", &vdev, "--ip", &ip]);
        c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Running(self.lab.peers.run(|| c.spawn()).unwrap())
    }

    /// Starts an RNIC on the peers' side in a process of its own, which offers devices at `socket`.
    pub fn peer(&self, socket: &Path) -> Running {
        let mut c = heddle();
        let vdev = format!("net_af_packet0,iface={PEER_IFACE}");
        c.args(["serve", "--vdev", &vdev, "--ip", &format!("{PEER}/16"), "--socket"]).arg(socket);
        c.args(["--listen", &format!("{PEER}:7174=sink")]);
        c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut peer = Running(self.lab.peers.run(|| c.spawn()).unwrap());
        let until = Instant::now() + PATIENCE;
        while UnixStream::connect(socket).is_err() {
            peer.assert_runs();
            assert!(Instant::now() < until, "the peers' RNIC does not come up");
            thread::sleep(Duration::from_millis(50));
        }
        peer
    }

    /// Starts a peer that connects and then sends nothing.
    pub fn idle_peer(&self, port: u16) -> Running {
        let mut c = heddle();
        let vdev = format!("net_af_packet0,iface={PEER_IFACE}");
        let ip = format!("{PEER}/16");
        c.args(["cm", "--connect", &format!("{SERVER}:{port}"), "--vdev", &vdev, "--ip", &ip]);
        c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Running(self.lab.peers.run(|| c.spawn()).unwrap())
    }

    /// Returns the bytes received on the only connection of `rping`.
    pub fn received(&self) -> u64 {
        self.conns("rping", 1)[0]["tcp"]["received"].as_u64().expect("the worker has it")
    }

    /// Waits until that connection receives more bytes.
    pub fn assert_moves(&self) {
        let before = self.received();
        let until = Instant::now() + PATIENCE;
        while self.received() <= before {
            assert!(Instant::now() < until, "nothing moves");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the process is our child and we have not waited for it, so the number still
        // belongs to it.
        let sent = unsafe { libc::kill(self.pid(), signal) };
        assert_eq!(sent, 0);
    }

    pub fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    /// Waits up to `within` for the process to end, and returns its exit status.
    pub fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        wait(&mut self.child, within)
    }

    /// Returns the log of an appliance that has ended.
    pub fn log(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.log.take().map(|l| l.join().unwrap()).unwrap_or_default()
    }
}

fn wait(child: &mut Child, within: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + within;
    loop {
        let status = child.try_wait().unwrap();
        if status.is_some() || Instant::now() > until {
            return status;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        let log = self.log();
        if thread::panicking() {
            eprintln!("the appliance said:\n{log}");
        }
    }
}

/// A running program. Dropping the value kills it.
pub struct Running(pub Child);

impl Running {
    pub fn assert_runs(&mut self) {
        if let Some(status) = self.0.try_wait().unwrap() {
            let mut text = String::new();
            let _ = self.0.stderr.take().unwrap().read_to_string(&mut text);
            panic!("it has ended: {status}: {text}");
        }
    }

    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.0, PATIENCE).expect("it ends")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
