//! Shares of tenants on the wire: weights, rates, and the frames that wait for neither. The owner
//! of the sending RNIC is the bottleneck: its turns take time and send few frames.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_engine::{Share, ShareTerms};
use heddle_iwarp::{QpConfig, QpEvent};
use heddle_rnic::Event;
use heddle_types::{Access, ConnId, SendWr, Sge, Stag};

use crate::sim::{LinkConfig, PD, PORT, Pace, Pair, TO_BASE};

const MEMORY: usize = 1 << 20;

/// Bytes of payload on the wire, by port of the connection.
type Sent = Rc<RefCell<BTreeMap<u16, u64>>>;

/// A connection of a tenant that always has requests.
struct Stream {
    tenant: usize,
    port: u16,
    ids: [ConnId; 2],
    len: u32,
    next: u64,
}

struct Tenants {
    pair: Pair,
    shares: Vec<Arc<Share>>,
    streams: Vec<Stream>,
    stags: [Stag; 2],
    sent: Sent,
    crc: bool,
}

fn weight(weight: u32) -> ShareTerms {
    ShareTerms { weight, ..ShareTerms::default() }
}

fn rate(rate: u64) -> ShareTerms {
    ShareTerms { rate: Some(rate), ..ShareTerms::default() }
}

/// A link that is quicker than the owner of the sending RNIC, which sends 16 frames in 20 µs.
fn tenants(pair: Pair, terms: &[ShareTerms]) -> Tenants {
    let mut pair = pair;
    let rights = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ);
    let stags = [0, 1].map(|host| pair.register(host, 0, MEMORY, rights).stag);
    let sent = Sent::default();
    let seen = sent.clone();
    pair.tap = Some(Box::new(move |side, frame| {
        if side == 0 && frame[12..14] == [8, 0] && frame[23] == 6 {
            let total = u64::from(u16::from_be_bytes([frame[16], frame[17]]));
            let payload = total - 20 - 4 * u64::from(frame[46] >> 4);
            let port = u16::from_be_bytes([frame[36], frame[37]]);
            *seen.borrow_mut().entry(port).or_default() += payload;
        }
    }));
    let shares = (1..).zip(terms).map(|(n, t)| Share::new(n, *t)).collect();
    Tenants { pair, shares, streams: Vec::new(), stags, sent, crc: true }
}

fn quick() -> LinkConfig {
    let (delay, frame_time) = (Duration::from_micros(5), Duration::from_nanos(100));
    LinkConfig { delay, frame_time, ..LinkConfig::default() }
}

fn slow_turns() -> Pace {
    Pace { turn: Duration::from_micros(20), frames: 16, ..Pace::default() }
}

impl Tenants {
    /// Makes connections of a tenant whose application writes messages of `len` bytes without end.
    fn open(&mut self, tenant: usize, count: usize, len: u32) {
        for _ in 0..count {
            let port = PORT + self.streams.len() as u16;
            let [a, b] = [0, 1].map(|host: usize| QpConfig {
                pd: self.pair.hosts[host].pd,
                sq_depth: 2048,
                crc: self.crc,
                ..QpConfig::default()
            });
            let ids = self.pair.connect_to(port, [&a, &b]);
            self.pair.driver(0).rnic.assign(ids[0], &self.shares[tenant]);
            self.streams.push(Stream { tenant, port, ids, len, next: 0 });
        }
    }

    fn post(&mut self) {
        for s in &mut self.streams {
            let sges = [Sge { stag: self.stags[0], to: TO_BASE, len: s.len }];
            while self.pair.hosts[0]
                .post_send(s.ids[0], &SendWr::write(s.next, &sges, self.stags[1], TO_BASE))
                .is_ok()
            {
                s.next += 1;
            }
        }
    }

    /// Lets the applications post for this time; returns the bytes on the wire by tenant.
    fn run(&mut self, time: Duration) -> Vec<u64> {
        self.sent.borrow_mut().clear();
        let end = self.pair.now + time;
        while self.pair.now < end {
            self.post();
            assert!(self.pair.step());
            self.pair.hosts[0].completions.clear();
        }
        let sent = self.sent.borrow();
        let of = |t: usize| {
            let mine = self.streams.iter().filter(|s| s.tenant == t);
            mine.filter_map(|s| sent.get(&s.port)).sum()
        };
        (0..self.shares.len()).map(of).collect()
    }

    /// Runs until the windows are open.
    fn warm_up(&mut self) {
        self.pair.pace[0] = slow_turns();
        self.run(Duration::from_millis(20));
    }
}

/// Checks that `a` and `b` are as `x` to `y`, to within a tenth.
fn assert_ratio([a, b]: [u64; 2], [x, y]: [u64; 2]) {
    assert!(a > 0 && b > 0);
    let ratio = (a as f64 / b as f64) / (x as f64 / y as f64);
    assert!((0.9..1.1).contains(&ratio), "{a} to {b} is not {x} to {y}");
}

#[test]
fn test_tenants_share_the_wire_by_weight_whatever_their_connections() {
    for [light, heavy] in [[1, 1], [8, 1], [1, 8]] {
        let mut t = tenants(Pair::new(1, quick(), MEMORY), &[weight(1), weight(3)]);
        t.open(0, light, 64 << 10);
        t.open(1, heavy, 64 << 10);
        t.warm_up();
        let sent = t.run(Duration::from_millis(30));
        assert_ratio([sent[0], sent[1]], [1, 3]);
        // The shares count what went over the wire, up to what waits in a queue.
        for (share, stream) in t.shares.iter().zip(sent) {
            assert!(share.usage().sent >= stream);
            assert_eq!(share.usage().waits, 0);
        }
    }
}

#[test]
fn test_tenant_with_64_queue_pairs_of_tiny_writes_has_the_share_of_one() {
    let pair = Pair::new(2, quick(), MEMORY);
    let mut t = tenants(pair, &[weight(1), weight(1)]);
    t.open(0, 64, 8);
    t.open(1, 1, 8);
    t.warm_up();
    // A turn sends fewer Writes than it takes of one queue.
    t.pair.pace[0] = Pace { turn: Duration::from_micros(3), frames: 2, ..Pace::default() };
    t.run(Duration::from_millis(1));
    let sent = t.run(Duration::from_millis(5));
    assert_ratio([sent[0], sent[1]], [1, 1]);
}

#[test]
fn test_tiny_writes_of_64_queue_pairs_cost_a_tenant_of_bulk_data_half_at_most() {
    let bulk = |with: bool| {
        let mut t = tenants(Pair::new(3, quick(), MEMORY), &[weight(1), weight(1)]);
        t.open(1, 1, 64 << 10);
        if with {
            t.open(0, 64, 8);
        }
        t.warm_up();
        t.run(Duration::from_millis(20))
    };
    let (alone, both) = (bulk(false), bulk(true));
    assert!(both[0] > 0 && 2 * both[1] > alone[1], "{both:?} of {alone:?}");
}

/// An FPDU costs 1,024 more than its bytes: 28 bytes of an FPDU with 8 bytes cost 1,052, and the 1,448
/// of a full one 2,472. A turn of 32 FPDUs costs 128 more.
#[test]
fn test_tiny_writes_cost_their_tenant_more_than_their_bytes() {
    let mut t = tenants(Pair::new(10, quick(), MEMORY), &[weight(1), weight(1)]);
    t.open(0, 1, 8);
    t.open(1, 1, 64 << 10);
    t.warm_up();
    let sent = t.run(Duration::from_millis(20));
    assert_ratio([sent[0], sent[1]], [28 * 2476, 1448 * 1056]);
}

/// The single tenant of an RNIC has all its turns, and so has a tenant whose neighbor has no work.
#[test]
fn test_tenant_alone_with_work_has_all_turns() {
    let mut t = tenants(Pair::new(4, quick(), MEMORY), &[weight(1), weight(1000)]);
    t.open(0, 2, 64 << 10);
    t.warm_up();
    let alone = t.run(Duration::from_millis(10))[0];
    let qp = QpConfig { pd: PD, ..QpConfig::default() };
    let idle = t.pair.connect_to(PORT + 100, [&qp, &qp]);
    t.pair.driver(0).rnic.assign(idle[0], &t.shares[1]);
    let beside = t.run(Duration::from_millis(10))[0];
    assert_ratio([alone, beside], [1, 1]);
}

#[test]
fn test_rate_bounds_all_connections_of_a_tenant_and_nothing_else() {
    for megabytes in [5u64, 50, 300] {
        let mut t =
            tenants(Pair::new(5, quick(), MEMORY), &[rate(megabytes * 1_000_000), weight(1)]);
        t.open(0, 5, 16 << 10);
        t.open(1, 1, 64 << 10);
        t.warm_up();
        let sent = t.run(Duration::from_millis(100));
        // Twice as much as a segment of each connection is in doubt.
        let due = megabytes * 100_000;
        assert!(sent[0].abs_diff(due) < due / 50 + 20_000, "{} of {due}", sent[0]);
        // 80 % of the frames of the RNIC at 5 and 50 MB/s, and more than half at 300.
        assert!(sent[1] > 60_000_000, "{sent:?}");
        assert!(t.shares[0].usage().waits > 10 && t.shares[1].usage().waits == 0);
    }
}

#[test]
fn test_connection_rate_bounds_each_connection() {
    let terms = ShareTerms { connection_rate: Some(20_000_000), rate: Some(50_000_000), weight: 1 };
    let mut t = tenants(Pair::new(6, quick(), MEMORY), &[terms]);
    t.open(0, 1, 64 << 10);
    t.warm_up();
    let sent = t.run(Duration::from_millis(100))[0];
    assert_ratio([sent, 2_000_000], [1, 1]);
    t.open(0, 1, 64 << 10);
    t.warm_up();
    let sent = t.run(Duration::from_millis(100))[0];
    assert_ratio([sent, 4_000_000], [1, 1]);
    // Three connections have less than their own rates, in equal parts.
    t.open(0, 1, 64 << 10);
    t.warm_up();
    let sent = t.run(Duration::from_millis(100))[0];
    assert_ratio([sent, 5_000_000], [1, 1]);
    let each: Vec<u64> = t.sent.borrow().values().copied().collect();
    assert_ratio([each[0], each[2]], [1, 1]);
}

/// A limited tenant's RNIC sleeps until its rate allows more; a changed rate holds at once.
#[test]
fn test_rnic_sleeps_while_its_only_tenant_waits_for_its_rate() {
    let mut t = tenants(Pair::new(7, quick(), MEMORY), &[rate(10_000_000)]);
    t.open(0, 3, 64 << 10);
    t.run(Duration::from_millis(20));
    let end = t.pair.now + Duration::from_millis(100);
    let mut steps = 0;
    while t.pair.now < end {
        t.post();
        assert!(t.pair.step());
        steps += 1;
    }
    // A megabyte in grains of a kilobyte: a timer, a frame and its ACK for each. An owner that
    // comes to no rest fails in the simulation.
    assert!((1000..6000).contains(&steps), "{steps} steps");
    t.shares[0].set(weight(1));
    let sent = t.run(Duration::from_millis(20))[0];
    assert!(sent > 2_000_000, "{sent}");
}

/// Returns a pair whose host 0 has a tenant that waits for more than a second after each FPDU.
fn indebted() -> Tenants {
    let mut t = tenants(Pair::new(8, quick(), MEMORY), &[weight(1)]);
    t.open(0, 1, 64 << 10);
    t.run(Duration::from_millis(5));
    t.shares[0].set(rate(1000));
    t.run(Duration::from_millis(1));
    assert_eq!(t.run(Duration::from_millis(1)), [0], "it has to wait");
    t
}

#[test]
fn test_tenant_over_its_rate_still_acknowledges() {
    let mut t = indebted();
    // The peer's Writes go on, which takes ACKs and updates of the window.
    let ids = t.streams[0].ids;
    let sges = [Sge { stag: t.stags[1], to: TO_BASE, len: 512 << 10 }];
    for id in 0..8 {
        let wr = SendWr::write(id, &sges, t.stags[0], TO_BASE);
        t.pair.hosts[1].post_send(ids[1], &wr).unwrap();
    }
    t.pair.run(Duration::from_millis(50), |p| p.hosts[1].completions.len() == 8);
    assert_eq!(t.pair.hosts[1].rnic.counters().tx_retransmits, 0);
}

#[test]
fn test_tenant_over_its_rate_still_retransmits() {
    let mut t = indebted();
    let id = t.streams[0].ids[0];
    // Segments are lost, and their retransmissions are due while the tenant has to wait.
    t.shares[0].set(weight(1));
    t.pair.cut[0] = true;
    t.run(Duration::from_millis(1));
    t.shares[0].set(rate(1000));
    t.pair.cut[0] = false;
    let tcp = |p: &Pair| {
        let tcp = p.hosts[0].rnic.connection(id).unwrap();
        (tcp.snd_una(), tcp.snd_max())
    };
    let (acked, sent) = tcp(&t.pair);
    assert!(acked < sent);
    t.pair.run(Duration::from_secs(2), |p| tcp(p).0 >= sent);
    assert!(t.pair.hosts[0].rnic.counters().tx_retransmits > 0);
}

#[test]
fn test_terminate_waits_for_no_rate() {
    let mut t = indebted();
    let ids = t.streams[0].ids;
    // The peer writes to memory that does not exist.
    let sges = [Sge { stag: t.stags[1], to: TO_BASE, len: 8 }];
    let wr = SendWr::write(1, &sges, Stag(0xdead_be00), TO_BASE);
    t.pair.hosts[1].post_send(ids[1], &wr).unwrap();
    t.pair.pass(Duration::from_millis(1));
    let ended = |e: &Event| matches!(e, Event::Qp { event: QpEvent::Terminated { .. }, .. });
    assert!(t.pair.hosts[1].events.iter().any(ended), "{:?}", t.pair.hosts[1].events);
}

/// FPDUs that are handed over inside an RNIC have the same turns and rates.
#[test]
fn test_tenants_share_what_is_handed_over() {
    let inside = |terms: &[ShareTerms]| {
        let pair = Pair::inside(9, quick(), MEMORY, |c| c.hand_over = true);
        // A CRC needs frames.
        Tenants { crc: false, ..tenants(pair, terms) }
    };
    let sent = |t: &mut Tenants, time: Duration| {
        let before: Vec<_> = t.shares.iter().map(|s| s.usage().sent).collect();
        t.run(time);
        let after = t.shares.iter().map(|s| s.usage().sent);
        after.zip(before).map(|(a, b)| a - b).collect::<Vec<_>>()
    };
    let mut t = inside(&[weight(1), weight(3)]);
    t.open(0, 8, 64 << 10);
    t.open(1, 1, 64 << 10);
    assert!(t.streams.iter().all(|s| t.pair.hosts[0].rnic.is_handing(s.ids[0])));
    t.pair.pace[0] = slow_turns();
    let by_weight = sent(&mut t, Duration::from_millis(5));
    assert_ratio([by_weight[0], by_weight[1]], [1, 3]);

    let mut t = inside(&[rate(50_000_000), weight(1)]);
    t.open(0, 3, 64 << 10);
    t.open(1, 1, 64 << 10);
    t.pair.pace[0] = slow_turns();
    sent(&mut t, Duration::from_millis(10));
    let limited = sent(&mut t, Duration::from_millis(50));
    assert_ratio([limited[0], 2_500_000], [1, 1]);
    assert!(limited[1] > 100 * limited[0], "{limited:?}");
}
