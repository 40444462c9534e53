//! The RNIC a command works on.

use std::fs::File;
use std::net::IpAddr;

use heddle::perf::spec;
use heddle::{
    Cidr, Eal, EalConfig, EalError, Endpoint, EndpointConfig, PortSource, VdevArg, check_addrs,
};

use super::Failure;

/// Device and addresses.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct NetArgs {
    /// DPDK virtual device, in DPDK's syntax (net_af_packet0,iface=eth1)
    #[arg(long, value_name = "ARGS")]
    pub(crate) vdev: Option<VdevArg>,
    /// PCI device bound to a DPDK driver (0000:3b:00.0)
    #[arg(long, value_name = "ADDR", conflicts_with = "vdev")]
    pub(crate) pci: Option<String>,
    /// Our address with its prefix (10.0.0.1/24); may be given several times
    #[arg(long = "ip", value_name = "CIDR", value_parser = cidr)]
    pub(crate) ips: Vec<Cidr>,
    /// Next hop for addresses on no link of ours
    #[arg(long, value_name = "IP")]
    pub(crate) gateway: Option<IpAddr>,
}

/// An address with its prefix length.
pub(crate) fn cidr(s: &str) -> Result<Cidr, String> {
    let form = "expected ADDRESS/PREFIX, as 10.0.0.1/24 or fd00::1/64";
    let (addr, prefix) = s.split_once('/').ok_or(form)?;
    let addr: IpAddr = addr.parse().map_err(|_| form)?;
    let digits = prefix.bytes().all(|b| b.is_ascii_digit());
    let prefix: u8 = prefix.parse().ok().filter(|_| digits).ok_or(form)?;
    if addr.is_unspecified() || addr.is_multicast() {
        return Err("an RNIC needs an address of its own, not that of none or many".into());
    }
    Cidr::new(addr, prefix).ok_or_else(|| form.into())
}

/// Octets of an IP packet.
pub(crate) fn mtu(s: &str) -> Result<u16, String> {
    let (min, max) = (spec::MTU.start(), spec::MTU.end());
    let wrong = || format!("MTU {s} is not between {min} and {max}");
    s.parse().ok().filter(|n| spec::MTU.contains(n)).ok_or_else(wrong)
}

impl NetArgs {
    /// The device, once it is known that there is one and an address.
    pub(crate) fn source(&self) -> Result<PortSource, Failure> {
        if self.ips.is_empty() {
            return Err(Failure::usage("--ip is missing: an RNIC needs an address"));
        }
        check_addrs(&self.ips, self.gateway).map_err(Failure::usage)?;
        match (&self.vdev, &self.pci) {
            (Some(v), _) => Ok(PortSource::Vdev(v.clone())),
            (None, Some(p)) => Ok(PortSource::Device(p.clone())),
            (None, None) => {
                Err(Failure::usage("--vdev or --pci is missing: an RNIC needs a device"))
            }
        }
    }

    /// Starts DPDK and opens the device, with so many octets of memory to register and for queues.
    pub(crate) fn open(
        &self,
        mtu: u16,
        memory: usize,
        queues: usize,
    ) -> Result<(Eal, Endpoint), Failure> {
        self.open_with(|config| EndpointConfig { mtu, memory, queues, ..config })
    }

    /// The same, set up as `change` makes it.
    pub(crate) fn open_with(
        &self,
        change: impl FnOnce(EndpointConfig) -> EndpointConfig,
    ) -> Result<(Eal, Endpoint), Failure> {
        let source = self.source()?;
        let config = EndpointConfig::new(self.ips.clone());
        let config = change(EndpointConfig { gateway: self.gateway, ..config });
        let pools = u32::try_from(config.workers).unwrap_or(u32::MAX);
        let eal = start_eal(&config, pools, self.pci.iter().cloned().collect())?;
        let endpoint = Endpoint::open(&eal, &source, &config)?;
        Ok((eal, endpoint))
    }
}

/// File descriptors that DPDK opens as it starts, and some for its devices.
const DESCRIPTORS: usize = 12;

/// Starts DPDK with memory for the frames of `workers` workers set up as `config` says.
pub(crate) fn start_eal(
    config: &EndpointConfig,
    workers: u32,
    pci: Vec<String>,
) -> Result<Eal, Failure> {
    // DPDK would say so on its own, in a line beside ours.
    let spare: Result<Vec<_>, _> = (0..DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    spare.map_err(|e| {
        Failure::failed(format!("DPDK needs {DESCRIPTORS} file descriptors (ulimit -n): {e}"))
    })?;
    // Headers of buffer and pool, headroom, VLAN tags: 512 octets cover them.
    let frame = u32::from(config.mtu).max(2048) + 512;
    let pools = u64::from(workers) * u64::from(config.frames) * u64::from(frame);
    let memory_mb = 64 + u32::try_from(pools >> 20).unwrap_or(u32::MAX);
    Eal::init(&EalConfig { memory_mb, pci, ..EalConfig::default() }).map_err(|e| match e {
        EalError::BadPci(_) => Failure::usage(e),
        e => e.into(),
    })
}

/// A processor's number for a thread to run on.
pub(crate) fn first_core() -> Result<usize, Failure> {
    let [core] = heddle::perf::pin::first()?;
    Ok(core)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_cidr_of_both_families_and_at_the_ends() {
        for good in ["10.0.0.1/24", "10.0.0.1/0", "10.0.0.1/32", "fd00::1/64", "fd00::1/128"] {
            let c = cidr(good).unwrap();
            assert_eq!(format!("{}/{}", c.addr(), c.prefix()), good);
        }
    }

    #[test]
    fn test_cidr_refuses() {
        for bad in [
            "",
            "10.0.0.1",
            "10.0.0.1/",
            "10.0.0.1/33",
            "fd00::1/129",
            "10.0.0/8",
            "x/8",
            "10.0.0.1/+8",
            "0.0.0.0/0",
            "224.0.0.1/4",
            "10.0.0.1/24/2",
        ] {
            assert!(cidr(bad).is_err(), "{bad}");
        }
    }
}
