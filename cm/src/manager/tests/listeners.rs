//! A listener over several workers, and its end.

use super::*;

#[test]
fn test_a_listener_over_workers_is_withdrawn_when_one_refuses() {
    let mut b = Bench::new(config(3));
    let listen =
        |id| Request::Listen { id: ListenerId(id), addr: local(), params: ListenParams::default() };
    b.ask(APP, listen(1)).unwrap();
    assert_eq!(b.orders(), ["0 Listen", "1 Listen", "2 Listen"]);
    let answer = |b: &mut Bench, w, token, result| {
        b.cm.handle_report(b.now, WorkerId(w), Report::Listening { token, result });
    };
    answer(&mut b, 0, 1, Ok(()));
    // The listener does not exist for peers before all workers have answered.
    let early = b.accepted(peer(1));
    assert!(!b.is_known(early));
    assert_eq!(
        (b.orders(), b.notices()),
        (vec!["0 Abort".into(), "0 Release".into()], vec![Refusal::NotListening])
    );
    answer(&mut b, 1, 1, Err(ListenError::Full));
    assert_eq!((b.orders(), b.events().len()), (vec!["0 Unlisten".to_string()], 0));
    assert_eq!(b.ask(APP, listen(2)), Err(RequestError::Listen(ListenError::InUse)));
    answer(&mut b, 2, 1, Ok(()));
    assert_eq!(b.orders(), ["2 Unlisten"]);
    let error = ListenFailure::Worker(ListenError::Full);
    assert_eq!(b.events(), [(APP, Event::ListenFailed { id: L, error })]);
    // The address is free again. The application takes the listener back while two workers have not
    // answered: each stops when the order reaches it.
    b.ask(APP, listen(2)).unwrap();
    b.orders();
    answer(&mut b, 1, 2, Ok(()));
    b.ask(APP, Request::Unlisten { id: ListenerId(2) }).unwrap();
    let mut orders = b.orders();
    orders.sort();
    assert_eq!(orders, ["0 Unlisten", "1 Unlisten", "2 Unlisten"]);
    let error = ListenFailure::Withdrawn;
    assert_eq!(b.events(), [(APP, Event::ListenFailed { id: ListenerId(2), error })]);
    b.ask(APP, listen(3)).unwrap();
    b.orders();
    // Late answers for the listener before do not count for this one.
    answer(&mut b, 0, 2, Ok(()));
    answer(&mut b, 2, 2, Err(ListenError::Full));
    for w in 0..3 {
        assert_eq!(b.events(), []);
        answer(&mut b, w, 3, Ok(()));
    }
    assert_eq!(b.events(), [(APP, Event::Listening { id: ListenerId(3) })]);
    assert_eq!(b.orders(), [""; 0]);
}

#[test]
fn test_unlisten_resets_only_connections_not_yet_reported_to_application() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams::default());
    let (running, _) = b.established(7);
    let (asked, id) = b.asked(peer(2));
    let silent = b.accepted(peer(3));
    b.orders();
    b.ask(APP, Request::Unlisten { id: L }).unwrap();
    assert_eq!(b.orders(), ["0 Unlisten", "0 Abort"]);
    b.closed(silent);
    assert_eq!([running, asked, silent].map(|c| b.is_known(c)), [true, true, false]);
    b.accept(id, 8).unwrap();
    b.report(Report::Entered { conn: asked, result: Ok(()) });
    assert!(matches!(b.events()[..], [(APP, Event::Established { .. })]));
    let late = b.accepted(peer(4));
    assert!(!b.is_known(late));
    assert_eq!(b.cm.gauges().startups, 0);
}
