//! The ports of an RNIC: which workers each has, and which addresses and routes.
//!
//! A worker is one of a port's, so an address is reached by way of that port's workers alone, and a
//! connection has to be made by one of them. Which port that is, the longest prefix says, as among
//! the links and routes of one port.

use core::net::IpAddr;
use core::ops::Range;

use heddle_tcp::{Addressing, ConnectError};

use crate::ib::IbPort;
use crate::id::WorkerId;
use crate::request::RequestError;

/// Why there are no such ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortsError {
    /// Two ports have the same address.
    #[error("{0} is given to two ports")]
    Twice(IpAddr),
    /// Addresses for another number of ports than there is.
    #[error("addresses of {given} ports: there are {ports}")]
    Count {
        /// As many were given.
        given: usize,
        /// As many ports there are.
        ports: usize,
    },
}

/// The ports of an RNIC. Workers are numbered from port to port: those of the first come first.
#[derive(Clone, Debug)]
pub struct Ports(Vec<Port>);

#[derive(Clone, Debug)]
struct Port {
    workers: Range<usize>,
    net: Addressing,
}

impl Ports {
    /// For each port its number of workers, and its addresses and routes.
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
        Ok(Ports(ports.into_iter().map(port).collect()))
    }

    /// One port.
    pub fn one(workers: usize, net: Addressing) -> Ports {
        Ports(vec![Port { workers: 0..workers, net }])
    }

    /// Workers there are, of all ports.
    pub fn workers(&self) -> usize {
        self.0.last().map_or(0, |p| p.workers.end)
    }

    /// The workers of a port.
    pub(crate) fn workers_of(&self, port: usize) -> impl Iterator<Item = WorkerId> + use<> {
        self.0.get(port).map(|p| p.workers.clone()).unwrap_or_default().map(WorkerId)
    }

    /// The port that has the address.
    pub(crate) fn with_addr(&self, addr: IpAddr) -> Option<usize> {
        self.0.iter().position(|p| p.net.is_ours(addr))
    }

    /// The port a connection to `remote` is made over: the one that has `local`, if that is asked
    /// for; or else, of those that have a worker left, the one whose way there has the longest
    /// prefix, and of several the first. A way by which nobody can go counts for nothing, so that
    /// a port takes over where another with the same link has no worker any more.
    pub(crate) fn choose(
        &self,
        local: Option<IpAddr>,
        remote: IpAddr,
        has_worker: impl Fn(usize) -> bool,
    ) -> Result<usize, RequestError> {
        if !remote.is_ipv4() {
            return Err(ConnectError::Family.into());
        }
        if let Some(local) = local {
            let port = self.with_addr(local).ok_or(ConnectError::NotOurs)?;
            self.0[port].net.route(remote).ok_or(ConnectError::NoRoute)?;
            return if has_worker(port) { Ok(port) } else { Err(RequestError::NoWorker) };
        }
        let ways =
            || (0..).zip(&self.0).filter_map(|(i, p)| Some((i, p.net.route(remote)?.prefix)));
        if ways().next().is_none() {
            return Err(ConnectError::NoRoute.into());
        }
        let longest = |best: (usize, u8), other: (usize, u8)| {
            if other.1 > best.1 { other } else { best }
        };
        let way = ways().filter(|(port, _)| has_worker(*port)).reduce(longest);
        way.map(|(port, _)| port).ok_or(RequestError::NoWorker)
    }

    /// Every address, with the worker that UDP comes to there.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = IbPort> {
        let of_port = |p: &Port| {
            let worker = WorkerId(p.workers.start);
            let addrs = p.net.addrs().to_vec();
            addrs.into_iter().map(move |c| IbPort { addr: c.addr(), worker })
        };
        self.0.iter().filter(|p| !p.workers.is_empty()).flat_map(of_port)
    }

    /// Our address on the way to `remote`: by the longest prefix, of several the first.
    pub(crate) fn source(&self, remote: IpAddr) -> Option<IpAddr> {
        let port = self.choose(None, remote, |_| true).ok()?;
        self.0[port].net.route(remote).map(|hop| hop.local.into())
    }

    /// Gives each port these addresses and routes; what each had before.
    ///
    /// # Errors
    /// Nothing is changed then.
    pub(crate) fn replace(&mut self, nets: Vec<Addressing>) -> Result<Vec<Addressing>, PortsError> {
        if nets.len() != self.0.len() {
            return Err(PortsError::Count { given: nets.len(), ports: self.0.len() });
        }
        check(nets.iter())?;
        let ports = self.0.iter_mut().zip(nets);
        Ok(ports.map(|(p, net)| core::mem::replace(&mut p.net, net)).collect())
    }

    /// The addresses and routes of a port.
    pub fn net(&self, port: usize) -> Option<&Addressing> {
        self.0.get(port).map(|p| &p.net)
    }
}

fn check<'a>(nets: impl Iterator<Item = &'a Addressing>) -> Result<(), PortsError> {
    let mut all: Vec<IpAddr> = nets.flat_map(|n| n.addrs()).map(|c| c.addr()).collect();
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

    /// Addresses, and routes as `DEST via GATEWAY`.
    pub(crate) fn net(addrs: &[&str], routes: &[(&str, &str)]) -> Addressing {
        let route =
            |r: &(&str, &str)| Route { dest: r.0.parse().unwrap(), via: r.1.parse().unwrap() };
        Addressing::new(
            addrs.iter().map(|a| a.parse().unwrap()).collect(),
            routes.iter().map(route).collect(),
        )
        .unwrap()
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
    fn test_an_address_is_of_one_port() {
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
    fn test_the_port_is_that_of_the_longest_prefix_that_has_a_worker() {
        let ports = ports();
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let choose = |local: &str, remote, live: &[usize]| {
            let local = (!local.is_empty()).then(|| ip(local));
            ports.choose(local, ip(remote), |p| live.contains(&p))
        };
        let no = |e: ConnectError| Err(RequestError::Connect(e));
        for (local, remote, live, port) in [
            ("", "10.0.0.9", &[0, 2][..], Ok(0)),
            // The other port is on the same link.
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
            ("", "2001:db8::1", &[0, 2], no(ConnectError::Family)),
        ] {
            assert_eq!(choose(local, remote, live), port, "from {local:?} to {remote}, {live:?}");
        }
        let alone = Ports::one(1, net(&["10.0.0.1/24"], &[]));
        let far = alone.choose(None, ip("192.0.2.1"), |_| true);
        assert_eq!(far, no(ConnectError::NoRoute));
    }
}
