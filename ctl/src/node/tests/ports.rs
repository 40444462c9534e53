//! An RNIC of two ports loses the workers of one of them, and the other port goes on.

use heddle_types::RequestError;
use heddle_verbs::ConnectFailure;

use super::*;
use crate::{OpenPort, PortSetup, RnicSetup};

/// Number of workers of each port.
const EACH: usize = 2;

/// The RNIC, and a peer RNIC at each of its ports.
struct TwoPorts {
    orders: Vec<Orders>,
    node: Node,
    peers: [Node; 2],
    _turn: MutexGuard<'static, ()>,
}

/// Returns side `n`'s address at port `port`.
fn at(port: usize, n: usize) -> String {
    format!("10.0.{port}.{n}:7174")
}

fn two_ports(name: &str) -> TwoPorts {
    let (eal, turn) = crate::testing::eal();
    let setup = |port: usize, n: usize| {
        let addr = format!("10.0.{port}.{n}/24").parse().unwrap();
        PortSetup { workers: EACH, frames: 2047, ..PortSetup::new(vec![addr]) }
    };
    let rnic = || RnicSetup { memory: 1 << 20, ..RnicSetup::new() };
    let pair = |port| {
        let name = format!("{name}{port}");
        OpenPort::ring_pair(&eal, &name, &setup(port, 1), &setup(port, 2)).unwrap()
    };
    let ((a, peer_a), (b, peer_b)) = (pair(0), pair(1));
    let cpus = allowed_cpus();
    let peers = [peer_a, peer_b].map(|port| {
        let peer = Endpoint::assemble(&eal, vec![port], &rnic()).unwrap();
        let turn_of = |_: usize, w: &mut Worker| {
            let busy = w.poll();
            if !busy {
                thread::yield_now();
            }
            busy
        };
        Node::run(&eal, peer, &Lcores::new(&cpus[cpus.len() - 1..]), turn_of).unwrap()
    });
    let us = Endpoint::assemble(&eal, vec![a, b], &rnic()).unwrap();
    let orders: Vec<_> = (0..2 * EACH).map(|_| Orders::default()).collect();
    let theirs = orders.clone();
    let turn_of = move |n: usize, w: &mut Worker| theirs[n].turn(w);
    let node = Node::run(&eal, us, &Lcores::new(&cpus[..1]), turn_of).unwrap();
    TwoPorts { orders, node, peers, _turn: turn }
}

impl TwoPorts {
    /// Makes the workers of a port panic.
    fn kill(&self, port: usize) {
        let running = self.node.running_workers();
        for orders in &self.orders[port * EACH..(port + 1) * EACH] {
            orders.panic.store(true, Ordering::Relaxed);
        }
        let until = Instant::now() + PROMPT;
        while self.node.running_workers() > running - EACH {
            assert!(Instant::now() < until, "they go on");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes a connection from a peer to us, and uses it.
    fn come(&self, port: usize, listener: &Listener) -> (Connection, Connection) {
        let connecting = self.peers[port].device().dial(at(port, 1)).unwrap();
        let (here, there) = (listener.accept().unwrap(), connecting.wait().unwrap());
        talk(&there, &here);
        (here, there)
    }

    /// Makes a connection from us to a peer, and uses it.
    fn go(&self, port: usize, listener: &Listener) -> (Connection, Connection) {
        let connecting = self.node.device().dial(at(port, 2)).unwrap();
        let there = listener.accept().unwrap();
        let here = connecting.wait().unwrap();
        talk(&here, &there);
        (here, there)
    }
}

fn talk(from: &Connection, to: &Connection) {
    to.post_recv(&RecvWr::new(1, &[])).unwrap();
    from.post_send(&SendWr::send_inline(3, &[])).unwrap();
    assert!(to.wait(PROMPT).unwrap().status.is_success());
    assert!(from.wait(PROMPT).unwrap().status.is_success());
}

#[test]
fn test_port_that_loses_its_workers_leaves_other_port_running() {
    for dead in 0..2 {
        let rig = two_ports(&format!("twoports{dead}"));
        let live = 1 - dead;
        let any = rig.node.device().bind("0.0.0.0:7174").unwrap();
        let local = rig.node.device().bind(format!("10.0.{dead}.1:7175")).unwrap();
        let theirs = [0, 1].map(|port| rig.peers[port].device().bind(at(port, 2)).unwrap());
        let mut lost = vec![rig.come(dead, &any), rig.go(dead, &theirs[dead])];
        let kept = [rig.come(live, &any), rig.go(live, &theirs[live])];
        rig.kill(dead);

        for (here, there) in &mut lost {
            assert_eq!(end_of(here), DisconnectReason::WorkerLost);
            assert_eq!(end_of(there), DisconnectReason::Tcp(CloseReason::Reset));
        }
        for (here, there) in &kept {
            talk(here, there);
            talk(there, here);
        }
        // A listener at both ports still listens at the live port; a listener at the dead port
        // alone has ended.
        rig.come(live, &any);
        let error = local.accept().unwrap_err();
        assert!(matches!(error, ConnectionError::Listen(ListenFailure::WorkerLost)), "{error}");
        rig.go(live, &theirs[live]);
        // No worker is left that could reach this peer.
        let error = rig.node.device().dial(at(dead, 2)).unwrap().wait().unwrap_err();
        let none = ConnectFailure::Request(RequestError::NoWorker);
        assert!(matches!(&error, ConnectionError::Connect(e) if *e == none), "{error}");
        assert!(rig.node.is_running());
        let running = rig.node.places().map(|p| (p.port, p.running));
        assert!(running.into_iter().all(|(port, running)| running == (port == live)));
    }
}
