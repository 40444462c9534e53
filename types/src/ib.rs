//! Codes by which InfiniBand's communication management, and the RDMA IP CM service (IBTA Annex
//! A11), refuse a connection.

use core::fmt;

/// The reason for which a side refuses a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejReason(pub u16);

impl RejReason {
    /// No queue pair is left.
    pub const NO_QP: RejReason = RejReason(1);
    /// No resources are left.
    pub const NO_RESOURCES: RejReason = RejReason(3);
    /// No answer has come in time.
    pub const TIMEOUT: RejReason = RejReason(4);
    /// The peer does not support such a request.
    pub const UNSUPPORTED: RejReason = RejReason(5);
    /// The communication id names no connection, or another one.
    pub const INVALID_COMM_ID: RejReason = RejReason(6);
    /// No application serves the Service ID.
    pub const INVALID_SERVICE_ID: RejReason = RejReason(8);
    /// The transport is not supported.
    pub const INVALID_TRANSPORT: RejReason = RejReason(9);
    /// The connection, or its queue pair, is left over from an earlier one.
    pub const STALE_CONNECTION: RejReason = RejReason(10);
    /// The primary path's GID is not the receiver's.
    pub const INVALID_GID: RejReason = RejReason(12);
    /// Another communication manager serves the Service ID; the ARI names it.
    pub const REDIRECTED: RejReason = RejReason(24);
    /// More RDMA Reads would be outstanding than the side serves.
    pub const INSUFFICIENT_RESOURCES: RejReason = RejReason(27);
    /// The consumer, or a layer above the communication manager, refuses.
    pub const CONSUMER: RejReason = RejReason(28);
    /// The asking side uses its communication id for another connection already.
    pub const DUPLICATE_COMM_ID: RejReason = RejReason(30);
}

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            RejReason::NO_QP => "no queue pair available",
            RejReason::NO_RESOURCES => "no resources available",
            RejReason::TIMEOUT => "timeout",
            RejReason::UNSUPPORTED => "unsupported request",
            RejReason::INVALID_COMM_ID => "invalid communication ID",
            RejReason::INVALID_SERVICE_ID => "invalid service ID",
            RejReason::INVALID_TRANSPORT => "invalid transport service type",
            RejReason::STALE_CONNECTION => "stale connection",
            RejReason::INVALID_GID => "primary remote port GID rejected",
            RejReason::REDIRECTED => "port and CM redirection",
            RejReason::INSUFFICIENT_RESOURCES => "insufficient responder resources",
            RejReason::CONSUMER => "consumer reject",
            RejReason::DUPLICATE_COMM_ID => "duplicate local communication ID",
            RejReason(n) => return write!(f, "reason {n}"),
        })
    }
}

/// The codes of a REJ of the service (section A11.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AriCode(pub u8);

impl AriCode {
    /// The service does not name the fault.
    pub const UNSPECIFIED: AriCode = AriCode(0);
    /// The major version is not supported.
    pub const MAJOR: AriCode = AriCode(1);
    /// The minor version is not supported.
    pub const MINOR: AriCode = AriCode(2);
    /// The IP version is not supported.
    pub const IP_VERSION: AriCode = AriCode(3);
    /// The source address is malformed.
    pub const SOURCE: AriCode = AriCode(4);
    /// The destination address is malformed.
    pub const DESTINATION: AriCode = AriCode(5);
    /// The destination address is not the server's.
    pub const UNKNOWN_ADDRESS: AriCode = AriCode(6);
}

impl fmt::Display for AriCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            AriCode::UNSPECIFIED => "unspecified",
            AriCode::MAJOR => "major version",
            AriCode::MINOR => "minor version",
            AriCode::IP_VERSION => "IP version",
            AriCode::SOURCE => "source IP address",
            AriCode::DESTINATION => "destination IP address",
            AriCode::UNKNOWN_ADDRESS => "unknown IP address",
            AriCode(n) => return write!(f, "code {n}"),
        })
    }
}
