//! Our ends of connections: queue pairs, memory, listeners, and connections that keep to the rules.

use heddle_ctl::Endpoint;
use heddle_types::ConnId;
use heddle_verbs::{
    AcceptParams, Access, CmEvent, CmId, ConnectParams, Cq, Cqe, Device, EventQueue, ListenParams,
    Mr, Pd, Qp, QpInit, RecvWr, SendWr,
};

use super::wire::{fpdu, fpdus, reply, request, send_header};
use super::{MS, Net, PEER, us};

/// An application's queue pair with a region, every byte of which is `FILL`.
pub struct End {
    pub pd: Pd,
    pub cq: Cq,
    pub qp: Qp,
    pub mr: Mr,
}

pub const FILL: u8 = 0xee;
pub const REGION: usize = 8192;

impl End {
    pub fn new(us: &Endpoint) -> End {
        End::on(us.device(), 64)
    }

    /// Makes an end of any device, with a completion queue of this depth.
    pub fn on(device: &Device, depth: u32) -> End {
        let all = Access::LOCAL_WRITE.with(Access::REMOTE_READ).with(Access::REMOTE_WRITE);
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(depth, None).unwrap();
        let qp = device.create_qp(pd, QpInit::new(cq.clone()).depths(16, 16)).unwrap();
        End { pd, cq, qp, mr: region_on(device, pd, all) }
    }

    pub fn post_recv(&self, wr_id: u64, off: usize, len: usize) {
        let sges = [self.mr.sge(off, len)];
        self.qp.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    }

    pub fn post_send(&self, wr_id: u64, off: usize, len: usize) {
        let sges = [self.mr.sge(off, len)];
        self.qp.post_send(&SendWr::send(wr_id, &sges)).unwrap();
    }

    pub fn completions(&self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.cq.poll()).collect()
    }

    pub fn connect(&self, us: &Endpoint, port: u16, events: &EventQueue) -> CmId {
        self.connect_with(us, port, events, |_| {})
    }

    pub fn connect_with(
        &self,
        us: &Endpoint,
        port: u16,
        events: &EventQueue,
        change: impl FnOnce(&mut ConnectParams),
    ) -> CmId {
        let mut params = ConnectParams::new(self.qp.clone());
        change(&mut params);
        us.device().connect((PEER, port).into(), params, events).unwrap()
    }

    /// Asserts that no byte outside of `written` has changed.
    pub fn assert_untouched(&self, what: &str) {
        assert_untouched(&self.mr, what);
    }
}

/// Makes a region filled with `FILL`.
pub fn region(us: &Endpoint, pd: Pd, access: Access) -> Mr {
    region_on(us.device(), pd, access)
}

pub fn region_on(device: &Device, pd: Pd, access: Access) -> Mr {
    let mr = device.alloc_mr(pd, REGION, access).unwrap();
    mr.write(0, &[FILL; REGION]);
    mr
}

pub fn assert_untouched(mr: &Mr, what: &str) {
    let mut all = vec![0; REGION];
    mr.read(0, &mut all);
    assert!(all.iter().all(|b| *b == FILL), "{what}: memory was written");
}

/// Listens on `port`.
pub fn listen(net: &mut Net, port: u16, change: impl FnOnce(&mut ListenParams)) -> EventQueue {
    let device = net.us.device().clone();
    listen_on(net, &device, port, change)
}

/// As [`listen`], on any device.
pub fn listen_on(
    net: &mut Net,
    device: &Device,
    port: u16,
    change: impl FnOnce(&mut ListenParams),
) -> EventQueue {
    let mut params = ListenParams::default();
    change(&mut params);
    let events = EventQueue::new(None);
    let id = device.listen(us(port), params, &events).unwrap();
    assert_eq!(net.event(&events), CmEvent::Listening { id });
    events
}

/// A connection of the peer to us, both ends of which keep to the rules.
pub struct Honest {
    pub conn: ConnId,
    pub id: CmId,
    pub end: End,
    /// Number of start-up bytes that the peer received.
    pub startup: usize,
    rounds: u32,
    /// Number of messages that came beside those of the rounds.
    received: u32,
}

impl Honest {
    /// Connects to a listener whose events are `events`.
    pub fn new(net: &mut Net, port: u16, events: &EventQueue) -> Honest {
        let end = End::new(&net.us);
        Honest::with(net, port, events, end)
    }

    /// As [`new`](Self::new), with this queue pair on our side.
    pub fn with(net: &mut Net, port: u16, events: &EventQueue, end: End) -> Honest {
        let device = net.us.device().clone();
        Honest::on(net, &device, port, events, end)
    }

    /// As [`with`](Self::with), with a queue pair and a listener of this device.
    pub fn on(net: &mut Net, device: &Device, port: u16, events: &EventQueue, end: End) -> Honest {
        let conn = net.tcp(port);
        net.peer.send(conn, &request(b"hello"));
        let CmEvent::ConnectRequest { id, private_data, .. } = net.event(events) else {
            panic!("a request");
        };
        assert_eq!(private_data, b"hello");
        device.accept(id, AcceptParams::new(end.qp.clone())).unwrap();
        assert!(matches!(net.event(events), CmEvent::Established { .. }));
        net.settle();
        let startup = reply(false, b"").len();
        assert_eq!(net.peer.got(conn), reply(false, b""));
        Honest { conn, id, end, startup, rounds: 0, received: 0 }
    }

    /// Notes that the peer has sent `messages` messages outside of [`exchange`](Honest::exchange).
    pub fn had(&mut self, messages: u32) {
        self.received += messages;
    }

    /// Makes one Send each way, and compares every byte.
    pub fn exchange(&mut self, net: &mut Net) {
        self.rounds += 1;
        let n = self.rounds;
        let data: Vec<u8> = (0..100 + n % 50).map(|i| (i * 7 + n) as u8).collect();
        self.end.post_recv(1, 0, 256);
        net.peer.send(self.conn, &fpdu(send_header(n + self.received), &data));
        net.settle();
        let [cqe] = self.end.completions()[..] else { panic!("a receive, round {n}") };
        assert!(cqe.status.is_success() && cqe.len as usize == data.len(), "{cqe:?}");
        let mut got = vec![0; data.len()];
        self.end.mr.read(0, &mut got);
        assert!(got == data);
        self.end.post_send(2, 0, data.len());
        net.settle();
        // The acknowledgment may be delayed.
        net.pass(50 * MS);
        let [cqe] = self.end.completions()[..] else { panic!("a send, round {n}") };
        assert!(cqe.status.is_success(), "{cqe:?}");
        let all = fpdus(&net.peer.got(self.conn)[self.startup..]);
        assert_eq!(all.len(), n as usize);
        assert!(all[n as usize - 1].1 == data);
    }
}
