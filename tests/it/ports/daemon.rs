//! Runs `heddle serve --config` as a process, and its clients.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The longest time that any step may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `found` returns something.
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(t) = found() {
            return t;
        }
        assert!(Instant::now() < end, "{what}: not in time");
        thread::sleep(Duration::from_millis(20));
    }
}

fn heddle() -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_heddle"));
    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

/// Writes the file of an appliance, with a socket of its own.
fn write(config: &Path, text: &str, socket: &Path) {
    let text = format!("{text}[control]\nsocket = \"{}\"\n", socket.display());
    std::fs::write(config, text).unwrap();
}

/// An appliance. Dropping the value kills it, and shows its log if the test is panicking.
pub struct Daemon {
    running: Running,
    config: PathBuf,
    socket: PathBuf,
}

impl Daemon {
    /// Starts appliance `n` in a folder with this configuration, and waits until it answers.
    pub fn start(n: u8, text: &str, dir: &Path) -> Daemon {
        let (config, socket) = (dir.join(format!("{n}.toml")), dir.join(format!("{n}.sock")));
        write(&config, text, &socket);
        let mut c = heddle();
        c.args(["serve", "--config"]).arg(&config);
        let mut d = Daemon { running: Running::of(c), config, socket };
        until("an answer", || {
            d.running.assert_runs();
            UnixStream::connect(&d.socket).ok()?;
            d.client(&["status"]).output().unwrap().status.success().then_some(())
        });
        d
    }

    /// Writes another configuration for the next reload.
    pub fn write(&self, text: &str) {
        write(&self.config, text, &self.socket);
    }

    /// Prepares a command for its control socket.
    pub fn client(&self, args: &[&str]) -> Command {
        let mut c = heddle();
        c.args(args).arg("--socket").arg(&self.socket);
        c
    }

    /// Returns its answer as people see it.
    pub fn text(&self, args: &[&str]) -> String {
        let out = self.client(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?}: {stderr}");
        String::from_utf8(out.stdout).unwrap()
    }

    /// Returns its answer as programs see it.
    pub fn ask(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[args, &["--json"]].concat())).expect("one document")
    }

    /// Returns the list with that name.
    pub fn list(&self, what: &str) -> Vec<Value> {
        let Value::Array(list) = self.ask(&[what])[what].take() else { panic!("no list {what}") };
        list
    }

    /// Asks the appliance to end.
    pub fn terminate(&self) {
        let pid = self.running.child.id();
        let sent = Command::new("kill").args(["-TERM", &pid.to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end, and returns its exit status and its log.
    pub fn wait(&mut self) -> (ExitStatus, String) {
        let status = self.running.wait();
        (status, self.running.log())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let log = self.running.log();
        if thread::panicking() {
            eprintln!("{} said:\n{log}", self.config.display());
        }
    }
}

/// A process. Dropping the value kills it.
pub struct Running {
    child: Child,
    log: Option<thread::JoinHandle<String>>,
}

impl Running {
    /// Starts the process. A thread reads its output, so that the process never waits to write.
    pub fn of(mut command: Command) -> Running {
        let mut child = command.spawn().unwrap();
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        let log = thread::spawn(move || {
            let mut text = String::new();
            let _ = err.read_to_string(&mut text);
            text
        });
        Running { child, log: Some(log) }
    }

    pub fn assert_runs(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("it has ended: {status}: {}", self.log());
        }
    }

    pub fn wait(&mut self) -> ExitStatus {
        until("its end", || self.child.try_wait().unwrap())
    }

    /// Waits for the process to end, and returns its output.
    pub fn log(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.log.take().map(|l| l.join().unwrap()).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.log();
    }
}
