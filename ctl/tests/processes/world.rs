//! Two RNICs on one thread, a peer that answers, and an application that does its own work.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{Eal, EalConfig, Hugepages};
use heddle_verbs::{
    AcceptParams, Access, CmEvent, CmId, ConnectParams, Cq, CqeOp, Device, EventQueue,
    ListenParams, Mr, Qp, QpInit, RecvWr, SendWr, Stag,
};

/// Number of slots of a region, and bytes of each slot.
pub(crate) const SLOTS: usize = 64;
pub(crate) const SLOT: usize = 4096;

/// The byte with which children fill their memory before they write anything else; the neighbor
/// never sends this byte.
pub(crate) const MARK: u8 = 0xd5;

pub(crate) const PEER: ([u8; 4], u16) = ([10, 0, 0, 2], 7174);

pub(crate) struct World {
    /// The RNIC under test.
    pub(crate) a: Endpoint,
    pub(crate) b: Endpoint,
    requests: EventQueue,
    served: Vec<Served>,
    foreign: bool,
}

/// The peer's end of a connection: a region to be written and read, and an echo for Sends.
struct Served {
    id: CmId,
    from_neighbor: bool,
    device: Device,
    cq: Cq,
    qp: Qp,
    region: Mr,
    buffers: Mr,
    received: u64,
}

/// The peer's region, as a connecting application has to know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) stag: Stag,
    pub(crate) to: u64,
}

/// An established connection on the RNIC under test.
pub(crate) struct Conn {
    pub(crate) id: CmId,
    pub(crate) events: EventQueue,
    pub(crate) remote: Remote,
}

/// Numbers of objects on the RNIC under test: STags, regions that wait, connections, places of the
/// connection manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    stags: usize,
    draining: usize,
    leaving: usize,
    served: usize,
}

impl World {
    pub(crate) fn new() -> World {
        let eal = EalConfig { hugepages: Hugepages::Never, memory_mb: 512, ..EalConfig::default() };
        let eal = Eal::init(&eal).unwrap();
        let config = |n: u8| EndpointConfig {
            max_conns: 256,
            ..EndpointConfig::new(vec![format!("10.0.0.{n}/24").parse().unwrap()])
        };
        let (a, b) = Endpoint::ring_pair(&eal, "world", &config(1), &config(2)).unwrap();
        let requests = EventQueue::new(None);
        b.device().listen(SocketAddr::from(PEER), ListenParams::default(), &requests).unwrap();
        let mut w = World { a, b, requests, served: Vec::new(), foreign: false };
        for _ in 0..100 {
            w.poll();
        }
        w
    }

    pub(crate) fn numbers(&self) -> Numbers {
        let registry = self.a.hub().registry();
        Numbers {
            stags: registry.mrs().len(),
            draining: registry.draining(),
            leaving: registry.regions().reap(),
            served: self.served.len(),
        }
    }

    /// Returns the number of applications that the worker has found to be broken.
    pub(crate) fn broken(&self) -> u64 {
        let w = self.a.snapshot().worker.worker;
        w.wr_broken + w.wr_overruns + w.cq_overflows
    }

    pub(crate) fn peer_sent_nothing_foreign(&self) -> bool {
        !self.foreign
    }

    pub(crate) fn poll(&mut self) {
        self.a.poll();
        self.b.poll();
        while let Some(event) = self.requests.poll() {
            match event {
                CmEvent::ConnectRequest { id, private_data, .. } => {
                    self.serve(id, private_data == b"neighbor");
                }
                CmEvent::Disconnected { id, .. } | CmEvent::ConnectError { id, .. } => {
                    self.served.retain(|s| s.id != id);
                }
                _ => {}
            }
        }
        for s in &mut self.served {
            self.foreign |= s.poll();
        }
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&World) -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !done(self) {
            for _ in 0..100 {
                self.poll();
            }
            assert!(Instant::now() < end, "not within 30 s: {what}; now {:?}", self.numbers());
        }
    }

    fn serve(&mut self, id: CmId, from_neighbor: bool) {
        let device = self.b.device().clone();
        let pd = device.alloc_pd().unwrap();
        let all = Access::LOCAL_WRITE.with(Access::REMOTE_READ).with(Access::REMOTE_WRITE);
        let region = device.alloc_mr(pd, SLOTS * SLOT, all).unwrap();
        let buffers = device.alloc_mr(pd, SLOTS * SLOT, Access::LOCAL_WRITE).unwrap();
        let cq = device.create_cq(4 * 64, None).unwrap();
        let init = QpInit::new(cq.clone()).depths(2 * 64, 64);
        let qp = device.create_qp(pd, init).unwrap();
        for i in 0..SLOTS {
            let sges = [buffers.sge(i * SLOT, SLOT)];
            qp.post_recv(&RecvWr { wr_id: i as u64, sges: &sges }).unwrap();
        }
        let mut private_data = region.stag().0.to_be_bytes().to_vec();
        private_data.extend(region.to().to_be_bytes());
        let params = AcceptParams { private_data, ..AcceptParams::new(qp.clone()) };
        device.accept(id, params).unwrap();
        self.served.push(Served {
            id,
            from_neighbor,
            device,
            cq,
            qp,
            region,
            buffers,
            received: 0,
        });
    }

    /// Connects a queue pair of the RNIC under test.
    pub(crate) fn connect(&mut self, device: &Device, qp: &Qp, who: &[u8]) -> Conn {
        let events = EventQueue::new(None);
        let params = ConnectParams { private_data: who.to_vec(), ..ConnectParams::new(qp.clone()) };
        let id = device.connect(SocketAddr::from(PEER), params, &events).unwrap();
        let mut data = Vec::new();
        self.until("a connection", |_| match events.poll() {
            Some(CmEvent::Established { private_data, .. }) => {
                data = private_data;
                true
            }
            Some(other) => panic!("{other:?}"),
            None => false,
        });
        let stag = Stag(u32::from_be_bytes(*data.first_chunk().unwrap()));
        let to = u64::from_be_bytes(*data.last_chunk().unwrap());
        Conn { id, events, remote: Remote { stag, to } }
    }

    /// Returns the number of messages that the peer has received on the latest connection of a
    /// child.
    pub(crate) fn received(&self) -> u64 {
        self.served.iter().rev().find(|s| !s.from_neighbor).map_or(0, |s| s.received)
    }
}

impl Served {
    /// Echoes the messages that came; returns true if the neighbor's connection brought a message
    /// that is not its own.
    fn poll(&mut self) -> bool {
        let mut foreign = false;
        while let Some(c) = self.cq.poll() {
            if !c.status.is_success() {
                continue;
            }
            let slot = usize::try_from(c.wr_id).unwrap();
            if c.op == CqeOp::Recv {
                self.received += 1;
                if self.from_neighbor {
                    let mut bytes = vec![0; c.len as usize];
                    self.buffers.read(slot * SLOT, &mut bytes);
                    foreign |= bytes.contains(&MARK);
                }
                let sges = [self.buffers.sge(slot * SLOT, c.len as usize)];
                // The connection may be over; then no peer waits for an echo.
                let _ = self.qp.post_send(&SendWr::send(c.wr_id, &sges));
            } else {
                let sges = [self.buffers.sge(slot * SLOT, SLOT)];
                let _ = self.qp.post_recv(&RecvWr { wr_id: c.wr_id, sges: &sges });
            }
        }
        let _ = (&self.region, &self.device);
        foreign
    }
}

/// An application of this process on the RNIC under test: it sends, and compares the echoes.
pub(crate) struct Neighbor {
    conn: Conn,
    cq: Cq,
    qp: Qp,
    mr: Mr,
    pub(crate) rounds: u64,
}

impl Neighbor {
    pub(crate) fn new(world: &mut World) -> Neighbor {
        let device = world.a.device().clone();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(64, None).unwrap();
        let qp = device.create_qp(pd, QpInit::new(cq.clone()).depths(16, 16)).unwrap();
        let mr = device.alloc_mr(pd, 3 * SLOT, Access::LOCAL_WRITE).unwrap();
        let conn = world.connect(&device, &qp, b"neighbor");
        Neighbor { conn, cq, qp, mr, rounds: 0 }
    }

    /// Sends one message there and back, and compares every byte.
    pub(crate) fn exchange(&mut self, world: &mut World) {
        self.rounds += 1;
        // The bytes are below 128, so they never equal the mark of the others.
        let byte = |i: usize, n: u64| (i as u64 * 31 + n * 7) as u8 & 0x7f;
        let data: Vec<u8> = (0..SLOT).map(|i| byte(i, self.rounds)).collect();
        self.mr.write(0, &data);
        let (src, dst) = ([self.mr.sge(0, SLOT)], [self.mr.sge(SLOT, SLOT)]);
        self.qp.post_recv(&RecvWr { wr_id: 2, sges: &dst }).unwrap();
        self.qp.post_send(&SendWr::send(1, &src)).unwrap();
        let mut left = 2;
        world.until("the neighbor's exchange", |_| {
            while let Some(c) = self.cq.poll() {
                assert!(c.status.is_success(), "the neighbor lost something: {c:?}");
                left -= 1;
            }
            left == 0
        });
        let mut back = vec![0; SLOT];
        self.mr.read(SLOT, &mut back);
        assert!(back == data, "round {}", self.rounds);
    }

    pub(crate) fn end(self, world: &mut World) {
        let device = world.a.device().clone();
        device.disconnect(self.conn.id).unwrap();
        world.until("the neighbor's end", |_| {
            matches!(self.conn.events.poll(), Some(CmEvent::Disconnected { .. }))
        });
    }
}
