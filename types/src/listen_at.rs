//! The addresses that a listener takes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of the RNIC at which a listener takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListenAt {
    /// A single address.
    One(IpAddr),
    /// All IPv4 addresses.
    Ipv4,
    /// All IPv6 addresses.
    Ipv6,
    /// All addresses of both families.
    All,
}

impl ListenAt {
    /// Returns the addresses that `ip` stands for, as in other systems: `0.0.0.0` for all IPv4
    /// addresses, `::` for the addresses of both families unless `v6_only`, and any other address
    /// for itself.
    pub const fn new(ip: IpAddr, v6_only: bool) -> ListenAt {
        match ip {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => ListenAt::Ipv4,
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) if v6_only => ListenAt::Ipv6,
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => ListenAt::All,
            ip => ListenAt::One(ip),
        }
    }

    /// Returns the address, if it is a single one.
    pub const fn one(self) -> Option<IpAddr> {
        match self {
            ListenAt::One(ip) => Some(ip),
            _ => None,
        }
    }

    /// Returns the places at which a listener for connections to `ip` may be, the most specific
    /// first.
    pub const fn places(ip: IpAddr) -> [ListenAt; 3] {
        let family = if ip.is_ipv4() { ListenAt::Ipv4 } else { ListenAt::Ipv6 };
        [ListenAt::One(ip), family, ListenAt::All]
    }

    /// Returns the rank of this place among those at which a listener for connections to `ip` may be
    /// ([`places`](ListenAt::places)), the most specific first; `None` if it is none of them.
    #[inline]
    pub fn rank(self, ip: IpAddr) -> Option<usize> {
        match self {
            ListenAt::One(own) => (own == ip).then_some(0),
            ListenAt::Ipv4 => ip.is_ipv4().then_some(1),
            ListenAt::Ipv6 => ip.is_ipv6().then_some(1),
            ListenAt::All => Some(2),
        }
    }

    /// Returns true if `ip` is among the addresses.
    pub fn takes(self, ip: IpAddr) -> bool {
        self.rank(ip).is_some()
    }

    /// Returns true if any address is among both.
    pub fn meets(self, other: ListenAt) -> bool {
        match (self, other) {
            (ListenAt::One(ip), other) | (other, ListenAt::One(ip)) => other.takes(ip),
            (ListenAt::All, _) | (_, ListenAt::All) => true,
            (a, b) => a == b,
        }
    }

    /// Returns true if no two listeners may have these addresses and the same port. A single address
    /// excludes no wildcard: its listener takes the connections to that address.
    pub fn excludes(self, other: ListenAt) -> bool {
        self.meets(other) && self.one().is_some() == other.one().is_some()
    }
}

impl From<Option<IpAddr>> for ListenAt {
    /// Returns a single address, or all addresses for `None`.
    fn from(ip: Option<IpAddr>) -> ListenAt {
        ip.map_or(ListenAt::All, ListenAt::One)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: &str, v6_only: bool) -> ListenAt {
        ListenAt::new(ip.parse().unwrap(), v6_only)
    }

    #[test]
    fn test_wildcards_take_their_families() {
        for (at, four, six) in [
            (at("0.0.0.0", false), true, false),
            (at("0.0.0.0", true), true, false),
            (at("::", false), true, true),
            (at("::", true), false, true),
            (at("10.0.0.1", false), true, false),
            (at("fd00::1", false), false, true),
            (at("10.0.0.2", false), false, false),
        ] {
            let takes = |ip: &str| at.takes(ip.parse().unwrap());
            assert_eq!((takes("10.0.0.1"), takes("fd00::1")), (four, six), "{at:?}");
        }
    }

    #[test]
    fn test_wildcards_of_one_family_exclude_each_other() {
        let all = ["0.0.0.0", "::", "10.0.0.1", "fd00::1"].map(|ip| at(ip, false));
        let [four, both, one4, one6] = all;
        let six = at("::", true);
        for (a, b, meets, excludes) in [
            (four, four, true, true),
            (four, both, true, true),
            (six, both, true, true),
            (four, six, false, false),
            (four, one4, true, false),
            (four, one6, false, false),
            (six, one6, true, false),
            (both, one6, true, false),
            (one4, one4, true, true),
            (one4, one6, false, false),
        ] {
            assert_eq!((a.meets(b), b.meets(a)), (meets, meets), "{a:?} {b:?}");
            assert_eq!((a.excludes(b), b.excludes(a)), (excludes, excludes), "{a:?} {b:?}");
        }
    }
}
