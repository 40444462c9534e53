//! What a stack is told at construction.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr};
use core::str::FromStr;

use heddle_base::Seed;

use crate::{ConnConfig, Spread};

/// An address of ours with the prefix of the link it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    addr: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// `addr` on a link whose addresses share their first `prefix` bits; `None` when there are not
    /// as many bits.
    pub fn new(addr: IpAddr, prefix: u8) -> Option<Cidr> {
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        (prefix <= bits).then_some(Cidr { addr, prefix })
    }

    /// The address.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Bits the addresses of the link share.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether `other` is on the same link.
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

    /// Whether `other` names all stations of the link, in today's form or the old all-zeros one.
    pub(super) fn is_broadcast(&self, other: Ipv4Addr) -> bool {
        let IpAddr::V4(_) = self.addr else { return false };
        let host = other.to_bits() & !self.mask4();
        // A /31 has two hosts and no broadcast address (RFC 3021); a /32 has no link.
        self.prefix < 31 && self.contains(IpAddr::V4(other)) && (host == 0 || host == !self.mask4())
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

/// Text that is no `ADDRESS/PREFIX`.
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

/// Why a stack cannot have the addresses or the gateway it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddrError {
    /// The address family is not served.
    #[error("{0}: IPv6 is not served yet")]
    Family(IpAddr),
    /// No single host can have the address on its link.
    #[error("{0} is no address for a host: it names none, many, or the host itself")]
    NotAHost(Cidr),
    /// The same address twice.
    #[error("{0} is given twice")]
    Twice(IpAddr),
    /// The gateway cannot be reached, being on no link of ours.
    #[error("the gateway {0} is on no link of ours")]
    Gateway(IpAddr),
}

/// Looks at what [`StackConfig`] takes as it is: a stack with such addresses would run and never be
/// reached.
///
/// # Errors
/// See [`AddrError`].
pub fn check_addrs(addrs: &[Cidr], gateway: Option<IpAddr>) -> Result<(), AddrError> {
    let mut cfg = StackConfig::new(
        [0; 6],
        Cidr { addr: IpAddr::V4(Ipv4Addr::UNSPECIFIED), prefix: 32 },
        Seed::from_u64(0),
    );
    cfg.addrs.clear();
    for &c in addrs {
        let IpAddr::V4(addr) = c.addr else { return Err(AddrError::Family(c.addr)) };
        if cfg.is_ours(c.addr) {
            return Err(AddrError::Twice(c.addr));
        }
        if !cfg.is_peer(addr) || c.is_broadcast(addr) {
            return Err(AddrError::NotAHost(c));
        }
        cfg.addrs.push(c);
    }
    match gateway {
        None => Ok(()),
        Some(IpAddr::V4(g))
            if cfg.is_peer(g) && cfg.addrs.iter().any(|c| c.contains(IpAddr::V4(g))) =>
        {
            Ok(())
        }
        Some(g @ IpAddr::V4(_)) => Err(AddrError::Gateway(g)),
        Some(g) => Err(AddrError::Family(g)),
    }
}

/// How many connections the hosts of one address may have at a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerLimit {
    /// As many as there is room for.
    Unlimited,
    /// Nearly all that there is room for, but not the last: of half-open connections half of the
    /// backlog, of all connections all but a sixty-fourth of
    /// [`max_conns`](StackConfig::max_conns) (at least one).
    #[default]
    Share,
    /// So many.
    AtMost(usize),
}

/// What a stack is told at construction.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Hardware address of the port.
    pub mac: [u8; 6],
    /// Our addresses; the first on the link of a destination is the source towards it.
    pub addrs: Vec<Cidr>,
    /// Next hop for what is on no link of ours; it must itself be on one.
    pub gateway: Option<IpAddr>,
    /// Octets of the largest IP datagram of the link, both ways.
    pub mtu: u16,
    /// Connections at a time, those in TIME-WAIT and those not yet released included.
    pub max_conns: usize,
    /// Neighbors known at a time.
    pub max_neighbors: usize,
    /// The backlog a listener has at least (unless it is 0). The SYNs of clients that start
    /// together come at once, and for each half-open connection evicted an honest client waits a
    /// second; a place costs nothing while nobody takes it.
    pub min_backlog: usize,
    /// Half-open connections of one peer address at one listener. A SYN beyond is dropped.
    pub peer_half_open: PeerLimit,
    /// Connections of one peer address at one listener, half-open ones included, until the owner
    /// releases them. A SYN beyond is refused with RST.
    pub peer_conns: PeerLimit,
    /// Settings of every new connection. Its `mss` is cut to what `mtu` allows.
    pub conn: ConnConfig,
    /// Where everything a peer must not guess comes from.
    pub seed: Seed,
    /// TTL of what we send.
    pub ttl: u8,
    /// DSCP (0..=63) of what we send, unless set for the connection.
    pub dscp: u8,
    /// Which of the port's connections are this stack's.
    pub spread: Spread,
    /// Whether the port fills in TCP checksums.
    pub tx_tcp_csum: bool,
    /// Whether the port fills in IPv4 header checksums.
    pub tx_ip_csum: bool,
}

impl StackConfig {
    /// A port with one address, and defaults for the rest: no gateway, MTU 1500, 1024 connections,
    /// checksums in software, the port's only worker.
    pub fn new(mac: [u8; 6], addr: Cidr, seed: Seed) -> StackConfig {
        StackConfig {
            mac,
            addrs: vec![addr],
            gateway: None,
            mtu: 1500,
            max_conns: 1024,
            max_neighbors: 1024,
            min_backlog: 2048,
            peer_half_open: PeerLimit::Share,
            peer_conns: PeerLimit::Share,
            conn: ConnConfig::default(),
            seed,
            ttl: 64,
            dscp: 0,
            spread: Spread::alone(),
            tx_tcp_csum: false,
            tx_ip_csum: false,
        }
    }

    /// Whether `ip` is one of our addresses.
    pub(super) fn is_ours(&self, ip: IpAddr) -> bool {
        self.addrs.iter().any(|c| c.addr == ip)
    }

    /// Whether `ip` can be the address of another host we speak TCP with.
    pub(super) fn is_peer(&self, ip: Ipv4Addr) -> bool {
        !(ip.is_unspecified()
            || ip.octets()[0] == 0
            || ip.is_loopback()
            || ip.is_multicast()
            || ip.octets()[0] >= 240
            || self.is_ours(IpAddr::V4(ip))
            || self.addrs.iter().any(|c| c.is_broadcast(ip)))
    }

    /// Our address towards `remote`, and the neighbor the frames go to.
    pub(super) fn route(&self, remote: Ipv4Addr) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let on_link = |ip: Ipv4Addr| {
            self.addrs.iter().find(|c| c.contains(IpAddr::V4(ip))).and_then(|c| match c.addr {
                IpAddr::V4(a) => Some(a),
                IpAddr::V6(_) => None,
            })
        };
        if let Some(local) = on_link(remote) {
            return Some((local, remote));
        }
        let Some(IpAddr::V4(gateway)) = self.gateway else { return None };
        on_link(gateway).map(|local| (local, gateway))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cfg(addr: &str, gateway: Option<&str>) -> StackConfig {
        let mut c = StackConfig::new([2, 0, 0, 0, 0, 1], addr.parse().unwrap(), Seed::from_u64(1));
        c.gateway = gateway.map(|g| g.parse().unwrap());
        c
    }

    fn ip(s: &str) -> Ipv4Addr {
        s.parse().unwrap()
    }

    #[test]
    fn test_prefixes_at_their_bounds() {
        let c: Cidr = "10.1.2.3/24".parse().unwrap();
        assert!(c.contains("10.1.2.255".parse().unwrap()));
        assert!(!c.contains("10.1.3.0".parse().unwrap()));
        assert!(!c.contains("::1".parse().unwrap()));
        let all: Cidr = "10.1.2.3/0".parse().unwrap();
        assert!(all.contains("192.0.2.1".parse().unwrap()));
        let one: Cidr = "10.1.2.3/32".parse().unwrap();
        assert!(one.contains("10.1.2.3".parse().unwrap()));
        assert!(!one.contains("10.1.2.2".parse().unwrap()));
        let six: Cidr = "2001:db8::1/64".parse().unwrap();
        assert!(six.contains("2001:db8::ffff".parse().unwrap()));
        assert!(!six.contains("2001:db8:0:1::".parse().unwrap()));
        assert!("::1/0".parse::<Cidr>().unwrap().contains("::2".parse().unwrap()));
        for bad in ["10.0.0.1", "10.0.0.1/33", "::/129", "x/8", "10.0.0.1/x"] {
            assert_eq!(bad.parse::<Cidr>(), Err(CidrError), "{bad}");
        }
        assert_eq!(c.to_string(), "10.1.2.3/24");
    }

    #[test]
    fn test_broadcast_of_a_link() {
        let c: Cidr = "10.1.2.3/24".parse().unwrap();
        assert!(c.is_broadcast(ip("10.1.2.255")) && c.is_broadcast(ip("10.1.2.0")));
        assert!(!c.is_broadcast(ip("10.1.2.1")) && !c.is_broadcast(ip("10.1.3.255")));
        let pair: Cidr = "10.1.2.0/31".parse().unwrap();
        assert!(!pair.is_broadcast(ip("10.1.2.1")) && !pair.is_broadcast(ip("10.1.2.0")));
    }

    #[test]
    fn test_peers_are_single_other_hosts() {
        let c = cfg("10.1.2.3/24", None);
        for bad in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "10.1.2.3",
            "10.1.2.255",
            "10.1.2.0",
        ] {
            assert!(!c.is_peer(ip(bad)), "{bad}");
        }
        assert!(c.is_peer(ip("10.1.2.4")) && c.is_peer(ip("10.1.3.255")));
    }

    #[test]
    fn test_addresses_a_host_can_have() {
        let check = |addrs: &[&str], gateway: Option<&str>| {
            let addrs: Vec<Cidr> = addrs.iter().map(|a| a.parse().unwrap()).collect();
            check_addrs(&addrs, gateway.map(|g| g.parse().unwrap())).map_err(|e| e.to_string())
        };
        for (addrs, gateway) in [
            (&["10.0.0.1/24"][..], None),
            (&["10.0.0.1/24", "10.0.0.2/24", "192.0.2.1/32"], Some("10.0.0.254")),
            (&["10.0.0.0/31"], Some("10.0.0.1")),
            (&["10.0.0.1/0"], Some("192.0.2.1")),
        ] {
            assert_eq!(check(addrs, gateway), Ok(()), "{addrs:?}");
        }
        for (addrs, gateway, why) in [
            (&["fd00::1/64"][..], None, "IPv6"),
            (&["10.0.0.0/24"], None, "no address for a host"),
            (&["10.0.0.255/24"], None, "no address for a host"),
            (&["127.0.0.1/8"], None, "no address for a host"),
            (&["0.0.0.0/0"], None, "no address for a host"),
            (&["224.0.0.1/24"], None, "no address for a host"),
            (&["255.255.255.255/32"], None, "no address for a host"),
            (&["10.0.0.1/24", "10.0.0.1/16"], None, "10.0.0.1 is given twice"),
            (&["10.0.0.1/24"], Some("10.0.1.1"), "10.0.1.1 is on no link"),
            (&["10.0.0.1/24"], Some("10.0.0.1"), "10.0.0.1 is on no link"),
            (&["10.0.0.1/24"], Some("10.0.0.255"), "10.0.0.255 is on no link"),
            (&["10.0.0.1/24"], Some("fd00::1"), "IPv6"),
        ] {
            let e = check(addrs, gateway).unwrap_err();
            assert!(e.contains(why), "{addrs:?} {gateway:?}: {e}");
        }
    }

    #[test]
    fn test_route_on_link_and_by_gateway() {
        let c = cfg("10.1.2.3/24", Some("10.1.2.1"));
        assert_eq!(c.route(ip("10.1.2.9")), Some((ip("10.1.2.3"), ip("10.1.2.9"))));
        assert_eq!(c.route(ip("192.0.2.1")), Some((ip("10.1.2.3"), ip("10.1.2.1"))));
        assert_eq!(cfg("10.1.2.3/24", None).route(ip("192.0.2.1")), None);
        assert_eq!(cfg("10.1.2.3/24", Some("10.9.9.9")).route(ip("192.0.2.1")), None);
    }
}
