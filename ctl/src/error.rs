//! What can go wrong between an application and the control plane.

use core::net::SocketAddr;

use heddle_iwarp::MrError;
use heddle_tcp::ListenError;

/// A request the control plane could not take or carry out.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// Too many requests are waiting; try again.
    #[error("the control plane is overloaded")]
    Overloaded,
    /// The control plane has ended.
    #[error("the control plane has ended")]
    Gone,
    /// The worker cannot listen there.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, ListenError),
    /// The arena has no room for the region.
    #[error("no room for {wanted} bytes of registered memory ({free} of {size} are free)")]
    NoMemory {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes in the largest free stretch.
        free: usize,
        /// Bytes in all.
        size: usize,
    },
    /// The STag table refused.
    #[error("cannot register memory: {0}")]
    Mr(#[from] MrError),
    /// A queue of no entries, or of more than can be.
    #[error("a queue depth of {0} is not between 1 and {1}")]
    Depth(u32, u32),
}
