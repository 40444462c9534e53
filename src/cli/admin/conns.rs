//! Connections and queue pairs.

use heddle_perf::report::align;
use heddle_socket::Client;
use heddle_socket::admin::{Conn, Conns, ConnsArgs, MAX_CONNS, Qp, Request};
use serde::Serialize;

use super::super::Failure;

/// Fetches all connections that match, in as many answers as the appliance needs for them.
pub(super) fn all(client: &mut Client, args: ConnsArgs) -> Result<Conns, Failure> {
    let most = args.limit.unwrap_or(usize::MAX);
    let mut all = Conns::default();
    let mut after = args.after;
    loop {
        let limit = Some((most - all.conns.len()).min(MAX_CONNS));
        let args = ConnsArgs { after, limit, ..args.clone() };
        let mut more: Conns = client.call(&Request::Conns(Some(args)))?;
        if all.conns.is_empty() {
            all.at_ns = more.at_ns;
        }
        all.conns.append(&mut more.conns);
        let new = more.silent.into_iter().filter(|w| !all.silent.contains(w)).collect::<Vec<_>>();
        all.silent.extend(new);
        all.next = more.next;
        after = more.next;
        if after.is_none() || all.conns.len() >= most {
            return Ok(all);
        }
    }
}

/// Queue pairs, each with its connection.
#[derive(Serialize)]
pub(super) struct Qps {
    at_ns: u64,
    pub(super) qps: Vec<OfConn>,
    /// Workers that have not answered.
    silent: Vec<usize>,
}

#[derive(Serialize)]
pub(super) struct OfConn {
    conn: u64,
    local: String,
    remote: String,
    worker: usize,
    service: String,
    #[serde(flatten)]
    qp: Qp,
}

pub(super) fn qps(all: &Conns) -> Qps {
    let of = |c: &Conn| {
        Some(OfConn {
            conn: c.conn,
            local: c.local.clone(),
            remote: c.remote.clone(),
            worker: c.worker,
            service: c.service.clone(),
            qp: c.qp.clone()?,
        })
    };
    let qps = all.conns.iter().filter_map(of).collect();
    Qps { at_ns: all.at_ns, qps, silent: all.silent.clone() }
}

pub(super) fn table(all: &Conns) -> String {
    let rows = all.conns.iter().map(|c| {
        let tcp = c.tcp.clone().unwrap_or_default();
        // Without its worker's answer, nothing is known of a connection's TCP.
        let known = |value: String| if c.tcp.is_some() { value } else { "-".into() };
        vec![
            c.conn.to_string(),
            // Each connection of a forwarded pair names the other.
            c.pair.map_or_else(|| c.service.clone(), |pair| format!("{} {pair}", c.service)),
            // Show the hindrance beside the state, because it keeps the connection in that state.
            match &tcp.hindrance {
                Some(hindrance) => format!("{}, {hindrance}", c.state),
                None => c.state.clone(),
            },
            c.local.clone(),
            c.remote.clone(),
            c.worker.to_string(),
            c.agreed.as_ref().map_or_else(String::new, agreed),
            tcp.srtt_ns.map_or_else(|| "-".into(), micros),
            known(tcp.cwnd.to_string()),
            known(tcp.in_flight.to_string()),
            known(tcp.acked.to_string()),
            known(tcp.received.to_string()),
            known(tcp.retransmits.to_string()),
        ]
    });
    let head = [
        "conn", "service", "state", "local", "remote", "worker", "agreed", "srtt us", "cwnd",
        "flight", "sent", "received", "retx",
    ];
    align(&head, rows, 5) + &silent(&all.silent)
}

/// Names the workers that have not answered, a line for each.
pub(super) fn silent(workers: &[usize]) -> String {
    workers.iter().fold(String::new(), |text, w| {
        text + &format!("worker {w} has not answered: what it knows is missing here\n")
    })
}

/// Formats revision, CRC, Reads in each direction and markers: `2 crc 16/16`.
fn agreed(a: &heddle_socket::admin::Agreed) -> String {
    // InfiniBand's connection management has no MPA revision.
    if a.revision == 0 {
        return format!("ib {}/{}", a.ird, a.ord);
    }
    let crc = if a.crc { " crc" } else { "" };
    let markers = if a.send_markers || a.recv_markers { " markers" } else { "" };
    format!("{}{crc} {}/{}{markers}", a.revision, a.ird, a.ord)
}

pub(super) fn qp_table(all: &Qps) -> String {
    let rows = all.qps.iter().map(|o| {
        let q = &o.qp;
        vec![
            q.qpn.to_string(),
            q.state.clone(),
            o.service.clone(),
            o.remote.clone(),
            o.worker.to_string(),
            q.pd.to_string(),
            format!("{}/{}", q.sq_outstanding, q.sq_depth),
            format!("{}/{}{}", q.rq_outstanding, q.rq_depth, if q.shared { " srq" } else { "" }),
            q.tx_bytes.to_string(),
            q.rx_bytes.to_string(),
            o.conn.to_string(),
        ]
    });
    let head = [
        "qp", "state", "service", "remote", "worker", "pd", "sends", "receives", "tx bytes",
        "rx bytes", "conn",
    ];
    align(&head, rows, 4) + &silent(&all.silent)
}

/// Converts nanoseconds to microseconds.
fn micros(ns: u64) -> String {
    format!("{}.{}", ns / 1000, ns % 1000 / 100)
}
