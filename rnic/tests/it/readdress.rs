//! Removal of an address from an RNIC that has connections there.

#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "small numbers of a test")]

use std::time::Duration;

use crate::sim::{LinkConfig, PD, Pair};
use heddle_iwarp::QpConfig;
use heddle_rnic::{Event, Order, Report};
use heddle_tcp::Addressing;
use heddle_types::{CloseReason, ConnectError, CqeStatus, RecvWr, TcpTerms};

fn net(addrs: &[&str]) -> Box<Addressing> {
    let addrs = addrs.iter().map(|a| a.parse().unwrap()).collect();
    Box::new(Addressing::new(addrs, vec![]).unwrap())
}

fn end(p: &Pair, host: usize) -> Vec<Event> {
    let ends = p.hosts[host].events.iter().filter(|e| matches!(e, Event::Closed { .. }));
    ends.cloned().collect()
}

/// The RNIC flushes all posted requests, the owner learns the reason, the peer sees a reset; and a
/// connection from another address goes on.
#[test]
fn test_connections_of_removed_address_end_with_that_reason() {
    let mut p = Pair::new(5, LinkConfig::default(), 1 << 12);
    let now = p.now;
    p.hosts[0]
        .rnic
        .handle_order(now, Order::SetAddressing { net: net(&["10.0.0.1/24", "10.0.0.9/24"]) });
    let [a, b] = p.connect(&QpConfig { pd: PD, ..QpConfig::default() });
    let connect = Order::Connect {
        token: 7,
        local: Some("10.0.0.9".parse().unwrap()),
        remote: ([10, 0, 0, 2], crate::sim::PORT).into(),
        tcp: TcpTerms::default(),
    };
    let report = p.hosts[0].rnic.handle_order(now, connect.clone());
    let Some(Report::Connecting { token: 7, result: Ok(other) }) = report else { panic!() };
    p.run(Duration::from_secs(5), |p| {
        p.hosts[0].events.iter().any(|e| {
            matches!(e, Event::Connected { conn, local } if *conn == other
                && local.ip().to_string() == "10.0.0.9")
        })
    });
    p.hosts[0].rnic.post_recv(a, &RecvWr::new(1, &[])).unwrap();

    let now = p.now;
    p.hosts[0].rnic.handle_order(now, Order::SetAddressing { net: net(&["10.0.0.9/24"]) });
    p.run(Duration::from_secs(5), |p| !end(p, 1).is_empty());
    assert_eq!(end(&p, 0), [Event::Closed { conn: a, reason: CloseReason::Withdrawn }]);
    assert_eq!(end(&p, 1), [Event::Closed { conn: b, reason: CloseReason::Reset }]);
    let flushed: Vec<_> =
        p.hosts[0].completions.iter().map(|(c, cqe)| (*c, cqe.wr_id, cqe.status)).collect();
    assert_eq!(flushed, [(a, 1, CqeStatus::Flushed)]);
    p.hosts[0].rnic.release(a);

    p.hosts[0].rnic.send_startup(other, b"MPA").unwrap();
    let arrived = |p: &Pair| {
        p.hosts[1]
            .events
            .iter()
            .any(|e| matches!(e, Event::StartupBytes { bytes, .. } if bytes == b"MPA"))
    };
    p.run(Duration::from_secs(5), |p| arrived(p));

    let now = p.now;
    p.hosts[0].rnic.handle_order(now, Order::SetAddressing { net: net(&["10.0.0.1/24"]) });
    let report = p.hosts[0].rnic.handle_order(now, connect);
    let Some(Report::Connecting { token: 7, result: Err(ConnectError::NotOurs) }) = report else {
        panic!("{report:?}")
    };
}
