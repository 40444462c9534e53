//! The servers of librdmacm's example programs: `rdma_server`, `ucmatose`, `cmtime`.
//!
//! * `rdma_server`, for the client `rdma_client`: a Send of 16 bytes passes each way, the client's
//!   first;
//! * `ucmatose`, for the client `ucmatose -s`: a given number of Sends of one size passes each way,
//!   the server's first;
//! * `cmtime`, for the client `cmtime -s`: no message passes; the client makes and ends
//!   connections.

mod cmtime;
mod message;
mod ucmatose;

pub(crate) use cmtime::Cmtime;
pub(crate) use message::RdmaServer;
pub use ucmatose::Messages;
pub(crate) use ucmatose::Ucmatose;

use heddle_verbs::{DeviceError, PostError};

use crate::connections::Full;

/// Why a service refuses a client, or ends its connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("a message of {0} bytes; rdma_client sends {len}", len = message::LEN)]
    Stray(u32),
    #[error("a message of {0} bytes, not the {1} that this service was started with")]
    Size(u32, u32),
    #[error(
        "ucmatose's server sends first, which MPA allows it only if the client asks for the \
         peer-to-peer model (RFC 6581 section 9), and this one does not"
    )]
    MayNotBegin,
    #[error(transparent)]
    Post(#[from] PostError),
    #[error(transparent)]
    Ctl(#[from] DeviceError),
    #[error(transparent)]
    Full(#[from] Full),
}
