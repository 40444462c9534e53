//! Messages of version 1 (RFC 8166, RFC 8167).

use heddle_rpcrdma::Direction;
use heddle_rpcrdma::credit::v1::Violation;
use heddle_rpcrdma::v1::{Body, Chunks, Header, Refusal, VERSION};

use super::{Exchange, Sent, Side, call, reply, show};
use crate::item::Rule;
use crate::memory::Call;
use crate::names;

impl Exchange {
    pub(super) fn version_1(
        &mut self,
        side: Side,
        header: &Header<'_>,
        payload: &[u8],
        sent: &mut Sent,
    ) {
        let t = &mut sent.transport;
        (t.version, t.xid, t.credits) = (VERSION, header.xid.0, header.credit);
        t.header = match header.body {
            Body::Msg(_) => "RDMA_MSG",
            Body::NoMsg(_) => "RDMA_NOMSG",
            Body::Error(_) => "RDMA_ERROR",
        };
        match &header.body {
            Body::Msg(chunks) | Body::NoMsg(chunks) => {
                show(t, chunks);
                match header.direction(payload) {
                    Some(Direction::Call) => self.call_1(side, header, chunks, payload, sent),
                    Some(Direction::Reply) => self.reply_1(side, header, chunks, payload, sent),
                    None => sent.wrong(Rule::Rpc, "neither a call nor a reply"),
                }
            }
            Body::Error(refusal) => {
                t.error = Some(names::refusal_v1(*refusal));
                match refusal {
                    // Such an error may answer a message of version 2, whether it is a call or not.
                    Refusal::Versions { .. } if self.version != Some(VERSION) => {
                        self.end(1 - side).calls.end(header.xid.0);
                    }
                    _ => {
                        if self.ended(side, header.xid.0, None, sent).is_some() {
                            self.granted(side, header.credit, sent);
                        }
                    }
                }
            }
        }
    }

    fn call_1(
        &mut self,
        side: Side,
        header: &Header<'_>,
        chunks: &Chunks<'_>,
        payload: &[u8],
        sent: &mut Sent,
    ) {
        let mut new = Call { whole: true, ..Call::default() };
        new.offer(chunks);
        // The header of an RDMA_NOMSG call comes by a Read.
        if !payload.is_empty() {
            match call(payload) {
                Ok((rpc, procedure)) => {
                    sent.transport.rpc = Some(rpc);
                    new.procedure = Some(procedure);
                }
                Err(e) => sent.wrong(Rule::Rpc, format!("call: {e}")),
            }
        }
        if self.certain
            && let Err(e) = self.end(side).account.call()
        {
            sent.wrong(Rule::Credits, e);
        }
        self.called(side, header.xid.0, new, sent);
    }

    fn reply_1(
        &mut self,
        side: Side,
        header: &Header<'_>,
        chunks: &Chunks<'_>,
        payload: &[u8],
        sent: &mut Sent,
    ) {
        let lists = Some((&chunks.writes, chunks.reply.as_ref()));
        let ended = self.ended(side, header.xid.0, lists, sent);
        if !payload.is_empty() {
            match reply(payload, ended.as_ref().and_then(|c| c.procedure)) {
                Ok(rpc) => sent.transport.rpc = Some(rpc),
                Err(e) => sent.wrong(Rule::Rpc, format!("reply: {e}")),
            }
        }
        if ended.is_some() {
            self.granted(side, header.credit, sent);
        }
    }

    /// Checks the credits that `side` grants with a message that ends a call.
    fn granted(&mut self, side: Side, credit: u32, sent: &mut Sent) {
        if credit == 0 {
            sent.wrong(Rule::Credits, Violation::ZeroGrant);
        }
        let certain = self.certain;
        let account = &mut self.end(1 - side).account;
        account.set_grant(credit);
        // No call asked for a number here: the reply itself says how many it grants.
        if let Err(e) = account.reply(0)
            && certain
        {
            sent.wrong(Rule::Credits, e);
        }
    }
}
