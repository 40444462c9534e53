//! A client's transport over RDMA: calls of a [`heddle_rpc::Client`].
//!
//! The server places the data of a READ into registered memory of the client, and reads the data of
//! a WRITE from there. The client itself restores a lost connection and resends the calls that have
//! no reply. These calls keep their XIDs, so the server can tell that it has carried them out.
//!
//! ```text
//!   submit ──▶ in flight ── reply ──▶ returned ──▶ wait
//!     │            │  registered memory │ a copy of the results
//!     └── waits for memory, which calls that come back give up
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use heddle_rpc::binding::{Binding, NFS3};
use heddle_rpc::client::{CallError, Client, ClientConfig, PendingCall};
use heddle_rpc::{Body, Buffer, Credential, NoMemory, SysCredential};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Outgoing, Pipeline, Returned, Token, Transport, TransportError};
use crate::wire::{IO_MAX, procedure};

/// Bytes of the longest results of a procedure that the binding does not know: the results of
/// MOUNT.
const UNKNOWN_MAX: u32 = 16 << 10;

/// Bytes of registered memory for the headers of a call; the call's data comes on top.
const CALL: usize = 4096;

/// Bytes of registered memory for everything that is not data, such as listings.
const REST: usize = 1 << 20;

/// The upper limit of one sleep, so that a caller that wants to end something is heard in time.
const NAP: Duration = Duration::from_millis(200);

/// Returns the configuration of an RPC client for NFS, with as many READs or WRITEs in flight as
/// `pipeline` has. The calls carry the user and group of this process on `machine`.
pub fn config(pipeline: Pipeline, machine: &str) -> ClientConfig {
    let data = pipeline.size.min(IO_MAX) as usize + CALL;
    let credential = SysCredential {
        stamp: std::process::id(),
        machine: machine.as_bytes().to_vec(),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..SysCredential::default()
    };
    ClientConfig {
        binding: Box::new(NFS3),
        credential: Credential::Sys(credential),
        memory: pipeline.depth.saturating_mul(data).saturating_add(REST) / CALL * CALL,
        ..ClientConfig::default()
    }
}

/// Sleeps until something has arrived for `client`, or for a little while. For an RNIC that other
/// threads run.
pub fn sleep(client: &Client) {
    if !client.arm() {
        return;
    }
    let Some(fd) = client.fd() else { return };
    let left = client.timeout().map_or(NAP, |left| left.min(NAP));
    // A duration that does not fit a `Timespec` cannot occur: `left` is at most `NAP`.
    let timeout = Timespec::try_from(left).ok();
    // An interrupted sleep counts as a sleep, so the caller ignores the error.
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref());
}

/// A transport. While nothing has arrived the transport calls `rest`, which lets the RNIC progress,
/// or [`sleep`]s.
#[derive(Debug)]
pub struct RdmaTransport<F> {
    rpc: Client,
    rest: F,
    under_way: VecDeque<(Token, PendingCall)>,
    returned: VecDeque<Returned>,
    next: u64,
}

impl<F: FnMut(&Client)> RdmaTransport<F> {
    /// Makes a transport from a client that was made with a [`config`].
    pub fn new(rpc: Client, rest: F) -> RdmaTransport<F> {
        let (under_way, returned) = Default::default();
        RdmaTransport { rpc, rest, under_way, returned, next: 0 }
    }

    /// Returns the RPC client.
    pub const fn rpc(&self) -> &Client {
        &self.rpc
    }

    /// Lets the RPC client progress, and keeps the results of calls that came back.
    fn turn(&mut self) {
        self.rpc.step();
        let mut any = false;
        let mut still = VecDeque::with_capacity(self.under_way.len());
        for (token, mut call) in self.under_way.drain(..) {
            match call.try_take() {
                Some(outcome) => {
                    any = true;
                    let results = match outcome {
                        Ok(body) => Ok(body.to_vec()),
                        Err(error) => Err(explained(error, &self.rpc)),
                    };
                    self.returned.push_back(Returned { token, results });
                }
                None => still.push_back((token, call)),
            }
        }
        self.under_way = still;
        if !any {
            (self.rest)(&self.rpc);
        }
    }

    /// Returns registered memory, as soon as some is free.
    fn buffer(&mut self, len: usize) -> Result<Buffer, TransportError> {
        loop {
            match self.rpc.buffer(len) {
                Ok(buffer) => return Ok(buffer),
                Err(NoMemory { .. }) if !self.under_way.is_empty() => self.turn(),
                Err(error) => return Err(TransportError::Call(error.into())),
            }
        }
    }

    /// Returns the arguments, with their item in registered memory.
    fn arguments(&mut self, call: &Outgoing<'_>) -> Result<Body, TransportError> {
        let mut body = Body::new();
        // The item's length stands in the four bytes in front of the item, and `Body::item` writes
        // that length itself.
        let parts = call.item.and_then(|item| {
            let (at, len) = (item.offset as usize, item.length as usize);
            let front = call.arguments.get(..at.checked_sub(4)?)?;
            let data = call.arguments.get(at..at.checked_add(len)?)?;
            let behind = call.arguments.get(at.checked_add(len.next_multiple_of(4))?..)?;
            Some((front, data, behind))
        });
        let Some((front, data, behind)) = parts else {
            body.raw(call.arguments).map_err(CallError::from)?;
            return Ok(body);
        };
        let buffer = self.buffer(data.len())?;
        // `buffer` was allocated with the length of `data`, so the write fits.
        let inside = buffer.write(0, data);
        debug_assert!(inside.is_ok());
        let whole = body.raw(front).and_then(|b| b.item(buffer)).and_then(|b| b.raw(behind));
        whole.map_err(CallError::from)?;
        Ok(body)
    }
}

impl<F: FnMut(&Client)> Transport for RdmaTransport<F> {
    fn submit(&mut self, call: &Outgoing<'_>) -> Result<Token, TransportError> {
        let size = NFS3.reply_size(call.procedure, call.arguments);
        // Only READ data is worth a buffer of its own. The path of a READLINK comes with the rest
        // of the reply.
        let room = size.filter(|size| call.procedure == procedure::READ && size.item > 0);
        let room = room.map(|size| self.buffer(size.item as usize)).transpose()?;
        let arguments = self.arguments(call)?;
        let rpc = self.rpc.clone();
        let mut builder = rpc.call(call.procedure).arguments(arguments);
        if size.is_none() {
            builder = builder.results_max(UNKNOWN_MAX);
        }
        if let Some(buffer) = room {
            builder = builder.room(buffer);
        }
        let pending = builder.send()?;
        let token = Token(self.next);
        self.next += 1;
        self.under_way.push_back((token, pending));
        Ok(token)
    }

    fn wait(&mut self) -> Result<Returned, TransportError> {
        loop {
            if let Some(returned) = self.returned.pop_front() {
                return Ok(returned);
            }
            if self.under_way.is_empty() {
                return Err(TransportError::Other("no call is under way".into()));
            }
            self.turn();
        }
    }

    fn pause(&mut self, time: Duration) -> Result<(), TransportError> {
        until(Instant::now() + time, || self.turn());
        Ok(())
    }
}

/// Takes turns until `end`: the RNIC progresses meanwhile, and the transport keeps replies to other
/// calls.
fn until(end: Instant, mut turn: impl FnMut()) {
    while Instant::now() < end {
        turn();
    }
}

/// Returns why a call has no results; without a connection, why there is none.
fn explained(error: CallError, rpc: &Client) -> TransportError {
    match (&error, rpc.last_failure()) {
        (CallError::ProgUnavail, _) => TransportError::ProgUnavail,
        (CallError::TimedOut { .. }, Some(failure)) if rpc.version().is_none() => {
            TransportError::Other(format!("{error}: {failure}"))
        }
        _ => TransportError::Call(error),
    }
}
