//! What a QP is made with.

use super::rtr::RtrConfig;
use super::shared::Untaken;
use crate::mr::MrTable;
pub use crate::types::Role;
use crate::{Pd, Qpn};
use heddle_base::StreamPos;

/// Payloads up to this many bytes are copied into the FPDU when it is made, so that it is one
/// contiguous piece. Larger ones are referred to.
pub const INLINE_PAYLOAD: u32 = 32;

/// Settings of a QP, agreed upon before FPDU mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Its number.
    pub qpn: Qpn,
    /// Its protection domain.
    pub pd: Pd,
    /// Send work requests it holds.
    pub sq_depth: u32,
    /// Receive work requests it holds.
    pub rq_depth: u32,
    /// Inbound Reads the peer may have outstanding.
    pub ird: u16,
    /// Outbound Reads outstanding at most.
    pub ord: u16,
    /// Whether FPDUs carry a CRC.
    pub crc: bool,
    /// Whether the peer asked for markers: our FPDUs have them.
    pub send_markers: bool,
    /// Whether we asked for markers: the peer's FPDUs have them, every 512 octets from `rx_start` on.
    pub recv_markers: bool,
    /// Position in our stream of our first FPDU.
    pub tx_start: StreamPos,
    /// Position in the peer's stream of its first FPDU.
    pub rx_start: StreamPos,
    /// Which end we are.
    pub role: Role,
    /// What the initiator sends first.
    pub rtr: RtrConfig,
    /// Whether a message of the peer's that finds no receive waits for one. Otherwise it ends the stream
    /// (RFC 5041 section 7.1).
    pub rnr_wait: bool,
}

impl Default for QpConfig {
    /// Depths of 128, 16 Reads each way, CRC on, no markers, initiator.
    fn default() -> QpConfig {
        QpConfig {
            qpn: Qpn(1),
            pd: Pd(1),
            sq_depth: 128,
            rq_depth: 128,
            ird: 16,
            ord: 16,
            crc: true,
            send_markers: false,
            recv_markers: false,
            tx_start: StreamPos::START,
            rx_start: StreamPos::START,
            role: Role::Initiator,
            rtr: RtrConfig::None,
            rnr_wait: false,
        }
    }
}

/// What a QP works on, lent for each call.
#[derive(Debug)]
pub struct QpEnv<'a, M> {
    /// Registered memory.
    pub mem: &'a M,
    /// The STag table of that memory.
    pub mrs: &'a MrTable,
    /// No room to keep the payload of a Read Response: those that would need it wait, and whoever
    /// finds room [polls](super::QpContext::poll_transmit) again. Set only where acknowledgments of
    /// what this QP has under way are still to come, or nothing would ever make room.
    pub snapshots_full: bool,
    /// Receives that the application has posted and the owner has not taken yet, if there may be any.
    pub posted: Option<&'a Untaken<'a>>,
}

impl<M> Clone for QpEnv<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for QpEnv<'_, M> {}
