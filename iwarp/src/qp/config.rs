//! The settings with which a QP is made, and the environment in which it works.

use super::QpContext;
pub use crate::types::Role;
use heddle_base::StreamPos;
use heddle_engine::Untaken;
use heddle_mr::MrTable;
use heddle_types::{Pd, Qpn, mpa::RtrConfig};

/// Most bytes of a payload that the QP copies into the FPDU when it makes it, so that the FPDU is
/// one contiguous piece. An FPDU refers to a larger payload.
pub const INLINE_PAYLOAD: u32 = 32;

/// Settings of a QP, which both ends agreed upon before FPDU mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Number of the QP, local to its RNIC.
    pub qpn: Qpn,
    /// The protection domain whose regions the QP may use.
    pub pd: Pd,
    /// Send work requests that the QP holds.
    pub sq_depth: u32,
    /// Receive work requests that the QP holds.
    pub rq_depth: u32,
    /// Reads that the peer may have outstanding.
    pub ird: u16,
    /// Reads that this end may have outstanding.
    pub ord: u16,
    /// True if FPDUs carry a CRC.
    pub crc: bool,
    /// True if the peer asked for markers: the FPDUs of this end have them.
    pub send_markers: bool,
    /// True if this end asked for markers: the peer's FPDUs have them, every 512 bytes from
    /// `rx_start` on.
    pub recv_markers: bool,
    /// Position in this end's stream of its first FPDU.
    pub tx_start: StreamPos,
    /// Position in the peer's stream of its first FPDU.
    pub rx_start: StreamPos,
    /// The role of this end in the MPA start-up.
    pub role: Role,
    /// The message that the initiator sends before all others.
    pub rtr: RtrConfig,
    /// True if a message of the peer that finds no receive waits for one. Otherwise such a message
    /// ends the stream (RFC 5041 section 7.1).
    pub rnr_wait: bool,
}

impl Default for QpConfig {
    /// Returns depths of 128, 16 Reads each way, CRC on, no markers, initiator.
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

/// The environment that the owner lends to a QP for each call.
#[derive(Debug)]
pub struct QpEnv<'a, M> {
    /// Registered memory.
    pub mem: &'a M,
    /// The STag table of that memory.
    pub mrs: &'a MrTable,
    /// There is no room to keep the payload of a Read Response. Responses that would need it wait,
    /// and the owner [polls](super::QpContext::poll_transmit) again when it finds room. The owner
    /// sets the flag only while acknowledgments for this QP are still to come, because otherwise
    /// nothing would ever make room.
    pub snapshots_full: bool,
    /// Receives that the application has posted and the owner has not taken yet, if there may be
    /// any.
    pub posted: Option<&'a Untaken<'a, QpContext>>,
}

impl<M> Clone for QpEnv<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for QpEnv<'_, M> {}
