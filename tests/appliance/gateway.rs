//! Connections that an appliance forwards between InfiniBand's connection management and iWARP.

use std::io::Read;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{Appliance, PATIENCE, Running, heddle, listen};
use crate::net::PEER_IFACE;

const IB: &str = "[infiniband]\ncm = true\n";
const ASKER: &str = "10.77.0.8";
const TARGET: &str = "10.77.0.9";

fn forward(port: u16, to: u16, over: &str) -> String {
    format!(
        "[[listen]]\naddress = \"10.77.0.1:{port}\"\n\
         forward = {{ to = \"{TARGET}:{to}\", over = \"{over}\", timeout = \"10s\" }}\n"
    )
}

/// A `heddle cm` on the peers' side, and the lines that it has printed.
struct Cm {
    running: Running,
    lines: Arc<Mutex<String>>,
}

impl Cm {
    fn start(a: &Appliance, ip: &str, infiniband: bool, args: &[&str]) -> Cm {
        let mut c = heddle();
        let vdev = format!("net_af_packet0,iface={PEER_IFACE}");
        c.args(["cm", "--vdev", &vdev, "--ip", &format!("{ip}/16")]).args(args);
        if infiniband {
            c.arg("--infiniband");
        }
        c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = a.lab.peers.run(|| c.spawn()).unwrap();
        let mut out = child.stdout.take().unwrap();
        let lines = Arc::<Mutex<String>>::default();
        let said = Arc::clone(&lines);
        thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(n @ 1..) = out.read(&mut some) {
                said.lock().unwrap().push_str(&String::from_utf8_lossy(&some[..n]));
            }
        });
        Cm { running: Running(child), lines }
    }

    /// Starts a target that gives `answer` at port 7174.
    fn target(a: &Appliance, infiniband: bool, answer: &str) -> Cm {
        let at = format!("{TARGET}:7174={answer}");
        let mut cm = Cm::start(a, TARGET, infiniband, &["--listen", &at]);
        cm.says("listening");
        cm
    }

    fn asker(a: &Appliance, infiniband: bool, port: u16, options: &str) -> Cm {
        let at = format!("10.77.0.1:{port},timeout=30s{options}");
        Cm::start(a, ASKER, infiniband, &["--connect", &at])
    }

    /// Waits for the first line that contains `what`, and returns it.
    fn says(&mut self, what: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let lines = self.lines.lock().unwrap().clone();
            if let Some(line) = lines.lines().find(|l| l.contains(what)) {
                return line.to_owned();
            }
            assert!(Instant::now() < until, "no {what:?} in:\n{lines}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns both connections of the only forwarded pair: the asker's and the target's.
fn pair(a: &Appliance) -> [Value; 2] {
    let until = Instant::now() + PATIENCE;
    loop {
        let all = a.ask(&["conns"]);
        let all = all["conns"].as_array().unwrap();
        let of = |ip: &str| {
            let found = all
                .iter()
                .find(|c| c["remote"].as_str().unwrap().starts_with(ip) && !c["agreed"].is_null());
            found.cloned()
        };
        if let (Some(asker), Some(target)) = (of(ASKER), of(TARGET)) {
            return [asker, target];
        }
        assert!(Instant::now() < until, "{all:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn counter(a: &Appliance, name: &str) -> u64 {
    let stats = a.ask(&["stats"]);
    let all = stats["counters"].as_array().unwrap();
    let found = all.iter().find(|c| c["part"] == "gateway" && c["name"] == name);
    found.unwrap_or_else(|| panic!("no {name}"))["value"].as_u64().unwrap()
}

fn hex(s: &str) -> String {
    s.bytes().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn test_appliance_forwards_connections_both_ways_and_lists_their_pairs() {
    for (from, to) in [("infiniband", "iwarp"), ("iwarp", "infiniband")] {
        let a = Appliance::start(&format!("{IB}{}", forward(7180, 7174, to)));
        let status = a.ask(&["status"]);
        let service = format!("forward to {TARGET}:7174 over {to}");
        assert_eq!(status["listeners"][0]["service"], service.as_str());
        let mut target = Cm::target(&a, to == "infiniband", "accept,private=answer");
        let ib = from == "infiniband";
        let mut asker = Cm::asker(&a, ib, 7180, ",private=question,end=3s");
        let [one, other] = pair(&a);
        assert_eq!((&one["service"], &other["service"]), (&"forward".into(), &"forward".into()));
        assert_eq!((&one["transport"], &other["transport"]), (&from.into(), &to.into()));
        assert_eq!((&one["pair"], &other["pair"]), (&other["conn"], &one["conn"]));
        assert!(target.says("ConnectRequest").contains(&hex("question")));
        assert!(asker.says("Established").contains(&hex("answer")));
        target.says("Established");
        asker.says("Disconnected reason=closed in order");
        target.says("Disconnected reason=closed in order");
        assert!(asker.running.wait().success());
        assert_eq!((counter(&a, "forwarded"), counter(&a, "established")), (1, 1));
        let until = Instant::now() + PATIENCE;
        while a.ask(&["status"])["conns"] != 0 {
            assert!(Instant::now() < until, "{}", a.ask(&["conns"]));
            thread::sleep(Duration::from_millis(50));
        }
        // The table for people shows the pair as well.
        let mut asker = Cm::asker(&a, ib, 7180, ",end=20s");
        let [one, other] = pair(&a);
        let text = String::from_utf8(a.command(&["conns"]).stdout).unwrap();
        assert!(text.contains(&format!("forward {}", one["conn"])), "{text}");
        a.ask(&["conn", "kill", &other["conn"].to_string()]);
        asker.says("Disconnected");
    }
}

/// The test removes a rule while a request under it is half made; another rule replaces the target
/// of an established connection.
#[test]
fn test_forward_rules_change_while_their_connections_continue() {
    let a = Appliance::start(&format!("{IB}{}", forward(7180, 7174, "iwarp")));
    let mut target = Cm::target(&a, false, "accept,delay=3s");
    let mut asker = Cm::asker(&a, true, 7180, ",end=4s");
    target.says("ConnectRequest");
    a.write(&format!("{IB}{}", forward(7181, 7175, "iwarp")));
    let done = a.ask(&["reload"]);
    let applied = serde_json::json!([
        "no service on 10.77.0.1:7180",
        "forward to 10.77.0.9:7175 over iwarp on 10.77.0.1:7181"
    ]);
    assert_eq!((&done["applied"], &done["failed"]), (&applied, &serde_json::json!([])));
    asker.says("Established");
    pair(&a);
    // No peer listens at the new target, and no listener is left at the old address.
    for port in [7180, 7181] {
        let mut nobody =
            Cm::start(&a, "10.77.0.7", true, &["--connect", &format!("10.77.0.1:{port}")]);
        assert!(nobody.says("ConnectError").contains("invalid service ID"), "{port}");
    }
    // The command can add forwards without a file, and refuses impossible ones.
    a.ask(&["listen", "add", "10.77.0.1:7182", "--forward", "10.77.0.9:7174", "--over", "iwarp"]);
    a.ask(&["listen", "add", "10.77.0.1:7183=cmtime", "--infiniband"]);
    // This service needs no data.
    let mut idle = Cm::start(&a, "10.77.0.7", true, &["--connect", "10.77.0.1:7183,end=100ms"]);
    idle.says("Established transport=InfiniBand");
    idle.says("Disconnected reason=closed in order");
    for (args, what) in [
        (&["10.77.0.1:7184=rping", "--infiniband"][..], "only cmtime"),
        (&["10.77.0.1:7182=sink"], "is taken: forward to"),
        (&["10.77.0.1:7184", "--forward", "10.77.0.1:7184", "--over", "iwarp"], "a loop"),
        (&["10.77.0.1:7184", "--forward", "10.77.0.9", "--over", "iwarp"], "address and port"),
        (&["10.77.0.1:7184", "--forward", "10.77.0.9:1", "--over", "roce"], "iwarp, infiniband"),
    ] {
        let (status, text) = a.refusal(&[&["listen", "add"], args].concat());
        assert!(status == 1 && text.contains(what), "{args:?}: {status}: {text}");
    }
    a.ask(&["listen", "del", "10.77.0.1:7182"]);
    a.write(&listen(7174, "sink"));
    let (_, text) = a.refusal(&["reload"]);
    assert!(text.contains("infiniband.cm cannot change while it runs"), "{text}");
    asker.says("Disconnected reason=closed in order");
    assert!(asker.running.wait().success());
}

/// The appliance loses the address of a pair's InfiniBand side, and reports that to both sides.
#[test]
fn test_removed_address_ends_both_sides_of_a_forwarded_pair() {
    let with = |a: &Appliance, addr: &str, more: &str| {
        let path = a.socket();
        let text = crate::lab::file(path.parent().unwrap(), more);
        a.write_as_it_is(&text.replace("10.77.0.1/16", addr));
    };
    let rule = forward(7180, 7174, "iwarp").replace("10.77.0.1:7180", "10.77.0.77:7180");
    let a = Appliance::start(IB);
    with(&a, "10.77.0.1/16\", \"10.77.0.77/16", &format!("{IB}{rule}"));
    let done = a.ask(&["reload"]);
    assert_eq!(done["failed"], serde_json::json!([]), "{done}");
    let mut target = Cm::target(&a, false, "accept");
    let at = ["--connect", "10.77.0.77:7180,timeout=30s,end=25s"];
    let mut asker = Cm::start(&a, ASKER, true, &at);
    pair(&a);
    with(&a, "10.77.0.1/16", IB);
    a.ask(&["reload"]);
    // The appliance sent the DREQ before it gave the address up.
    asker.says("Disconnected reason=closed in order");
    target.says("Disconnected");
    assert_eq!(counter(&a, "forwarded"), 1);
}

/// An appliance that is asked to end closes both sides in order and does not wait for late
/// duplicates.
#[test]
fn test_appliance_shutdown_tells_both_sides_of_a_forwarded_pair() {
    let mut a = Appliance::start(&format!("{IB}{}", forward(7180, 7174, "iwarp")));
    let mut target = Cm::target(&a, false, "accept");
    let mut asker = Cm::asker(&a, true, 7180, ",end=25s");
    pair(&a);
    let start = Instant::now();
    a.signal(libc::SIGTERM);
    let status = a.wait(PATIENCE).expect("it ends");
    assert!(status.success(), "{status}");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    asker.says("Disconnected reason=closed in order");
    target.says("Disconnected reason=closed in order");
}
