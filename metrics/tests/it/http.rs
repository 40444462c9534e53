//! Tests of the server with proper and improper requests.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use heddle_metrics::{CONTENT_TYPE, Limits, PortSample, Sample, Source, expose, serve_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

/// A source that returns a given sample, and counts the requests.
struct Told {
    sample: Option<Result<Sample, String>>,
    asked: Cell<u32>,
}

impl Told {
    fn new(sample: Option<Result<Sample, String>>) -> Rc<Told> {
        Rc::new(Told { sample, asked: Cell::new(0) })
    }
}

impl Source for Told {
    async fn sample(&self) -> Result<Sample, String> {
        self.asked.set(self.asked.get() + 1);
        // Workers take about this long.
        sleep(Duration::from_millis(5)).await;
        match &self.sample {
            Some(sample) => sample.clone(),
            None => pending().await,
        }
    }
}

/// Returns a sample with one worker that answers.
fn well() -> Sample {
    let mut s = crate::common::sample();
    s.workers.truncate(1);
    s.ports.iter_mut().for_each(|p| p.up = true);
    s
}

/// Runs `test` against a server.
fn with<F: Future<Output = ()>>(
    source: &Rc<Told>,
    limits: Limits,
    test: impl FnOnce(SocketAddr) -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = spawn_local(serve_with(listener, Rc::clone(source), limits));
        timeout(Duration::from_secs(20), test(addr)).await.unwrap();
        assert!(!server.is_finished());
        server.abort();
    });
}

/// Sends bytes and returns everything that comes until the end.
async fn talk(addr: SocketAddr, bytes: &[u8]) -> String {
    let mut s = TcpStream::connect(addr).await.unwrap();
    s.write_all(bytes).await.unwrap();
    let mut all = Vec::new();
    // The end may be a reset, when the server has not read all our bytes.
    let _ = s.read_to_end(&mut all).await;
    String::from_utf8(all).unwrap()
}

async fn request(addr: SocketAddr, method: &str, path: &str) -> String {
    talk(addr, format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn test_metrics_response_has_content_type_and_closes_connection() {
    let source = Told::new(Some(Ok(well())));
    with(&source, Limits::default(), async |addr| {
        let answer = request(addr, "GET", "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains(&format!("content-type: {CONTENT_TYPE}\r\n")), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        let mut sample = well();
        sample.http.requests = 1;
        assert_eq!(body(&answer), expose(&sample));
        let head = request(addr, "HEAD", "/metrics").await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body(&head).is_empty(), "{head}");
    });
}

#[test]
fn test_server_answers_other_paths_and_methods_with_matching_status() {
    let source = Told::new(Some(Ok(well())));
    with(&source, Limits::default(), async |addr| {
        for (method, path, status) in [
            ("GET", "/", "404"),
            ("GET", "/metrics/x", "404"),
            ("GET", "/metrics?x=1", "200"),
            ("POST", "/metrics", "405"),
            ("DELETE", "/healthz", "405"),
            ("POST", "/", "404"),
        ] {
            let answer = request(addr, method, path).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{method} {path}: {answer}"
            );
        }
    });
}

#[test]
fn test_health_names_the_worker_that_does_not_answer() {
    with(&Told::new(Some(Ok(well()))), Limits::default(), async |addr| {
        let answer = request(addr, "GET", "/healthz").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && body(&answer) == "ok\n", "{answer}");
    });
    with(&Told::new(Some(Ok(crate::common::sample()))), Limits::default(), async |addr| {
        let answer = request(addr, "GET", "/healthz").await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert_eq!(body(&answer), "worker 1 of port we\"st does not answer\n");
        // An operator needs the metrics even more when the RNIC is unhealthy.
        assert!(request(addr, "GET", "/metrics").await.starts_with("HTTP/1.1 200 "));
    });
    with(&Told::new(Some(Ok(Sample::default()))), Limits::default(), async |addr| {
        assert!(request(addr, "GET", "/healthz").await.starts_with("HTTP/1.1 503 "));
    });
    with(&Told::new(Some(Err("it is about to end".into()))), Limits::default(), async |addr| {
        let answer = request(addr, "GET", "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert_eq!(body(&answer), "it is about to end\n");
    });
}

#[test]
fn test_health_fails_only_when_last_link_is_down() {
    let links = |up: [bool; 2]| {
        let mut s = well();
        for (port, up) in s.ports.iter_mut().zip(up) {
            port.up = up;
        }
        // The inner port is up at all times and reaches no host.
        let inner =
            PortSample { name: "inner0".into(), inner: true, up: true, ..Default::default() };
        s.ports.push(inner);
        s
    };
    for (up, status, text) in [
        ([true, true], 200, "ok\n"),
        ([false, true], 200, "ok, but the link of east is down\n"),
        ([false, false], 503, "no link is up: east, we\"st\n"),
    ] {
        with(&Told::new(Some(Ok(links(up)))), Limits::default(), async |addr| {
            let answer = request(addr, "GET", "/healthz").await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert_eq!(body(&answer), text);
        });
    }
}

/// All requests wait for the one that takes the sample, and get the same answer.
#[test]
fn test_silent_source_costs_one_deadline_for_all_waiting_requests() {
    let source = Told::new(None);
    let limits = Limits {
        sample: Duration::from_millis(300),
        fresh: Duration::from_secs(5),
        ..Limits::default()
    };
    with(&source, limits, async |addr| {
        let start = Instant::now();
        let mut all = JoinSet::new();
        for _ in 0..50 {
            all.spawn(async move { request(addr, "GET", "/healthz").await });
        }
        for answer in all.join_all().await {
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
            assert_eq!(body(&answer), "no answer within 300 ms\n");
        }
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    });
    assert_eq!(source.asked.get(), 1);
}

/// Returns the lines without the server's counters of its own requests.
fn of_rnic(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with("heddle_metrics_")).collect()
}

#[test]
fn test_two_hundred_concurrent_requests_share_few_samples() {
    let source = Told::new(Some(Ok(well())));
    let limits = Limits { fresh: Duration::from_secs(20), ..Limits::default() };
    with(&source, limits, async |addr| {
        let mut all = JoinSet::new();
        for _ in 0..200 {
            all.spawn(async move { request(addr, "GET", "/metrics").await });
        }
        for answer in all.join_all().await {
            assert_eq!(of_rnic(body(&answer)), of_rnic(&expose(&well())));
        }
    });
    assert_eq!(source.asked.get(), 1);
    // The server does not use a sample that is not fresh.
    let source = Told::new(Some(Ok(well())));
    with(&source, Limits { fresh: Duration::ZERO, ..Limits::default() }, async |addr| {
        for _ in 0..3 {
            request(addr, "GET", "/metrics").await;
        }
    });
    assert_eq!(source.asked.get(), 3);
}

/// Clients that send their request in drips, or send none, take all places, and lose them: by
/// either of the deadlines alone.
#[test]
fn test_slow_requests_lose_their_places_to_others() {
    let (soon, never) = (Duration::from_millis(400), Duration::from_secs(600));
    for (header, whole) in [(soon, never), (never, soon)] {
        slow_requests(Limits { connections: 4, header, whole, share: never, ..Limits::default() });
    }
}

fn slow_requests(limits: Limits) {
    let source = Told::new(Some(Ok(well())));
    with(&source, limits, async |addr| {
        let mut slow = JoinSet::new();
        for n in 0..8 {
            slow.spawn(async move {
                let mut s = TcpStream::connect(addr).await.unwrap();
                let (mut read, mut write) = s.split();
                let drip = async {
                    for byte in b"GET /metrics HTTP/1.1\r\nX: ".iter().chain([b'a'; 2000].iter()) {
                        if n % 2 == 0 && write.write_all(&[*byte]).await.is_err() {
                            return;
                        }
                        sleep(Duration::from_millis(20)).await;
                    }
                };
                let mut got = Vec::new();
                // The server ends the connection long before the dripping is over.
                tokio::select! {
                    () = drip => false,
                    _ = read.read_to_end(&mut got) => !got.starts_with(b"HTTP/1.1 200"),
                }
            });
        }
        sleep(Duration::from_millis(100)).await;
        let start = Instant::now();
        let answer = request(addr, "GET", "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_eq!(slow.join_all().await, [true; 8]);
    });
}

/// Clients take no answer and do not leave. The clients take every place, come again, and still
/// keep no client out.
#[test]
fn test_idle_clients_give_way_to_waiting_clients_after_their_share() {
    let (share, never) = (Duration::from_millis(200), Duration::from_secs(600));
    let limits =
        Limits { connections: 64, header: never, whole: never, share, ..Limits::default() };
    let source = Told::new(Some(Ok(well())));
    with(&source, limits, async |addr| {
        let mut slow = JoinSet::new();
        for _ in 0..64 {
            slow.spawn(async move {
                loop {
                    let mut s = TcpStream::connect(addr).await.unwrap();
                    let _ = s.read(&mut [0]).await;
                }
            });
        }
        sleep(Duration::from_millis(100)).await;
        for _ in 0..3 {
            let asked =
                tokio::time::timeout(Duration::from_secs(60), request(addr, "GET", "/metrics"));
            let answer = asked.await.expect("it is kept out");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
    });
}

/// A client that asks and never takes its answer keeps its place until the deadline, and no longer.
#[test]
fn test_client_that_never_reads_its_answer_loses_its_place() {
    let mut large = well();
    large.version = "x".repeat(16 << 20);
    let source = Told::new(Some(Ok(large)));
    let whole = Duration::from_millis(400);
    let limits =
        Limits { connections: 1, whole, share: Duration::from_secs(600), ..Limits::default() };
    with(&source, limits, async |addr| {
        let mut s = TcpStream::connect(addr).await.unwrap();
        s.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        sleep(Duration::from_millis(50)).await;
        let answer = request(addr, "GET", "/healthz").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    });
}

#[test]
fn test_server_refuses_garbage_and_serves_others() {
    let source = Told::new(Some(Ok(well())));
    with(&source, Limits::default(), async |addr| {
        let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 20_000]].concat();
        let many = [b"GET / HTTP/1.1\r\n".as_slice(), &b"a: b\r\n".repeat(500), b"\r\n"].concat();
        for garbage in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
            b"\0\0\0\0\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET /metrics HTTP/9.9\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            &long,
            &many,
        ] {
            let answer = talk(addr, garbage).await;
            let refused = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
            assert!(refused, "{garbage:?}: {answer}");
        }
        // Two requests come together: the server answers the first and closes.
        let twice = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2);
        assert_eq!(talk(addr, &twice).await.matches("HTTP/1.1 ").count(), 1);
        assert!(request(addr, "GET", "/healthz").await.starts_with("HTTP/1.1 200 "));
    });
}
