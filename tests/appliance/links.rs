//! Links that go down and come up again.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{Appliance, PATIENCE};
use crate::net::PEER_IFACE;

fn ip(args: &str) {
    let out = Command::new("ip").args(args.split(' ')).output().unwrap();
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Waits until the link of a port is up or down as given, and returns the port's answer.
fn once(a: &Appliance, number: usize, up: bool) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let port = a.ask(&["ports"])["ports"][number].clone();
        if port["up"] == up {
            return port;
        }
        assert!(Instant::now() < until, "{port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the whole answer to an HTTP request.
pub fn get(a: &Appliance, path: &str) -> String {
    use std::io::{Read, Write};
    a.lab.server.run(|| ip("link set lo up"));
    let mut s = a.lab.server.run(|| std::net::TcpStream::connect("127.0.0.1:9184").unwrap());
    s.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(s, "GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut text = String::new();
    s.read_to_string(&mut text).unwrap();
    text
}

/// The test has two kinds of links: an interface of the kernel, whose DPDK driver reports every
/// link as up, and a link that interrupts.
#[test]
fn test_links_that_go_down_are_seen_logged_and_counted() {
    let tap = "[[port]]\nname = \"tap\"\nvdev = \"net_tap0,iface=heddlelinks\"\n\
               addresses = [\"10.78.0.1/24\"]\n";
    let metrics = "[metrics]\nlisten = \"127.0.0.1:9184\"\n[log]\nlevel = \"info\"\n";
    let mut a = Appliance::start(&format!("{metrics}{tap}"));
    let (tap, veth) = (0, 1);
    for port in [tap, veth] {
        let p = once(&a, port, true);
        assert_eq!((&p["link_changes"], &p["link_changed_ns"]), (&0.into(), &Value::Null));
    }
    assert!(get(&a, "/healthz").ends_with("\r\n\r\nok\n"));
    // Take down the other end of the wire.
    a.lab.peers.run(|| ip(&format!("link set {PEER_IFACE} down")));
    let p = once(&a, veth, false);
    assert_eq!(p["link_changes"], 1);
    assert!(p["link_changed_ns"].as_u64().is_some(), "{p}");
    // The appliance reuses a sample for a quarter of a second, so wait longer.
    std::thread::sleep(Duration::from_millis(300));
    let health = get(&a, "/healthz");
    assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
    assert!(health.ends_with("ok, but the link of net_af_packet0 is down\n"), "{health}");
    a.lab.server.run(|| ip("link set heddlelinks down"));
    once(&a, tap, false);
    std::thread::sleep(Duration::from_millis(300));
    let health = get(&a, "/healthz");
    assert!(health.starts_with("HTTP/1.1 503 "), "{health}");
    assert!(health.ends_with("no link is up: net_tap0, net_af_packet0\n"), "{health}");
    a.lab.peers.run(|| ip(&format!("link set {PEER_IFACE} up")));
    a.lab.server.run(|| ip("link set heddlelinks up"));
    assert_eq!(once(&a, veth, true)["link_changes"], 2);
    assert_eq!(once(&a, tap, true)["link_changes"], 2);
    std::thread::sleep(Duration::from_millis(300));
    let text = get(&a, "/metrics");
    assert!(text.contains("heddle_port_link_changes_total{port=\"net_tap0\"} 2\n"), "{text}");
    a.signal(libc::SIGTERM);
    assert!(a.wait(PATIENCE).is_some());
    let log = a.log();
    let said = |what: &str| log.lines().filter(|l| l.contains(what)).count();
    assert_eq!((said("the link is down"), said("the link is up")), (2, 2), "{log}");
}
