//! Two appliances with two ports and several workers, joined port by port by `net_memif`: no root,
//! no interface of the kernel. Applications open a device of one appliance and connect to services
//! of the other.
//!
//! ```text
//!   heddle bench, rping ── socket ──▶ appliance b ══ memif, net 0 ══ appliance a: rping, perf
//!                                                 ══ memif, net 1 ══
//! ```
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unreachable_pub, reason = "one program in several files")]

mod daemon;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use daemon::{Daemon, Running, until};

/// Connections over each net. By chance all of them go to one of two workers only once in two
/// billion runs.
const CONNS: usize = 32;

/// Both appliances. `a` listens on the unspecified address for perf, and on one of its addresses
/// for rping.
struct Pair {
    // The fields drop in this order, because a memif server of DPDK 22.11 may not survive its
    // client.
    a: Daemon,
    b: Daemon,
    dir: tempfile::TempDir,
}

/// The networks that each port is on.
type Nets<'a> = [&'a [u8]; 2];

/// Returns the address of side `n` in a network.
fn ip(net: u8, n: u8) -> String {
    format!("10.80.{net}.{n}")
}

/// Returns the file of side `n`, 1 or 2.
fn file(dir: &std::path::Path, n: u8, nets: Nets<'_>, more: &str) -> String {
    let role = if n == 1 { "server" } else { "client" };
    let cores: Vec<_> = heddle_dataplane::eal::allowed_cpus().into_iter().take(2).collect();
    let mut text = format!(
        "{more}\n[dpdk]\nhugepages = \"never\"\n[workers]\nlcores = {cores:?}\nidle = \"backoff\"\n\
         [limits]\nframes = 2048\n[memory]\nregistered = 16\nqueues = 32\n"
    );
    for (port, nets) in nets.into_iter().enumerate() {
        let socket = dir.join(format!("memif{port}"));
        let addresses: Vec<_> = nets.iter().map(|net| format!("{}/24", ip(*net, n))).collect();
        // The ends of a memif need the same number of queues, but not of workers.
        let workers = if (port, n) == (1, 2) { 1 } else { 2 };
        text += &format!(
            "[[port]]\nname = \"net{port}\"\nworkers = {workers}\nqueues = 1\n\
             vdev = \"net_memif{port},role={role},id=0,socket={},socket-abstract=no\"\n\
             addresses = {addresses:?}\n",
            socket.display()
        );
    }
    text
}

fn listen(addr: &str, port: u16, service: &str) -> String {
    format!("[[listen]]\naddress = \"{addr}:{port}\"\nservice = \"{service}\"\n")
}

impl Pair {
    fn start(nets: Nets<'_>, services: &str) -> Pair {
        let dir = tempfile::tempdir().unwrap();
        let start = |n, more: &str| Daemon::start(n, &file(dir.path(), n, nets, more), dir.path());
        let (a, b) = (start(1, services), start(2, ""));
        let pair = Pair { a, b, dir };
        for d in [&pair.a, &pair.b] {
            let up = |d: &Daemon| d.list("ports").iter().all(|p| p["up"] == true);
            until("links", || up(d).then_some(()));
        }
        pair
    }

    /// Writes other files and reloads them. Returns both answers.
    fn reload(&self, nets: Nets<'_>, services: &str) -> [Value; 2] {
        [(&self.a, 1, services), (&self.b, 2, "")].map(|(d, n, more)| {
            d.write(&file(self.dir.path(), n, nets, more));
            d.ask(&["reload"])
        })
    }

    fn rping(&self, addr: &str, count: &str) -> std::process::Command {
        self.b.client(&["rping", "-c", "-V", "-a", addr, "-p", "7174", "-C", count])
    }
}

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or_else(|| panic!("no number: {v}"))
}

#[test]
fn test_connections_of_two_ports_and_four_workers_are_all_shown() {
    let pair = Pair::start([&[0], &[1]], &listen("0.0.0.0", 7175, "perf"));
    let (a, b) = (&pair.a, &pair.b);
    let registrations = |d: &Daemon| number(&d.ask(&["status"])["registrations"]);
    let before = [registrations(a), registrations(b)];
    let benches = [0, 1].map(|net| {
        let to = format!("{}:7175", ip(net, 1));
        let qps = CONNS.to_string();
        let args = ["bench", "--connect", &to, "--op", "write", "--size", "512", "--depth", "1"];
        let rest = ["--qps", &qps, "--duration", "600s", "--inline"];
        Running::of(b.client(&[&args[..], &rest].concat()))
    });
    let all_run = || {
        let conns = a.list("conns");
        let up = conns.iter().filter(|c| c["state"] == "running" && !c["qp"].is_null()).count();
        (up == 2 * CONNS).then_some(conns)
    };
    let conns = until("connections", all_run);
    // Each connection is on a worker of the port by which it came, and every worker has some.
    let mut of_worker = [0; 4];
    for c in &conns {
        let worker = usize::try_from(number(&c["worker"])).unwrap();
        let port = worker / 2;
        let local = format!("{}:7175", ip(u8::try_from(port).unwrap(), 1));
        assert_eq!((&c["local"], &c["service"]), (&json!(local), &json!("perf")), "{c}");
        of_worker[worker] += 1;
    }
    assert_eq!([of_worker[0] + of_worker[1], of_worker[2] + of_worker[3]], [CONNS; 2]);
    assert!(of_worker.iter().all(|n| *n > 0), "{of_worker:?}");
    for (worker, n) in of_worker.iter().enumerate() {
        let filtered = a.ask(&["conns", "--worker", &worker.to_string()]);
        assert_eq!(filtered["conns"].as_array().unwrap().len(), *n);
    }
    // The other side spreads the connections itself: its second port has only one worker.
    let of_b: BTreeSet<_> = b.list("conns").iter().map(|c| number(&c["worker"])).collect();
    assert_eq!(of_b, BTreeSet::from([0, 1, 2]));

    let status = a.ask(&["status"]);
    assert_eq!(status["ports"], json!(["net0", "net1"]));
    let workers = status["workers"].as_array().unwrap().iter();
    let workers: Vec<_> = workers.map(|w| (&w["worker"], &w["port"], &w["running"])).collect();
    let of = |worker, port| (json!(worker), json!(port), json!(true));
    let expected = [of(0, "net0"), of(1, "net0"), of(2, "net1"), of(3, "net1"), of(4, "inner")];
    assert_eq!(workers, expected.iter().map(|(w, p, r)| (w, p, r)).collect::<Vec<_>>());
    // Workers take the processors in order.
    let cores = heddle_dataplane::eal::allowed_cpus();
    let core = |n: usize| json!(cores[n % cores.len().min(2)]);
    let lcores: Vec<_> =
        status["workers"].as_array().unwrap().iter().map(|w| &w["lcore"]).collect();
    assert_eq!(lcores, [&core(0), &core(1), &core(2), &core(3), &core(4)]);
    // Both ports share one listener.
    assert_eq!(status["listeners"].as_array().unwrap().len(), 1);

    for (n, port) in a.list("ports").iter().enumerate() {
        let net = u8::try_from(n).unwrap();
        assert_eq!(port["name"], json!(format!("net{n}")));
        assert_eq!((&port["driver"], &port["workers"]), (&json!("net_memif"), &json!(2)));
        assert_eq!(port["addresses"], json!([format!("{}/24", ip(net, 1))]));
        // Each connection takes far more frames than an ARP request.
        assert!(number(&port["counters"]["rx_frames"]) > 3 * CONNS as u64, "{port}");
        assert!(number(&port["counters"]["tx_frames"]) > 3 * CONNS as u64, "{port}");
    }

    // A worker that gets no processor for a while does not answer.
    let all_answer = || Some(a.ask(&["stats"])).filter(|stats| stats["silent"] == json!([]));
    let stats = until("all workers' counters", all_answer);
    assert_eq!(stats["workers"], json!([0, 1, 2, 3, 4]));
    let counters = stats["counters"].as_array().unwrap();
    let of = |part: &str, name: &str| {
        let found = counters.iter().find(|c| c["part"] == part && c["name"] == name);
        found.unwrap_or_else(|| panic!("no {part} {name}"))
    };
    let received = of("qp", "rx_bytes");
    let each: Vec<_> = received["workers"].as_array().unwrap().iter().map(number).collect();
    // No application connects to the appliance from within, so the inner worker has none.
    assert!(each.len() == 5 && each[..4].iter().all(|n| *n > 0) && each[4] == 0, "{received}");
    assert_eq!(each.iter().sum::<u64>(), number(&received["value"]));
    for port in ["net0", "net1"] {
        assert!(number(&of(port, "rx_bytes")["value"]) > 0);
    }

    // The peers may get no processor for a while either.
    let both_receive = || {
        let top = a.ask(&["top", "--every", "500ms"]);
        let receives = |port: &Value| port["rx_frames"].as_f64().unwrap() > 0.0;
        top["ports"].as_array().unwrap().iter().all(receives).then_some(top)
    };
    let top = until("frames at both ports", both_receive);
    assert_eq!(
        (top["ports"].as_array().unwrap().len(), top["workers"].as_array().unwrap().len()),
        (2, 5)
    );
    assert_eq!(top["conns"].as_array().unwrap().len(), 2 * CONNS);
    let text = a.text(&["status"]);
    assert!(["net0", "net1"].iter().all(|p| text.contains(p)), "{text}");
    assert_eq!(b.ask(&["status"])["clients"].as_array().unwrap().len(), 2);

    // Both applications are killed, and both sides have released everything of theirs.
    drop(benches);
    let nothing = |d: &Daemon, before: u64| {
        let status = d.ask(&["status"]);
        let none = status["conns"] == 0 && status["clients"] == json!([]);
        none && status["draining"] == 0 && status["registrations"] == before
    };
    for (d, before) in [(a, before[0]), (b, before[1])] {
        until("nothing is left", || nothing(d, before).then_some(()));
    }
}

#[test]
fn test_an_address_moves_from_one_port_to_the_other() {
    const MOVED: u8 = 7;
    let service = listen(&ip(MOVED, 1), 7174, "rping") + &listen(&ip(1, 1), 7174, "rping");
    let pair = Pair::start([&[0, MOVED], &[1]], &service);
    let (a, b) = (&pair.a, &pair.b);
    let mut moved = Running::of(pair.rping(&ip(MOVED, 1), "0"));
    let mut stays = Running::of(pair.rping(&ip(1, 1), "0"));
    let at = |net| format!("{}:7174", ip(net, 1));
    let conn = |net: u8| {
        let found = a.list("conns").into_iter().find(|c| c["local"] == at(net).as_str());
        found.filter(|c| c["state"] == "running" && !c["tcp"].is_null())
    };
    assert!(number(&until("the first", || conn(MOVED))["worker"]) < 2);
    until("the second", || conn(1));

    let [done, done_b] = pair.reload([&[0], &[1, MOVED]], &service);
    for done in [&done, &done_b] {
        assert_eq!(done["failed"], json!([]));
    }
    assert!(done_b["applied"].as_array().unwrap().contains(&json!("addresses and routes")));
    let addresses = |d: &Daemon, port: usize| d.list("ports")[port]["addresses"].clone();
    assert_eq!(addresses(a, 0), json!([format!("{}/24", ip(0, 1))]));
    assert_eq!(addresses(a, 1).as_array().unwrap().len(), 2);
    assert_eq!(addresses(b, 1).as_array().unwrap().len(), 2);

    // Connections of the moved address end; connections of other addresses go on undisturbed.
    assert!(!moved.wait().success(), "its connection was reset");
    let received = |c: Value| number(&c["tcp"]["received"]);
    let before = received(until("it", || conn(1)));
    until("progress", || (received(conn(1)?) > before).then_some(()));
    stays.assert_runs();
    // The service continues at the new place of the address.
    let status = a.ask(&["status"]);
    let listeners = status["listeners"].as_array().unwrap().iter();
    let listeners: BTreeSet<_> =
        listeners.map(|l| [&l["address"], &l["state"]].map(|v| v.as_str().unwrap())).collect();
    let (one, other) = (at(MOVED), at(1));
    assert_eq!(listeners, BTreeSet::from([[&one, "listening"], [&other, "listening"]]));
    let _again = Running::of(pair.rping(&ip(MOVED, 1), "0"));
    assert!(number(&until("another", || conn(MOVED))["worker"]) >= 2);
    let out = pair.rping(&ip(MOVED, 1), "20").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn test_all_ports_and_workers_end_in_order() {
    let service = listen("0.0.0.0", 7174, "rping");
    let mut pair = Pair::start([&[0], &[1]], &service);
    let mut clients: Vec<_> = (0..8).map(|n| Running::of(pair.rping(&ip(n % 2, 1), "0"))).collect();
    let up = |c: &Value| c["state"] == "running";
    let a = &pair.a;
    until("connections", || {
        clients.iter_mut().for_each(Running::assert_runs);
        (a.list("conns").iter().filter(|c| up(c)).count() == 8).then_some(())
    });
    let told = Instant::now();
    pair.a.terminate();
    let (status, log) = pair.a.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    // No connection had to be reset after the deadline of five seconds, and no thread panicked.
    assert!(told.elapsed() < Duration::from_secs(20), "{:?}", told.elapsed());
    assert!(!log.contains("ERROR") && !log.contains("panic"), "{log}");
    for c in &mut clients {
        c.wait();
        // The connection was not reset, and not terminated because memory was unregistered while
        // bytes were in flight.
        let said = c.log();
        assert!(said.contains("messages: closed in order"), "{said}");
    }
}

/// A program sees only flushed requests; its message names the appliance.
#[test]
fn test_programs_name_the_appliance_when_it_has_ended() {
    let services = listen("0.0.0.0", 7174, "rping") + &listen("0.0.0.0", 7175, "perf");
    let Pair { a, b, dir } = Pair::start([&[0], &[1]], &services);
    let at = format!("{}:7175", ip(0, 1));
    let bench = ["bench", "--connect", &at, "--op", "write", "--duration", "600s", "-q"];
    let mut clients = [
        Running::of(b.client(&["rping", "-c", "-a", &ip(0, 1), "-p", "7174", "-C", "0"])),
        Running::of(b.client(&bench)),
    ];
    until("connections", || {
        clients.iter_mut().for_each(Running::assert_runs);
        let running = a.list("conns").iter().filter(|c| c["state"] == "running").count();
        (running >= 2).then_some(())
    });
    // Dropping an appliance kills it.
    drop(b);
    let named = format!("the RNIC at {} has ended", dir.path().join("2.sock").display());
    for c in &mut clients {
        assert_eq!(c.wait().code(), Some(1));
        let said = c.log();
        assert!(said.contains(&named), "{said}");
    }
}
