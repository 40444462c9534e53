//! The RNIC that a command works on.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

use heddle::dpdk::{IovaMode, Offloads, PortSource, VdevArg};
use heddle::rnic::MTU;
use heddle::tcp::{
    Addressing, Cidr, Congestion, ConnConfig, Ecn, PathMtu, Priority, Route, RouterAdverts,
    SynCookies, Vid, Vlan,
};
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
        match (&self.vdev, &self.pci) {
            (Some(v), _) => Ok(PortSource::Vdev(v.clone())),
            (None, Some(p)) => Ok(PortSource::Device(p.clone())),
            (None, None) => {
                Err(Failure::usage("--vdev or --pci is missing: an RNIC needs a device"))
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
        let pci = self.pci.iter().cloned().collect();
        let eal = EalConfig { pci, iova: self.iova.mode(), ..EalConfig::default() };
        let eal = start_eal(&config, pools, eal)?;
        let endpoint = Endpoint::open(&eal, &source, &config)?;
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
    /// KiB that a peer may send ahead; without this option the window is 1024 KiB and grows with the
    /// path
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=65_536))]
    receive_window: Option<u32>,
    /// Probes for the path MTU: off, black-hole (where segments of full size vanish) or on
    #[arg(long, value_name = "WHEN", default_value = "black-hole", value_parser = path_mtu)]
    path_mtu_probing: PathMtu,
}

impl TcpArgs {
    /// Returns the settings in the form of a configuration.
    pub(crate) fn sharing(self) -> Sharing {
        let sharing = Sharing {
            congestion: self.congestion,
            ecn: self.ecn,
            path_mtu: self.path_mtu_probing,
            ..Sharing::default()
        };
        sharing.with_window(self.receive_window.map(|kib| kib << 10))
    }

    /// Returns the settings of connections.
    pub(crate) fn settings(self) -> ConnConfig {
        self.sharing().of_conn(ConnConfig::default())
    }
}

fn congestion(s: &str) -> Result<Congestion, String> {
    named(&Congestion::NAMES, s)
}

fn ecn(s: &str) -> Result<Ecn, String> {
    named(&Ecn::NAMES, s)
}

pub(crate) fn syn_cookies(s: &str) -> Result<SynCookies, String> {
    named(&SynCookies::NAMES, s)
}

fn path_mtu(s: &str) -> Result<PathMtu, String> {
    named(&PathMtu::NAMES, s)
}

fn named<T: Copy>(names: &[(&str, T)], s: &str) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == s).map(|(_, value)| *value);
    let all: Vec<_> = names.iter().map(|(name, _)| *name).collect();
    found.ok_or_else(|| format!("'{s}' is none of {}", all.join(", ")))
}
