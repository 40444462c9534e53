//! With markers, the RNIC places FPDUs of segments beyond a gap at once (RFC 5044 sections 4.3 and
//! 6, RFC 5041 section 5.3): it holds or copies none of their bytes twice, and delivers all
//! messages in order.

#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "small numbers of a test")]

use std::time::Duration;

use crate::sim::{LinkConfig, PD, Pair, TO_BASE, pattern};
use heddle_base::{Random, Seed};
use heddle_iwarp::QpConfig;
use heddle_mr::MrAttr;
use heddle_types::{Access, ConnId, Cqe, CqeStatus, Data, Queue, RecvWr, SendOp, SendWr, Sge};

const MEMORY: usize = 1 << 19;

fn config() -> QpConfig {
    QpConfig {
        pd: PD,
        sq_depth: 64,
        rq_depth: 64,
        send_markers: true,
        recv_markers: true,
        ..QpConfig::default()
    }
}

fn bad_link(loss: f64) -> LinkConfig {
    LinkConfig { loss, reorder: 0.05, duplicate: 0.02, ..LinkConfig::default() }
}

/// Connects two hosts with all of their memory registered.
fn open(seed: u64, link: LinkConfig, qp: &QpConfig) -> (Pair, [ConnId; 2], [MrAttr; 2]) {
    let mut p = Pair::new(seed, link, MEMORY);
    let conns = p.connect(qp);
    let all = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ);
    let mrs = [0, 1].map(|h| p.register(h, 0, MEMORY, all));
    (p, conns, mrs)
}

fn sge(mr: &MrAttr, at: usize, len: usize) -> Sge {
    Sge { stag: mr.stag, to: at as u64 + TO_BASE, len: len as u32 }
}

/// Returns the completions of one host and queue, in order, all of them successful.
fn done(p: &mut Pair, host: usize, queue: Queue) -> Vec<Cqe> {
    let (mine, others) = std::mem::take(&mut p.hosts[host].completions)
        .into_iter()
        .partition(|c| c.1.queue == queue);
    p.hosts[host].completions = others;
    let mine: Vec<(ConnId, Cqe)> = mine;
    assert!(mine.iter().all(|c| c.1.status == CqeStatus::Success), "{mine:?}");
    mine.into_iter().map(|c| c.1).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Send,
    Write,
    Read,
}

/// Sends bulk data: `count` messages of `size` bytes from one host to the other.
fn bulk(seed: u64, kind: Kind, link: LinkConfig, qp: &QpConfig, count: usize, size: usize) -> Pair {
    let (mut p, conns, mrs) = open(seed, link, qp);
    // The Read Requests of the reader are no bulk data, so look at the reader's own side.
    let (from, to) = if kind == Kind::Read { (1, 0) } else { (0, 1) };
    let data = pattern(seed, count * size);
    p.hosts[from].mem.write(0, &data);
    for i in 0..count {
        let (source, sink) = (sge(&mrs[from], i * size, size), sge(&mrs[to], i * size, size));
        if kind == Kind::Send {
            p.hosts[to].rnic.post_recv(conns[to], &RecvWr::new(i as u64, &[sink])).unwrap();
        }
        let (op, local) = match kind {
            Kind::Send => (SendOp::Send { solicited: false, invalidate: None }, source),
            Kind::Write => (SendOp::Write { stag: sink.stag, to: sink.to }, source),
            Kind::Read => (SendOp::Read { stag: source.stag, to: source.to }, sink),
        };
        let (wr_id, sges) = (i as u64, [local]);
        let wr = SendWr { wr_id, op, data: Data::Sges(&sges), signaled: true, fence: false };
        p.hosts[0].rnic.post_send(conns[0], &wr).unwrap();
    }
    let mut left = count;
    p.run(Duration::from_secs(60), |p| {
        left -= done(p, 0, Queue::Sq).len();
        left == 0
    });
    if kind == Kind::Send {
        let got = done(&mut p, 1, Queue::Rq);
        assert!(got.iter().map(|c| c.wr_id).eq(0..count as u64), "in order, each once");
    }
    assert!(p.hosts[to].mem.read(0, data.len()) == data, "seed {seed}: data differ");
    assert_eq!(p.hosts[0].rnic.held_frames() + p.hosts[1].rnic.held_frames(), 0);
    p
}

/// The RNIC holds no payload byte, and copies each byte once: from its frame to its place.
#[test]
fn test_bulk_data_over_a_bad_link_is_copied_once_and_never_held() {
    let mut early = 0;
    for kind in [Kind::Send, Kind::Write, Kind::Read] {
        for seed in 0..20 {
            // Keep every segment so long that it has a marker: the last has 40 of about 1430 bytes.
            let (count, size) = (4, 14_800);
            let p = bulk(seed, kind, bad_link(0.02), &config(), count, size);
            let to = usize::from(kind != Kind::Read);
            let (c, mem) = (p.hosts[to].rnic.counters(), &p.hosts[to].mem);
            assert_eq!(c.held_copied_bytes, 0, "{kind:?}, seed {seed}");
            assert_eq!((c.rx_ahead, c.rx_held, c.rx_refused), (0, 0, 0), "{kind:?}, seed {seed}");
            assert_eq!(mem.placed(), (count * size) as u64, "{kind:?}, seed {seed}");
            early += c.rx_placed_ahead;
        }
    }
    assert!(early > 200, "{early} FPDUs came ahead of gaps");
}

/// Without markers, or without CRC, the RNIC places nothing beyond a gap.
#[test]
fn test_without_markers_or_crc_segments_ahead_of_a_gap_are_held() {
    for (markers, crc) in [(false, true), (true, false)] {
        let qp = QpConfig { send_markers: markers, recv_markers: markers, crc, ..config() };
        let p = bulk(1, Kind::Write, bad_link(0.05), &qp, 4, 14_800);
        let c = p.hosts[1].rnic.counters();
        assert_eq!(c.rx_placed_ahead, 0);
        assert!(c.rx_ahead > 0);
    }
}

/// Messages of all kinds and sizes go both ways, over links of all kinds.
#[test]
fn test_mixed_operations_with_markers_complete_over_bad_links() {
    const SLOT: usize = 8192;
    const OPS: usize = 24;
    let (mut early, mut held) = (0, 0);
    for seed in 0..300 {
        let mut random = Random::new(&Seed::from_u64(seed));
        let mtu = [576, 1500, 4000][random.below(3) as usize];
        let link = LinkConfig { mtu, ..bad_link(random.below(12) as f64 / 100.0) };
        let (mut p, conns, mrs) = open(seed, link, &config());
        // Sends of each side take the buffers of the other side in order. Areas of a host: its
        // sources and sinks, then memory that the peer writes and reads, then buffers.
        let area = |n: usize, i: usize| (n * OPS + i % OPS) * SLOT;
        let mut sends: [Vec<(usize, u64)>; 2] = [Vec::new(), Vec::new()];
        let mut want = Vec::new();
        for me in 0..2 {
            for i in 0..OPS {
                let buffer = [sge(&mrs[me], area(2, i) % MEMORY, SLOT)];
                if area(2, i) + SLOT <= MEMORY {
                    p.hosts[me].rnic.post_recv(conns[me], &RecvWr::new(i as u64, &buffer)).unwrap();
                }
            }
        }
        let buffers = (MEMORY - area(2, 0)) / SLOT;
        for i in 0..OPS {
            for me in 0..2 {
                let len = match random.below(3) {
                    0 => random.below(100),
                    1 => random.below(2000),
                    _ => random.below(SLOT as u64),
                } as usize;
                let mut kind = [Kind::Send, Kind::Write, Kind::Read][random.below(3) as usize];
                if sends[me].len() == buffers.min(OPS) {
                    kind = Kind::Write;
                }
                let id = seed << 8 | (i * 2 + me) as u64;
                let data = pattern(id, len);
                let (here, there) = (area(0, i), area(1, i));
                let (op, source) = match kind {
                    Kind::Send => {
                        sends[me].push((len, id));
                        (SendOp::Send { solicited: false, invalidate: None }, (me, here))
                    }
                    Kind::Write => {
                        want.push((1 - me, there, id, len));
                        let to = there as u64 + TO_BASE;
                        (SendOp::Write { stag: mrs[1 - me].stag, to }, (me, here))
                    }
                    Kind::Read => {
                        want.push((me, here, id, len));
                        let to = there as u64 + TO_BASE;
                        (SendOp::Read { stag: mrs[1 - me].stag, to }, (1 - me, there))
                    }
                };
                p.hosts[source.0].mem.write(source.1, &data);
                let sges = [sge(&mrs[me], here, len)];
                let wr = SendWr { op, ..SendWr::send(i as u64, &sges) };
                p.hosts[me].rnic.post_send(conns[me], &wr).unwrap();
            }
        }
        let (mut sent, mut received) = ([0; 2], [0; 2]);
        p.run(Duration::from_secs(120), |p| {
            for me in 0..2 {
                for cqe in done(p, me, Queue::Sq) {
                    assert_eq!(cqe.wr_id, sent[me], "seed {seed}: in order, each once");
                    sent[me] += 1;
                }
                for cqe in done(p, me, Queue::Rq) {
                    let (len, id) = sends[1 - me][received[me]];
                    assert_eq!((cqe.wr_id, cqe.len), (received[me] as u64, len as u32));
                    let at = area(2, received[me]);
                    assert!(p.hosts[me].mem.read(at, len) == pattern(id, len), "seed {seed}");
                    received[me] += 1;
                }
            }
            sent == [OPS as u64; 2] && received == [sends[1].len(), sends[0].len()]
        });
        for (host, at, id, len) in want {
            assert!(p.hosts[host].mem.read(at, len) == pattern(id, len), "seed {seed}");
        }
        for host in 0..2 {
            let c = p.hosts[host].rnic.counters();
            early += c.rx_placed_ahead;
            held += c.rx_ahead;
            assert_eq!(p.hosts[host].rnic.held_frames(), 0);
            let q = p.hosts[host].rnic.qp_counters();
            assert_eq!((q.err_marker, q.err_crc), (0, 0));
            // The RNIC places each byte once, even if the byte arrived twice.
            assert_eq!(p.hosts[host].mem.placed(), q.rx_bytes, "seed {seed}");
        }
    }
    assert!(early > 1000 && held > 1000, "{early} placed, {held} held");
}
