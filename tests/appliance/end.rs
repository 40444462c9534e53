//! The end of an appliance.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use heddle_testkit::mpa;

use crate::lab::{Appliance, PATIENCE, listen};
use crate::net::SERVER;

/// Makes a connection from the kernel and establishes it in MPA.
fn connect(a: &Appliance, port: u16) -> TcpStream {
    let addr = SocketAddr::new(SERVER.into(), port);
    let mut tcp = a.lab.peers.run(|| TcpStream::connect_timeout(&addr, PATIENCE)).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    tcp.write_all(&mpa::request(b"")).unwrap();
    assert!(!mpa::read_reply(&mut tcp).unwrap().rejected);
    tcp
}

/// Reads the rest of what the service sends, and the FIN after it.
fn read_to_fin(tcp: &mut TcpStream) {
    let mut rest = Vec::new();
    tcp.read_to_end(&mut rest).expect("a FIN, and no reset");
}

#[test]
fn test_shutdown_ends_before_deadline_when_peers_answer_its_fin() {
    let mut a = Appliance::start(&format!("[shutdown]\ndeadline = \"20s\"\n{}", listen(1, "sink")));
    let mut tcp = connect(&a, 1);
    a.conns_of("sink");
    let told = Instant::now();
    a.signal(libc::SIGTERM);
    read_to_fin(&mut tcp);
    drop(tcp);
    let status = a.wait(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(15), "nobody had to be waited for");
    assert!(!a.socket().exists(), "it leaves no file behind");
}

#[test]
fn test_shutdown_resets_silent_peer_after_the_deadline() {
    let mut a = Appliance::start(&format!("[shutdown]\ndeadline = \"2s\"\n{}", listen(1, "sink")));
    let mut tcp = connect(&a, 1);
    a.conns_of("sink");
    let told = Instant::now();
    a.signal(libc::SIGINT);
    read_to_fin(&mut tcp);
    // Until it ends, the appliance still answers queries but accepts no changes.
    let (_, text) = a.refusal(&["listen", "add", "10.77.0.1:2=sink"]);
    assert!(text.contains("about to end"), "{text}");
    let status = a.wait(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(0));
    let took = told.elapsed();
    assert!(took >= Duration::from_secs(2), "it was given its time: {took:?}");
    let reset =
        |e: &std::io::Error| matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
    // The next send fails at once: the RST arrived before the process ended.
    let until = Instant::now() + Duration::from_secs(1);
    while !tcp.write_all(&[0]).is_err_and(|e| reset(&e)) {
        assert!(Instant::now() < until, "it was not reset");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn test_second_signal_ends_appliance_at_once() {
    let mut a = Appliance::start(&format!("[shutdown]\ndeadline = \"60s\"\n{}", listen(1, "sink")));
    let mut tcp = connect(&a, 1);
    a.signal(libc::SIGTERM);
    read_to_fin(&mut tcp);
    assert!(a.wait(Duration::from_millis(300)).is_none(), "it waits for the peer");
    a.signal(libc::SIGTERM);
    assert_eq!(a.wait(Duration::from_secs(10)).and_then(|s| s.code()), Some(1));
}
