//! Receive windows of a worker: the windows that its peer learns.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use crate::common::*;
use heddle_iwarp::ddp::DdpHeader;
use heddle_iwarp::rdmap::{Control, Opcode};
use heddle_tcp::SendQueue;
use heddle_verbs::{AcceptParams, CmEvent};

/// A peer 10 ms away writes two MiB; the worker's windows begin with 64 KiB. Returns the largest
/// window that the peer learned.
fn largest_window(budget: u64) -> u32 {
    let (eal, _turn) = eal();
    let mut net = Net::with(&eal, |c| {
        (c.tcp.recv_window, c.tcp.recv_window_max) = (64 << 10, 1 << 20);
        c.window_budget = budget;
    });
    let events = listen(&mut net, PORT, |_| {});
    net.peer.delay = 10 * MS;
    let conn = net.tcp(PORT);
    net.peer.send(conn, &request(b"hello"));
    let end = End::new(&net.us);
    let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("a request") };
    net.us.device().accept(id, AcceptParams::new(end.qp.clone())).unwrap();
    assert!(matches!(net.event(&events), CmEvent::Established { .. }));
    net.pass(50 * MS);
    let rsvd_ulp = Control::new(Opcode::WRITE).to_byte();
    let write = DdpHeader::Tagged { last: true, rsvd_ulp, stag: end.mr.stag(), to: end.mr.to() };
    let fpdu = fpdu(write, &[7; 1400]);
    let mut largest = 0;
    for _ in 0..1500 {
        net.peer.send(conn, &fpdu);
    }
    net.until("the end", |n| {
        let c = n.peer.stack.conn(conn).unwrap();
        largest = largest.max(c.stats().snd_wnd);
        (c.snd_una() == n.peer.stack.user(conn).unwrap().end()).then_some(())
    });
    assert_eq!(net.peer.end_of(conn), None);
    largest
}

#[test]
fn test_window_of_a_worker_grows_within_its_budget() {
    assert!(largest_window(64 << 20) > 700 << 10);
    assert!(largest_window(128 << 10) <= 160 << 10, "half of the budget, and a little");
    assert!(largest_window(0) <= 65 << 10);
}
