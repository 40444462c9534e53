//! Errors between an application and its device.

use core::net::SocketAddr;

use heddle_rings::AreaError;
use heddle_shm::RegionError;
use heddle_socket::Fault;
use heddle_types::{Pd, PostError, Qpn};

use crate::device::ReserveError;
use crate::mr::RegisterError;
use crate::state::QpState;

/// A batch of work requests of which only the first few were posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {posted} of a batch: {error}")]
pub struct BatchError {
    /// Number of requests posted, which is the index of the first request that failed.
    pub posted: usize,
    /// Why that request failed.
    pub error: PostError,
}

impl BatchError {
    /// Returns a function that wraps the error of the request at index `posted`.
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
        /// Name of the number.
        what: &'static str,
        /// The number that the application asked for.
        value: u64,
        /// The smallest number allowed.
        least: u64,
        /// The largest number allowed.
        most: u64,
    },
    /// The protection domain does not belong to this application.
    #[error("protection domain {0} is not this application's")]
    ForeignPd(Pd),
    /// The completion queue does not belong to this application.
    #[error("the completion queue is not this application's")]
    ForeignCq,
    /// The completion queue holds more completions than the new size.
    #[error("{held} completions wait, and {depth} would have room")]
    CqTooSmall {
        /// Completions that wait at the worker that has most of them.
        held: u64,
        /// The size that the application asked for.
        depth: u32,
    },
    /// An earlier resize of the completion queue is not complete: some of its workers have not
    /// moved yet, or the application has not polled the completions that they wrote before.
    #[error("the completion queue is being resized")]
    CqResizing,
    /// The shared receive queue does not belong to this application, or belongs to another
    /// protection domain.
    #[error("the shared receive queue is not of this application and protection domain")]
    ForeignSrq,
    /// Queue pairs use the shared receive queue.
    #[error("{users} queue pairs have the shared receive queue")]
    SrqInUse {
        /// Number of these queue pairs.
        users: u32,
    },
    /// The queue pair does not belong to this application.
    #[error("queue pair {0} is not this application's")]
    ForeignQp(Qpn),
    /// The application has reached its limit.
    #[error("no more than {most} {what}")]
    TooMany {
        /// Name of the objects.
        what: &'static str,
        /// The limit.
        most: u32,
    },
    /// Windows or fast registrations of the region are valid.
    #[error("{count} windows or fast registrations of the region are valid")]
    MrBound {
        /// Number of these windows and fast registrations.
        count: u32,
    },
    /// The region is part of the device's own memory, which has one registration at a time.
    #[error("the region is of the device's own memory")]
    MrOfDevice,
    /// The queue pair is in a connection, or about to be.
    #[error("the queue pair is in use")]
    QpInUse,
    /// The state of the queue pair does not allow the operation.
    #[error("a queue pair in state {0} does not allow it")]
    QpState(QpState),
    /// The queue pair has already had its connection: reset it, or make a new queue pair.
    #[error("the queue pair has had its connection")]
    QpDead,
    /// The device's area has no room for the queue.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// There is no memory for a region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The registration of memory failed.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The RNIC belongs to another process, which can wake only a sleeper made by
    /// [`Sleeper::with_fd`](heddle_shm::Sleeper::with_fd); this waker's sleeper is not.
    #[error("the RNIC is in another process, which can wake only a sleeper of Sleeper::with_fd")]
    WakerWithoutFd,
    /// The reservation of the address failed.
    #[error("cannot have {0}: {1}")]
    Address(SocketAddr, ReserveError),
    /// The process that has the RNIC refuses the request, mostly because of a quota.
    #[error(transparent)]
    Refused(#[from] Fault),
    /// The process that has the RNIC cannot be reached, or answers nonsense.
    #[error("{0}")]
    Socket(String),
    /// The control plane holds as many requests as it can: try again.
    #[error("the control plane is overloaded")]
    Overloaded,
    /// The control plane has ended.
    #[error("the RNIC has ended")]
    Gone,
    /// The RNIC of another process has ended, or has ended this application.
    #[error("the RNIC at {socket} {what}")]
    Ended {
        /// The control socket of the RNIC.
        socket: String,
        /// The event, as far as this process knows it: `has ended`, for example.
        what: String,
    },
}
