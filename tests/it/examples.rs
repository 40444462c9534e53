//! Runs every example, and checks that it ends well and prints its lines.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use heddle::hub::{Policy, serve};
use heddle::{EndpointConfig, Node};

#[path = "../support/built.rs"]
mod built;

/// Lets only one test at a time run, because processors are few.
static TURN: Mutex<()> = Mutex::new(());

/// Each example with lines of its output. `record_pcap` is a tool that `scripts/record-pcap` calls
/// with a file to write.
const EXAMPLES: [(&str, &[&str]); 10] = [
    ("write", &["server: 65536 bytes are in my memory", "client: acknowledged"]),
    ("read", &["client: 8 Reads at a time", "client: 32 records of 4096 bytes read"]),
    (
        "send_recv",
        &[
            "client: 1000 echoes",
            "server: 1000 messages echoed; the connection was closed in order",
        ],
    ),
    (
        "atomics",
        &[
            "client: 100 times 3 added",
            "client: the lock is held by 42",
            "server: counter 300, lock 42",
            "server: 20 bytes: written, and told of",
        ],
    ),
    (
        "lend_memory",
        &[
            "client 1: 4 requests of 4096 bytes",
            "client 3: 4 requests of 4096 bytes",
            "server: 9 buffers are in the queue again",
        ],
    ),
    ("rpc_callback", &["client: the value is 7", "server: 2 calls"]),
    ("rpc", &["client: 1048576 bytes of 7: true", "server: 2 calls"]),
    ("events_epoll", &["server: 9 messages echoed for 3 clients"]),
    ("own_process", &["application: HELLO FROM ANOTHER PROCESS"]),
    ("two_processes", &["server: written by another process"]),
];

/// Examples that make their RNICs themselves, because that is their subject.
const OF_THEIR_OWN: [&str; 2] = ["own_process", "two_processes"];

fn example(name: &str, args: &[&str]) -> Command {
    static BUILT: Once = Once::new();
    BUILT.call_once(built::examples);
    let mut example = Command::new(built::example(name));
    example.args(args);
    example
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks that the example ended well, and that `stdout` has its lines.
fn check(name: &str, out: &Output, stdout: &str, lines: &[&str]) {
    assert!(out.status.success(), "{name}: {}\n{stdout}{}", out.status, text(&out.stderr));
    for line in lines {
        assert!(stdout.lines().any(|l| l == *line), "{name}: no line {line:?} in\n{stdout}");
    }
}

/// The examples run one after the other, because each has two threads that spin.
#[test]
fn test_long_wait_for_cargo_is_reported() {
    let said = |seconds: &str, silence| {
        let mut out = Vec::new();
        let child = Command::new("sleep").arg(seconds).spawn().unwrap();
        assert!(built::wait(child, Duration::from_millis(silence), &mut out).success());
        String::from_utf8(out).unwrap()
    };
    assert!(said("0.5", 100).contains("waits for another cargo"));
    assert_eq!(said("0", 60_000), "");
}

#[test]
fn test_examples_run_and_print_expected_lines() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, lines) in EXAMPLES {
        let out = example(name, &[]).output().unwrap();
        check(name, &out, &text(&out.stdout), lines);
    }
}

/// Returns true if a line comes from the client; all other lines are the server's.
fn of_client(line: &&str) -> bool {
    line.starts_with("client")
}

/// Runs the two sides in two processes, each with a device of an RNIC of this process.
#[test]
fn test_examples_run_on_rnics_of_another_process() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (eal, _dpdk) = crate::eal::eal();
    let config = |n: u8| EndpointConfig::new(vec![format!("10.0.0.{n}/24").parse().unwrap()]);
    let (a, b) = Node::ring_pair(&eal, "examples", &config(1), &config(2)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let [ours, theirs] = [("a", &a), ("b", &b)].map(|(name, node)| {
        let (path, hub) = (dir.path().join(name), node.hub().clone());
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let hub = hub.clone();
                thread::spawn(move || serve(&hub, Policy::default(), &client));
            }
        });
        path.display().to_string()
    });
    for (name, lines) in EXAMPLES.into_iter().filter(|e| !OF_THEIR_OWN.contains(&e.0)) {
        let mut server = example(name, &["--socket", &theirs, "--listen", "10.0.0.2:7174"]);
        server.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = server.spawn().unwrap();
        // The server prints this line when clients may connect.
        let mut said = BufReader::new(server.stdout.take().unwrap());
        let mut first = String::new();
        said.read_line(&mut first).unwrap();
        let client = || example(name, &["--socket", &ours, "--connect", "10.0.0.2:7174"]).output();
        let client = (first == "server: listening on 10.0.0.2:7174\n").then(client);
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        let server = server.wait_with_output().unwrap();
        let (clients, servers): (Vec<_>, Vec<_>) = lines.iter().copied().partition(of_client);
        check(name, &server, &rest, &servers);
        let client = client.unwrap_or_else(|| panic!("{name}: the server said {first:?}")).unwrap();
        check(name, &client, &text(&client.stdout), &clients);
    }
    // A single side must be told which side it is.
    let out = example("write", &["--socket", &ours]).output().unwrap();
    assert!(!out.status.success() && text(&out.stderr).contains("--listen or --connect"));
}

#[test]
fn test_every_example_file_is_listed_in_the_tests() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    // Only files are examples: the folder holds code that several examples share.
    let found: BTreeSet<String> = files
        .filter(|p| p.is_file())
        .map(|p| p.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let known = EXAMPLES.iter().map(|(name, _)| (*name).to_owned());
    assert_eq!(found, known.chain(["record_pcap".to_owned()]).collect());
}
