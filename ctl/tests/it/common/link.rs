//! An RNIC at a wire whose other end is in the hands of the test.

use arrayvec::ArrayVec;
use heddle_base::Chunks;
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{
    Clock, Eal, ManualClock, Mbuf, Mempool, MempoolConfig, Port, PortConfig, RxQueue, TxQueue,
};

use super::{US, config, name};

/// The RNIC, and the test's end of its wire.
pub struct Link {
    pub us: Endpoint,
    pub hand: ManualClock,
    /// The RNIC's station.
    pub mac: [u8; 6],
    rx: RxQueue,
    tx: TxQueue,
    pool: Mempool,
    _far: Port,
}

impl Link {
    /// Opens an RNIC whose configuration `change` has changed.
    pub fn open(eal: &Eal, change: impl FnOnce(&mut EndpointConfig)) -> Link {
        let (clock, hand) = Clock::manual();
        let mut config = config(US, &clock);
        change(&mut config);
        let pool = || Mempool::new(eal, &MempoolConfig::for_mtu(2047, 1500)).unwrap();
        let pools = (pool(), pool());
        let ports = (PortConfig::new(pools.0), PortConfig::new(pools.1));
        let (port, mut far) = Port::ring_pair(eal, &name(), 1024, &ports.0, &ports.1).unwrap();
        let mac = port.mac();
        let (rx, tx) = far.take_queues().pop().unwrap();
        let us = Endpoint::on_port(eal, port, pools.0, &config).unwrap();
        Link { us, hand, mac, rx, tx, pool: pools.1, _far: far }
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

    /// Lets the RNIC do what it has to do now; returns the frames that it sends.
    pub fn settle(&mut self) -> Vec<Vec<u8>> {
        let mut seen = Vec::new();
        for _ in 0..200 {
            self.us.poll();
            seen.append(&mut self.burst());
        }
        seen
    }

    /// Puts a frame on the wire; returns the frames that follow.
    pub fn say(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.put(frame);
        self.settle()
    }
}
