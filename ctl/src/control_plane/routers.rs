//! Routers of the ports' links: the addresses, routes and MTUs that they tell come and go while
//! connections run, as those of the owner do.

use std::net::IpAddr;

use heddle_base::Instant;
use heddle_cm::PortsError;
use heddle_tcp::autoconf::{Autoconf, RouterAdverts};
use heddle_tcp::{Addressing, LinkNews, Vid, Vlan};
use heddle_types::WorkerId;

use super::Control;

/// A port's addresses and routes, with those that the routers of its links tell. Each VLAN has
/// routers of its own.
#[derive(Clone, Debug)]
pub(crate) struct PortRouters {
    mac: [u8; 6],
    mtu: u16,
    /// The link of the port itself.
    own: Autoconf,
    /// The VLANs with the settings of the owner.
    vlans: Vec<(Vlan, Autoconf)>,
}

impl PortRouters {
    /// Returns the state of a port that has heard of no router yet.
    pub(crate) fn new(adverts: RouterAdverts, mac: [u8; 6], mtu: u16, net: Addressing) -> Self {
        let own = Autoconf::new(adverts, mac, mtu, Addressing::default());
        let mut port = PortRouters { mac, mtu, own, vlans: Vec::new() };
        port.set_fixed(net);
        port
    }

    /// Replaces the addresses and routes that the owner configured. A VLAN that stays keeps the
    /// addresses and routes that its routers have told.
    fn set_fixed(&mut self, net: Addressing) {
        let mut before = std::mem::take(&mut self.vlans);
        for vlan in net.vlans() {
            let same =
                |(v, _): &(Vlan, _)| v.vid == vlan.vid && v.router_adverts == vlan.router_adverts;
            let auto = match before.iter().position(same) {
                Some(at) => {
                    let mut auto = before.swap_remove(at).1;
                    auto.set_fixed(vlan.net.clone());
                    auto
                }
                None => Autoconf::new(vlan.router_adverts, self.mac, self.mtu, vlan.net.clone()),
            };
            self.vlans.push((vlan.clone(), auto));
        }
        self.own.set_fixed(net);
    }

    /// Returns the links of the port: its own first.
    fn links(&self) -> impl Iterator<Item = &Autoconf> {
        std::iter::once(&self.own).chain(self.vlans.iter().map(|(_, auto)| auto))
    }

    fn links_mut(&mut self) -> impl Iterator<Item = (Vid, &mut Autoconf)> {
        let vlans = self.vlans.iter_mut().map(|(vlan, auto)| (vlan.vid, auto));
        std::iter::once((Vid::NONE, &mut self.own)).chain(vlans)
    }

    /// Takes news of one of the links. Returns true if addresses or routes may have changed.
    fn take(&mut self, now: Instant, news: &LinkNews) -> bool {
        let vid = news.vid();
        let Some((_, link)) = self.links_mut().find(|(link, _)| *link == vid) else {
            return false;
        };
        match news {
            LinkNews::Router { from, advert, .. } => {
                let changed = link.heard(now, *from, advert);
                if changed {
                    self.keep_apart(now, vid);
                }
                changed
            }
            LinkNews::Conflict { addr, .. } => link.conflict(*addr),
            LinkNews::RouterAnswers { silent, router, .. } => link.prefer(*router, *silent),
        }
    }

    /// Gives up addresses that the link `vid` has made and that another link of the port has. A
    /// router can so take no address from another VLAN, nor make it ours on a second one.
    fn keep_apart(&mut self, now: Instant, vid: Vid) {
        let taken: Vec<IpAddr> = self
            .links_mut()
            .filter(|(link, _)| *link != vid)
            .flat_map(|(_, auto)| auto.addressing(now).addrs().to_vec())
            .map(|c| c.addr())
            .collect();
        let Some((_, link)) = self.links_mut().find(|(link, _)| *link == vid) else { return };
        for addr in taken {
            if let IpAddr::V6(addr) = addr
                && !addr.is_unicast_link_local()
                && link.conflict(addr)
            {
                tracing::warn!(vlan = vid.get(), %addr, "another link of the port has this address");
            }
        }
    }

    /// Returns the addresses and routes that the port has now.
    pub(crate) fn addressing(&self, now: Instant) -> Addressing {
        let link = |now: Option<Instant>, (vlan, auto): &(Vlan, Autoconf)| {
            let net = now.map_or_else(|| vlan.net.clone(), |now| auto.addressing(now));
            Vlan { net, ..vlan.clone() }
        };
        let vlans = |now| self.vlans.iter().map(|v| link(now, v)).collect();
        let own = self.own.addressing(now);
        // The owner may have given an address to a link that another link has made of a prefix.
        own.clone()
            .with_vlans(vlans(Some(now)))
            .or_else(|_| self.own.fixed().clone().with_vlans(vlans(None)))
            .unwrap_or(own)
    }
}

/// The ports' addresses and routes, with those that routers tell.
#[derive(Debug, Default)]
pub(crate) struct Routers(Vec<PortRouters>);

impl Routers {
    pub(crate) fn new(ports: Vec<PortRouters>) -> Routers {
        Routers(ports)
    }

    /// Returns when a port next has something to do.
    pub(super) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let links = self.0.iter().flat_map(PortRouters::links);
        links.filter_map(|link| link.next_timeout(now)).min()
    }

    /// Makes a port ask for routers again, whose link has come up.
    pub(super) fn restart(&mut self, now: Instant, port: usize) {
        if let Some(port) = self.0.get_mut(port) {
            port.links_mut().for_each(|(_, link)| link.restart(now));
        }
    }

    fn nets(&self, now: Instant) -> Vec<Addressing> {
        self.0.iter().map(|port| port.addressing(now)).collect()
    }
}

impl Control {
    /// Replaces the addresses and routes that the owner has configured; those that routers have told
    /// stay.
    pub(super) fn set_fixed(
        &mut self,
        now: Instant,
        nets: Vec<Addressing>,
    ) -> Result<(), PortsError> {
        let ports = self.routers.0.len();
        if nets.len() != ports {
            return Err(PortsError::Count { given: nets.len(), ports });
        }
        let before = self.routers.0.clone();
        for (port, net) in self.routers.0.iter_mut().zip(nets) {
            port.set_fixed(net);
        }
        let done = self.readdress(now);
        if done.is_err() {
            self.routers.0 = before;
        }
        done
    }

    /// Takes what a worker has heard about its port's links.
    pub(super) fn take_news(&mut self, now: Instant, worker: WorkerId, news: &LinkNews) {
        let Some(number) = self.cm.port_of(worker) else { return };
        let Some(port) = self.routers.0.get_mut(number) else { return };
        if let LinkNews::Conflict { vid, addr } = news {
            let vlan = vid.get();
            tracing::warn!(port = number, vlan, %addr, "another host has this address of ours");
        }
        let moved = port.take(now, news);
        if let (true, LinkNews::RouterAnswers { vid, silent, router }) = (moved, news) {
            let vlan = vid.get();
            tracing::warn!(port = number, vlan, %silent, %router, "another router serves");
        }
        if moved {
            tracing::info!(port = number, ?news, "addresses or routes have changed");
            self.apply(now);
        }
    }

    /// Asks for routers and ends lifetimes when it is time to. Returns true if it was.
    pub(super) fn tend_routers(&mut self, now: Instant) -> bool {
        if self.routers.next_timeout(now).is_none_or(|at| at > now) {
            return false;
        }
        for (number, port) in self.routers.0.iter_mut().enumerate() {
            for (vid, link) in port.links_mut() {
                if link.on_timeout(now) {
                    self.cm.solicit_routers(number, vid);
                }
            }
        }
        self.apply(now);
        true
    }

    fn apply(&mut self, now: Instant) {
        if let Err(error) = self.readdress(now) {
            tracing::warn!(%error, "what routers tell gives no addresses that go together");
        }
    }

    fn readdress(&mut self, now: Instant) -> Result<(), PortsError> {
        let done = self.cm.set_addressing(now, self.routers.nets(now));
        if done.is_ok() {
            self.board.set_addresses(self.cm.nets().map(crate::port::addressing));
        }
        // The workers get the datagrams first, because the datagrams leave from addresses that the
        // orders remove.
        self.send_datagrams();
        self.settle();
        done
    }
}
