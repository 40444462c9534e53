//! The servers of librdmacm's example programs: `rdma_server`, `ucmatose`, `cmtime`.
//!
//! | Service | Its client | What passes |
//! |---|---|---|
//! | `rdma_server` | `rdma_client` | a Send of 16 octets each way, the client's first |
//! | `ucmatose` | `ucmatose -s` | so many Sends of one size each way, the server's first |
//! | `cmtime` | `cmtime -s` | nothing: connections are made and ended |

mod cmtime;
mod message;
mod ucmatose;

pub(crate) use cmtime::Cmtime;
pub(crate) use message::RdmaServer;
pub use ucmatose::Messages;
pub(crate) use ucmatose::Ucmatose;

use heddle_verbs::{DeviceError, PostError};

use crate::connections::Full;

/// Why a client of one of these is refused, or its connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("a message of {0} octets; rdma_client sends {len}", len = message::LEN)]
    Stray(u32),
    #[error("a message of {0} octets, not the {1} that this service was started with")]
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
