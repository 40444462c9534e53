//! Every example runs, ends well, and says what it is to say.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::process::Command;

/// An example and lines of its output. `record_pcap` is a tool that `scripts/record-pcap` calls
/// with a file to write.
const EXAMPLES: [(&str, &[&str]); 8] = [
    ("write", &["server: 65536 octets are in my memory", "client: acknowledged"]),
    ("read", &["client: 8 Reads at a time", "client: 32 records of 4096 octets read"]),
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
            "server: 20 octets: written, and told of",
        ],
    ),
    (
        "lend_memory",
        &[
            "client 1: 4 requests of 4096 octets",
            "client 3: 4 requests of 4096 octets",
            "server: 6 buffers are in the queue again",
        ],
    ),
    ("events_epoll", &["server: 9 messages echoed for 3 clients"]),
    ("own_process", &["application: HELLO FROM ANOTHER PROCESS"]),
    ("two_processes", &["server: written by another process"]),
];

/// One after the other: each has two threads that spin.
#[test]
fn test_examples_run_and_say_so() {
    for (name, lines) in EXAMPLES {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.args(["run", "--quiet", "--offline", "--example", name]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        let out = cargo.output().unwrap();
        let (stdout, stderr) =
            (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{name}: {}\n{stdout}{stderr}", out.status);
        for line in lines {
            assert!(stdout.lines().any(|l| l == *line), "{name}: no line {line:?} in\n{stdout}");
        }
    }
}

#[test]
fn test_no_example_is_forgotten() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let found: BTreeSet<String> =
        files.map(|p| p.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    let known = EXAMPLES.iter().map(|(name, _)| (*name).to_owned());
    assert_eq!(found, known.chain(["record_pcap".to_owned()]).collect());
}
