//! Several connections through one bottleneck in virtual time: a queue with a rate, a limit and a
//! threshold beyond which it marks.

use super::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The path: data of all flows wait in one queue; ACKs come back without a queue.
#[derive(Clone, Copy, Debug)]
struct Path {
    /// Bytes per second.
    rate: u64,
    /// The round trip without a queue.
    rtt: Duration,
    /// Bytes that the queue holds.
    limit: u64,
    /// Bytes in the queue beyond which it marks packets that are capable of ECN.
    mark_above: u64,
}

/// A flow: its sender, its receiver, and the bytes that the receiver has.
struct Flow {
    tx: Connection,
    rx: Connection,
    q: ByteQueue,
    /// When the sender begins.
    from: Instant,
    received: u64,
}

type Packet = (Segment, SackBlocks, Option<ByteCounts>);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum To {
    Receiver,
    Sender,
}

struct Net {
    path: Path,
    now: Instant,
    flows: Vec<Flow>,
    arrivals: BinaryHeap<Reverse<(Instant, u64, usize, To)>>,
    packets: std::collections::HashMap<u64, Packet>,
    order: u64,
    /// When the queue is empty.
    free: Instant,
    dropped: u64,
    marked: u64,
    /// Sums of the queue's bytes as packets found it, and their number.
    found: (u64, u64),
    longest: u64,
}

impl Net {
    fn new(path: Path, cfgs: &[ConnConfig]) -> Net {
        let now = Instant::from_millis(1000);
        let mut n = Net {
            path,
            now,
            flows: Vec::new(),
            arrivals: BinaryHeap::new(),
            packets: Default::default(),
            order: 0,
            free: now,
            dropped: 0,
            marked: 0,
            found: (0, 0),
            longest: 0,
        };
        for cfg in cfgs {
            let mut tx = Connection::connect(cfg, now, ISS, 0);
            let q = ByteQueue::default();
            let syn = opening::arrived(&tx.poll_transmit(now, &q).unwrap());
            let at = now + path.rtt;
            let mut rx = Connection::accept(cfg, now + path.rtt / 2, IRS, 0, &syn);
            let opened = |t: &TxSegment| (opening::arrived(t), t.counts);
            let syn_ack = opened(&rx.poll_transmit(now + path.rtt / 2, &q).unwrap());
            handle(&mut tx, at, &syn_ack.0, &SackBlocks::NONE, counting(syn_ack.1));
            let ack = opened(&tx.poll_transmit(at, &q).unwrap());
            handle(&mut rx, at + path.rtt / 2, &ack.0, &SackBlocks::NONE, counting(ack.1));
            n.flows.push(Flow { tx, rx, q, from: at, received: 0 });
        }
        n.now = now + path.rtt * 2;
        n
    }

    /// Returns the bytes that wait in the queue.
    fn queued(&self) -> u64 {
        let ns = u64::try_from((self.free - self.now).as_nanos()).unwrap();
        u64::try_from(u128::from(ns) * u128::from(self.path.rate) / 1_000_000_000).unwrap()
    }

    /// Sends everything that flow `n` may send, in either direction.
    fn pump(&mut self, n: usize) {
        let (now, path) = (self.now, self.path);
        if now >= self.flows[n].from {
            let f = &mut self.flows[n];
            while f.q.end() - f.tx.snd_una() < 4 << 20 {
                f.q.push(&[0; 65_536]);
            }
            loop {
                let f = &mut self.flows[n];
                let Some(t) = f.tx.poll_transmit(now, &f.q) else { break };
                let wire = u64::from(t.len) + 66;
                let queued = self.queued();
                self.found = (self.found.0 + queued, self.found.1 + 1);
                self.longest = self.longest.max(queued);
                if queued + wire > path.limit {
                    self.dropped += 1;
                    continue;
                }
                let ce = t.ect && queued > path.mark_above;
                self.marked += u64::from(ce);
                let took = Duration::from_nanos(wire * 1_000_000_000 / path.rate);
                self.free = self.free.max(now) + took;
                let at = self.free + path.rtt / 2;
                let mut seg = opening::arrived(&t);
                if ce {
                    seg.ecn = Codepoint::CE;
                }
                self.send(at, n, To::Receiver, (seg, SackBlocks::NONE, t.counts));
            }
        }
        loop {
            let f = &mut self.flows[n];
            let Some(t) = f.rx.poll_transmit(now, &ByteQueue::default()) else { break };
            let sack = if t.sack > 0 { *f.rx.sack_blocks() } else { SackBlocks::NONE };
            self.send(now + path.rtt / 2, n, To::Sender, (opening::arrived(&t), sack, t.counts));
        }
    }

    fn send(&mut self, at: Instant, n: usize, to: To, packet: Packet) {
        self.order += 1;
        self.packets.insert(self.order, packet);
        self.arrivals.push(Reverse((at, self.order, n, to)));
    }

    /// Runs for `time`.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            for n in 0..self.flows.len() {
                if self.flows[n].from <= self.now {
                    self.pump(n);
                }
            }
            let arrival = self.arrivals.peek().map(|Reverse((at, ..))| *at);
            let timer = |f: &Flow| {
                [f.tx.poll_timeout(), f.rx.poll_timeout(), Some(f.from).filter(|&t| t > self.now)]
            };
            let timers = self.flows.iter().flat_map(timer).flatten().min();
            let Some(next) = arrival.into_iter().chain(timers).min().filter(|&t| t <= end) else {
                break;
            };
            self.now = self.now.max(next);
            while let Some(Reverse((at, ..))) = self.arrivals.peek()
                && *at <= self.now
                && let Some(Reverse((_, order, n, to))) = self.arrivals.pop()
            {
                self.arrive(order, n, &to);
            }
            for f in &mut self.flows {
                f.tx.handle_timeout(self.now);
                f.rx.handle_timeout(self.now);
            }
        }
        self.now = end;
    }

    fn arrive(&mut self, order: u64, n: usize, to: &To) {
        let now = self.now;
        let (seg, sack, counts) = self.packets.remove(&order).unwrap();
        let f = &mut self.flows[n];
        if *to == To::Receiver {
            if let Some(p) = handle(&mut f.rx, now, &seg, &sack, counting(counts)).payload {
                f.rx.accept_payload(now, p.pos, p.len);
                f.received += u64::from(p.len);
            }
        } else {
            let out = handle(&mut f.tx, now, &seg, &sack, counting(counts));
            if let Some(upto) = out.acked {
                f.q.release(upto);
            }
        }
    }

    /// Runs for `time` and returns the bytes that each flow brought meanwhile.
    fn goodput(&mut self, time: Duration) -> Vec<u64> {
        let before: Vec<_> = self.flows.iter().map(|f| f.received).collect();
        (self.found, self.longest) = ((0, 0), 0);
        self.run(time);
        self.flows.iter().zip(before).map(|(f, b)| f.received - b).collect()
    }

    /// Returns the part of the rate that these bytes are.
    fn used(&self, bytes: &[u64], time: Duration) -> f64 {
        bytes.iter().sum::<u64>() as f64 / (self.path.rate as f64 * time.as_secs_f64())
    }
}

/// Returns Jain's index of fairness: 1 if all are equal.
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&s| s as f64).sum();
    let squares: f64 = shares.iter().map(|&s| s as f64 * s as f64).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// 100 Mb/s, 20 ms, and a queue of one bandwidth-delay product.
const WIDE: Path =
    Path { rate: 12_500_000, rtt: Duration::from_millis(20), limit: 250_000, mark_above: u64::MAX };

fn with(congestion: Congestion, ecn: Ecn) -> ConnConfig {
    ConnConfig { congestion, ecn, recv_window: 4 << 20, ..ethernet() }
}

/// RFC 9438 section 5.6: flows that begin at different times end with equal shares.
#[test]
fn test_two_flows_of_cubic_share_a_bottleneck_equally() {
    let cfg = with(Congestion::Cubic, Ecn::Off);
    let mut n = Net::new(WIDE, &[cfg; 2]);
    n.flows[1].from = n.now + Duration::from_secs(5);
    n.run(Duration::from_secs(60));
    let time = Duration::from_secs(60);
    let shares = n.goodput(time);
    assert!(jain(&shares) >= 0.95, "{shares:?}");
    assert!(n.used(&shares, time) > 0.9, "{shares:?}");
    assert!(n.dropped > 0);
}

/// RFC 3168: with marks the same flows lose nothing at all once they know the path.
#[test]
fn test_two_flows_of_cubic_with_ecn_lose_nothing_where_the_queue_marks() {
    for ecn in [Ecn::Request, Ecn::Accurate] {
        let path = Path { mark_above: 100_000, ..WIDE };
        let mut n = Net::new(path, &[with(Congestion::Cubic, ecn); 2]);
        n.flows[1].from = n.now + Duration::from_secs(5);
        n.run(Duration::from_secs(60));
        let (dropped, time) = (n.dropped, Duration::from_secs(60));
        let shares = n.goodput(time);
        assert_eq!(n.dropped, dropped, "{ecn:?}: a packet was lost");
        assert!(n.marked > 0 && n.flows[0].tx.counters().ecn_reductions > 0);
        assert!(jain(&shares) >= 0.95, "{ecn:?}: {shares:?}");
        assert!(n.used(&shares, time) > 0.9, "{ecn:?}: {shares:?}");
    }
}

/// HyStart++ (RFC 9406): the first slow start grows more slowly once the queue does.
#[test]
fn test_first_slow_start_of_cubic_loses_less_than_that_of_newreno() {
    let path = Path { limit: 1_250_000, rtt: Duration::from_millis(50), ..WIDE };
    let lost = |congestion| {
        let mut n = Net::new(path, &[with(congestion, Ecn::Off)]);
        n.run(Duration::from_secs(2));
        let bytes = n.goodput(Duration::from_secs(2));
        (n.dropped, n.used(&bytes, Duration::from_secs(2)))
    };
    let (reno, _) = lost(Congestion::NewReno);
    let (cubic, used) = lost(Congestion::Cubic);
    assert!(cubic < reno / 2, "{cubic} {reno}");
    assert!(used > 0.9, "{used}");
}

/// A long fat path: CUBIC fills it again within seconds after a loss, where Reno needs a minute.
#[test]
fn test_cubic_uses_a_long_fat_path_better_than_newreno() {
    let path = Path { rtt: Duration::from_millis(100), limit: 300_000, ..WIDE };
    let used = |congestion| {
        let mut n = Net::new(path, &[with(congestion, Ecn::Off)]);
        n.run(Duration::from_secs(10));
        let bytes = n.goodput(Duration::from_secs(60));
        n.used(&bytes, Duration::from_secs(60))
    };
    let (cubic, reno) = (used(Congestion::Cubic), used(Congestion::NewReno));
    assert!(cubic > 0.85 && cubic > reno, "{cubic} {reno}");
}

/// A queue of a tenth of the product: a window that leaves at once overflows it.
#[test]
fn test_paced_flow_uses_a_path_with_a_short_queue_better() {
    let path = Path { rtt: Duration::from_millis(50), limit: 60_000, ..WIDE };
    let used = |pacing| {
        let cfg = ConnConfig { pacing, ..with(Congestion::Cubic, Ecn::Off) };
        let mut n = Net::new(path, &[cfg]);
        n.run(Duration::from_secs(10));
        let bytes = n.goodput(Duration::from_secs(30));
        (n.used(&bytes, Duration::from_secs(30)), n.dropped)
    };
    let (paced, burst) = (used(Pacing::Auto), used(Pacing::Off));
    assert!(paced.0 > 0.75 && paced.0 >= burst.0, "{paced:?} {burst:?}");
}

/// RFC 8257: 10 Gb/s, 100 µs; the queue stays near the threshold of its marks.
#[test]
fn test_dctcp_keeps_queue_near_its_mark() {
    let path = Path {
        rate: 1_250_000_000,
        rtt: Duration::from_micros(100),
        limit: 1_000_000,
        mark_above: 60_000,
    };
    let queue = |congestion, ecn| {
        let mut n = Net::new(path, &[with(congestion, ecn); 2]);
        n.run(MS * 100);
        let time = MS * 200;
        let shares = n.goodput(time);
        let mean = n.found.0 / n.found.1.max(1);
        (mean, n.longest, n.used(&shares, time), jain(&shares), n.dropped)
    };
    for ecn in [Ecn::Request, Ecn::Accurate] {
        let (mean, longest, used, fair, dropped) = queue(Congestion::Dctcp, ecn);
        assert!(mean < 90_000 && longest < 200_000, "{ecn:?}: {mean} {longest}");
        assert!(used > 0.9 && fair >= 0.95, "{ecn:?}: {used} {fair}");
        assert_eq!(dropped, 0);
    }
}

/// The end of slow start drops every other segment of a window, hundreds of gaps. In a path that
/// keeps the order, exactly what the queue drops is sent again.
#[test]
fn test_sender_repeats_what_a_queue_drops_and_nothing_else() {
    for (rate, rtt, limit) in [
        (62_500_000, 10, 625_000),
        (12_500_000, 50, 625_000),
        (12_500_000, 10, 125_000),
        (12_500_000, 2, 256_000),
        (12_500_000, 1, 97_000),
    ] {
        for congestion in [Congestion::NewReno, Congestion::Cubic] {
            let path = Path { rate, rtt: MS * rtt, limit, mark_above: u64::MAX };
            let mut n = Net::new(path, &[with(congestion, Ecn::Off)]);
            n.run(MS * 3000);
            let what = format!("{congestion:?} {path:?}");
            let (tx, rx) = (n.flows[0].tx.counters(), n.flows[0].rx.counters());
            assert!(n.dropped > 20, "{what}: {}", n.dropped);
            assert_eq!(tx.retransmits, n.dropped, "{what}");
            let needless = (tx.spurious_retransmits, tx.recoveries_undone, tx.timeouts);
            assert_eq!((needless, rx.ooo_refused), ((0, 0, 0), 0), "{what}");
        }
    }
}

/// Round trips of less than [`rto::LONG`] become long by the queue alone. The watch over slow start
/// begins with the first that is.
#[test]
fn test_slow_start_of_a_short_path_with_a_long_queue_ends_before_it_overflows_much() {
    let path = Path { rtt: MS * 2, limit: 256_000, ..WIDE };
    let dropped = |congestion| {
        let mut n = Net::new(path, &[with(congestion, Ecn::Off)]);
        n.run(MS * 1000);
        n.dropped
    };
    let (reno, cubic) = (dropped(Congestion::NewReno), dropped(Congestion::Cubic));
    assert!(cubic < reno / 3, "{cubic} {reno}");
}
