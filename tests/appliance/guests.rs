//! Clients without permission, and clients that misbehave.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use heddle::Device;
use heddle::device::DeviceError;
use heddle_socket::FaultKind;

use crate::lab::{Appliance, PATIENCE, heddle, listen};

/// Runs `heddle` as the user nobody, without groups.
fn as_nobody(a: &Appliance, args: &[&str]) -> Output {
    let heddle = heddle();
    let mut c = std::process::Command::new("setpriv");
    c.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    c.arg(heddle.get_program()).args(args).arg("--socket").arg(a.socket());
    c.output().unwrap()
}

#[test]
fn test_other_users_may_do_only_what_the_file_allows() {
    let a = Appliance::start(&listen(1, "sink"));
    let denied = |args: &[&str]| {
        let out = as_nobody(&a, args);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains("you may"), "{args:?}: {text}");
    };
    denied(&["status"]);
    // Append the key to the last table, which is that of the socket.
    let path = a.socket();
    let text = crate::lab::file(path.parent().unwrap(), &listen(1, "sink"));
    a.write_as_it_is(&format!("{text}read = [\"user:65534\"]\n"));
    a.ask(&["reload"]);
    assert_eq!(as_nobody(&a, &["status", "--json"]).status.code(), Some(0));
    for args in [
        &["listen", "add", "10.77.0.1:2=sink"][..],
        &["conn", "kill", "1"],
        &["reload"],
        &["log-level", "off"],
    ] {
        denied(args);
    }
    // The list must not show anything that gives access.
    let out = as_nobody(&a, &["mrs", "--stags", "--json"]);
    assert!(out.status.success() && !String::from_utf8_lossy(&out.stdout).contains("stag"));
}

fn status(a: &Appliance, key: &str) -> u64 {
    a.ask(&["status"])["control"][key].as_u64().unwrap()
}

#[test]
fn test_hostile_documents_change_nothing_for_a_connection() {
    let a = Appliance::start(&listen(7174, "rping"));
    let mut rping = a.rping(7174);
    a.assert_moves();
    let connect = || {
        let s = UnixStream::connect(a.socket()).unwrap();
        s.set_read_timeout(Some(PATIENCE)).unwrap();
        s.set_write_timeout(Some(PATIENCE)).unwrap();
        s
    };

    // This client sends half a line and never the rest.
    let mut half = connect();
    half.write_all(b"{\"v\":1,").unwrap();
    // The appliance answers each line that is not a request by itself.
    let mut wrong = connect();
    let lines: [&[u8]; 5] =
        [b"{}", b"\xff\xfe", b"{\"v\":9,\"id\":1,\"op\":\"status\"}", b"[]", b"{\"v\":1,\"id\":2}"];
    for line in lines {
        wrong.write_all(line).unwrap();
        wrong.write_all(b"\n").unwrap();
        let mut answer = Vec::new();
        while answer.last() != Some(&b'\n') {
            let mut byte = [0];
            wrong.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer["error"]["text"].is_string(), "{answer}");
    }
    // This client sends a megabyte without a line's end, so the appliance drops it.
    let mut long = connect();
    let _ = long.write_all(&vec![b' '; 1 << 20]);
    assert!(matches!(long.read(&mut [0]), Ok(0) | Err(_)));
    a.assert_moves();

    // The appliance turns most of a thousand connections away, with a reason, and still serves
    // another client.
    let many: Vec<_> = (0..1000).filter_map(|_| UnixStream::connect(a.socket()).ok()).collect();
    let out = as_nobody(&a, &["status"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("you may not"), "it answers");
    let turned_away = Device::open(a.socket());
    let why = |e: &DeviceError| matches!(e, DeviceError::Refused(f) if f.kind == FaultKind::Busy);
    assert!(turned_away.as_ref().is_err_and(why), "{turned_away:?}");
    drop(many);
    let until = Instant::now() + PATIENCE;
    while !a.command(&["status"]).status.success() {
        assert!(Instant::now() < until, "places do not come back");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(status(&a, "turned_away") > 0 && status(&a, "broken") > 0);
    a.assert_moves();

    // This client asks ten thousand times and never reads an answer.
    let mut deaf = connect();
    deaf.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    for n in 0..10_000 {
        let line = format!("{{\"v\":1,\"id\":{n},\"op\":\"stats\"}}\n");
        if deaf.write_all(line.as_bytes()).is_err() {
            break;
        }
    }
    let before = a.received();
    let until = Instant::now() + PATIENCE;
    while status(&a, "slow") == 0 {
        assert!(Instant::now() < until, "it is not dropped");
        thread::sleep(Duration::from_millis(100));
    }
    rping.assert_runs();
    assert!(a.received() > before);
}
