//! `/metrics` of a server whose clients take all its places, send too much, or send nothing.
//!
//! The limits are those of `heddle_metrics::Limits`: 64 connections, 2 s for a request's header, 10
//! s in all, and 2 s for a client while others wait for its place.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::linux::Rping;
use crate::memory::{TURN, assert_not_slower};
use crate::net::{LINUX, Lab};
use crate::server::Server;

const PLACES: usize = 64;
const HEADER: Duration = Duration::from_secs(2);
const SHARE: Duration = Duration::from_secs(2);
/// The time that a busy machine may add.
const SLACK: Duration = Duration::from_secs(5);
const METRICS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9184);
const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

fn connect(lab: &Lab) -> TcpStream {
    let stream = lab.server.run(|| TcpStream::connect_timeout(&METRICS, SLACK).expect("a place"));
    stream.set_read_timeout(Some(4 * SLACK)).expect("a time-out");
    stream
}

/// Reads everything up to the connection's end, which may be a reset.
fn rest(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let end = stream.read_to_end(&mut all);
    let hangs = end.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!hangs, "the connection does not end");
    String::from_utf8_lossy(&all).into_owned()
}

/// Returns the metrics, and the time that the request took.
fn scrape(lab: &Lab) -> (String, Duration) {
    let start = Instant::now();
    let mut stream = connect(lab);
    stream.write_all(GET).expect("it is sent");
    let text = rest(&mut stream);
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text:.200}");
    (text, start.elapsed())
}

fn value(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|l| l.starts_with(&format!("{name} ")));
    let line = line.unwrap_or_else(|| panic!("no {name}"));
    line.rsplit_once(' ').expect("a value").1.parse().expect("a number")
}

/// Runs a server with metrics beside an honest rping, which must be as fast during `abuse` as
/// without it.
fn beside(abuse: impl Fn(&Lab) + Sync) {
    let lab = Lab::new(1500);
    lab.loopback();
    let mut server = Server::start_placed(&lab, &["--metrics", &METRICS.to_string()]);
    let mut rping = Rping::connect(&lab, LINUX[1], 1000).expect("a connection");
    assert_not_slower(|| {
        let before = rping.measure(4 * TURN);
        let with = std::thread::scope(|s| {
            let abuser = s.spawn(|| abuse(&lab));
            let mut all = rping.measure(4 * TURN);
            while !abuser.is_finished() {
                all.extend(rping.measure(TURN));
            }
            if let Err(panic) = abuser.join() {
                std::panic::resume_unwind(panic);
            }
            all
        });
        // The load of other programs varies, so compare the abuse with the slower of the
        // measurements around it.
        let after = rping.measure(4 * TURN);
        [if after.len() < before.len() { after } else { before }, with]
    });
    server.assert_alive();
    let (_, took) = scrape(&lab);
    assert!(took < SLACK, "afterwards it is as before: {took:?}");
}

/// Peers hold every place, each in another way, and reconnect: a scrape still gets in.
#[test]
fn test_slow_clients_on_all_places_keep_a_scrape_out_no_longer_than_their_share() {
    beside(|lab| {
        let slow: [&[u8]; 3] = [b"", b"GET /metrics HTTP/1.1\r\nHost:", GET];
        for said in slow {
            let hold = || {
                let mut stream = connect(lab);
                stream.write_all(said).expect("it is sent");
                stream
            };
            let mut held: Vec<TcpStream> = (0..PLACES).map(|_| hold()).collect();
            for _ in 0..2 {
                let (_, took) = scrape(lab);
                assert!(took < SHARE + SLACK, "a scrape took {took:?} beside {said:?}");
                held.extend((0..PLACES).map(|_| hold()));
            }
        }
        let (text, _) = scrape(lab);
        let told =
            ["evicted", "slow"].map(|n| value(&text, &format!("heddle_metrics_clients_{n}_total")));
        assert!(told[0] + told[1] >= PLACES as u64, "counted: {told:?}");
    });
}

#[test]
fn test_requests_that_are_too_long_or_too_many_or_none_are_cut_off() {
    beside(|lab| {
        let (text, _) = scrape(lab);
        let names = ["requests", "malformed", "slow"];
        let counts = |text: &str| {
            names.map(|n| {
                value(
                    text,
                    &match n {
                        "requests" => "heddle_metrics_requests_total".to_owned(),
                        n => format!("heddle_metrics_clients_{n}_total"),
                    },
                )
            })
        };
        let before = counts(&text);
        // Send a header longer than the server accepts.
        let mut long = connect(lab);
        let name = "x".repeat(64 << 10);
        let _ = write!(long, "GET /metrics HTTP/1.1\r\nHost: x\r\nX: {name}\r\n\r\n");
        let answer = rest(&mut long);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer:.200}");
        // Send many requests at once: only the first gets an answer.
        let mut many = connect(lab);
        many.write_all(&GET.repeat(50)).expect("it is sent");
        assert_eq!(rest(&mut many).matches("HTTP/1.1 200 OK").count(), 1);
        // Send no request at all, and then half of a request.
        for said in [&b""[..], b"GET /met"] {
            let start = Instant::now();
            let mut silent = connect(lab);
            silent.write_all(said).expect("it is sent");
            rest(&mut silent);
            assert!(start.elapsed() < HEADER + SLACK, "{:?}", start.elapsed());
        }
        let after = counts(&scrape(lab).0);
        let more: [u64; 3] = std::array::from_fn(|n| after[n] - before[n]);
        // The requests are the scrape itself and the first of the many.
        assert_eq!(more, [2, 1, 2], "{names:?}");
    });
}
