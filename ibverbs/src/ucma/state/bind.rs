//! Handles addresses and ports: `BIND`, `RESOLVE_ADDR`, `RESOLVE_ROUTE`, `LISTEN`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::super::address::{Address, in_family, in_scope, is_link_local, on_wire, scope};
use super::{ChannelId, ConnParam, Errno, EventKind, Id, Outside, Phase, Place, Reserved, State};

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
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

/// Returns the same address with this port. Its scope and flow label stay.
fn at_port(mut addr: SocketAddr, port: u16) -> SocketAddr {
    addr.set_port(port);
    addr
}

fn ip_of(addr: Address) -> Result<Option<SocketAddr>, Errno> {
    match addr {
        Address::None => Ok(None),
        Address::Ip(addr) => Ok(Some(addr)),
        Address::Ib => Err(Errno::AFNOSUPPORT),
    }
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
            result = self.bind_to(n, at_port(addr, port), outside);
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
        if id.phase != Phase::Idle {
            return Ok(None);
        }
        let place = id.place(addr);
        let wire = place.addr;
        if !wire.ip().is_unspecified() && !outside.has_address(wire) {
            return Ok(None);
        }
        let has_it =
            |o: &Id| o.reserved.is_some() && o.src.is_some_and(|src| o.place(src) == place);
        if wire.port() != 0 && (id.reuse || self.ids.values().any(has_it)) {
            return Ok(None);
        }
        match outside.reserve(place) {
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
        let wire = on_wire(addr);
        // As for a socket: an IPv4-mapped address has no part of IPv6 alone.
        let ipv6_alone = addr.is_ipv6() && id.af_only == Some(true);
        if ipv6_alone && wire.is_ipv4() || is_link_local(wire.ip()) && scope(wire) == 0 {
            return Err(Errno::INVAL);
        }
        let mut device = None;
        if !wire.ip().is_unspecified() {
            device = Some(outside.identity().ok_or(Errno::NODEV)?);
            if !outside.has_address(wire) {
                return Err(Errno::NODEV);
            }
        }
        let (reuse, af_only) = (id.reuse, id.af_only.unwrap_or(addr.is_ipv4()));
        let port = match addr.port() {
            0 => self.free_port(n, addr, af_only, outside)?,
            port => {
                self.check_port(n, addr, (reuse, af_only))?;
                port
            }
        };
        let id = self.ids.get_mut(&n).ok_or(Errno::NOENT)?;
        id.src = Some(at_port(addr, port));
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
            .find(|&port| self.check_port(n, at_port(addr, port), (false, af_only)).is_ok())
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
            let (a, b) = (on_wire(addr), on_wire(theirs));
            let any = a.ip().is_unspecified() || b.ip().is_unspecified();
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
        let bound = Some(on_wire(local)).filter(|at| !at.ip().is_unspecified());
        let found = resolve(bound, on_wire(dst), outside);
        let id = self.ids.get_mut(&n).ok_or(Errno::NOENT)?;
        id.dst = Some(dst);
        match found {
            Ok((source, target, device)) => {
                id.src = Some(at_port(in_family(source, local), local.port()));
                if dst.ip().to_canonical().is_unspecified() {
                    id.dst = Some(at_port(in_family(target, dst), dst.port()));
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
        let place = id.place(addr);
        let backlog = u32::try_from(backlog).unwrap_or(0);
        let backlog = if (1..=MAX_BACKLOG).contains(&backlog) { backlog } else { MAX_BACKLOG };
        let listener = outside.listen(place, id.reserved.as_ref(), backlog)?;
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
    /// Returns the place where the id listens if it is bound to `addr`.
    fn place(&self, addr: SocketAddr) -> Place {
        let wire = on_wire(addr);
        let any6 = wire.is_ipv6() && wire.ip().is_unspecified();
        Place { addr: wire, v6_only: any6 && self.af_only == Some(true) }
    }

    fn settle(&mut self, answer: Result<(), Errno>) {
        self.phase = if answer.is_ok() { Phase::Listening } else { Phase::Bound };
    }
}

/// Returns both ends on the wire, and the device between them.
fn resolve(
    bound: Option<SocketAddr>,
    mut target: SocketAddr,
    outside: &mut dyn Outside,
) -> Result<(SocketAddr, SocketAddr, super::Identity), Errno> {
    let device = outside.identity().ok_or(Errno::NODEV)?;
    if target.ip().is_unspecified() {
        // The wildcard means this host: use the id's own address, or the loopback address.
        let localhost = match target {
            SocketAddr::V4(_) => (Ipv4Addr::LOCALHOST, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::LOCALHOST, 0).into(),
        };
        target = bound.unwrap_or(localhost);
    }
    if let Some(bound) = bound {
        // An address of one link does not lead to another link, nor IPv4 to IPv6.
        let links = is_link_local(bound.ip()) && is_link_local(target.ip());
        let apart = links && scope(target) != 0 && scope(target) != scope(bound);
        if apart || bound.is_ipv4() != target.is_ipv4() {
            return Err(Errno::NETUNREACH);
        }
        if links {
            target = in_scope(target, scope(bound));
        }
    }
    let source = outside.source_for(target)?;
    Ok((bound.unwrap_or(source), target, device))
}
