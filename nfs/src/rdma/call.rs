//! A call: turns arguments with separate items into bytes, and results into separate items.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use heddle_rpc::{AuthStat, Body, Buffer, Memory, Refusal, Request};
use heddle_rpcrdma::rpc::{Auth, Status as RpcStatus};
use heddle_rpcrdma::xdr::padded;

use crate::wire::procedure;
use crate::{Arguments, Carried, Room, Service, Sink, Source, Unflushed};

/// Data of at most this many bytes travels with the rest of the results: the copy costs less than
/// an RDMA Write.
const SHORT: usize = 4096;

/// How long a READ waits for registered memory: other replies give theirs back after they have
/// reached their clients.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of one thread. Its buffers keep their capacity from call to call.
pub(super) struct Worker {
    service: Arc<Service>,
    memory: Memory,
    arguments: Vec<u8>,
    results: Vec<u8>,
}

/// The outcome of a call.
enum Outcome {
    Results(Body),
    Unflushed(Unflushed),
    NoRoom(usize),
}

impl Worker {
    pub(super) fn new(service: Arc<Service>, memory: Memory) -> Worker {
        Worker { service, memory, arguments: Vec::new(), results: Vec::new() }
    }

    /// Carries out a call and answers it, now or after the disk or the memory that the call waits
    /// for.
    pub(super) fn answer(&mut self, mut call: Request) {
        let waited = call.waited();
        match self.carry_out(&call, waited) {
            Ok(Outcome::Results(results)) => call.reply(Ok(results)),
            Ok(Outcome::Unflushed(unflushed)) => {
                // The system has the WRITE's data, so other calls may have the memory.
                call.arguments = Body::new();
                let peer = call.peer;
                let then = move |results| call.reply(Body::of(results).map_err(Refusal::from));
                unflushed.then(peer, then);
            }
            Ok(Outcome::NoRoom(len)) => {
                call.wait_for_room(len.min(self.memory.results_max()), PATIENCE);
            }
            Err(refusal) => call.reply(Err(refusal)),
        }
    }

    fn carry_out(
        &mut self,
        call: &Request,
        waited: Option<Result<Buffer, heddle_rpc::NoMemory>>,
    ) -> Result<Outcome, Refusal> {
        let Worker { service, memory, arguments: copied, results } = self;
        results.clear();
        let written = written(call);
        let arguments = match &written {
            _ if call.arguments.items().is_empty() => Arguments::of(call.arguments.bytes()),
            Some(data) => Arguments { bytes: call.arguments.bytes(), data: Some(data) },
            None => {
                unreduced(&call.arguments, copied)?;
                Arguments::of(copied)
            }
        };
        let has_waited = waited.is_some();
        let buffer = waited.and_then(Result::ok);
        let mut sink = Registered { memory, call, buffer, has_waited };
        let dispatch = |cred: Auth<'_>| {
            let admitted = service.admit(&call.procedure, &cred, Some(call.peer), arguments.bytes);
            let admitted = admitted.map_err(Refusal::Auth)?;
            let done =
                service.begin(&admitted, call.procedure, &cred, arguments, results, &mut sink);
            done.map_err(refusal)
        };
        // `encoded` fails for a machine name that is too long, but such a credential could not have
        // been read.
        let carried = call.credential.encoded(dispatch);
        let carried = carried.map_err(|_| Refusal::Auth(AuthStat::BAD_CRED))??;
        let handled = match carried {
            Carried::Done(handled) => handled,
            Carried::Unflushed(unflushed) => return Ok(Outcome::Unflushed(unflushed)),
            Carried::NoRoom(len) => return Ok(Outcome::NoRoom(len)),
        };
        let (Some(buffer), true) = (sink.buffer, handled.apart) else {
            return Ok(Outcome::Results(Body::of(results.clone())?));
        };
        let length = handled.item.map_or(0, |item| item.length) as usize;
        let data = buffer.part(0, length).map_err(|_| Refusal::SystemErr)?;
        // `item` writes the length that stands after the other results, so the length is cut off
        // here.
        let (others, _) = results.split_last_chunk::<4>().ok_or(Refusal::SystemErr)?;
        let mut body = Body::new();
        body.raw(others)?.item(data)?;
        Ok(Outcome::Results(body))
    }
}

/// Returns the data of a WRITE where the RNIC has placed it: only this argument may lie apart, and
/// it is the last.
fn written(call: &Request) -> Option<Written<'_>> {
    match call.arguments.items() {
        [item]
            if call.procedure == procedure::WRITE
                && item.position as usize == call.arguments.bytes().len() =>
        {
            Some(Written(&item.data))
        }
        _ => None,
    }
}

struct Written<'a>(&'a Buffer);

impl Source for Written<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn write_to(
        &self,
        from: usize,
        len: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> io::Result<usize> {
        self.0.read_to_file(from, len, file, at)
    }
}

/// Registered memory for the data of a READ.
struct Registered<'a> {
    memory: &'a Memory,
    call: &'a Request,
    /// The memory for which the call has waited, or which `take` has taken.
    buffer: Option<Buffer>,
    has_waited: bool,
}

impl Sink for Registered<'_> {
    /// After a wait, the READ returns as much of a grown file as fits into the memory that it
    /// waited for.
    fn most(&self) -> usize {
        self.buffer.as_ref().map_or_else(|| self.memory.results_max(), Buffer::len)
    }

    fn take(&mut self, len: usize) -> Room {
        if len <= SHORT {
            return Room::Inline;
        }
        if self.buffer.is_some() {
            return Room::Direct;
        }
        match self.call.take_room(self.memory, len) {
            Ok(buffer) => {
                self.buffer = Some(buffer);
                Room::Direct
            }
            Err(_) if self.has_waited => Room::None,
            Err(_) => Room::Later,
        }
    }

    fn read_from(
        &mut self,
        to: usize,
        len: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> io::Result<usize> {
        let buffer = self.buffer.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        buffer.write_from_file(to, len, file, at)
    }
}

/// Writes arguments over `out` as they were before items were taken out of them.
///
/// # Errors
/// When the position of an item does not lie within the arguments: such a body is no valid argument
/// list.
fn unreduced(body: &Body, out: &mut Vec<u8>) -> Result<(), Refusal> {
    out.clear();
    let mut bytes = body.bytes();
    for item in body.items() {
        let before = (item.position as usize).checked_sub(out.len());
        let split = before.and_then(|n| bytes.split_at_checked(n));
        let (front, rest) = split.ok_or(Refusal::GarbageArgs)?;
        out.extend_from_slice(front);
        let (start, length) = (out.len(), item.data.len());
        out.resize(start + padded(length), 0);
        let room = out.get_mut(start..start + length).unwrap_or(&mut []);
        item.data.read(0, room).map_err(|_| Refusal::SystemErr)?;
        bytes = rest;
    }
    out.extend_from_slice(bytes);
    Ok(())
}

/// Converts a status. The server itself refuses unknown programs and versions, so they do not
/// arrive here.
fn refusal(status: RpcStatus) -> Refusal {
    match status {
        RpcStatus::ProcUnavail => Refusal::ProcUnavail,
        RpcStatus::GarbageArgs => Refusal::GarbageArgs,
        _ => Refusal::SystemErr,
    }
}
