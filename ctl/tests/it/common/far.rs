//! The far end of an RNIC's wire, in the hands of a test.

use arrayvec::ArrayVec;
use heddle_base::Chunks;
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{Eal, Mbuf, Mempool, MempoolConfig, Port, PortConfig, RxQueue, TxQueue};

use super::name;

/// The port at the other end of the RNIC's rings.
pub struct Far {
    port: Port,
    rx: RxQueue,
    tx: TxQueue,
    pool: Mempool,
}

impl Far {
    /// Opens an RNIC and the far end of its wire.
    pub fn open(eal: &Eal, config: &EndpointConfig) -> (Endpoint, Far) {
        let pool = || Mempool::new(eal, &MempoolConfig::for_mtu(2047, 1500)).unwrap();
        let pools = (pool(), pool());
        let ports = (PortConfig::new(pools.0), PortConfig::new(pools.1));
        let (near, mut port) = Port::ring_pair(eal, &name(), 1024, &ports.0, &ports.1).unwrap();
        let us = Endpoint::on_port(eal, near, pools.0, config).unwrap();
        let (rx, tx) = port.take_queues().pop().unwrap();
        (us, Far { port, rx, tx, pool: pools.1 })
    }

    /// Returns the station of this end.
    pub fn mac(&self) -> [u8; 6] {
        self.port.mac()
    }

    /// Puts a frame on the wire.
    pub fn put(&mut self, frame: &[u8]) {
        let mut m = self.pool.alloc().unwrap();
        m.append(frame.len()).unwrap().copy_from_slice(frame);
        let mut one: ArrayVec<Mbuf, 1> = ArrayVec::new();
        one.push(m);
        assert_eq!(self.tx.burst(&mut one), 1, "the ring has room");
    }

    /// Returns the frames that the RNIC has sent, up to a burst of them.
    pub fn burst(&mut self) -> Vec<Vec<u8>> {
        let mut frames: ArrayVec<Mbuf, 32> = ArrayVec::new();
        self.rx.burst(&mut frames);
        let bytes = |f: Mbuf| {
            let mut b = vec![0; f.len()];
            f.copy_at(0, &mut b);
            b
        };
        frames.drain(..).map(bytes).collect()
    }
}
