//! The seam between the manager and the start-up dialogue that both ends of a connection speak.
//!
//! The manager knows nothing of frames: it passes bytes to the dialogue, which answers *more*,
//! *request*, *connected*, *rejected* or *error*. MPA is such a dialogue. InfiniBand's start-up is
//! not: it has no stream of bytes, and it has states of its own (`crate::ib`).

mod mpa;

use core::fmt;

use heddle_iwarp::Role;
use heddle_iwarp::mpa::startup::{ConfigError, StartupError};

use crate::event::{Agreed, PeerDepths};
use crate::params::{AcceptTerms, ConnectTerms};

pub use mpa::MpaOptions;

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

impl Protocol {
    /// Starts the asking side. `inside` is true for a connection of the RNIC with itself.
    pub(crate) fn ask(
        &self,
        params: &ConnectTerms,
        inside: bool,
    ) -> Result<Box<dyn Ask>, ParamsError> {
        match self {
            Protocol::Mpa(options) => mpa::ask(options, params, inside),
            Protocol::InfiniBand => Err(ParamsError::NoInfiniBand),
        }
    }

    /// Starts the answering side. `inside` as for [`ask`](Self::ask).
    pub(crate) fn answer(&self, inside: bool) -> Result<Box<dyn Answer>, ParamsError> {
        match self {
            Protocol::Mpa(options) => mpa::answer(options, inside),
            Protocol::InfiniBand => Err(ParamsError::NoInfiniBand),
        }
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

/// The result of a dialogue that succeeded.
#[derive(Clone, Debug)]
pub(crate) struct Agreement {
    pub(crate) agreed: Agreed,
    pub(crate) role: Role,
    /// The peer's private data, for our application.
    pub(crate) private_data: Vec<u8>,
    /// Bytes to send if we fail before FPDU mode. A responder gets a Terminate. An initiator, which
    /// has no accepting answer yet, gets a rejecting one.
    pub(crate) last_word: Option<Vec<u8>>,
}

/// The side that asks.
pub(crate) trait Ask: fmt::Debug + Send {
    /// Returns the first bytes to send.
    fn request(&self) -> Vec<u8>;

    /// Takes bytes of the peer, each byte once.
    fn handle_bytes(&mut self, bytes: &[u8]) -> AskStep;

    /// Returns the dialogue for another connection to a peer that does not understand this one.
    /// Succeeds once.
    fn fall_back(&mut self) -> Option<Box<dyn Ask>>;
}

/// The result of bytes from the answering side.
#[derive(Clone, Debug)]
pub(crate) enum AskStep {
    NeedMore,
    Connected(Agreement),
    Rejected {
        private_data: Vec<u8>,
        peer: Option<PeerDepths>,
    },
    /// The peer speaks another revision, and [`Ask::fall_back`] has a dialogue for that.
    FallBack,
    Failed {
        error: DialogueError,
        /// Bytes to send before the connection is closed.
        last_word: Option<Vec<u8>>,
    },
}

/// The side that answers.
pub(crate) trait Answer: fmt::Debug + Send {
    /// Takes bytes of the peer, each once.
    fn handle_bytes(&mut self, bytes: &[u8]) -> AnswerStep;

    /// Returns the accepting answer. After an error the request still waits.
    fn accept(&mut self, params: &AcceptTerms) -> Result<(Vec<u8>, Agreement), ParamsError>;

    /// Returns the rejecting answer. After an error the request still waits.
    fn reject(
        &mut self,
        private_data: &[u8],
        needs_ord: Option<u16>,
    ) -> Result<Vec<u8>, ParamsError>;
}

/// The result of bytes from the asking side.
#[derive(Clone, Debug)]
pub(crate) enum AnswerStep {
    NeedMore,
    Request { private_data: Vec<u8>, peer: Option<PeerDepths>, peer_to_peer: bool },
    Failed(DialogueError),
}
