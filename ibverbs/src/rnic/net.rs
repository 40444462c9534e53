//! The RNIC's addresses as a program names them.
//!
//! A link-local address means a host only together with a link. Programs name the link by the number
//! of a kernel interface, the *scope*; the RNIC has ports. A port's scope is the interface with its
//! Ethernet address, or with an address of the port: a port over an interface of the kernel, and a
//! private RNIC, which has its host's addresses. A port without an interface has its own number as
//! scope, from 1 on, and a program may name every port by its number.

use std::net::{IpAddr, SocketAddr};

use heddle_verbs::{PortInfo, PortRoute};

use super::interfaces::At;

/// The addresses of a port.
#[derive(Clone, Debug)]
struct Port {
    mac: [u8; 6],
    /// Each address with the length of its link's prefix.
    addresses: Vec<(IpAddr, u8)>,
    routes: Vec<PortRoute>,
}

/// The RNIC's ports, and the interfaces of the program's host.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    ports: Vec<Port>,
    interfaces: Vec<(u32, At)>,
}

impl Net {
    /// Takes the ports of a device, and the addresses of the kernel's interfaces.
    pub(crate) fn new(ports: Vec<PortInfo>, interfaces: Vec<(u32, At)>) -> Net {
        let addresses = |p: &PortInfo| p.addresses.iter().map(|a| (a.addr, a.prefix)).collect();
        let port = |p: PortInfo| Port { mac: p.mac, addresses: addresses(&p), routes: p.routes };
        Net { ports: ports.into_iter().map(port).collect(), interfaces }
    }

    /// Returns true if the address is the RNIC's. A link-local address has to have the scope of its
    /// port.
    pub(crate) fn has(&self, addr: SocketAddr) -> bool {
        let link = is_link_local(addr.ip());
        let in_scope = |port: &usize| !link || self.is_scope_of(scope(addr), *port);
        self.ports_with(addr.ip()).any(|port| in_scope(&port))
    }

    /// Returns the address from which the RNIC reaches `dst`, if it does.
    pub(crate) fn source_for(&self, dst: SocketAddr) -> Option<SocketAddr> {
        let (ip, link) = (dst.ip(), scope(dst));
        if is_link_local(ip) {
            // Without a scope the first port with such an address serves, as on Linux.
            let ports = 0..self.ports.len();
            let mut ports = ports.filter(|&port| link == 0 || self.is_scope_of(link, port));
            return ports.find_map(|port| {
                let of_port = &self.ports[port].addresses;
                let ours = |ours: &&(IpAddr, u8)| is_link_local(ours.0);
                let same = of_port.iter().find(|(ours, _)| *ours == ip);
                let (ours, _) = same.or(of_port.iter().find(ours))?;
                let scope = if link == 0 { self.scope_of(port) } else { link };
                Some(at(*ours, scope))
            });
        }
        if self.ports_with(ip).next().is_some() {
            return Some(at(ip, 0));
        }
        let ways = self.ports.iter().flat_map(|port| port.ways(ip));
        let way = ways.reduce(|best, other| if other.1 > best.1 { other } else { best });
        // An RNIC that has no routes, or shows none, fails the connection itself.
        let far = |ours: &IpAddr| {
            ours.is_ipv4() == ip.is_ipv4() && !ours.is_loopback() && !is_link_local(*ours)
        };
        let far = || {
            let routed = self.ports.iter().any(|port| !port.routes.is_empty());
            self.addresses().map(|(ours, _)| ours).find(far).filter(|_| !routed)
        };
        way.map(|(ours, _)| ours).or_else(far).map(|ours| at(ours, 0))
    }

    /// Returns the number of the port, from 1 on, that a link-local peer's scope names; 0 without a
    /// scope or a port.
    pub(crate) fn port_number(&self, scope: u32) -> u32 {
        let port = (0..self.ports.len()).find(|&port| self.is_scope_of(scope, port));
        port.map_or(0, number)
    }

    /// Returns the addresses of a connection with the scopes of its link-local ones. Both are on the
    /// link of `local`.
    pub(crate) fn scoped(&self, local: SocketAddr, remote: SocketAddr) -> (SocketAddr, SocketAddr) {
        let port = self.ports_with(local.ip()).next();
        let link = port.map_or(0, |port| self.scope_of(port));
        let scoped = |addr: SocketAddr| match addr {
            SocketAddr::V6(mut v6) if v6.ip().is_unicast_link_local() => {
                v6.set_scope_id(link);
                SocketAddr::V6(v6)
            }
            other => other,
        };
        (scoped(local), scoped(remote))
    }

    fn addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        self.ports.iter().flat_map(|port| port.addresses.iter().copied())
    }

    /// Returns the ports that have the address. The whole loopback network belongs to a host.
    fn ports_with(&self, ip: IpAddr) -> impl Iterator<Item = usize> {
        let has = move |port: &Port| {
            port.addresses
                .iter()
                .any(|&(ours, bits)| ours == ip || ours.is_loopback() && in_network(ip, ours, bits))
        };
        self.ports.iter().enumerate().filter(move |(_, port)| has(port)).map(|(index, _)| index)
    }

    /// Returns true if the interface with this number is the port's.
    fn is_scope_of(&self, scope: u32, port: usize) -> bool {
        scope == number(port) && !self.ports[port].has_loopback()
            || self.interfaces_of(port).any(|index| index == scope)
    }

    /// Returns the scope of a port's link.
    fn scope_of(&self, port: usize) -> u32 {
        self.interfaces_of(port).next().unwrap_or(number(port))
    }

    /// Returns the interfaces that have the port's Ethernet address, or a link-local address of the
    /// port.
    fn interfaces_of(&self, port: usize) -> impl Iterator<Item = u32> {
        let port = &self.ports[port];
        let is = move |at: &At| match *at {
            At::Mac(mac) => mac == port.mac && mac != [0; 6],
            At::Ip(ip) => is_link_local(ip) && port.addresses.iter().any(|(ours, _)| *ours == ip),
        };
        self.interfaces.iter().filter(move |(_, at)| is(at)).map(|(index, _)| *index)
    }
}

impl Port {
    /// Returns the ways to a host, the better of equal ones first: our address, and the length of the
    /// prefix that the host has in common with a link or a route's network.
    fn ways(&self, ip: IpAddr) -> impl Iterator<Item = (IpAddr, u8)> {
        let links = self.addresses.iter().copied();
        let links = links.filter(move |&(ours, bits)| in_network(ip, ours, bits));
        let routes = self.routes.iter().filter(move |r| in_network(ip, r.to, r.prefix));
        let routes = routes.filter_map(move |r| Some((nearest(&r.from, ip)?, r.prefix)));
        links.chain(routes)
    }

    /// Returns true for the only port of a private RNIC, which has no link of its own.
    fn has_loopback(&self) -> bool {
        self.addresses.iter().any(|(ours, _)| ours.is_loopback())
    }
}

fn number(port: usize) -> u32 {
    u32::try_from(port).map_or(u32::MAX, |port| port.saturating_add(1))
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn scope(addr: SocketAddr) -> u32 {
    if let SocketAddr::V6(v6) = addr { v6.scope_id() } else { 0 }
}

fn at(ip: IpAddr, scope: u32) -> SocketAddr {
    let mut addr = SocketAddr::new(ip, 0);
    if let SocketAddr::V6(v6) = &mut addr {
        v6.set_scope_id(scope);
    }
    addr
}

/// Returns the address that has the most bits in common with `ip`, the first of several, as the RNIC
/// chooses it.
fn nearest(all: &[IpAddr], ip: IpAddr) -> Option<IpAddr> {
    let common = |ours: IpAddr| match (ours, ip) {
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => 0,
    };
    all.iter()
        .copied()
        .reduce(|best, other| if common(other) > common(best) { other } else { best })
}

fn in_network(ip: IpAddr, ours: IpAddr, bits: u8) -> bool {
    let (differ, length) = match (ip, ours) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), 128),
        _ => return false,
    };
    let beyond = length - u32::from(bits).min(length);
    differ.checked_shr(beyond).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use heddle_verbs::PortAddr;

    use super::*;

    fn port(mac: u8, addresses: &[&str]) -> PortInfo {
        let address = |text: &&str| {
            let (addr, prefix) = text.split_once('/').unwrap();
            PortAddr { addr: addr.parse().unwrap(), prefix: prefix.parse().unwrap() }
        };
        PortInfo {
            mac: [mac; 6],
            addresses: addresses.iter().map(address).collect(),
            ..PortInfo::default()
        }
    }

    fn route(to: &str, from: &[&str]) -> PortRoute {
        let (to, prefix) = to.split_once('/').unwrap();
        let from = from.iter().map(|ip| ip.parse().unwrap()).collect();
        PortRoute { to: to.parse().unwrap(), prefix: prefix.parse().unwrap(), from }
    }

    /// The ports of [`two_ports`], with routes by both.
    fn routed() -> Net {
        let mut net = two_ports();
        net.ports[0].routes =
            vec![route("10.8.0.0/16", &["10.0.0.1"]), route("fd00:2::/16", &["fd00:1::1"])];
        net.ports[1].routes = vec![
            route("0.0.0.0/0", &["10.0.1.1"]),
            route("10.0.0.128/25", &["10.0.1.1"]),
            route("::/0", &["fd00:2::1", "fd00:2:0:0:8::1"]),
        ];
        net
    }

    #[test]
    fn test_source_is_that_of_the_best_route() {
        for (dst, source) in [
            ("10.0.0.9:1", Some("10.0.0.1:0")),
            ("10.0.0.129:1", Some("10.0.1.1:0")),
            ("10.0.1.9:1", Some("10.0.1.1:0")),
            ("10.8.0.1:1", Some("10.0.0.1:0")),
            ("10.9.0.1:1", Some("10.0.1.1:0")),
            ("10.0.0.1:1", Some("10.0.0.1:0")),
            ("[fd00:9::1]:1", Some("[fd00:1::1]:0")),
            ("[2001:db8::1]:1", Some("[fd00:2::1]:0")),
            ("[fd00:2::9]:1", Some("[fd00:2::1]:0")),
        ] {
            assert_eq!(routed().source_for(addr(dst)), source.map(addr), "{dst}");
        }
        let mut one = routed();
        one.ports[1].routes.clear();
        assert_eq!(one.source_for(addr("10.9.0.1:1")), None, "as Linux without a route");
    }

    /// Two ports, the first of which is over interface 7 of the kernel.
    fn two_ports() -> Net {
        let one = port(1, &["10.0.0.1/24", "fd00:1::1/64", "fe80::1/64"]);
        let two = port(2, &["10.0.1.1/24", "fd00:2::1/64", "fd00:2:0:0:8::1/80", "fe80::2/64"]);
        let lo = (1, At::Ip("127.0.0.1".parse().unwrap()));
        Net::new(vec![one, two], vec![lo, (7, At::Mac([1; 6])), (9, At::Mac([9; 6]))])
    }

    fn private() -> Net {
        let own = ["192.0.2.1/32", "fd00::1/128", "fe80::1/128", "127.0.0.1/8", "::1/128"];
        let at = |ip: &str| At::Ip(ip.parse().unwrap());
        Net::new(vec![port(0, &own)], vec![(1, at("::1")), (3, at("fe80::1")), (4, at("fe80::2"))])
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn test_address_is_ours_only_in_its_scope() {
        for (text, ours) in [
            ("10.0.1.1:1", true),
            ("10.0.1.2:1", false),
            ("127.0.0.1:1", false),
            ("[fd00:1::1]:1", true),
            ("[::1]:1", false),
            ("[fe80::1%7]:1", true),
            ("[fe80::1%1]:1", true),
            ("[fe80::1%2]:1", false),
            ("[fe80::1%9]:1", false),
            ("[fe80::1]:1", false),
            ("[fe80::2%2]:1", true),
            ("[fe80::2%7]:1", false),
            ("[fe80::3%7]:1", false),
        ] {
            assert_eq!(two_ports().has(addr(text)), ours, "{text}");
        }
        for (text, ours) in [
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::2]:1", false),
            ("[fd00::1]:1", true),
            ("[fe80::1%3]:1", true),
            ("[fe80::1%1]:1", false),
            ("[fe80::1%4]:1", false),
            ("[fe80::2%4]:1", false),
        ] {
            assert_eq!(private().has(addr(text)), ours, "{text}");
        }
    }

    #[test]
    fn test_source_is_on_the_link_of_the_peer() {
        for (dst, source) in [
            ("10.0.1.9:1", Some("10.0.1.1:0")),
            ("10.9.0.1:1", Some("10.0.0.1:0")),
            ("[fd00:1::9]:1", Some("[fd00:1::1]:0")),
            ("[fd00:2::9]:1", Some("[fd00:2::1]:0")),
            ("[fd00:2:0:0:8::9]:1", Some("[fd00:2:0:0:8::1]:0")),
            ("[2001:db8::1]:1", Some("[fd00:1::1]:0")),
            ("[fd00:2::1]:1", Some("[fd00:2::1]:0")),
            ("[fe80::9%7]:1", Some("[fe80::1%7]:0")),
            ("[fe80::9%1]:1", Some("[fe80::1%1]:0")),
            ("[fe80::9%2]:1", Some("[fe80::2%2]:0")),
            ("[fe80::2%2]:1", Some("[fe80::2%2]:0")),
            ("[fe80::9]:1", Some("[fe80::1%7]:0")),
            ("[fe80::9%9]:1", None),
        ] {
            assert_eq!(two_ports().source_for(addr(dst)), source.map(addr), "{dst}");
        }
        let private = private();
        for (dst, source) in [
            ("127.3.0.1:1", Some("127.3.0.1:0")),
            ("[::1]:1", Some("[::1]:0")),
            ("[fe80::1%3]:1", Some("[fe80::1%3]:0")),
            ("[fe80::1%4]:1", None),
            ("[fd00::9]:1", Some("[fd00::1]:0")),
        ] {
            assert_eq!(private.source_for(addr(dst)), source.map(addr), "{dst}");
        }
        let only4 = Net::new(vec![port(1, &["10.0.0.1/24"])], Vec::new());
        assert_eq!(only4.source_for(addr("[fd00::1]:1")), None);
    }

    #[test]
    fn test_scopes_and_ports_lead_to_each_other() {
        let net = two_ports();
        let numbers = [0, 1, 2, 3, 7, 9].map(|scope| net.port_number(scope));
        assert_eq!(numbers, [0, 1, 2, 0, 1, 0]);
        let scoped = |local, remote| net.scoped(addr(local), addr(remote));
        let (local, remote) = ("[fe80::1%7]:1", "[fe80::9%7]:2");
        assert_eq!(scoped("[fe80::1]:1", "[fe80::9]:2"), (addr(local), addr(remote)));
        assert_eq!(scoped("[fd00:2::1]:1", "[fe80::9]:2").1, addr("[fe80::9%2]:2"));
        let global = (addr("[fd00:2::1]:1"), addr("10.0.0.2:2"));
        assert_eq!(net.scoped(global.0, global.1), global);
    }
}
