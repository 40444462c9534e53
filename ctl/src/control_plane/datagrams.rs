//! Datagrams of InfiniBand's connection management: between the manager and the port that has the
//! address.

use heddle_cm::{IbConfig, ROCE_PORT, WorkerId};
use heddle_dataplane::Command;
use heddle_rnic::Order;
use heddle_tcp::TxDatagram;

use super::Control;

impl Control {
    /// Speaks the RDMA IP CM service from now on, at the addresses of `config`: its workers take
    /// RoCEv2's UDP port.
    pub(crate) fn enable_infiniband(&mut self, config: IbConfig) {
        for (w, link) in self.links.iter_mut().enumerate() {
            if config.ports.iter().any(|p| p.worker == WorkerId(w)) {
                link.order(Command::Order(Order::BindUdp { port: ROCE_PORT }));
            }
        }
        self.cm.enable_infiniband(config);
    }

    /// Hands workers what is to be sent. A worker that is behind is given none: the way to it is for
    /// orders, which nobody repeats.
    pub(super) fn send_datagrams(&mut self) {
        while let Some((WorkerId(worker), d)) = self.cm.poll_datagram() {
            match self.links.get_mut(worker) {
                Some(link) if link.is_up() && !link.is_behind() => {
                    let (local, remote, payload) = (d.local, d.remote, d.payload);
                    let datagram = Box::new(TxDatagram { local, remote, payload });
                    link.order(Command::Order(Order::SendDatagram(datagram)));
                    link.send();
                }
                _ => self.counters.datagrams_dropped += 1,
            }
        }
    }
}
