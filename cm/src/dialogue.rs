//! The seam between the manager and the start-up dialogue that both ends of a connection speak.
//!
//! The manager knows nothing of frames: it passes bytes to the dialogue, which answers *more*,
//! *request*, *connected*, *rejected* or *error*. MPA is such a dialogue. InfiniBand's start-up is
//! not: it has no stream of bytes, and it has states of its own (`crate::ib`).

mod mpa;

use core::fmt;

use heddle_iwarp::Role;
use heddle_types::{
    AcceptTerms, Agreed, ConnectTerms, DialogueError, ParamsError, PeerDepths, Protocol,
};

/// Starts the asking side. `inside` is true for a connection of the RNIC with itself.
pub(crate) fn ask(
    protocol: &Protocol,
    params: &ConnectTerms,
    inside: bool,
) -> Result<Box<dyn Ask>, ParamsError> {
    match protocol {
        Protocol::Mpa(options) => mpa::ask(options, params, inside),
        Protocol::InfiniBand => Err(ParamsError::NoInfiniBand),
    }
}

/// Starts the answering side. `inside` as for [`ask`].
pub(crate) fn answer(protocol: &Protocol, inside: bool) -> Result<Box<dyn Answer>, ParamsError> {
    match protocol {
        Protocol::Mpa(options) => mpa::answer(options, inside),
        Protocol::InfiniBand => Err(ParamsError::NoInfiniBand),
    }
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
