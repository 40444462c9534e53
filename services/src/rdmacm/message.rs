//! `rdma_server`: takes one message, sends one, and closes.

use heddle_verbs::{
    AcceptParams, Access, Agreed, Cqe, CqeOp, Data, DisconnectReason, Mr, Qp, QpInit, RecvWr,
    SendOp, SendWr,
};

use super::Fault;
use crate::connections::{Connection, wr_id};
use crate::server::{Answer, Next, Protocol, Request};

/// Bytes of each message.
pub(super) const LEN: usize = 16;

/// Sends back what it receives: `rdma_client` does not check the bytes, but other clients may.
#[derive(Default)]
pub(crate) struct RdmaServer;

pub(crate) struct Exchange {
    qp: Qp,
    message: Mr,
}

impl Protocol for RdmaServer {
    type Conn = Exchange;
    type Fault = Fault;

    const MAX_CONNS: usize = 256;

    fn cq_depth(&self) -> u32 {
        512
    }

    fn accept(&mut self, request: &Request<'_>) -> Result<Answer<Exchange>, Fault> {
        let d = request.device;
        let pd = d.own_pd()?;
        let init = QpInit::new(request.cq.clone()).depths(1, 1);
        let init = QpInit { max_send_sge: 1, max_recv_sge: 1, max_inline: 0, ..init };
        let conn = Exchange {
            qp: d.create_qp(pd.id(), init)?,
            message: d.alloc_mr(pd.id(), LEN, Access::LOCAL_WRITE)?,
        };
        let sges = &[conn.message.sge(0, LEN)];
        conn.qp.post_recv(&RecvWr { wr_id: wr_id(request.place, 0), sges })?;
        let params = AcceptParams::new(conn.qp.clone());
        Ok(Answer { conn, params })
    }

    fn established(&mut self, _: usize, _: &mut Exchange, _: &Agreed) -> Result<bool, Fault> {
        Ok(true)
    }

    fn completed(&mut self, place: usize, conn: &mut Exchange, cqe: &Cqe) -> Result<Next, Fault> {
        if cqe.op != CqeOp::Recv {
            return Ok(Next::Close);
        }
        if cqe.len as usize != LEN {
            return Err(Fault::Stray(cqe.len));
        }
        conn.qp.post_send(&SendWr {
            wr_id: wr_id(place, 0),
            op: SendOp::Send { solicited: false, invalidate: None },
            data: Data::Sges(&[conn.message.sge(0, LEN)]),
            signaled: true,
            fence: false,
        })?;
        Ok(Next::Go)
    }

    fn ended(&mut self, _: usize, _: Connection<Exchange>, _: Option<DisconnectReason>) {}
}
