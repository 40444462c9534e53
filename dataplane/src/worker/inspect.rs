//! The state of single connections, for people who look.

use heddle_engine::Engine;
use heddle_types::ConnId;

use super::Worker;
use crate::rx::RxMbuf;

/// Connections that the worker looks at for one order at most, all of them in one turn.
pub const INSPECT_MAX: usize = 32;

/// The state of a connection, as its worker knows it.
#[derive(Clone, Debug)]
pub struct ConnFacts<F> {
    /// The connection's number in its engine.
    pub conn: ConnId,
    /// Requests of the send queue that were taken and are not retired.
    pub send_outstanding: u32,
    /// Requests of the receive queue that were taken and are not retired.
    pub recv_outstanding: u32,
    /// The state of the connection as its engine knows it.
    pub engine: F,
}

impl<E: Engine<Frame = RxMbuf>> Worker<E> {
    /// Returns the state of the first [`INSPECT_MAX`] of `conns`; leaves out connections that no
    /// longer exist.
    #[cold]
    pub(super) fn inspect(&mut self, conns: &[ConnId]) -> Vec<ConnFacts<E::Facts>> {
        let Worker { engine, queues, .. } = self;
        let conns = conns.iter().take(INSPECT_MAX);
        conns
            .filter_map(|&conn| {
                let engine = engine.inspect(conn)?;
                let (send_outstanding, recv_outstanding) =
                    queues.of(conn).map_or((0, 0), |slot| slot.qp.outstanding());
                Some(ConnFacts { conn, send_outstanding, recv_outstanding, engine })
            })
            .collect()
    }
}
