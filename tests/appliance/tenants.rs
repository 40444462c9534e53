//! Applications of different users beside each other: the effects of one user's acts on the others.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use heddle::Device;
use heddle::connection::{EventQueue, ListenParams};
use heddle::remote::OpenParams;
use heddle_testkit::mpa;

use crate::lab::{Appliance, PATIENCE, Running, file, heddle, listen};

pub const USER: u32 = 65_534;

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Prepares to run our program as [`USER`], without groups.
pub fn as_program(a: &Appliance, args: &[&str]) -> Command {
    let heddle = heddle();
    let mut c = Command::new("setpriv");
    let user = USER.to_string();
    c.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
    c.arg(heddle.get_program()).args(args).arg("--socket").arg(a.socket());
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    c
}

fn serve(a: &Appliance, port: &str) -> Running {
    let args = ["rping", "-s", "-P", "-a", "10.77.0.1", "-p", port];
    Running(as_program(a, &args).spawn().unwrap())
}

fn clients(a: &Appliance) -> Vec<serde_json::Value> {
    a.ask(&["status"])["clients"].as_array().unwrap().clone()
}

fn has_listener(a: &Appliance) -> bool {
    clients(a).iter().any(|c| c["uid"] == USER && c["listeners"] == 1)
}

pub const ANYBODY: &str = "[[client]]\nwho = \"any\"\nlisten = [\"any\"]\n";

#[test]
fn test_application_that_is_killed_or_loses_its_rule_loses_all_it_has() {
    let a = Appliance::start(&(ANYBODY.to_owned() + &listen(7174, "rping")));
    let _rping = a.rping(7174);
    a.assert_moves();
    let mut killed = serve(&a, "7200");
    until("it listens", || has_listener(&a));
    let number = clients(&a)[0]["application"].to_string();
    a.ask(&["application", "kill", &number]);
    assert!(!killed.wait().success(), "it has heard of it");
    until("all is given back", || clients(&a).is_empty());
    assert_eq!(a.ask(&["status"])["control"]["evicted"], 1);
    let (_, text) = a.refusal(&["application", "kill", &number]);
    assert!(text.contains(&format!("there is no application {number}")), "{text}");
    let out = as_program(&a, &["application", "kill", "1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("you may not"), "{out:?}");

    // The rule goes, and with it the application that it covered; other applications notice
    // nothing.
    let mut evicted = serve(&a, "7201");
    until("it listens", || has_listener(&a));
    a.write(&listen(7174, "rping"));
    assert_eq!(a.ask(&["reload"])["failed"], serde_json::json!([]));
    assert!(!evicted.wait().success(), "it has heard of it");
    until("all is given back", || clients(&a).is_empty());
    assert_eq!(a.ask(&["status"])["control"]["evicted"], 2);
    assert!(!serve(&a, "7202").wait().success(), "and comes in no more");
    a.assert_moves();
}

#[test]
fn test_application_cannot_listen_where_file_has_a_service() {
    let a = Appliance::start(&(ANYBODY.to_owned() + &listen(7174, "rping")));
    let _rping = a.rping(7174);
    assert!(!serve(&a, "7174").wait().success(), "a service is there");
    // The application was there first, and the file still wins.
    let mut squatter = serve(&a, "7300");
    until("it listens", || has_listener(&a));
    let (_, text) = a.refusal(&["listen", "add", "10.77.0.1:7174=sink"]);
    assert!(text.contains("already"), "{text}");
    a.write(&(ANYBODY.to_owned() + &listen(7174, "rping") + &listen(7300, "sink")));
    let done = a.ask(&["reload"]);
    assert_eq!(done["failed"], serde_json::json!([]), "{done}");
    until("it has lost its listener", || clients(&a).iter().all(|c| c["listeners"] == 0));
    let listeners = a.ask(&["status"])["listeners"].clone();
    let at = |l: &serde_json::Value| (l["address"].clone(), l["service"].clone());
    let all: Vec<_> = listeners.as_array().unwrap().iter().map(at).collect();
    assert!(all.contains(&("10.77.0.1:7300".into(), "sink".into())), "{all:?}");
    let _ = squatter.0.kill();
    // A rule without `listen` does not let an application listen anywhere.
    a.write(&("[[client]]\nwho = \"any\"\n".to_owned() + &listen(7174, "rping")));
    a.ask(&["reload"]);
    assert!(!serve(&a, "7301").wait().success());
    a.assert_moves();
}

/// An application never answers the requests of its peers, and asks for a patience of thirty
/// thousand years: it holds only one tenant's share, and the peers of the services still come in.
#[test]
fn test_application_that_never_answers_blocks_no_service() {
    let limits = "[limits]\nconnections = 64\n".to_owned();
    let a = Appliance::start(&(limits + &listen(7174, "rping")));
    let params = OpenParams { memory: 1 << 20, queues: 1 << 20, ..OpenParams::default() };
    let device = Device::open_with(a.socket(), &params).unwrap();
    let events = EventQueue::new(None);
    let patient = ListenParams {
        backlog: 4096,
        max_startups_per_peer: None,
        request_timeout: Duration::from_secs(1 << 40),
        accept_timeout: Duration::from_secs(1 << 40),
        ..ListenParams::default()
    };
    device.listen("10.77.0.1:7300".parse().unwrap(), patient, &events).unwrap();
    until("it listens", || clients(&a).iter().any(|c| c["listeners"] == 1));
    let request = mpa::request(b"");
    let peers = || {
        let at = "10.77.0.1:7300".parse().unwrap();
        let connect = |_| {
            let mut tcp = TcpStream::connect_timeout(&at, PATIENCE).ok()?;
            tcp.write_all(&request).ok()?;
            Some(tcp)
        };
        (0..40).filter_map(connect).collect::<Vec<_>>()
    };
    let held: Vec<TcpStream> = a.lab.peers.run(peers);
    let startups = |a: &Appliance| a.ask(&["status"])["startups"].as_u64().unwrap();
    // The worker has 32 places, and one tenant may hold three quarters of them.
    until("it holds what it can", || startups(&a) == 24);
    let _rping = a.rping(7174);
    a.assert_moves();
    assert!(startups(&a) <= 24);
    drop((held, device));
    until("all is given back", || startups(&a) == 0 && clients(&a).is_empty());
}

#[test]
fn test_user_who_may_change_exports_only_directories_file_allows() {
    let a = Appliance::start("");
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir_all(root.join("data")).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("etc")).unwrap();
    let set = |more: &str| {
        let path = a.socket();
        let text = file(path.parent().unwrap(), "");
        a.write_as_it_is(&format!("{text}change = [\"user:{USER}\"]\n{more}"));
        assert_eq!(a.ask(&["reload"])["failed"], serde_json::json!([]));
    };
    let add = |port: u16, path: &Path| -> Output {
        let listen = format!("10.77.0.1:{port}=nfs:{},ro", path.display());
        as_program(&a, &["listen", "add", &listen]).output().unwrap()
    };
    let refused = |out: Output| {
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && text.contains("control.exports"), "{text}");
    };
    set("");
    refused(add(20_049, Path::new("/etc")));
    refused(add(20_049, &root.join("data")));
    set(&format!("exports = [\"{}\"]\n", root.display()));
    refused(add(20_049, Path::new("/etc")));
    refused(add(20_049, &root.join("etc")));
    refused(add(20_049, &root.join("data/../..")));
    let out = add(20_049, &root.join("data"));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // Root may export any directory.
    a.ask(&["listen", "add", "10.77.0.1:20050=nfs:/etc,ro"]);
    assert_eq!(a.ask(&["status"])["listeners"].as_array().unwrap().len(), 2);
}
