//! Two managers over two RNICs, on a wire that loses frames: random applications, and a peer that
//! sends arbitrary bytes. A failure repeats from the seed that it prints.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::net::{Net, PORT, US};
use crate::support::{below, frame, qp, rtr_fpdu, spoil};
use heddle_base::Random;
use heddle_cm::*;
use heddle_iwarp::mpa::frame::Kind;
use heddle_types::{
    AcceptTerms, CloseReason, CmId, ConnectTerms, DisconnectReason, Event, ListenParams, QpFate,
    Qpn, RecvWr, Request, SendWr, Stag, mpa::Rtr,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Asked,
    Wanted(Qpn),
    Established(Qpn),
}

/// The knowledge of the application on one host.
#[derive(Default)]
struct App {
    conns: BTreeMap<CmId, Known>,
    next: u64,
    /// Numbers of events: established, rejected, failed, disconnected.
    counts: [u64; 4],
    spent: usize,
}

impl App {
    fn qpn(&mut self) -> u32 {
        self.next += 1;
        self.next as u32
    }

    fn act(&mut self, net: &mut Net, host: usize, r: &mut Random) {
        match below(r, 6) {
            0 | 1 => {
                let (id, qpn) = (CmId(1000 + self.next), self.qpn());
                let mut params = ConnectTerms::new(qp(qpn));
                params.private_data = vec![7; below(r, 500)];
                let remote = ([10, 0, 0, 2 - host as u8], PORT).into();
                net.ask(host, Request::Connect { id, remote, params });
                assert_eq!(self.conns.insert(id, Known::Wanted(Qpn(qpn))), None);
            }
            2 => {
                let n = below(r, self.conns.len().max(1));
                if let Some(id) = self.conns.keys().nth(n).copied() {
                    net.try_ask(host, Request::Disconnect { id });
                }
            }
            _ => {}
        }
    }

    fn hear(&mut self, net: &mut Net, host: usize, event: Event, r: &mut Random) {
        match event {
            Event::ConnectRequest { id, .. } => {
                assert_eq!(self.conns.insert(id, Known::Asked), None);
                match below(r, 8) {
                    0 => {
                        let private_data = b"no".to_vec();
                        if net.try_ask(host, Request::Reject { id, private_data, needs_ord: None })
                        {
                            self.conns.remove(&id);
                        }
                    }
                    1 => drop(net.try_ask(host, Request::Disconnect { id })),
                    // The application does nothing: the time-out ends the connection.
                    2 => {}
                    _ => {
                        let qpn = self.qpn();
                        let params = AcceptTerms::new(qp(qpn));
                        if net.try_ask(host, Request::Accept { id, params }) {
                            self.conns.insert(id, Known::Wanted(Qpn(qpn)));
                        }
                    }
                }
            }
            Event::Established { id, qpn, .. } => {
                self.counts[0] += 1;
                let was = self.conns.insert(id, Known::Established(qpn));
                assert_eq!(was, Some(Known::Wanted(qpn)));
            }
            Event::Rejected { id, qpn, .. } => {
                self.counts[1] += 1;
                assert_eq!(self.conns.remove(&id), Some(Known::Wanted(qpn)));
            }
            Event::ConnectError { id, qp, .. } => {
                self.counts[2] += 1;
                let was = self.conns.remove(&id).unwrap();
                match qp {
                    QpFate::NoQp => assert_eq!(was, Known::Asked),
                    QpFate::Free(qpn) => assert_eq!(was, Known::Wanted(qpn)),
                    QpFate::Spent(qpn) => {
                        assert_eq!(was, Known::Wanted(qpn));
                        self.spent += 1;
                    }
                }
            }
            Event::Disconnected { id, qpn, .. } => {
                self.counts[3] += 1;
                self.spent += 1;
                assert_eq!(self.conns.remove(&id), Some(Known::Established(qpn)));
            }
            Event::Listening { .. } | Event::ListenFailed { .. } => panic!("{event:?}"),
        }
    }
}

fn hear_all(net: &mut Net, apps: &mut [App; 2], r: &mut Random) {
    for (host, app) in apps.iter_mut().enumerate() {
        for event in std::mem::take(&mut net.hosts[host].events) {
            app.hear(net, host, event, r);
        }
    }
}

/// Makes a start-up by hand on host 0's RNIC, unknown to its manager, with bytes that are mostly
/// wrong.
fn hostile(net: &mut Net, r: &mut Random) {
    let now = net.now;
    let Ok(conn) = net.hosts[0].rnic.connect(now, US.into()) else { return };
    net.pass(Duration::from_millis(below(r, 20) as u64));
    let mut bytes = frame(if r.chance(0.7) { Kind::Request } else { Kind::Reply }, false, b"x");
    spoil(r, &mut bytes);
    let cut = below(r, bytes.len() + 1);
    for part in [&bytes[..cut], &bytes[cut..]] {
        let _ = net.hosts[0].rnic.send_startup(conn, part);
        net.pass(Duration::from_millis(below(r, 3) as u64));
    }
    match below(r, 3) {
        0 => net.hosts[0].rnic.disconnect(net.now, conn),
        1 => net.hosts[0].rnic.abort(conn),
        _ => {}
    }
    net.hosts[0].by_hand.insert(conn);
}

#[test]
fn test_managers_end_every_connection_after_random_use_of_lossy_wire() {
    let mut counts = [0; 4];
    let (mut startup_errors, mut failed) = (0, 0);
    for seed in 0..12 {
        println!("seed {seed}");
        let loss = [0.0, 0.02, 0.1][seed as usize % 3];
        let mut net = Net::new(seed, true, loss);
        let mut r = Random::new(&heddle_base::Seed::from_u64(seed ^ 77));
        let mut apps = [App::default(), App::default()];
        for host in 0..2 {
            net.listen(host, ListenParams::default());
        }
        for _ in 0..300 {
            let host = below(&mut r, 2);
            apps[host].act(&mut net, host, &mut r);
            if r.chance(0.1) {
                hostile(&mut net, &mut r);
            }
            let time = [0, 1, 1, 1, 5, 300][below(&mut r, 6)];
            net.pass(Duration::from_millis(time));
            hear_all(&mut net, &mut apps, &mut r);
        }
        for conn in std::mem::take(&mut net.hosts[0].by_hand) {
            net.hosts[0].rnic.abort(conn);
            net.hosts[0].rnic.release(conn);
        }
        // Neither side sends an FPDU: accepted connections end by their time-out.
        for _ in 0..4 {
            net.pass(Duration::from_secs(50));
            hear_all(&mut net, &mut apps, &mut r);
        }
        // If the reset was lost, the other side does not know of the end until it sends something.
        for (host, app) in apps.iter().enumerate() {
            for (id, known) in &app.conns {
                assert!(loss > 0.0 && matches!(known, Known::Established(_)), "seed {seed}");
                net.ask(host, Request::Disconnect { id: *id });
            }
        }
        net.pass(Duration::from_secs(100));
        hear_all(&mut net, &mut apps, &mut r);
        for (host, app) in apps.iter().enumerate() {
            assert!(app.conns.is_empty(), "seed {seed}, host {host}: {:?}", app.conns);
            assert_eq!(app.counts[0], app.counts[3], "each that came up has gone");
            let h = &mut net.hosts[host];
            assert!(h.open.is_empty(), "seed {seed}, host {host}: {:?}", h.open);
            let left = CmGauges { listeners: 1, apps: 1, claims: app.spent, ..CmGauges::default() };
            assert_eq!(h.cm().gauges(), left, "seed {seed}, host {host}");
            startup_errors += h.cm().counters().startup_errors;
            failed += h.cm().counters().failed;
            for (sum, n) in counts.iter_mut().zip(app.counts) {
                *sum += n;
            }
        }
    }
    println!("{counts:?} {startup_errors} {failed}");
    assert!(counts.iter().all(|n| *n > 50) && startup_errors > 20 && failed > 50, "{counts:?}");
}

/// The initiator sends its first FPDU, or does not.
#[test]
fn test_accepted_connection_times_out_unless_first_fpdu_arrives() {
    for speaks in [true, false] {
        let mut net = Net::new(1, true, 0.0);
        net.listen(1, ListenParams::default());
        let (id, remote) = (CmId(1), US.into());
        let params = ConnectTerms::new(qp(1));
        net.ask(0, Request::Connect { id, remote, params });
        let Event::ConnectRequest { id: theirs, .. } = net.event() else { panic!("a request") };
        net.ask(1, Request::Accept { id: theirs, params: AcceptTerms::new(qp(2)) });
        assert!(matches!(net.event(), Event::Established { qpn: Qpn(2), .. }));
        net.pass(Duration::from_millis(10));
        assert!(matches!(net.hosts[0].events[..], [Event::Established { qpn: Qpn(1), .. }]));
        let conns = [0, 1].map(|h| *net.hosts[h].open.first().unwrap());
        if speaks {
            let recv = RecvWr { wr_id: 1, sges: &[] };
            let send = SendWr::send(1, &[]);
            net.hosts[1].rnic.post_recv(conns[1], &recv).unwrap();
            net.hosts[0].rnic.post_send(conns[0], &send).unwrap();
        }
        net.pass(Duration::from_secs(59));
        assert!(net.hosts[1].events.is_empty());
        net.pass(Duration::from_secs(100));
        let reason = (!speaks).then_some(DisconnectReason::NoFirstFpdu);
        let told = |e: &Event| match e {
            Event::Disconnected { reason, .. } => *reason,
            e => panic!("{e:?}"),
        };
        assert_eq!(net.hosts[1].events.first().map(told), reason);
        let reset = DisconnectReason::Tcp(CloseReason::Reset);
        assert_eq!(net.hosts[0].events.get(1).map(told), reason.map(|_| reset));
    }
}

/// The peer is cut off while we wait for its answer, its acknowledgment or its FIN: our
/// `Disconnect` ends the connection within the time for a close, without keepalive.
#[test]
fn test_disconnect_ends_within_its_time_when_the_peer_is_cut_off() {
    const READ: SendWr<'_> = SendWr::read(1, &[], Stag(0), 0);
    const SEND: SendWr<'_> = SendWr::send(1, &[]);
    // The posted work request, and whether the peer has acknowledged it before the cut.
    for (case, wr, acknowledged) in [
        ("the answer of a Read", Some(READ), true),
        ("the acknowledgment of a Read", Some(READ), false),
        ("the acknowledgment of a Send", Some(SEND), false),
        ("a FIN", Some(SEND), true),
        ("the acknowledgment of our FIN", None, true),
    ] {
        let mut net = Net::new(3, false, 0.0);
        net.listen(1, ListenParams::default());
        let peer = net.tcp();
        net.send(peer, &frame(Kind::Request, false, b""));
        let Event::ConnectRequest { id, .. } = net.event() else { panic!("a request") };
        net.ask(1, Request::Accept { id, params: AcceptTerms::new(qp(2)) });
        assert!(matches!(net.event(), Event::Established { .. }));
        // The peer's TCP acknowledges; no application above it answers.
        net.send(peer, &rtr_fpdu(Rtr::Write));
        let conn = *net.hosts[1].open.first().unwrap();
        let now = net.now;
        net.loss = if acknowledged { 0.0 } else { 1.0 };
        if let Some(wr) = &wr {
            net.hosts[1].rnic.post_send(conn, wr).unwrap();
        }
        net.pass(Duration::from_millis(500));
        let sent = net.hosts[1].rnic.qp(conn).unwrap().counters().tx_fpdus;
        assert_eq!(sent, wr.iter().count() as u64, "{case}");
        net.loss = 1.0;
        net.ask(1, Request::Disconnect { id });
        net.pass(Duration::from_secs(19));
        assert_eq!(net.hosts[1].events, [], "{case}");
        net.pass(Duration::from_secs(2));
        let told = &net.hosts[1].events[..];
        let reason = DisconnectReason::Tcp(CloseReason::TimedOut);
        let ended = Event::Disconnected { id, qpn: Qpn(2), reason, terminate: None };
        assert_eq!(told, [ended], "{case}");
        assert!(net.hosts[1].open.is_empty(), "{case}: released");
        assert_eq!(net.hosts[1].cm().counters().close_timeouts, 1, "{case}");
        assert!(net.now.since(now) < Duration::from_secs(23));
    }
}
