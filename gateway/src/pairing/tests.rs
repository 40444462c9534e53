//! The actions that a gateway asks for after each event of either side.

use heddle_types::{
    Agreed, Awaited, DisconnectReason, Pd, PeerDepths, QpFate, Qpn, WorkerId,
    mpa::{Depth, RtrConfig},
};

use super::*;

const ASKER: CmId = CmId(CmId::PASSIVE.0 + 5);
const TARGET: CmId = CmId(1000);
const L: ListenerId = ListenerId(1);

fn qp(n: u32) -> QpSpec {
    QpSpec { qpn: Qpn(n), pd: Pd(1), sq_depth: 1, rq_depth: 1 }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn rule(listener: u64, at: &str, target: &str) -> PairingRule {
    PairingRule {
        listener: ListenerId(listener),
        addr: addr(at),
        from: Transport::InfiniBand,
        target: addr(target),
        protocol: Protocol::default(),
        timeout: Duration::from_secs(10),
        most: 2,
        tcp: TcpTerms::default(),
    }
}

/// Returns a gateway that forwards from InfiniBand at 10.0.0.1 to iWARP at 10.0.0.9.
fn gateway() -> Pairing {
    let mut g = Pairing::new(vec![addr("10.0.0.1:0").ip()], TARGET);
    g.add(rule(1, "10.0.0.1:7", "10.0.0.9:8")).unwrap();
    for n in 1..=8 {
        g.give_qp(qp(n));
    }
    g
}

fn depths(ird: u16, ord: u16) -> Option<PeerDepths> {
    Some(PeerDepths { ird: Depth::new(ird).unwrap(), ord: Depth::new(ord).unwrap() })
}

fn request(id: CmId, transport: Transport, from: &str) -> Event {
    Event::ConnectRequest {
        worker: WorkerId(0),
        id,
        listener: L,
        transport,
        local: addr("10.0.0.1:7"),
        remote: addr(from),
        private_data: b"question".to_vec(),
        peer: depths(3, 4),
        peer_to_peer: false,
    }
}

fn established(id: CmId) -> Event {
    let agreed = Agreed {
        transport: Transport::Iwarp,
        revision: 2,
        crc: true,
        ird: 3,
        ord: 4,
        peer: depths(5, 6),
        rtr: RtrConfig::None,
        send_markers: false,
        recv_markers: false,
    };
    Event::Established {
        worker: WorkerId(0),
        id,
        qpn: Qpn(1),
        private_data: b"answer".to_vec(),
        agreed,
        local: addr("10.0.0.1:1"),
        remote: addr("10.0.0.9:8"),
    }
}

fn disconnected(id: CmId) -> Event {
    let reason = DisconnectReason::Orderly;
    Event::Disconnected { id, qpn: Qpn(1), reason, terminate: None }
}

fn error(id: CmId, error: ConnectFailure) -> Event {
    Event::ConnectError { id, error, qp: QpFate::NoQp }
}

/// Returns the gateway's next actions, in few words.
fn does(g: &mut Pairing) -> Vec<String> {
    let text = |action| match action {
        Action::Request(r) => match r {
            Request::Connect { id, remote, params, .. } => {
                let data = String::from_utf8(params.private_data).unwrap();
                let at = params.qp.qpn.0;
                format!("connect {} {remote} {}/{} {data} {at}", id.0, params.ird, params.ord)
            }
            Request::Accept { id, params } => {
                assert_eq!(id, ASKER);
                let data = String::from_utf8(params.private_data).unwrap();
                format!("accept {}/{} {data}", params.ird, params.ord)
            }
            Request::Reject { id, private_data, .. } => {
                assert_eq!(id, ASKER);
                format!("reject {}", String::from_utf8(private_data).unwrap())
            }
            Request::Disconnect { id } if id == ASKER => "end asker".into(),
            Request::Disconnect { id } => {
                assert_eq!(id, TARGET);
                "end target".into()
            }
            other => format!("{other:?}"),
        },
        Action::Refuse { reason, .. } => format!("refuse {reason}"),
        Action::Spent(_) => "spent".into(),
    };
    std::iter::from_fn(|| g.poll_action()).map(text).collect()
}

/// Returns a gateway after all `events`, and its actions after the last of them.
fn after(events: &[Event]) -> (Pairing, Vec<String>) {
    let mut g = gateway();
    let mut last = Vec::new();
    for event in events {
        g.handle_event(event.clone());
        last = does(&mut g);
    }
    (g, last)
}

fn asked() -> Event {
    request(ASKER, Transport::InfiniBand, "10.0.0.2:50000")
}

#[test]
fn test_gateway_forwards_request_and_answer_with_depths_and_private_data() {
    let (_, does) = after(&[asked()]);
    assert_eq!(does, ["connect 1000 10.0.0.9:8 3/4 question 7"]);
    let (_, does) = after(&[asked(), established(TARGET)]);
    assert_eq!(does, ["accept 5/6 answer"]);
    let (g, does) = after(&[asked(), established(TARGET), established(ASKER)]);
    assert!(does.is_empty());
    assert_eq!((g.counters().forwarded, g.counters().established, g.len()), (1, 1, 1));
}

#[test]
fn test_gateway_ends_other_leg_and_frees_both_when_one_disconnects() {
    for (first, second, word) in [(ASKER, TARGET, "end target"), (TARGET, ASKER, "end asker")] {
        let up = [asked(), established(TARGET), established(ASKER), disconnected(first)];
        let (mut g, did) = after(&up);
        assert_eq!((did, g.len()), (vec![word.to_string()], 1));
        g.handle_event(disconnected(second));
        assert_eq!((does(&mut g), g.is_empty()), (vec!["spent".into(), "spent".into()], true));
    }
}

#[test]
fn test_gateway_reports_rejection_or_failure_of_target_to_asker() {
    let no = Event::Rejected { id: TARGET, qpn: Qpn(1), private_data: b"no".to_vec(), peer: None };
    let (g, does) = after(&[asked(), no]);
    assert_eq!(
        (does, g.is_empty()),
        (vec!["reject no".into(), "spent".into(), "spent".into()], true)
    );
    for (why, reason) in [
        (ConnectFailure::Tcp(heddle_types::CloseReason::Refused), 8),
        (ConnectFailure::Tcp(heddle_types::CloseReason::Reset), 4),
        (ConnectFailure::TimedOut(Awaited::Reply), 4),
        (ConnectFailure::InfiniBand(IbRefusal::Reason(10)), 10),
        (ConnectFailure::InfiniBand(IbRefusal::Service(6)), 5),
        (ConnectFailure::WorkerLost, 5),
    ] {
        let (g, does) = after(&[asked(), error(TARGET, why)]);
        assert_eq!(does, [&format!("refuse {reason}"), "spent", "spent"], "{why}");
        assert_eq!((g.is_empty(), g.counters().failed), (true, 1));
    }
}

#[test]
fn test_gateway_ends_target_leg_when_asker_gives_up() {
    let gone = || error(ASKER, ConnectFailure::PeerClosed);
    let (mut g, did) = after(&[asked(), gone()]);
    assert_eq!((did, g.counters().abandoned), (vec!["end target".to_string()], 1));
    g.handle_event(error(TARGET, ConnectFailure::Cancelled));
    assert_eq!(does(&mut g), ["spent", "spent"]);
    assert_eq!((g.is_empty(), g.counters().failed), (true, 0));
    // The target had just accepted.
    let (mut g, _) = after(&[asked(), gone(), established(TARGET)]);
    g.handle_event(disconnected(TARGET));
    assert_eq!((does(&mut g), g.is_empty()), (vec!["spent".into(), "spent".into()], true));
    // The gateway was accepting the asker.
    let (_, did) = after(&[asked(), established(TARGET), gone()]);
    assert_eq!(did, ["end target"]);
}

#[test]
fn test_gateway_ends_asker_leg_when_target_ends_during_accept() {
    let (mut g, did) = after(&[asked(), established(TARGET), disconnected(TARGET)]);
    assert_eq!(did, ["end asker"]);
    g.handle_event(error(ASKER, ConnectFailure::Cancelled));
    assert_eq!((does(&mut g), g.is_empty()), (vec!["spent".into(), "spent".into()], true));
}

/// The other protocol has no room for the private data: the gateway refuses the asker, and cuts
/// nothing off.
#[test]
fn test_gateway_refuses_asker_when_private_data_do_not_fit() {
    let long = |event: Event, n: usize| match event {
        Event::ConnectRequest { worker, id, listener, transport, local, remote, peer, .. } => {
            let (private_data, peer_to_peer) = (vec![b'x'; n], false);
            Event::ConnectRequest {
                worker,
                id,
                listener,
                transport,
                local,
                remote,
                private_data,
                peer,
                peer_to_peer,
            }
        }
        Event::Established { worker, id, qpn, agreed, local, remote, .. } => {
            let private_data = vec![b'x'; n];
            Event::Established { worker, id, qpn, private_data, agreed, local, remote }
        }
        other => panic!("{other:?}"),
    };
    // An answer towards InfiniBand: 196 bytes fit, and 197 do not.
    let (_, did) = after(&[asked(), long(established(TARGET), 196)]);
    assert!(did[0].starts_with("accept"), "{did:?}");
    let (mut g, did) = after(&[asked(), long(established(TARGET), 197)]);
    assert_eq!(did, ["refuse 5", "end target"]);
    assert_eq!(g.counters().private_data_too_long, 1);
    g.handle_event(disconnected(TARGET));
    assert_eq!((does(&mut g), g.is_empty()), (vec!["spent".into(), "spent".into()], true));
    // A rejection is passed on in any case, without private data that do not fit.
    for (n, words, counted) in [(148, 148, 0), (149, 0, 1)] {
        let private_data = vec![b'x'; n];
        let no = Event::Rejected { id: TARGET, qpn: Qpn(1), private_data, peer: None };
        let (g, does) = after(&[asked(), no]);
        assert_eq!(does[0], format!("reject {}", "x".repeat(words)));
        assert_eq!(g.counters().private_data_too_long, counted);
    }
    // A request in the other direction: 56 bytes fit, and with 57 the target is not asked.
    for (n, does_first, counted, left) in [(56, "connect", 0, 1), (57, "refuse 5", 1, 0)] {
        let mut g = Pairing::new(vec![], TARGET);
        let over = Protocol::InfiniBand;
        let rule = rule(1, "10.0.0.1:7", "10.0.0.9:8");
        g.add(PairingRule { from: Transport::Iwarp, protocol: over, ..rule }).unwrap();
        (1..=2).for_each(|n| g.give_qp(qp(n)));
        g.handle_event(long(request(ASKER, Transport::Iwarp, "10.0.0.2:50000"), n));
        let did = does(&mut g);
        assert!(did[0].starts_with(does_first), "{did:?}");
        assert_eq!((g.counters().private_data_too_long, g.len()), (counted, left));
    }
}

/// The manager refuses an answer for a reason that the gateway does not know.
#[test]
fn test_gateway_refuses_asker_when_manager_refuses_its_answer() {
    let (mut g, _) = after(&[asked(), established(TARGET)]);
    let params = heddle_types::AcceptTerms::new(qp(1));
    g.handle_refused(&Request::Accept { id: ASKER, params });
    assert_eq!(does(&mut g), ["refuse 5", "end target"]);
    let (mut g, _) = after(&[asked()]);
    let private_data = b"much".to_vec();
    g.handle_refused(&Request::Reject { id: ASKER, private_data, needs_ord: None });
    assert_eq!(does(&mut g), ["reject "]);
}

/// The gateway ends every pair, whatever its progress.
#[test]
fn test_gateway_ends_every_pair_once_when_it_is_shut_down() {
    for (events, words) in [
        (&[asked()][..], &["end target", "refuse 3"][..]),
        (&[asked(), established(TARGET)], &["end target", "end asker"]),
        (&[asked(), established(TARGET), established(ASKER)], &["end target", "end asker"]),
        // The gateway is ending the pair already.
        (&[asked(), established(TARGET), established(ASKER), disconnected(ASKER)], &[]),
    ] {
        let (mut g, _) = after(events);
        assert_eq!(g.pairs().collect::<Vec<_>>(), [(ASKER, TARGET)]);
        g.end();
        assert_eq!(does(&mut g), words);
        g.end();
        assert!(does(&mut g).is_empty());
        g.handle_event(error(TARGET, ConnectFailure::Cancelled));
        if words.get(1) != Some(&"refuse 3") {
            g.handle_event(disconnected(ASKER));
        }
        assert_eq!((does(&mut g), g.is_empty()), (vec!["spent".into(), "spent".into()], true));
        g.handle_event(asked());
        assert_eq!(does(&mut g), ["refuse 8"], "nothing more is taken");
    }
}

#[test]
fn test_gateway_refuses_asker_when_manager_refuses_its_connect() {
    let (mut g, _) = after(&[asked()]);
    let params = heddle_types::ConnectTerms::new(qp(1));
    let (id, remote) = (TARGET, addr("10.0.0.9:8"));
    g.handle_refused(&Request::Connect { id, remote, params });
    assert_eq!(
        (does(&mut g), g.is_empty()),
        (vec!["refuse 5".into(), "spent".into(), "spent".into()], true)
    );
}

#[test]
fn test_gateway_refuses_requests_that_loop_back_or_exceed_its_limit() {
    let mut g = gateway();
    g.handle_event(request(ASKER, Transport::InfiniBand, "10.0.0.9:50000"));
    assert_eq!((does(&mut g), g.counters().refused_loop), (vec!["refuse 8".to_string()], 1));
    g.handle_event(request(ASKER, Transport::Iwarp, "10.0.0.2:50000"));
    assert_eq!((does(&mut g), g.counters().refused_protocol), (vec!["refuse 8".to_string()], 1));
    for n in 0..3 {
        g.handle_event(request(CmId(ASKER.0 + n), Transport::InfiniBand, "10.0.0.2:50000"));
    }
    let did = does(&mut g);
    assert_eq!((did.len(), did[2].as_str(), g.len()), (3, "refuse 3", 2));
    // No queue pairs are left.
    let mut g = Pairing::new(vec![], TARGET);
    g.add(rule(1, "10.0.0.1:7", "10.0.0.9:8")).unwrap();
    g.give_qp(qp(1));
    g.handle_event(asked());
    assert_eq!((does(&mut g), g.counters().refused_full), (vec!["refuse 3".to_string()], 1));
    // The listener has no rule any more.
    g.remove(L);
    g.handle_event(asked());
    assert_eq!(does(&mut g), ["refuse 8"]);
}

#[test]
fn test_gateway_refuses_rules_that_make_a_loop() {
    let mut g = Pairing::new(vec![addr("10.0.0.1:0").ip()], TARGET);
    let own = rule(1, "10.0.0.1:7", "10.0.0.1:7");
    assert_eq!(g.add(own), Err(RuleError::Loop));
    assert_eq!(g.add(rule(1, "0.0.0.0:7", "10.0.0.1:7")), Err(RuleError::Loop));
    // A loop over two rules, and over three; the gateway refuses the rule that closes it.
    g.add(rule(1, "10.0.0.1:7", "10.0.0.1:8")).unwrap();
    assert_eq!(g.add(rule(1, "10.0.0.1:9", "10.0.0.9:9")), Err(RuleError::Taken));
    assert_eq!(g.add(rule(2, "10.0.0.1:8", "10.0.0.1:7")), Err(RuleError::Loop));
    g.add(rule(2, "0.0.0.0:8", "10.0.0.1:9")).unwrap();
    assert_eq!(g.add(rule(3, "10.0.0.1:9", "10.0.0.1:7")), Err(RuleError::Loop));
    g.add(rule(3, "10.0.0.1:9", "10.0.0.9:7")).unwrap();
    // A rule that leads to other rules without coming back is no loop.
    g.add(rule(4, "10.0.0.1:10", "10.0.0.1:7")).unwrap();
}

#[test]
fn test_connection_to_the_target_has_the_tcp_settings_of_its_rule() {
    let tcp = TcpTerms { ecn: Some(heddle_types::Ecn::Request), ..TcpTerms::default() };
    let mut g = Pairing::new(vec![addr("10.0.0.1:0").ip()], TARGET);
    g.add(PairingRule { tcp, ..rule(1, "10.0.0.1:7", "10.0.0.9:8") }).unwrap();
    (1..=2).for_each(|n| g.give_qp(qp(n)));
    g.handle_event(request(ASKER, Transport::InfiniBand, "10.0.0.2:1"));
    let asked = std::iter::from_fn(|| g.poll_action()).find_map(|action| match action {
        Action::Request(Request::Connect { params, .. }) => Some(params.tcp),
        _ => None,
    });
    assert_eq!(asked, Some(tcp));
}
