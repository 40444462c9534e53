//! The RNIC that a command works on.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use heddle::dpdk::{Bond, BondMode, IovaMode, Member, Offloads, PortSource, TransmitHash, VdevArg};
use heddle::rnic::MTU;
use heddle::tcp::{
    Addressing, Cidr, Congestion, ConnConfig, Ecn, Pacing, PathMtu, Patience, Priority, Route,
    RouterAdverts, SynCookies, UserTimeoutOption, Vid, Vlan,
};
use heddle::units::Span;
use heddle::{Eal, EalConfig, Endpoint, EndpointConfig};
use heddle_daemon::config::Sharing;
pub(crate) use heddle_daemon::config::cidr;
use heddle_daemon::rnic;

use super::Failure;

/// The RNIC's device and addresses.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct NetArgs {
    /// DPDK virtual device, in DPDK's syntax (net_af_packet0,iface=eth1)
    #[arg(long, value_name = "ARGS")]
    pub(crate) vdev: Option<VdevArg>,
    /// PCI device bound to a DPDK driver (0000:3b:00.0)
    #[arg(long, value_name = "ADDR", conflicts_with = "vdev")]
    pub(crate) pci: Option<String>,
    /// Make a bond of the devices of --member: active-backup, or 802.3ad for LACP; also
    /// primary=DEVICE (active-backup), hash=l2, l2+3 or l3+4 (802.3ad) and link-interval=T
    #[arg(
        long,
        value_name = "MODE[,KEY=VALUE]",
        value_parser = bond,
        requires = "members",
        conflicts_with_all = ["vdev", "pci"]
    )]
    pub(crate) bond: Option<Bond>,
    /// A device of the bond, as --vdev or --pci has it; may be given several times
    #[arg(long = "member", value_name = "DEVICE", value_parser = parsed::<Member>, requires = "bond")]
    pub(crate) members: Vec<Member>,
    /// The addresses that a PCI device uses for its DMA
    #[arg(long, value_enum, default_value_t = Iova::Auto)]
    pub(crate) iova: Iova,
    /// The work that the device may do by itself: rx-checksum, tx-checksum, tso, lro; none for
    /// nothing [default: all that it can]
    #[arg(long, value_name = "LIST", value_parser = offloads)]
    pub(crate) offloads: Option<Offloads>,
    /// Our address with its prefix (10.0.0.1/24); may be given several times
    #[arg(long = "ip", value_name = "CIDR", value_parser = cidr)]
    pub(crate) ips: Vec<Cidr>,
    /// Next hop for addresses on no local link
    #[arg(long, value_name = "IP")]
    pub(crate) gateway: Option<IpAddr>,
    /// Take from IPv6 routers of the link: ignore for nothing, routes for default routes and the
    /// MTU, addresses for addresses of their prefixes as well
    #[arg(long, value_name = "WHAT", default_value_t = RouterAdverts::Ignore)]
    pub(crate) router_adverts: RouterAdverts,
    /// A VLAN of the port, and our addresses there: 10=10.0.10.1/24,fd00:10::1/64; also priority=0 to
    /// 7 or dscp, gateway=IP and router-adverts=WHAT; may be given several times
    #[arg(long = "vlan", value_name = "ID=LIST", value_parser = vlan)]
    pub(crate) vlans: Vec<Vlan>,
}

/// Parses a list of offloads.
fn offloads(s: &str) -> Result<Offloads, String> {
    let mut all = Offloads::NONE;
    let names = s.split(',').filter(|name| s != "none" && !all.allow(name));
    match names.last() {
        None => Ok(all),
        Some(name) => {
            Err(format!("there is no offload {name:?}: {}, or none", Offloads::NAMES.join(", ")))
        }
    }
}

fn parsed<T: FromStr<Err: Display>>(s: &str) -> Result<T, String> {
    s.parse().map_err(|e: T::Err| e.to_string())
}

/// The time that a bond gets to find a member that carries frames. LACP takes three seconds.
const AGREEMENT: Duration = Duration::from_secs(10);

/// Parses a bond, whose members come later.
fn bond(s: &str) -> Result<Bond, String> {
    let mut parts = s.split(',');
    let mode = named(&BondMode::NAMES, parts.next().unwrap_or_default())?;
    let mut bond = Bond::new(mode, Vec::new());
    for part in parts {
        match part.split_once('=') {
            Some(("primary", device)) => bond.primary = Some(device.to_owned()),
            Some(("hash", _)) if mode != BondMode::Lacp => {
                return Err("only an 802.3ad bond chooses among its members by a hash".into());
            }
            Some(("hash", hash)) => bond.hash = named(&TransmitHash::NAMES, hash)?,
            Some(("link-interval", time)) => bond.interval = parsed::<Span>(time)?.0,
            _ => return Err(format!("'{part}': a bond has primary=, hash= and link-interval=")),
        }
    }
    Ok(bond)
}

/// Parses a VLAN with our addresses there.
fn vlan(s: &str) -> Result<Vlan, String> {
    let form = || format!("'{s}' is no VLAN (expected ID=ADDRESS/PREFIX, such as 10=10.0.10.1/24)");
    let (id, list) = s.split_once('=').ok_or_else(form)?;
    let vid = id.parse().ok().and_then(Vid::new).ok_or("a VLAN has an ID between 1 and 4094")?;
    let (mut addrs, mut routes) = (Vec::new(), Vec::new());
    let (mut priority, mut router_adverts) = (Priority::default(), RouterAdverts::Ignore);
    for item in list.split(',') {
        match item.split_once('=') {
            None => addrs.push(cidr(item)?),
            Some(("priority", p)) => priority = parsed(p)?,
            Some(("gateway", ip)) => {
                let via = ip.parse().map_err(|_| format!("'{ip}' is no address of a gateway"))?;
                routes.push(Route::default_via(via));
            }
            Some(("router-adverts", what)) => router_adverts = parsed(what)?,
            Some((key, _)) => {
                return Err(format!(
                    "a VLAN has no {key}: addresses, priority, gateway, router-adverts"
                ));
            }
        }
    }
    if addrs.is_empty() && router_adverts != RouterAdverts::Addresses {
        return Err(form());
    }
    let net = Addressing::new(addrs, routes).map_err(|e| e.to_string())?;
    Ok(Vlan { vid, priority, router_adverts, net })
}

/// The command line's form of [`IovaMode`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Iova {
    /// The mode that the device is known to need
    #[default]
    Auto,
    /// Virtual addresses of the process, which takes an IOMMU
    Va,
    /// Physical addresses: also for a virtio device behind an IOMMU that it bypasses
    Pa,
}

impl Iova {
    pub(crate) fn mode(self) -> Option<IovaMode> {
        match self {
            Iova::Auto => None,
            Iova::Va => Some(IovaMode::Va),
            Iova::Pa => Some(IovaMode::Pa),
        }
    }
}

/// Parses the MTU: bytes of an IP packet.
pub(crate) fn mtu(s: &str) -> Result<u16, String> {
    let (min, max) = (MTU.start(), MTU.end());
    let wrong = || format!("MTU {s} is not between {min} and {max}");
    s.parse().ok().filter(|n| MTU.contains(n)).ok_or_else(wrong)
}

impl NetArgs {
    /// Returns the device, after checking that the options name a device and an address.
    pub(crate) fn source(&self) -> Result<PortSource, Failure> {
        let none = self.ips.is_empty() && self.router_adverts != RouterAdverts::Addresses;
        if none && self.vlans.is_empty() {
            return Err(Failure::usage("--ip is missing: an RNIC needs an address"));
        }
        let routes = self.gateway.map(Route::default_via).into_iter().collect();
        Addressing::new(self.ips.clone(), routes)
            .and_then(|net| net.with_vlans(self.vlans.clone()))
            .map_err(Failure::usage)?;
        match (&self.vdev, &self.pci, &self.bond) {
            (Some(v), ..) => Ok(PortSource::Vdev(v.clone())),
            (None, Some(p), _) => Ok(PortSource::Device(p.clone())),
            (None, None, Some(bond)) => {
                let bond = Bond { members: self.members.clone(), ..bond.clone() };
                match bond.problem() {
                    Some(why) => Err(Failure::usage(format!("--bond: {why}"))),
                    None => Ok(PortSource::Bond(Box::new(bond))),
                }
            }
            (None, None, None) => {
                Err(Failure::usage("--vdev, --pci or --bond is missing: an RNIC needs a device"))
            }
        }
    }

    /// Returns our addresses, those in VLANs last.
    pub(crate) fn addrs(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let vlans = self.vlans.iter().flat_map(|v| v.net.addrs());
        self.ips.iter().chain(vlans).map(Cidr::addr)
    }

    /// Returns true if the address is one of ours.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        self.addrs().any(|addr| addr == ip)
    }

    /// Starts DPDK and opens the device with the configuration that `change` returns.
    pub(crate) fn open_with(
        &self,
        change: impl FnOnce(EndpointConfig) -> EndpointConfig,
    ) -> Result<(Eal, Endpoint), Failure> {
        let source = self.source()?;
        let config = EndpointConfig::new(self.ips.clone());
        let config = change(EndpointConfig {
            gateway: self.gateway,
            router_adverts: self.router_adverts,
            vlans: self.vlans.clone(),
            offloads: self.offloads.unwrap_or_default(),
            ..config
        });
        let pools = u32::try_from(config.workers).unwrap_or(u32::MAX);
        let pci = source.on_bus().map(str::to_owned).collect();
        let eal = EalConfig { pci, iova: self.iova.mode(), ..EalConfig::default() };
        let eal = start_eal(&config, pools, eal)?;
        let mut endpoint = Endpoint::open(&eal, &source, &config)?;
        if self.bond.is_some() {
            // LACP agrees only while the port is polled, and a connection would give up before.
            let until = Instant::now() + AGREEMENT;
            let up = |e: &Endpoint| e.worker_ports().all(|port| port.link().up);
            while !up(&endpoint) && Instant::now() < until {
                endpoint.poll();
            }
        }
        Ok((eal, endpoint))
    }
}

/// Starts DPDK with memory for the frames of `workers` workers with the configuration `config`.
pub(crate) fn start_eal(
    config: &EndpointConfig,
    workers: u32,
    eal: EalConfig,
) -> Result<Eal, Failure> {
    let pools = [(config.mtu, u64::from(workers) * u64::from(config.frames))];
    rnic::start_eal(pools, eal, None).map_err(Failure::of_start)
}

/// Settings of TCP for the connections of an RNIC of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct TcpArgs {
    /// The algorithm that sizes the congestion window: cubic, newreno or dctcp
    #[arg(long, value_name = "NAME", default_value = "cubic", value_parser = congestion)]
    congestion: Congestion,
    /// Explicit Congestion Notification: off, accept, request or accurate (asks for AccECN)
    #[arg(long, value_name = "WHEN", default_value = "accept", value_parser = ecn)]
    ecn: Ecn,
    /// Spread new data over round trips of 4 ms and more (auto), or never (off)
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = pacing)]
    pacing: Pacing,
    /// KiB that a peer may send ahead; without this option the window is 1024 KiB and grows with the
    /// path
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=65_536))]
    receive_window: Option<u32>,
    /// Probes for the path MTU: off, black-hole (where segments of full size vanish) or on
    #[arg(long, value_name = "WHEN", default_value = "black-hole", value_parser = path_mtu)]
    path_mtu_probing: PathMtu,
    /// The time for which a peer may acknowledge nothing [default: 120s]
    #[arg(long, value_name = "T", value_parser = user_timeout)]
    user_timeout: Option<Span>,
    /// Tell the peer this time (advertise), take the longer one of both ends (adapt), or neither (off)
    #[arg(long, value_name = "WHAT", default_value = "off", value_parser = user_timeout_option)]
    user_timeout_option: UserTimeoutOption,
}

impl TcpArgs {
    /// Returns the settings in the form of a configuration.
    pub(crate) fn sharing(self) -> Sharing {
        let sharing = Sharing {
            congestion: self.congestion,
            ecn: self.ecn,
            pacing: self.pacing,
            path_mtu: self.path_mtu_probing,
            user_timeout_option: self.user_timeout_option,
            ..Sharing::default()
        };
        sharing.with_window(self.receive_window.map(|kib| kib << 10))
    }

    /// Returns the limits on peers.
    pub(crate) fn patience(self) -> Patience {
        let default = ConnConfig::default().patience();
        let user_timeout = self.user_timeout.map_or(default.user_timeout, |t| t.0);
        Patience { user_timeout, ..default }
    }

    /// Returns the settings of connections.
    pub(crate) fn settings(self) -> ConnConfig {
        self.sharing().of_conn(ConnConfig::default()).with_patience(self.patience())
    }
}

fn congestion(s: &str) -> Result<Congestion, String> {
    named(&Congestion::NAMES, s)
}

fn ecn(s: &str) -> Result<Ecn, String> {
    named(&Ecn::NAMES, s)
}

fn pacing(s: &str) -> Result<Pacing, String> {
    named(&Pacing::NAMES, s)
}

pub(crate) fn syn_cookies(s: &str) -> Result<SynCookies, String> {
    named(&SynCookies::NAMES, s)
}

fn user_timeout(s: &str) -> Result<Span, String> {
    let time: Span = s.parse().map_err(|e| format!("{e}"))?;
    let known = (Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&time.0);
    if known { Ok(time) } else { Err("the time is not between 1s and 86400s".to_owned()) }
}

fn user_timeout_option(s: &str) -> Result<UserTimeoutOption, String> {
    named(&UserTimeoutOption::NAMES, s)
}

fn path_mtu(s: &str) -> Result<PathMtu, String> {
    named(&PathMtu::NAMES, s)
}

fn named<T: Copy>(names: &[(&str, T)], s: &str) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == s).map(|(_, value)| *value);
    let all: Vec<_> = names.iter().map(|(name, _)| *name).collect();
    found.ok_or_else(|| format!("'{s}' is none of {}", all.join(", ")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_bond_option_has_mode_and_keys() {
        assert_eq!(bond("active-backup").unwrap(), Bond::new(BondMode::ActiveBackup, Vec::new()));
        let b = bond("active-backup,primary=net_tap1,link-interval=50ms").unwrap();
        assert_eq!(b.primary.as_deref(), Some("net_tap1"));
        assert_eq!(b.interval, Duration::from_millis(50));
        assert_eq!(bond("802.3ad,hash=l2").unwrap().hash, TransmitHash::Layer2);
        for (wrong, why) in [
            ("", "none of active-backup, 802.3ad"),
            ("802.3ad,hash=l4", "none of l3+4, l2+3, l2"),
            ("active-backup,hash=l2", "only an 802.3ad bond"),
            ("active-backup,members=a", "a bond has primary=, hash= and link-interval="),
        ] {
            let e = bond(wrong).unwrap_err();
            assert!(e.contains(why), "{wrong}: {e}");
        }
    }
}
