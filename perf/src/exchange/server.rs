//! The side that grants memory and sends back each message.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use heddle_verbs::{
    AcceptParams, Access, ConnectionError, Cqe, CqeOp, Device, Ends, Incoming, Mr, Pd, SendWr,
};

use super::account::{Accounted, post_early};
use super::ledger::Ledger;
use super::{DEPTH, ExchangeError, GRANT, Open, SLOT, Tally};

/// The number of posted receives: as many as a client may have messages in flight, and as many
/// again whose answers are on their way.
const BUFFERS: usize = 2 * DEPTH;

/// The interval between looks at the stop flag.
const LOOK: Duration = Duration::from_millis(200);

type Thread = JoinHandle<Result<(), ExchangeError>>;

/// Serves at `addr` until `stop` is set or an error occurs; the end of a connection is no error.
///
/// # Errors
/// [`ExchangeError`] of the first connection that had one.
pub fn serve(
    device: &Device,
    addr: SocketAddr,
    stop: &AtomicBool,
    tally: &Arc<Tally>,
) -> Result<(), ExchangeError> {
    // All connections share this protection domain, which lives as long as the device.
    let pd = device.alloc_pd()?;
    let listener = device.bind(addr)?;
    let over = Arc::new(AtomicBool::new(false));
    let mut threads: Vec<Thread> = Vec::new();
    let mut result = Ok(());
    while result.is_ok() && !stop.load(Ordering::Relaxed) {
        match listener.request(LOOK) {
            Ok(incoming) => {
                let (device, over, tally) = (device.clone(), over.clone(), tally.clone());
                let run = move || one(&device, pd, incoming, &over, &tally);
                threads.push(thread::Builder::new().name("answer".into()).spawn(run)?);
            }
            Err(ConnectionError::TimedOut) => {}
            Err(e) => result = Err(e.into()),
        }
        let ended = threads.extract_if(.., |t| t.is_finished());
        result = ended.map(join).fold(result, Result::and);
    }
    over.store(true, Ordering::Relaxed);
    threads.into_iter().map(join).fold(result, Result::and)
}

fn join(t: Thread) -> Result<(), ExchangeError> {
    t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Serves a connection from its request to its end.
fn one(
    device: &Device,
    pd: Pd,
    incoming: Incoming,
    over: &AtomicBool,
    tally: &Tally,
) -> Result<(), ExchangeError> {
    let mut served = match Served::accept(device, pd, incoming) {
        Ok(served) => served,
        // The peer left before the connection was established.
        Err(e) if e.is_of_the_peer() => return Ok(()),
        Err(e) => return Err(e),
    };
    let _open = Open::new(tally);
    match served.answer(over, tally) {
        Ok(()) => served.account.finish().map(drop),
        Err(e) => match served.account.explain(e) {
            ExchangeError::Ended(_) => Ok(()),
            e => Err(e),
        },
    }
}

struct Served {
    account: Accounted,
    buffers: Mr,
    /// Keeps the region registered for the peer.
    _grant: Mr,
    /// The buffer of each outstanding request, by the request's number.
    sent_from: [usize; BUFFERS],
    posted_at: [usize; BUFFERS],
}

/// Returns the index under which a request's buffer is noted: a queue never has more than
/// [`BUFFERS`] requests outstanding.
fn place(id: u64) -> usize {
    usize::try_from(id % BUFFERS as u64).unwrap_or(0)
}

impl Served {
    fn accept(device: &Device, pd: Pd, incoming: Incoming) -> Result<Served, ExchangeError> {
        let buffers = device.alloc_mr(pd, BUFFERS * SLOT, Access::LOCAL_WRITE)?;
        let rights = Access::REMOTE_READ.with(Access::REMOTE_WRITE).with(Access::REMOTE_ATOMIC);
        let grant = device.alloc_mr(pd, GRANT, rights)?;
        let n = u32::try_from(BUFFERS).unwrap_or(u32::MAX);
        let ends = Ends::with(device, pd, 2 * n, |init| init.depths(n, n))?;
        let mut recvs = Ledger::default();
        let mut posted_at = [0; BUFFERS];
        for at in 0..BUFFERS {
            let id = post_early(&ends, &mut recvs, &[buffers.sge(at * SLOT, SLOT)])?;
            posted_at[place(id)] = at;
        }
        let mut private_data = grant.stag().0.to_be_bytes().to_vec();
        private_data.extend(grant.to().to_be_bytes());
        let params = AcceptParams { private_data, ..AcceptParams::new(ends.qp.clone()) };
        let account = Accounted::new(incoming.accept_with(params, ends)?, recvs);
        let sent_from = [0; BUFFERS];
        Ok(Served { account, buffers, _grant: grant, sent_from, posted_at })
    }

    fn answer(&mut self, over: &AtomicBool, tally: &Tally) -> Result<(), ExchangeError> {
        while !over.load(Ordering::Relaxed) {
            let Some(cqe) = self.account.next(LOOK)? else { continue };
            if cqe.op == CqeOp::Recv {
                self.send_back(&cqe)?;
                Tally::add(&tally.messages, 1);
                Tally::add(&tally.bytes, cqe.len.into());
                // A receive and its answer.
                Tally::add(&tally.requests, 2);
            } else {
                let at = self.sent_from[place(cqe.wr_id)];
                let id = self.account.recv(&[self.buffers.sge(at * SLOT, SLOT)])?;
                self.posted_at[place(id)] = at;
            }
        }
        Ok(())
    }

    fn send_back(&mut self, cqe: &Cqe) -> Result<(), ExchangeError> {
        let at = self.posted_at[place(cqe.wr_id)];
        let id = match cqe.immediate.map(u64::to_be_bytes) {
            Some(bytes) => self.account.send(|id| SendWr::send_inline(id, &bytes))?,
            None => {
                let sges = [self.buffers.sge(at * SLOT, cqe.len as usize)];
                self.account.send(|id| SendWr::send(id, &sges))?
            }
        };
        self.sent_from[place(id)] = at;
        Ok(())
    }
}
