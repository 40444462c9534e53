//! Other addresses and routes while connections run.

use heddle_base::Instant;
use heddle_rnic::Order;
use heddle_tcp::Addressing;

use super::ConnectionManager;
use crate::event::{Event, ListenFailure};
use crate::listener::bind;
use crate::ports::PortsError;

impl ConnectionManager {
    /// Has the workers of a port announce its addresses to the hosts of its links.
    pub fn announce(&mut self, port: usize) {
        let workers: Vec<_> = self.workers_at(port).collect();
        self.orders.extend(workers.into_iter().map(|worker| (worker, Order::Announce)));
    }

    /// Gives the ports these addresses and routes, one entry for each port, instead of those they
    /// have; what is the same goes on untouched.
    ///
    /// Workers are ordered accordingly, before anything that is asked for afterwards. Listeners at an
    /// address that its port has no more end with [`ListenFailure::AddressRemoved`]. Connections that
    /// lose their address or their route are ended by the worker, which says so
    /// ([`CloseReason::Withdrawn`](heddle_rnic::CloseReason::Withdrawn)); those of InfiniBand end here
    /// and now ([`DisconnectReason::Withdrawn`](crate::DisconnectReason::Withdrawn),
    /// [`ConnectFailure::Withdrawn`](crate::ConnectFailure::Withdrawn)). Their peers are told once, from
    /// the address that goes: [`poll_datagram`](Self::poll_datagram) is to be called, and the workers
    /// to be given what it has, before the orders are. An address that goes from one port to another
    /// is removed from the one and new at the other.
    ///
    /// # Errors
    /// Nothing has been changed then.
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
            let Some(ip) = bind(l.addr) else { continue };
            let port = self.config.ports.with_addr(ip);
            if port
                .is_some_and(|p| self.config.ports.workers_of(p).any(|w| l.workers().contains(&w)))
            {
                continue;
            }
            // Its workers let go of it by the order above.
            let app = l.app;
            self.tell(app, Event::ListenFailed { id, error: ListenFailure::AddressRemoved });
            self.forget_listener(id);
        }
        Ok(())
    }
}
