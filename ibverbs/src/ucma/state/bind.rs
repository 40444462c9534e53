//! Handles addresses and ports: `BIND`, `RESOLVE_ADDR`, `RESOLVE_ROUTE`, `LISTEN`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use super::super::address::{Address, in_family, on_wire};
use super::{ChannelId, ConnParam, Errno, EventKind, Id, Outside, Phase, Reserved, State};

/// Ports for ids whose program does not choose: the range that Linux uses.
const EPHEMERAL: std::ops::Range<u16> = 32768..61000;
/// Most ports to try with the RNIC.
const TRIES: usize = 16;
/// Most connect requests that wait for the program to take them, unless it asks for fewer.
const MAX_BACKLOG: u32 = 1024;

/// Returns the wildcard of the family of `like`, as the address of an id without one.
fn wildcard(like: SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0)),
    }
}

fn ip_of(addr: Address) -> Result<Option<SocketAddr>, Errno> {
    match addr {
        Address::None => Ok(None),
        Address::Ip(addr) => Ok(Some(addr)),
        Address::Ib => Err(Errno::AFNOSUPPORT),
    }
}

/// Returns the RNIC's form of a bound address.
pub(super) fn wire_end(addr: SocketAddr) -> Option<SocketAddrV4> {
    Some(SocketAddrV4::new(on_wire(addr.ip())?, addr.port()))
}

impl State {
    pub(super) fn bind(
        &mut self,
        n: u32,
        addr: Address,
        outside: &mut dyn Outside,
    ) -> Result<(), Errno> {
        let addr = ip_of(addr)?.ok_or(Errno::INVAL)?;
        self.bind_reserving(n, addr, outside)
    }

    /// Binds an id that may later listen: no other program gets its port from here on, and the
    /// process has opened the RNIC before the program tells its peer the port. `qperf` tells its
    /// client before it listens, and the listen then takes no longer than with a kernel.
    fn bind_reserving(
        &mut self,
        n: u32,
        addr: SocketAddr,
        outside: &mut dyn Outside,
    ) -> Result<(), Errno> {
        let mut result = Err(Errno::ADDRINUSE);
        // The RNIC may choose a port that another id of this program has, because the RNIC does not
        // know about that id.
        for _ in 0..if addr.port() == 0 { TRIES } else { 1 } {
            let reserved = self.reserve(n, addr, outside)?;
            let port = reserved.as_ref().map_or(addr.port(), |(_, port)| *port);
            result = self.bind_to(n, SocketAddr::new(addr.ip(), port), outside);
            if result.is_ok() {
                let id = self.ids.get_mut(&n).ok_or(Errno::NOENT)?;
                id.reserved = reserved.map(|(reserved, _)| reserved);
            }
            if result != Err(Errno::ADDRINUSE) {
                break;
            }
        }
        result
    }

    /// Has the RNIC reserve the address, unless the id cannot be bound there anyway, or shares the
    /// address with another id of this program.
    fn reserve(
        &self,
        n: u32,
        addr: SocketAddr,
        outside: &mut dyn Outside,
    ) -> Result<Option<(Reserved, u16)>, Errno> {
        let id = self.ids.get(&n).ok_or(Errno::NOENT)?;
        let Some(wire) = wire_end(addr).filter(|_| id.phase == Phase::Idle) else {
            return Ok(None);
        };
        if !wire.ip().is_unspecified() && !outside.has_address(*wire.ip()) {
            return Ok(None);
        }
        let has_it = |o: &Id| o.reserved.is_some() && o.src.and_then(wire_end) == Some(wire);
        if wire.port() != 0
            && (id.reuse || id.is_out_of_reach(addr) || self.ids.values().any(has_it))
        {
            return Ok(None);
        }
        match outside.reserve(wire) {
            Ok(reserved) => Ok(Some(reserved)),
            // A program can bind to a wildcard without an RNIC.
            Err(Errno::NODEV) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn bind_to(
        &mut self,
        n: u32,
        addr: SocketAddr,
        outside: &mut dyn Outside,
    ) -> Result<(), Errno> {
        let id = self.ids.get(&n).ok_or(Errno::NOENT)?;
        if id.phase != Phase::Idle {
            return Err(Errno::INVAL);
        }
        let ip = on_wire(addr.ip()).ok_or(Errno::ADDRNOTAVAIL)?;
        let mut device = None;
        if !ip.is_unspecified() {
            device = Some(outside.identity().ok_or(Errno::NODEV)?);
            if !outside.has_address(ip) {
                return Err(Errno::NODEV);
            }
        }
        let (reuse, af_only) = (id.reuse, id.af_only.unwrap_or(addr.is_ipv4()));
        let port = match addr.port() {
            0 => self.free_port(n, addr, af_only, outside)?,
            port => {
                self.check_port(n, SocketAddr::new(addr.ip(), port), (reuse, af_only))?;
                port
            }
        };
        let id = self.ids.get_mut(&n).ok_or(Errno::NOENT)?;
        id.src = Some(SocketAddr::new(addr.ip(), port));
        (id.af_only, id.device, id.phase) = (Some(af_only), device, Phase::Bound);
        id.port = Some(port);
        self.ports.entry(port).or_default().push(n);
        Ok(())
    }

    /// Returns a port to which no id is bound.
    fn free_port(
        &self,
        n: u32,
        addr: SocketAddr,
        af_only: bool,
        outside: &mut dyn Outside,
    ) -> Result<u16, Errno> {
        let count = EPHEMERAL.end - EPHEMERAL.start;
        let first = outside.random() % count;
        let ports = (0..count).map(|i| EPHEMERAL.start + (first + i) % count);
        ports
            .into_iter()
            .find(|&port| {
                let addr = SocketAddr::new(addr.ip(), port);
                self.check_port(n, addr, (false, af_only)).is_ok()
            })
            .ok_or(Errno::ADDRNOTAVAIL)
    }

    /// Checks that no other id keeps `n` from being bound to `addr`.
    fn check_port(&self, n: u32, addr: SocketAddr, how: (bool, bool)) -> Result<(), Errno> {
        let (reuse, af_only) = how;
        let others = self.ports.get(&addr.port()).into_iter().flatten().filter(|&&o| o != n);
        for other in others.filter_map(|o| self.ids.get(o)) {
            let Some(theirs) = other.src else { continue };
            let families = af_only && other.af_only == Some(true);
            if reuse && other.reuse || families && addr.is_ipv4() != theirs.is_ipv4() {
                continue;
            }
            let (a, b) = (on_wire(addr.ip()), on_wire(theirs.ip()));
            let any = [a, b].into_iter().flatten().any(|ip| ip.is_unspecified());
            if any || a == b {
                return Err(Errno::ADDRINUSE);
            }
        }
        Ok(())
    }

    pub(super) fn release_port(&mut self, n: u32, port: Option<u16>) {
        let Some(port) = port else { return };
        if let Some(owners) = self.ports.get_mut(&port) {
            owners.retain(|&o| o != n);
            if owners.is_empty() {
                self.ports.remove(&port);
            }
        }
    }

    pub(super) fn resolve_addr(
        &mut self,
        n: u32,
        src: Address,
        dst: Address,
        outside: &mut dyn Outside,
    ) -> Result<(), Errno> {
        let dst = ip_of(dst)?.ok_or(Errno::INVAL)?;
        let src = ip_of(src)?;
        if self.ids.get(&n).ok_or(Errno::NOENT)?.phase == Phase::Idle {
            self.bind_to(n, src.unwrap_or(wildcard(dst)), outside)?;
        }
        let id = self.ids.get(&n).ok_or(Errno::NOENT)?;
        let local = id.src.filter(|_| id.phase == Phase::Bound).ok_or(Errno::INVAL)?;
        if local.is_ipv4() != dst.is_ipv4() {
            return Err(Errno::INVAL);
        }
        let bound = on_wire(local.ip()).filter(|ip| !ip.is_unspecified());
        let found = resolve(bound, dst.ip(), outside);
        let id = self.ids.get_mut(&n).ok_or(Errno::NOENT)?;
        id.dst = Some(dst);
        match found {
            Ok((source, target, device)) => {
                id.src = Some(SocketAddr::new(in_family(source, local), local.port()));
                if dst.ip().is_unspecified() {
                    id.dst = Some(SocketAddr::new(in_family(target, dst), dst.port()));
                }
                (id.device, id.phase) = (Some(device), Phase::AddrResolved);
                self.report(n, EventKind::AddrResolved, 0, ConnParam::default());
            }
            Err(e) => self.report(n, EventKind::AddrError, -e.0, ConnParam::default()),
        }
        Ok(())
    }

    pub(super) fn resolve_route(&mut self, channel: ChannelId, n: u32) -> Result<(), Errno> {
        let id = self.with_device(channel, n)?;
        if id.phase != Phase::AddrResolved {
            return Err(Errno::INVAL);
        }
        id.phase = Phase::RouteResolved;
        self.report(n, EventKind::RouteResolved, 0, ConnParam::default());
        Ok(())
    }

    pub(super) fn listen(
        &mut self,
        n: u32,
        backlog: i32,
        outside: &mut dyn Outside,
    ) -> Result<(), Errno> {
        if self.ids.get(&n).ok_or(Errno::NOENT)?.phase == Phase::Idle {
            self.bind_reserving(n, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), outside)?;
        }
        let id = self.ids.get(&n).ok_or(Errno::NOENT)?;
        let addr = id.src.filter(|_| id.phase == Phase::Bound).ok_or(Errno::INVAL)?;
        // Ids may share an address, but only one of them may listen on it.
        self.check_port(n, addr, (false, id.af_only.unwrap_or(addr.is_ipv4())))?;
        outside.identity().ok_or(Errno::NODEV)?;
        if id.is_out_of_reach(addr) {
            let id = self.ids.get_mut(&n).ok_or(Errno::NOENT)?;
            (id.phase, id.listened, id.reuse) = (Phase::Starting, Some(Ok(())), false);
            return Ok(());
        }
        let wire = wire_end(addr).ok_or(Errno::ADDRNOTAVAIL)?;
        let backlog = u32::try_from(backlog).unwrap_or(0);
        let backlog = if (1..=MAX_BACKLOG).contains(&backlog) { backlog } else { MAX_BACKLOG };
        let listener = outside.listen(wire, id.reserved.as_ref(), backlog)?;
        self.by_listener.insert(listener, n);
        let id = self.ids.get_mut(&n).ok_or(Errno::NOENT)?;
        (id.listener, id.phase, id.backlog) = (Some(listener), Phase::Starting, backlog);
        id.reuse = false;
        Ok(())
    }

    /// Returns the RNIC's answer to a `LISTEN`; `None` while there is none. The first call that
    /// returns the answer removes it.
    pub fn listened(&mut self, n: u32) -> Option<Result<(), Errno>> {
        let Some(id) = self.ids.get_mut(&n) else { return Some(Err(Errno::NOENT)) };
        let answer = id.listened.take()?;
        id.settle(answer);
        Some(answer)
    }
}

impl Id {
    /// Returns true if no peer can reach the id at `addr`: the device has no IPv6 addresses, so an
    /// IPv6 wildcard that excludes IPv4 matches none. Programs listen on such a wildcard beside an
    /// IPv4 wildcard.
    fn is_out_of_reach(&self, addr: SocketAddr) -> bool {
        addr.is_ipv6() && addr.ip().is_unspecified() && self.af_only == Some(true)
    }

    fn settle(&mut self, answer: Result<(), Errno>) {
        self.phase = if answer.is_ok() { Phase::Listening } else { Phase::Bound };
    }
}

/// Returns both ends on the wire, and the device between them.
fn resolve(
    bound: Option<Ipv4Addr>,
    dst: IpAddr,
    outside: &mut dyn Outside,
) -> Result<(Ipv4Addr, Ipv4Addr, super::Identity), Errno> {
    let device = outside.identity().ok_or(Errno::NODEV)?;
    let mut target = on_wire(dst).ok_or(Errno::NETUNREACH)?;
    if target.is_unspecified() {
        // The wildcard means this host: use the id's own address, or the loopback address.
        target = bound.unwrap_or(Ipv4Addr::LOCALHOST);
    }
    let source = outside.source_for(target)?;
    Ok((bound.unwrap_or(source), target, device))
}
