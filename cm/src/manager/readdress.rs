//! Changes of addresses and routes while connections run.

use heddle_base::Instant;
use heddle_rnic::Order;
use heddle_tcp::{Addressing, Vid};
use heddle_types::{Event, ListenFailure, WorkerId};

use super::ConnectionManager;
use crate::ports::PortsError;

impl ConnectionManager {
    /// Orders the workers of a port to announce its addresses to the hosts of its links.
    pub fn announce(&mut self, port: usize) {
        let workers: Vec<_> = self.workers_at(port).collect();
        self.orders.extend(workers.into_iter().map(|worker| (worker, Order::Announce)));
    }

    /// Orders the workers of a port to ask the routers of the port's link, or of a VLAN.
    pub fn solicit_routers(&mut self, port: usize, vid: Vid) {
        let workers: Vec<_> = self.workers_at(port).collect();
        self.orders
            .extend(workers.into_iter().map(|worker| (worker, Order::SolicitRouters { vid })));
    }

    /// Returns the port of a worker; `None` for a worker of the inner port.
    pub fn port_of(&self, worker: WorkerId) -> Option<usize> {
        (0..self.config.ports.nets().count())
            .find(|port| self.workers_at(*port).any(|w| w == worker))
    }

    /// Returns the addresses and routes of each port that leads to other hosts.
    pub fn nets(&self) -> impl Iterator<Item = &Addressing> {
        self.config.ports.nets()
    }

    /// Replaces the addresses and routes of the ports, with one entry for each port; unchanged
    /// entries go on untouched.
    ///
    /// The manager orders the workers accordingly, before any later request's orders. A listener at
    /// an address that its port no longer has ends with [`ListenFailure::AddressRemoved`]. The
    /// worker ends connections that lose their address or their route, and reports their end
    /// ([`CloseReason::Withdrawn`](heddle_types::CloseReason::Withdrawn)); connections of InfiniBand
    /// end within this call ([`DisconnectReason::Withdrawn`](heddle_types::DisconnectReason::Withdrawn),
    /// [`ConnectFailure::Withdrawn`](heddle_types::ConnectFailure::Withdrawn)). Their peers get one
    /// message, from the address that is removed: so call [`poll_datagram`](Self::poll_datagram),
    /// and pass its datagrams to the workers, before the orders. An address that moves from one
    /// port to another is removed from the first and new at the second.
    ///
    /// # Errors
    /// The call has changed nothing then.
    pub fn set_addressing(
        &mut self,
        now: Instant,
        nets: Vec<Addressing>,
    ) -> Result<(), PortsError> {
        self.now = now;
        let before = self.config.ports.replace(nets)?;
        for (port, before) in before.iter().enumerate() {
            let Some(net) = self.config.ports.net(port).filter(|net| *net != before) else {
                continue;
            };
            let workers: Vec<_> = self.workers_at(port).collect();
            for worker in workers {
                self.orders
                    .push_back((worker, Order::SetAddressing { net: Box::new(net.clone()) }));
            }
        }
        if let Some(ib) = &mut self.ib {
            ib.config.ports = self.config.ports.datagrams().collect();
        }
        self.ib_readdressed();
        for id in self.listeners.ids() {
            let Some(l) = self.listeners.get(id) else { continue };
            let Some(ip) = l.at().one() else { continue };
            let port = self.config.ports.with_addr(ip);
            if port
                .is_some_and(|p| self.config.ports.workers_of(p).any(|w| l.workers().contains(&w)))
            {
                continue;
            }
            // The listener's workers drop the address by the order above.
            let app = l.app;
            self.tell(app, Event::ListenFailed { id, error: ListenFailure::AddressRemoved });
            self.forget_listener(id);
        }
        Ok(())
    }
}
