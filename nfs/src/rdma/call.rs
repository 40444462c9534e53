//! A call: from arguments with items apart to octets, and from results to items apart.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use heddle_rpc::{AuthStat, Body, Buffer, Memory, Refusal, Request};
use heddle_rpcrdma::reduce::Item;
use heddle_rpcrdma::rpc::{Auth, Status as RpcStatus};
use heddle_rpcrdma::xdr::padded;

use crate::wire::{Fattr, Status, Xdr};
use crate::{Handled, Service};

/// Items of at most so many octets go with the rest of the results: they are copied once either way.
const SHORT: u32 = 4096;

/// How long data that was read waits for registered memory: others' replies give theirs back when they
/// are with their clients.
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
        unreduced(&call.arguments, &mut self.arguments)?;
        self.results.clear();
        let Worker { service, arguments, results, .. } = self;
        let dispatch = |cred: Auth<'_>| {
            service.admit(&call.procedure, &cred).map_err(Refusal::Auth)?;
            service.dispatch(call.procedure, &cred, arguments, results).map_err(refusal)
        };
        // One whose machine has a name that is too long could not have been read.
        let handled = call.credential.encoded(dispatch);
        let handled = handled.map_err(|_| Refusal::Auth(AuthStat::BAD_CRED))??;
        self.reduced(handled)
    }

    /// The results, with a long item in registered memory.
    fn reduced(&mut self, Handled { item }: Handled) -> Result<Body, Refusal> {
        let Some(Item { offset, length }) = item.filter(|i| i.length > SHORT) else {
            return Ok(Body::of(self.results.clone())?);
        };
        let (start, length) = (offset as usize, length as usize);
        let parts = || {
            // The length in front of it is the body's to write.
            let front = self.results.get(..start.checked_sub(4)?)?;
            let data = self.results.get(start..start.checked_add(length)?)?;
            Some((front, data, self.results.get(start + padded(length)..)?))
        };
        let (front, data, behind) = parts().ok_or(Refusal::SystemErr)?;
        let mut body = Body::new();
        match self.place(data) {
            Some(buffer) => body.raw(front)?.item(buffer)?.raw(behind)?,
            // The client waits, and asks again.
            None => body.raw(&Err::<(), _>((Status::JUKEBOX, None::<Fattr>)).octets())?,
        };
        Ok(body)
    }

    /// A copy in registered memory, once there is room.
    fn place(&self, data: &[u8]) -> Option<Buffer> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.memory.take_copy(data) {
                Ok(buffer) => return Some(buffer),
                Err(_) if data.len() > self.memory.len() || Instant::now() >= end => return None,
                Err(_) => thread::sleep(NAP),
            }
        }
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
