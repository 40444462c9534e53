//! Limits and permissions of applications in other processes.

use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;

use heddle_engine::ShareTerms;
use heddle_shm::account::{Grants, Kind};

use heddle_types::{ListenAt, TcpTerms};
use heddle_verbs::DeviceLimits;

/// Resources that the applications of one principal may have together, and permissions of each of
/// them. The code that accepts their connections fills this in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Applications at a time: connections that have opened a device.
    pub sessions: u32,
    /// File descriptors that the RNIC's process may hold for the applications: sockets, shared
    /// memory and wakers.
    pub descriptors: u32,
    /// Bytes of memory: of devices, and brought by applications, together.
    pub memory: u64,
    /// Bytes of address space to which the applications' sparse regions may be mapped. Only
    /// registered parts of these regions take memory, and count as memory.
    pub mapped: u64,
    /// Bytes for queues.
    pub queues: u64,
    /// Regions of their own that applications may have registered at a time. Each takes a slot in
    /// the RNIC's table of regions, which all applications share.
    pub regions: u32,
    /// Connections at a time that the applications are making or have accepted.
    pub connections: u32,
    /// Listeners at a time.
    pub listeners: u32,
    /// Requests of peers that may wait at one listener; a larger backlog is cut to this number.
    pub backlog: u32,
    /// Most other objects of each application, and of all applications together for queue pairs,
    /// queues, protection domains and STags.
    pub limits: DeviceLimits,
    /// The weight of the applications together in the turns of workers, and the rates at which they
    /// may send.
    pub share: ShareTerms,
    /// Settings of TCP for their listeners and connections, unless an application names its own.
    pub tcp: TcpTerms,
    /// Addresses at which an application may listen. Only a rule for all addresses of a family
    /// contains the unspecified address; a listener at `::` that takes IPv4 as well needs a rule of
    /// each family.
    pub listen: Vec<Addresses>,
    /// Addresses to which an application may connect.
    pub connect: Vec<Addresses>,
    /// Addresses at which the RNIC's own process listens, or will listen. No application may listen
    /// there, whatever [`listen`](Policy::listen) contains. `0.0.0.0` stands for all IPv4 addresses of
    /// that port, and `::` for all addresses.
    pub reserved: Vec<SocketAddr>,
}

impl Default for Policy {
    /// Returns 64 applications, and 1 GiB for the queues of as many that request the default
    /// size; 2,048 descriptors, 256 MiB of memory, 8 TiB of address space, 512 regions of their
    /// own, 1,024 connections, 64 listeners, a backlog of 512; a weight of 1 and no rates; any address,
    /// any port.
    fn default() -> Policy {
        Policy {
            sessions: 64,
            descriptors: 2048,
            memory: 256 << 20,
            mapped: Policy::mapped_for(REGIONS),
            queues: 1 << 30,
            regions: REGIONS,
            connections: 1024,
            listeners: 64,
            backlog: 512,
            limits: DeviceLimits::default(),
            share: ShareTerms::default(),
            tcp: TcpTerms::default(),
            listen: Addresses::any(),
            connect: Addresses::any(),
            reserved: Vec::new(),
        }
    }
}

/// Default number of regions of their own that applications may have.
const REGIONS: u32 = 512;

impl Grants for Policy {
    fn granted(&self, kind: Kind) -> u64 {
        let limits = &self.limits;
        match kind {
            Kind::Sessions => self.sessions.into(),
            Kind::Memory => self.memory,
            Kind::Mapped => self.mapped,
            Kind::Queues => self.queues,
            Kind::Regions => self.regions.into(),
            Kind::Connections => self.connections.into(),
            Kind::Listeners => self.listeners.into(),
            Kind::QueuePairs => limits.max_qps.into(),
            Kind::CompletionQueues => limits.max_cqs.into(),
            Kind::SharedReceiveQueues => limits.max_srqs.into(),
            Kind::Domains => limits.max_pds.into(),
            Kind::Registrations => limits.max_mrs.into(),
            Kind::Descriptors => self.descriptors.into(),
        }
    }
}

impl Policy {
    /// Returns the bytes of [`mapped`](Policy::mapped) with which that many regions can be sparse
    /// regions of libibverbs, which are 16 GiB each: at most all addresses that the RNIC's process
    /// has.
    pub fn mapped_for(regions: u32) -> u64 {
        (u64::from(regions) << 34).min(1 << 47)
    }

    /// Returns true if an application may listen at `addr`, without IPv4 if `v6_only`. A listener at
    /// all addresses takes connections where no other listens, so a reserved port is reserved for
    /// it at every address of its families.
    pub fn may_listen(&self, (addr, v6_only): (SocketAddr, bool)) -> bool {
        let (at, port) = (ListenAt::new(addr.ip(), v6_only), addr.port());
        let contains = |at: SocketAddr| self.listen.iter().any(|rule| rule.contain(at));
        let any4 = SocketAddr::from(([0; 4], port));
        let meets = |r: &SocketAddr| r.port() == port && ListenAt::new(r.ip(), false).meets(at);
        contains(addr)
            && (at != ListenAt::All || contains(any4))
            && !self.reserved.iter().any(meets)
    }

    /// Returns true if an application may connect to `to`.
    pub fn may_connect(&self, to: SocketAddr) -> bool {
        self.connect.iter().any(|rule| rule.contain(to))
    }
}

/// Addresses that begin alike, and ports there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// An address in the range.
    pub addr: IpAddr,
    /// Leading bits that the addresses have in common; a number above the length of an address
    /// means all.
    pub prefix: u8,
    /// Ports of the range.
    pub ports: RangeInclusive<u16>,
}

impl Addresses {
    /// Returns all addresses, of both families.
    pub fn any() -> Vec<Addresses> {
        let unspecified = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        unspecified.map(|addr| Addresses { addr, prefix: 0, ports: 0..=u16::MAX }).into()
    }

    /// Returns true if `at` is in the range.
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
    use heddle_verbs::remote::OpenParams;

    #[test]
    fn test_application_cannot_listen_on_reserved_address() {
        let at = |s: &str| s.parse::<SocketAddr>().unwrap();
        let reserved = vec![at("10.0.0.1:7174"), at("0.0.0.0:80")];
        let policy = Policy { reserved, ..Policy::default() };
        for (addr, may) in [
            ("10.0.0.1:7174", false),
            ("0.0.0.0:7174", false),
            ("10.0.0.2:7174", true),
            ("10.0.0.1:7175", true),
            ("10.0.0.9:80", false),
            ("0.0.0.0:80", false),
            ("0.0.0.0:81", true),
            ("[fd00::1]:7174", true),
            ("[fd00::1]:80", true),
            ("[::]:80", false),
            ("[::]:7174", false),
            ("[::]:81", true),
        ] {
            assert_eq!(policy.may_listen((at(addr), false)), may, "{addr}");
        }
        assert!(policy.may_listen((at("[::]:80"), true)), "IPv6 alone");
        let reserved = vec![at("[::]:80")];
        let policy = Policy { reserved, ..Policy::default() };
        for addr in ["10.0.0.1:80", "0.0.0.0:80", "[fd00::1]:80", "[::]:80"] {
            assert!(!policy.may_listen((at(addr), true)), "{addr}");
        }
        let nowhere = Policy { listen: vec![], ..Policy::default() };
        assert!(
            !nowhere.may_listen((at("10.0.0.1:1"), false)) && nowhere.may_connect(at("10.0.0.1:1"))
        );
    }

    #[test]
    fn test_wildcard_needs_a_rule_for_each_family_that_it_takes() {
        let at = |s: &str| s.parse::<SocketAddr>().unwrap();
        let [four, six] = Addresses::any().try_into().unwrap();
        for (listen, any4, any6, both) in [
            (vec![], false, false, false),
            (vec![four.clone()], true, false, false),
            (vec![six.clone()], false, true, false),
            (vec![four, six], true, true, true),
        ] {
            let policy = Policy { listen, ..Policy::default() };
            let may = |addr, v6_only| policy.may_listen((at(addr), v6_only));
            let seen = (may("0.0.0.0:1", false), may("[::]:1", true), may("[::]:1", false));
            assert_eq!(seen, (any4, any6, both), "{:?}", policy.listen);
        }
    }

    #[test]
    fn test_default_policy_has_room_for_all_its_applications() {
        let (policy, open) = (Policy::default(), OpenParams::default());
        assert!(policy.queues >= u64::from(policy.sessions) * open.queues as u64);
        // A program of libibverbs has a region for each part of its address space that contains
        // memory of its own.
        assert!(policy.regions >= 8 * policy.sessions);
        assert!(policy.mapped >= 16 * (1 << 30) * u64::from(policy.regions));
    }

    #[test]
    fn test_address_rule_matches_its_prefix_and_ports() {
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
