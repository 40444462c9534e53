//! The VLANs of a port: which of its links an address, a frame or a connection is on.

use core::net::{IpAddr, SocketAddr};

use heddle_types::ConnectError;

use super::{AddrError, Addressing, Cidr, Hop, MAX_VLANS, NOWHERE, Vlan, is_link_local};
use crate::autoconf::RouterAdverts;
use crate::stack::neighbor::LinkAddr;
use crate::wire::{Priority, Tag, Vid};

/// Bits of a scope below those of a VLAN. The scope of a link-local address names its port by these
/// bits, counted from 1, and the VLAN by those above.
pub const SCOPE_PORT_BITS: u32 = 16;

/// Returns the VLAN that the scope of a link-local peer names, if the peer has a scope.
fn scope_of(remote: SocketAddr) -> Option<Vid> {
    match remote {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() != 0 => {
            let vid = u16::try_from(v6.scope_id() >> SCOPE_PORT_BITS).unwrap_or(u16::MAX);
            Some(Vid::new(vid).unwrap_or(Vid::NONE))
        }
        _ => None,
    }
}

impl Addressing {
    /// Returns the same addresses and routes, with these VLANs in place of any before.
    ///
    /// An address of ours is on one link only. Link-local addresses are the exception: a link-local
    /// address can be on each link, and names no link by itself.
    ///
    /// # Errors
    /// Returns the first fault; see [`AddrError`].
    pub fn with_vlans(mut self, vlans: Vec<Vlan>) -> Result<Addressing, AddrError> {
        if vlans.len() > MAX_VLANS {
            return Err(AddrError::TooManyVlans(vlans.len()));
        }
        self.vlans.clear();
        for mut vlan in vlans {
            if self.vlans.iter().any(|v| v.vid == vlan.vid) {
                return Err(AddrError::VlanTwice(vlan.vid));
            }
            let addrs = vlan.net.addrs.iter().map(|c| c.addr);
            if let Some(twice) = addrs.filter(|a| !is_link_local(*a)).find(|a| self.has(*a)) {
                return Err(AddrError::Twice(twice));
            }
            vlan.net.vlans.clear();
            if let Some(mac) = self.station {
                vlan.net = vlan.net.with_station(mac);
            }
            self.vlans.push(vlan);
        }
        Ok(self)
    }

    /// Returns the VLANs.
    pub fn vlans(&self) -> &[Vlan] {
        &self.vlans
    }

    /// Returns the addresses and routes of a VLAN; those of the port itself for no VLAN, and none
    /// for a VLAN that the port does not have.
    #[inline]
    pub fn on(&self, vid: Vid) -> &Addressing {
        if vid.is_none() { self } else { self.vlan(vid).map_or(&NOWHERE, |v| &v.net) }
    }

    fn vlan(&self, vid: Vid) -> Option<&Vlan> {
        self.vlans.iter().find(|v| v.vid == vid)
    }

    /// Returns true if the port has the VLAN; for no VLAN as well.
    pub(in crate::stack) fn has_vlan(&self, vid: Vid) -> bool {
        vid.is_none() || self.vlan(vid).is_some()
    }

    /// Returns the links of the port: itself first, then its VLANs.
    pub fn links(&self) -> impl Iterator<Item = (Vid, &Addressing)> {
        core::iter::once((Vid::NONE, self)).chain(self.vlans.iter().map(|v| (v.vid, &v.net)))
    }

    /// Returns the addresses of all links, each with the VLAN of its link.
    pub fn all_addrs(&self) -> impl Iterator<Item = (Vid, Cidr)> + '_ {
        self.links().flat_map(|(vid, net)| net.addrs.iter().map(move |c| (vid, *c)))
    }

    /// Returns true if `ip` is one of our addresses on any link.
    pub fn has(&self, ip: IpAddr) -> bool {
        self.links().any(|(_, net)| net.is_ours(ip))
    }

    /// Returns true if what routers of the VLAN tell counts.
    pub(in crate::stack) fn hears_routers_on(&self, vid: Vid) -> bool {
        self.vlan(vid).is_some_and(|v| v.router_adverts != RouterAdverts::Ignore)
    }

    /// Returns the tag of frames of a VLAN whose packets have this DSCP.
    pub(in crate::stack) fn tag(&self, vid: Vid, dscp: u8) -> Tag {
        let priority = self.vlan(vid).map_or(Priority::default(), |v| v.priority);
        if vid.is_none() { Tag::default() } else { Tag::new(vid, priority.of(dscp)) }
    }

    /// Returns the way to `remote` on whichever link has the longest prefix, the first of several.
    pub fn route_any(&self, remote: IpAddr) -> Option<Hop> {
        let hops = self.links().filter_map(|(vid, net)| Some(Hop { vid, ..net.route(remote)? }));
        hops.reduce(|best, other| if other.prefix > best.prefix { other } else { best })
    }

    /// Returns the address under which the stack counts what the host `ip` of a link causes.
    pub(in crate::stack) fn site_on(&self, vid: Vid, ip: IpAddr) -> LinkAddr {
        LinkAddr::new(vid, self.on(vid).site(ip))
    }

    /// Returns the way to `remote` on the link `vid`.
    pub(in crate::stack) fn route_on(&self, vid: Vid, remote: IpAddr) -> Option<Hop> {
        self.on(vid).route(remote).map(|hop| Hop { vid, ..hop })
    }

    /// Returns the way of a connection to `remote`. `local`, our end if the caller gives it, names the link that
    /// has this address of ours, and the scope of a link-local `remote` names the link as well;
    /// otherwise the prefixes choose the link.
    ///
    /// # Errors
    /// Fails if no way leads there, or if `local` is no address of ours, or of the other family.
    pub fn way(&self, local: Option<IpAddr>, remote: SocketAddr) -> Result<Hop, ConnectError> {
        let peer = remote.ip();
        let scope = scope_of(remote).filter(|_| !self.is_inside());
        let Some(local) = local else {
            let hop = match scope {
                Some(vid) => self.route_on(vid, peer),
                None => self.route_any(peer),
            };
            return hop.ok_or(ConnectError::NoRoute);
        };
        if scope.is_none() && self.route_any(peer).is_none() {
            return Err(ConnectError::NoRoute);
        }
        if !self.has(local) {
            return Err(ConnectError::NotOurs);
        }
        if local.is_ipv4() != peer.is_ipv4() {
            return Err(ConnectError::Family);
        }
        // A link-local address may be ours on several links.
        let mut links = self.links().filter(|(_, net)| net.is_ours(local)).map(|(vid, _)| vid);
        let hop = match scope {
            Some(vid) => links.any(|link| link == vid).then(|| self.route_on(vid, peer)).flatten(),
            None => links.find_map(|vid| self.route_on(vid, peer)),
        };
        hop.ok_or(ConnectError::NoRoute)
    }
}
