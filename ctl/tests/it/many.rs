//! Many connections at a time, for which workers look ahead.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use heddle_ctl::{EndpointConfig, Node};
use heddle_types::mpa::CrcPolicy;
use heddle_verbs::connection::Ends;
use heddle_verbs::{
    Access, ConnectParams, Connection, CqeStatus, ListenParams, MpaOptions, Protocol, RecvWr,
    SendWr,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// Connections: more than the number from which a worker looks ahead (128).
const CONNS: usize = 160;

/// Bytes that each connection writes and sends: some make a frame, some two.
fn len(conn: usize) -> usize {
    [8, 64, 1000, 2000][conn % 4]
}

fn content(conn: usize, round: u8) -> Vec<u8> {
    (0..len(conn)).map(|at| (at * 7 + conn * 31) as u8 ^ round).collect()
}

fn done(c: &Connection, wr_id: u64) {
    let cqe = c.wait(PATIENCE).unwrap();
    assert_eq!((cqe.wr_id, cqe.status), (wr_id, CqeStatus::Success));
}

/// All connections write and send at the same time, in each round other bytes; each finds its own
/// bytes at its peer.
#[test]
fn test_many_connections_at_work_get_their_own_bytes() {
    let (eal, _turn) = crate::common::eal();
    let config = |n: u8| {
        let addr = vec![format!("10.0.0.{n}/24").parse().unwrap()];
        EndpointConfig { frames: 8191, ..EndpointConfig::new(addr) }
    };
    let (a, b) = Node::ring_pair(&eal, "many", &config(1), &config(2)).unwrap();
    let crc = CrcPolicy::Required;
    let protocol = Protocol::Mpa(MpaOptions { crc, ..MpaOptions::default() });
    let params = ListenParams { protocol, ..ListenParams::default() };
    let listener = b.device().bind_with("10.0.0.2:7174", params).unwrap();
    let rights = Access::REMOTE_WRITE.with(Access::LOCAL_WRITE);
    let mut pairs = Vec::new();
    for _ in 0..CONNS {
        let ends = Ends::new(a.device(), a.device().alloc_pd().unwrap()).unwrap();
        let params = ConnectParams { protocol, ..ConnectParams::new(ends.qp.clone()) };
        let connecting = a.device().dial_with("10.0.0.2:7174", params, ends).unwrap();
        let server = listener.accept().unwrap();
        let client = connecting.wait().unwrap();
        let ours = client.alloc_mr(4096, rights).unwrap();
        let theirs = server.alloc_mr(8192, rights).unwrap();
        pairs.push((client, server, ours, theirs));
    }
    for round in 0..20 {
        for (n, (_, server, ours, theirs)) in pairs.iter().enumerate() {
            ours.write(0, &content(n, round));
            server.post_recv(&RecvWr::new(1, &[theirs.sge(4096, 4096)])).unwrap();
        }
        for (n, (client, _, ours, theirs)) in pairs.iter().enumerate() {
            let local = [ours.sge(0, len(n))];
            client.post_send(&SendWr::write(2, &local, theirs.stag(), theirs.to())).unwrap();
            client.post_send(&SendWr::send(3, &local)).unwrap();
        }
        for (n, (client, server, _, theirs)) in pairs.iter().enumerate() {
            done(server, 1);
            done(client, 2);
            done(client, 3);
            let mut seen = vec![0; len(n)];
            for (what, at) in [("written", 0), ("sent", 4096)] {
                theirs.read(at, &mut seen);
                assert!(seen == content(n, round), "{what} by {n} in round {round}");
            }
        }
    }
}
