//! The check of a configuration against this host: that what it names is there, fits, and is free.
//!
//! The host may change before an appliance starts. So an interface that is down only makes a
//! warning, because the appliance would start and wait for the link; what keeps it from starting is
//! a problem.

use core::fmt::Display;
use core::net::SocketAddr;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use heddle_dataplane::{
    Eal, EalConfig, Hugepages, Interface, Member, MemoryMode, PortSource, VdevArg,
};
use heddle_dataplane::{eal, lcore};
use heddle_verbs::PageSize;
use rustix::fs::Access;

use super::check::UNKNOWN;
use super::problem::{Problem, closest};
use super::text::Text;
use super::{Config, Control, Port};
use crate::interfaces::listed;
use crate::{nfs, rnic};

/// Drivers of virtual devices that a name may be meant for.
const DRIVERS: [&str; 9] = [
    "net_af_packet",
    "net_af_xdp",
    "net_tap",
    "net_pcap",
    "net_memif",
    "net_ring",
    "net_null",
    "net_virtio_user",
    "net_vhost",
];

/// Drivers whose device is an interface that has to exist: the argument that names it, and whether
/// the device works only with that argument. The frames of the first two pass through the
/// interface, so its MTU is theirs.
const INTERFACES: [(&str, &[&str], bool); 4] = [
    ("net_af_packet", &["iface"], true),
    ("net_af_xdp", &["iface"], true),
    ("net_pcap", &["iface", "rx_iface", "rx_iface_in", "tx_iface"], false),
    ("net_tap", &["remote"], false),
];

/// The findings about the host.
pub(super) struct Found {
    pub(super) problems: Vec<Problem>,
    /// The memory that packet buffers would have; `None` if there is not enough.
    pub(super) memory: Option<(u32, MemoryMode)>,
    /// DPDK's version, if DPDK was started.
    pub(super) dpdk: Option<String>,
}

struct Host<'a> {
    text: &'a Text<'a>,
    problems: Vec<Problem>,
    /// Whether an appliance answers at the control socket: it may be the one whose file this is, so
    /// the addresses that it listens on are no problem.
    running: bool,
}

/// Looks for everything that the configuration names.
pub(super) fn look(config: &Config, text: &Text<'_>) -> Found {
    let at = |c: &Control| UnixStream::connect(&c.path).is_ok();
    let running = config.control.as_ref().is_some_and(at);
    let mut host = Host { text, problems: Vec::new(), running };
    let eal = host.eal(config);
    for (n, port) in config.ports.iter().enumerate() {
        host.port(n, port, eal);
    }
    host.processors(config);
    let memory = host.memory(config);
    if let Some(control) = &config.control {
        host.socket(control);
    }
    if let Some(addr) = config.metrics {
        host.listens("metrics.listen", addr);
    }
    for spec in &config.listen {
        let Some(service) = spec.kind.nfs() else { continue };
        let key = match text.listener(spec.addr) {
            Some(n) => format!("listen[{n}].service"),
            None => "listen".into(),
        };
        for export in &service.exports {
            if let Err(e) = nfs::open(&export.directory, export, service.limits) {
                host.wrong(&key, e);
            }
        }
        if let Some(addr) = service.tcp {
            host.listens(&key, addr);
        }
    }
    Found { problems: host.problems, memory, dpdk: eal.map(|e| e.version().to_owned()) }
}

impl Host<'_> {
    fn wrong(&mut self, key: &str, what: impl Display) {
        self.problems.push(self.text.problem(key, what));
    }

    fn warn(&mut self, key: &str, what: impl Display) {
        self.problems.push(self.text.problem(key, what).into_warning());
    }

    /// Starts DPDK if a port has a virtual device, because only DPDK knows its drivers.
    fn eal(&mut self, config: &Config) -> Option<Eal> {
        let of_dpdk = |port: &Port| match &port.source {
            PortSource::Vdev(_) => true,
            PortSource::Device(_) => false,
            PortSource::Bond(b) => b.members.iter().any(|m| matches!(m, Member::Vdev(_))),
        };
        if !config.ports.iter().any(of_dpdk) {
            return None;
        }
        let config =
            EalConfig { memory_mb: 32, hugepages: Hugepages::Never, ..EalConfig::default() };
        match Eal::get().map_or_else(|| Eal::init(&config), Ok) {
            Ok(eal) => Some(eal),
            Err(e) => {
                self.wrong("dpdk", e);
                None
            }
        }
    }

    fn port(&mut self, n: usize, port: &Port, eal: Option<Eal>) {
        match &port.source {
            PortSource::Vdev(vdev) => self.vdev(&format!("port[{n}].vdev"), (n, port), vdev, eal),
            PortSource::Device(pci) if pci.starts_with(UNKNOWN) => {}
            PortSource::Device(pci) => self.pci(&format!("port[{n}].pci"), pci),
            PortSource::Bond(bond) => {
                for (at, member) in bond.members.iter().enumerate() {
                    let key = format!("port[{n}].bond.members[{at}]");
                    match member {
                        Member::Vdev(vdev) => self.vdev(&key, (n, port), vdev, eal),
                        Member::Device(pci) => self.pci(&key, pci),
                    }
                }
            }
        }
    }

    fn pci(&mut self, key: &str, pci: &str) {
        if let Some(why) = eal::pci_problem(pci) {
            self.wrong(key, why);
        }
    }

    fn vdev(&mut self, key: &str, of_port: (usize, &Port), vdev: &VdevArg, eal: Option<Eal>) {
        if let Some(eal) = eal.filter(|eal| !eal.has_driver(vdev)) {
            let name = vdev.name().trim_end_matches(|c: char| c.is_ascii_digit());
            let known = DRIVERS.iter().copied();
            let known = known.filter(|d| d.parse::<VdevArg>().is_ok_and(|d| eal.has_driver(&d)));
            let hint = hint(name, known);
            let version = eal.version();
            self.wrong(key, format!("{version} has no driver for a device {name}{hint}"));
            return;
        }
        let Some((driver, keys, must)) = INTERFACES.iter().find(|(d, ..)| of(vdev, d)) else {
            return;
        };
        let args = vdev.args().split(',').filter_map(|a| a.split_once('='));
        let names: Vec<_> = args.filter(|(k, _)| keys.contains(k)).map(|(_, name)| name).collect();
        if *must && names.is_empty() {
            self.wrong(key, format!("{driver} needs {}=INTERFACE", keys[0]));
        }
        for name in names {
            self.interface(key, name, *must, of_port);
        }
    }

    fn interface(&mut self, key: &str, name: &str, passes: bool, (n, port): (usize, &Port)) {
        let found = match Interface::named(name) {
            Ok(Some(found)) => found,
            Ok(None) => {
                let others = listed();
                let hint = hint(name, others.iter().map(String::as_str));
                let here = "in this network namespace";
                return self.wrong(key, format!("there is no interface {name} {here}{hint}"));
            }
            Err(e) => return self.warn(key, format!("the interface {name}: {e}")),
        };
        if !found.up {
            let what = format!("the interface {name} is down (ip link set {name} up)");
            self.warn(key, what);
        } else if !found.running {
            self.warn(key, format!("the interface {name} has no carrier: is its peer up?"));
        }
        let mtu = u32::from(port.mtu);
        if passes && mtu > found.mtu {
            let what = format!(
                "the interface {name} takes packets of {} bytes at most, and the port's have {mtu}: ip \
                 link set {name} mtu {mtu}, or a smaller mtu here",
                found.mtu
            );
            self.wrong(&format!("port[{n}].mtu"), what);
        }
    }

    fn processors(&mut self, config: &Config) {
        let free = lcore::available();
        for (n, cpu) in config.workers.lcores.iter().enumerate() {
            if !free.contains(cpu) {
                let what = format!(
                    "this process may not use processor {cpu}, or there is none: {} are left to it",
                    ranges(&free)
                );
                self.wrong(&format!("workers.lcores[{n}]"), what);
            }
        }
    }

    /// Checks that there are hugepages where the file asks for them.
    fn memory(&mut self, config: &Config) -> Option<(u32, MemoryMode)> {
        let page = match config.memory.pages {
            PageSize::Huge2M => Some(2 << 20),
            PageSize::Huge1G => Some(1 << 30),
            PageSize::Auto | PageSize::Small => None,
        };
        if let Some(page) = page {
            let free = eal::free_hugepages();
            let free = free.iter().find(|(size, _)| *size == page).map_or(0, |(_, free)| *free);
            let needed = (u64::from(config.memory.registered) << 20).div_ceil(page as u64);
            if free < needed {
                let what = format!(
                    "{} MiB take {needed} hugepages of {} MiB, and {free} are free (sysctl \
                     vm.nr_hugepages, or pages = \"auto\")",
                    config.memory.registered,
                    page >> 20
                );
                self.wrong("memory.pages", what);
            }
        }
        let eal = rnic::eal_config(config);
        match eal.memory_mode() {
            Ok(mode) => Some((eal.memory_mb, mode)),
            Err(e) => {
                self.wrong("dpdk.hugepages", format!("{e} (sysctl vm.nr_hugepages)"));
                None
            }
        }
    }

    /// Checks that the file of the socket can be made.
    fn socket(&mut self, control: &Control) {
        let key = "control.socket";
        let path = &control.path;
        match fs::symlink_metadata(path) {
            Ok(m) if !m.file_type().is_socket() => {
                return self.wrong(key, format!("{} is there, and no socket", path.display()));
            }
            _ => {}
        }
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new("."));
        match rustix::fs::access(dir, Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) => {}
            // systemd makes it when the service starts, and removes it with the service.
            Err(rustix::io::Errno::NOENT) if dir.starts_with("/run") => {
                let what = "does not exist: RuntimeDirectory= of a unit makes it";
                self.warn(key, format!("the directory {} {what}", dir.display()));
            }
            Err(rustix::io::Errno::NOENT) => {
                self.wrong(key, format!("the directory {} does not exist", dir.display()));
            }
            Err(e) => {
                let e = io::Error::from(e);
                self.wrong(key, format!("this user cannot write to {}: {e}", dir.display()));
            }
        }
    }

    /// Checks that an address of the host is there and free.
    fn listens(&mut self, key: &str, addr: SocketAddr) {
        match TcpListener::bind(addr) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::AddrInUse && self.running => {}
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                self.wrong(key, format!("another program listens on {addr}"));
            }
            Err(e) if e.kind() == ErrorKind::AddrNotAvailable => {
                self.wrong(key, format!("the host does not have the address {}", addr.ip()));
            }
            Err(e) => self.wrong(key, format!("{addr}: {e}")),
        }
    }
}

/// Returns true if the device is one of the driver's: its name goes on with a number, or another
/// word that sets it apart.
fn of(vdev: &VdevArg, driver: &str) -> bool {
    vdev.name().strip_prefix(driver).is_some_and(|rest| !rest.starts_with(char::is_alphabetic))
}

/// Returns the question whether the most similar name was meant.
fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    closest(name, known).map(|known| format!("; did you mean {known}?")).unwrap_or_default()
}

/// Writes numbers in order as ranges: `0-3,8`.
pub(super) fn ranges(numbers: &[usize]) -> String {
    let mut text = String::new();
    let mut at = 0;
    while let Some(first) = numbers.get(at) {
        let run = numbers[at..].iter().zip(*first..).take_while(|(n, want)| **n == *want).count();
        text.push_str(if at == 0 { "" } else { "," });
        text.push_str(&first.to_string());
        if run > 1 {
            text.push_str(&format!("-{}", first + run - 1));
        }
        at += run;
    }
    if text.is_empty() { "none".into() } else { text }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_numbers_are_written_as_ranges() {
        for (numbers, text) in
            [(&[][..], "none"), (&[3], "3"), (&[0, 1, 2, 3, 8], "0-3,8"), (&[1, 3, 4], "1,3-4")]
        {
            assert_eq!(ranges(numbers), text);
        }
    }

    #[test]
    fn test_device_belongs_to_driver_by_its_whole_name() {
        let of = |name: &str, driver| of(&name.parse().unwrap(), driver);
        assert!(of("net_tap0", "net_tap") && of("net_af_packet_left", "net_af_packet"));
        assert!(!of("net_tapestry0", "net_tap"));
    }
}
