//! The ports of an RNIC, in the form for applications.

use heddle_tcp::Addressing;
use heddle_verbs::{PortAddr, PortCounters, PortLink, PortProbe, PortRoute};

/// Reads the state of a data-plane port for applications. A closed port counts as down.
#[derive(Debug)]
pub(crate) struct Probe(pub(crate) heddle_dataplane::PortProbe);

impl PortProbe for Probe {
    fn link(&self) -> PortLink {
        let link = self.0.link();
        PortLink { up: link.is_some_and(|l| l.up), mbps: link.and_then(|l| l.mbps) }
    }

    fn counters(&self) -> PortCounters {
        let s = self.0.stats().unwrap_or_default();
        PortCounters {
            rx_frames: s.rx_frames,
            rx_bytes: s.rx_bytes,
            rx_dropped: s.rx_missed.saturating_add(s.rx_no_mbuf),
            rx_errors: s.rx_errors,
            tx_frames: s.tx_frames,
            tx_bytes: s.tx_bytes,
            tx_errors: s.tx_errors,
        }
    }
}

/// Returns the addresses and routes of a port and of its VLANs.
pub(crate) fn addressing(net: &Addressing) -> (Vec<PortAddr>, Vec<PortRoute>) {
    (addresses(net), routes(net))
}

fn routes(net: &Addressing) -> Vec<PortRoute> {
    let links = net.links().map(|(_, link)| link);
    let routes = links.flat_map(|link| link.routes().iter().map(move |route| (link, route)));
    let shown = routes.map(|(link, route)| {
        let (to, prefix) = (route.dest.addr(), route.dest.prefix());
        PortRoute { to, prefix, from: link.ends(route.via) }
    });
    // Over a link with link-local addresses alone, nothing beyond the router is reached.
    shown.filter(|route| !route.from.is_empty()).collect()
}

/// Returns the addresses of a port and of its VLANs. A link-local address may be on
/// several links, and is listed once.
fn addresses(net: &Addressing) -> Vec<PortAddr> {
    let mut all: Vec<PortAddr> = Vec::new();
    for (_, c) in net.all_addrs() {
        if !all.iter().any(|known| known.addr == c.addr()) {
            all.push(PortAddr { addr: c.addr(), prefix: c.prefix() });
        }
    }
    all
}
