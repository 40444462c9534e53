//! UDP datagrams of the control plane, beside connections.

#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "small numbers of a test")]

use std::sync::Arc;
use std::time::Duration;

use crate::sim::{LinkConfig, PD, Pair};
use heddle_iwarp::QpConfig;
use heddle_rnic::Order;
use heddle_tcp::TxDatagram;

const CM: u16 = 4791;

fn order(p: &mut Pair, host: usize, order: Order) {
    let now = p.now;
    assert!(p.hosts[host].rnic.handle_order(now, order).is_none(), "none is answered");
}

/// A datagram goes from host 0, at 10.0.0.1, to host 1, and another comes back.
#[test]
fn test_hosts_exchange_datagrams_beside_a_connection() {
    let mut p = Pair::new(1, LinkConfig::default(), 64);
    order(&mut p, 0, Order::BindUdp { port: CM, filter: Arc::new(()) });
    order(&mut p, 1, Order::BindUdp { port: CM, filter: Arc::new(()) });
    let ask = TxDatagram {
        local: ([10, 0, 0, 1], 50000).into(),
        remote: ([10, 0, 0, 2], CM).into(),
        payload: b"request".to_vec(),
        to_stranger: false,
    };
    order(&mut p, 0, Order::SendDatagram(Box::new(ask)));
    p.run(Duration::from_secs(5), |p| p.hosts[1].rnic.has_datagrams());
    let got = p.hosts[1].rnic.poll_datagram().unwrap();
    assert_eq!((got.payload(), got.remote), (&b"request"[..], ([10, 0, 0, 1], 50000).into()));
    let answer = TxDatagram {
        local: ([10, 0, 0, 2], 50001).into(),
        remote: ([10, 0, 0, 1], CM).into(),
        payload: b"reply".to_vec(),
        to_stranger: false,
    };
    order(&mut p, 1, Order::SendDatagram(Box::new(answer)));
    let [conn, _] = p.connect(&QpConfig { pd: PD, ..QpConfig::default() });
    p.run(Duration::from_secs(5), |p| p.hosts[0].rnic.has_datagrams());
    let got = p.hosts[0].rnic.poll_datagram().unwrap();
    assert_eq!((got.payload(), got.remote), (&b"reply"[..], ([10, 0, 0, 2], 50001).into()));
    assert!(p.hosts[0].rnic.connection(conn).is_some());
    // After the unbind, no datagram comes any more.
    order(&mut p, 1, Order::UnbindUdp);
    let again = TxDatagram {
        local: ([10, 0, 0, 1], 50000).into(),
        remote: ([10, 0, 0, 2], CM).into(),
        payload: b"request".to_vec(),
        to_stranger: false,
    };
    order(&mut p, 0, Order::SendDatagram(Box::new(again)));
    p.run(Duration::from_secs(5), |p| p.hosts[1].rnic.stack_counters().rx_unknown_protocol == 1);
    assert!(!p.hosts[1].rnic.has_datagrams());
}
