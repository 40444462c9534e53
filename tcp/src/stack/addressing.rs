//! Our addresses on the links of a port and of its VLANs, and the routes to everywhere else.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use crate::autoconf::{RouterAdverts, of_station};
use crate::wire::{Priority, Vid};

/// The most addresses of a port without its VLANs, and of each VLAN. The stack searches all of them
/// for every connection that we or a peer open.
pub const MAX_ADDRS: usize = 64;
/// The most routes of a port without its VLANs, and of each VLAN. The stack searches them as it
/// searches addresses.
pub const MAX_ROUTES: usize = 256;
/// The most VLANs of a port.
pub const MAX_VLANS: usize = 64;

/// An address with a prefix: one of ours with its link, or the addresses that a route leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    addr: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// Returns `addr` on a link whose addresses share their first `prefix` bits; `None` when an
    /// address has fewer bits.
    pub fn new(addr: IpAddr, prefix: u8) -> Option<Cidr> {
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        (prefix <= bits).then_some(Cidr { addr, prefix })
    }

    /// Returns the address, with all its bits.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Returns the number of bits that the addresses of the link share.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Returns true if `other` is on the same link.
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.addr, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()) & self.mask4() == 0,
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let shift = 128 - u32::from(self.prefix);
                (a.to_bits() ^ b.to_bits()).checked_shr(shift).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    /// Returns true if `other` names all stations of the link, in today's form or the old all-zeros
    /// form.
    fn is_broadcast(&self, other: IpAddr) -> bool {
        let (IpAddr::V4(_), IpAddr::V4(other)) = (self.addr, other) else { return false };
        let host = other.to_bits() & !self.mask4();
        // A /31 has two hosts and no broadcast address (RFC 3021); a /32 has no link.
        self.prefix < 31 && self.contains(IpAddr::V4(other)) && (host == 0 || host == !self.mask4())
    }

    /// Returns true if the address has no bits beyond its prefix: it names a network, and no
    /// address in it.
    fn is_network(&self) -> bool {
        match self.addr {
            IpAddr::V4(a) => a.to_bits() & !self.mask4() == 0,
            IpAddr::V6(a) => a.to_bits().checked_shl(u32::from(self.prefix)).unwrap_or(0) == 0,
        }
    }

    /// Returns true if the address names any router of its link, and no single host (RFC 4291
    /// section 2.6.1): the prefix alone. A link of two hosts has no such address (RFC 6164).
    fn is_any_router(&self) -> bool {
        self.addr.is_ipv6() && self.prefix < 127 && self.is_network()
    }

    fn mask4(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

/// The error for text that is not `ADDRESS/PREFIX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected ADDRESS/PREFIX, such as 192.0.2.1/24")]
pub struct CidrError;

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(s: &str) -> Result<Cidr, CidrError> {
        let (addr, prefix) = s.split_once('/').ok_or(CidrError)?;
        let addr = addr.parse().map_err(|_| CidrError)?;
        Cidr::new(addr, prefix.parse().map_err(|_| CidrError)?).ok_or(CidrError)
    }
}

/// A way to hosts that are on no link of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The hosts that the route leads to: a network, without bits beyond its prefix.
    pub dest: Cidr,
    /// The router that forwards datagrams to these hosts; it is itself on a link of ours.
    pub via: IpAddr,
}

impl Route {
    /// Returns the route to all hosts that no other route leads to.
    pub fn default_via(via: IpAddr) -> Route {
        let any = match via {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Route { dest: Cidr { addr: any, prefix: 0 }, via }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} via {}", self.dest, self.via)
    }
}

/// Why a port cannot have the given addresses or routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddrError {
    /// A route leads to addresses of one family through a router of another.
    #[error("{0}: the router has an address of the other family")]
    Family(Route),
    /// No single host can have the address on its link.
    #[error("{0} is no address for a host: it names none, many, or the host itself")]
    NotAHost(Cidr),
    /// The list has the same address twice.
    #[error("{0} is given twice")]
    Twice(IpAddr),
    /// A gateway is unreachable because it is on no link of ours.
    #[error("the gateway {0} is on no link of ours")]
    Gateway(IpAddr),
    /// A route has a host's address with the prefix of its network, so its meaning is unclear.
    #[error("{0} is no network: it has bits beyond its prefix")]
    NotANetwork(Cidr),
    /// The list has two routes to the same network.
    #[error("there are two routes to {0}")]
    RouteTwice(Cidr),
    /// The list has more than [`MAX_ADDRS`] addresses.
    #[error("{0} addresses: a port can have {MAX_ADDRS}")]
    TooManyAddrs(usize),
    /// The list has more than [`MAX_ROUTES`] routes.
    #[error("{0} routes: a port can have {MAX_ROUTES}")]
    TooManyRoutes(usize),
    /// The list has the same VLAN twice.
    #[error("VLAN {0} is given twice")]
    VlanTwice(Vid),
    /// The list has more than [`MAX_VLANS`] VLANs.
    #[error("{0} VLANs: a port can have {MAX_VLANS}")]
    TooManyVlans(usize),
}

/// The addresses and routes of a port and of its VLANs, checked to contain no [`AddrError`].
///
/// A port is a link without its VLANs, and each VLAN is another link. Most functions concern one
/// link; [`on`](Self::on) returns the addresses and routes of a VLAN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addressing {
    addrs: Vec<Cidr>,
    routes: Vec<Route>,
    /// Addresses that serve new connections only if no other does (RFC 4862 section 5.5.4).
    deprecated: Vec<IpAddr>,
    /// The MTU of our links for IPv6, if it is below the port's.
    ipv6_mtu: Option<u16>,
    /// Routers that could take the place of the default router for IPv6.
    spare_routers: Vec<Ipv6Addr>,
    place: Place,
    station: Option<[u8; 6]>,
    vlans: Vec<Vlan>,
}

/// A VLAN of a port: a link of its own, with addresses and routes of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// The VLAN's identifier.
    pub vid: Vid,
    /// How its frames get their priority.
    pub priority: Priority,
    /// Which advertisements of its routers count, besides `net`.
    pub router_adverts: RouterAdverts,
    /// Our addresses and routes, without further VLANs.
    pub net: Addressing,
}

impl Vlan {
    /// Returns a VLAN with these addresses and routes, whose frames have priority 0, and which takes
    /// nothing from routers.
    pub fn new(vid: Vid, net: Addressing) -> Vlan {
        let (priority, router_adverts) = (Priority::default(), RouterAdverts::Ignore);
        Vlan { vid, priority, router_adverts, net }
    }
}

/// The addresses of a VLAN that a port does not have.
static NOWHERE: Addressing = Addressing {
    addrs: Vec::new(),
    routes: Vec::new(),
    deprecated: Vec::new(),
    ipv6_mtu: None,
    spare_routers: Vec::new(),
    place: Place::Beyond,
    station: None,
    vlans: Vec::new(),
};

/// The place of the hosts that a stack speaks with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Beyond the port: no such host has an address of ours.
    #[default]
    Beyond,
    /// Inside the host: each such host has an address of ours, and all frames come back to the
    /// stack that sends them.
    Inside {
        /// True if 127.0.0.0/8 is ours (RFC 1122 section 3.2.1.3 (g)).
        loopback: bool,
    },
}

/// The source of connections to 127.0.0.0/8 that ask for no source, and the same for IPv6.
const LOCALHOST6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The way to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Our address on the link that carries the frames. This address is our end of connections to
    /// the host unless the caller asks for another of our addresses.
    pub local: IpAddr,
    /// The neighbor that receives the frames: the host itself, or a gateway.
    pub next: IpAddr,
    /// Bits of the prefix by which the lookup found this hop.
    pub prefix: u8,
    /// The VLAN of that link.
    pub vid: Vid,
}

impl Addressing {
    /// Returns these addresses and routes, if a host can have them.
    ///
    /// # Errors
    /// Returns the first address or route that a host cannot have; see [`AddrError`].
    pub fn new(addrs: Vec<Cidr>, routes: Vec<Route>) -> Result<Addressing, AddrError> {
        if addrs.len() > MAX_ADDRS {
            return Err(AddrError::TooManyAddrs(addrs.len()));
        }
        if routes.len() > MAX_ROUTES {
            return Err(AddrError::TooManyRoutes(routes.len()));
        }
        let mut net = Addressing::default();
        for c in addrs {
            net.add_addr(c)?;
        }
        for r in routes {
            net.add_route(r)?;
        }
        Ok(net)
    }

    /// Returns the addresses of a stack that speaks with itself alone: connections lead from one
    /// address of ours to another, or to the same, and the stack asks for no neighbor. The ports
    /// that have `addrs` have checked them. With `loopback` ::1 and all of 127.0.0.0/8 are ours too,
    /// except for that network's first and last address.
    pub fn inside(addrs: impl IntoIterator<Item = IpAddr>, loopback: bool) -> Addressing {
        let own = |addr: IpAddr| Cidr::new(addr, if addr.is_ipv4() { 32 } else { 128 });
        let mut addrs: Vec<_> = addrs.into_iter().filter_map(own).collect();
        if loopback {
            addrs.push(Cidr { addr: LOCALHOST, prefix: 8 });
            addrs.push(Cidr { addr: LOCALHOST6, prefix: 128 });
        }
        Addressing { addrs, place: Place::Inside { loopback }, ..Addressing::default() }
    }

    /// Returns the same addresses as the port with this station address has them. A port with an IPv6
    /// address also has a link-local address, without which no router speaks with it (RFC 4291
    /// section 2.8). Unless `self` has one, it is made of the station address (RFC 4291 appendix A).
    #[must_use]
    pub fn with_station(mut self, mac: [u8; 6]) -> Addressing {
        self.station = Some(mac);
        if self.has_ipv6() && !self.addrs.iter().any(|c| is_link_local(c.addr)) {
            let ip = of_station([0xfe80, 0, 0, 0], mac);
            self.addrs.push(Cidr { addr: IpAddr::V6(ip), prefix: 64 });
        }
        for vlan in &mut self.vlans {
            vlan.net = core::mem::take(&mut vlan.net).with_station(mac);
        }
        self
    }

    /// Returns the station address of the port, once it is known.
    pub fn station(&self) -> Option<[u8; 6]> {
        self.station
    }

    /// Returns the same addresses at the port of `other`.
    #[must_use]
    pub fn at_port_of(self, other: &Addressing) -> Addressing {
        match other.station {
            Some(mac) => self.with_station(mac),
            None => self,
        }
    }

    /// Returns the same addresses, of which new connections use these only if no other serves.
    #[must_use]
    pub fn with_deprecated(self, deprecated: Vec<IpAddr>) -> Addressing {
        Addressing { deprecated, ..self }
    }

    /// Returns the same addresses on links whose MTU for IPv6 is `mtu`, or else the port's.
    #[must_use]
    pub fn with_ipv6_mtu(self, mtu: Option<u16>) -> Addressing {
        Addressing { ipv6_mtu: mtu, ..self }
    }

    /// Returns the MTU of our links for IPv6; `None` for the port's.
    pub fn ipv6_mtu(&self) -> Option<u16> {
        self.ipv6_mtu
    }

    /// Returns the same with routers that could take the place of the default router for IPv6: where
    /// that one does not answer, a stack looks for one of these
    /// ([`LinkNews::RouterAnswers`](crate::LinkNews::RouterAnswers)).
    #[must_use]
    pub fn with_spare_routers(self, spare_routers: Vec<Ipv6Addr>) -> Addressing {
        Addressing { spare_routers, ..self }
    }

    /// Returns the same without spare routers.
    pub(super) fn without_spare_routers(&self) -> Addressing {
        let vlan = |v: &Vlan| Vlan { net: v.net.without_spare_routers(), ..v.clone() };
        let vlans = self.vlans.iter().map(vlan).collect();
        Addressing { spare_routers: Vec::new(), vlans, ..self.clone() }
    }

    /// Returns the routers for whom `silent` is the default router that they could replace.
    pub(super) fn spares_of(&self, silent: IpAddr) -> &[Ipv6Addr] {
        let default = |r: &Route| r.via == silent && r.via.is_ipv6() && r.dest.prefix() == 0;
        if self.routes.iter().any(default) { &self.spare_routers } else { &[] }
    }

    fn has_ipv6(&self) -> bool {
        !self.is_inside() && self.addrs.iter().any(|c| c.addr.is_ipv6())
    }

    /// Returns true if these are the addresses of a stack that speaks with itself alone.
    pub fn is_inside(&self) -> bool {
        self.place != Place::Beyond
    }

    fn add_addr(&mut self, c: Cidr) -> Result<(), AddrError> {
        if self.is_ours(c.addr) {
            return Err(AddrError::Twice(c.addr));
        }
        if !self.is_peer(c.addr) || c.is_broadcast(c.addr) || c.is_any_router() {
            return Err(AddrError::NotAHost(c));
        }
        let named = |o: &&Cidr| c.is_broadcast(o.addr);
        if let Some(&other) = self.addrs.iter().find(named) {
            return Err(AddrError::NotAHost(other));
        }
        self.addrs.push(c);
        Ok(())
    }

    fn add_route(&mut self, r: Route) -> Result<(), AddrError> {
        if r.dest.addr.is_ipv4() != r.via.is_ipv4() {
            return Err(AddrError::Family(r));
        }
        if !r.dest.is_network() {
            return Err(AddrError::NotANetwork(r.dest));
        }
        if self.routes.iter().any(|other| other.dest == r.dest) {
            return Err(AddrError::RouteTwice(r.dest));
        }
        // The port will have a link-local address as soon as it has a station.
        let on_link = self.link_to(r.via).is_some() || is_link_local(r.via) && self.has_ipv6();
        if !self.is_peer(r.via) || !on_link {
            return Err(AddrError::Gateway(r.via));
        }
        self.routes.push(r);
        Ok(())
    }

    /// Returns our addresses, each with the prefix of its link.
    pub fn addrs(&self) -> &[Cidr] {
        &self.addrs
    }

    /// Returns the routes to hosts on no link of ours.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Returns true if `ip` is one of our addresses.
    pub fn is_ours(&self, ip: IpAddr) -> bool {
        self.addrs.iter().any(|c| c.addr == ip) || self.is_loopback(ip)
    }

    /// Returns true if `ip` is in 127.0.0.0/8 and this stack has that network.
    fn is_loopback(&self, ip: IpAddr) -> bool {
        let (IpAddr::V4(ip), Place::Inside { loopback: true }) = (ip, self.place) else {
            return false;
        };
        ip.is_loopback() && !matches!(ip.octets(), [127, 0, 0, 0] | [127, 255, 255, 255])
    }

    /// Returns true if `ip` can be the address of another host that we speak TCP with; inside the
    /// host, of ourselves.
    pub(super) fn is_peer(&self, ip: IpAddr) -> bool {
        if self.is_inside() {
            return self.is_ours(ip);
        }
        let names_a_host = match ip {
            IpAddr::V4(ip) => {
                ip.octets()[0] != 0
                    && ip.octets()[0] < 240
                    && !ip.is_loopback()
                    && !ip.is_multicast()
                    && !self.is_broadcast(ip.into())
            }
            // An IPv4 address in IPv6's form belongs in no header (RFC 4942 section 2.2).
            IpAddr::V6(ip) => {
                !ip.is_unspecified()
                    && !ip.is_loopback()
                    && !ip.is_multicast()
                    && ip.to_ipv4_mapped().is_none()
            }
        };
        names_a_host && !self.is_ours(ip)
    }

    /// Returns true if `ip` names all stations of a link of ours.
    pub(super) fn is_broadcast(&self, ip: IpAddr) -> bool {
        matches!(ip, IpAddr::V4(ip) if ip.is_broadcast())
            || self.addrs.iter().any(|c| c.is_broadcast(ip))
    }

    /// Returns the address under which the stack counts what `ip` of this link causes. A host beyond our links
    /// has as many IPv6 addresses as it likes in a network of 64 bits, so all of these count as
    /// one.
    fn site(&self, ip: IpAddr) -> IpAddr {
        match ip {
            IpAddr::V6(v6) if self.link(ip).is_none() => {
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)))
            }
            _ => ip,
        }
    }

    /// Returns our address on the link that `ip` is on, and the link's prefix. Among several links
    /// the longest prefix wins, then the first link.
    fn link(&self, ip: IpAddr) -> Option<(IpAddr, u8)> {
        self.preferred(|c| c.contains(ip).then_some((c.addr, c.prefix)))
    }

    /// Returns the address for which `rank` gives the most bits, the first of several. A deprecated
    /// address serves only if no other does (RFC 6724 section 5, rule 3).
    fn preferred(&self, rank: impl Fn(&Cidr) -> Option<(IpAddr, u8)>) -> Option<(IpAddr, u8)> {
        if self.deprecated.is_empty() {
            return longest(self.addrs.iter().filter_map(rank));
        }
        let (old, new): (Vec<&Cidr>, Vec<&Cidr>) =
            self.addrs.iter().partition(|c| self.deprecated.contains(&c.addr));
        longest(new.into_iter().filter_map(&rank))
            .or_else(|| longest(old.into_iter().filter_map(&rank)))
    }

    /// Returns our address on the link that `ip` is on.
    pub(super) fn link_to(&self, ip: IpAddr) -> Option<IpAddr> {
        self.link(ip).map(|(local, _)| local)
    }

    /// Returns true if a route leads through `ip`.
    pub(super) fn is_gateway(&self, ip: IpAddr) -> bool {
        self.routes.iter().any(|r| r.via == ip)
    }

    /// Returns the way to `remote` on this link, by the longest prefix that `remote` has in common
    /// with an address of ours or a route's network. The address wins when both are equally long.
    pub fn route(&self, remote: IpAddr) -> Option<Hop> {
        if self.is_inside() {
            let local = match remote {
                IpAddr::V4(to) if to.is_loopback() => LOCALHOST,
                _ => remote,
            };
            let prefix = if remote.is_ipv4() { 32 } else { 128 };
            let vid = Vid::NONE;
            return self.is_ours(remote).then_some(Hop { local, next: remote, prefix, vid });
        }
        let (link, vid) = (self.link(remote), Vid::NONE);
        let routes = self.routes.iter().filter(|r| r.dest.contains(remote));
        let route = longest(routes.map(|r| (r.via, r.dest.prefix)));
        match (link, route) {
            (Some((local, prefix)), None) => Some(Hop { local, next: remote, prefix, vid }),
            (Some((local, prefix)), Some((_, other))) if other <= prefix => {
                Some(Hop { local, next: remote, prefix, vid })
            }
            (_, Some((next, prefix))) => {
                let local = self.source(next, remote)?;
                Some(Hop { local, next, prefix, vid })
            }
            (None, None) => None,
        }
    }

    /// Returns our end of connections to `remote`, which is beyond the router `next`. Over IPv4
    /// that is our address on the router's link. IPv6 routers have link-local addresses, which no
    /// host beyond them can answer: there the address that has the most bits in common with
    /// `remote` serves, if it is no link-local one (RFC 6724 section 5, rules 2, 3 and 8).
    fn source(&self, next: IpAddr, remote: IpAddr) -> Option<IpAddr> {
        let IpAddr::V6(remote) = remote else { return self.link_to(next) };
        let common = |c: &Cidr| match c.addr {
            IpAddr::V6(ip) if is_link_local(c.addr) == remote.is_unicast_link_local() => {
                let bits = (ip.to_bits() ^ remote.to_bits()).leading_zeros();
                Some((c.addr, u8::try_from(bits).unwrap_or(u8::MAX)))
            }
            _ => None,
        };
        self.preferred(common).map(|(local, _)| local)
    }

    /// Returns the addresses of this link among which connections to hosts beyond the router `next`
    /// have their end: over IPv4 a single one; over IPv6, the address that has the most bits in common
    /// with the host serves, the first of several.
    pub fn ends(&self, next: IpAddr) -> Vec<IpAddr> {
        if next.is_ipv4() {
            return self.link_to(next).into_iter().collect();
        }
        let far = |c: &&Cidr| c.addr.is_ipv6() && !is_link_local(c.addr);
        let all = self.addrs.iter().filter(far).map(|c| c.addr);
        let (old, new): (Vec<_>, Vec<_>) = all.partition(|ip| self.deprecated.contains(ip));
        if new.is_empty() { old } else { new }
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns the entry with the longest prefix, the first of several.
fn longest(found: impl Iterator<Item = (IpAddr, u8)>) -> Option<(IpAddr, u8)> {
    found.reduce(|best, other| if other.1 > best.1 { other } else { best })
}

/// Checks whether a port can have these addresses and this gateway, and no other route.
///
/// # Errors
/// See [`AddrError`].
pub fn check_addrs(addrs: &[Cidr], gateway: Option<IpAddr>) -> Result<(), AddrError> {
    Addressing::new(addrs.to_vec(), gateway.map(Route::default_via).into_iter().collect()).map(drop)
}

mod vlans;

pub use vlans::SCOPE_PORT_BITS;

#[cfg(test)]
mod tests;
