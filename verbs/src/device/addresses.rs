//! Addresses that an application reserves before it listens there.

use core::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// The ports from which the RNIC chooses when a program asks for port 0: the dynamic ports (RFC
/// 6335 section 6). The RNIC tries a random port first.
pub const DYNAMIC_PORTS: RangeInclusive<u16> = 49_152..=65_535;

/// Why an address cannot be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum ReserveError {
    /// The address and port are reserved, or belong to a listener.
    #[error("the address is in use")]
    InUse,
    /// No port of the RNIC has the address.
    #[error("not an address of this RNIC")]
    NotOurs,
    /// Every port of [`DYNAMIC_PORTS`] is in use, or not allowed.
    #[error("no port is free")]
    NoPort,
}
