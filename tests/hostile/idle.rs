//! Peers that take a place and do nothing with it: the server still gives other peers a place.

use std::time::Duration;

use heddle_testkit::frames::ACK;
use heddle_testkit::mpa;

use crate::linux::{Client, time_to_be_served};
use crate::net::{LINUX, Lab};
use crate::server::{PERF, RPING, SINK, Server};
use crate::tcp::{Conn, Host, Offer, address};

/// The longest time that the server may keep a place for a peer that sends nothing, and does not
/// close when the server does.
const RELEASED: Duration = Duration::from_secs(40);
/// The longest time that a peer with another address may have to wait meanwhile.
const ELSEWHERE: Duration = Duration::from_secs(10);

/// Connects as many idle clients of a service as the server lets in, each past its start-up.
fn idle_clients(lab: &Lab, port: u16, count: usize, request: &[u8]) -> Vec<Client> {
    let clients = (0..count).filter_map(|_| {
        let mut c = Client::connect(lab, LINUX[0], port).ok()?;
        c.start(request).ok().filter(|r| !r.rejected)?;
        Some(c)
    });
    let clients: Vec<_> = clients.collect();
    assert!(!clients.is_empty(), "not even one was served");
    clients
}

/// Connects a new client of the sink and writes into its region. Returns true if that succeeds.
fn write_to_sink(lab: &Lab, from: usize) -> bool {
    let served = || {
        let mut c = Client::connect(lab, LINUX[from], SINK)?;
        let reply = c.start(&mpa::request(b""))?;
        if reply.rejected {
            return Ok(false);
        }
        let (stag, to) = mpa::sink_region(&reply);
        c.say(&mpa::write(true, stag, to, b"my own"))?;
        c.say(&mpa::read_request(1, (9, 0), 6, (stag, to)))?;
        std::io::Result::Ok(c.recv(ELSEWHERE)?.payload == b"my own")
    };
    served().unwrap_or(false)
}

fn wait_for(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn test_idle_clients_leave_room_for_others() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let sinks = idle_clients(&lab, SINK, 300, &mpa::request(b""));
    let rpings = idle_clients(&lab, RPING, 300, &mpa::request(b""));
    wait_for("the sink for one from elsewhere", ELSEWHERE, || write_to_sink(&lab, 1));
    time_to_be_served(&lab, LINUX[1], ELSEWHERE);
    // An address that has used up its share gets another place when the idle peers' time is up.
    time_to_be_served(&lab, LINUX[0], RELEASED);
    wait_for("the sink for one from there", RELEASED, || write_to_sink(&lab, 0));
    drop((sinks, rpings));
    server.assert_alive();
}

/// Returns the greeting of a benchmark of Writes: 16 operations of `size` bytes.
pub fn perf_hello(size: u32) -> Vec<u8> {
    let mut b = b"HPRF\x02\x00\x00\x00".to_vec();
    b.extend(size.to_be_bytes());
    b.extend(16u32.to_be_bytes());
    b.resize(48, 0);
    b
}

/// The server keeps memory for peers that use it: greetings that ask for all of it do not get it.
#[test]
fn test_greedy_perf_clients_leave_memory_for_others() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut idle = Vec::new();
    for size in [8 << 20, 1 << 20, 128 << 10, 16 << 10] {
        // Connect as many as the server lets in: the test only measures what they keep from others.
        for _ in 0..16 {
            let mut c = Client::connect(&lab, LINUX[0], PERF).expect("a connection");
            if c.start(&mpa::request(&perf_hello(size))).expect("an answer").rejected {
                break;
            }
            idle.push(c);
        }
    }
    wait_for("a client of the sink", ELSEWHERE, || write_to_sink(&lab, 1));
    time_to_be_served(&lab, LINUX[1], ELSEWHERE);
    wait_for("a modest benchmark", ELSEWHERE, || {
        let mut c = Client::connect(&lab, LINUX[1], PERF).expect("a connection");
        c.start(&mpa::request(&perf_hello(64 << 10))).is_ok_and(|r| !r.rejected)
    });
    drop(idle);
    server.assert_alive();
}

/// RFC 5044 7.1.2: no peer may take unlimited time for its Request.
#[test]
fn test_clients_that_send_single_bytes_of_a_request_lose_their_places() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut idle = Vec::new();
    for _ in 0..1024 {
        // The last of them may find no place.
        let Ok(mut c) = Client::connect(&lab, LINUX[0], RPING) else { break };
        let _ = c.say(b"M");
        idle.push(c);
    }
    // An address has a share of the places, and no more.
    assert!(idle.len() > 16, "{}", idle.len());
    time_to_be_served(&lab, LINUX[1], RELEASED);
    drop(idle);
    server.assert_alive();
}

/// A peer vanishes silently after it was served: the server detects that and frees its place.
#[test]
fn test_vanished_peer_is_probed_and_dropped() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &["--keepalive", "2s"]);
    let mut host = Host::new(&lab, [address(1)]);
    // The server keeps a peer that answers.
    let mut there = Conn::connect(&mut host, address(1), 4000, SINK, Offer::default());
    let mut gone = Conn::connect(&mut host, address(1), 4001, SINK, Offer::default());
    for c in [&mut there, &mut gone] {
        assert!(!c.start(&mut host, &mpa::request(b"")).rejected);
        c.send(&host, &mpa::send(1, b"hello"));
        c.idle(&mut host, Duration::from_millis(300));
        assert_eq!(c.acked, c.snd_nxt);
        c.seen.clear();
    }
    let mut answered = 0;
    let said = |server: &Server| server.says(&["10.77.1.1:4001"], Duration::ZERO);
    let start = std::time::Instant::now();
    while !said(&server) {
        assert!(start.elapsed() < Duration::from_secs(40), "the vanished peer is still there");
        host.poll(Duration::from_millis(20));
        there.absorb(&mut host);
        gone.absorb(&mut host);
        if there.seen.len() > answered {
            answered = there.seen.len();
            there.put(&host, &there.segment(ACK, there.snd_nxt, &[]));
        }
    }
    assert!(!gone.seen.is_empty(), "it was not probed");
    assert!(!there.was_reset, "one that answers was dropped");
    server.assert_alive();
}
