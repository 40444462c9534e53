use heddle_types::{TermCode, mpa::StartupError};

use crate::fault::{Answer, Fault};

/// The step to take with the connection after a [`StartupError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupAction {
    /// Close the connection at once and send nothing (RFC 5044 section 8, code 4).
    Close,
    /// Send a Terminate ([`Initiator::terminate`](super::Initiator::terminate)), then close
    /// (RFC 6581 section 9).
    Terminate(TermCode),
}

/// Returns the fault's row in the table of faults.
pub const fn fault(error: StartupError) -> Fault {
    match error {
        StartupError::InsufficientIrd { .. } => Fault::InsufficientIrd,
        StartupError::NoMatchingRtr { .. } | StartupError::Model { .. } => Fault::NoMatchingRtr,
        _ => Fault::StartupFrame,
    }
}

/// Returns the step to take, which says what goes on the wire.
pub const fn action(error: StartupError) -> StartupAction {
    match fault(error).answer() {
        Answer::Nothing => StartupAction::Close,
        Answer::Code | Answer::Ddp | Answer::DdpAndRdmap => {
            StartupAction::Terminate(fault(error).code())
        }
    }
}

/// Returns the code by which to report the error; only [`action`] says what to send.
pub const fn code(error: StartupError) -> TermCode {
    fault(error).code()
}
