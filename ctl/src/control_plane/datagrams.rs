//! Datagrams of InfiniBand's connection management: between the manager and the port that has the
//! address.

use std::sync::Arc;

use heddle_cm::{IbConfig, ROCE_PORT};
use heddle_dataplane::Command;
use heddle_rnic::Order;
use heddle_tcp::TxDatagram;
use heddle_types::WorkerId;

use super::Control;

impl Control {
    /// Enables the RDMA IP CM service at the addresses of `config`: their workers take RoCEv2's UDP
    /// port.
    pub(crate) fn enable_infiniband(&mut self, config: IbConfig) {
        let workers: Vec<_> = config.ports.iter().map(|p| p.worker).collect();
        self.cm.enable_infiniband(config);
        let Some(filter) = self.cm.ib_filter() else { return };
        for (w, link) in self.links.iter_mut().enumerate() {
            if workers.contains(&WorkerId(w)) {
                let filter = Arc::clone(&filter);
                link.order(Command::Order(Order::BindUdp { port: ROCE_PORT, filter }));
            }
        }
    }

    /// Passes datagrams to the workers that send them. A worker that is behind gets none: its ring
    /// is for orders, which are never repeated, while a lost datagram is.
    pub(super) fn send_datagrams(&mut self) {
        while let Some((WorkerId(worker), d)) = self.cm.poll_datagram() {
            match self.links.get_mut(worker) {
                Some(link) if link.is_up() && !link.is_behind() => {
                    let datagram = Box::new(TxDatagram {
                        local: d.local,
                        remote: d.remote,
                        payload: d.payload,
                        to_stranger: d.to_stranger,
                    });
                    link.order(Command::Order(Order::SendDatagram(datagram)));
                    link.send();
                }
                _ => self.counters.datagrams_dropped += 1,
            }
        }
    }
}
