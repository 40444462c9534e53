//! The views of connections.

use super::*;

#[test]
fn test_manager_lists_connections_in_id_order_from_any_id_on() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams::default());
    let (conn, first) = b.established(7);
    let (_, second) = b.asked(peer(2));
    let silent = b.accepted(peer(3));
    let all: Vec<_> = b.cm.conns(None).collect();
    let states: Vec<_> = all.iter().map(|c| (c.id, c.state)).collect();
    let third = all[2].id;
    assert_eq!(states, [(first, "await-fpdu"), (second, "await-answer"), (third, "await-request")]);
    let want = ConnView {
        id: first,
        app: APP,
        worker: W,
        conn: Some(conn),
        local: local(),
        remote: all[0].remote,
        listener: Some(L),
        transport: heddle_types::Transport::Iwarp,
        state: "await-fpdu",
    };
    assert_eq!(b.cm.conn(first), Some(want));
    assert_eq!(all[2].conn, Some(silent));
    let ids = |after| b.cm.conns(Some(after)).map(|c| c.id).collect::<Vec<_>>();
    assert_eq!((ids(first), ids(third)), (vec![second, third], vec![]));
    // A name whose connection has ended does not end the walk.
    assert_eq!(b.cm.conn(CmId(1)), None);
    assert_eq!(ids(CmId(1)).len(), 3);
}

#[test]
fn test_manager_lists_listeners_with_their_backlog_and_startups() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams { backlog: 3, ..ListenParams::default() });
    b.asked(peer(1));
    b.accepted(peer(2));
    let other = ListenerId(9);
    let addr = "10.0.0.1:9".parse().unwrap();
    b.ask(OTHER, Request::Listen { id: other, addr, params: ListenParams::default() }).unwrap();
    let seen: Vec<_> = b.cm.listeners().map(|l| (l.id, l.app, l.listening, l.startups)).collect();
    assert_eq!(seen, [(L, APP, true, 2), (other, OTHER, false, 0)]);
    assert_eq!(b.cm.listeners().next().map(|l| (l.addr, l.backlog)), Some((local(), 3)));
}
