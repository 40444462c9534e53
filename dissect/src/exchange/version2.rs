//! Messages of version 2 (draft section 6).

use heddle_rpcrdma::Direction;
use heddle_rpcrdma::sequence::Step;
use heddle_rpcrdma::v2::{Body, Header, VERSION};

use super::{Exchange, Sent, Side, call, memory, reply, show, show_writes};
use crate::item::Rule;
use crate::memory::Call;
use crate::names;

impl Exchange {
    pub(super) fn version_2(
        &mut self,
        side: Side,
        header: &Header<'_>,
        payload: &[u8],
        sent: &mut Sent,
    ) {
        let t = &mut sent.transport;
        (t.version, t.xid, t.credits) = (VERSION, header.xid.0, header.credit);
        t.header = names::htype_v2(header.htype());
        describe(header, sent);
        self.count_v2(side, header.credit, sent);
        let step = match self.end(side).sequence.receive(header, payload) {
            Ok(step) => step,
            Err(e) => {
                if self.certain {
                    sent.wrong(Rule::Sequence, e);
                }
                return;
            }
        };
        match step {
            Step::Part { direction, offset, last, .. } => {
                let payload = if offset == 0 { payload } else { &[] };
                match direction {
                    Direction::Call => self.call_2(side, header, payload, last, sent),
                    Direction::Reply => self.reply_2(side, header, payload, last, sent),
                }
            }
            Step::Alone => match header.body {
                Body::CallExternal { .. } => self.call_2(side, header, &[], true, sent),
                Body::ReplyExternal { .. } => self.reply_2(side, header, &[], true, sent),
                // The error may answer a call, or any other message.
                Body::Error(_) => drop(self.end(1 - side).calls.end(header.xid.0)),
                _ => {}
            },
            Step::Properties { .. } => {
                if let Body::ConnProp { props, .. } = &header.body {
                    self.end(side).properties.update(props);
                }
            }
            Step::Discard => {}
        }
    }

    /// Counts a message against the credits: in version 2 every message counts.
    pub(super) fn count_v2(&mut self, side: Side, credit: u32, sent: &mut Sent) {
        if !self.certain {
            return;
        }
        if let Err(e) = self.end(side).watch.message() {
            sent.wrong(Rule::Credits, e);
        }
        if let Err(e) = self.end(1 - side).watch.told(credit) {
            sent.wrong(Rule::Credits, e);
        }
    }

    /// Handles a call or a part of it; `payload` is that of the first part.
    fn call_2(
        &mut self,
        side: Side,
        header: &Header<'_>,
        payload: &[u8],
        last: bool,
        sent: &mut Sent,
    ) {
        let mut new = Call { whole: last, invalidate: header.invalidate(), ..Call::default() };
        if !payload.is_empty() {
            match call(payload) {
                Ok((rpc, procedure)) => {
                    sent.transport.rpc = Some(rpc);
                    new.procedure = Some(procedure);
                }
                Err(e) => sent.wrong(Rule::Rpc, format!("call: {e}")),
            }
        }
        match &header.body {
            Body::CallInline { chunks, .. } => new.offer(chunks),
            Body::CallExternal { call, chunks, .. } => {
                new.offer_reads(call);
                new.offer(chunks);
            }
            // A middle part adds nothing.
            _ if payload.is_empty() => return,
            _ => {}
        }
        let calls = &mut self.end(side).calls;
        match calls.get(header.xid.0) {
            Some(begun) if last && !begun.whole => {
                calls.complete(header.xid.0, new);
            }
            _ => self.called(side, header.xid.0, new, sent),
        }
    }

    fn reply_2(
        &mut self,
        side: Side,
        header: &Header<'_>,
        payload: &[u8],
        last: bool,
        sent: &mut Sent,
    ) {
        if !payload.is_empty() {
            let of = self.end(1 - side).calls.get(header.xid.0).and_then(|c| c.procedure);
            match reply(payload, of) {
                Ok(rpc) => sent.transport.rpc = Some(rpc),
                Err(e) => sent.wrong(Rule::Rpc, format!("reply: {e}")),
            }
        }
        if last {
            let lists = match &header.body {
                Body::ReplyInline { writes } => Some((writes, None)),
                Body::ReplyExternal { writes, reply } => Some((writes, Some(reply))),
                _ => None,
            };
            self.ended(side, header.xid.0, lists, sent);
        }
    }
}

/// Shows the contents of a header.
fn describe(header: &Header<'_>, sent: &mut Sent) {
    let t = &mut sent.transport;
    match &header.body {
        Body::Error(refusal) => t.error = Some(names::refusal_v2(*refusal)),
        Body::Grant => {}
        Body::ConnProp { props, .. } => {
            t.properties = props.properties().map(names::property).collect();
        }
        Body::CallExternal { invalidate, call, chunks } => {
            t.may_invalidate = Some(invalidate.0).filter(|&h| h != 0);
            t.call = call.segments().map(|s| memory(s.target)).collect();
            show(t, chunks);
        }
        Body::CallInline { invalidate, chunks } => {
            t.may_invalidate = Some(invalidate.0).filter(|&h| h != 0);
            show(t, chunks);
        }
        Body::CallMiddle { remaining } | Body::ReplyMiddle { remaining } => {
            t.remaining = Some(*remaining);
        }
        Body::ReplyExternal { writes, reply } => show_writes(t, writes, Some(reply)),
        Body::ReplyInline { writes } => show_writes(t, writes, None),
    }
    if t.may_invalidate.is_some() && header.invalidate().is_none() {
        sent.wrong(Rule::Memory, "the handle that may be invalidated is in no chunk of the call");
    }
}
