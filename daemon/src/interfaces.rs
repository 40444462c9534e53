//! The kernel's interfaces a virtual device works on.
//!
//! Their drivers say nothing when an interface goes: no frame comes any more, and that is all. A port
//! that has lost its interface is lost for good; an RNIC that has lost all its ports is of no use.

use std::fs;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use heddle_dataplane::PortSource;

/// How often they are looked for.
const EVERY: Duration = Duration::from_millis(500);

/// By what names drivers take them.
const KEYS: [&str; 4] = ["iface", "rx_iface", "rx_iface_in", "tx_iface"];

/// A thread that looks after them.
#[derive(Debug)]
pub struct Interfaces {
    gone: Arc<OnceLock<String>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Interfaces {
    /// Looks after those that the virtual devices of an RNIC's ports name and that are there now.
    pub fn watch<'a>(sources: impl IntoIterator<Item = &'a PortSource>) -> Interfaces {
        let gone = Arc::new(OnceLock::new());
        let mut ports: Vec<_> = sources
            .into_iter()
            .map(|source| match source {
                PortSource::Vdev(vdev) => named(&vdev.to_string()),
                PortSource::Device(_) => Vec::new(),
            })
            .collect();
        if ports.iter().all(Vec::is_empty) {
            return Interfaces { gone, stop: None, thread: None };
        }
        let (stop, stopped) = channel();
        let seen = gone.clone();
        let look = move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                while let Some(name) = take_lost(&mut ports, &listed()) {
                    if ports.is_empty() {
                        // Said once.
                        let _ = seen.set(name);
                        return;
                    }
                    tracing::error!("the interface {name} is gone, and its port with it");
                }
            }
        };
        let thread = std::thread::Builder::new().name("heddle-ifaces".into()).spawn(look).ok();
        Interfaces { gone, stop: Some(stop), thread }
    }

    /// Whether a port is left that works. Costs a load.
    ///
    /// # Errors
    /// The name of the interface that was gone last.
    #[inline]
    pub fn check(&self) -> Result<(), String> {
        match self.gone.get() {
            None => Ok(()),
            Some(name) => Err(format!("the interface {name} is gone")),
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

/// Takes away a port one of whose interfaces is not `listed` any more; the name of that.
fn take_lost(ports: &mut Vec<Vec<String>>, listed: &[String]) -> Option<String> {
    let lost = |names: &Vec<String>| names.iter().find(|n| !listed.contains(n)).cloned();
    let (at, name) = ports.iter().enumerate().find_map(|(at, p)| Some((at, lost(p)?)))?;
    ports.remove(at);
    Some(name)
}

/// The interfaces of a device's arguments, those of them that are there.
fn named(vdev: &str) -> Vec<String> {
    let listed = listed();
    let named = vdev.split(',').filter_map(|a| a.split_once('='));
    let names = named.filter(|(key, _)| KEYS.contains(key)).map(|(_, name)| name.to_owned());
    names.filter(|name| listed.contains(name)).collect()
}

/// The names of all interfaces of this network namespace.
fn listed() -> Vec<String> {
    let text = fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let names = text.lines().skip(2).filter_map(|l| l.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_interfaces_of_a_device() {
        assert_eq!(named("net_af_packet0,iface=lo"), ["lo"]);
        assert_eq!(named("net_pcap0,rx_iface_in=lo,tx_iface=lo"), ["lo", "lo"]);
        assert!(named("net_ring0,iface=nosuchiface").is_empty());
        assert!(named("net_null0").is_empty());
    }

    #[test]
    fn test_a_port_is_lost_with_any_of_its_interfaces_and_one_without_never() {
        let names = |all: &[&str]| all.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let mut ports = vec![names(&["a", "b"]), names(&[]), names(&["c"])];
        assert_eq!(take_lost(&mut ports, &names(&["c", "b", "a"])), None);
        assert_eq!(take_lost(&mut ports, &names(&["a"])), Some("b".to_owned()));
        assert_eq!(ports, [names(&[]), names(&["c"])]);
        assert_eq!(take_lost(&mut ports, &names(&["a"])), Some("c".to_owned()));
        assert_eq!(take_lost(&mut ports, &[]), None);
        assert_eq!(ports, [names(&[])]);
    }
}
