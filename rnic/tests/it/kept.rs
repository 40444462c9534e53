//! Memory that send queues keep: counted references, and Read Responses in the state in which the
//! RNIC cut them.

#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "small numbers of a test")]

use std::time::Duration;

use crate::sim::{LinkConfig, PD, Pair, TO_BASE};
use heddle_base::{Random, Seed};
use heddle_iwarp::QpConfig;
use heddle_types::{Access, ConnId, CqeOp, SendWr, Sge, Stag};

const READ: usize = 200_000;
const MEMORY: usize = 1 << 20;

fn sge(stag: Stag, at: usize, len: usize) -> [Sge; 1] {
    [Sge { stag, to: (at + TO_BASE as usize) as u64, len: len as u32 }]
}

/// Connects a pair in which host 0 reads from host 1.
fn pair(seed: u64, snapshots: usize, crc: bool) -> (Pair, [ConnId; 2], [Stag; 2]) {
    pair_on(LinkConfig::default(), seed, snapshots, crc)
}

fn pair_on(
    link: LinkConfig,
    seed: u64,
    snapshots: usize,
    crc: bool,
) -> (Pair, [ConnId; 2], [Stag; 2]) {
    eprintln!("seed {seed}");
    let mut p = Pair::with_snapshots(seed, link, MEMORY, snapshots);
    let conns = p.connect(&QpConfig { pd: PD, crc, ..QpConfig::default() });
    let rights = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ);
    let stags = [0, 1].map(|h| p.register(h, 0, MEMORY, rights).stag);
    (p, conns, stags)
}

fn no_errors(p: &Pair) {
    for h in &p.hosts {
        h.rnic.qp_counters().for_each(|name, _, n| {
            assert!(!name.starts_with("err_") || n == 0, "{name} = {n}");
        });
        assert!(h.completions.iter().all(|(_, c)| c.status.is_success()));
    }
}

/// The source of a Read changes all the time: by the application, and by Writes of the reader
/// itself. The bytes of a Read Response may be any mixture, but the CRC is right.
#[test]
fn test_read_response_has_right_crc_while_its_source_changes() {
    for seed in 0..10 {
        let (mut p, conns, stags) = pair(seed, 1 << 20, true);
        p.link.loss = 0.05;
        let mut random = Random::new(&Seed::from_u64(seed));
        for i in 0..4 {
            let sges = sge(stags[0], 0, READ);
            let wr = &SendWr::read(i, &sges, stags[1], TO_BASE);
            p.hosts[0].rnic.post_send(conns[0], wr).unwrap();
        }
        let mut writes = 0;
        while p.hosts[0].completions.iter().filter(|(_, c)| c.op == CqeOp::Read).count() < 4 {
            assert!(p.step(), "nothing left that could happen");
            p.check_pins();
            let at = random.below(READ as u64) as usize;
            let bytes = random.next_u64().to_le_bytes();
            p.hosts[1].mem.write(at, &bytes.repeat(40));
            if writes < 100 && p.hosts[0].completions.len() >= writes {
                writes += 1;
                let to = TO_BASE + at as u64;
                let wr = &SendWr::write_inline(100, &bytes, stags[1], to).unsignaled();
                p.hosts[0].rnic.post_send(conns[0], wr).unwrap();
            }
        }
        no_errors(&p);
        let again = p.hosts[1].rnic.counters().tx_retransmits;
        assert!(again > 0, "no Read Response was sent again");
        assert!(p.hosts[1].rnic.qp_counters().tx_snapshot_bytes >= 4 * READ as u64);
        assert_eq!(p.hosts[1].rnic.counters().tx_referenced_bytes, 0);
    }
}

/// A Read Response does not need its region any more after the turn in which it is cut, also where
/// frames take snapshots in passing, and the turn ends before all frames have gone.
#[test]
fn test_region_may_be_removed_while_read_response_is_in_flight() {
    for (crc, cuts, frames) in [(true, 1, 64), (false, 1, 64), (true, 2, 64), (true, 2, 1)] {
        let link = LinkConfig { cuts, ..LinkConfig::default() };
        let (mut p, conns, stags) = pair_on(link, 7, 1 << 20, crc);
        p.pace[1].frames = frames;
        let len = 9000;
        let data = crate::sim::pattern(5, len);
        p.hosts[1].mem.write(0, &data);
        let sges = sge(stags[0], 0, len);
        let wr = &SendWr::read(1, &sges, stags[1], TO_BASE);
        p.hosts[0].rnic.post_send(conns[0], wr).unwrap();
        p.cut[1] = true;
        while p.hosts[1].rnic.snapshot_bytes() < len {
            assert!(p.step());
            assert_eq!(p.pinned(1), 0, "a snapshot refers to nothing");
        }
        p.hosts[1].mrs.deregister(stags[1]).unwrap();
        p.hosts[1].mem.write(0, &[0; MEMORY]);
        p.cut[1] = false;
        p.run(Duration::from_secs(60), |p| !p.hosts[0].completions.is_empty());
        no_errors(&p);
        assert_eq!(p.hosts[0].mem.read(0, len), data);
    }
}

/// With little room, Reads wait, but lose nothing.
#[test]
fn test_read_responses_without_room_wait_and_are_not_lost() {
    for (seed, room) in [(1, 0), (2, 1), (3, 20_000), (4, 100_000)] {
        let (mut p, conns, stags) = pair(seed, room, true);
        p.link.loss = 0.02;
        let data = crate::sim::pattern(seed, READ);
        p.hosts[1].mem.write(0, &data);
        for i in 0..3 {
            let sges = sge(stags[0], 0, READ);
            let wr = &SendWr::read(i, &sges, stags[1], TO_BASE);
            p.hosts[0].rnic.post_send(conns[0], wr).unwrap();
        }
        // The responder's own requests do not stop because of Reads that wait.
        let sges = sge(stags[1], READ, 40_000);
        let wr = &SendWr::write(9, &sges, stags[0], TO_BASE + READ as u64);
        p.hosts[1].rnic.post_send(conns[1], wr).unwrap();
        let mut most = 0;
        while p.hosts[0].completions.len() < 3 || p.hosts[1].completions.is_empty() {
            assert!(p.step(), "nothing left that could happen");
            most = most.max(p.hosts[1].rnic.snapshot_bytes());
            p.check_pins();
        }
        assert!(most <= room / 2 + 1448, "{most} with room for {room}");
        assert!(p.hosts[1].rnic.qp_counters().tx_snapshot_stalls > 0);
        assert_eq!(p.hosts[0].mem.read(0, READ), data);
        no_errors(&p);
        p.run(Duration::from_secs(60), |p| p.hosts[1].rnic.snapshot_bytes() == 0);
        assert_eq!((p.pinned(0), p.pinned(1)), (0, 0));
    }
}

/// Bytes written to the source of a Write in flight may reach the peer or not, but the bytes of a
/// frame match its CRC. This holds for segments of several FPDUs too, and whether or not the port
/// has a buffer for the frame.
#[test]
fn test_new_data_is_copied_and_digested_at_once_where_there_is_a_buffer() {
    for (seed, no_buffer) in [(1, 0.0), (2, 0.5), (3, 1.0)] {
        let (mut p, conns, stags) = pair(seed, 1 << 20, true);
        p.no_buffer = no_buffer;
        let data = crate::sim::pattern(seed, READ);
        p.hosts[0].mem.write(0, &data);
        let (mut at, mut posted) = (0, 0);
        for len in [40, 300, 1442, 50, 60, 70, 8000, 33, 20_000, 1, 100, 100, 40_000] {
            let sges = sge(stags[0], at, len);
            let wr = &SendWr::write(posted, &sges, stags[1], TO_BASE + at as u64);
            p.hosts[0].rnic.post_send(conns[0], wr).unwrap();
            (at, posted) = (at + len, posted + 1);
        }
        p.run(Duration::from_secs(60), |p| p.hosts[0].completions.len() as u64 == posted);
        no_errors(&p);
        assert_eq!(p.hosts[1].mem.read(0, at), data[..at]);
        let c = p.hosts[0].rnic.counters();
        // All bytes except for the few that are in the head of their FPDU.
        let inlined = p.hosts[0].rnic.qp_counters().tx_inlined_bytes;
        assert!(inlined > 0 && inlined < 100, "{inlined}");
        assert_eq!(c.tx_digested_bytes + c.tx_referenced_bytes + inlined, at as u64);
        assert_eq!(c.tx_digested_bytes > 0, no_buffer < 1.0, "{c:?}");
        assert_eq!(c.tx_referenced_bytes > 0, no_buffer > 0.0, "{c:?}");
        assert_eq!(c.tx_digested_apart > 0, no_buffer > 0.0, "{c:?}");
    }
}

/// The source of a Write changes between the Write's first copy and the next: the peer refuses the
/// retransmission, and places nothing of it.
#[test]
fn test_retransmitted_fpdu_has_crc_of_its_first_transmission() {
    let (mut p, conns, stags) = pair(9, 1 << 20, true);
    p.hosts[0].mem.write(0, &[1; 1000]);
    let sges = sge(stags[0], 0, 1000);
    let wr = &SendWr::write(0, &sges, stags[1], TO_BASE);
    p.hosts[0].rnic.post_send(conns[0], wr).unwrap();
    // Write after the FPDU was cut and before it is sent.
    p.hosts[0].mem.write(0, &[2; 1000]);
    p.cut[0] = true;
    p.step();
    assert_eq!(p.hosts[0].rnic.counters().tx_digested_bytes, 1000);
    p.hosts[0].mem.write(0, &[3; 1000]);
    p.cut[0] = false;
    p.run(Duration::from_secs(60), |p| !p.hosts[0].completions.is_empty());
    assert!(p.hosts[0].rnic.counters().tx_retransmits > 0);
    assert_eq!(p.hosts[1].rnic.qp_counters().err_crc, 1);
    assert_eq!(p.hosts[1].mem.read(0, 1000), [0xee; 1000]);
}
