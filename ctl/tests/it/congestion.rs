//! Congestion control, ECN and pacing of a listener's connections, and of single connections, as the wire
//! shows them.

use heddle_dataplane::Eal;
use heddle_testkit::frames::{self, ACK, CWR, ECE, PSH, Packet, Path, RST, SYN, Segment};
use heddle_types::mpa::Revision;
use heddle_types::{Congestion, ConnId, Ecn, Pacing, TcpTerms};
use heddle_verbs::{
    AcceptParams, CmEvent, ConnectParams, EventQueue, ListenParams, MpaOptions, Protocol,
};

use crate::common::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Settings of TCP, in the order of the cases below.
const USUAL: TcpTerms = TcpTerms { congestion: None, ecn: None, pacing: None };
const DCTCP: TcpTerms = TcpTerms { congestion: Some(Congestion::Dctcp), ..USUAL };
const RENO: TcpTerms = TcpTerms { congestion: Some(Congestion::NewReno), ..USUAL };
const OFF: TcpTerms = TcpTerms { ecn: Some(Ecn::Off), ..USUAL };
const ASKS: TcpTerms = TcpTerms { ecn: Some(Ecn::Request), ..USUAL };
const AT_ONCE: TcpTerms = TcpTerms { pacing: Some(Pacing::Off), ..USUAL };
const SPREAD: TcpTerms = TcpTerms { pacing: Some(Pacing::Auto), ..USUAL };

/// Returns the segments to a port of the peer.
fn segments(frames: &[Vec<u8>], port: u16) -> Vec<Segment> {
    let of = |f: &Vec<u8>| match Packet::parse(f) {
        Some(Packet::Tcp { segment, .. }) if segment.dest == port => Some(segment),
        _ => None,
    };
    frames.iter().filter_map(of).collect()
}

/// Opens a link to a peer whose station the RNIC knows, and returns the path from the peer.
fn known(eal: &Eal) -> (Link, Path) {
    let mut link = Link::open(eal, |_| {});
    link.settle();
    let path = Path { from: (MAC, PEER), to: (link.mac, US) };
    link.say(&frames::arp_request(path.from, US));
    (link, path)
}

/// Connects to a port of the RNIC by a SYN that asks for ECN, and sends four bytes, each in a segment,
/// of which the second has a mark. Returns whether the acknowledgment of each echoes a mark, if the
/// RNIC has agreed to ECN.
fn echoes(link: &mut Link, port: u16, source: u16) -> Option<[bool; 4]> {
    let path = Path { from: (MAC, PEER), to: (link.mac, US) };
    let base = Segment { source, dest: port, window: 65_535, ..Segment::default() };
    let syn = Segment { seq: 100, flags: SYN | ECE | CWR, ..base.clone() };
    let answer = segments(&link.say(&syn.frame(&path)), source).pop().expect("an answer");
    assert_eq!(answer.flags & (SYN | ACK), SYN | ACK);
    let base = Segment { seq: 101, ack: answer.seq.wrapping_add(1), flags: ACK, ..base };
    link.say(&base.frame(&path));
    let seen = [0u32, 1, 2, 3].map(|n| {
        let payload = vec![b"MPA "[n as usize]];
        let data = Segment { seq: 101 + n, flags: ACK | PSH, payload, ..base.clone() };
        let frame = data.frame(&path);
        let mut out = link.say(&if n == 1 { frames::marked(frame) } else { frame });
        link.hand.advance(MS);
        out.extend(link.settle());
        let acks = segments(&out, source);
        assert!(acks.iter().any(|s| s.ack == 102 + n), "{acks:?}");
        acks.iter().any(|s| s.flags & ECE != 0)
    });
    let agreed = answer.flags & ECE != 0;
    assert!(agreed || seen == [false; 4], "{seen:?}");
    agreed.then_some(seen)
}

/// A classic receiver echoes a mark until the sender has reduced its window; one with DCTCP echoes it
/// with the marked bytes alone.
const CLASSIC: Option<[bool; 4]> = Some([false, true, true, true]);
const EXACT: Option<[bool; 4]> = Some([false, true, false, false]);

#[test]
fn test_listeners_of_an_rnic_have_congestion_control_of_their_own() {
    for usual in [Congestion::Cubic, Congestion::Dctcp] {
        let (eal, _turn) = eal();
        let mut link = Link::open(&eal, |c| c.tcp.congestion = usual);
        let events = EventQueue::new(None);
        let as_usual = if usual == Congestion::Dctcp { EXACT } else { CLASSIC };
        let all = [
            (USUAL, as_usual),
            (DCTCP, EXACT),
            (RENO, CLASSIC),
            (OFF, None),
            (TcpTerms { ecn: Some(Ecn::Request), ..DCTCP }, EXACT),
            (TcpTerms { ecn: Some(Ecn::Off), ..DCTCP }, None),
        ];
        for (port, (tcp, _)) in (7000..).zip(all) {
            let params = ListenParams { tcp, ..ListenParams::default() };
            link.us.device().listen((US, port).into(), params, &events).unwrap();
        }
        link.settle();
        for (n, (tcp, want)) in (0..).zip(all) {
            assert_eq!(echoes(&mut link, 7000 + n, 900 + n), want, "{tcp:?} beside {usual:?}");
        }
    }
}

/// With cookies, the RNIC keeps nothing of a SYN and remembers the settings all the same.
#[test]
fn test_cookies_keep_the_congestion_control_of_their_listener() {
    let (eal, _turn) = eal();
    let mut link = Link::open(&eal, |c| c.syn_cookies = heddle_tcp::SynCookies::Always);
    let events = EventQueue::new(None);
    for (port, tcp) in [(7000, DCTCP), (7001, RENO)] {
        let params = ListenParams { tcp, ..ListenParams::default() };
        link.us.device().listen((US, port).into(), params, &events).unwrap();
    }
    link.settle();
    // Without timestamps a cookie has no room for ECN, whatever the listener wants.
    assert_eq!((echoes(&mut link, 7000, 900), echoes(&mut link, 7001, 901)), (None, None));
    let sent = link.us.snapshot().worker.engine.stack.syn_cookies_accepted;
    assert_eq!(sent, 2);
}

#[test]
fn test_connections_of_an_rnic_have_congestion_control_of_their_own() {
    let (eal, _turn) = eal();
    let (mut link, _) = known(&eal);
    let events = EventQueue::new(None);
    let end = End::new(&link.us);
    let all = [
        (USUAL, SYN),
        (ASKS, SYN | ECE | CWR),
        (DCTCP, SYN | ECE | CWR),
        (RENO, SYN),
        (TcpTerms { ecn: Some(Ecn::Off), ..DCTCP }, SYN),
    ];
    for (port, (tcp, flags)) in (7000..).zip(all) {
        let qp = End::new(&link.us).qp;
        let params = ConnectParams { tcp, ..ConnectParams::new(qp) };
        link.us.device().connect((PEER, port).into(), params, &events).unwrap();
        let sent = segments(&link.settle(), port);
        assert_eq!(sent.iter().map(|s| s.flags).collect::<Vec<_>>(), [flags], "{tcp:?}");
    }
    drop(end);
}

/// A peer that does not know the revision of MPA closes, and the RNIC asks again in another.
#[test]
fn test_connection_made_again_keeps_its_settings() {
    let (eal, _turn) = eal();
    let (mut link, path) = known(&eal);
    let events = EventQueue::new(None);
    for (port, (tcp, flags)) in (7000..).zip([(ASKS, SYN | ECE | CWR), (OFF, SYN)]) {
        let end = End::new(&link.us);
        let params = ConnectParams::new(end.qp.clone()).mpa(MpaOptions::new().fall_back(true));
        link.us
            .device()
            .connect((PEER, port).into(), ConnectParams { tcp, ..params }, &events)
            .unwrap();
        let syn = segments(&link.settle(), port).pop().expect("a SYN");
        assert_eq!(syn.flags, flags);
        let answer = Segment {
            source: port,
            dest: syn.source,
            seq: 500,
            ack: syn.seq.wrapping_add(1),
            flags: SYN | ACK,
            window: 65_535,
            ..Segment::default()
        };
        let asked = segments(&link.say(&answer.frame(&path)), port);
        assert!(asked.iter().any(|s| s.payload.starts_with(b"MPA ID Req")), "{asked:?}");
        let reset = Segment { seq: 501, ack: 0, flags: RST, ..answer };
        let again = segments(&link.say(&reset.frame(&path)), port);
        let flags_again: Vec<_> = again.iter().map(|s| s.flags).collect();
        assert_eq!(flags_again, [flags], "{tcp:?}");
    }
}

/// The time of a frame to the peer, and so of a round trip: long enough for pacing.
const FAR: std::time::Duration = MS.saturating_mul(20);

/// Sends a message of six segments, which the window takes, and returns in how many different
/// milliseconds they come. The initial window is not paced: other messages use it up.
fn arrivals(net: &mut Net, conn: ConnId, end: &End) -> usize {
    for _ in 0..14 {
        end.post_send(3, 0, REGION);
        net.pass(2 * FAR);
        end.completions();
    }
    let before = net.peer.got(conn).len();
    end.post_send(2, 0, REGION);
    let mut got = before;
    let times = (0..100).filter(|_| {
        net.pass(MS);
        let now = net.peer.got(conn).len();
        std::mem::replace(&mut got, now) != now
    });
    let times = times.count();
    assert!(got - before > REGION, "{} bytes came", got - before);
    times
}

#[test]
fn test_listeners_and_connections_of_an_rnic_have_pacing_of_their_own() {
    for usual in [Pacing::Auto, Pacing::Off] {
        let (eal, _turn) = eal();
        let mut net = Net::with(&eal, |c| c.tcp.pacing = usual);
        net.peer.delay = FAR;
        for (port, tcp) in (7000..).zip([USUAL, AT_ONCE, SPREAD]) {
            let spread = tcp.pacing.unwrap_or(usual) == Pacing::Auto;
            let is = |times: usize| if spread { times > 1 } else { times == 1 };
            let events = listen(&mut net, port, |params| params.tcp = tcp);
            let conn = net.tcp(port);
            net.peer.send(conn, &request(b""));
            let CmEvent::ConnectRequest { id, .. } = net.event(&events) else {
                panic!("a request")
            };
            let end = End::new(&net.us);
            end.post_recv(1, 0, 256);
            net.us.device().accept(id, AcceptParams::new(end.qp.clone())).unwrap();
            assert!(matches!(net.event(&events), CmEvent::Established { .. }));
            // The first message has to be the initiator's.
            net.peer.send(conn, &fpdu(send_header(1), b"x"));
            let times = arrivals(&mut net, conn, &end);
            assert!(is(times), "a listener with {tcp:?} beside {usual:?}: {times}");

            net.peer.stack.listen(None, port, 8).unwrap();
            let (end, events) = (End::new(&net.us), EventQueue::new(None));
            end.connect_with(&net.us, port, &events, |params| {
                params.protocol = Protocol::Mpa(MpaOptions::new().revision(Revision::V1));
                params.tcp = tcp;
            });
            let before = net.peer.accepted();
            let conn = net.until("a connection", |net| {
                net.peer.accepted().into_iter().find(|c| !before.contains(c))
            });
            net.until("a request", |net| (!net.peer.got(conn).is_empty()).then_some(()));
            net.peer.send(conn, &reply(false, b""));
            let event = net.event(&events);
            assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
            let times = arrivals(&mut net, conn, &end);
            assert!(is(times), "a connection with {tcp:?} beside {usual:?}: {times}");
        }
    }
}
