//! The RNIC's ports as one port.

use std::net::IpAddr;

use heddle_verbs::{Device, PortInfo};
use libc::EIO;

use crate::verbs::errno;

/// Returns the device's GUID in host byte order.
pub(in crate::verbs) fn guid() -> u64 {
    crate::rnic::GUID
}

/// The ports of an RNIC, which programs see as one: an address of each leads to the same device.
pub(super) struct Port {
    /// True if the link of any port is up.
    pub(super) up: bool,
    /// Bytes of the largest IP packet that all ports carry.
    pub(super) mtu: u16,
    /// The RNIC's addresses, in the order of its configuration, but IPv4 first: programs that know a
    /// GID by its index know those of IPv4.
    pub(super) addresses: Vec<IpAddr>,
}

impl Port {
    fn new(ports: &[PortInfo]) -> Port {
        let addresses = ports.iter().flat_map(|port| &port.addresses).map(|at| at.addr);
        let (mut addresses, six): (Vec<_>, Vec<_>) = addresses.partition(IpAddr::is_ipv4);
        addresses.extend(six);
        Port {
            up: ports.iter().any(|port| port.link.up),
            mtu: ports.iter().map(|port| port.mtu).min().unwrap_or_default(),
            addresses,
        }
    }
}

/// Asks for the current state of the port.
///
/// # Errors
/// Returns `EIO` if the RNIC is gone.
pub(super) fn of(device: &Device) -> Result<Port, i32> {
    let ports = device.ports().map_err(|e| match errno::of(&e) {
        libc::EINVAL => EIO,
        e => e,
    })?;
    Ok(Port::new(&ports))
}

#[cfg(test)]
mod tests {
    use heddle_verbs::{PortAddr, PortLink};

    use super::*;

    #[test]
    fn test_ports_appear_as_one_with_all_addresses_and_least_mtu() {
        let port = |n: u8, mtu: u16, up: bool| PortInfo {
            mtu,
            link: PortLink { up, mbps: None },
            addresses: vec![
                PortAddr { addr: [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)].into(), prefix: 64 },
                PortAddr { addr: [10, 0, n, 1].into(), prefix: 24 },
            ],
            ..PortInfo::default()
        };
        let seen = Port::new(&[port(1, 9000, false), port(2, 1500, true)]);
        assert_eq!((seen.up, seen.mtu), (true, 1500));
        let want = ["10.0.1.1", "10.0.2.1", "fd00::1", "fd00::2"];
        assert_eq!(seen.addresses, want.map(|ip| ip.parse::<IpAddr>().unwrap()));
        assert!(!Port::new(&[port(1, 9000, false)]).up);
    }
}
