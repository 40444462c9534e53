//! The ports of an RNIC: the workers, addresses and routes of each.
//!
//! A worker belongs to one port, so only the workers of an address's port can reach that address,
//! and one of them has to make the connection. The longest prefix selects the port, just as it
//! selects among the links (VLANs are links of their own) and routes of one port.

use core::net::{IpAddr, SocketAddr};
use core::ops::Range;

use heddle_tcp::{Addressing, Hop, SCOPE_PORT_BITS};
use heddle_types::{ConnectError, RequestError, WorkerId};

use crate::ib::IbPort;

/// The reason why a set of ports is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortsError {
    /// Two ports have the same address.
    #[error("{0} is given to two ports")]
    Twice(IpAddr),
    /// The caller gave addresses for another number of ports than the RNIC has.
    #[error("addresses of {given} ports: there are {ports}")]
    Count {
        /// Number of ports for which addresses were given.
        given: usize,
        /// Number of ports of the RNIC.
        ports: usize,
    },
}

/// The ports of an RNIC. Workers are numbered from port to port, beginning with the first port's
/// workers.
///
/// An RNIC may also have an inner port ([`with_inner`](Self::with_inner)), over which it connects
/// to itself. The inner port has the last number, its workers come after all others, and its
/// addresses are those of all ports.
#[derive(Clone, Debug)]
pub struct Ports {
    all: Vec<Port>,
    /// Own addresses of the inner port, if there is one; then the last entry of `all` is the inner
    /// port.
    inner: Option<Own>,
}

/// Addresses that an inner port has beside the addresses of the other ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// All of 127.0.0.0/8, and ::1.
    pub loopback: bool,
    /// Other addresses: for example addresses of this host that other hosts reach through the
    /// kernel.
    pub addrs: Vec<IpAddr>,
}

#[derive(Clone, Debug)]
struct Port {
    workers: Range<usize>,
    net: Addressing,
}

impl Ports {
    /// Makes ports from each port's number of workers, and its addresses and routes.
    ///
    /// # Errors
    /// An address of two ports.
    pub fn new(ports: Vec<(usize, Addressing)>) -> Result<Ports, PortsError> {
        check(ports.iter().map(|(_, net)| net))?;
        let mut first = 0;
        let port = |(workers, net)| {
            let workers = first..first + workers;
            first = workers.end;
            Port { workers, net }
        };
        Ok(Ports { all: ports.into_iter().map(port).collect(), inner: None })
    }

    /// Makes a single port.
    pub fn one(workers: usize, net: Addressing) -> Ports {
        Ports { all: vec![Port { workers: 0..workers, net }], inner: None }
    }

    /// Returns the same ports with an inner port of that many workers. The inner port makes
    /// connections to addresses of the RNIC itself: to addresses of the ports, and to addresses in
    /// `own`.
    #[must_use]
    pub fn with_inner(mut self, workers: usize, own: Own) -> Ports {
        debug_assert!(self.inner.is_none());
        let (first, net) = (self.workers(), inside(self.all.iter().map(|p| &p.net), &own));
        self.all.push(Port { workers: first..first + workers, net });
        self.inner = Some(own);
        self
    }

    /// Returns the ports that lead to other hosts.
    fn outer(&self) -> &[Port] {
        &self.all[..self.all.len() - usize::from(self.inner.is_some())]
    }

    /// Returns the number of the inner port.
    pub(crate) fn inner(&self) -> Option<usize> {
        self.inner.as_ref().map(|_| self.all.len() - 1)
    }

    /// Returns the number of workers, over all ports.
    pub fn workers(&self) -> usize {
        self.all.last().map_or(0, |p| p.workers.end)
    }

    /// Returns the workers of a port.
    pub(crate) fn workers_of(&self, port: usize) -> impl Iterator<Item = WorkerId> + use<> {
        self.all.get(port).map(|p| p.workers.clone()).unwrap_or_default().map(WorkerId)
    }

    /// Returns true if the worker belongs to the inner port.
    pub(crate) fn is_inside(&self, worker: WorkerId) -> bool {
        self.inner().is_some_and(|inner| self.all[inner].workers.contains(&worker.0))
    }

    /// Returns the port that has the address. The inner port has the addresses of all ports, and is
    /// returned only for its own.
    pub(crate) fn with_addr(&self, addr: IpAddr) -> Option<usize> {
        self.all.iter().position(|p| p.net.has(addr))
    }

    /// Returns the port over which a connection to `remote` is made. For an address of our own,
    /// that is the inner port, whichever of our addresses `local` is. Otherwise it is the port that
    /// has `local`, if the caller gives `local`. Otherwise it is, among the ports with a worker
    /// left, the port whose route to `remote` has the longest prefix, and of several the first. A
    /// port without a worker left does not count, so that another port with the same link takes
    /// over. The scope of a link-local `remote` names a port by its number, from 1 on, and a VLAN by
    /// the bits above ([`SCOPE_PORT_BITS`]); then no other port serves, and `remote` is ours only at
    /// that port.
    pub(crate) fn choose(
        &self,
        local: Option<IpAddr>,
        remote: SocketAddr,
        has_worker: impl Fn(usize) -> bool,
    ) -> Result<usize, RequestError> {
        let (peer, link) = (remote, link_of(remote));
        let remote = remote.ip();
        if local.is_some_and(|local| local.is_ipv4() != remote.is_ipv4()) {
            return Err(ConnectError::Family.into());
        }
        let elsewhere =
            link.is_some_and(|link| self.with_addr(remote).is_some_and(|port| port != link));
        let ours = |inner: &usize| !elsewhere && self.all[*inner].net.is_ours(remote);
        if let Some(inner) = self.inner().filter(ours) {
            if local.is_some_and(|local| !self.all[inner].net.is_ours(local)) {
                return Err(ConnectError::NotOurs.into());
            }
            return if has_worker(inner) { Ok(inner) } else { Err(RequestError::NoWorker) };
        }
        self.choose_outer(local, peer, has_worker).map(|(port, _)| port)
    }

    /// As [`choose`](Self::choose), for a host beyond the ports. Returns the way as well.
    fn choose_outer(
        &self,
        local: Option<IpAddr>,
        remote: SocketAddr,
        has_worker: impl Fn(usize) -> bool,
    ) -> Result<(usize, Hop), RequestError> {
        let (all, link) = (self.outer(), link_of(remote));
        let named = |port: &usize| link.is_none_or(|link| link == *port);
        if let Some(local) = local {
            let port = all.iter().position(|p| p.net.has(local)).ok_or(ConnectError::NotOurs)?;
            let way = all[port].net.way(Some(local), remote).ok().filter(|_| named(&port));
            let way = way.ok_or(ConnectError::NoRoute)?;
            return if has_worker(port) { Ok((port, way)) } else { Err(RequestError::NoWorker) };
        }
        let ways = || {
            let ports = (0..).zip(all).filter(|(port, _)| named(port));
            ports.filter_map(|(i, p)| Some((i, p.net.way(None, remote).ok()?)))
        };
        if ways().next().is_none() {
            return Err(ConnectError::NoRoute.into());
        }
        let longest = |best: (usize, Hop), other: (usize, Hop)| {
            if other.1.prefix > best.1.prefix { other } else { best }
        };
        let way = ways().filter(|(port, _)| has_worker(*port)).reduce(longest);
        way.ok_or(RequestError::NoWorker)
    }

    /// Returns every address, with the worker that receives UDP datagrams there. Workers take none
    /// at the link-local addresses of VLANs.
    pub fn datagrams(&self) -> impl Iterator<Item = IbPort> {
        let of_port = |p: &Port| {
            let worker = WorkerId(p.workers.start);
            let addrs = p.net.all_addrs().map(|(vid, c)| (vid, c.addr()));
            let named = addrs.filter(|(vid, addr)| vid.is_none() || !is_link_local(*addr));
            named.map(move |(_, addr)| IbPort { addr, worker }).collect::<Vec<_>>()
        };
        self.outer().iter().filter(|p| !p.workers.is_empty()).flat_map(of_port)
    }

    /// Returns our address on the route to a host beyond the ports: by the longest prefix, of
    /// several the first.
    pub(crate) fn source(&self, remote: IpAddr) -> Option<IpAddr> {
        let way = self.choose_outer(None, SocketAddr::new(remote, 0), |_| true);
        way.ok().map(|(_, hop)| hop.local)
    }

    /// Gives each port that leads to other hosts these addresses and routes, and the inner port the
    /// addresses that follow from them. Returns the addressing that each port had before.
    ///
    /// # Errors
    /// No port has changed then.
    pub(crate) fn replace(&mut self, nets: Vec<Addressing>) -> Result<Vec<Addressing>, PortsError> {
        let ports = self.outer().len();
        if nets.len() != ports {
            return Err(PortsError::Count { given: nets.len(), ports });
        }
        let here = |(net, port): (Addressing, &Port)| net.at_port_of(&port.net);
        let mut nets: Vec<_> = nets.into_iter().zip(&self.all).map(here).collect();
        check(nets.iter())?;
        if let Some(own) = &self.inner {
            nets.push(inside(nets.iter(), own));
        }
        let ports = self.all.iter_mut().zip(nets);
        Ok(ports.map(|(p, net)| core::mem::replace(&mut p.net, net)).collect())
    }

    /// Returns the addresses and routes of each port that leads to other hosts.
    pub(crate) fn nets(&self) -> impl Iterator<Item = &Addressing> {
        self.outer().iter().map(|p| &p.net)
    }

    /// Returns the addresses and routes of a port.
    pub fn net(&self, port: usize) -> Option<&Addressing> {
        self.all.get(port).map(|p| &p.net)
    }
}

/// Returns the port that the scope of a link-local address names, if it names any.
fn link_of(remote: SocketAddr) -> Option<usize> {
    match remote {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            let port = v6.scope_id() & ((1 << SCOPE_PORT_BITS) - 1);
            usize::try_from(port).unwrap_or(usize::MAX).checked_sub(1)
        }
        _ => None,
    }
}

/// Returns the addresses of an inner port beside these ports.
fn inside<'a>(nets: impl Iterator<Item = &'a Addressing>, own: &Own) -> Addressing {
    let mut all: Vec<IpAddr> = nets.flat_map(addrs).collect();
    let more = own.addrs.iter().filter(|addr| !all.contains(addr)).copied().collect::<Vec<_>>();
    all.extend(more);
    Addressing::inside(all, own.loopback)
}

/// Returns the addresses of a port. A link-local address may be on several of its links.
fn addrs(net: &Addressing) -> Vec<IpAddr> {
    let mut all = Vec::new();
    for (_, c) in net.all_addrs() {
        if !is_link_local(c.addr()) || !all.contains(&c.addr()) {
            all.push(c.addr());
        }
    }
    all
}

fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn check<'a>(nets: impl Iterator<Item = &'a Addressing>) -> Result<(), PortsError> {
    let mut all: Vec<IpAddr> = nets.flat_map(addrs).collect();
    all.sort_unstable();
    match all.windows(2).find(|w| w[0] == w[1]) {
        Some(w) => Err(PortsError::Twice(w[0])),
        None => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use heddle_tcp::Route;

    /// Makes an addressing from addresses, and routes as `DEST via GATEWAY`.
    pub(crate) fn net(addrs: &[&str], routes: &[(&str, &str)]) -> Addressing {
        let route =
            |r: &(&str, &str)| Route { dest: r.0.parse().unwrap(), via: r.1.parse().unwrap() };
        Addressing::new(
            addrs.iter().map(|a| a.parse().unwrap()).collect(),
            routes.iter().map(route).collect(),
        )
        .unwrap()
    }

    /// Returns the address of a peer, with any port.
    fn to(text: &str) -> SocketAddr {
        let ip = text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 1));
        ip.or_else(|_| format!("[{text}]:1").parse()).unwrap()
    }

    fn ports() -> Ports {
        Ports::new(vec![
            (2, net(&["10.0.0.1/24", "10.0.0.2/24"], &[("0.0.0.0/0", "10.0.0.254")])),
            (0, net(&["10.5.0.1/24"], &[])),
            (3, net(&["10.0.0.3/24", "10.1.0.1/16"], &[("192.0.2.0/24", "10.1.0.254")])),
        ])
        .unwrap()
    }

    #[test]
    fn test_workers_are_numbered_from_port_to_port() {
        let ports = ports();
        assert_eq!(ports.workers(), 5);
        let of = |port| ports.workers_of(port).map(|w| w.0).collect::<Vec<_>>();
        assert_eq!((of(0), of(1), of(2), of(3)), (vec![0, 1], vec![], vec![2, 3, 4], vec![]));
    }

    #[test]
    fn test_ports_refuse_an_address_that_is_given_twice() {
        let twice =
            Ports::new(vec![(1, net(&["10.0.0.1/24"], &[])), (1, net(&["10.0.0.1/8"], &[]))]);
        let ours: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(twice.err(), Some(PortsError::Twice(ours)));
        let mut ports = ports();
        let empty = Addressing::default;
        assert_eq!(ports.replace(vec![empty()]), Err(PortsError::Count { given: 1, ports: 3 }));
        let same = || net(&["10.9.0.1/24"], &[]);
        let nine = "10.9.0.1".parse().unwrap();
        assert_eq!(ports.replace(vec![same(), empty(), same()]), Err(PortsError::Twice(nine)));
        assert_eq!(ports.with_addr(ours), Some(0), "nothing is changed");
        assert!(ports.replace(vec![empty(), empty(), same()]).is_ok());
        assert_eq!((ports.with_addr(ours), ports.with_addr(nine)), (None, Some(2)));
    }

    #[test]
    fn test_connect_chooses_port_of_longest_prefix_with_live_worker() {
        let ports = ports();
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let choose = |local: &str, remote, live: &[usize]| {
            let local = (!local.is_empty()).then(|| ip(local));
            ports.choose(local, to(remote), |p| live.contains(&p))
        };
        let no = |e: ConnectError| Err(RequestError::Connect(e));
        for (local, remote, live, port) in [
            ("", "10.0.0.9", &[0, 2][..], Ok(0)),
            // Port 0 has no worker left; port 2 is on the same link.
            ("", "10.0.0.9", &[2], Ok(2)),
            ("", "10.1.9.9", &[0, 2], Ok(2)),
            ("", "192.0.2.1", &[0, 2], Ok(2)),
            ("", "192.0.2.1", &[0], Ok(0)),
            ("", "198.51.100.1", &[0, 2], Ok(0)),
            ("", "198.51.100.1", &[2], Err(RequestError::NoWorker)),
            ("", "10.5.0.9", &[0, 2], Ok(0)),
            ("10.0.0.3", "10.0.0.9", &[0, 2], Ok(2)),
            ("10.0.0.2", "10.1.9.9", &[0, 2], Ok(0)),
            ("10.0.0.3", "198.51.100.1", &[0, 2], no(ConnectError::NoRoute)),
            ("10.0.0.3", "10.0.0.9", &[0], Err(RequestError::NoWorker)),
            ("10.0.0.4", "10.0.0.9", &[0, 2], no(ConnectError::NotOurs)),
            ("", "2001:db8::1", &[0, 2], no(ConnectError::NoRoute)),
            ("10.0.0.3", "2001:db8::1", &[0, 2], no(ConnectError::Family)),
        ] {
            assert_eq!(choose(local, remote, live), port, "from {local:?} to {remote}, {live:?}");
        }
        let alone = Ports::one(1, net(&["10.0.0.1/24"], &[]));
        let far = alone.choose(None, to("192.0.2.1"), |_| true);
        assert_eq!(far, no(ConnectError::NoRoute));
    }

    #[test]
    fn test_only_own_addresses_lead_to_inner_port() {
        let ports = ports().with_inner(2, Own::default());
        assert_eq!((ports.workers(), ports.inner()), (7, Some(3)));
        assert!(ports.workers_of(3).eq([WorkerId(5), WorkerId(6)]));
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let choose = |local: &str, remote, live: &[usize]| {
            let local = (!local.is_empty()).then(|| ip(local));
            ports.choose(local, to(remote), |p| live.contains(&p))
        };
        let no = |e: ConnectError| Err(RequestError::Connect(e));
        for (local, remote, live, port) in [
            ("", "10.0.0.1", &[0, 2, 3][..], Ok(3)),
            ("", "10.1.0.1", &[3], Ok(3)),
            // From an address of one port to that of another.
            ("10.0.0.2", "10.1.0.1", &[0, 2, 3], Ok(3)),
            ("10.0.0.4", "10.0.0.1", &[0, 2, 3], no(ConnectError::NotOurs)),
            ("", "10.0.0.1", &[0, 2], Err(RequestError::NoWorker)),
            ("", "10.0.0.9", &[0, 2, 3], Ok(0)),
            ("", "10.5.0.9", &[3], Err(RequestError::NoWorker)),
            ("", "127.0.0.1", &[0, 3], Ok(0)),
        ] {
            assert_eq!(choose(local, remote, live), port, "from {local:?} to {remote}, {live:?}");
        }
        assert_eq!(ports.with_addr(ip("10.1.0.1")), Some(2), "the port that has it");
        assert_eq!(ports.with_addr(ip("127.0.0.1")), None);
        assert_eq!(ports.source(ip("10.0.0.9")), Some(ip("10.0.0.1")));
        assert_eq!(ports.datagrams().filter(|p| p.worker.0 >= 5).count(), 0);
    }

    #[test]
    fn test_scope_of_link_local_peer_names_its_port() {
        let ports = Ports::new(vec![
            (1, net(&["fd00:1::1/64", "fe80::1/64"], &[])),
            (1, net(&["fd00:2::1/64", "fe80::2/64"], &[])),
            (1, net(&["10.0.0.1/24"], &[])),
        ]);
        let ports = ports.unwrap().with_inner(1, Own::default());
        let no = |e: ConnectError| Err(RequestError::Connect(e));
        for (local, remote, port) in [
            ("", "fe80::9", Ok(0)),
            ("", "fe80::9%1", Ok(0)),
            ("", "fe80::9%2", Ok(1)),
            ("", "fe80::9%3", no(ConnectError::NoRoute)),
            ("", "fe80::9%4", no(ConnectError::NoRoute)),
            ("", "fe80::9%4294967295", no(ConnectError::NoRoute)),
            ("fe80::2", "fe80::9%2", Ok(1)),
            ("fe80::2", "fe80::9", Ok(1)),
            ("fe80::1", "fe80::9%2", no(ConnectError::NoRoute)),
            // Any address of ours is at its own port alone.
            ("", "fe80::1", Ok(3)),
            ("", "fe80::1%1", Ok(3)),
            ("", "fe80::1%2", Ok(1)),
            ("", "fd00:1::9%2", Ok(0)),
        ] {
            let local = (!local.is_empty()).then(|| local.parse().unwrap());
            let chosen = ports.choose(local, to(remote), |_| true);
            assert_eq!(chosen, port, "from {local:?} to {remote}");
        }
    }

    /// A private RNIC has an inner port and no other.
    #[test]
    fn test_rnic_without_ports_reaches_only_its_own_addresses() {
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let own = Own { loopback: true, addrs: vec![ip("192.0.2.7")] };
        let private = Ports::new(Vec::new()).unwrap().with_inner(1, own);
        for ours in ["127.0.0.1", "127.1.2.3", "192.0.2.7"] {
            assert_eq!(private.with_addr(ip(ours)), Some(0));
            assert_eq!(private.choose(None, to(ours), |_| true), Ok(0));
        }
        assert_eq!(private.choose(Some(ip("127.0.0.1")), to("192.0.2.7"), |_| true), Ok(0));
        let no = |e: ConnectError| Err(RequestError::Connect(e));
        // Another host of an own address's network is as unreachable as any host.
        for beyond in ["10.0.0.1", "192.0.2.8"] {
            assert_eq!(private.choose(None, to(beyond), |_| true), no(ConnectError::NoRoute));
        }
        let local = Some(ip("127.0.0.1"));
        assert_eq!(private.choose(local, to("10.0.0.1"), |_| true), no(ConnectError::NotOurs));
    }

    #[test]
    fn test_addresses_of_the_inner_port_follow_those_of_the_others() {
        let mut ports = Ports::one(1, net(&["10.0.0.1/24"], &[])).with_inner(1, Own::default());
        let new = net(&["10.0.0.7/24"], &[]);
        let before = ports.replace(vec![new]).unwrap();
        assert_eq!(before.len(), 2, "what the inner one had is told too");
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let inner = ports.net(1).unwrap();
        assert!(inner.is_ours(ip("10.0.0.7")) && !inner.is_ours(ip("10.0.0.1")));
    }
}
