//! Two ports on two wires, of which one fails.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{Appliance, PATIENCE, Running, heddle, listen};
use crate::net::{Lab, Namespace};

/// The second wire.
const OURS: &str = "srv2";
const THEIRS: &str = "peer2";
const SERVER: &str = "10.78.0.1";
const PEER: &str = "10.78.0.9";

fn ip(namespace: &Namespace, line: &str) {
    let args = line.split_whitespace();
    let out = namespace.run(|| Command::new("ip").args(args).output()).unwrap();
    assert!(out.status.success(), "ip {line}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Starts an appliance on both wires.
fn start() -> Appliance {
    let lab = Lab::new(1500);
    ip(
        &lab.server,
        &format!("link add {OURS} type veth peer name {THEIRS} netns {}", lab.peers.path()),
    );
    for (namespace, dev) in [(&lab.server, OURS), (&lab.peers, THEIRS)] {
        ip(namespace, &format!("link set {dev} up"));
    }
    // The text goes before the first port's table, like everything that is added.
    let second = format!(
        "[[port]]\nname = \"second\"\nvdev = \"net_af_packet1,iface={OURS}\"\n\
         addresses = [\"{SERVER}/16\"]\n[[listen]]\naddress = \"{SERVER}:7174\"\nservice = \"rping\"\n"
    );
    Appliance::start_in(lab, &(listen(7174, "rping") + &second))
}

/// Starts a client of the second port that runs without end.
fn rping(a: &Appliance) -> Running {
    let mut c = heddle();
    let (vdev, ip) = (format!("net_af_packet0,iface={THEIRS}"), format!("{PEER}/16"));
    c.args(["rping", "-c", "-V", "-S", "1000", "-a", SERVER, "--vdev", &vdev, "--ip", &ip]);
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Running(a.lab.peers.run(|| c.spawn()).unwrap())
}

/// Returns the bytes received on each address.
fn received(a: &Appliance) -> Option<[u64; 2]> {
    let conns = a.ask(&["conns"])["conns"].as_array().unwrap().clone();
    let of = |local: &str| {
        let found = conns.iter().find(|c: &&Value| c["local"] == local)?;
        found["tcp"]["received"].as_u64()
    };
    Some([of("10.77.0.1:7174")?, of(&format!("{SERVER}:7174"))?])
}

/// Starts a client on each port, and waits until both have a connection.
fn both(a: &Appliance) -> (Running, Running) {
    let (mut first, mut second) = (a.rping(7174), rping(a));
    let until = Instant::now() + PATIENCE;
    while received(a).is_none() {
        first.assert_runs();
        second.assert_runs();
        assert!(Instant::now() < until, "no connections");
        std::thread::sleep(Duration::from_millis(20));
    }
    (first, second)
}

/// Waits until the connection of one port receives more bytes.
fn moves(a: &Appliance, port: usize) {
    let before = received(a).expect("both connections")[port];
    let until = Instant::now() + PATIENCE;
    while received(a).expect("both connections")[port] <= before {
        assert!(Instant::now() < until, "port {port}: nothing moves");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The driver does not report the link, so only traffic shows the failure.
#[test]
fn test_port_with_link_down_recovers_and_does_not_affect_other_port() {
    let a = start();
    let (mut first, mut second) = both(&a);
    for down in [&a.lab.server, &a.lab.peers] {
        for port in 0..2 {
            moves(&a, port);
        }
        let dev = if std::ptr::eq(down, &a.lab.server) { OURS } else { THEIRS };
        ip(down, &format!("link set {dev} down"));
        // All packets in flight have arrived by now, and this port receives no more, while the
        // other port does.
        std::thread::sleep(Duration::from_millis(100));
        let still = received(&a).expect("both")[1];
        for _ in 0..3 {
            moves(&a, 0);
        }
        assert_eq!(received(&a).expect("both")[1], still);
        ip(down, &format!("link set {dev} up"));
        // The peers retransmit what was lost meanwhile.
        moves(&a, 1);
    }
    first.assert_runs();
    second.assert_runs();
}

/// If the only port were deleted, the appliance would end.
#[test]
fn test_port_with_deleted_interface_does_not_affect_other_port() {
    let mut a = start();
    let (mut first, _second) = both(&a);
    ip(&a.lab.server, &format!("link del {OURS}"));
    // The appliance checks for the interface twice a second.
    assert!(a.wait(Duration::from_secs(2)).is_none(), "it has ended: {}", a.log());
    for _ in 0..3 {
        moves(&a, 0);
    }
    first.assert_runs();
    a.lab.delete();
    let status = a.wait(PATIENCE).expect("it ends");
    let log = a.log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("the interface srv2 is gone, and its port with it"), "{log}");
    assert!(log.contains("heddle: the interface srv is gone"), "{log}");
}
