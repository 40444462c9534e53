//! `ucmatose`: the server sends a number of messages, receives as many, and closes.
//!
//! The server begins. A responder of MPA must not send before the initiator's first FPDU arrives
//! (RFC 5044 section 7.1.2); in the peer-to-peer model the initiator sends that FPDU by itself (RFC
//! 6581 section 9). So the server rejects a client that does not ask for this model.

use heddle_verbs::{
    AcceptParams, Access, Agreed, Cqe, CqeOp, Data, DisconnectReason, Mr, Qp, QpInit, RecvWr,
    SendOp, SendWr,
};

use super::Fault;
use crate::connections::{Connection, wr_id};
use crate::server::{Answer, Next, Protocol, Request};

/// The messages in each direction. The user has to give both sides the same values, as `ucmatose -C
/// COUNT -S SIZE` does for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    /// The number of messages, 1 to [`MAX_COUNT`](Self::MAX_COUNT).
    pub count: u32,
    /// Bytes of each message, 1 to [`MAX_SIZE`](Self::MAX_SIZE).
    pub size: u32,
}

impl Messages {
    /// The highest number of messages: the service posts all at once, like `ucmatose`.
    pub const MAX_COUNT: u32 = 128;
    /// The highest number of bytes in a message.
    pub const MAX_SIZE: u32 = 1 << 20;
}

impl Default for Messages {
    /// The defaults of `ucmatose`: 10 messages of 100 bytes.
    fn default() -> Messages {
        Messages { count: 10, size: 100 }
    }
}

/// Plays the server with these messages.
pub(crate) struct Ucmatose(pub(crate) Messages);

pub(crate) struct Exchange {
    qp: Qp,
    /// The zeros that the service sends.
    outbox: Mr,
    /// Received messages end here, one over the other, since no program reads them.
    inbox: Mr,
    sent: u32,
    received: u32,
}

impl Protocol for Ucmatose {
    type Conn = Exchange;
    type Fault = Fault;

    const MAX_CONNS: usize = 128;

    fn cq_depth(&self) -> u32 {
        // Room for 128 connections with 128 messages each way.
        1 << 15
    }

    fn accept(&mut self, request: &Request<'_>) -> Result<Answer<Exchange>, Fault> {
        let Messages { count, size } = self.0;
        if !request.peer_to_peer {
            return Err(Fault::MayNotBegin);
        }
        let d = request.device;
        let pd = d.own_pd()?;
        let init = QpInit::new(request.cq.clone()).depths(count, count);
        let init = QpInit { max_send_sge: 1, max_recv_sge: 1, max_inline: 0, ..init };
        let conn = Exchange {
            qp: d.create_qp(pd.id(), init)?,
            outbox: d.alloc_mr(pd.id(), size as usize, Access::NONE)?,
            inbox: d.alloc_mr(pd.id(), size as usize, Access::LOCAL_WRITE)?,
            sent: 0,
            received: 0,
        };
        let sges = &[conn.inbox.sge(0, size as usize)];
        for n in 0..count {
            conn.qp.post_recv(&RecvWr { wr_id: wr_id(request.place, n), sges })?;
        }
        let params = AcceptParams::new(conn.qp.clone());
        Ok(Answer { conn, params })
    }

    fn established(
        &mut self,
        place: usize,
        conn: &mut Exchange,
        _: &Agreed,
    ) -> Result<bool, Fault> {
        for n in 0..self.0.count {
            conn.qp.post_send(&SendWr {
                wr_id: wr_id(place, n),
                op: SendOp::Send { solicited: false, invalidate: None },
                data: Data::Sges(&[conn.outbox.sge(0, self.0.size as usize)]),
                signaled: true,
                fence: false,
            })?;
        }
        Ok(true)
    }

    fn completed(&mut self, _: usize, conn: &mut Exchange, cqe: &Cqe) -> Result<Next, Fault> {
        let Messages { count, size } = self.0;
        if cqe.op == CqeOp::Recv {
            if cqe.len != size {
                return Err(Fault::Size(cqe.len, size));
            }
            conn.received += 1;
        } else {
            conn.sent += 1;
        }
        let done = conn.sent == count && conn.received == count;
        Ok(if done { Next::Close } else { Next::Go })
    }

    fn ended(&mut self, _: usize, _: Connection<Exchange>, _: Option<DisconnectReason>) {}
}
