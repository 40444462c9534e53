//! Congestion control, ECN, pacing and the user timeout on the way from the file, the command line and the
//! environment of a program to the wire: for the RNIC, for a listener, a forwarder, and for a listener that is
//! added.

use std::time::{Duration, Instant};

use std::process::{Command, Stdio};

use heddle_testkit::frames::{self, ACK, CWR, ECE, Mac, PSH, Packet, Path, SYN, Segment};
use heddle_testkit::mpa;

use crate::lab::{Appliance, PATIENCE, Running, heddle, listen};
use crate::net::{PEER_IFACE, Packets, SERVER};

const OURS: (Mac, std::net::Ipv4Addr) =
    ([2, 0, 0, 0, 0, 0x77], std::net::Ipv4Addr::new(10, 77, 9, 9));

/// A peer by hand.
struct Peer {
    wire: Packets,
    path: Path,
}

impl Peer {
    fn new(a: &Appliance) -> Peer {
        let wire = Packets::open(&a.lab);
        wire.send(&frames::arp_request(OURS, SERVER));
        let is_answer = |f: &[u8]| match Packet::parse(f) {
            Some(Packet::ArpReply { sender, to }) if to == OURS.1 => Some(sender.0),
            _ => None,
        };
        let mac = wait_for(&wire, is_answer);
        Peer { wire, path: Path { from: OURS, to: (mac, SERVER) } }
    }

    /// Returns the next segment to `port` that `is` what is awaited.
    fn next(&self, port: u16, is: impl Fn(&Segment) -> bool) -> Segment {
        wait_for(&self.wire, |f| match Packet::parse(f) {
            Some(Packet::Tcp { to, segment }) => {
                Some(segment).filter(|s| to == OURS.1 && s.dest == port && is(s))
            }
            _ => None,
        })
    }

    /// Connects to a port by a SYN that asks for ECN, and sends four bytes, each in a segment, of which
    /// the second has a mark. Returns whether each acknowledgment echoes a mark, if the appliance has
    /// agreed to ECN.
    fn echoes(&self, port: u16, source: u16) -> Option<[bool; 4]> {
        let base = Segment { source, dest: port, window: 65_535, ..Segment::default() };
        let syn = Segment { seq: 100, flags: SYN | ECE | CWR, ..base.clone() };
        self.wire.send(&syn.frame(&self.path));
        let answer = self.next(source, |s| s.flags & SYN != 0);
        let base = Segment { seq: 101, ack: answer.seq.wrapping_add(1), flags: ACK, ..base };
        self.wire.send(&base.frame(&self.path));
        let seen = [0u32, 1, 2, 3].map(|n| {
            let payload = vec![b"MPA "[n as usize]];
            let data = Segment { seq: 101 + n, flags: ACK | PSH, payload, ..base.clone() };
            let frame = data.frame(&self.path);
            self.wire.send(&if n == 1 { frames::marked(frame) } else { frame });
            self.next(source, |s| s.flags & SYN == 0 && s.ack == 102 + n).flags & ECE != 0
        });
        let agreed = answer.flags & ECE != 0;
        assert!(agreed || seen == [false; 4], "{seen:?}");
        agreed.then_some(seen)
    }

    /// Connects to a port, and returns the user timeouts in seconds that the SYN-ACK and the first ACK
    /// tell, if they do.
    fn told(&self, port: u16, source: u16) -> [Option<u16>; 2] {
        let base = Segment { source, dest: port, window: 65_535, ..Segment::default() };
        self.wire.send(&Segment { seq: 100, flags: SYN, ..base.clone() }.frame(&self.path));
        let answer = self.next(source, |s| s.flags & SYN != 0);
        let ack = answer.seq.wrapping_add(1);
        let payload = b"MPA ".to_vec();
        let data = Segment { seq: 101, ack, flags: ACK | PSH, payload, ..base };
        self.wire.send(&data.frame(&self.path));
        let first = self.next(source, |s| s.flags & SYN == 0);
        [answer, first].map(|s| s.option(28).map(|o| u16::from_be_bytes([o[0], o[1]])))
    }

    /// Waits for the next user timeout that the appliance tells the owner of a port.
    fn told_anew(&self, source: u16) -> u16 {
        let segment = self.next(source, |s| s.option(28).is_some());
        segment.option(28).map(|o| u16::from_be_bytes([o[0], o[1]])).unwrap()
    }

    /// Waits for a connection to a port of the peer, and returns the flags of its SYN.
    fn asked(&self, port: u16) -> u8 {
        wait_for(&self.wire, |f| match Packet::parse(f) {
            Some(Packet::ArpRequest { sender, wanted }) if wanted == OURS.1 => {
                self.wire.send(&frames::arp_reply(OURS, sender));
                None
            }
            Some(Packet::Tcp { to, segment }) => {
                Some(segment.flags).filter(|_| to == OURS.1 && segment.dest == port)
            }
            _ => None,
        })
    }

    /// Connects over a long path to a service or program that sends ten messages of 4,000 bytes at once.
    /// Returns true if it spreads the segments of its second window over the round trip; the first is
    /// not paced.
    fn is_spread(&self, port: u16, source: u16) -> bool {
        let base = Segment { source, dest: port, window: 65_535, ..Segment::default() };
        self.wire.send(&Segment { seq: 100, flags: SYN, ..base.clone() }.frame(&self.path));
        let answer = self.next(source, |s| s.flags & SYN != 0);
        std::thread::sleep(ROUND_TRIP);
        let say = |seq: u32, ack: u32, payload: Vec<u8>| {
            let segment = Segment { seq, ack, flags: ACK | PSH, payload, ..base.clone() };
            self.wire.send(&segment.frame(&self.path));
        };
        // RFC 6581: the peer-to-peer model, in which an RDMA Write is the first message.
        let asks = mpa::enhanced_request(0x8000 | 2, 0x8000 | 2, b"");
        let (start, first) = (answer.seq.wrapping_add(1), mpa::write(true, 0, 0, b""));
        let sent = u32::try_from(first.len()).unwrap();
        let after = 101 + u32::try_from(asks.len()).unwrap();
        say(101, start, asks);
        let reply = self.next(source, |s| s.payload.starts_with(b"MPA ID Rep"));
        let mut expected = reply.seq.wrapping_add(u32::try_from(reply.payload.len()).unwrap());
        say(after, expected, first);
        let mut next = || {
            let segment = self.next(source, |s| !s.payload.is_empty() && s.seq == expected);
            expected = expected.wrapping_add(u32::try_from(segment.payload.len()).unwrap());
            (Instant::now(), expected)
        };
        let first = (0..10).map(|_| next()).last().unwrap();
        std::thread::sleep(ROUND_TRIP);
        say(after + sent, first.1, Vec::new());
        let times: Vec<_> = (0..16).map(|_| next().0).collect();
        // Two windows of twenty segments pass in a round trip, two segments at a time.
        times[15] - times[0] > ROUND_TRIP / 12
    }
}

/// Long enough for a busy machine to show whether segments are apart.
const ROUND_TRIP: Duration = Duration::from_millis(600);

fn wait_for<T>(wire: &Packets, is: impl Fn(&[u8]) -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    let mut buf = [0; 2048];
    loop {
        if let Some(found) = wire.recv(&mut buf, Duration::from_millis(100)).and_then(&is) {
            return found;
        }
        assert!(Instant::now() < until, "no answer");
    }
}

const CLASSIC: Option<[bool; 4]> = Some([false, true, true, true]);
const EXACT: Option<[bool; 4]> = Some([false, true, false, false]);

#[test]
fn test_listeners_of_a_file_have_congestion_control_of_their_own() {
    let dctcp = listen(7175, "sink") + "congestion = \"dctcp\"\n";
    let off = listen(7176, "sink") + "ecn = \"off\"\n";
    let a = Appliance::start(&[listen(7174, "rping"), dctcp, off].concat());
    let peer = Peer::new(&a);
    assert_eq!(peer.echoes(7174, 1001), CLASSIC);
    assert_eq!(peer.echoes(7175, 1002), EXACT);
    assert_eq!(peer.echoes(7176, 1003), None);
    // A listener whose setting changes is made anew; the others stay.
    let later = listen(7175, "sink") + "congestion = \"newreno\"\n";
    a.write(&[listen(7174, "rping"), later].concat());
    a.ask(&["reload"]);
    assert_eq!(peer.echoes(7175, 1004), CLASSIC);
    let add = ["listen", "add", "10.77.0.1:7177=sink", "--congestion", "dctcp"];
    a.ask(&add);
    assert_eq!(peer.echoes(7177, 1005), EXACT);
    let shown = a.ask(&["config", "show"])["settings"]["listen"].clone();
    assert_eq!(shown[2]["congestion"], "dctcp", "{shown}");
    a.ask(&["listen", "add", "10.77.0.1:7178=sink", "--ecn", "off"]);
    assert_eq!(peer.echoes(7178, 1006), None);
    for (option, value, names) in [
        ("--congestion", "vegas", "'vegas' is none of cubic, newreno, dctcp"),
        ("--ecn", "on", "'on' is none of off, accept, request, accurate"),
        ("--pacing", "on", "'on' is none of off, auto"),
    ] {
        let (status, text) = a.refusal(&["listen", "add", "10.77.0.1:7179=sink", option, value]);
        assert!(status == 1 && text.contains(names), "{text}");
    }
}

#[test]
fn test_user_timeout_of_the_file_is_told_to_peers_and_told_anew_after_a_reload() {
    let a = Appliance::start(&listen(7174, "rping"));
    let peer = Peer::new(&a);
    assert_eq!(peer.told(7174, 1001), [None, None]);
    drop((peer, a));
    let tcp = |time: &str| {
        format!("[tcp]\nuser-timeout-option = \"advertise\"\nuser-timeout = \"{time}\"\n")
    };
    let a = Appliance::start(&[tcp("77s"), listen(7174, "rping")].concat());
    let peer = Peer::new(&a);
    assert_eq!(peer.told(7174, 1002), [Some(77), Some(77)]);
    a.write(&[tcp("78s"), listen(7174, "rping")].concat());
    a.ask(&["reload"]);
    assert_eq!(peer.told_anew(1002), 78);
    assert_eq!(peer.told(7174, 1003), [Some(78), Some(78)]);
}

#[test]
fn test_pacing_of_the_file_is_that_of_listeners_unless_they_have_their_own() {
    let sends = |port| listen(port, "ucmatose,count=10,size=4000");
    let off = sends(7175) + "pacing = \"off\"\n";
    let mut a = Appliance::start(&[sends(7174), off.clone()].concat());
    let peer = Peer::new(&a);
    assert_eq!([7174, 7175].map(|port| peer.is_spread(port, port - 6000)), [true, false]);
    let add = ["listen", "add", "10.77.0.1:7176=ucmatose,size=4000", "--pacing", "off"];
    a.ask(&add);
    assert!(!peer.is_spread(7176, 1003));
    // A listener whose setting changes is made anew.
    a.write(&[sends(7174), sends(7175)].concat());
    a.ask(&["reload"]);
    assert!(peer.is_spread(7175, 1004));
    a.signal(libc::SIGTERM);
    assert!(a.wait(PATIENCE).is_some());
    drop((peer, a));
    let auto = sends(7175) + "pacing = \"auto\"\n";
    let a = Appliance::start(&["[tcp]\npacing = \"off\"\n".into(), sends(7174), auto].concat());
    let peer = Peer::new(&a);
    assert_eq!([7174, 7175].map(|port| peer.is_spread(port, port - 6000)), [false, true]);
}

/// Requests over iWARP come to two forwarders, and go on over InfiniBand, where no host answers; requests
/// over InfiniBand come to a third, and go on over iWARP.
#[test]
fn test_forwarder_has_congestion_control_of_its_own() {
    let forward = |port: u16, terms: &str| {
        format!(
            "[[listen]]\naddress = \"10.77.0.1:{port}\"\n{terms}\
             forward = {{ to = \"10.77.0.9:7174\", over = \"infiniband\" }}\n"
        )
    };
    let both = [forward(7180, ""), forward(7181, "congestion = \"dctcp\"\n")].concat();
    let a = Appliance::start(&format!("[infiniband]\ncm = true\n{both}"));
    let peer = Peer::new(&a);
    assert_eq!([7180, 7181].map(|port| peer.echoes(port, port - 6000)), [CLASSIC, EXACT]);
    let shown = a.ask(&["config", "show"])["settings"]["listen"].clone();
    assert_eq!(shown[1]["congestion"], "dctcp", "{shown}");
    let to = ["listen", "add", "10.77.0.1:7182", "--forward", "10.77.0.9:7175", "--over"];
    a.ask(&[&to[..], &["infiniband", "--ecn", "off"]].concat());
    assert_eq!(peer.echoes(7182, 1182), None);
    let to = ["listen", "add", "10.77.0.1:7183", "--forward", "10.77.9.9:7174", "--over"];
    a.ask(&[&to[..], &["iwarp", "--ecn", "request"]].concat());
    let mut c = heddle();
    c.args(["cm", "--infiniband", "--connect", "10.77.0.1:7183,timeout=30s"]);
    c.args(["--vdev", &format!("net_af_packet0,iface={PEER_IFACE}"), "--ip", "10.77.0.8/16"]);
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _asker = Running(a.lab.peers.run(|| c.spawn()).unwrap());
    assert_eq!(peer.asked(7174), SYN | ECE | CWR);
}

/// Starts a program for librdmacm on the appliance's RNIC, with a variable in its environment.
fn program(a: &Appliance, args: &[&str], variable: (&str, &str)) -> Running {
    let mut c = Command::new(args[0]);
    c.args(&args[1..]).env("HEDDLE_SOCKET", a.socket()).env(variable.0, variable.1);
    c.env("LD_LIBRARY_PATH", crate::library::library());
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Running(c.spawn().unwrap_or_else(|e| panic!("{}: {e}; apt-get install rdmacm-utils", args[0])))
}

/// Waits until a program of the appliance listens at a port.
fn listens(a: &Appliance, port: u16) {
    let until = Instant::now() + PATIENCE;
    let at = format!("10.77.0.1:{port}");
    while !a.ask(&["status"]).to_string().contains(&at) {
        assert!(Instant::now() < until, "nothing listens at {at}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The programs are those of Debian's package rdmacm-utils.
#[test]
fn test_environment_of_a_program_sets_tcp_of_its_listeners_and_connections() {
    let anybody = crate::tenants::ANYBODY;
    let a = Appliance::start(anybody);
    let peer = Peer::new(&a);
    let cases = [
        (("HEDDLE_CONGESTION", "dctcp"), EXACT),
        (("HEDDLE_CONGESTION", ""), CLASSIC),
        (("HEDDLE_ECN", "off"), None),
    ];
    for (port, (variable, want)) in (7190..).zip(cases) {
        let at = port.to_string();
        let _rping = program(&a, &["rping", "-s", "-a", "10.77.0.1", "-p", &at], variable);
        listens(&a, port);
        assert_eq!(peer.echoes(port, port - 6000), want, "{variable:?}");
    }
    for (port, (value, want)) in (7195..).zip([("auto", true), ("off", false)]) {
        let at = port.to_string();
        let args = ["ucmatose", "-b", "10.77.0.1", "-p", &at, "-C", "10", "-S", "4000"];
        let _ucmatose = program(&a, &args, ("HEDDLE_PACING", value));
        listens(&a, port);
        assert_eq!(peer.is_spread(port, port - 6000), want, "{value}");
    }
    let asks = |port: u16, variable| {
        let at = port.to_string();
        let rping =
            program(&a, &["rping", "-c", "-a", "10.77.9.9", "-p", &at, "-C", "1"], variable);
        let flags = peer.asked(port);
        drop(rping);
        flags
    };
    assert_eq!(asks(7000, ("HEDDLE_ECN", "request")), SYN | ECE | CWR);
    assert_eq!(asks(7001, ("HEDDLE_ECN", "accept")), SYN);
    assert_eq!(asks(7002, ("HEDDLE_CONGESTION", "dctcp")), SYN | ECE | CWR);
    for (variable, names) in [
        (
            ("HEDDLE_CONGESTION", "vegas"),
            "HEDDLE_CONGESTION=vegas is none of cubic, newreno, dctcp",
        ),
        (("HEDDLE_ECN", "on"), "HEDDLE_ECN=on is none of off, accept, request, accurate"),
        (("HEDDLE_PACING", "on"), "HEDDLE_PACING=on is none of off, auto"),
    ] {
        let one = ["rping", "-c", "-a", "10.77.9.9", "-p", "7003", "-C", "1"];
        let other = ["rping", "-s", "-a", "10.77.0.1", "-p", "7198"];
        for args in [&one[..], &other] {
            // A client of rping does not end after rdma_connect has failed.
            let mut rping = program(&a, args, variable);
            let stderr = std::io::BufReader::new(rping.0.stderr.take().unwrap());
            let mut lines = std::io::BufRead::lines(stderr).map_while(Result::ok);
            let said = lines.any(|line| line.contains(names));
            assert!(said, "{args:?} with {variable:?}");
        }
    }
}

#[test]
fn test_congestion_and_ecn_of_the_file_are_those_of_every_listener() {
    let usual = "[tcp]\ncongestion = \"dctcp\"\n";
    let own = listen(7175, "sink") + "congestion = \"cubic\"\n";
    let a = Appliance::start(&[usual.into(), listen(7174, "sink"), own].concat());
    let peer = Peer::new(&a);
    assert_eq!((peer.echoes(7174, 1001), peer.echoes(7175, 1002)), (EXACT, CLASSIC));
    drop((peer, a));
    let a = Appliance::start(&format!("[tcp]\necn = \"off\"\n{}", listen(7174, "sink")));
    assert_eq!(Peer::new(&a).echoes(7174, 1001), None);
}
