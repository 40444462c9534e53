//! The seam between the manager and the start-up dialogue that is spoken on a connection.
//!
//! The manager knows nothing of frames: it passes bytes in and is told *more*, *request*,
//! *connected*, *rejected* or *error*. MPA is one such dialogue. InfiniBand's is none: it
//! has no stream of bytes, and states of its own (`crate::ib`).

mod mpa;

use core::fmt;

use heddle_iwarp::Role;
use heddle_iwarp::mpa::startup::{ConfigError, StartupError};

use crate::event::{Agreed, PeerDepths};
use crate::params::{AcceptTerms, ConnectTerms};

pub use mpa::MpaOptions;

/// Which dialogue is spoken, and with which options.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Protocol {
    /// MPA Request and Reply (RFC 5044 section 7.1, RFC 6581).
    Mpa(MpaOptions),
    /// REQ, REP and RTU of InfiniBand's communication management, with the RDMA IP CM service (IBTA
    /// Annex A11). To connect only: a listener answers it beside MPA when
    /// [`ListenParams::infiniband`](crate::ListenParams::infiniband) says so.
    ///
    /// There is no transport behind it: such a connection carries no data, and nothing that is posted
    /// on its queue pair is run.
    InfiniBand,
}

impl Default for Protocol {
    fn default() -> Protocol {
        Protocol::Mpa(MpaOptions::default())
    }
}

impl Protocol {
    /// `inside` tells of a connection of the RNIC with itself.
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

    /// As [`ask`](Self::ask).
    pub(crate) fn answer(&self, inside: bool) -> Result<Box<dyn Answer>, ParamsError> {
        match self {
            Protocol::Mpa(options) => mpa::answer(options, inside),
            Protocol::InfiniBand => Err(ParamsError::NoInfiniBand),
        }
    }
}

/// What was asked for cannot be said in the dialogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ParamsError {
    /// MPA cannot say it.
    #[error("{0}")]
    Mpa(#[from] ConfigError),
    /// Longer than InfiniBand's message has room for: 56 octets to connect, 196 to accept, 148 to
    /// reject.
    #[error("private data too long")]
    PrivateData,
    /// InfiniBand is not spoken there, or not in that way.
    #[error("InfiniBand is not spoken there")]
    NoInfiniBand,
}

/// The peer broke the dialogue's rules, or the two cannot agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DialogueError {
    /// In MPA.
    #[error("{0}")]
    Mpa(#[from] StartupError),
}

/// What a dialogue ended with.
#[derive(Clone, Debug)]
pub(crate) struct Agreement {
    pub(crate) agreed: Agreed,
    pub(crate) role: Role,
    /// The peer's, for our application.
    pub(crate) private_data: Vec<u8>,
    /// To be sent if we fail before FPDU mode: a Terminate to a responder, and to an initiator,
    /// which has no accepting answer yet, one that rejects.
    pub(crate) last_word: Option<Vec<u8>>,
}

/// The side that asks.
pub(crate) trait Ask: fmt::Debug + Send {
    /// The first bytes to send.
    fn request(&self) -> Vec<u8>;

    /// Takes bytes of the peer, each once.
    fn handle_bytes(&mut self, bytes: &[u8]) -> AskStep;

    /// What to ask a peer that does not understand this, on another connection. Once.
    fn fall_back(&mut self) -> Option<Box<dyn Ask>>;
}

/// What bytes of the answering side led to.
#[derive(Clone, Debug)]
pub(crate) enum AskStep {
    NeedMore,
    Connected(Agreement),
    Rejected {
        private_data: Vec<u8>,
        peer: Option<PeerDepths>,
    },
    /// The peer speaks otherwise, and [`Ask::fall_back`] has something for it.
    FallBack,
    Failed {
        error: DialogueError,
        /// To be sent before the connection is closed.
        last_word: Option<Vec<u8>>,
    },
}

/// The side that answers.
pub(crate) trait Answer: fmt::Debug + Send {
    /// Takes bytes of the peer, each once.
    fn handle_bytes(&mut self, bytes: &[u8]) -> AnswerStep;

    /// The accepting answer. After an error the request still waits.
    fn accept(&mut self, params: &AcceptTerms) -> Result<(Vec<u8>, Agreement), ParamsError>;

    /// The rejecting answer. After an error the request still waits.
    fn reject(
        &mut self,
        private_data: &[u8],
        needs_ord: Option<u16>,
    ) -> Result<Vec<u8>, ParamsError>;
}

/// What bytes of the asking side led to.
#[derive(Clone, Debug)]
pub(crate) enum AnswerStep {
    NeedMore,
    Request { private_data: Vec<u8>, peer: Option<PeerDepths>, peer_to_peer: bool },
    Failed(DialogueError),
}
