//! Congestion control and ECN on the way from the file to the wire: for the RNIC, for a listener, and for
//! a listener that is added.

use std::time::{Duration, Instant};

use heddle_testkit::frames::{self, ACK, CWR, ECE, Mac, PSH, Packet, Path, SYN, Segment};

use crate::lab::{Appliance, PATIENCE, listen};
use crate::net::{Packets, SERVER};

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
}

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
    let (status, text) =
        a.refusal(&["listen", "add", "10.77.0.1:7178=sink", "--congestion", "vegas"]);
    assert!(status == 1 && text.contains("is none of cubic, newreno, dctcp"), "{text}");
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
