//! Routers of the ports' links: the addresses, routes and MTUs that they tell come and go while
//! connections run, as those of the owner do.

use heddle_base::Instant;
use heddle_cm::PortsError;
use heddle_tcp::autoconf::Autoconf;
use heddle_tcp::{Addressing, LinkNews};
use heddle_types::WorkerId;

use super::Control;

/// The ports' addresses and routes, with those that routers tell.
#[derive(Debug, Default)]
pub(crate) struct Routers(Vec<Autoconf>);

impl Routers {
    pub(crate) fn new(ports: Vec<Autoconf>) -> Routers {
        Routers(ports)
    }

    /// Returns when a port next has something to do.
    pub(super) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        self.0.iter().filter_map(|port| port.next_timeout(now)).min()
    }

    /// Makes a port ask for routers again, whose link has come up.
    pub(super) fn restart(&mut self, now: Instant, port: usize) {
        if let Some(port) = self.0.get_mut(port) {
            port.restart(now);
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
        let changed = match news {
            LinkNews::Router { from, advert } => port.heard(now, *from, advert),
            LinkNews::Conflict { addr } => {
                tracing::warn!(port = number, %addr, "another host has this address of ours");
                port.conflict(*addr)
            }
        };
        if changed {
            tracing::info!(port = number, ?news, "addresses or routes have changed");
            self.apply(now);
        }
    }

    /// Asks for routers and ends lifetimes when it is time to. Returns true if it was.
    pub(super) fn tend_routers(&mut self, now: Instant) -> bool {
        if self.routers.next_timeout(now).is_none_or(|at| at > now) {
            return false;
        }
        for number in 0..self.routers.0.len() {
            if self.routers.0[number].on_timeout(now) {
                self.cm.solicit_routers(number);
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
            self.board.set_addresses(self.cm.nets().map(crate::port::addresses));
        }
        // The workers get the datagrams first, because the datagrams leave from addresses that the
        // orders remove.
        self.send_datagrams();
        self.settle();
        done
    }
}
