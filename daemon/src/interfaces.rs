//! The kernel's interfaces a virtual device works on.
//!
//! Their drivers say nothing when an interface goes: no frame comes any more, and that is all.

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
    /// Looks after those that virtual devices name and that are there now.
    pub fn watch<'a>(sources: impl IntoIterator<Item = &'a PortSource>) -> Interfaces {
        let gone = Arc::new(OnceLock::new());
        let there: Vec<_> = sources
            .into_iter()
            .flat_map(|source| match source {
                PortSource::Vdev(vdev) => named(&vdev.to_string()),
                PortSource::Device(_) => Vec::new(),
            })
            .collect();
        if there.is_empty() {
            return Interfaces { gone, stop: None, thread: None };
        }
        let (stop, stopped) = channel();
        let seen = gone.clone();
        let look = move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let listed = listed();
                if let Some(name) = there.iter().find(|n| !listed.contains(n)) {
                    // Said once.
                    let _ = seen.set(name.clone());
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("heddle-ifaces".into()).spawn(look).ok();
        Interfaces { gone, stop: Some(stop), thread }
    }

    /// Whether they are still there. Costs a load.
    ///
    /// # Errors
    /// The name of one that is gone.
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
}
