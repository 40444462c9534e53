//! Bonds: members that lose their link, and LACP between two programs.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use heddle_testkit::frames::Packet;
use serde_json::Value;

use crate::lab::{Appliance, PATIENCE, Running, heddle};
use crate::net::{Lab, Packets};

const OURS: &str = "10.78.0.1";
const THEIRS: &str = "10.78.0.9/16";

fn run(args: &str) -> String {
    let mut words = args.split(' ');
    let out = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(out.status.success(), "{args}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Returns the text of a file with a bond of `members`, and a service at its address.
fn bonded(bond: &str) -> String {
    format!(
        "[log]\nlevel = \"info\"\n[workers]\nidle = \"backoff\"\n\
         [[listen]]\naddress = \"{OURS}:7174\"\nservice = \"perf\"\n\
         [[port]]\nname = \"bond\"\naddresses = [\"{OURS}/16\"]\n[port.bond]\n{bond}\n"
    )
}

/// Waits until the port's bond is as wanted, and returns the bond.
fn once(a: &Appliance, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let port = a.ask(&["ports"])["ports"][0].clone();
        if wanted(&port) {
            return port["bond"].clone();
        }
        assert!(Instant::now() < until, "{what}: {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until one member is active, and the others are not.
fn active(a: &Appliance, member: usize) -> Value {
    once(a, "a member takes over", |port| {
        let members = port["bond"]["members"].as_array().unwrap();
        let is = |(n, m): (usize, &Value)| m["active"] == (n == member);
        port["up"] == true && members.iter().enumerate().all(is)
    })
}

fn bench(a: &Appliance, device: &[&str], more: &[&str]) -> Running {
    let mut c = heddle();
    c.args(["bench", "--connect", &format!("{OURS}:7174"), "--ip", THEIRS, "--verify"]);
    c.args(device).args(more);
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Running(a.lab.peers.run(|| c.spawn()).unwrap())
}

/// Makes a switch: a bridge of the kernel, which learns from the frames that come to it. The peers have
/// the interface `far` there.
fn switched() -> Lab {
    let lab = Lab::new(1500);
    let there = lab.peers.path();
    lab.server.run(|| {
        run("ip link add sw type bridge");
        run(&format!("ip link add swup type veth peer name far netns {there}"));
        run("ethtool -K swup tx off");
        run("ip link set swup master sw up");
        run("ip link set sw up");
    });
    lab.peers.run(|| {
        run("ethtool -K far tx off");
        run("ip link set far up");
    });
    lab
}

#[test]
fn test_connection_goes_on_while_members_of_its_bond_lose_their_links() {
    let lab = switched();
    let bond = "mode = \"active-backup\"\nlink-interval = \"20ms\"\n\
                members = [\"net_tap0,iface=bt0\", \"net_tap1,iface=bt1\"]";
    let mut a = Appliance::start_in(lab, &bonded(bond));
    let ip = |what: &str| a.lab.server.run(|| run(&format!("ip link set {what}")));
    ip("bt0 master sw");
    ip("bt1 master sw");
    active(&a, 0);
    let mac = a.ask(&["ports"])["ports"][0]["mac"].as_str().unwrap().to_owned();
    // Without any traffic, the announcement alone shows the switch the way.
    let learnt = |interface: &str| {
        let until = Instant::now() + PATIENCE;
        loop {
            let known = a.lab.server.run(|| run(&format!("bridge fdb show brport {interface}")));
            if known.lines().any(|l| l.starts_with(&mac)) {
                return;
            }
            assert!(Instant::now() < until, "{mac} at {interface}: {known}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    ip("bt0 down");
    active(&a, 1);
    learnt("bt1");
    ip("bt0 up");
    once(&a, "the first is back", |port| port["bond"]["members"][0]["up"] == true);
    ip("bt1 down");
    active(&a, 0);
    learnt("bt0");
    ip("bt1 up");
    let bond = once(&a, "both are back", |port| port["bond"]["members"][1]["up"] == true);
    assert_eq!((&bond["switches"], &bond["mode"]), (&2.into(), &"active-backup".into()));

    let mut bench = bench(&a, &["--vdev", "net_af_packet1,iface=far"], &["--duration", "6s"]);
    std::thread::sleep(Duration::from_secs(2));
    for (member, next) in [(0, 1), (1, 0)] {
        bench.assert_runs();
        ip(&format!("bt{member} down"));
        active(&a, next);
        std::thread::sleep(Duration::from_secs(1));
        ip(&format!("bt{member} up"));
        once(&a, "it is back", |port| port["bond"]["members"][member]["up"] == true);
    }
    let status = bench.wait();
    assert!(status.success(), "{status}");
    let port = a.ask(&["ports"])["ports"][0].clone();
    assert_eq!((&port["link_changes"], &port["mac"]), (&0.into(), &mac.into()), "{port}");
    let members = port["bond"]["members"].as_array().unwrap();
    for m in members {
        assert_eq!(m["link_changes"], 4, "{port}");
        assert!(m["counters"]["tx_frames"].as_u64() > Some(0), "{port}");
    }
    let text = String::from_utf8(a.command(&["ports"]).stdout).unwrap();
    assert!(text.contains("bond: active-backup bond, 4 switches, "), "{text}");
    assert!(text.contains("bond: member net_tap0: up, active, 4 link changes, "), "{text}");
    a.signal(libc::SIGTERM);
    assert!(a.wait(PATIENCE).is_some());
    let log = a.log();
    let said = |what: &str| log.lines().filter(|l| l.contains(what)).count();
    assert_eq!(said("the member has taken over"), 4, "{log}");
    assert_eq!(
        (said("the link of the member is down"), said("the link of the member is up")),
        (4, 4),
        "{log}"
    );
}

const VLANS: [u16; 2] = [10, 20];
const PRIORITY: u16 = 3;

/// Waits until frames of ARP with the tags of both VLANs tell which station has our address there.
fn announced(wire: &Packets, mac: &str) {
    let until = Instant::now() + PATIENCE;
    let (mut buf, mut left) = ([0; 2048], VLANS.to_vec());
    while !left.is_empty() {
        assert!(Instant::now() < until, "VLANs {left:?} hear nothing");
        let Some((tag, frame)) = wire.recv_tagged(&mut buf, Duration::from_millis(100)) else {
            continue;
        };
        if let Some(Packet::ArpRequest { sender, .. } | Packet::ArpReply { sender, .. }) =
            Packet::parse(frame)
            && let Some(at) = left.iter().position(|vid| tag == Some(PRIORITY << 13 | vid))
        {
            let vid = u8::try_from(left.remove(at)).unwrap();
            let [a, b, c, d, e, f] = sender.0;
            let station = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
            assert_eq!((station.as_str(), sender.1), (mac, [10, 79, vid, 1].into()));
        }
    }
}

/// Waits until no frame comes.
fn quiet(wire: &Packets) {
    let mut buf = [0; 2048];
    while wire.recv(&mut buf, Duration::from_millis(500)).is_some() {}
}

/// The counters of TCP, over all workers.
fn counter(a: &Appliance, name: &str) -> u64 {
    let stats = a.ask(&["stats", "--all"]);
    let all = stats["counters"].as_array().unwrap();
    let of = all.iter().filter(|c| c["name"] == name).map(|c| c["value"].as_u64().unwrap());
    of.sum()
}

/// The appliance sends data in a VLAN, of which frames refer to registered memory, with accurate ECN.
#[test]
fn test_vlans_of_a_bond_move_with_the_active_member() {
    let lab = switched();
    let bond = "mode = \"active-backup\"\nlink-interval = \"20ms\"\n\
                members = [\"net_tap0,iface=bt0\", \"net_tap1,iface=bt1\"]";
    let vlan = |vid: u16| {
        let address = format!("10.79.{vid}.1/24");
        format!("[[port.vlan]]\nid = {vid}\naddresses = [\"{address}\"]\npriority = {PRIORITY}\n")
    };
    let more = "[tcp]\necn = \"accurate\"\n[[listen]]\naddress = \"10.79.20.1:7174\"\n\
                service = \"perf\"\n";
    let text = [more.to_owned(), bonded(bond), VLANS.map(vlan).concat()].concat();
    let a = Appliance::start_in(lab, &text);
    let ip = |what: &str| a.lab.server.run(|| run(&format!("ip link set {what}")));
    ip("bt0 master sw");
    ip("bt1 master sw");
    active(&a, 0);
    let mac = a.ask(&["ports"])["ports"][0]["mac"].as_str().unwrap().to_owned();
    let wire = Packets::at(&a.lab.peers, "far");
    quiet(&wire);
    ip("bt0 down");
    active(&a, 1);
    announced(&wire, &mac);
    drop(wire);
    ip("bt0 up");
    once(&a, "the first is back", |port| port["bond"]["members"][0]["up"] == true);

    let mut c = heddle();
    c.args(["bench", "--connect", "10.79.20.1:7174", "--ip", THEIRS, "--verify"]);
    c.args(["--vlan", "20=10.79.20.9/24,priority=3", "--vdev", "net_af_packet1,iface=far"]);
    c.args(["--op", "read", "--size", "64K"]);
    c.args(["--crc", "off", "--duration", "5s", "--ecn", "accurate", "--congestion", "dctcp"]);
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut bench = Running(a.lab.peers.run(|| c.spawn()).unwrap());
    std::thread::sleep(Duration::from_secs(2));
    bench.assert_runs();
    let sent = |a: &Appliance, member: usize| {
        let port = a.ask(&["ports"])["ports"][0].clone();
        port["bond"]["members"][member]["counters"]["tx_frames"].as_u64().unwrap()
    };
    let before = sent(&a, 0);
    ip("bt1 down");
    active(&a, 0);
    std::thread::sleep(Duration::from_secs(1));
    assert!(sent(&a, 0) > before + 100, "data go through the first");
    ip("bt1 up");
    let status = bench.wait();
    assert!(status.success(), "{status}");
    let names = ["ecn_mangled", "ce_segments", "ce_reported", "ecn_reductions"];
    assert_eq!(names.map(|name| counter(&a, name)), [0; 4], "no frame was marked");
    // TCP sends again the frames that the lost member had taken, and few that had arrived.
    let [again, late, twice] =
        ["retransmits", "timeouts", "spurious_retransmits"].map(|name| counter(&a, name));
    println!("{again} segments again, {twice} of them had arrived; {late} timeouts");
    assert!(again <= 2 * (1 << 20) / 1400 && twice <= again, "{again} again, {twice} twice");
}

/// Neither program has work before LACP has agreed, and the workers of the appliance sleep.
#[test]
fn test_two_programs_aggregate_their_links_by_lacp() {
    let lab = Lab::new(1500);
    let there = lab.peers.path();
    for n in 0..2 {
        let pair = format!("ip link add la{n} type veth peer name lb{n} netns {there}");
        lab.server.run(|| {
            run(&pair);
            run(&format!("ethtool -K la{n} tx off"));
            run(&format!("ip link set la{n} up"));
        });
        lab.peers.run(|| {
            run(&format!("ethtool -K lb{n} tx off"));
            run(&format!("ip link set lb{n} up"));
        });
    }
    let bond = "mode = \"802.3ad\"\nhash = \"l3+4\"\n\
                members = [\"net_af_packet1,iface=la0\", \"net_af_packet2,iface=la1\"]";
    let a = Appliance::start_in(lab, &bonded(bond));
    let alone = once(&a, "the links are up", |port| port["bond"]["members"][1]["up"] == true);
    assert_eq!(alone["members"][0]["active"], false, "no one is at the other end: {alone}");
    assert_eq!(a.ask(&["ports"])["ports"][0]["up"], false);
    let device = ["--bond", "802.3ad", "--member", "net_af_packet1,iface=lb0", "--member"];
    let device = [&device[..], &["net_af_packet2,iface=lb1"]].concat();
    let mut bench = bench(&a, &device, &["--qps", "8", "--size", "4K", "--iters", "200"]);
    std::thread::sleep(Duration::from_millis(500));
    bench.assert_runs();
    let agreed = once(&a, "LACP agrees", |port| {
        let members = port["bond"]["members"].as_array().unwrap();
        // The partner says that it distributes only with its next LACPDU, up to 30 s later.
        let carries = "in-sync,collecting";
        let agreed = |m: &Value| m["lacp"]["partner"].as_str().is_some_and(|p| p.contains(carries));
        port["up"] == true && members.iter().all(|m| m["active"] == true && agreed(m))
    });
    let lacp = &agreed["members"][1]["lacp"];
    assert_eq!(lacp["aggregator"], agreed["members"][0]["device"], "{agreed}");
    assert_ne!(lacp["system"], "00:00:00:00:00:00");
    let text = String::from_utf8(a.command(&["ports"]).stdout).unwrap();
    assert!(text.contains("bond: member net_af_packet2: LACP active,aggregable,in-sync"), "{text}");
    let status = bench.wait();
    assert!(status.success(), "{status}");
    let port = a.ask(&["ports"])["ports"][0].clone();
    for m in port["bond"]["members"].as_array().unwrap() {
        for way in ["rx_frames", "tx_frames"] {
            assert!(m["counters"][way].as_u64() > Some(100), "{way}: {port}");
        }
    }
}
