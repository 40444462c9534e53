//! Runs `heddle rping` and `heddle bench` on an RNIC of another process through a socket; the other
//! process is this test.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use heddle::connection::{ListenParams, MpaOptions};
use heddle::hub::{Policy, serve};
use heddle::{Device, Endpoint, EndpointConfig};
use heddle_services::Step;
use heddle_services::bench::BenchServer;
use heddle_services::rping::{RpingClient, RpingConfig, RpingServer};

fn heddle(args: &[&str], socket: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heddle"));
    command.args(args).arg("--socket").arg(socket).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(args: &[&str], socket: &Path) -> String {
    let out = heddle(args, socket);
    assert!(out.status.success(), "{args:?}: {}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

/// Connects to an rping server and pings, until the server answers or the patience is over. Returns
/// true if the server answered.
fn pings(device: &Device, mut poll: impl FnMut()) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        let remote = "10.0.0.1:7300".parse().unwrap();
        let (count, size, validate, mpa) = (50, 100, true, MpaOptions::new());
        let config = RpingConfig { remote, count, size, validate, mpa };
        let mut client = RpingClient::new(device, config, false).unwrap();
        loop {
            poll();
            match client.step() {
                Ok(Step::Done) => return true,
                Ok(_) => {}
                // The server does not listen yet.
                Err(_) => break,
            }
        }
    }
    false
}

#[test]
fn test_commands_work_on_the_rnic_of_another_process() {
    let (eal, _turn) = crate::eal::eal();
    let config = |n: u8| EndpointConfig::new(vec![format!("10.0.0.{n}/24").parse().unwrap()]);
    let (a, b) = Endpoint::ring_pair(&eal, "socket", &config(1), &config(2)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("heddle.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let hub = a.hub().clone();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let hub = hub.clone();
            thread::spawn(move || serve(&hub, Policy::default(), &client));
        }
    });
    let [over, ping, pinged] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    let (ends, asked, done) = (over.clone(), ping.clone(), pinged.clone());
    let rnics = thread::spawn(move || {
        run((a, b), (&ends, &asked, &done));
    });
    let out = succeeds(&["rping", "-c", "-a", "10.0.0.2", "-C", "100", "-V"], &socket);
    assert!(out.contains("100 messages of 64 bytes") && out.contains("as they went out"), "{out}");
    for op in ["write", "read", "send", "fetch-add"] {
        let bench = ["bench", "--connect", "10.0.0.2:7175", "--op", op, "--iters", "200"];
        let out = succeeds(&[&bench[..], &["--verify", "--inline", "-q"]].concat(), &socket);
        assert!(out.contains(op), "{out}");
    }
    // Now the other direction: the test pings the program's server.
    ping.store(true, Ordering::Relaxed);
    let out = succeeds(&["rping", "-s", "-a", "10.0.0.1", "-p", "7300"], &socket);
    assert!(out.contains("listening on 10.0.0.1:7300"), "{out}");
    while !pinged.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(1));
    }
    // The program reports an error in one line.
    let out = heddle(&["rping", "-s", "-a", "10.0.0.9", "-p", "7300"], &socket);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("not an address of this stack"), "{}", text(&out.stderr));
    let out = heddle(&["rping", "-c", "-a", "10.0.0.2"], &dir.path().join("none.sock"));
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("cannot connect to"), "{}", text(&out.stderr));
    let out = heddle(&["rping", "-c", "-a", "10.0.0.2", "--ip", "10.0.0.1/24"], &socket);
    assert_eq!(out.status.code(), Some(2), "a device of its own and another's");
    over.store(true, Ordering::Relaxed);
    rnics.join().unwrap();
}

/// Runs both RNICs and the services on the second until `over`; pings a client when the test asks
/// for it.
fn run(
    (mut a, mut b): (Endpoint, Endpoint),
    (over, ask, done): (&AtomicBool, &AtomicBool, &AtomicBool),
) {
    let device = b.device().clone();
    let at = |port: u16| format!("10.0.0.2:{port}").parse().unwrap();
    let params = ListenParams::default;
    let mut rping = RpingServer::new(&device, at(7174), params(), None, false).unwrap();
    let mut perf = BenchServer::new(&device, at(7175), params(), None).unwrap();
    while !over.load(Ordering::Relaxed) {
        a.poll();
        b.poll();
        rping.step();
        perf.step();
        if ask.swap(false, Ordering::Relaxed) {
            let served = pings(&device, || {
                a.poll();
                b.poll();
            });
            assert!(served);
            done.store(true, Ordering::Relaxed);
        }
    }
}
