//! `heddle drain`: connections end by themselves or by order, and no new ones come.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{Appliance, PATIENCE, heddle, listen};
use crate::links::get;

const METRICS: &str = "[metrics]\nlisten = \"127.0.0.1:9184\"\n";

/// Starts `heddle drain`, which waits.
fn start(a: &Appliance, args: &[&str]) -> Child {
    let mut c = heddle();
    c.arg("drain").args(args).args(["--json", "--socket"]).arg(a.socket());
    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until the appliance drains, or does not.
fn until(a: &Appliance, draining: bool) {
    let until = Instant::now() + PATIENCE;
    while a.ask(&["status"])["draining_ns"].is_u64() != draining {
        assert!(Instant::now() < until, "draining is not {draining}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn test_drain_refuses_new_connections_and_waits_for_existing_ones() {
    let a = Appliance::start(&format!("{METRICS}{}", listen(7174, "rping")));
    assert!(get(&a, "/metrics").contains("\nheddle_draining 0\n"));
    let mut rping = a.rping(7174);
    a.assert_moves();
    let waiting = start(&a, &[]);
    until(&a, true);
    // The connection goes on, and another one is refused.
    a.assert_moves();
    rping.assert_runs();
    let mut late = heddle();
    late.args(["rping", "-c", "-C", "1", "-a", "10.77.0.1", "-p", "7174", "--ip", "10.77.0.10/16"]);
    late.args(["--vdev", "net_af_packet0,iface=peer"]);
    let late = a.lab.peers.run(|| late.output()).unwrap();
    assert!(!late.status.success(), "a new connection was taken");
    let refused = |c: &Value| c["part"] == "ctl" && c["name"] == "draining_refused";
    let stats = a.ask(&["stats"]);
    let counter = stats["counters"].as_array().unwrap().iter().find(|c| refused(c));
    assert!(counter.is_some_and(|c| c["value"].as_u64() > Some(0)), "{stats}");
    // A device is refused too, with the reason.
    let (_, text) = a.refusal(&["rping", "-s", "-a", "10.77.0.1", "-p", "9"]);
    assert!(text.contains("drains"), "{text}");
    let shown = String::from_utf8(a.command(&["status"]).stdout).unwrap();
    assert!(shown.contains("\ndraining for "), "{shown}");
    // A second drain goes on with the first, and gives up after its own time.
    let since = a.ask(&["status"])["draining_ns"].clone();
    let (status, text) = a.refusal(&["drain", "--timeout", "300ms"]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("1 connection is left") && text.contains("--end"), "{text}");
    assert_eq!(a.ask(&["status"])["draining_ns"], since);
    std::thread::sleep(Duration::from_millis(300));
    assert!(get(&a, "/metrics").contains("\nheddle_draining 1\n"));
    // The client leaves, and the first drain has its end.
    drop(rping);
    a.ask(&["conn", "kill", &a.ask(&["conns"])["conns"][0]["conn"].to_string()]);
    let done = waiting.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    assert!(said.contains("draining: 1 connection is left"), "{said}");
    let outcome: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&outcome["conns"], &outcome["ended"]), (&0.into(), &0.into()));
    a.ask(&["undrain"]);
    a.ask(&["undrain"]);
    until(&a, false);
    let _rping = a.rping(7174);
    a.assert_moves();
}

#[test]
fn test_drain_ends_what_is_left_and_undrain_ends_a_waiting_drain() {
    let a = Appliance::start(&listen(7174, "rping"));
    let mut rping = a.rping(7174);
    a.assert_moves();
    let waiting = start(&a, &[]);
    until(&a, true);
    a.ask(&["undrain"]);
    let given_up = waiting.wait_with_output().unwrap();
    assert_eq!(given_up.status.code(), Some(1));
    let text = String::from_utf8_lossy(&given_up.stderr).into_owned();
    assert!(text.contains("another client has ended the drain"), "{text}");
    rping.assert_runs();
    a.assert_moves();
    let outcome = a.ask(&["drain", "--timeout", "200ms", "--end"]);
    assert_eq!((&outcome["conns"], &outcome["ended"]), (&0.into(), &1.into()));
    rping.wait();
    assert_eq!(a.ask(&["drain", "--no-wait"])["conns"], 0);
    assert_eq!(a.ask(&["drain"])["conns"], 0, "nothing to wait for");
}
