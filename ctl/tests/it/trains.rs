//! Frames of many segments over rings that take them as they are, as a port does that cuts and
//! joins segments.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use heddle_ctl::{EndpointConfig, Node, OpenError};
use heddle_dataplane::{Eal, FaultConfig, Offloads};
use heddle_types::mpa::CrcPolicy;
use heddle_verbs::connection::Ends;
use heddle_verbs::{
    Access, ConnectParams, Connection, CqeStatus, ListenParams, MpaOptions, Protocol, RecvWr,
    SendWr,
};

const PATIENCE: Duration = Duration::from_secs(10);
const LEN: usize = 256 << 10;

fn byte(at: usize, round: u8) -> u8 {
    (at % 251) as u8 ^ (at / 4096) as u8 ^ round
}

fn done(c: &Connection, wr_id: u64) {
    let cqe = c.wait(PATIENCE).unwrap();
    assert_eq!((cqe.wr_id, cqe.status), (wr_id, CqeStatus::Success));
}

/// How two RNICs are joined.
pub(crate) type Join =
    fn(&Eal, &str, &EndpointConfig, &EndpointConfig) -> Result<(Node, Node), OpenError>;

/// Moves data by RDMA Write, RDMA Read and Send between two RNICs on rings; returns the trains and the
/// segments that the client's RNIC has sent, and the segments that the server's RNIC has sent again.
fn run(name: &str, crc: bool, change: impl Fn(&mut EndpointConfig)) -> (u64, u64, u64) {
    run_over(Node::ring_pair, name, crc, change)
}

pub(crate) fn run_over(
    join: Join,
    name: &str,
    crc: bool,
    change: impl Fn(&mut EndpointConfig),
) -> (u64, u64, u64) {
    let (eal, _turn) = crate::common::eal();
    let config = |n: u8| {
        let addr = vec![format!("10.0.0.{n}/24").parse().unwrap()];
        let mut config = EndpointConfig { frames: 4095, ..EndpointConfig::new(addr) };
        change(&mut config);
        config
    };
    let (a, b) = join(&eal, name, &config(1), &config(2)).unwrap();
    let crc = if crc { CrcPolicy::Required } else { CrcPolicy::Off };
    let protocol = Protocol::Mpa(MpaOptions { crc, ..MpaOptions::default() });
    let params = ListenParams { protocol, ..ListenParams::default() };
    let listener = b.device().bind_with("10.0.0.2:7174", params).unwrap();
    let ends = Ends::new(a.device(), a.device().alloc_pd().unwrap()).unwrap();
    let params = ConnectParams { protocol, ..ConnectParams::new(ends.qp.clone()) };
    let connecting = a.device().dial_with("10.0.0.2:7174", params, ends).unwrap();
    let server = listener.accept().unwrap();
    let client = connecting.wait().unwrap();
    let rights = Access::REMOTE_WRITE.with(Access::REMOTE_READ).with(Access::LOCAL_WRITE);
    let (ours, theirs) =
        (client.alloc_mr(LEN, rights).unwrap(), server.alloc_mr(LEN, rights).unwrap());
    let fill = |round: u8| (0..LEN).map(|at| byte(at, round)).collect::<Vec<_>>();
    let mut seen = vec![0; LEN];
    for round in 0..4 {
        ours.write(0, &fill(round));
        let local = [ours.sge(0, LEN)];
        client.post_send(&SendWr::write(1, &local, theirs.stag(), theirs.to())).unwrap();
        // A Read after the Write is answered once the Write is in its place.
        client.post_send(&SendWr::read(2, &[ours.sge(0, 8)], theirs.stag(), theirs.to())).unwrap();
        done(&client, 1);
        done(&client, 2);
        theirs.read(0, &mut seen);
        assert!(seen == fill(round), "written, round {round}");
        theirs.write(0, &fill(round ^ 0x55));
        client.post_send(&SendWr::read(3, &local, theirs.stag(), theirs.to())).unwrap();
        done(&client, 3);
        ours.read(0, &mut seen);
        assert!(seen == fill(round ^ 0x55), "read, round {round}");
        ours.write(0, &fill(round ^ 0xaa));
        server.post_recv(&RecvWr::new(4, &[theirs.sge(0, LEN)])).unwrap();
        client.post_send(&SendWr::send(5, &local)).unwrap();
        done(&server, 4);
        done(&client, 5);
        theirs.read(0, &mut seen);
        assert!(seen == fill(round ^ 0xaa), "sent, round {round}");
    }
    let sums = |n: &Node| n.snapshot().workers[0].counters.as_ref().unwrap().engine.rnic;
    let (a, b) = (sums(&a), sums(&b));
    (a.tx_trains, a.tx_segments, a.tx_retransmits + b.tx_retransmits)
}

fn uncut(config: &mut EndpointConfig) {
    config.offloads = Offloads { rings: true, ..Offloads::default() };
}

#[test]
fn test_long_messages_leave_in_trains_where_port_cuts_them() {
    for (name, crc) in [("train-crc", true), ("train-nocrc", false)] {
        let (trains, segments, _) = run(name, crc, uncut);
        // 8 messages of 184 segments, of which a train has 32 at most.
        assert!(segments >= 8 * 183, "{segments}");
        // Some segments leave alone, as a busy machine has it.
        let likely = segments / 64..=segments / 16;
        assert!(likely.contains(&trains), "{trains} trains, {segments} segments");
    }
    let (trains, segments, _) = run("train-none", true, |_| {});
    assert!(trains == 0 && segments > 8 * 183, "{trains}");
}

/// Jumbo frames, and frames that are lost: fault injection takes single segments alone.
#[test]
fn test_trains_of_any_mtu_survive_loss() {
    let (trains, ..) = run("train-jumbo", true, |c| {
        uncut(c);
        c.mtu = 9000;
    });
    assert!(trains > 0);
    let (trains, _, again) = run("train-loss", true, |c| {
        uncut(c);
        c.fault = FaultConfig { drop: 0.02, ..FaultConfig::default() };
    });
    assert!(trains == 0 && again > 0, "{trains} trains, {again} segments sent again");
}

/// The client is at the back end of vhost-user and the server at the front end; each polls on a
/// thread of its own. A frame that is lost or late costs the same repair as on any wire.
#[test]
fn test_trains_pass_a_vhost_pair_with_and_without_loss() {
    for (name, crc) in [("vhost-crc", true), ("vhost-nocrc", false)] {
        let (trains, segments, _) = run_over(Node::vhost_pair, name, crc, |_| {});
        assert!(segments >= 8 * 183, "{segments}");
        assert!((segments / 64..=segments / 8).contains(&trains), "{trains} of {segments}");
    }
    let (trains, ..) = run_over(Node::vhost_pair, "vhost-jumbo", true, |c| c.mtu = 9000);
    assert!(trains > 0);
    let (trains, _, again) = run_over(Node::vhost_pair, "vhost-loss", true, |c| {
        c.fault = FaultConfig { drop: 0.02, ..FaultConfig::default() };
    });
    assert!(trains == 0 && again > 0, "{trains} trains, {again} segments sent again");
}
