//! Paths whose MTU changes while FPDUs are under way: the queue pairs cut later FPDUs anew, and TCP
//! sends the FPDUs that were cut before in pieces.

use std::time::Duration;

use heddle_base::{Random, Seed};
use heddle_iwarp::QpConfig;
use heddle_tcp::{ConnConfig, PathMtu};
use heddle_types::{Access, RecvWr, SendWr, Sge, Stag};

use crate::sim::{LinkConfig, PD, Pair, TO_BASE, pattern};

const MEMORY: usize = 1 << 20;
const HALF: usize = MEMORY / 2;

fn pair(seed: u64, path_mtu: PathMtu, (cuts, ipv6): (u32, bool)) -> Pair {
    Pair::with_config(seed, LinkConfig { cuts, ipv6, ..LinkConfig::default() }, MEMORY, |c| {
        c.stack.conn = ConnConfig { path_mtu, ..c.stack.conn };
    })
}

/// Writes, Sends and Reads of a connection between two hosts, by place: what goes to host 1 comes
/// from the lower half of host 0's memory, and what comes back goes to the upper half.
struct Work {
    conns: [heddle_types::ConnId; 2],
    stags: [Stag; 2],
    posted: usize,
}

impl Work {
    fn new(p: &mut Pair, qp: [&QpConfig; 2]) -> Work {
        let conns = p.connect_to(crate::sim::PORT, qp);
        let rights = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ);
        let stags = [0, 1].map(|host| p.register(host, 0, MEMORY, rights).stag);
        p.hosts[0].mem.write(0, &pattern(7, HALF));
        p.hosts[1].mem.write(HALF, &pattern(9, HALF));
        Work { conns, stags, posted: 0 }
    }

    /// Moves `[at, at + len)` from host 0, and as much back.
    fn post(&mut self, p: &mut Pair, at: usize, len: usize, send: bool) {
        let sge = |stag, at: usize| [Sge { stag, to: TO_BASE + at as u64, len: len as u32 }];
        let id = self.posted as u64;
        if send {
            let to = sge(self.stags[1], at);
            p.hosts[1].post_recv(self.conns[1], &RecvWr::new(id, &to)).unwrap();
        }
        let from = sge(self.stags[0], at);
        let wr = match send {
            true => SendWr::send(id, &from),
            false => SendWr::write(id, &from, self.stags[1], TO_BASE + at as u64),
        };
        p.hosts[0].post_send(self.conns[0], &wr).unwrap();
        let back = sge(self.stags[0], HALF + at);
        let wr = SendWr::read(id, &back, self.stags[1], TO_BASE + (HALF + at) as u64);
        p.hosts[0].post_send(self.conns[0], &wr).unwrap();
        self.posted += 2;
    }

    /// Waits until the work is done.
    fn finish(&self, p: &mut Pair, what: &str) {
        p.run(Duration::from_secs(3600), |p| {
            assert!(
                p.hosts.iter().all(|h| h.completions.iter().all(|c| c.1.status.is_success())),
                "{what}"
            );
            p.hosts[0].completions.len() == self.posted
        });
        let mems = [0, 1].map(|host| &p.hosts[host].mem);
        assert!(mems[1].read(0, HALF) == pattern(7, HALF), "{what}: wrong bytes at host 1");
        assert!(mems[0].read(HALF, HALF) == pattern(9, HALF), "{what}: wrong bytes at host 0");
        for host in [0, 1] {
            let c = p.rnic(host).qp_counters();
            assert_eq!((c.err_crc, c.err_short), (0, 0), "{what}");
        }
        p.check_pins();
    }
}

fn emss(p: &Pair, w: &Work, host: usize) -> u32 {
    p.rnic(host).connection(w.conns[host]).unwrap().emss()
}

/// The bytes arrive whatever happens to the path, with a CRC, with markers and without, with trains
/// that the port cuts and without.
#[test]
fn test_messages_arrive_over_paths_that_change_at_random() {
    for seed in 1..=36 {
        let mut r = Random::new(&Seed::from_u64(seed));
        let mode = [PathMtu::BlackHole, PathMtu::On][(seed % 2) as usize];
        // The last twelve seeds, and others before them, speak IPv6.
        let ipv6 = seed > 24 || seed % 7 < 2;
        let least = if ipv6 { 1280 } else { 0 };
        let mut p = pair(seed, mode, ([1, 1, 16][(seed % 3) as usize], ipv6));
        let (crc, markers) = (seed % 5 > 0, seed % 4 == 0);
        let qp = |send, recv| QpConfig {
            pd: PD,
            crc,
            send_markers: send,
            recv_markers: recv,
            ..QpConfig::default()
        };
        let (a, b) = (qp(markers, false), qp(false, markers));
        let mut w = Work::new(&mut p, [&a, &b]);
        let mut at = 0;
        while at < HALF {
            p.path_mtu = (r.below(4) > 0).then(|| least.max(576 + r.below(1000) as u16));
            p.told = r.below(2) > 0;
            p.link.loss = [0.0, 0.003][(r.below(4) == 0) as usize];
            let len = (1 + r.below(60_000) as usize).min(HALF - at);
            w.post(&mut p, at, len, r.below(2) > 0);
            at += len;
            for _ in 0..r.below(400) {
                p.step();
            }
            if r.below(8) == 0 {
                p.pass(Duration::from_secs(601));
            }
        }
        p.link.loss = 0.0;
        w.finish(&mut p, &format!("seed {seed}"));
    }
}

/// The receive window follows the path, and a quiet connection gives it back.
#[test]
fn test_receive_window_grows_with_the_path_and_rests_with_the_connection() {
    let link = LinkConfig { delay: Duration::from_millis(5), ..LinkConfig::default() };
    let mut p = Pair::with_config(1, link, MEMORY, |c| {
        (c.stack.conn.recv_window, c.stack.conn.recv_window_max) = (64 << 10, 1 << 20);
    });
    let qp = QpConfig { pd: PD, ..QpConfig::default() };
    let mut w = Work::new(&mut p, [&qp, &qp]);
    let conns = w.conns;
    let windows = |p: &Pair| {
        [0, 1].map(|host| p.rnic(host).connection(conns[host]).unwrap().receive_window())
    };
    assert_eq!(windows(&p), [64 << 10; 2]);
    for _ in 0..6 {
        w.post(&mut p, 0, HALF, false);
        w.finish(&mut p, "long path");
    }
    assert!(windows(&p).iter().all(|&w| w > 300 << 10), "{:?}", windows(&p));
    p.pass(Duration::from_secs(5));
    assert_eq!(windows(&p), [64 << 10; 2], "quiet");
    w.post(&mut p, 0, HALF, false);
    w.finish(&mut p, "once more");
}

/// After a fall, the FPDUs are as long as the segments again, and so after a rise.
#[test]
fn test_fpdus_follow_the_path() {
    for (told, ipv6) in [(true, false), (false, false), (true, true), (false, true)] {
        // The header of IPv6 has 20 bytes more.
        let more = if ipv6 { 20 } else { 0 };
        let mut p = pair(1, PathMtu::BlackHole, (1, ipv6));
        let qp = QpConfig { pd: PD, ..QpConfig::default() };
        let mut w = Work::new(&mut p, [&qp, &qp]);
        (p.path_mtu, p.told) = (Some(1400), told);
        w.post(&mut p, 0, HALF, false);
        w.finish(&mut p, "small");
        // Until the search is over.
        for _ in 0..60 {
            w.post(&mut p, 0, 20_000, false);
            w.finish(&mut p, "searching");
            p.pass(Duration::from_millis(500));
        }
        for host in [0, 1] {
            let small = emss(&p, &w, host);
            assert!((1332 - more..=1348 - more).contains(&small), "host {host}: {small}");
            let c = p.rnic(host).conn_counters();
            assert_eq!(c.mtu_black_holes, u64::from(!told), "host {host}");
        }
        let fpdus = |p: &Pair| p.rnic(0).counters().tx_fpdus;
        let (before, small) = (fpdus(&p), emss(&p, &w, 0) as usize);
        w.post(&mut p, 0, 100_000, false);
        w.finish(&mut p, "small FPDUs");
        let least = 100_000_usize.div_ceil(small - 20) as u64;
        assert!((least..=least + 3).contains(&(fpdus(&p) - before)), "each fills a segment");
        p.path_mtu = None;
        p.pass(Duration::from_secs(610));
        w.post(&mut p, 0, 200_000, false);
        w.finish(&mut p, "growing");
        assert_eq!((emss(&p, &w, 0), emss(&p, &w, 1)), (1448 - more, 1448 - more));
        let before = fpdus(&p);
        w.post(&mut p, 0, 100_000, false);
        w.finish(&mut p, "large FPDUs");
        let least = 100_000_usize.div_ceil((1448 - more) as usize - 20) as u64;
        assert!((least..=least + 3).contains(&(fpdus(&p) - before)));
    }
}
