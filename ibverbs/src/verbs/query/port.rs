//! The port as the RNIC has it.

use std::net::Ipv4Addr;

use heddle_verbs::Device;

/// The device's GUID in host byte order: locally administered, and the same in each process, so that programs of
/// one host agree on it.
pub(in crate::verbs) fn guid() -> u64 {
    0x0200_00ff_fe48_4401
}

/// A port.
pub(super) struct Port {
    /// Whether its link is up.
    pub(super) up: bool,
    /// Bytes of an IP packet.
    pub(super) mtu: u16,
    /// The RNIC's addresses, in the order of its configuration.
    pub(super) addresses: Vec<Ipv4Addr>,
}

/// The port at this moment.
pub(super) fn of(_device: &Device) -> Result<Port, i32> {
    Ok(Port { up: true, mtu: 1500, addresses: vec![Ipv4Addr::new(10, 0, 0, 1)] })
}
