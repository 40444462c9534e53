//! `cmtime`: the client makes many connections at once, ends them, and times both.

use heddle_verbs::{AcceptParams, Agreed, Cqe, DisconnectReason, Qp, QpInit};

use super::Fault;
use crate::connections::Connection;
use crate::server::{Answer, Next, Protocol, Request};

/// Accepts, and waits for the end.
#[derive(Default)]
pub(crate) struct Cmtime;

/// Keeps the queue pair as long as its connection lasts.
pub(crate) struct Idle {
    _qp: Qp,
}

impl Cmtime {
    /// The number of connections of one address that may be in their start-up.
    pub(crate) const PER_PEER: usize = 512;
}

impl Protocol for Cmtime {
    type Conn = Idle;
    type Fault = Fault;

    /// A single address may have a quarter of these: 512, where `cmtime` makes 100 by default.
    const MAX_CONNS: usize = 2048;

    fn cq_depth(&self) -> u32 {
        64
    }

    fn accept(&mut self, request: &Request<'_>) -> Result<Answer<Idle>, Fault> {
        let pd = request.device.own_pd()?;
        let init = QpInit::new(request.cq.clone()).depths(1, 1);
        let init = QpInit { max_send_sge: 1, max_recv_sge: 1, max_inline: 0, ..init };
        let qp = request.device.create_qp(pd.id(), init)?;
        Ok(Answer { conn: Idle { _qp: qp.clone() }, params: AcceptParams::new(qp) })
    }

    /// Returns false: the peer sends nothing.
    fn established(&mut self, _: usize, _: &mut Idle, _: &Agreed) -> Result<bool, Fault> {
        Ok(false)
    }

    fn completed(&mut self, _: usize, _: &mut Idle, _: &Cqe) -> Result<Next, Fault> {
        Ok(Next::Go)
    }

    fn ended(&mut self, _: usize, _: Connection<Idle>, _: Option<DisconnectReason>) {}
}
