//! Applications in other processes than the appliance's.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::built;
use crate::lab::{Appliance, PATIENCE, Running, heddle, listen};

/// Starts `heddle rping` as a server on the appliance's RNIC.
fn serve(a: &Appliance, port: &str) -> Running {
    let mut c = heddle();
    c.args(["rping", "-s", "-P", "-a", "10.77.0.1", "-p", port, "--socket"]).arg(a.socket());
    c.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    Running(c.stderr(std::process::Stdio::piped()).spawn().unwrap())
}

fn wait_for(what: &str, mut is: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    start.elapsed()
}

#[test]
fn test_dead_application_returns_all_resources_of_its_device() {
    let a = Appliance::start(&listen(7174, "rping"));
    let _other = a.rping(7174);
    a.assert_moves();
    let before = a.ask(&["status"])["registrations"].as_u64().unwrap();
    let server = serve(&a, "7200");
    let clients = |a: &Appliance| a.ask(&["status"])["clients"].as_array().unwrap().clone();
    wait_for("it listens", || clients(&a).first().is_some_and(|c| c["listeners"] == 1));
    let client = clients(&a)[0].clone();
    assert_eq!(client["pid"].as_u64(), Some(server.0.id().into()), "{client}");
    let listeners = a.ask(&["status"])["listeners"].clone();
    let names: Vec<_> = listeners.as_array().unwrap().iter().map(|l| &l["service"]).collect();
    assert!(names.iter().any(|n| n.as_str().unwrap().contains('#')), "{names:?}");
    // Kills the server, which therefore says nothing before it ends.
    drop(server);
    let took = wait_for("it is gone", || {
        let status = a.ask(&["status"]);
        status["clients"].as_array().unwrap().is_empty()
            && status["listeners"].as_array().unwrap().len() == 1
            && status["registrations"].as_u64() == Some(before)
    });
    // Each status request alone takes a part of that time.
    assert!(took < Duration::from_secs(5), "{took:?}");
    a.assert_moves();
}

#[test]
fn test_status_and_metrics_show_resources_of_each_application() {
    let a = Appliance::start("[metrics]\nlisten = \"127.0.0.1:9184\"\n");
    let server = serve(&a, "7200");
    let client = || a.ask(&["status"])["clients"][0].clone();
    wait_for("it listens", || client()["listeners"] == 1);
    let _peer = a.rping(7200);
    wait_for("it has registered", || client()["registrations"].as_u64() > Some(0));
    wait_for("it has a connection", || client()["connections"] == 1);
    // The server still has to register memory for the connection that it has just accepted.
    let mut seen = client();
    let owner = format!("{}#{}", seen["name"].as_str().unwrap(), seen["application"]);
    wait_for("each of its registrations is listed as its own", || {
        let before = std::mem::replace(&mut seen, client());
        let same = ["registrations", "memory", "queue_pairs"].iter().all(|k| before[k] == seen[k]);
        let mrs = a.ask(&["mrs"]);
        let its = mrs["mrs"].as_array().unwrap().iter().filter(|m| m["owner"] == *owner).count();
        same && seen["registrations"].as_u64() == Some(its as u64)
    });
    assert_eq!(seen["queue_pairs"], 1);
    assert!(seen["memory"].as_u64() > Some(0), "{seen}");
    let text = String::from_utf8(a.command(&["mrs"]).stdout).unwrap();
    assert!(text.contains(&owner), "{text}");
    let metrics = crate::links::get(&a, "/metrics");
    let of = |what: &str| {
        let (name, uid) = (seen["name"].as_str().unwrap(), &seen["uid"]);
        let line = format!("heddle_application_{what}{{user=\"{uid}\",name=\"{name}\"}} ");
        let found = metrics.lines().find_map(|l| l.strip_prefix(&line));
        found.unwrap_or_else(|| panic!("no {line} in {metrics}")).to_owned()
    };
    assert_eq!((of("devices").as_str(), of("queue_pairs").as_str()), ("1", "1"));
    assert_eq!(of("memory_bytes"), seen["memory"].to_string());
    assert!(metrics.contains("heddle_lcore_sleeps_total{lcore="), "{metrics}");
    drop(server);
}

/// Runs the example with each side on the RNIC of another appliance.
#[test]
fn test_rpc_program_is_called_between_two_appliances() {
    // Build before any worker spins and takes the processor.
    built::examples();
    let a = Appliance::start("");
    let dir = tempfile::tempdir().unwrap();
    let peers = dir.path().join("peer");
    let _peer = a.peer(&peers);
    let example = |socket: &Path, side: &str| {
        let mut example = Command::new(built::example("rpc"));
        example.arg("--socket").arg(socket).args([side, "10.77.0.1:7200"]).stdin(Stdio::null());
        example.stdout(Stdio::piped()).stderr(Stdio::piped());
        example.spawn().unwrap()
    };
    let mut server = example(&a.socket(), "--listen");
    let mut said = BufReader::new(server.stdout.take().unwrap());
    let mut first = String::new();
    said.read_line(&mut first).unwrap();
    let listens = first == "server: listening on 10.77.0.1:7200\n";
    let client = listens.then(|| example(&peers, "--connect").wait_with_output().unwrap());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    let server = server.wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&server.stderr);
    assert!(server.status.success(), "{first}{rest}{why}");
    let client = client.unwrap_or_else(|| panic!("{first}{why}"));
    let (text, why) = [&client.stdout, &client.stderr].map(|o| String::from_utf8_lossy(o)).into();
    assert!(client.status.success(), "{text}{why}");
    assert_eq!(text, "client: 1048576 bytes of 7: true\n");
    assert_eq!(rest, "server: 2 calls\n");
}

#[test]
fn test_application_is_bound_to_quotas_and_addresses_of_the_file() {
    let rule = "[[client]]\nwho = \"any\"\nlisten = [\"10.77.0.1:7000-7100\"]\n";
    let a = Appliance::start(rule);
    let mut refused = serve(&a, "7200");
    assert!(!refused.wait().success(), "it may not listen there");
    let _served = serve(&a, "7050");
    wait_for("it listens", || a.ask(&["status"])["clients"][0]["listeners"] == 1);
    a.write("[[client]]\nwho = \"any\"\nmemory = 0\nqueues = 0\nlisten = [\"any\"]\n");
    a.ask(&["reload"]);
    let mut refused = serve(&a, "7051");
    assert!(!refused.wait().success(), "no byte for it");
}
