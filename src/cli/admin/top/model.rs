//! Two samples, and the rates between them.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use heddle_socket::admin::{Conn, Conns, Export, Listener, Ports, Stats, Status};

/// The answers that the appliance gave at about one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    pub(super) stats: Stats,
    pub(super) ports: Ports,
    pub(super) conns: Conns,
    /// Has the exports of its NFS listeners.
    pub(super) status: Status,
}

impl Sample {
    /// Returns the workers that have not answered a question of the sample.
    pub(super) fn silent(&self) -> Vec<usize> {
        let all = self.stats.silent.iter().chain(&self.conns.silent);
        all.copied().collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// The key that orders the table of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Bytes in both directions, highest rate first.
    Rate,
    /// Retransmitted segments, most first.
    Retransmits,
    /// Round-trip time, longest first.
    Rtt,
    /// Number, oldest first.
    Number,
}

impl Order {
    pub(super) const fn next(self) -> Order {
        match self {
            Order::Rate => Order::Retransmits,
            Order::Retransmits => Order::Rtt,
            Order::Rtt => Order::Number,
            Order::Number => Order::Rate,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Order::Rate => "rate",
            Order::Retransmits => "retransmissions",
            Order::Rtt => "round-trip time",
            Order::Number => "number",
        }
    }
}

/// A worker's activity between two samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WorkerRow {
    pub(super) worker: usize,
    /// Share of the time that it spent in turns that found work, 0 to 1.
    pub(super) busy: f64,
    pub(super) tx_bits: f64,
    pub(super) rx_bits: f64,
    pub(super) tx_fpdus: f64,
    pub(super) rx_fpdus: f64,
    pub(super) retransmits: f64,
}

/// A port's activity between two samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PortRow {
    pub(super) name: String,
    pub(super) up: bool,
    pub(super) tx_bits: f64,
    pub(super) rx_bits: f64,
    pub(super) tx_frames: f64,
    pub(super) rx_frames: f64,
    /// Frames lost, from any cause, per second.
    pub(super) lost: f64,
}

/// A connection's activity between two samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ConnRow {
    pub(super) conn: Conn,
    pub(super) tx_bits: f64,
    pub(super) rx_bits: f64,
    pub(super) retransmits: f64,
}

/// An NFS export's activity between two samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ExportRow {
    pub(super) listener: Listener,
    /// Connections over RDMA and over TCP.
    pub(super) conns: [usize; 2],
    pub(super) calls: f64,
    pub(super) failed: f64,
    /// Bytes that clients read, per second.
    pub(super) read: f64,
    pub(super) written: f64,
}

/// Returns the rate per second of a counter that rose from `old` to `new` in `ns` nanoseconds; 0
/// when no time has passed.
fn rate(old: u64, new: u64, ns: u64) -> f64 {
    if ns == 0 {
        return 0.0;
    }
    // Counters wrap, but no counter moves so far within one sample that the difference is wrong.
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let (count, seconds) = (new.wrapping_sub(old) as f64, ns as f64 / 1e9);
    count / seconds
}

pub(super) fn workers(old: &Stats, new: &Stats) -> Vec<WorkerRow> {
    let ns = new.at_ns.saturating_sub(old.at_ns);
    let of = |s: &Stats, worker: usize| {
        let at = s.workers.iter().position(|w| *w == worker);
        let values = s
            .counters
            .iter()
            .filter_map(|c| Some(((c.part.clone(), c.name.clone()), *c.workers.get(at?)?)));
        values.collect::<HashMap<_, _>>()
    };
    let row = |worker: usize| {
        let (old, new) = (of(old, worker), of(new, worker));
        let per_second = |part: &str, name: &str| {
            let key = (part.to_owned(), name.to_owned());
            let value = |m: &HashMap<_, u64>| m.get(&key).copied();
            // A worker that did not answer before has no rate yet.
            value(&old).zip(value(&new)).map_or(0.0, |(old, new)| rate(old, new, ns))
        };
        WorkerRow {
            worker,
            // A turn that ends within the sample may have begun before it.
            busy: (per_second("worker", "busy_ns") / 1e9).min(1.0),
            tx_bits: 8.0 * per_second("qp", "tx_bytes"),
            rx_bits: 8.0 * per_second("qp", "rx_bytes"),
            tx_fpdus: per_second("qp", "tx_fpdus"),
            rx_fpdus: per_second("qp", "rx_fpdus"),
            retransmits: per_second("tcp", "retransmits"),
        }
    };
    new.workers.iter().map(|w| row(*w)).collect()
}

pub(super) fn ports(old: &Ports, new: &Ports) -> Vec<PortRow> {
    let ns = new.at_ns.saturating_sub(old.at_ns);
    let row = |p: &heddle_socket::admin::Port| {
        let before = old.ports.iter().find(|o| o.name == p.name);
        let per_second = |name: &str| {
            let value = |p: &heddle_socket::admin::Port| p.counters.get(name).copied();
            before.and_then(value).zip(value(p)).map_or(0.0, |(old, new)| rate(old, new, ns))
        };
        let lost = ["rx_missed", "rx_errors", "rx_no_mbuf", "tx_errors"];
        PortRow {
            name: p.name.clone(),
            up: p.up,
            tx_bits: 8.0 * per_second("tx_bytes"),
            rx_bits: 8.0 * per_second("rx_bytes"),
            tx_frames: per_second("tx_frames"),
            rx_frames: per_second("rx_frames"),
            lost: lost.into_iter().map(per_second).sum(),
        }
    };
    new.ports.iter().map(row).collect()
}

pub(super) fn conns(old: &Conns, new: &Conns, order: Order) -> Vec<ConnRow> {
    let ns = new.at_ns.saturating_sub(old.at_ns);
    let before: HashMap<u64, &Conn> = old.conns.iter().map(|c| (c.conn, c)).collect();
    let row = |c: &Conn| {
        let tcp = |c: &Conn| c.tcp.clone();
        let both = before.get(&c.conn).copied().and_then(tcp).zip(tcp(c));
        let per_second = |f: fn(&heddle_socket::admin::Tcp) -> u64| {
            both.as_ref().map_or(0.0, |(old, new)| rate(f(old), f(new), ns))
        };
        ConnRow {
            tx_bits: 8.0 * per_second(|t| t.acked),
            rx_bits: 8.0 * per_second(|t| t.received),
            retransmits: per_second(|t| t.retransmits),
            conn: c.clone(),
        }
    };
    let mut rows: Vec<ConnRow> = new.conns.iter().map(row).collect();
    // The rows arrive ordered by number, and these stable sorts keep that order among equals.
    match order {
        Order::Number => {}
        Order::Rate => {
            rows.sort_by(|a, b| (b.tx_bits + b.rx_bits).total_cmp(&(a.tx_bits + a.rx_bits)))
        }
        Order::Retransmits => rows.sort_by(|a, b| b.retransmits.total_cmp(&a.retransmits)),
        Order::Rtt => {
            rows.sort_by_key(|r| Reverse(r.conn.tcp.as_ref().and_then(|t| t.srtt_ns)));
        }
    }
    rows
}

pub(super) fn exports(old: &Status, new: &Status) -> Vec<ExportRow> {
    let ns = new.at_ns.saturating_sub(old.at_ns);
    let row = |l: &Listener| {
        let now = l.nfs?;
        let same = |o: &&Listener| (&o.address, &o.service) == (&l.address, &l.service);
        let before = old.listeners.iter().find(same).and_then(|o| o.nfs);
        // An export that restarted or appeared between the samples has no rate yet.
        let before = before.filter(|before| before.calls <= now.calls);
        let per_second = |of: fn(&Export) -> u64| {
            before.as_ref().map_or(0.0, |before| rate(of(before), of(&now), ns))
        };
        Some(ExportRow {
            conns: [now.rdma1 + now.rdma2 + now.silent, now.tcp],
            calls: per_second(|e| e.calls),
            failed: per_second(|e| e.failed),
            read: per_second(|e| e.read_bytes),
            written: per_second(|e| e.written_bytes),
            listener: l.clone(),
        })
    };
    new.listeners.iter().filter_map(row).collect()
}

/// Formats a number with a prefix for its unit: `12.3G`.
pub(super) fn short(value: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let unit = UNITS.into_iter().find(|(size, _)| value >= *size);
    match unit {
        Some((size, name)) => format!("{:.1}{name}", value / size),
        None => format!("{value:.0}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use heddle_socket::admin::{Counter, Port, Tcp};

    fn stats(at_ns: u64, workers: &[usize], bytes: &[u64]) -> Stats {
        let counter = |part: &str, name: &str, workers: &[u64]| Counter {
            part: part.into(),
            name: name.into(),
            workers: workers.to_vec(),
            ..Counter::default()
        };
        // A worker that spins finds work in few of its polls, however long it works for them.
        let polls: Vec<u64> = bytes.iter().map(|b| b * 1_000_000).collect();
        let busy: Vec<u64> = bytes.iter().map(|b| b * 25_000_000).collect();
        let counters = vec![
            counter("worker", "polls", &polls),
            counter("worker", "busy_polls", bytes),
            counter("worker", "busy_ns", &busy),
            counter("qp", "tx_bytes", bytes),
        ];
        Stats { at_ns, workers: workers.to_vec(), counters, ..Stats::default() }
    }

    #[test]
    fn test_worker_rates_use_time_between_answers() {
        let (old, new) = (stats(0, &[0, 1], &[10, 0]), stats(2_000_000_000, &[0, 1], &[30, 6]));
        let rows = workers(&old, &new);
        assert_eq!((rows[0].tx_bits, rows[1].tx_bits), (80.0, 24.0));
        assert_eq!((rows[0].busy, rows[0].rx_bits), (0.25, 0.0));
        // The time of a long turn counts when the turn ends.
        let soon = stats(1_000_000, &[0, 1], &[12, 0]);
        assert_eq!(workers(&old, &soon)[0].busy, 1.0);
        // A worker that did not answer before has no rate yet, and does not take another worker's.
        let rows = workers(&stats(0, &[1], &[5]), &new);
        assert_eq!((rows[0].tx_bits, rows[1].tx_bits), (0.0, 4.0));
        // Without elapsed time there is no rate.
        assert_eq!(workers(&old, &old)[0].tx_bits, 0.0);
    }

    #[test]
    fn test_ports_are_found_by_name() {
        let port = |name: &str, bytes| Port {
            name: name.into(),
            counters: [("tx_bytes".to_owned(), bytes), ("rx_missed".to_owned(), bytes)].into(),
            ..Port::default()
        };
        let old = Ports { at_ns: 0, ports: vec![port("a", 1)] };
        let new = Ports { at_ns: 1_000_000_000, ports: vec![port("b", 9), port("a", 4)] };
        let rows = ports(&old, &new);
        assert_eq!((rows[0].tx_bits, rows[1].tx_bits, rows[1].lost), (0.0, 24.0, 3.0));
    }

    #[test]
    fn test_export_has_rates_only_if_it_was_listed_before() {
        let export = |service: &str, n: u64| Listener {
            address: "10.0.0.1:20049".into(),
            service: service.into(),
            nfs: Some(Export {
                rdma2: 2,
                silent: 1,
                tcp: 4,
                calls: n,
                read_bytes: 10 * n,
                ..Export::default()
            }),
            ..Listener::default()
        };
        let sink = Listener { service: "sink".into(), ..Listener::default() };
        let status = |at_ns, listeners| Status { at_ns, listeners, ..Status::default() };
        let old = status(0, vec![export("nfs:/a", 1), export("nfs:/c", 9)]);
        let all = ["nfs:/a", "nfs:/b", "nfs:/c"].map(|service| export(service, 5));
        let new = status(2_000_000_000, [vec![sink], all.into()].concat());
        let rows = exports(&old, &new);
        let shown = rows.iter().map(|r| (r.listener.service.as_str(), r.calls, r.read, r.conns));
        let want = [
            ("nfs:/a", 2.0, 20.0, [3, 4]),
            ("nfs:/b", 0.0, 0.0, [3, 4]),
            ("nfs:/c", 0.0, 0.0, [3, 4]),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), want);
    }

    #[test]
    fn test_connections_are_sorted_by_requested_column() {
        let conn = |conn, acked, retransmits, srtt_ns| Conn {
            conn,
            tcp: Some(Tcp { acked, retransmits, srtt_ns, ..Tcp::default() }),
            ..Conn::default()
        };
        let zero = |n| conn(n, 0, 0, None);
        let old = Conns { at_ns: 0, conns: vec![zero(1), zero(2), zero(3)], ..Conns::default() };
        let now = vec![conn(1, 5, 0, Some(9)), conn(2, 9, 1, None), conn(3, 1, 4, Some(10))];
        let new = Conns { at_ns: 1_000_000_000, conns: now, ..Conns::default() };
        let order = |o| conns(&old, &new, o).iter().map(|r| r.conn.conn).collect::<Vec<_>>();
        assert_eq!(order(Order::Number), [1, 2, 3]);
        assert_eq!(order(Order::Rate), [2, 1, 3]);
        assert_eq!(order(Order::Retransmits), [3, 2, 1]);
        assert_eq!(order(Order::Rtt), [3, 1, 2]);
        // Connections that are new since the last sample have no rate yet.
        let rows = conns(&Conns::default(), &new, Order::Rate);
        assert!(rows.iter().all(|r| r.tx_bits == 0.0));
    }

    #[test]
    fn test_large_numbers_are_abbreviated() {
        let all = [0.0, 999.0, 1000.0, 12_345.0, 1.5e9, 2e12].map(short);
        assert_eq!(all, ["0", "999", "1.0k", "12.3k", "1.5G", "2.0T"]);
    }
}
