//! Configuration by routers: default routes, an MTU, and prefixes of which a port makes addresses (RFC
//! 4861 section 6.3, RFC 4862 section 5.5).
//!
//! [`Autoconf`] belongs to the owner of the stacks of a port. The owner passes it the
//! [news](crate::LinkNews) that a stack reports, and gives all stacks of the port the
//! [`Addressing`] that follows. Addresses and routes that the owner configures always hold: a router
//! can neither remove nor replace one.
//!
//! Any host of the link can send what a router sends. So the port listens to routers only where it
//! is told to, and keeps a fixed number of them and of their prefixes.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::str::FromStr;
use core::time::Duration;

use arrayvec::ArrayVec;
use heddle_base::Instant;

use crate::stack::{Addressing, Cidr, MAX_ADDRS, MAX_ROUTES, Route};
use crate::wire::icmpv6::{Prefix, RouterAdvert};

/// The contents of routers' advertisements that count at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RouterAdverts {
    /// Nothing: the port asks no router, and drops what routers tell.
    #[default]
    Ignore,
    /// Default routes and the MTU.
    Routes,
    /// Default routes, the MTU, and addresses of the prefixes that routers tell (SLAAC).
    Addresses,
}

impl RouterAdverts {
    const ALL: [(RouterAdverts, &'static str); 3] = [
        (RouterAdverts::Ignore, "ignore"),
        (RouterAdverts::Routes, "routes"),
        (RouterAdverts::Addresses, "addresses"),
    ];
}

impl fmt::Display for RouterAdverts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(it, _)| it == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

/// The error for text that names no [`RouterAdverts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a port takes ignore, routes or addresses of its routers")]
pub struct RouterAdvertsError;

impl FromStr for RouterAdverts {
    type Err = RouterAdvertsError;

    fn from_str(s: &str) -> Result<RouterAdverts, RouterAdvertsError> {
        let found = Self::ALL.iter().find(|(_, name)| *name == s);
        found.map(|(it, _)| *it).ok_or(RouterAdvertsError)
    }
}

/// The most routers that a port keeps.
pub const MAX_ROUTERS: usize = 8;
/// The most addresses that a port makes of prefixes.
pub const MAX_MADE: usize = 16;
/// The smallest MTU of a link with IPv6 (RFC 8200 section 5).
const MIN_MTU: u16 = 1280;
/// How often a port asks for routers, and the time between two questions
/// (`MAX_RTR_SOLICITATIONS`, `RTR_SOLICITATION_INTERVAL`).
const QUESTIONS: u8 = 3;
const INTERVAL: Duration = Duration::from_secs(4);
/// An advertisement can shorten the life of an address to this time and no further: otherwise a
/// single forged message would remove it (RFC 4862 section 5.5.3, rule (e)).
const SHORTEST: Duration = Duration::from_secs(2 * 3600);

/// The time at which a lifetime ends; `None` for never.
type End = Option<Instant>;

#[derive(Clone, Copy, Debug)]
struct Router {
    ip: Ipv6Addr,
    end: Instant,
}

/// An address that the port made of a prefix.
#[derive(Clone, Copy, Debug)]
struct Made {
    addr: Ipv6Addr,
    /// Bits of the prefix that are on the link: those of the prefix, or all if a router forwards
    /// packets to its other hosts.
    bits: u8,
    valid: End,
    preferred: End,
    /// Another host has the address: the port does not use it, and does not make it again.
    taken: bool,
}

/// The addresses and routes of a port without its VLANs, or of a VLAN, from its owner and from routers.
#[derive(Clone, Debug)]
pub struct Autoconf {
    adverts: RouterAdverts,
    mac: [u8; 6],
    /// Bytes of the longest IP packet that the port carries.
    port_mtu: u16,
    fixed: Addressing,
    routers: ArrayVec<Router, MAX_ROUTERS>,
    made: ArrayVec<Made, MAX_MADE>,
    /// The MTU that a router told last.
    mtu: Option<u16>,
    questions: u8,
    ask_at: Instant,
}

impl Autoconf {
    /// Returns the state of a port that has heard of no router yet, and asks for routers at once
    /// unless it ignores them.
    pub fn new(adverts: RouterAdverts, mac: [u8; 6], port_mtu: u16, fixed: Addressing) -> Autoconf {
        Autoconf {
            adverts,
            mac,
            port_mtu,
            fixed,
            routers: ArrayVec::new(),
            made: ArrayVec::new(),
            mtu: None,
            questions: if adverts == RouterAdverts::Ignore { 0 } else { QUESTIONS },
            ask_at: Instant::ZERO,
        }
    }

    /// Replaces the addresses and routes that the owner configured.
    pub fn set_fixed(&mut self, fixed: Addressing) {
        self.fixed = fixed;
    }

    /// Returns the addresses and routes that the owner configured.
    pub fn fixed(&self) -> &Addressing {
        &self.fixed
    }

    /// Asks for routers again: the link has come up, perhaps at another switch.
    pub fn restart(&mut self, now: Instant) {
        if self.adverts != RouterAdverts::Ignore {
            self.questions = QUESTIONS;
            self.ask_at = now;
        }
    }

    /// Takes the advertisement of the router at the link-local address `from`. Returns true if
    /// [`addressing`](Self::addressing) may have changed.
    pub fn heard(&mut self, now: Instant, from: Ipv6Addr, advert: &RouterAdvert) -> bool {
        if self.adverts == RouterAdverts::Ignore || !from.is_unicast_link_local() {
            return false;
        }
        let before = self.addressing(now);
        self.take_router(now, from, advert.lifetime);
        if advert.lifetime != 0 {
            self.questions = 0;
        }
        if let Some(mtu) = advert.mtu.and_then(|mtu| u16::try_from(mtu).ok())
            && (MIN_MTU..=self.port_mtu).contains(&mtu)
        {
            self.mtu = Some(mtu);
        }
        if self.adverts == RouterAdverts::Addresses {
            for prefix in &advert.prefixes {
                self.take_prefix(now, prefix);
            }
        }
        self.addressing(now) != before
    }

    /// Notes that another host has our address `ip`. Returns true if the port gives the address up:
    /// one that it made of a prefix. The owner's addresses stay.
    pub fn conflict(&mut self, ip: Ipv6Addr) -> bool {
        match self.made.iter_mut().find(|m| m.addr == ip && !m.taken) {
            Some(made) => {
                made.taken = true;
                true
            }
            None => false,
        }
    }

    /// Notes that `router` answers and the default router `silent` does not. Returns true if `router`
    /// becomes the default router (RFC 4861 section 6.3.6).
    pub fn prefer(&mut self, router: Ipv6Addr, silent: Ipv6Addr) -> bool {
        let place = self.routers.iter().position(|r| r.ip == router);
        // Another stack of the port may have found the same before.
        let current = self.routers.first().is_some_and(|r| r.ip == silent);
        let Some(place) = place.filter(|_| current) else { return false };
        self.routers.swap(0, place);
        true
    }

    /// Removes what has ended. Returns true if the port asks for routers now.
    pub fn on_timeout(&mut self, now: Instant) -> bool {
        self.routers.retain(|r| r.end > now);
        self.made.retain(|m| m.valid.is_none_or(|end| end > now));
        let asks = self.questions > 0 && self.ask_at <= now;
        if asks {
            self.questions -= 1;
            self.ask_at = now + INTERVAL;
        }
        asks
    }

    /// Returns when [`on_timeout`](Self::on_timeout) or [`addressing`](Self::addressing) next has
    /// something to change.
    pub fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let question = (self.questions > 0).then_some(self.ask_at);
        let routers = self.routers.iter().map(|r| r.end);
        let valid = self.made.iter().filter_map(|m| m.valid);
        let preferred = self.made.iter().filter_map(|m| m.preferred).filter(|end| *end > now);
        question.into_iter().chain(routers).chain(valid).chain(preferred).min()
    }

    /// Returns the addresses and routes that the port has now.
    pub fn addressing(&self, now: Instant) -> Addressing {
        if self.adverts == RouterAdverts::Ignore {
            return self.fixed.clone();
        }
        let mut addrs = self.fixed.addrs().to_vec();
        let mut routes = self.fixed.routes().to_vec();
        // The owner's link-local address is among the fixed ones, if the owner gave one.
        if !addrs.iter().any(|c| is_link_local(c.addr())) {
            addrs.extend(Cidr::new(of_station([0xfe80, 0, 0, 0], self.mac).into(), 64));
        }
        let mut deprecated = Vec::new();
        for m in self.made.iter().filter(|m| !m.taken && m.valid.is_none_or(|end| end > now)) {
            if addrs.len() < MAX_ADDRS && !addrs.iter().any(|c| c.addr() == m.addr) {
                addrs.extend(Cidr::new(m.addr.into(), m.bits));
                if m.preferred.is_some_and(|end| end <= now) {
                    deprecated.push(m.addr.into());
                }
            }
        }
        let has_default = routes.iter().any(|r| r.via.is_ipv6() && r.dest.prefix() == 0);
        let ours = |ip: Ipv6Addr| addrs.iter().any(|c| c.addr() == IpAddr::V6(ip));
        let routers = self.routers.iter().filter(|r| r.end > now && !ours(r.ip));
        let mut spares: Vec<Ipv6Addr> = routers.map(|r| r.ip).collect();
        if has_default || routes.len() >= MAX_ROUTES {
            spares.clear();
        } else if !spares.is_empty() {
            routes.push(Route::default_via(spares.remove(0).into()));
        }
        // The owner's addresses are right, and those made of prefixes are too; if not, they go.
        match Addressing::new(addrs, routes) {
            Ok(net) => {
                let net = net.with_deprecated(deprecated).with_ipv6_mtu(self.mtu);
                net.with_spare_routers(spares)
            }
            Err(_) => self.fixed.clone(),
        }
    }

    /// RFC 4861 section 6.3.4. The first router of the list is in use until its lifetime ends, or until it
    /// does not answer and another does.
    fn take_router(&mut self, now: Instant, ip: Ipv6Addr, lifetime: u16) {
        let end = now + Duration::from_secs(lifetime.into());
        match self.routers.iter_mut().find(|r| r.ip == ip) {
            Some(router) => router.end = end,
            // A router beyond the room of the list serves when another has left.
            None => {
                let _ = self.routers.try_push(Router { ip, end });
            }
        }
        self.routers.retain(|r| r.end > now);
    }

    /// RFC 4862 section 5.5.3.
    fn take_prefix(&mut self, now: Instant, p: &Prefix) {
        // An address is as long as its prefix and the 64 bits made of the station's address.
        let usable = !p.addr.is_unicast_link_local() && !p.addr.is_multicast();
        if !p.autonomous || p.len != 64 || !usable || p.preferred > p.valid {
            return;
        }
        let [a, b, c, d, ..] = p.addr.segments();
        let addr = of_station([a, b, c, d], self.mac);
        let (valid, preferred) = (end(now, p.valid), end(now, p.preferred));
        let bits = if p.on_link { p.len } else { 128 };
        if let Some(made) = self.made.iter_mut().find(|m| m.addr == addr) {
            made.preferred = preferred;
            // A prefix without the flag for the link says nothing about the link (RFC 4861 section
            // 4.6.2), and takes back nothing.
            made.bits = made.bits.min(bits);
            let shortest = now + SHORTEST;
            let longer = valid.is_none_or(|v| v > shortest || made.valid.is_some_and(|m| v > m));
            if longer {
                made.valid = valid;
            } else if made.valid.is_none_or(|m| m > shortest) {
                made.valid = Some(shortest);
            }
        } else if p.valid > 0 {
            let made = Made { addr, bits, valid, preferred, taken: false };
            // Prefixes beyond the room of the list do not count.
            let _ = self.made.try_push(made);
        }
    }
}

/// Returns the time that is so many seconds ahead; `u32::MAX` is for ever.
fn end(now: Instant, seconds: u32) -> End {
    (seconds != u32::MAX).then(|| now + Duration::from_secs(seconds.into()))
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns the address of a network that is made of a station's address (RFC 4291 appendix A).
pub(crate) fn of_station([a, b, c, d]: [u16; 4], mac: [u8; 6]) -> Ipv6Addr {
    let [m0, m1, m2, m3, m4, m5] = mac;
    let word = |high, low| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(a, b, c, d, word(m0 ^ 2, m1), word(m2, 0xff), word(0xfe, m3), word(m4, m5))
}

#[cfg(test)]
mod tests;
