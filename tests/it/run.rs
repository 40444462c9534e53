//! `heddle run` and the private RNIC that it starts: which program gets which RNIC, how long the
//! RNIC stays, and what is left when a process is killed.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use heddle_socket::Client;
use heddle_socket::admin::{Request, Status};

const HEDDLE: &str = env!("CARGO_BIN_EXE_heddle");

/// The longest time that any step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(t) = found() {
            return t;
        }
        assert!(Instant::now() < end, "{what}: not in time");
        sleep(Duration::from_millis(10));
    }
}

/// A user's run-time directory, and a library for the command to find.
struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lib")).unwrap();
        std::fs::write(dir.path().join("lib/libibverbs.so.1"), "").unwrap();
        Home { dir }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("heddle/private.sock")
    }

    fn heddle<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut c = Command::new(HEDDLE);
        c.args(args).env("XDG_RUNTIME_DIR", self.dir.path());
        c.env("HEDDLE_LIBDIR", self.dir.path().join("lib")).env_remove("LD_LIBRARY_PATH");
        c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        c
    }

    /// Prepares `heddle run` of a shell script, in which `$HEDDLE` is this program.
    fn run(&self, script: &str) -> Command {
        let mut c = self.heddle(&["run", "--", "sh", "-c", script]);
        c.env("HEDDLE", HEDDLE);
        c
    }

    /// Starts a private RNIC that stays for the time `grace` without a client.
    fn serve(&self, grace: &str) -> Child {
        let mut child = self.heddle(&["serve", "--private", "--grace", grace]).spawn().unwrap();
        until("the RNIC's socket", || {
            assert!(child.try_wait().unwrap().is_none(), "it has ended");
            self.status().map(drop)
        });
        child
    }

    fn status(&self) -> Option<Status> {
        Client::connect(self.socket()).ok()?.call(&Request::Status).ok()
    }

    /// Returns the process id of the RNIC.
    fn pid(&self) -> u32 {
        self.status().expect("an RNIC answers").pid
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // The RNIC would end by itself only in ten seconds.
        if let Some(status) = self.status() {
            kill(status.pid, libc::SIGTERM);
        }
    }
}

fn kill(pid: u32, signal: i32) {
    let status = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status();
    assert!(status.unwrap().success(), "kill {pid}");
}

fn is_there(pid: u32) -> bool {
    // A zombie counts as gone, because the process that adopts it may be slow to reap it.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

fn text(out: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&out.stdout), text(&out.stderr))
}

#[test]
fn test_process_becomes_the_program_with_its_arguments_and_exit_status() {
    let home = Home::new();
    let out = home.run("echo \"$0 $HEDDLE_SOCKET $LD_LIBRARY_PATH\"; exit 7").output().unwrap();
    let (stdout, stderr) = text(&out);
    assert_eq!(out.status.code(), Some(7), "{stderr}");
    let lib = home.dir.path().join("lib");
    let expected = format!("sh {} {}\n", home.socket().display(), lib.display());
    assert_eq!((stdout.as_str(), stderr.as_str()), (expected.as_str(), ""));
    // The process is the program's own, so a signal ends the program.
    let out = home.run("kill -TERM $$").output().unwrap();
    assert_eq!(out.status.signal(), Some(libc::SIGTERM));
    let mut c = home.run("echo $PPID");
    let child = c.spawn().unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(text(&out).0.trim(), std::process::id().to_string());
    // The program has no children except those that it makes.
    let out = home.run("ps -o pid= --ppid $$ | wc -l").output().unwrap();
    assert_eq!(text(&out).0.trim(), "2", "ps and wc");
}

#[test]
fn test_programs_that_start_at_once_share_one_rnic() {
    for _ in 0..3 {
        let home = Home::new();
        let script = "\"$HEDDLE\" status --json --socket \"$HEDDLE_SOCKET\"";
        let all: Vec<_> = (0..6).map(|_| home.run(script).spawn().unwrap()).collect();
        let mut pids = Vec::new();
        for child in all {
            let out = child.wait_with_output().unwrap();
            let (stdout, stderr) = text(&out);
            assert!(out.status.success(), "{stderr}");
            let status: serde_json::Value = serde_json::from_str(&stdout).unwrap();
            pids.push(status["pid"].as_u64().unwrap());
        }
        pids.dedup();
        assert_eq!(pids, [u64::from(home.pid())], "one RNIC for all");
    }
}

#[test]
fn test_programs_of_two_processes_move_data_over_the_private_rnic() {
    let home = Home::new();
    let rping = |args: &str| {
        home.run(&format!("exec \"$HEDDLE\" rping {args} -C 100 -V --socket \"$HEDDLE_SOCKET\""))
    };
    let server = rping("-s -a 127.0.0.1 -p 7500").spawn().unwrap();
    until("the server", || {
        let status = home.status()?;
        status.clients.iter().any(|c| c.listeners > 0).then_some(())
    });
    let out = rping("-c -a 127.0.0.1 -p 7500").output().unwrap();
    let (stdout, stderr) = text(&out);
    assert!(out.status.success() && stdout.contains("100 messages"), "{stdout} {stderr}");
    let out = server.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", text(&out).1);
}

#[test]
fn test_rnic_stays_for_a_silent_program_and_ends_after_the_last_one() {
    let home = Home::new();
    let mut rnic = home.serve("300ms");
    let mut program = home.heddle(&["run", "--", "sleep", "1000"]).spawn().unwrap();
    until("the program is a client", || (clients(&home)? >= 2).then_some(()));
    // Wait far longer than the RNIC's grace.
    sleep(Duration::from_secs(1));
    assert!(rnic.try_wait().unwrap().is_none());
    // The RNIC ends however the program ends.
    program.kill().unwrap();
    program.wait().unwrap();
    let status = until("its end", || rnic.try_wait().unwrap());
    assert!(status.success(), "{status}");
    assert!(!home.socket().exists());
    // No client came at all.
    let mut rnic = home.heddle(&["serve", "--private", "--grace", "100ms"]).spawn().unwrap();
    assert!(until("its end", || rnic.try_wait().unwrap()).success());
}

/// Returns the number of clients of the control socket, including this test.
fn clients(home: &Home) -> Option<usize> {
    home.status().map(|s| s.control.clients)
}

#[test]
fn test_rnic_that_is_killed_is_replaced_and_its_programs_go_on_to_their_end() {
    let home = Home::new();
    let mut program = home.heddle(&["run", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let first = until("the RNIC", || home.status()).pid;
    kill(first, libc::SIGKILL);
    until("its end", || (!is_there(first)).then_some(()));
    assert!(home.socket().exists(), "it leaves its socket behind");
    let out = home.run("exit 0").output().unwrap();
    assert!(out.status.success(), "{}", text(&out).1);
    assert_ne!(home.pid(), first);
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

/// The test kills the command before it has joined, while it waits, and after it has become the
/// program.
#[test]
fn test_run_killed_at_any_moment_does_not_block_later_runs() {
    let home = Home::new();
    for n in 0..12 {
        let mut child = home.heddle(&["run", "--", "sleep", "1000"]).spawn().unwrap();
        sleep(Duration::from_millis(n * n * 3));
        child.kill().unwrap();
        child.wait().unwrap();
        if n % 3 == 2
            && let Some(status) = home.status()
        {
            kill(status.pid, libc::SIGKILL);
        }
    }
    let out = home.run("exit 3").output().unwrap();
    assert_eq!(out.status.code(), Some(3), "{}", text(&out).1);
}

#[test]
fn test_second_private_rnic_at_a_place_is_refused() {
    let home = Home::new();
    let mut rnic = home.serve("60s");
    let out = home.heddle(&["serve", "--private"]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out).1.contains("there is a private RNIC already"), "{}", text(&out).1);
    // A second private RNIC can run elsewhere beside the first.
    let other = home.dir.path().join("other.sock");
    let mut second = home.heddle(&["serve", "--private", "--socket"]).arg(&other).spawn().unwrap();
    until("the other", || Client::connect(&other).ok());
    kill(second.id(), libc::SIGTERM);
    assert!(second.wait().unwrap().success());
    kill(rnic.id(), libc::SIGTERM);
    assert!(rnic.wait().unwrap().success());
}

fn refusal(home: &Home, args: &[&str]) -> (Option<i32>, String) {
    let out = home.heddle(args).output().unwrap();
    let (stdout, stderr) = text(&out);
    assert_eq!(stdout, "", "{args:?}");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    (out.status.code(), stderr)
}

#[test]
fn test_run_refuses_invalid_use_with_reason_before_starting_an_rnic() {
    let home = Home::new();
    let (code, why) = refusal(&home, &["run", "--", "no-such-program"]);
    assert!(code == Some(1) && why.contains("no program no-such-program"), "{why}");
    let (code, _) = refusal(&home, &["run"]);
    assert_eq!(code, Some(2));
    let (code, why) = refusal(&home, &["run", "--socket", "/nowhere/sock", "--", "true"]);
    assert!(code == Some(1) && why.contains("/nowhere/sock"), "{why}");
    let (code, _) = refusal(&home, &["run", "--socket", "/x", "--private", "--", "true"]);
    assert_eq!(code, Some(2));
    let (code, _) = refusal(&home, &["serve", "--private", "--listen", "127.0.0.1:1=rping"]);
    assert_eq!(code, Some(2));
    std::fs::remove_file(home.dir.path().join("lib/libibverbs.so.1")).unwrap();
    let (code, why) = refusal(&home, &["run", "--", "true"]);
    assert!(code == Some(1) && why.contains("HEDDLE_LIBDIR"), "{why}");
    assert!(!home.socket().exists());
}

#[test]
fn test_run_refuses_directory_that_others_can_write() {
    let home = Home::new();
    let dir = home.dir.path().join("heddle");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
    let (code, why) = refusal(&home, &["run", "--", "true"]);
    assert!(code == Some(1) && why.contains("mode 0700"), "{why}");
}

#[test]
fn test_check_reports_whether_each_requirement_is_met() {
    let home = Home::new();
    let out = home.heddle(&["run", "--check", "--", "sh"]).output().unwrap();
    let (stdout, stderr) = text(&out);
    assert!(out.status.success(), "{stdout} {stderr}");
    for what in [
        "libibverbs",
        "librdmacm",
        "RNIC",
        "userfaultfd",
        "mprotect",
        "memfd",
        "memlock",
        "program",
    ] {
        let said = stdout.lines().filter(|l| l.split_whitespace().nth(1) == Some(what)).count();
        assert_eq!(said, 1, "{what}: {stdout}");
    }
    assert!(!home.socket().exists(), "nothing is started");
    std::fs::remove_file(home.dir.path().join("lib/libibverbs.so.1")).unwrap();
    let out = home.heddle(&["run", "--check", "--", "no-such-program"]).output().unwrap();
    let (stdout, stderr) = text(&out);
    assert_eq!(out.status.code(), Some(1));
    assert!(stdout.contains("NO   libibverbs"), "{stdout}");
    assert!(stderr.contains("libibverbs, program"), "{stderr}");
}

/// An appliance's RNIC is not private, and stays as it is.
#[test]
fn test_run_with_a_socket_uses_the_rnic_there() {
    let home = Home::new();
    let socket = home.dir.path().join("appliance.sock");
    let mut c = home.heddle(&["serve", "--vdev", "net_null0", "--ip", "10.0.0.1/24"]);
    c.args(["--listen", "10.0.0.1:7174=rping", "--idle", "backoff", "--socket"]).arg(&socket);
    let mut appliance = c.spawn().unwrap();
    until("the appliance", || Client::connect(&socket).ok());
    let shown = |path: &Path| path.display().to_string();
    let script = "\"$HEDDLE\" rping -c -a 10.0.0.1 -C 10 -V --socket \"$HEDDLE_SOCKET\"";
    let mut c = home.heddle(&["run", "--socket", &shown(&socket), "--", "sh", "-c", script]);
    let out = c.env("HEDDLE", HEDDLE).output().unwrap();
    let (stdout, stderr) = text(&out);
    // The program connects to a service of the appliance, at its own address, through its inner
    // port.
    assert!(out.status.success() && stdout.contains("10 messages"), "{stdout} {stderr}");
    assert!(!home.socket().exists(), "no private one is started");
    kill(appliance.id(), libc::SIGTERM);
    assert!(appliance.wait().unwrap().success());
}
