//! Interfaces of the kernel that virtual devices work on, and PCI devices.
//!
//! A driver reports nothing when its interface or device disappears: frames just stop. A port that
//! has lost its device is lost for good, and an RNIC that has lost all its ports is of no use. The
//! kernel takes a device away from vfio when the process has ended, and waits until then.

use std::fs;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use heddle_dataplane::{Member, PortSource};

/// Interval between checks of the interfaces and devices.
const EVERY: Duration = Duration::from_millis(500);

/// Keys of a device's arguments that name an interface.
const KEYS: [&str; 4] = ["iface", "rx_iface", "rx_iface_in", "tx_iface"];

/// A thread that watches interfaces and devices.
#[derive(Debug)]
pub struct Interfaces {
    gone: Arc<OnceLock<String>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Interfaces {
    /// Watches the devices of an RNIC's ports, and those interfaces that virtual devices name and
    /// that exist now.
    pub fn watch<'a>(sources: impl IntoIterator<Item = &'a PortSource>) -> Interfaces {
        let gone = Arc::new(OnceLock::new());
        let mut ports: Vec<Needs> = sources
            .into_iter()
            .map(|source| match source {
                PortSource::Vdev(vdev) => Needs::Interfaces(named(&vdev.to_string())),
                PortSource::Device(name) => Needs::Device(name.clone()),
                PortSource::Bond(bond) => Needs::Any(bond.members.iter().map(of_member).collect()),
            })
            .collect();
        if ports.iter().all(Needs::is_nothing) {
            return Interfaces { gone, stop: None, thread: None };
        }
        let (stop, stopped) = channel();
        let seen = gone.clone();
        let look = move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let unplugged = |name: &str| PortSource::Device(name.to_owned()).is_gone();
                while let Some(what) = take_lost(&mut ports, &listed(), unplugged) {
                    if ports.is_empty() {
                        // The error is reported once.
                        let _ = seen.set(what);
                        return;
                    }
                    tracing::error!("{what} is gone, and its port with it");
                }
            }
        };
        let thread = std::thread::Builder::new().name("heddle-ifaces".into()).spawn(look).ok();
        Interfaces { gone, stop: Some(stop), thread }
    }

    /// Returns `Ok` if a working port is left. The check costs one load.
    ///
    /// # Errors
    /// The interface or device that disappeared last.
    #[inline]
    pub fn check(&self) -> Result<(), String> {
        match self.gone.get() {
            None => Ok(()),
            Some(what) => Err(format!("{what} is gone")),
        }
    }
}

impl Drop for Interfaces {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

/// The thing that a port needs to work.
#[derive(Debug, PartialEq, Eq)]
enum Needs {
    /// Interfaces of the kernel; empty if the device works without.
    Interfaces(Vec<String>),
    /// A device on a bus.
    Device(String),
    /// Any member of a bond: the bond works as long as a single member does.
    Any(Vec<Needs>),
}

fn of_member(member: &Member) -> Needs {
    match member {
        Member::Vdev(vdev) => Needs::Interfaces(named(&vdev.to_string())),
        Member::Device(name) => Needs::Device(name.clone()),
    }
}

impl Needs {
    fn is_nothing(&self) -> bool {
        match self {
            Needs::Interfaces(names) => names.is_empty(),
            Needs::Device(_) => false,
            Needs::Any(members) => members.iter().any(Needs::is_nothing),
        }
    }

    /// Returns the interface or device that is gone, if the port is lost with it.
    fn lost(&self, listed: &[String], unplugged: &impl Fn(&str) -> bool) -> Option<String> {
        match self {
            Needs::Interfaces(names) => {
                let name = names.iter().find(|n| !listed.contains(n))?;
                Some(format!("the interface {name}"))
            }
            Needs::Device(name) => unplugged(name).then(|| format!("the device {name}")),
            Needs::Any(members) => {
                let lost = members.iter().map(|m| m.lost(listed, unplugged));
                lost.collect::<Option<Vec<_>>>().map(|all| all.join(" and "))
            }
        }
    }
}

/// Removes a port if one of its interfaces is no longer `listed`, or its device is `unplugged`;
/// returns the interface or device.
fn take_lost(
    ports: &mut Vec<Needs>,
    listed: &[String],
    unplugged: impl Fn(&str) -> bool,
) -> Option<String> {
    let lost = |p: &Needs| p.lost(listed, &unplugged);
    let (at, what) = ports.iter().enumerate().find_map(|(at, p)| Some((at, lost(p)?)))?;
    ports.remove(at);
    Some(what)
}

/// Returns the existing interfaces among a device's arguments.
fn named(vdev: &str) -> Vec<String> {
    let listed = listed();
    let named = vdev.split(',').filter_map(|a| a.split_once('='));
    let names = named.filter(|(key, _)| KEYS.contains(key)).map(|(_, name)| name.to_owned());
    names.filter(|name| listed.contains(name)).collect()
}

/// Returns the names of all interfaces of this network namespace.
pub fn listed() -> Vec<String> {
    let text = fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let names = text.lines().skip(2).filter_map(|l| l.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_device_arguments_name_its_interfaces() {
        assert_eq!(named("net_af_packet0,iface=lo"), ["lo"]);
        assert_eq!(named("net_pcap0,rx_iface_in=lo,tx_iface=lo"), ["lo", "lo"]);
        assert!(named("net_ring0,iface=nosuchiface").is_empty());
        assert!(named("net_null0").is_empty());
    }

    #[test]
    fn test_port_is_lost_with_any_of_its_interfaces() {
        let names = |all: &[&str]| all.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let on = |all: &[&str]| Needs::Interfaces(names(all));
        let mut ports = vec![on(&["a", "b"]), on(&[]), on(&["c"])];
        let mut take = |listed: &[&str]| take_lost(&mut ports, &names(listed), |_| false);
        assert_eq!(take(&["c", "b", "a"]), None);
        assert_eq!(take(&["a"]).as_deref(), Some("the interface b"));
        assert_eq!(take(&["a"]).as_deref(), Some("the interface c"));
        assert_eq!(take(&[]), None);
        assert_eq!(ports, [on(&[])]);
    }

    #[test]
    fn test_bond_is_lost_with_its_last_member() {
        let device = |name: &str| Needs::Device(name.to_owned());
        let on = |name: &str| Needs::Interfaces(vec![name.to_owned()]);
        let bond = || vec![Needs::Any(vec![device("0000:01:00.0"), on("a")])];
        let listed = ["a".to_owned()];
        assert_eq!(take_lost(&mut bond(), &listed, |_| true), None);
        assert_eq!(take_lost(&mut bond(), &[], |_| false), None);
        let gone = take_lost(&mut bond(), &[], |_| true);
        assert_eq!(gone.as_deref(), Some("the device 0000:01:00.0 and the interface a"));
        assert!(Needs::Any(vec![on("a"), Needs::Interfaces(Vec::new())]).is_nothing());
    }

    #[test]
    fn test_a_port_is_lost_with_its_device() {
        let device = |name: &str| Needs::Device(name.to_owned());
        let mut ports = vec![device("0000:01:00.0"), device("0000:02:00.0")];
        assert_eq!(take_lost(&mut ports, &[], |_| false), None);
        let gone = take_lost(&mut ports, &[], |name| name.starts_with("0000:02"));
        assert_eq!(gone.as_deref(), Some("the device 0000:02:00.0"));
        assert_eq!(ports, [device("0000:01:00.0")]);
    }

    /// The machine has no such device, just as after unplugging.
    #[test]
    fn test_watch_reports_missing_pci_device() {
        let source = PortSource::Device("0000:fe:1f.7".into());
        let devices = Interfaces::watch([&source]);
        let start = std::time::Instant::now();
        let gone = loop {
            if let Err(what) = devices.check() {
                break what;
            }
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(gone, "the device 0000:fe:1f.7 is gone");
    }
}
