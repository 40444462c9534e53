//! What can go wrong between an application and its device.

use core::net::SocketAddr;

use heddle_iwarp::{Pd, PostError, Qpn};
use heddle_socket::Fault;

use crate::device::ReserveError;
use crate::memory::{RegionError, RegisterError};
use crate::ring::AreaError;
use crate::state::QpState;

/// A batch of work requests of which only the first few could be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {posted} of a batch: {error}")]
pub struct BatchError {
    /// How many are posted: the index of the one that is not.
    pub posted: usize,
    /// Why it is not.
    pub error: PostError,
}

impl BatchError {
    /// What is wrong with the request at index `posted`.
    pub(crate) fn at(posted: usize) -> impl FnOnce(PostError) -> BatchError {
        move |error| BatchError { posted, error }
    }
}

/// A request of an application that its device did not carry out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// A number is out of the range of [`DeviceLimits`](crate::DeviceLimits).
    #[error("{what} of {value} is not between {least} and {most}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The smallest that can be had.
        least: u64,
        /// The largest that can be had.
        most: u64,
    },
    /// The protection domain is not one of this application.
    #[error("protection domain {0} is not this application's")]
    ForeignPd(Pd),
    /// The completion queue is not one of this application.
    #[error("the completion queue is not this application's")]
    ForeignCq,
    /// The completion queue holds more completions than the new size.
    #[error("{held} completions wait, and {depth} would have room")]
    CqTooSmall {
        /// Completions that wait, of the worker that has most.
        held: u64,
        /// The size that was asked for.
        depth: u32,
    },
    /// The completion queue is being resized: its workers have not all heard of it, or what they
    /// wrote before has not been polled.
    #[error("the completion queue is being resized")]
    CqResizing,
    /// The shared receive queue is not one of this application, or of another protection domain.
    #[error("the shared receive queue is not of this application and protection domain")]
    ForeignSrq,
    /// Queue pairs have the shared receive queue.
    #[error("{users} queue pairs have the shared receive queue")]
    SrqInUse {
        /// How many.
        users: u32,
    },
    /// The queue pair is not one of this application.
    #[error("queue pair {0} is not this application's")]
    ForeignQp(Qpn),
    /// The application has as many as it can have.
    #[error("no more than {most} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        most: u32,
    },
    /// Windows or fast registrations of the region are valid.
    #[error("{count} windows or fast registrations of the region are valid")]
    MrBound {
        /// How many.
        count: u32,
    },
    /// The region is of the device's own memory, which has one registration at a time.
    #[error("the region is of the device's own memory")]
    MrOfDevice,
    /// The queue pair is in a connection, or about to be.
    #[error("the queue pair is in use")]
    QpInUse,
    /// The queue pair is in a state that does not allow it.
    #[error("a queue pair in state {0:?} does not allow it")]
    QpState(QpState),
    /// The queue pair has had its connection: reset it, or make a new one.
    #[error("the queue pair has had its connection")]
    QpDead,
    /// No room for the queue.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// No memory for a region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The memory was not registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The RNIC is another process's, which cannot wake the sleeper of this waker: only one of
    /// [`Sleeper::with_fd`](crate::Sleeper::with_fd) can be.
    #[error("the RNIC is in another process, which can wake only a sleeper of Sleeper::with_fd")]
    WakerWithoutFd,
    /// The address cannot be reserved.
    #[error("cannot have {0}: {1}")]
    Address(SocketAddr, ReserveError),
    /// The process that has the RNIC refuses: for a quota, mostly.
    #[error(transparent)]
    Refused(#[from] Fault),
    /// The process that has the RNIC cannot be reached, or makes no sense.
    #[error("{0}")]
    Socket(String),
    /// The control plane has as many requests as it can keep: try again.
    #[error("the control plane is overloaded")]
    Overloaded,
    /// The control plane has ended.
    #[error("the control plane is gone")]
    Gone,
}
