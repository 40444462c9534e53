//! Clients that pass descriptors whose last close takes as long as the clients like.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use heddle_socket::wire::send;
use heddle_verbs::Region;
use serde_json::Value;

use crate::hostile_tenant::{as_user, hiding, leave_own_end_behind, lingering};
use crate::lab::{Appliance, PATIENCE, listen};

/// A user that no rule names.
const STRANGER: u32 = 54_321;

/// An appliance whose process is stopped. So its kernel queues hold the only copy of what a client
/// sends, before the appliance looks.
pub struct Stopped<'a>(&'a Appliance);

impl Stopped<'_> {
    pub fn new(a: &Appliance) -> Stopped<'_> {
        a.signal(libc::SIGSTOP);
        let stopped = Stopped(a);
        let stands = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('T')
        };
        while !std::fs::read_dir(format!("/proc/{}/task", a.pid())).unwrap().all(stands) {
            thread::yield_now();
        }
        stopped
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(libc::SIGCONT);
    }
}

/// A line, and descriptors that no other process has.
type Line<'a> = (&'a str, Vec<OwnedFd>);

/// Sends lines that the appliance finds all at once.
fn tell(a: &Appliance, client: &UnixStream, lines: Vec<Line<'_>>) {
    let _stopped = Stopped::new(a);
    for (line, fds) in lines {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        send(client, format!("{line}\n").as_bytes(), &borrowed).unwrap();
    }
}

fn connect_as(uid: u32, a: &Appliance) -> UnixStream {
    as_user(uid, || UnixStream::connect(a.socket()).unwrap())
}

/// Connects a client and opens a device for it.
fn with_device(a: &Appliance) -> UnixStream {
    let client = connect_as(0, a);
    tell(a, &client, vec![(OPEN, areas())]);
    let answers = answers(&client, 1);
    assert!(answers[0].contains("\"ok\""), "{answers:?}");
    client
}

fn answers(mut client: &UnixStream, count: usize) -> Vec<String> {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut text, mut byte) = (Vec::new(), [0]);
    while text.iter().filter(|b| **b == b'\n').count() < count {
        match client.read(&mut byte) {
            Ok(1) => text.push(byte[0]),
            _ => break,
        }
    }
    String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
}

/// Returns true if the appliance closes this connection, whatever it answers before that.
fn has_ended(mut client: &UnixStream) -> bool {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    match client.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Returns the longest time that `status` took during `attack`.
fn longest(a: &Appliance, attack: impl FnOnce() + Send) -> Duration {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let honest = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            // Ask some more after the attack: the appliance may close leftover descriptors only
            // then.
            for _ in 0..20 {
                while !done.load(Ordering::Acquire) {
                    longest = longest.max(status(&a.socket()));
                }
                longest = longest.max(status(&a.socket()));
            }
            longest
        });
        // The scope waits for the thread, so end the thread even when the attack panics.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let attacked = Done(&done);
        attack();
        drop(attacked);
        honest.join().unwrap()
    })
}

/// Measures one status request, without starting a program for it.
fn status(socket: &Path) -> Duration {
    let start = Instant::now();
    let client = UnixStream::connect(socket).unwrap();
    send(&client, b"{\"v\":1,\"id\":1,\"op\":\"status\"}\n", &[]).unwrap();
    let answer: Value = serde_json::from_str(&answers(&client, 1)[0]).unwrap();
    assert!(answer["ok"]["workers"][0]["running"] == true, "{answer}");
    start.elapsed()
}

const OPEN: &str =
    r#"{"v":1,"id":1,"op":"device-open","args":{"memory":65536,"queues":65536,"name":"bad"}}"#;

/// Returns the memory that [`OPEN`] announces: one area for queues, one to register.
fn areas() -> Vec<OwnedFd> {
    let area = |_| Region::shared(65_536).unwrap().fd().unwrap().try_clone_to_owned().unwrap();
    (0..2).map(area).collect()
}

/// Far less than a descriptor lingers, far more than a status request takes on a loaded machine.
const PROMPT: Duration = Duration::from_secs(30);

#[test]
fn test_lingering_descriptors_block_neither_front_thread_nor_workers() {
    let a = Appliance::start(&listen(7174, "rping"));
    let _peer = a.rping(7174);
    a.assert_moves();
    let (sockets, peers): (Vec<_>, Vec<_>) = (0..14).map(|_| lingering()).unzip();
    let mut fds = sockets.into_iter();
    // Declared after the sockets, so dropped before them: sockets without a peer do not linger
    // here.
    let _peers = peers;
    let mut next = || fds.next().unwrap();
    let longest = longest(&a, || {
        // The appliance refuses this user, and must not read or keep what the user sent before.
        for fd in [next(), next(), hiding(next())] {
            let stopped = Stopped::new(&a);
            let client = connect_as(STRANGER, &a);
            send(&client, b"{}\n", &[fd.as_fd()]).unwrap();
            drop((fd, stopped));
            assert!(has_ended(&client));
        }
        // This user may send requests, but not pass descriptors.
        let client = connect_as(0, &a);
        tell(&a, &client, vec![(r#"{"v":1,"id":1,"op":"status"}"#, vec![next()])]);
        assert!(has_ended(&client), "a descriptor that no request takes ends the connection");
        // This client has a device, and passes a descriptor once with a request that takes one and
        // once with a request that does not.
        let cq = r#"{"v":1,"id":2,"op":"create-cq","args":{"depth":8,"waker":1}}"#;
        let region = r#"{"v":1,"id":2,"op":"add-region","args":{"len":4096}}"#;
        for line in [cq, region] {
            for fd in [next(), hiding(next())] {
                let client = with_device(&a);
                tell(&a, &client, vec![(line, vec![fd])]);
                assert_eq!(answers(&client, 1).len(), 1);
            }
            // This client is gone before the appliance reads its lines.
            let client = with_device(&a);
            let lines = vec![("nonsense", vec![next()]), (line, vec![next()])];
            tell(&a, &client, lines);
        }
        // This client passes the descriptor with its request for a device.
        let client = connect_as(0, &a);
        tell(&a, &client, vec![(OPEN, areas().into_iter().chain([next()]).collect())]);
        assert!(has_ended(&client));
    });
    assert!(longest < PROMPT, "status took {longest:?}");
    a.assert_moves();
    // The appliance has closed all descriptors, and the places of those clients are free.
    let until = Instant::now() + PATIENCE;
    while a.ask(&["status"])["control"]["clients"] != 1 {
        assert!(Instant::now() < until, "{}", a.ask(&["status"])["control"]);
        thread::sleep(Duration::from_millis(10));
    }
}

/// Tells the process of [`ghost`] which socket to use, and whether to hide the end.
const GHOST: &str = "HEDDLE_TEST_GHOST";

/// Opens a device, sends its own end of the socket when told to, and exits.
fn ghost(how: &str) {
    let (hidden, path) = how.split_once(' ').unwrap();
    let socket = UnixStream::connect(path).unwrap();
    let files = [65536, 65536].map(|len| Region::shared(len).unwrap());
    let fds = [0, 1].map(|n: usize| files[n].fd().unwrap());
    send(&socket, format!("{OPEN}\n").as_bytes(), &fds).unwrap();
    assert!(answers(&socket, 1)[0].contains("\"ok\""));
    let _ = std::io::stdin().read(&mut [0]);
    leave_own_end_behind(&socket, hidden == "hidden");
}

/// A client sends its own end of the control socket through the socket itself, openly or in the
/// queue of another socket, and exits.
#[test]
fn test_client_that_leaves_its_own_end_behind_is_gone_when_it_exits() {
    if let Ok(how) = std::env::var(GHOST) {
        return ghost(&how);
    }
    let a = Appliance::start("");
    let (_, module) = module_path!().split_once("::").unwrap();
    let this = "test_client_that_leaves_its_own_end_behind_is_gone_when_it_exits";
    for how in ["open", "hidden"] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("{module}::{this}"), "--nocapture"]);
        child.env(GHOST, format!("{how} {}", a.socket().display()));
        child.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
        let mut child = child.spawn().unwrap();
        let clients = || a.ask(&["status"])["clients"].as_array().unwrap().len();
        let until = Instant::now() + PATIENCE;
        while clients() != 1 {
            assert!(Instant::now() < until, "{how}: it has no device");
        }
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success(), "{how}");
        let until = Instant::now() + PATIENCE;
        while clients() != 0 {
            assert!(Instant::now() < until, "{how}: it is still there");
        }
    }
}
