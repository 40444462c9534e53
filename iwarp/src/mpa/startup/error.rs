use crate::fault::{Answer, Fault};
use crate::mpa::frame::{Depth, FrameError, PrivateDataError, Revision, RtrSet};
use crate::rdmap::TermCode;

/// The reasons for which the start-up fails. The peer causes every variant but
/// [`Finished`](Self::Finished), or the two sides cannot agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum StartupError {
    /// The peer's bytes are not a frame of the kind that is due.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The peer sent bytes after a frame, which cannot be FPDUs yet: the private data length is
    /// wrong.
    #[error("bytes behind the MPA frame before its answer")]
    TrailingBytes,
    /// The Reply lacks the words of RFC 6581 that this side's Request had.
    #[error("unenhanced MPA Reply of revision {revision} to an enhanced Request")]
    NotEnhanced {
        /// Revision of the Reply.
        revision: Revision,
    },
    /// The responder will have more Reads outstanding than this side can serve.
    #[error("the responder's ORD of {needed} exceeds our limit of {max}")]
    InsufficientIrd {
        /// The responder's ORD.
        needed: u16,
        /// The most Reads that this side serves at a time.
        max: u16,
    },
    /// This side can send no first message that the responder accepts.
    #[error("no RTR message in common: ours {ours:?}, the responder's {theirs:?}")]
    NoMatchingRtr {
        /// The first messages that this side can send.
        ours: RtrSet,
        /// The first messages that the responder accepts.
        theirs: RtrSet,
    },
    /// The Reply is for the other of the two models (peer-to-peer, client-server).
    #[error("MPA Reply with flag A {got}, Request had {sent}")]
    Model {
        /// Flag A of this side's Request.
        sent: bool,
        /// Flag A of the Reply.
        got: bool,
    },
    /// The exchange was over: the caller made a mistake.
    #[error("MPA start-up is over")]
    Finished,
}

/// The step to take with the connection after a [`StartupError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupAction {
    /// Close the connection at once and send nothing (RFC 5044 section 8, code 4).
    Close,
    /// Send a Terminate ([`Initiator::terminate`](super::Initiator::terminate)), then close
    /// (RFC 6581 section 9).
    Terminate(TermCode),
}

impl StartupError {
    /// Returns the fault's row in the table of faults.
    pub const fn fault(self) -> Fault {
        match self {
            StartupError::InsufficientIrd { .. } => Fault::InsufficientIrd,
            StartupError::NoMatchingRtr { .. } | StartupError::Model { .. } => Fault::NoMatchingRtr,
            _ => Fault::StartupFrame,
        }
    }

    /// Returns the step to take, which says what goes on the wire.
    pub const fn action(self) -> StartupAction {
        match self.fault().answer() {
            Answer::Nothing => StartupAction::Close,
            Answer::Code | Answer::Ddp | Answer::DdpAndRdmap => {
                StartupAction::Terminate(self.fault().code())
            }
        }
    }

    /// Returns the code by which to report the error; only [`action`](Self::action) says what to
    /// send.
    pub const fn code(self) -> TermCode {
        self.fault().code()
    }
}

/// The reasons for which a frame cannot express the caller's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ConfigError {
    /// More private data than a frame can carry.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
    /// A read depth above 14 bits.
    #[error("read depth {depth} exceeds {}", Depth::MAX.get().unwrap_or(0))]
    Depth {
        /// The depth that the caller asked for.
        depth: u16,
    },
    /// A revision that does not exist.
    #[error("MPA revision {revision} is not 1 or 2")]
    Revision {
        /// The revision that the caller asked for.
        revision: Revision,
    },
    /// Revision 1 cannot negotiate the first message.
    #[error("RTR messages need MPA revision 2")]
    RtrNeedsRevision2,
    /// A responder of revision 2 has to accept at least one RTR message.
    #[error("a responder of MPA revision 2 must take some RTR message")]
    NoRtr,
    /// No Request waits for an answer.
    #[error("no MPA Request to answer")]
    NoRequest,
}
