//! `heddle rping -c`, as people start it, and servers that end its connection.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use heddle_testkit::mpa;

use crate::linux::{Client, PATIENCE};
use crate::net::{LINUX, Lab, SERVER, SERVER_IFACE};

const PORT: u16 = 7174;

/// Runs rping against a server that sends `answer` to its first message and then leaves the
/// connection open.
fn rping(lab: &Lab, answer: &[u8]) -> (Output, Duration) {
    let at = SocketAddr::from((LINUX[0], PORT));
    let listener = lab.peers.run(|| TcpListener::bind(at)).expect("the port is free");
    let built = || env!("CARGO_BIN_EXE_heddle").into();
    let mut program = Command::new(std::env::var_os("HEDDLE").unwrap_or_else(built));
    let vdev = format!("net_af_packet0,iface={SERVER_IFACE}");
    program.args(["rping", "-c", "-C", "3", "-a", &LINUX[0].to_string(), "--mpa", "1"]);
    program.args(["--vdev", &vdev, "--ip", &format!("{SERVER}/16")]);
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = lab.server.run(|| program.spawn()).expect("the binary was built");
    let program = thread::spawn(move || child.wait_with_output().expect("its output"));
    let mut client = Client::accepted(listener.accept().expect("a connection").0).expect("options");
    client.take(20).expect("a Request without private data");
    client.say(&mpa::reply(false, b"")).expect("it is sent");
    client.recv(PATIENCE).expect("rping describes its memory");
    let told = Instant::now();
    client.say(answer).expect("it is sent");
    let output = program.join().expect("it ends");
    (output, told.elapsed())
}

/// The reason reaches the user, although TCP stays open: a work request that the end of the
/// connection flushes is not the reason.
#[test]
fn test_rping_says_why_a_server_ended_the_connection() {
    let lab = Lab::new(1500);
    let mut broken = mpa::send(1, &[0; 16]);
    *broken.last_mut().expect("a CRC") ^= 1;
    for (what, answer, words) in [
        // RFC 5040 section 4.8, type 2 (Remote Operation Error): an unspecified error.
        ("a Terminate", mpa::terminate([0x02, 0xff, 0, 0], &[], 0), "terminated by the peer"),
        ("a wrong CRC", broken, "terminated by us"),
    ] {
        let (output, took) = rping(&lab, &answer);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{what}: {said}");
        assert!(said.contains(words), "{what}: {said}");
        assert!(!said.contains("Flushed") && !said.contains("panicked"), "{what}: {said}");
        assert!(took < PATIENCE, "{what}: {took:?}");
    }
}
