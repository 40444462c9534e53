use crate::fault::{Answer, Fault};
use crate::mpa::frame::{Depth, FrameError, PrivateDataError, Revision, RtrSet};
use crate::rdmap::TermCode;

/// Why the start-up failed. Every variant but [`Finished`](Self::Finished) is the peer's doing, or
/// something the two sides cannot agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum StartupError {
    /// What came is no frame of the kind that is due.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Bytes behind a frame, which cannot be FPDUs yet: the private data length is wrong.
    #[error("bytes behind the MPA frame before its answer")]
    TrailingBytes,
    /// The Reply lacks the words of RFC 6581 that our Request had.
    #[error("unenhanced MPA Reply of revision {revision} to an enhanced Request")]
    NotEnhanced {
        /// Revision of the Reply.
        revision: Revision,
    },
    /// The responder will have more Reads outstanding than we can serve.
    #[error("the responder's ORD of {needed} exceeds our limit of {max}")]
    InsufficientIrd {
        /// The responder's ORD.
        needed: u16,
        /// Our limit.
        max: u16,
    },
    /// No first message that we can send and the responder takes.
    #[error("no RTR message in common: ours {ours:?}, the responder's {theirs:?}")]
    NoMatchingRtr {
        /// What we can send.
        ours: RtrSet,
        /// What the responder takes.
        theirs: RtrSet,
    },
    /// The Reply is for the other of the two models (peer-to-peer, client-server).
    #[error("MPA Reply with flag A {got}, Request had {sent}")]
    Model {
        /// Flag A of our Request.
        sent: bool,
        /// Flag A of the Reply.
        got: bool,
    },
    /// The exchange was over: a mistake of the caller.
    #[error("MPA start-up is over")]
    Finished,
}

/// What to do with the connection after a [`StartupError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupAction {
    /// Close it at once and say nothing (RFC 5044 section 8, code 4).
    Close,
    /// Send a Terminate ([`Initiator::terminate`](super::Initiator::terminate)), then close
    /// (RFC 6581 section 9).
    Terminate(TermCode),
}

impl StartupError {
    /// Its row in the table of faults.
    pub const fn fault(self) -> Fault {
        match self {
            StartupError::InsufficientIrd { .. } => Fault::InsufficientIrd,
            StartupError::NoMatchingRtr { .. } | StartupError::Model { .. } => Fault::NoMatchingRtr,
            _ => Fault::StartupFrame,
        }
    }

    /// What goes on the wire.
    pub const fn action(self) -> StartupAction {
        match self.fault().answer() {
            Answer::Nothing => StartupAction::Close,
            Answer::Code | Answer::Ddp | Answer::DdpAndRdmap => {
                StartupAction::Terminate(self.fault().code())
            }
        }
    }

    /// The code to report it by; only [`action`](Self::action) says what is sent.
    pub const fn code(self) -> TermCode {
        self.fault().code()
    }
}

/// What the caller asked for cannot be said on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ConfigError {
    /// Too much private data.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
    /// A read depth above 14 bits.
    #[error("read depth {depth} exceeds {}", Depth::MAX.get().unwrap_or(0))]
    Depth {
        /// The depth.
        depth: u16,
    },
    /// A revision that does not exist.
    #[error("MPA revision {revision} is not 1 or 2")]
    Revision {
        /// The revision.
        revision: Revision,
    },
    /// Revision 1 cannot negotiate the first message.
    #[error("RTR messages need MPA revision 2")]
    RtrNeedsRevision2,
    /// A responder of revision 2 has to take at least one RTR message.
    #[error("a responder of MPA revision 2 must take some RTR message")]
    NoRtr,
    /// No Request is waiting for an answer.
    #[error("no MPA Request to answer")]
    NoRequest,
}
