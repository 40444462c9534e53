//! systemd's watchdog: the appliance reports to it while all its threads answer.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use crate::lab::{Appliance, PATIENCE};
use crate::net::Lab;

/// A thread of another process, stopped for as long as this value lives.
pub(crate) struct StoppedThread(libc::pid_t);

impl StoppedThread {
    pub(crate) fn new(thread: libc::pid_t) -> StoppedThread {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the calls make the kernel stop a thread of our child, and wait until it has.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, thread, none, none), 0);
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none), 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(thread, &raw mut status, libc::__WALL), thread);
        }
        StoppedThread(thread)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the call lets the thread run again; if the call fails, the thread has ended.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, none, none) };
    }
}

/// Returns the thread of a process whose name begins with `name`.
pub(crate) fn thread_of(process: i32, name: &str) -> libc::pid_t {
    let tasks =
        fs::read_dir(format!("/proc/{process}/task")).unwrap().map(|task| task.unwrap().path());
    let found = tasks.filter(|task| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with(name))
    });
    let numbers: Vec<_> =
        found.map(|task| task.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect();
    assert_eq!(numbers.len(), 1, "threads named {name}");
    numbers[0]
}

/// Waits for a message to the watchdog. Returns false if none arrives in time.
fn hears(socket: &UnixDatagram, within: Duration) -> bool {
    let until = Instant::now() + within;
    let mut word = [0; 256];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
        match socket.recv(&mut word) {
            Ok(n) if word[..n].starts_with(b"WATCHDOG=1") => return true,
            _ if Instant::now() >= until => return false,
            _ => {}
        }
    }
}

#[test]
fn test_watchdog_is_notified_only_while_worker_and_control_plane_answer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    let watched = |c: &mut std::process::Command| {
        c.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "900000").env_remove("WATCHDOG_PID");
    };
    let a = Appliance::start_as(Lab::new(1500), "", watched);
    assert!(hears(&systemd, PATIENCE), "it is well");
    for name in ["heddle-w", "heddle-ctl"] {
        let stopped = StoppedThread::new(thread_of(a.pid(), name));
        // Answers from before the stop may still lead to messages.
        while hears(&systemd, Duration::from_secs(2)) {}
        // Wait longer than an answer may take.
        assert!(!hears(&systemd, Duration::from_secs(8)), "{name} does not answer");
        drop(stopped);
        assert!(hears(&systemd, PATIENCE), "{name} answers again");
    }
}
