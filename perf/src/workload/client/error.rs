//! The errors of a run.

use core::net::SocketAddr;
use std::time::Duration;

use heddle_base::Instant;
use heddle_services::bench::COUNTER_LEN;
use heddle_services::bench::hello::HelloError;
use heddle_verbs::{ConnectFailure, Cqe, CqeStatus, DeviceError, DisconnectReason, Mr, PostError};

use super::PATIENCE;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The control plane refused.
    #[error(transparent)]
    Ctl(#[from] DeviceError),
    /// The connection could not be established.
    #[error("cannot connect to {remote}: {failure}")]
    Connect {
        /// The server's address.
        remote: SocketAddr,
        /// The reason of the failure.
        failure: ConnectFailure,
    },
    /// The server refuses the run.
    #[error("{remote} refuses: {why}")]
    Refused {
        /// The server's address.
        remote: SocketAddr,
        /// The reason that the server gave.
        why: String,
    },
    /// The server's private data is not valid.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The connection ended before the run was done.
    #[error("the connection ended early: {0}")]
    Disconnected(DisconnectReason),
    /// An operation failed.
    #[error("operation {wr_id:#x} failed: {status}")]
    Completion {
        /// The mark of the work request.
        wr_id: u64,
        /// The status of the completion.
        status: CqeStatus,
    },
    /// The device did not take a work request.
    #[error("cannot post: {0}")]
    Post(#[from] PostError),
    /// A byte differs from the byte that was sent.
    #[error("message {message} of {size} bytes is wrong at byte {at}")]
    Wrong {
        /// The number of the operation, or the slot at the end of the run.
        message: u64,
        /// The size of the message in bytes.
        size: u32,
        /// The index of the first wrong byte.
        at: usize,
    },
    /// The server's counter is not the number of operations before.
    #[error("the counter holds {found} after {expected} operations")]
    Counter {
        /// The number of operations before.
        expected: u64,
        /// The number in the counter.
        found: u64,
    },
    /// Immediate Data differs from the data that was sent.
    #[error(
        "{} where Immediate Data {expected} was to come back",
        .found.map_or_else(|| "nothing".into(), |n| format!("Immediate Data {n}"))
    )]
    Immediate {
        /// The data that was sent.
        expected: u64,
        /// The data that came back; `None` for a message without Immediate Data.
        found: Option<u64>,
    },
    /// The server found wrong messages.
    #[error("the server counts {0} wrong messages")]
    WrongThere(u64),
    /// The server sent a message with no meaning.
    #[error("the server sent a message of {0} bytes that means nothing")]
    Stray(u32),
    /// The run makes no progress any more.
    #[error("nothing has happened for {} s ({phase})", PATIENCE.as_secs())]
    Stalled {
        /// The part of the run in which progress stopped.
        phase: &'static str,
    },
    /// A server of perftest has no such run.
    #[error("{why} ({remote})")]
    Perftest {
        /// The server's address.
        remote: SocketAddr,
        /// The reason.
        why: &'static str,
    },
    /// The peer's memory or window is too small for this run.
    #[error("the data at {remote} does not fit: {why}")]
    Misfit {
        /// The peer's address.
        remote: SocketAddr,
        /// The reason why the data does not fit.
        why: &'static str,
    },
}

/// Compares the value that an Atomic Operation, or a Read of its counter, found with the number of
/// operations before.
pub(crate) fn counted(mr: &Mr, at: usize, expected: u64) -> Result<(), WorkloadError> {
    let mut bytes = [0; COUNTER_LEN];
    mr.read(at, &mut bytes);
    let found = u64::from_ne_bytes(bytes);
    if found == expected { Ok(()) } else { Err(WorkloadError::Counter { expected, found }) }
}

pub(crate) fn successful(cqe: &Cqe) -> Result<(), WorkloadError> {
    if cqe.status.is_success() {
        Ok(())
    } else {
        Err(WorkloadError::Completion { wr_id: cqe.wr_id, status: cqe.status })
    }
}

/// The error of an operation that came to an end with its connection, until the event that has the
/// reason comes: a connection that ends flushes its operations first.
#[derive(Debug, Default)]
pub(crate) struct Flushed(Option<(WorkloadError, Instant)>);

/// How long the reason may take to come.
const REASON_TIME: Duration = Duration::from_secs(1);

impl Flushed {
    /// Holds back the error of an operation that the end of its connection explains.
    ///
    /// # Errors
    /// Every other error.
    pub(crate) fn hold(&mut self, error: WorkloadError, now: Instant) -> Result<(), WorkloadError> {
        use PostError::{Closing, Ended};
        let of_end = match error {
            WorkloadError::Completion { status, .. } => {
                matches!(status, CqeStatus::Flushed | CqeStatus::LocalQpOperation(Closing | Ended))
            }
            WorkloadError::Post(e) => matches!(e, Closing | Ended),
            _ => false,
        };
        if !of_end {
            return Err(error);
        }
        self.0 = Some((error, now));
        Ok(())
    }

    /// Returns true if the run waits for the reason, and has nothing else to do.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.0.is_some()
    }

    /// Lets go of the error if the reason has not come in time.
    ///
    /// # Errors
    /// The error.
    pub(crate) fn give_up(&mut self, now: Instant) -> Result<(), WorkloadError> {
        match self.0.take_if(|(_, since)| now.since(*since) > REASON_TIME) {
            Some((error, _)) => Err(error),
            None => Ok(()),
        }
    }
}
