//! The exchange before FPDU mode: one Request, one Reply (RFC 5044 section 7.1, RFC 6581).
//!
//! ```text
//! Initiator::new ── request() ──►  Responder::handle_bytes ── Request ──► the application decides
//! Initiator::handle_bytes  ◄──  accept() / reject()
//!   Connected: FPDU mode             accepted: FPDU mode, but the first FPDU is the initiator's
//! ```
//!
//! The caller passes each machine the bytes of its direction of the stream as they come, each byte
//! once; a machine holds at most one frame. The machines know no clock: the caller decides how long
//! to wait for a frame.
//!
//! **No byte may follow a frame** before the other side has answered: the initiator sends no FPDU
//! before it has the Reply, and the responder sends none before it has the initiator's first FPDU.
//! If bytes do follow, the private data length does not fit the frame, and the machine refuses
//! them. After a rejecting Reply the stream belongs to the application again, so the machine leaves
//! the bytes after such a Reply to the caller.
//!
//! **Revision 2 request, revision 1 responder**: such a responder closes the connection, and so
//! does a [`Responder`] whose `max_revision` is 1; some responders answer in revision 1. An
//! exchange does not change its revision: the caller may connect again with revision 1, without the
//! exchange of read depths and the first message (RFC 6581 section 10). A responder of either
//! revision accepts revision 1 requests.

mod error;
mod initiator;
mod responder;
#[cfg(test)]
mod tests;

use super::frame::{Enhanced, MAX_FRAME_LEN};
use super::{fpdu, markers};
use crate::rdmap::Terminate;
pub use crate::types::Role;
use heddle_types::{
    TermCode,
    mpa::{ConfigError, Depth, Depths, Revision, Rtr, RtrSet},
};

pub use error::{StartupAction, action, code, fault};
pub use initiator::{Initiator, InitiatorConfig, InitiatorStep};
pub use responder::{ReplyParams, Responder, ResponderConfig, ResponderStep};

/// Returns `n` as a Request states it.
fn stated(depths: Depths, n: u16) -> Result<Depth, ConfigError> {
    let depth = depth(n)?;
    Ok(if depths == Depths::Exchanged { depth } else { Depth::UNNEGOTIATED })
}

/// The settings that both sides obey in FPDU mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The role of this side.
    pub role: Role,
    /// Revision of the exchange.
    pub revision: Revision,
    /// Both sides compute and check CRCs.
    pub crc: bool,
    /// This side inserts markers into its FPDUs, because the peer asked for them.
    pub send_markers: bool,
    /// The peer inserts markers into its FPDUs, because this side asked for them.
    pub recv_markers: bool,
    /// Reads of the peer that this side serves at a time.
    pub ird: u16,
    /// Reads of this side that may be outstanding.
    pub ord: u16,
    /// The peer's statement of its depths and the model; `None` without RFC 6581. Meant for the
    /// application, which is to see the peer's numbers beside its own.
    pub peer: Option<Enhanced>,
    /// The message that the initiator has to send before any other; `None` on the responder, and in
    /// the client-server model.
    pub rtr: Option<Rtr>,
    /// The first messages that the responder said it accepts; empty in the client-server model.
    pub rtr_offered: RtrSet,
}

impl Negotiated {
    /// Returns true if this side may send nothing before the peer's first FPDU has come and is
    /// good.
    pub const fn must_wait_for_first_fpdu(&self) -> bool {
        matches!(self.role, Role::Responder)
    }
}

/// The bytes of a frame, as they come.
#[derive(Clone, Debug, Default)]
struct Gathered(Vec<u8>);

impl Gathered {
    /// Takes as many of `bytes` as can belong to the frame; returns the number of bytes taken
    /// earlier.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let before = self.0.len();
        let n = bytes.len().min(MAX_FRAME_LEN.saturating_sub(before));
        self.0.extend_from_slice(&bytes[..n]);
        before
    }
}

/// The form of the FPDUs that this side sends on this connection.
#[derive(Clone, Copy, Debug)]
struct Framing {
    crc: bool,
    markers: bool,
}

impl Framing {
    /// Returns the first and only FPDU of a direction: a Terminate that ends the start-up.
    fn terminate(self, code: TermCode) -> Vec<u8> {
        let mut out = Vec::new();
        let fits = fpdu::append(&Terminate::new(code).segment(), self.crc, &mut out).is_ok();
        debug_assert!(fits, "a Terminate is short");
        if self.markers {
            let mut marked = Vec::new();
            markers::insert(&out, 0, self.crc, &mut marked);
            out = marked;
        }
        out
    }
}

fn depth(n: u16) -> Result<Depth, ConfigError> {
    Depth::new(n).ok_or(ConfigError::Depth { depth: n })
}
