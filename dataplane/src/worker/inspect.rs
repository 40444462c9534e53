//! The state of single connections, for people who look.

use heddle_base::StreamPos;
use heddle_iwarp::QpCounters;
use heddle_rnic::Rnic;
use heddle_tcp::{ConnId, ConnStats, Hindrance, State};
use heddle_types::QpState;

use super::Worker;
use crate::rx::RxMbuf;

/// Connections that the worker looks at for one order at most, all of them in one turn.
pub const INSPECT_MAX: usize = 32;

/// The state of a connection, as its worker knows it.
#[derive(Clone, Debug)]
pub struct ConnFacts {
    /// The connection's number in its RNIC.
    pub conn: ConnId,
    /// TCP's state.
    pub state: State,
    /// Bytes of payload in a full segment.
    pub emss: u32,
    /// Round-trip time, windows, retransmissions.
    pub tcp: ConnStats,
    /// The reason why the connection makes no progress, if there is one.
    pub hindrance: Option<Hindrance>,
    /// Bytes that the peer has acknowledged.
    pub acked: u64,
    /// Bytes that came from the peer, in order.
    pub received: u64,
    /// The queue pair, while there is one.
    pub qp: Option<QpFacts>,
}

/// The state of a queue pair, as its worker knows it.
#[derive(Clone, Copy, Debug)]
pub struct QpFacts {
    /// The state of the queue pair's state machine.
    pub state: QpState,
    /// Requests of the send queue that were taken and are not retired.
    pub send_outstanding: u32,
    /// Requests of the receive queue that were taken and are not retired.
    pub recv_outstanding: u32,
    /// The counters of the queue pair.
    pub counters: QpCounters,
}

impl Worker {
    /// Returns the state of the first [`INSPECT_MAX`] of `conns`; leaves out connections that no
    /// longer exist.
    #[cold]
    pub(super) fn inspect(&mut self, conns: &[ConnId]) -> Vec<ConnFacts> {
        let Worker { rnic, queues, .. } = self;
        let conns = conns.iter().take(INSPECT_MAX);
        conns
            .filter_map(|&conn| {
                let (sq, rq) = queues.of(conn).map_or((0, 0), |slot| slot.qp.outstanding());
                facts(rnic, conn, sq, rq)
            })
            .collect()
    }
}

fn facts(rnic: &Rnic<RxMbuf>, conn: ConnId, sq: u32, rq: u32) -> Option<ConnFacts> {
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
