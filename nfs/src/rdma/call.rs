//! A call: from arguments with items apart to octets, and from results to items apart.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use heddle_rpc::{AuthStat, Body, Buffer, Memory, Refusal, Request};
use heddle_rpcrdma::rpc::{Auth, Status as RpcStatus};
use heddle_rpcrdma::xdr::padded;

use crate::wire::procedure;
use crate::{Arguments, Room, Service, Sink, Source};

/// Data of at most so many octets goes with the rest of the results: the copy costs less than a Write.
const SHORT: usize = 4096;

/// How long a READ waits for registered memory: others' replies give theirs back when they are with their
/// clients.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long at a time.
const NAP: Duration = Duration::from_millis(1);

/// What a thread has. Its buffers keep their room from call to call.
pub(super) struct Worker {
    service: Arc<Service>,
    memory: Memory,
    arguments: Vec<u8>,
    results: Vec<u8>,
}

impl Worker {
    pub(super) fn new(service: Arc<Service>, memory: Memory) -> Worker {
        Worker { service, memory, arguments: Vec::new(), results: Vec::new() }
    }

    /// Carries a call out and answers it.
    pub(super) fn answer(&mut self, call: Request) {
        let outcome = self.carry_out(&call);
        call.reply(outcome);
    }

    fn carry_out(&mut self, call: &Request) -> Result<Body, Refusal> {
        let Worker { service, memory, arguments: copied, results } = self;
        results.clear();
        let written = written(call);
        let arguments = match &written {
            _ if call.arguments.items().is_empty() => Arguments::of(call.arguments.octets()),
            Some(data) => Arguments { octets: call.arguments.octets(), data: Some(data) },
            None => {
                unreduced(&call.arguments, copied)?;
                Arguments::of(copied)
            }
        };
        let mut sink = Registered { memory, buffer: None };
        let dispatch = |cred: Auth<'_>| {
            service.admit(&call.procedure, &cred).map_err(Refusal::Auth)?;
            let done = service.dispatch(call.procedure, &cred, arguments, results, &mut sink);
            done.map_err(refusal)
        };
        // One whose machine has a name that is too long could not have been read.
        let handled = call.credential.encoded(dispatch);
        let handled = handled.map_err(|_| Refusal::Auth(AuthStat::BAD_CRED))??;
        let (Some(buffer), true) = (sink.buffer, handled.apart) else {
            return Ok(Body::of(results.clone())?);
        };
        let length = handled.item.map_or(0, |item| item.length) as usize;
        let data = buffer.part(0, length).map_err(|_| Refusal::SystemErr)?;
        // The length, behind the other results, is the body's to write.
        let (others, _) = results.split_last_chunk::<4>().ok_or(Refusal::SystemErr)?;
        let mut body = Body::new();
        body.raw(others)?.item(data)?;
        Ok(body)
    }
}

/// Data of a WRITE where the RNIC has put it: the only argument that may lie apart, and the last.
fn written(call: &Request) -> Option<Written<'_>> {
    match call.arguments.items() {
        [item]
            if call.procedure == procedure::WRITE
                && item.position as usize == call.arguments.octets().len() =>
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

/// Registered memory for data that is read.
struct Registered<'a> {
    memory: &'a Memory,
    buffer: Option<Buffer>,
}

impl Sink for Registered<'_> {
    fn take(&mut self, len: usize) -> Room {
        if len <= SHORT {
            return Room::Within;
        }
        let end = Instant::now() + PATIENCE;
        loop {
            match self.memory.take(len) {
                Ok(buffer) => {
                    self.buffer = Some(buffer);
                    return Room::Apart;
                }
                Err(_) if len > self.memory.len() || Instant::now() >= end => return Room::None,
                Err(_) => thread::sleep(NAP),
            }
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
/// When an item is not behind octets: they are no arguments.
fn unreduced(body: &Body, out: &mut Vec<u8>) -> Result<(), Refusal> {
    out.clear();
    let mut octets = body.octets();
    for item in body.items() {
        let before = (item.position as usize).checked_sub(out.len());
        let split = before.and_then(|n| octets.split_at_checked(n));
        let (front, rest) = split.ok_or(Refusal::GarbageArgs)?;
        out.extend_from_slice(front);
        let (start, length) = (out.len(), item.data.len());
        out.resize(start + padded(length), 0);
        let room = out.get_mut(start..start + length).unwrap_or(&mut []);
        item.data.read(0, room).map_err(|_| Refusal::SystemErr)?;
        octets = rest;
    }
    out.extend_from_slice(octets);
    Ok(())
}

/// Programs and versions that are not there do not come here.
fn refusal(status: RpcStatus) -> Refusal {
    match status {
        RpcStatus::ProcUnavail => Refusal::ProcUnavail,
        RpcStatus::GarbageArgs => Refusal::GarbageArgs,
        _ => Refusal::SystemErr,
    }
}
