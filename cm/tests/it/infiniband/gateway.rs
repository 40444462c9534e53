//! A gateway between a client and a server; each of the two sees the gateway as it would see the
//! other. Both sides speak InfiniBand here, which makes no difference to a gateway, because it
//! handles only events.

use std::time::Duration;

use heddle_gateway::pairing::{Action, Pairing, PairingRule};
use heddle_types::{
    AcceptTerms, CmId, ConnectFailure, ConnectTerms, Event, IbRefusal, ListenParams, ListenerId,
    PeerDepths, Protocol, Request, TcpTerms, Transport, mpa::Depth,
};

use crate::infiniband::world::*;

const VIA: usize = 2;

fn net(target: std::net::SocketAddr) -> (Net, Pairing) {
    let mut net = Net::new(1);
    let at = std::net::SocketAddr::new(addr(VIA), PORT);
    net.listen_at(VIA, at, ListenParams { infiniband: true, ..ListenParams::default() });
    let mut gateway = Pairing::new(vec![addr(VIA)], CmId(1000));
    let rule = PairingRule {
        listener: ListenerId(1),
        addr: at,
        from: Transport::InfiniBand,
        target,
        protocol: Protocol::InfiniBand,
        timeout: Duration::from_secs(10),
        most: 8,
        tcp: TcpTerms::default(),
    };
    gateway.add(rule).unwrap();
    for n in 1..=8 {
        gateway.give_qp(qp(n));
    }
    let mut params = ConnectTerms::new(qp(7));
    params.protocol = Protocol::InfiniBand;
    (params.ird, params.ord, params.private_data) = (3, 4, b"question".to_vec());
    net.ask(1, Request::Connect { id: CmId(7), remote: at, params }).unwrap();
    (net, gateway)
}

/// Carries out the gateway's actions, as its shell would.
fn serve(net: &mut Net, gateway: &mut Pairing) {
    while let Some(event) = net.nodes[VIA].events.pop_front() {
        gateway.handle_event(event);
    }
    while let Some(action) = gateway.poll_action() {
        match action {
            Action::Request(request) => {
                if net.ask(VIA, request.clone()).is_err() {
                    gateway.handle_refused(&request);
                }
            }
            Action::Refuse { id, reason } => {
                net.nodes[VIA].cm.refuse(net.now, APP, id, reason).unwrap();
                net.collect();
            }
            Action::Spent(qp) => {
                let forget = Request::ForgetQp { qpn: qp.qpn };
                net.ask(VIA, forget).unwrap();
                gateway.give_qp(qp);
            }
        }
    }
}

fn event(net: &mut Net, gateway: &mut Pairing, node: usize) -> Event {
    let until = net.now + ms(60_000);
    loop {
        serve(net, gateway);
        if let Some(event) = net.nodes[node].events.pop_front() {
            return event;
        }
        assert!(net.step(until), "node {node} is told nothing");
    }
}

fn finish(net: &mut Net, gateway: &mut Pairing) {
    let until = net.now + ms(300_000);
    while net.step(until) {
        serve(net, gateway);
    }
    assert!(gateway.is_empty());
    net.assert_nothing_left();
    assert_eq!(net.nodes[VIA].cm.gauges().claims, 0, "every queue pair came back");
}

#[test]
fn test_client_and_server_connect_through_gateway() {
    let (mut net, mut gateway) = net(server());
    let (net, g) = (&mut net, &mut gateway);
    let Event::ConnectRequest { id, remote, private_data, peer, .. } = event(net, g, 0) else {
        panic!("a request")
    };
    assert_eq!((remote.ip(), &private_data[..9]), (addr(VIA), &b"question\0"[..]));
    let depth = |n| Depth::new(n).unwrap();
    assert_eq!(peer, Some(PeerDepths { ird: depth(3), ord: depth(4) }));
    let params = AcceptTerms {
        ird: 2,
        ord: 1,
        private_data: b"answer".to_vec(),
        ..AcceptTerms::new(qp(100))
    };
    net.ask(0, Request::Accept { id, params }).unwrap();
    let Event::Established { private_data, agreed, .. } = event(net, g, 1) else { panic!() };
    assert_eq!(&private_data[..7], b"answer\0");
    assert_eq!((agreed.ird, agreed.ord), (3, 2), "what the server takes");
    assert_eq!(agreed.peer, Some(PeerDepths { ird: depth(2), ord: depth(1) }));
    assert!(matches!(event(net, g, 0), Event::Established { .. }));
    net.ask(1, Request::Disconnect { id: CmId(7) }).unwrap();
    assert!(matches!(event(net, g, 0), Event::Disconnected { .. }));
    assert!(matches!(event(net, g, 1), Event::Disconnected { .. }));
    finish(net, g);
}

#[test]
fn test_gateway_forwards_rejection_with_private_data() {
    let (mut net, mut gateway) = net(server());
    let (net, g) = (&mut net, &mut gateway);
    let Event::ConnectRequest { id, .. } = event(net, g, 0) else { panic!() };
    let private_data = b"not today".to_vec();
    net.ask(0, Request::Reject { id, private_data, needs_ord: None }).unwrap();
    let Event::Rejected { private_data, .. } = event(net, g, 1) else { panic!() };
    assert_eq!(&private_data[..10], b"not today\0");
    finish(net, g);
}

#[test]
fn test_gateway_forwards_reason_of_refusal() {
    let nobody = std::net::SocketAddr::new(addr(0), PORT + 1);
    let (mut net, mut gateway) = net(nobody);
    let (net, g) = (&mut net, &mut gateway);
    let Event::ConnectError { error, .. } = event(net, g, 1) else { panic!() };
    assert_eq!(error, ConnectFailure::InfiniBand(IbRefusal::Reason(8)));
    assert_eq!(g.counters().failed, 1);
    finish(net, g);
}

#[test]
fn test_server_is_told_through_gateway_when_client_gives_up() {
    let (mut net, mut gateway) = net(server());
    let (net, g) = (&mut net, &mut gateway);
    assert!(matches!(event(net, g, 0), Event::ConnectRequest { .. }));
    net.ask(1, Request::Disconnect { id: CmId(7) }).unwrap();
    assert!(matches!(event(net, g, 0), Event::ConnectError { .. }));
    assert!(matches!(event(net, g, 1), Event::ConnectError { .. }));
    finish(net, g);
}
