//! What can go wrong in a run.

use core::net::SocketAddr;

use heddle_verbs::{ConnectFailure, Cqe, CqeStatus, DeviceError, DisconnectReason, Mr, PostError};

use super::PATIENCE;
use crate::workload::COUNTER_LEN;
use crate::workload::hello::HelloError;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The control plane refused.
    #[error(transparent)]
    Ctl(#[from] DeviceError),
    /// No connection.
    #[error("cannot connect to {remote}: {failure}")]
    Connect {
        /// The server.
        remote: SocketAddr,
        /// Why.
        failure: ConnectFailure,
    },
    /// The server does not want to.
    #[error("{remote} refuses: {why}")]
    Refused {
        /// The server.
        remote: SocketAddr,
        /// Why, as far as it says.
        why: String,
    },
    /// The server's private data.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The connection ended in the middle.
    #[error("the connection ended early: {0}")]
    Disconnected(DisconnectReason),
    /// An operation failed.
    #[error("operation {wr_id:#x} failed: {status:?}")]
    Completion {
        /// Of the work request.
        wr_id: u64,
        /// How.
        status: CqeStatus,
    },
    /// A work request was not taken.
    #[error("cannot post: {0}")]
    Post(#[from] PostError),
    /// An octet is not what was sent.
    #[error("message {message} of {size} octets is wrong at octet {at}")]
    Wrong {
        /// Number of the operation, or slot at the end of the run.
        message: u64,
        /// Its size.
        size: u32,
        /// First wrong octet.
        at: usize,
    },
    /// The server's counter does not hold the number of the operations before.
    #[error("the counter holds {found} after {expected} operations")]
    Counter {
        /// Operations before.
        expected: u64,
        /// What it holds.
        found: u64,
    },
    /// Immediate Data that is not what was sent.
    #[error("Immediate Data {found:?} where {expected} was to come back")]
    Immediate {
        /// What was sent.
        expected: u64,
        /// What came back; `None` for a message without.
        found: Option<u64>,
    },
    /// The server found wrong messages.
    #[error("the server counts {0} wrong messages")]
    WrongThere(u64),
    /// A message that means nothing.
    #[error("the server sent a message of {0} octets that means nothing")]
    Stray(u32),
    /// Nothing happens any more.
    #[error("nothing has happened for {} s ({phase})", PATIENCE.as_secs())]
    Stalled {
        /// In what part of the run.
        phase: &'static str,
    },
    /// The peer wants other sizes than this end allows.
    #[error("the data at {remote} does not fit: {why}")]
    Misfit {
        /// The peer.
        remote: SocketAddr,
        /// Why.
        why: &'static str,
    },
}

/// Compares what an Atomic Operation found, or a Read of its counter, with the operations before.
pub(super) fn counted(mr: &Mr, at: usize, expected: u64) -> Result<(), WorkloadError> {
    let mut bytes = [0; COUNTER_LEN];
    mr.read(at, &mut bytes);
    let found = u64::from_ne_bytes(bytes);
    if found == expected { Ok(()) } else { Err(WorkloadError::Counter { expected, found }) }
}

pub(super) fn successful(cqe: &Cqe) -> Result<(), WorkloadError> {
    if cqe.status.is_success() {
        Ok(())
    } else {
        Err(WorkloadError::Completion { wr_id: cqe.wr_id, status: cqe.status })
    }
}
