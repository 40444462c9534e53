//! The services' behaviour towards peers that ask for the impossible, leave in the middle, or ask
//! in vain.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use heddle_testkit::frames::{ACK, PSH, RST};
use heddle_testkit::mpa;

use crate::idle::perf_hello;
use crate::linux::{Client, Rping};
use crate::memory::{TURN, TURNS, assert_not_slower};
use crate::net::{LINUX, Lab};
use crate::server::{PERF, RPING, SINK, Server};
use crate::tcp::{Conn, Host, Offer, address};

/// Long enough for anything that the server does at once.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A peer describes a region that goes past the end of all offsets, which cannot be read: the
/// server ends the connection, and the client does not wait for a Read that never comes.
#[test]
fn test_region_whose_offset_wraps_ends_the_connection_at_once() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut c = Client::connect(&lab, LINUX[0], RPING).expect("a connection");
    assert!(!c.start(&mpa::request(b"")).expect("a Reply").rejected);
    c.say(&mpa::send(1, &mpa::rping_info(u64::MAX - 10, 1, 64))).expect("it is sent");
    assert!(c.is_ended(AT_ONCE), "the client is left to wait");
    assert!(server.says(&[&c.local.to_string()], AT_ONCE), "the log does not say who and why");
    server.assert_alive();
}

/// rping cannot serve a client that accepts no Reads: the server rejects such a client when it
/// connects.
#[test]
fn test_client_that_takes_no_reads_is_rejected() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut c = Client::connect(&lab, LINUX[0], RPING).expect("a connection");
    let reply = c.start(&mpa::enhanced_request(0, 16, b"")).expect("a Reply");
    assert!(reply.rejected, "accepted, to wait for ever");
    assert!(server.says(&[&c.local.to_string()], AT_ONCE), "the log does not say who and why");
    // The server does serve a client that accepts Reads.
    let mut c = Client::connect(&lab, LINUX[0], RPING).expect("a connection");
    assert!(!c.start(&mpa::enhanced_request(1, 16, b"")).expect("a Reply").rejected);
    server.assert_alive();
}

/// A stream that ends inside an FPDU, or before its Request is whole, has not ended in order.
#[test]
fn test_stream_cut_inside_an_fpdu_leaves_a_line_in_the_log() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut c = Client::connect(&lab, LINUX[0], SINK).expect("a connection");
    assert!(!c.start(&mpa::request(b"")).expect("a Reply").rejected);
    c.say(&mpa::send(1, &[0; 400])[..100]).expect("it is sent");
    c.stream.shutdown(std::net::Shutdown::Write).expect("a FIN");
    assert!(server.says(&[&c.local.to_string()], AT_ONCE), "cut inside an FPDU:\n{}", server.log());
    // An orderly end deserves no warning.
    let mut orderly = Client::connect(&lab, LINUX[0], SINK).expect("a connection");
    assert!(!orderly.start(&mpa::request(b"")).expect("a Reply").rejected);
    orderly.say(&mpa::send(1, &[0; 400])).expect("it is sent");
    orderly.stream.shutdown(std::net::Shutdown::Write).expect("a FIN");
    assert!(orderly.is_ended(AT_ONCE));
    assert!(
        !server.says(&[&orderly.local.to_string()], Duration::from_millis(300)),
        "{}",
        server.log()
    );
    server.assert_alive();
}

/// Each refused start-up leaves a line with the peer and the reason; a flood of them leaves only
/// few lines.
#[test]
fn test_refused_requests_are_logged_and_not_more_than_a_few() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut c = Client::connect(&lab, LINUX[0], RPING).expect("a connection");
    c.say(b"GET / HTTP/1.0\r\n\r\nis no MPA Request").expect("it is sent");
    assert!(c.is_ended(AT_ONCE), "it is not refused");
    assert!(server.says(&[&c.local.to_string(), "MPA"], AT_ONCE), "no line:\n{}", server.log());
    let lines = server.log().lines().count();
    for _ in 0..300 {
        let mut c = Client::connect(&lab, LINUX[0], RPING).expect("a connection");
        let _ = c.say(b"GET / HTTP/1.0\r\n\r\nis no MPA Request");
    }
    thread::sleep(Duration::from_millis(300));
    let more = server.log().lines().count() - lines;
    assert!(more < 100, "{more} lines for 300 refused requests");
    server.assert_alive();
}

/// Another client's pings are as fast as before while greetings that ask for much memory come and
/// go.
#[test]
fn test_reset_perf_greetings_make_no_other_client_wait() {
    assert_nobody_waits(PERF, &mpa::request(&perf_hello(12 << 20)), 50);
}

/// Does the same with thousands of requests for the sink, each from a connection that is already
/// gone.
#[test]
fn test_reset_sink_requests_make_no_other_client_wait() {
    assert_nobody_waits(SINK, &mpa::request(b""), 4000);
}

/// Compares with as many connections that are reset without a Request. The two kinds alternate, so
/// that both share the processors with the same programs.
fn assert_nobody_waits(port: u16, request: &[u8], rate: u32) {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut rping = Rping::connect(&lab, LINUX[1], 1000).expect("a connection");
    assert_not_slower(|| {
        let (asks, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|s| {
            s.spawn(|| flood_of_requests(&lab, port, request, rate, &asks, &stop));
            let mut pings = [Vec::new(), Vec::new()];
            for turn in 0..TURNS {
                asks.store(turn % 2 == 1, Ordering::Relaxed);
                pings[turn % 2].extend(rping.measure(TURN));
            }
            stop.store(true, Ordering::Relaxed);
            pings
        })
    });
    server.assert_alive();
}

/// Connects, sends a Request if it `asks`, and then a RST, `rate` times a second.
fn flood_of_requests(
    lab: &Lab,
    to: u16,
    request: &[u8],
    rate: u32,
    asks: &AtomicBool,
    stop: &AtomicBool,
) {
    let mut host = Host::new(lab, [address(1)]);
    let mut opening = Vec::new();
    let (start, mut n) = (Instant::now(), 0u32);
    while !stop.load(Ordering::Relaxed) {
        while Duration::from_secs(n.into()) / rate < start.elapsed() && opening.len() < 256 {
            let port = 2000 + u16::try_from(n % 60_000).unwrap_or(0);
            let c = Conn::new(&mut host, address(1), port, to, Offer::default());
            c.put(&host, &c.syn(Offer::default()));
            opening.push((Instant::now(), c));
            n += 1;
        }
        host.poll(Duration::from_millis(1));
        let mut still = Vec::new();
        for (since, mut c) in opening {
            if c.establish(&mut host) {
                let mut end = c.snd_nxt;
                if asks.load(Ordering::Relaxed) {
                    c.put(&host, &c.segment(PSH | ACK, c.snd_nxt, request));
                    end = end.wrapping_add(u32::try_from(request.len()).unwrap_or(0));
                }
                c.put(&host, &c.segment(RST | ACK, end, &[]));
                c.forget(&mut host);
            } else if since.elapsed() < Duration::from_secs(1) {
                still.push((since, c));
            } else {
                c.forget(&mut host);
            }
        }
        opening = still;
    }
}
