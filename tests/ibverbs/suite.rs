//! Programs in C, compiled against the distribution's headers and run on the library.

use std::path::Path;
use std::process::Command;

use crate::lab::lab;
use crate::{c, library};

fn run(name: &str) {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ibverbs/c")).join(name);
    let dir = tempfile::tempdir().unwrap();
    let library = library::library();
    // Link with the distribution's library file, and run on ours, which has the names that the
    // program binds.
    let program = c::compile(&source, dir.path(), &["-libverbs", "-lpthread"]);
    let mut run = Command::new(program);
    run.env("LD_LIBRARY_PATH", library).env("LD_BIND_NOW", "1");
    run.env(heddle_ibverbs::rnic::SOCKET, lab().socket());
    let out = run.output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{}: {text}", out.status);
    assert_eq!(out.stdout, b"ok\n", "{text}");
}

#[test]
fn test_program_in_c_makes_uses_and_destroys_every_kind_of_object() {
    run("objects.c");
}

#[test]
fn test_threads_that_wait_for_events_can_be_cancelled() {
    run("waiting.c");
}
