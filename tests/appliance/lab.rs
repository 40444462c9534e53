//! An appliance, and those who ask it.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::net::{Lab, PEER_IFACE, SERVER, SERVER_IFACE};

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The address of our own peers.
pub const PEER: &str = "10.77.0.9";

/// A running appliance, its file and its socket. It ends when dropped.
pub struct Appliance {
    pub lab: Lab,
    dir: tempfile::TempDir,
    child: Child,
    log: Option<thread::JoinHandle<String>>,
}

/// A file: one port, and `more`.
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
    // Another program than the one just built, to see what it does.
    let built = || env!("CARGO_BIN_EXE_heddle").into();
    Command::new(std::env::var_os("HEDDLE").unwrap_or_else(built))
}

impl Appliance {
    /// With `more` in its file; what is behind the port and the socket there.
    pub fn start(more: &str) -> Appliance {
        Appliance::start_in(Lab::new(1500), more)
    }

    /// The same on wires that are there.
    pub fn start_in(lab: Lab, more: &str) -> Appliance {
        Appliance::start_as(lab, more, |_| {})
    }

    /// The same with a command that `change` has changed.
    pub fn start_as(lab: Lab, more: &str, change: impl FnOnce(&mut Command)) -> Appliance {
        let dir = tempfile::tempdir().unwrap();
        // Others are to reach the socket in it.
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

    /// Another file in place of the one it was started with.
    pub fn write(&self, more: &str) {
        let text = file(self.dir.path(), more);
        std::fs::write(self.dir.path().join("heddle.toml"), text).unwrap();
    }

    /// The same, as it is.
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

    /// What it answers, which has to be an answer.
    pub fn ask(&self, args: &[&str]) -> Value {
        self.try_ask(args).unwrap_or_else(|e| panic!("{args:?}: {e}"))
    }

    /// Why it refuses, with the program's exit status.
    pub fn refusal(&self, args: &[&str]) -> (i32, String) {
        let out = self.command(args);
        assert!(!out.status.success(), "{args:?} was done");
        (out.status.code().unwrap(), String::from_utf8_lossy(&out.stderr).into_owned())
    }

    /// Connections of this service, once there are `n`.
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

    /// There is one of this service, past its start-up.
    pub fn conns_of(&self, service: &str) {
        let until = Instant::now() + PATIENCE;
        let up = |c: &Value| c["service"] == service && !c["agreed"].is_null();
        while !self.ask(&["conns"])["conns"].as_array().unwrap().iter().any(up) {
            assert!(Instant::now() < until, "no connection of {service}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// A client of `rping` on the peers' side that goes on for ever.
    pub fn rping(&self, port: u16) -> Running {
        let mut c = heddle();
        let vdev = format!("net_af_packet0,iface={PEER_IFACE}");
        let ip = format!("{PEER}/16");
        c.args(["rping", "-c", "-V", "-S", "1000", "-a", &SERVER.to_string()]);
        c.args(["-p", &port.to_string(), "--vdev", &vdev, "--ip", &ip]);
        c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Running(self.lab.peers.run(|| c.spawn()).unwrap())
    }

    /// An RNIC on the peers' side in a process of its own, to be asked for devices at `socket`.
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

    /// A peer that connects and says nothing more.
    pub fn idle_peer(&self, port: u16) -> Running {
        let mut c = heddle();
        let vdev = format!("net_af_packet0,iface={PEER_IFACE}");
        let ip = format!("{PEER}/16");
        c.args(["cm", "--connect", &format!("{SERVER}:{port}"), "--vdev", &vdev, "--ip", &ip]);
        c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Running(self.lab.peers.run(|| c.spawn()).unwrap())
    }

    /// Octets that have come over the only connection of `rping`.
    pub fn received(&self) -> u64 {
        self.conns("rping", 1)[0]["tcp"]["received"].as_u64().expect("the worker has it")
    }

    /// That connection moves on.
    pub fn assert_moves(&self) {
        let before = self.received();
        let until = Instant::now() + PATIENCE;
        while self.received() <= before {
            assert!(Instant::now() < until, "nothing moves");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: it is our child and was not waited for, so the number is still its own.
        let sent = unsafe { libc::kill(self.pid(), signal) };
        assert_eq!(sent, 0);
    }

    pub fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    /// How it ends, if it does within `within`.
    pub fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        wait(&mut self.child, within)
    }

    /// What it has logged, once it has ended.
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

/// A program that runs; it is killed when dropped.
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
