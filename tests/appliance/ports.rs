//! Two ports on two wires, one of which breaks.

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

/// Both wires, and the appliance on them.
fn start() -> Appliance {
    let lab = Lab::new(1500);
    ip(
        &lab.server,
        &format!("link add {OURS} type veth peer name {THEIRS} netns {}", lab.peers.path()),
    );
    for (namespace, dev) in [(&lab.server, OURS), (&lab.peers, THEIRS)] {
        ip(namespace, &format!("link set {dev} up"));
    }
    // In front of the first port's, as all that is added.
    let second = format!(
        "[[port]]\nname = \"second\"\nvdev = \"net_af_packet1,iface={OURS}\"\n\
         addresses = [\"{SERVER}/16\"]\n[[listen]]\naddress = \"{SERVER}:7174\"\nservice = \"rping\"\n"
    );
    Appliance::start_in(lab, &(listen(7174, "rping") + &second))
}

/// A client of the second port that goes on for ever.
fn rping(a: &Appliance) -> Running {
    let mut c = heddle();
    let (vdev, ip) = (format!("net_af_packet0,iface={THEIRS}"), format!("{PEER}/16"));
    c.args(["rping", "-c", "-V", "-S", "1000", "-a", SERVER, "--vdev", &vdev, "--ip", &ip]);
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Running(a.lab.peers.run(|| c.spawn()).unwrap())
}

/// Octets that have come to each address.
fn received(a: &Appliance) -> Option<[u64; 2]> {
    let conns = a.ask(&["conns"])["conns"].as_array().unwrap().clone();
    let of = |local: &str| {
        let found = conns.iter().find(|c: &&Value| c["local"] == local)?;
        found["tcp"]["received"].as_u64()
    };
    Some([of("10.77.0.1:7174")?, of(&format!("{SERVER}:7174"))?])
}

/// A connection of each port, once they are up.
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

/// Waits until the connection of one port moves on.
fn moves(a: &Appliance, port: usize) {
    let before = received(a).expect("both connections")[port];
    let until = Instant::now() + PATIENCE;
    while received(a).expect("both connections")[port] <= before {
        assert!(Instant::now() < until, "port {port}: nothing moves");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The driver does not tell of the link, so nothing but traffic shows it.
#[test]
fn test_a_port_whose_link_is_down_leaves_the_other_alone_and_comes_back() {
    let a = start();
    let (mut first, mut second) = both(&a);
    for down in [&a.lab.server, &a.lab.peers] {
        for port in 0..2 {
            moves(&a, port);
        }
        let dev = if std::ptr::eq(down, &a.lab.server) { OURS } else { THEIRS };
        ip(down, &format!("link set {dev} down"));
        // What was on its way is there by now, and no more comes; at the other port it does.
        std::thread::sleep(Duration::from_millis(100));
        let still = received(&a).expect("both")[1];
        for _ in 0..3 {
            moves(&a, 0);
        }
        assert_eq!(received(&a).expect("both")[1], still);
        ip(down, &format!("link set {dev} up"));
        // What was lost meanwhile is sent again.
        moves(&a, 1);
    }
    first.assert_runs();
    second.assert_runs();
}

/// One that was the only one left ends the appliance.
#[test]
fn test_a_port_whose_interface_is_deleted_leaves_the_other_alone() {
    let mut a = start();
    let (mut first, _second) = both(&a);
    ip(&a.lab.server, &format!("link del {OURS}"));
    // It is looked for twice a second.
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
