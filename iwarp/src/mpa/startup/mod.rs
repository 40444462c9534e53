//! The exchange before FPDU mode: one Request, one Reply (RFC 5044 section 7.1, RFC 6581).
//!
//! ```text
//! Initiator::new ── request() ──►  Responder::handle_bytes ── Request ──► the application decides
//! Initiator::handle_bytes  ◄──  accept() / reject()
//!   Connected: FPDU mode             accepted: FPDU mode, but the first FPDU is the initiator's
//! ```
//!
//! Each machine is given the bytes of its direction of the stream as they come, each byte once; it
//! holds at most one frame. It knows no clock: how long to wait for a frame is the caller's rule.
//!
//! **No byte may follow a frame** before the other side has answered: the initiator sends no FPDU
//! before it has the Reply, and the responder none before it has the initiator's first FPDU. Bytes
//! that do mean a private data length that does not fit the frame, and are refused. Behind a
//! rejecting Reply the stream is the application's again, so there they are left to the caller.
//!
//! **Revision 2 request, revision 1 responder**: such a responder closes the connection, and so
//! does ours when its `max_revision` is 1; some answer in revision 1. An exchange does not change
//! its revision: the caller may connect again with revision 1 and do without the exchange of read
//! depths and the first message (RFC 6581 section 10). A responder of either revision takes
//! revision 1 requests.

mod error;
mod initiator;
mod responder;
#[cfg(test)]
mod tests;

use super::frame::{Depth, Enhanced, MAX_FRAME_LEN, Revision, Rtr, RtrSet};
use super::{fpdu, markers};
use crate::rdmap::{TermCode, Terminate};
pub use crate::types::Role;

pub use error::{ConfigError, StartupAction, StartupError};
pub use initiator::{Initiator, InitiatorConfig, InitiatorStep};
pub use responder::{ReplyParams, Responder, ResponderConfig, ResponderStep};

/// Whether we ask for CRCs. They are used if either side asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CrcPolicy {
    /// Ask for them.
    #[default]
    Required,
    /// Do not ask; the peer may. For paths that protect data as well as a CRC does.
    Off,
}

/// Who sees to it that neither side has more RDMA Reads outstanding than the other serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Depths {
    /// Revision 2 does: each side says its IRD and ORD, and goes by what the other says.
    #[default]
    Exchanged,
    /// The applications do. Revision 2 says so with all ones (RFC 6581 section 9.1), and both sides
    /// leave their depths as they are.
    LeftToApplications,
}

impl Depths {
    /// `n` as a Request has it.
    fn say(self, n: u16) -> Result<Depth, ConfigError> {
        let depth = depth(n)?;
        Ok(if self == Depths::Exchanged { depth } else { Depth::UNNEGOTIATED })
    }
}

/// What both sides go by in FPDU mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Our side.
    pub role: Role,
    /// Revision of the exchange.
    pub revision: Revision,
    /// CRCs are made and checked.
    pub crc: bool,
    /// We put markers into what we send: the peer asked for them.
    pub send_markers: bool,
    /// The peer puts markers into what it sends: we asked for them.
    pub recv_markers: bool,
    /// Reads of the peer we serve at a time.
    pub ird: u16,
    /// Reads of ours that may be outstanding.
    pub ord: u16,
    /// What the peer said about its depths and the model; `None` without RFC 6581. For the
    /// application, which is to see the peer's numbers beside ours.
    pub peer: Option<Enhanced>,
    /// The message the initiator has to send before any other; `None` on the responder, and in the
    /// client-server model.
    pub rtr: Option<Rtr>,
    /// The first messages the responder said it takes; empty in the client-server model.
    pub rtr_offered: RtrSet,
}

impl Negotiated {
    /// We may send nothing before the first FPDU of the peer has come and is good.
    pub const fn must_wait_for_first_fpdu(&self) -> bool {
        matches!(self.role, Role::Responder)
    }
}

/// Bytes of a frame, as they come.
#[derive(Clone, Debug, Default)]
struct Gathered(Vec<u8>);

impl Gathered {
    /// Takes what of `bytes` can belong to the frame; returns how many bytes there were before.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let before = self.0.len();
        let n = bytes.len().min(MAX_FRAME_LEN.saturating_sub(before));
        self.0.extend_from_slice(&bytes[..n]);
        before
    }
}

/// How FPDUs look on this connection, as far as we send them.
#[derive(Clone, Copy, Debug)]
struct Framing {
    crc: bool,
    markers: bool,
}

impl Framing {
    /// The first and only FPDU of a direction: a Terminate that ends the start-up.
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
