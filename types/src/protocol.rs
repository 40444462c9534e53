//! The start-up dialogues that a connection may have.

use crate::mpa::{ConfigError, MpaOptions, StartupError};

/// The dialogue of a listener or a connection, with its options.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Protocol {
    /// MPA Request and Reply (RFC 5044 section 7.1, RFC 6581).
    Mpa(MpaOptions),
    /// REQ, REP and RTU of InfiniBand's communication management, with the RDMA IP CM service (IBTA
    /// Annex A11). Only a connect selects this protocol: a listener answers InfiniBand beside MPA
    /// when [`ListenParams::infiniband`](crate::ListenParams::infiniband) says so.
    ///
    /// No transport follows the start-up: such a connection carries no data, and the RNIC runs no
    /// work request that is posted on its queue pair.
    InfiniBand,
}

impl Default for Protocol {
    fn default() -> Protocol {
        Protocol::Mpa(MpaOptions::default())
    }
}

/// The dialogue cannot express what the application asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ParamsError {
    /// MPA cannot express it.
    #[error("{0}")]
    Mpa(#[from] ConfigError),
    /// Private data longer than InfiniBand's message has room for: 56 bytes to connect, 196 to
    /// accept, 148 to reject.
    #[error("private data too long")]
    PrivateData,
    /// InfiniBand is not spoken at that address, or not in that way.
    #[error("InfiniBand is not spoken there")]
    NoInfiniBand,
}

/// The peer broke the dialogue's rules, or the two ends cannot agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DialogueError {
    /// An error of an MPA start-up.
    #[error("{0}")]
    Mpa(#[from] StartupError),
}
