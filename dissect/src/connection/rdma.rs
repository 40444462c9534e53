//! RDMA messages of a connection.

use heddle_iwarp::rdmap::{Opcode, ReadRequest, Terminate, TerminateError};

use super::{Connection, Out, Upper};
use crate::exchange::{Exchange, Side, is_transport};
use crate::item::{ChunkOf, Place, Rdma, Rule, What};
use crate::messages::Message;

/// Most Read Requests without a response that the decoder remembers: as many as MPA can settle.
const ASKED_MAX: usize = 0x3fff;

/// A Read Request without a response.
#[derive(Debug)]
pub(super) struct Asked {
    sink: Place,
    bytes: u32,
    of: Option<ChunkOf>,
}

impl Connection {
    pub(super) fn message(&mut self, side: Side, message: &Message, out: &mut Out<'_>) {
        match message.opcode {
            opcode if opcode.is_send() => self.send(side, message, out),
            Opcode::WRITE => self.write(side, message, out),
            Opcode::READ_REQUEST => self.read_request(side, message, out),
            Opcode::READ_RESPONSE => self.read_response(side, message, out),
            Opcode::TERMINATE => {
                let reason = match Terminate::parse(&message.head) {
                    Ok(read) | Err(TerminateError::Truncated { read, .. }) => read.code.to_string(),
                    Err(e) => e.to_string(),
                };
                self.put(side, What::Rdma(Rdma { reason: Some(reason), ..plain(message) }), out);
            }
            _ => self.put(side, What::Rdma(plain(message)), out),
        }
    }

    fn send(&mut self, side: Side, message: &Message, out: &mut Out<'_>) {
        let invalidate = message.opcode.invalidates().then_some(message.ulp32);
        if message.bytes > 0 {
            self.recognize(message);
        }
        match &mut self.upper {
            // A Send of no bytes says that an initiator is ready to receive.
            Upper::Rpc(exchange) if message.bytes > 0 => {
                let sent = exchange.send(side, &message.head, message.bytes, invalidate);
                self.put(side, What::Rpcrdma(Box::new(sent.transport)), out);
                for verdict in sent.verdicts {
                    self.put(side, What::Verdict(verdict), out);
                }
            }
            _ => self.put(side, What::Rdma(Rdma { invalidate, ..plain(message) }), out),
        }
    }

    /// Recognizes the protocol of all Sends by the first one.
    fn recognize(&mut self, message: &Message) {
        if !matches!(self.upper, Upper::Unknown) {
            return;
        }
        let private_data = self.said.map(|s| s.and_then(|s| s.private_data));
        let told = private_data.iter().any(Option::is_some);
        let is = self.forced || told || (message.is_whole() && is_transport(&message.head));
        self.upper = if is {
            let mut exchange = Exchange::new(private_data);
            if !self.certain {
                exchange.interrupt();
            }
            Upper::Rpc(Box::new(exchange))
        } else {
            Upper::Other
        };
    }

    fn write(&mut self, side: Side, message: &Message, out: &mut Out<'_>) {
        let mut item = plain(message);
        let mut verdicts = Vec::new();
        if let (Upper::Rpc(exchange), Some(place)) = (&mut self.upper, message.place)
            && message.bytes > 0
        {
            (item.chunk, item.rpc) =
                exchange.wrote(side, place, message.bytes, &message.head, &mut verdicts);
        }
        self.put(side, What::Rdma(item), out);
        for verdict in verdicts {
            self.put(side, What::Verdict(verdict), out);
        }
    }

    fn read_request(&mut self, side: Side, message: &Message, out: &mut Out<'_>) {
        let request = match ReadRequest::parse(&message.head) {
            Ok(request) => request,
            Err(e) => return self.wrong(side, Rule::Read, e, out),
        };
        let sink = Place { handle: request.sink_stag.0, offset: request.sink_to };
        let source = Place { handle: request.src_stag.0, offset: request.src_to };
        let mut item = Rdma {
            bytes: request.size.into(),
            to_memory: Some(sink),
            from_memory: Some(source),
            ..plain(message)
        };
        let mut verdicts = Vec::new();
        if let Upper::Rpc(exchange) = &mut self.upper
            && request.size > 0
        {
            item.chunk = exchange.asked(side, source, request.size.into(), &mut verdicts);
        }
        let asked = &mut self.asked[side];
        asked.push_back(Asked { sink, bytes: request.size, of: item.chunk });
        if asked.len() > ASKED_MAX {
            asked.pop_front();
            self.certain = false;
        }
        self.put(side, What::Rdma(item), out);
        for verdict in verdicts {
            self.put(side, What::Verdict(verdict), out);
        }
    }

    fn read_response(&mut self, side: Side, message: &Message, out: &mut Out<'_>) {
        let asked = &mut self.asked[1 - side];
        let at = asked.iter().position(|a| Some(a.sink) == message.place);
        let mut item = plain(message);
        let mut wrong = None;
        match at {
            // Responses come in the order of their requests (RFC 5040 section 5.5).
            Some(before) => {
                asked.drain(..before);
                let request = asked.pop_front();
                if before > 0 {
                    wrong =
                        Some(format!("{before} requests in front of this one have no response"));
                }
                if let Some(Asked { bytes, of, .. }) = request {
                    item.chunk = of;
                    if message.bytes != u64::from(bytes) {
                        wrong = Some(format!("{bytes} bytes were asked for"));
                    }
                }
            }
            None => wrong = Some("nobody asked for it".into()),
        }
        if let (Upper::Rpc(exchange), Some(of)) = (&mut self.upper, item.chunk) {
            item.rpc = exchange.answered(side, of, &message.head);
        }
        self.put(side, What::Rdma(item), out);
        if let Some(text) = wrong.filter(|_| self.certain) {
            self.wrong(side, Rule::Read, text, out);
        }
    }
}

fn plain(message: &Message) -> Rdma {
    Rdma {
        operation: message.opcode.name().unwrap_or("unknown"),
        bytes: message.bytes,
        to_memory: message.place,
        from_memory: None,
        invalidate: None,
        reason: None,
        chunk: None,
        rpc: None,
    }
}
