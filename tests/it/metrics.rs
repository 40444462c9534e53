//! Queries a running `heddle serve` as Prometheus does.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server that ends with the test, however the test ends.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server on a device that neither sends nor receives anything. Returns also its address
/// for metrics.
fn serve() -> (Served, SocketAddr) {
    let child = Command::new(env!("CARGO_BIN_EXE_heddle"))
        .args(["serve", "--vdev", "net_null0,no-rx=1", "--ip", "10.0.0.1/24"])
        .args(["--listen", "10.0.0.1:7174=rping", "--memory", "16", "--metrics", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut served = Served(child);
    let mut lines = BufReader::new(served.0.stdout.take().unwrap()).lines();
    let addr = loop {
        let line = lines.next().expect("it says where").unwrap();
        if let Some(rest) = line.strip_prefix("metrics on http://") {
            break rest.strip_suffix("/metrics").unwrap().parse().unwrap();
        }
    };
    // Read the output of the server's end, too, so that the server never blocks on it.
    std::thread::spawn(move || lines.count());
    (served, addr)
}

/// Returns status and body of the answer.
fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    let mut s = TcpStream::connect(addr).unwrap();
    s.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(s, "GET {path} HTTP/1.1\r\nHost: heddle\r\n\r\n").unwrap();
    let mut all = String::new();
    s.read_to_string(&mut all).unwrap();
    let (head, body) = all.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Returns the value of the line that starts with `line`.
fn value(text: &str, line: &str) -> f64 {
    let found = text.lines().find(|l| l.starts_with(line)).unwrap_or_else(|| panic!("no {line}"));
    found.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn test_running_server_is_healthy_and_its_counters_advance() {
    let (mut served, addr) = serve();
    assert_eq!(get(addr, "/healthz"), (200, "ok\n".to_owned()));
    let (status, first) = get(addr, "/metrics");
    assert_eq!(status, 200);
    assert_eq!(value(&first, "heddle_worker_up{worker=\"0\""), 1.0);
    assert_eq!(value(&first, "heddle_listeners "), 1.0);
    assert_eq!(value(&first, "heddle_registrable_bytes "), f64::from(16 << 20));
    let (all, free) =
        (value(&first, "heddle_port_buffers{"), value(&first, "heddle_port_buffers_free{"));
    assert!(all > 1000.0 && free > 0.0 && free <= all, "{free} of {all}");
    // Wait longer than the server reuses a sample.
    std::thread::sleep(Duration::from_millis(400));
    let (_, second) = get(addr, "/metrics");
    // The worker measures one turn in eight, and only turns with work, of which each sample causes
    // one; so the count may not have grown yet.
    let turns = |text: &str| value(text, "heddle_turn_seconds_count{worker=\"0\"");
    assert!(turns(&second) >= turns(&first));
    for line in ["heddle_worker_polls_total{worker=\"0\"", "heddle_uptime_seconds "] {
        assert!(value(&second, line) > value(&first, line), "{line}");
    }
    assert_eq!(get(addr, "/").0, 404);
    // Use the `kill` program: one signal does not justify an unsafe call.
    let kill = Command::new("kill").arg(served.0.id().to_string()).status().unwrap();
    assert!(kill.success());
    assert!(served.0.wait().unwrap().success());
}

#[test]
fn test_server_names_taken_metrics_address_and_does_not_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let out = Command::new(env!("CARGO_BIN_EXE_heddle"))
        .args(["serve", "--vdev", "net_null0,no-rx=1", "--ip", "10.0.0.1/24"])
        .args(["--listen", "10.0.0.1:7174=rping", "--metrics", &addr])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("metrics on {addr}")), "{said}");
}

/// With a log in JSON, the process prints nothing else.
#[test]
fn test_server_with_json_log_prints_json_lines_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("heddle.toml"), dir.path().join("sock"));
    let log = dir.path().join("log");
    let config = |vdev: &str| {
        format!(
            "[log]\nformat = \"json\"\n[memory]\nregistered = 16\n[[port]]\nvdev = \"{vdev}\"\n\
             addresses = [\"10.0.0.1/24\"]\n[[listen]]\naddress = \"10.0.0.1:7174\"\n\
             service = \"rping\"\n[control]\nsocket = \"{}\"\n",
            socket.display()
        )
    };
    let serve = || {
        let mut c = Command::new(env!("CARGO_BIN_EXE_heddle"));
        c.args(["serve", "--config"]).arg(&file);
        let log = std::fs::File::create(&log).unwrap();
        c.stdout(Stdio::piped()).stderr(log).spawn().unwrap()
    };
    let messages = |child: Child| {
        let out = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), "");
        let log = std::fs::read_to_string(&log).unwrap();
        let line = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).expect(line);
            line["fields"].clone()
        };
        (out.status.code(), log.lines().map(line).collect::<Vec<_>>())
    };
    std::fs::write(&file, config("net_null0,no-rx=1")).unwrap();
    let server = serve();
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string(&log).unwrap().contains("listening on") {
        assert!(std::time::Instant::now() < until, "it does not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Until the worker has announced its address, which it counts.
    std::thread::sleep(Duration::from_secs(1));
    let sent = Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let (code, lines) = messages(server);
    assert_eq!(code, Some(0));
    let says = |text: &str| lines.iter().any(|l| l["message"].as_str() == Some(text));
    assert!(says("rping listening on 10.0.0.1:7174") && says("counted"), "{lines:?}");
    // So is the reason for which a server does not start.
    std::fs::write(&file, config("net_nothing0")).unwrap();
    let (code, lines) = messages(serve());
    assert_eq!(code, Some(1));
    assert!(lines.iter().any(|l| l["message"].as_str().unwrap().contains("net_nothing")));
}
