//! How single connections fare, for people who look.

use heddle_base::StreamPos;
use heddle_iwarp::{QpCounters, QpState};
use heddle_rnic::Rnic;
use heddle_tcp::{ConnId, ConnStats, Hindrance, State};

use super::Worker;
use crate::rx::RxMbuf;

/// Connections that are looked at for one order at most: all of them in one turn.
pub const INSPECT_MAX: usize = 32;

/// What a worker knows of a connection.
#[derive(Clone, Debug)]
pub struct ConnFacts {
    /// Which.
    pub conn: ConnId,
    /// TCP's state.
    pub state: State,
    /// Octets of payload in a full segment.
    pub emss: u32,
    /// Round-trip time, windows, retransmissions.
    pub tcp: ConnStats,
    /// What keeps it from getting on.
    pub hindrance: Option<Hindrance>,
    /// Octets the peer has acknowledged.
    pub acked: u64,
    /// Octets that came from the peer, in order.
    pub received: u64,
    /// The queue pair, while there is one.
    pub qp: Option<QpFacts>,
}

/// What a worker knows of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpFacts {
    /// Its state.
    pub state: QpState,
    /// Requests of the send queue that were taken and are not retired.
    pub send_outstanding: u32,
    /// Requests of the receive queue that were taken and are not retired.
    pub recv_outstanding: u32,
    /// What it has counted.
    pub counters: QpCounters,
}

impl Worker {
    /// What there is to be known of `conns`, the first [`INSPECT_MAX`] of them; those that are gone
    /// are left out.
    #[cold]
    pub(super) fn inspect(&mut self, conns: &[ConnId]) -> Vec<ConnFacts> {
        let Worker { rnic, queues, .. } = self;
        let conns = conns.iter().take(INSPECT_MAX);
        conns
            .filter_map(|&conn| {
                let outstanding = queues.of(conn).map_or((0, 0), |slot| slot.qp.outstanding());
                facts(rnic, conn, outstanding)
            })
            .collect()
    }
}

fn facts(rnic: &Rnic<RxMbuf>, conn: ConnId, (sq, rq): (u32, u32)) -> Option<ConnFacts> {
    let tcp = rnic.connection(conn)?;
    let qp = rnic.qp(conn).map(|qp| QpFacts {
        state: qp.state(),
        send_outstanding: sq,
        recv_outstanding: rq,
        counters: qp.counters(),
    });
    Some(ConnFacts {
        conn,
        state: tcp.state(),
        emss: tcp.emss(),
        tcp: tcp.stats(),
        hindrance: tcp.hindrance(),
        acked: tcp.snd_una().since(StreamPos::START),
        received: tcp.rcv_nxt().since(StreamPos::START),
        qp,
    })
}
