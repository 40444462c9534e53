//! What an application of another process may have and do.

use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;

use crate::limits::DeviceLimits;

/// The bounds of one application; whoever accepts its connection fills them in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Octets of memory: what the device has, and what the application brings, together.
    pub memory: u64,
    /// Octets for its queues.
    pub queues: u64,
    /// Regions of its own that it may have registered at a time. Each takes a place in the RNIC's table
    /// of regions, which all applications share.
    pub regions: u32,
    /// Connections at a time: those it makes or has accepted.
    pub connections: u32,
    /// Listeners at a time.
    pub listeners: u32,
    /// Requests of peers that may wait at one listener; more are cut to it.
    pub backlog: u32,
    /// How many it may have of everything else.
    pub limits: DeviceLimits,
    /// Where it may listen: at one of these. An unspecified address is only in a rule of all of them.
    pub listen: Vec<Addresses>,
    /// Where it may connect to: to one of these.
    pub connect: Vec<Addresses>,
}

impl Default for Policy {
    /// 256 MiB of memory, 64 MiB of queues, 16 regions of its own, 1,024 connections, 64 listeners, a
    /// backlog of 512; any address, any port.
    fn default() -> Policy {
        Policy {
            memory: 256 << 20,
            queues: 64 << 20,
            regions: 16,
            connections: 1024,
            listeners: 64,
            backlog: 512,
            limits: DeviceLimits::default(),
            listen: Addresses::any(),
            connect: Addresses::any(),
        }
    }
}

/// Addresses that begin alike, and ports there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// One of them.
    pub addr: IpAddr,
    /// Bits they have in common; all of them when there are more than an address has.
    pub prefix: u8,
    /// Ports.
    pub ports: RangeInclusive<u16>,
}

impl Addresses {
    /// All there are, of both families.
    pub fn any() -> Vec<Addresses> {
        let unspecified = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        unspecified.map(|addr| Addresses { addr, prefix: 0, ports: 0..=u16::MAX }).into()
    }

    /// Whether `at` is one of them.
    pub fn contain(&self, at: SocketAddr) -> bool {
        let same = match (self.addr, at.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let differ = u128::from(a.to_bits() ^ b.to_bits());
                differ.checked_shr(32u32.saturating_sub(self.prefix.into())).unwrap_or(0) == 0
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let differ = a.to_bits() ^ b.to_bits();
                differ.checked_shr(128u32.saturating_sub(self.prefix.into())).unwrap_or(0) == 0
            }
            _ => false,
        };
        same && self.ports.contains(&at.port())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_addresses_contain_what_begins_alike() {
        let rule = |addr: &str, prefix| Addresses {
            addr: addr.parse().unwrap(),
            prefix,
            ports: 7000..=7999,
        };
        let at = |s: &str| s.parse::<SocketAddr>().unwrap();
        for (addr, prefix, yes, no) in [
            ("10.1.2.3", 32, "10.1.2.3:7000", "10.1.2.2:7000"),
            ("10.1.2.3", 24, "10.1.2.255:7999", "10.1.3.3:7999"),
            ("10.1.2.3", 200, "10.1.2.3:7500", "10.1.2.2:7500"),
            ("0.0.0.0", 0, "255.0.0.1:7174", "[::1]:7174"),
            ("fd00::1", 64, "[fd00::ffff]:7174", "[fd00:0:0:1::1]:7174"),
            ("::", 0, "[ff::1]:7174", "10.0.0.1:7174"),
            ("10.1.2.0", 24, "10.1.2.1:7174", "0.0.0.0:7174"),
        ] {
            let rule = rule(addr, prefix);
            assert!(rule.contain(at(yes)), "{rule:?} {yes}");
            assert!(!rule.contain(at(no)), "{rule:?} {no}");
        }
        let rule = rule("10.0.0.1", 32);
        assert!(!rule.contain(at("10.0.0.1:6999")) && !rule.contain(at("10.0.0.1:8000")));
        assert!(Addresses::any().iter().any(|a| a.contain(at("0.0.0.0:1"))));
    }
}
