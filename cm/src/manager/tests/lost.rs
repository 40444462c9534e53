//! A worker that has ended: everything it had ends at once, and the other workers go on.

use super::*;

const OTHER_WORKER: WorkerId = WorkerId(1);
/// A peer on the other worker's port.
const ELSEWHERE: ([u8; 4], u16) = ([172, 16, 0, 9], 1000);

/// Returns a manager of two ports with a worker each.
fn two_ports() -> Bench {
    let ports = vec![(1, net(&["10.0.0.1/8"], &[])), (1, net(&["172.16.0.1/16"], &[]))];
    Bench::new(CmConfig::new(Ports::new(ports).unwrap()))
}

impl Bench {
    /// Opens a connection of ours for which the worker has a name.
    fn opened(&mut self, id: u64, qpn: u32) -> ConnId {
        self.connect(id, qpn).unwrap();
        let conn = self.names.next().unwrap();
        self.report(Report::Connecting { token: id, result: Ok(conn) });
        conn
    }

    fn lose(&mut self, worker: WorkerId, untouched: &[ConnId]) {
        let untouched: BTreeSet<_> = untouched.iter().copied().collect();
        self.cm.handle_worker_lost(self.now, worker, &untouched);
    }
}

/// Returns for each connection the reported reason: why the connection was not established and the
/// state of its queue pair, or why it ended.
fn told(events: Vec<(AppId, Event)>) -> BTreeMap<CmId, String> {
    let text = |event| match event {
        Event::ConnectError { error, qp, .. } => format!("{error}, {qp:?}"),
        Event::Disconnected { qpn, reason, .. } => format!("{reason}, spent {}", qpn.0),
        other => panic!("{other:?}"),
    };
    let count = events.len();
    let all: BTreeMap<_, _> =
        events.into_iter().map(|(_, e)| (e.cm_id().unwrap(), text(e))).collect();
    assert_eq!(all.len(), count, "one end each");
    all
}

#[test]
fn test_every_connection_of_lost_worker_is_reported_ended() {
    let mut b = two_ports();
    b.listen_as(APP, L, "0.0.0.0:7174".parse().unwrap(), ListenParams::default());
    // A connection in each state.
    b.connect(1, 1).unwrap();
    b.opened(2, 2);
    let awaits_reply = b.opened(3, 3);
    b.event(RnicEvent::Connected { conn: awaits_reply, local: local() });
    let silent = b.accepted(peer(1));
    let (_, asked) = b.asked(peer(2));
    let (_, entering) = b.asked(peer(3));
    b.accept(entering, 6).unwrap();
    let (never_taken, untouched) = b.asked(peer(4));
    b.accept(untouched, 7).unwrap();
    let (_, leaving) = b.asked(peer(5));
    b.accept(leaving, 8).unwrap();
    b.ask(APP, Request::Disconnect { id: leaving }).unwrap();
    b.entering(7, 14);
    b.ask(APP, Request::Disconnect { id: CmId(7) }).unwrap();
    let (_, running) = b.established(9);
    let (truncated, ending) = b.established(10);
    let cut = heddle_types::Cut::Message;
    b.event(RnicEvent::Qp { conn: truncated, event: QpEvent::Truncated(cut) });
    // Connections that the application has given up and whose end it knows, in both states that
    // wait for the worker alone.
    let closing = b.opened(4, 11);
    b.ask(APP, Request::Disconnect { id: CmId(4) }).unwrap();
    b.connect(5, 12).unwrap();
    b.ask(APP, Request::Disconnect { id: CmId(5) }).unwrap();
    // A connection of the other worker's.
    let params = ConnectTerms::new(qp(13));
    let elsewhere = Request::Connect { id: CmId(6), remote: ELSEWHERE.into(), params };
    b.ask(APP, elsewhere).unwrap();
    while !b.events().is_empty() {}

    b.lose(W, &[never_taken]);

    let lost = "the worker has ended";
    let expected = [
        (CmId(1), format!("{lost}, Free(1)")),
        (CmId(2), format!("{lost}, Free(2)")),
        (CmId(3), format!("{lost}, Free(3)")),
        (asked, format!("{lost}, NoQp")),
        (entering, format!("{lost}, Spent(6)")),
        (untouched, format!("{lost}, Free(7)")),
        (leaving, format!("{lost}, Spent(8)")),
        (CmId(7), "cancelled, Spent(14)".into()),
        (running, format!("{lost}, spent 9")),
        (ending, format!("{}, spent 10", DisconnectReason::Truncated(cut))),
    ];
    assert_eq!(told(b.events()), BTreeMap::from(expected));
    assert_eq!(b.cm.counters().worker_lost, 11, "one that nobody knew of");
    // The ended worker gets no orders, and only the other worker's connection is left.
    assert_eq!(b.orders(), ["1 Connect"]);
    let gauges = b.cm.gauges();
    assert_eq!((gauges.conns, gauges.startups, gauges.timers, gauges.listeners), (1, 0, 1, 1));
    assert!(![silent, closing, awaits_reply].iter().any(|c| b.is_known(*c)));
    // Late reports count for nothing, as does a second end.
    b.closed(closing);
    b.accepted(peer(6));
    b.report(Report::Connecting { token: 1, result: Ok(silent) });
    b.lose(W, &[]);
    assert_eq!((b.orders(), b.events()), (vec![], vec![]));
    assert_eq!(b.cm.gauges().conns, 1);
    // A free queue pair can be used again, but the ended worker cannot.
    assert_eq!(b.connect(7, 1), Err(RequestError::NoWorker));
    let params = ConnectTerms::new(qp(7));
    let request = Request::Connect { id: CmId(7), remote: ELSEWHERE.into(), params };
    b.ask(APP, request).unwrap();
    let conn = b.names.next().unwrap();
    let report = Report::Connecting { token: 6, result: Ok(conn) };
    b.cm.handle_report(b.now, OTHER_WORKER, report);
    assert_eq!(b.cm.by_worker.get(&(OTHER_WORKER, conn)), Some(&CmId(6)));
}

#[test]
fn test_listener_stays_up_until_its_last_worker_is_lost() {
    let mut b = Bench::new(config(3));
    b.listen(ListenParams::default());
    b.lose(W, &[]);
    assert_eq!((b.events(), b.cm.gauges().listeners), (vec![], 1));
    // A new listener is for the workers that are left. One of them has answered when the other
    // ends.
    let second = SocketAddr::from(([10, 0, 0, 1], 99));
    let listen =
        |id, addr| Request::Listen { id: ListenerId(id), addr, params: ListenParams::default() };
    b.ask(APP, listen(2, second)).unwrap();
    assert_eq!(b.orders(), ["1 Listen", "2 Listen"]);
    b.cm.handle_report(b.now, OTHER_WORKER, Report::Listening { token: 2, result: Ok(()) });
    assert_eq!(b.events(), []);
    b.lose(WorkerId(2), &[]);
    assert_eq!(b.events(), [(APP, Event::Listening { id: ListenerId(2) })]);
    // The manager takes a listener back only from the workers that are left.
    b.ask(APP, Request::Unlisten { id: ListenerId(2) }).unwrap();
    assert_eq!(b.orders(), ["1 Unlisten"]);
    // The last worker ends: so does a listener that is not up yet.
    b.ask(APP, listen(3, second)).unwrap();
    b.lose(OTHER_WORKER, &[]);
    let error = ListenFailure::WorkerLost;
    let failed = |id| (APP, Event::ListenFailed { id: ListenerId(id), error });
    assert_eq!(b.events(), [failed(1), failed(3)]);
    assert_eq!((b.orders(), b.cm.gauges().listeners), (vec![], 0));
    assert_eq!(b.ask(APP, listen(4, second)), Err(RequestError::NoWorker));
}
