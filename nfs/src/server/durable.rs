//! Changes that reach the disk before the service reports them.
//!
//! A procedure makes its change while it holds the object's turn, and returns its results with the
//! changes that are [`Due`]. The turn and the thread's part end there: another thread can write the
//! results, after the disk has all the changes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use heddle_rpcrdma::rpc::Procedure;

use super::{Done, Handled, Outcome, Share, garbage};
use crate::export::flush::Due;
use crate::wire::{CommitOk, Created, LinkDone, RenameDone, Status, WccData, WriteOk, Xdr};

/// The outcome of a call that was begun.
#[derive(Debug)]
pub enum Carried {
    /// The results are written.
    Done(Handled),
    /// The call has made a change that is not on the disk yet. No results are written.
    Unflushed(Unflushed),
    /// The call has done nothing: there is no room for so many bytes of data now, and the caller
    /// has to begin the call again.
    NoRoom(usize),
}

/// Results of a change, and the changes that have to be on the disk before the results are
/// reported.
pub struct Unflushed {
    share: Arc<Share>,
    due: Due,
    finish: Finish,
    pub(super) procedure: Procedure,
    pub(super) begun: Instant,
}

type Finish = Box<dyn FnOnce(&Share, Result<(), Status>, &mut Vec<u8>) + Send>;

impl std::fmt::Debug for Unflushed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Unflushed({:?}, {:?})", self.procedure, self.due)
    }
}

impl Unflushed {
    /// Waits for the disk, and appends the results to `out`.
    fn wait(self, peer: SocketAddr, out: &mut Vec<u8>) {
        let Unflushed { share, due, finish, procedure, begun } = self;
        let flushed = share.export.flusher().wait(due, peer);
        let start = out.len();
        finish(&share, flushed, out);
        share.finished(procedure, begun, out.get(start..).unwrap_or(&[]));
    }

    /// Calls `then` with the results after the change has reached the disk, or has failed to. The
    /// thread that calls `then` also puts changes of other calls on the disk, so `then` must not
    /// block. Changes of `peer` take turns with those of other peers.
    pub fn then(self, peer: SocketAddr, then: impl FnOnce(Vec<u8>) + Send + 'static) {
        let Unflushed { share, due, finish, procedure, begun } = self;
        let of = Arc::clone(&share);
        share.export.flusher().submit(due, peer, move |flushed| {
            let mut results = Vec::new();
            finish(&of, flushed, &mut results);
            of.finished(procedure, begun, &results);
            then(results);
        });
    }
}

/// Results of a procedure that changes something.
pub(super) trait Durable: Xdr<'static> + Send + 'static {
    /// The results in the reply when the change did not reach the disk.
    type Failed: Xdr<'static>;

    /// Returns the results for the reply after the change has reached the disk.
    fn flushed(self, _: &Share) -> Self {
        self
    }

    fn failed(self) -> Self::Failed;
}

impl Durable for WccData {
    type Failed = WccData;

    fn failed(self) -> WccData {
        self
    }
}

impl Durable for Created {
    type Failed = WccData;

    fn failed(self) -> WccData {
        self.dir
    }
}

impl Durable for RenameDone {
    type Failed = RenameDone;

    fn failed(self) -> RenameDone {
        self
    }
}

impl Durable for LinkDone {
    type Failed = LinkDone;

    fn failed(self) -> LinkDone {
        self
    }
}

impl Durable for WriteOk {
    type Failed = WccData;

    fn failed(self) -> WccData {
        self.wcc
    }
}

impl Durable for CommitOk {
    type Failed = WccData;

    /// The new verifier includes a loss that another caller's round counted before this round
    /// began.
    fn flushed(self, share: &Share) -> CommitOk {
        CommitOk { verifier: share.verifier(), ..self }
    }

    fn failed(self) -> WccData {
        self.wcc
    }
}

/// Parses the arguments, and makes a change. Results with no change due are written at once.
pub(super) fn change<'a, A: Xdr<'a>, T: Durable>(
    share: &Arc<Share>,
    procedure: Procedure,
    arguments: &'a [u8],
    out: &mut Vec<u8>,
    make: impl FnOnce(A, &mut Due) -> Outcome<T, T::Failed>,
) -> Done {
    let call = A::whole(arguments).map_err(garbage)?;
    let mut due = Due::default();
    let outcome = make(call, &mut due);
    Ok(durable(share, procedure, outcome, due, out))
}

/// Writes the results of a change at once, or returns them to be written after the changes in `due`
/// are on the disk.
pub(super) fn durable<T: Durable>(
    share: &Arc<Share>,
    procedure: Procedure,
    outcome: Outcome<T, T::Failed>,
    due: Due,
    out: &mut Vec<u8>,
) -> Carried {
    match outcome {
        Ok(done) if !due.is_empty() => {
            let finish = move |share: &Share, flushed, out: &mut Vec<u8>| {
                let outcome: Outcome<T, T::Failed> = match flushed {
                    Ok(()) => Ok(done.flushed(share)),
                    Err(status) => Err((status, done.failed())),
                };
                outcome.put(out);
            };
            Carried::Unflushed(Unflushed {
                share: Arc::clone(share),
                due,
                finish: Box::new(finish),
                procedure,
                begun: Instant::now(),
            })
        }
        outcome => {
            outcome.put(out);
            Carried::Done(Handled::default())
        }
    }
}

impl Share {
    /// Waits for the disk; `peer` decides whose turn it is there. Where there is no room for data,
    /// the results ask the client to come again.
    pub(super) fn settle(&self, carried: Carried, peer: SocketAddr, out: &mut Vec<u8>) -> Handled {
        match carried {
            Carried::Done(handled) => return handled,
            Carried::Unflushed(unflushed) => unflushed.wait(peer, out),
            Carried::NoRoom(_) => self.jukebox(out),
        }
        Handled::default()
    }
}
