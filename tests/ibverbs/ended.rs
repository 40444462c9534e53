//! The line on standard error by which the library names an RNIC that has ended: the program itself
//! learns of flushed requests and of a fatal event alone.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use heddle_ibverbs::abi::*;
use heddle_ibverbs::rnic::SOCKET;
use heddle_ibverbs::verbs::*;

use crate::lab::{PATIENCE, heddle};
use crate::program::Program;

/// Makes the test below the program.
const IS_PROGRAM: &str = "HEDDLE_TEST_ENDED";

const NAME: &str = "ended::test_program_without_its_rnic_says_which_one_has_ended";

/// A process that does not outlive the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Opens the device, and waits for the end of its RNIC.
#[expect(clippy::print_stdout, reason = "the test waits for the line")]
fn program() {
    let program = Program::open();
    println!("open");
    // SAFETY: the context is open, and the event is the call's.
    unsafe {
        let mut event = std::mem::zeroed();
        assert_eq!(ibv_get_async_event(program.context, &raw mut event), 0);
        assert_eq!(event.event_type, IBV_EVENT_DEVICE_FATAL);
    }
    // An RNIC that has ended takes no objects back.
    std::mem::forget(program);
}

#[test]
fn test_program_without_its_rnic_says_which_one_has_ended() {
    if std::env::var_os(IS_PROGRAM).is_some() {
        return program();
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("rnic");
    let mut rnic = Command::new(heddle());
    rnic.args(["serve", "--private", "--grace", "120s", "--socket"]).arg(&socket);
    rnic.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut rnic = Process(rnic.spawn().unwrap());
    let start = Instant::now();
    while !socket.exists() {
        assert!(start.elapsed() < PATIENCE, "no RNIC");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }

    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", NAME]);
    command.env(IS_PROGRAM, "1").env(SOCKET, &socket).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = Process(command.spawn().unwrap());
    let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("open")), "it opens the device");
    rnic.0.kill().unwrap();
    rnic.0.wait().unwrap();

    assert!(lines.any(|line| line.unwrap().contains("test result: ok. 1 passed")));
    let mut errors = String::new();
    program.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let ours: Vec<_> = errors.lines().filter(|line| line.starts_with("libibverbs")).collect();
    let [line] = ours[..] else { panic!("{errors:?}") };
    assert!(line.contains(socket.to_str().unwrap()) && line.contains("has ended"), "{line}");
}
