//! Two RNICs on one thread, in virtual time. This module makes all calls to them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arrayvec::ArrayVec;
use heddle_base::Seed;
use heddle_ctl::{Endpoint, EndpointConfig, InnerSetup, OpenError, RnicSetup};
use heddle_dataplane::{
    BURST, Clock, Eal, ManualClock, Mbuf, Mempool, MempoolConfig, MempoolError, Offloads, Port,
    PortConfig, PortError, RxQueue, TxQueue,
};
use heddle_hub::{Hub, Policy, serve};
use heddle_services::bench::Op;
use heddle_tcp::{Cidr, ConnConfig, Ecn};
use heddle_types::mpa::CrcPolicy;
use heddle_verbs::{
    AcceptParams, Access, CmEvent, CmId, ConnectParams, Cq, Device, DeviceError, EventQueue,
    ListenParams, MpaOptions, Mr, Pd, PostError, Protocol, Qp, QpInit, RecvWr, SendWr, Stag,
};

use heddle_verbs::remote::OpenParams;

use crate::measured;

/// The link between the two RNICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// A pair of rings.
    Ring,
    /// A pair of rings on each side. The harness passes frames from one side to the other where a
    /// case asks for this.
    Tapped,
    /// No link: both applications belong to one RNIC.
    Inside,
}

/// The settings of the two RNICs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) mtu: u16,
    pub(crate) crc: bool,
    /// True if both sides ask for markers.
    pub(crate) markers: bool,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// The most messages outstanding.
    pub(crate) depth: usize,
    pub(crate) wire: Wire,
    /// How long a receiver holds an ACK back.
    pub(crate) ack_delay: Duration,
    /// True if the wire takes frames of several segments, and frames without checksums.
    pub(crate) uncut: bool,
    /// Connections that exist at the same time.
    pub(crate) conns: usize,
    /// True if each application is a tenant, with a share of its worker.
    pub(crate) tenants: bool,
    /// True if both ends count marks (accurate ECN).
    pub(crate) accurate: bool,
    /// True for addresses of IPv6.
    pub(crate) is_ipv6: bool,
}

impl Default for Shape {
    /// Returns the shape of one short message at a time, MTU 1500, with CRC, on a ring.
    fn default() -> Shape {
        let ack_delay = ConnConfig::default().delayed_ack;
        Shape {
            mtu: 1500,
            crc: true,
            markers: false,
            size: 8,
            depth: 1,
            wire: Wire::Ring,
            ack_delay,
            uncut: false,
            conns: 1,
            tenants: false,
            accurate: false,
            is_ipv6: false,
        }
    }
}

/// Why the harness could count nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HarnessError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    #[error(transparent)]
    Rpc(#[from] heddle_perf::rpc::RpcError),
    #[error("no socket for a tenant: {0}")]
    Socket(#[from] std::io::Error),
    #[error("{0} of libibverbs failed")]
    Ibverbs(&'static str),
    #[error("cannot post: {0}")]
    Post(#[from] PostError),
    #[error("an operation failed: {0}")]
    Failed(String),
    #[error("waited in vain for {0}")]
    Stalled(&'static str),
    #[error("{frames} frames are on the wire where there should be {expected}")]
    Frames { frames: usize, expected: usize },
}

const PORT: u16 = 7471;
const LOOPED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);

/// Returns the address of an end; the server's is that of end 2.
fn addr_of(n: u8, is_ipv6: bool) -> IpAddr {
    if is_ipv6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()).into()
    } else {
        Ipv4Addr::new(10, 0, 0, n).into()
    }
}

/// The virtual time of a turn.
pub(crate) const TURN: Duration = Duration::from_micros(1);

/// The most idle turns: if an event has not come by then, the harness gives up.
pub(crate) const PATIENCE: u32 = 100_000;

const TIME_WAIT: Duration = Duration::from_millis(10);

/// Frames of each pool, and of a ring.
const FRAMES: u32 = 4095;
const RING: u32 = 1023;

/// Bytes for the queues of an application, and for those of each connection beyond the first.
const QUEUES: usize = 16 << 20;
const QP_QUEUES: usize = 8 << 10;

/// Bytes of the counter that Atomic Operations change.
const COUNTER: usize = 8;

type Frames = ArrayVec<Mbuf, BURST>;

/// An application and its RNIC. If both applications share one RNIC, only the other end has it. The
/// first end is the client.
struct End {
    endpoint: Option<Endpoint>,
    device: Device,
    events: EventQueue,
    pd: Pd,
    mr: Mr,
    cq: Cq,
    qp: Qp,
}

pub(crate) struct Harness {
    ends: [End; 2],
    /// The far ends of the two RNICs' rings.
    taps: Option<[(RxQueue, TxQueue); 2]>,
    hand: ManualClock,
    shape: Shape,
    /// Atomic Operations of earlier runs, which is the value of the counter that they change.
    before: u64,
    server: SocketAddr,
}

impl Harness {
    /// Opens two RNICs, of which the second listens.
    pub(crate) fn open(eal: &Eal, shape: Shape) -> Result<Harness, HarnessError> {
        let (clock, hand) = Clock::manual();
        hand.advance(Duration::from_secs(1));
        let config = |n: u8| EndpointConfig {
            mtu: shape.mtu,
            memory: shape.size * shape.depth + (1 << 20),
            frames: FRAMES,
            offloads: Offloads { rings: shape.uncut, ..Offloads::default() },
            // A peer may have half of them.
            max_conns: 64.max(2 * shape.conns + 16),
            queues: QUEUES + shape.conns * QP_QUEUES,
            clock: Some(clock.clone()),
            tcp: ConnConfig {
                time_wait: TIME_WAIT,
                delayed_ack: shape.ack_delay,
                ecn: if shape.accurate { Ecn::Accurate } else { Ecn::default() },
                ..ConnConfig::default()
            },
            ..EndpointConfig::with_seed(
                Cidr::new(addr_of(n, shape.is_ipv6), if shape.is_ipv6 { 64 } else { 24 })
                    .into_iter()
                    .collect(),
                Seed::from_u64(n.into()),
            )
        };
        let configs = [config(1), config(2)];
        let (a, b, taps) = match shape.wire {
            Wire::Ring => {
                let (a, b) = Endpoint::ring_pair(eal, "harness", &configs[0], &configs[1])?;
                (a, Some(b), None)
            }
            Wire::Tapped => {
                let (a, x) = tapped(eal, "harness-a", &configs[0])?;
                let (b, y) = tapped(eal, "harness-b", &configs[1])?;
                (a, Some(b), Some([x, y]))
            }
            Wire::Inside => {
                let EndpointConfig { memory, max_conns, ref tcp, .. } = configs[0];
                let setup = RnicSetup {
                    memory: 2 * memory,
                    max_conns,
                    clock: Some(clock.clone()),
                    tcp: *tcp,
                    inner: Some(InnerSetup::loopback()),
                    ..RnicSetup::with_seed(Seed::from_u64(1))
                };
                (Endpoint::assemble(eal, Vec::new(), &setup)?, None, None)
            }
        };
        let device = |endpoint: &Endpoint| match shape.tenants {
            true => tenant(endpoint.hub().clone(), &shape),
            false => Ok(endpoint.device().clone()),
        };
        let (first, second) = (device(&a)?, device(b.as_ref().unwrap_or(&a))?);
        let mut ends = [End::new(Some(a), first, &shape)?, End::new(b, second, &shape)?];
        let server = SocketAddr::new(addr_of(2, shape.is_ipv6), PORT);
        let server_at = if shape.wire == Wire::Inside { LOOPED } else { server };
        let mpa = mpa(&Shape { crc: false, ..shape });
        let params = ListenParams { protocol: mpa, ..ListenParams::default() };
        let server = &mut ends[1];
        server.device.listen(server_at, params, &server.events)?;
        let mut harness = Harness { ends, taps, hand, shape, before: 0, server: server_at };
        harness.until("a listener", |harness| {
            Ok(matches!(harness.ends[1].events.poll(), Some(CmEvent::Listening { .. })))
        })?;
        Ok(harness)
    }

    fn take(&mut self, from: usize) -> Frames {
        let mut frames = Frames::new();
        if let Some(taps) = &mut self.taps {
            taps[from].0.burst(&mut frames);
        }
        frames
    }

    fn give(&mut self, to: usize, mut frames: Frames) {
        if let Some(taps) = &mut self.taps {
            taps[to].1.burst(&mut frames);
        }
    }

    /// Gives each RNIC a turn, first the RNIC that sends most.
    fn turn(&mut self, first: usize) {
        self.hand.advance(TURN);
        for end in [first, 1 - first] {
            self.ends[end].poll();
            if self.taps.is_some() {
                let frames = self.take(end);
                self.give(1 - end, frames);
            }
        }
    }

    fn until(
        &mut self,
        what: &'static str,
        mut done: impl FnMut(&mut Harness) -> Result<bool, HarnessError>,
    ) -> Result<(), HarnessError> {
        for _ in 0..PATIENCE {
            if done(self)? {
                return Ok(());
            }
            self.turn(0);
            if self.shape.tenants {
                // The events of a tenant take their way through another thread.
                thread::sleep(Duration::from_micros(20));
            }
        }
        Err(HarnessError::Stalled(what))
    }

    /// Connects the queue pairs.
    pub(crate) fn connect(&mut self) -> Result<CmId, HarnessError> {
        let qp = self.ends[0].qp.clone();
        let params = ConnectParams { protocol: mpa(&self.shape), ..ConnectParams::new(qp) };
        let client = &self.ends[0];
        let id = client.device.connect(self.server, params, &client.events)?;
        let mut up = 0;
        self.until("a connection", |harness| {
            for end in &harness.ends {
                match end.events.poll() {
                    Some(CmEvent::ConnectRequest { id, .. }) => {
                        end.device.accept(id, AcceptParams::new(end.qp.clone()))?;
                    }
                    Some(CmEvent::Established { .. }) => up += 1,
                    Some(other) => return Err(HarnessError::Failed(format!("{other:?}"))),
                    None => {}
                }
            }
            Ok(up == 2)
        })?;
        Ok(id)
    }

    fn close(&mut self, id: CmId) -> Result<(), HarnessError> {
        self.ends[0].device.disconnect(id)?;
        let mut down = 0;
        self.until("the end of a connection", |harness| {
            for end in &harness.ends {
                down += u32::from(matches!(end.events.poll(), Some(CmEvent::Disconnected { .. })));
            }
            Ok(down == 2)
        })
    }

    /// Makes and closes a connection, from the first SYN to the last event. Callgrind counts this
    /// if `count`.
    pub(crate) fn connect_and_close(&mut self, count: bool) -> Result<(), HarnessError> {
        for end in &mut self.ends {
            end.qp = end.new_qp(&self.shape)?;
        }
        counted(count, || {
            let id = self.connect()?;
            self.close(id)
        })?;
        // Let TIME-WAIT pass, so that the next connection starts in the same state as this one.
        self.hand.advance(2 * TIME_WAIT);
        (0..64).for_each(|_| self.turn(0));
        Ok(())
    }

    /// Connects new queue pairs, and returns them.
    pub(crate) fn connect_another(&mut self) -> Result<[Qp; 2], HarnessError> {
        for end in &mut self.ends {
            end.qp = end.new_qp(&self.shape)?;
        }
        self.connect()?;
        Ok(self.ends.each_ref().map(|end| end.qp.clone()))
    }

    /// Visits the client's queue pairs `qps` in turn, so many times in all. A visit posts as many
    /// Writes as may be outstanding, when the Writes of the visit before are done.
    pub(crate) fn visit(&mut self, qps: &[&Qp], visits: usize) -> Result<(), HarnessError> {
        let mut outstanding = vec![0; qps.len()];
        let mut free: VecDeque<usize> = (0..qps.len()).collect();
        let (mut begun, mut over, mut idle) = (0, 0, 0);
        while over < visits {
            while begun < visits
                && let Some(at) = free.pop_front()
            {
                for i in 0..self.shape.depth {
                    self.write(qps[at], i, at as u64)?;
                }
                outstanding[at] = self.shape.depth;
                begun += 1;
            }
            self.turn(0);
            idle += 1;
            while let Some(cqe) = self.ends[0].cq.poll() {
                let at = usize::try_from(cqe.wr_id).unwrap_or(usize::MAX);
                let left = outstanding.get_mut(at).filter(|_| cqe.status.is_success());
                let Some(left) = left else {
                    return Err(HarnessError::Failed(format!("{:?}", cqe.status)));
                };
                *left -= 1;
                idle = 0;
                if *left == 0 {
                    over += 1;
                    free.push_back(at);
                }
            }
            if idle == PATIENCE {
                return Err(HarnessError::Stalled("completions"));
            }
        }
        Ok(())
    }

    /// Posts a Write of slot `i` to `qp`.
    fn write(&self, qp: &Qp, i: usize, id: u64) -> Result<(), HarnessError> {
        let [client, server] = &self.ends;
        let to = server.mr.to() + self.slot(i) as u64;
        let sges = [client.mr.sge(self.slot(i), self.shape.size)];
        Ok(qp.post_send(&SendWr::write(id, &sges, server.mr.stag(), to))?)
    }

    /// Returns the device of the client.
    pub(crate) fn device(&self) -> &Device {
        &self.ends[0].device
    }

    /// Connects `qp` instead of the client's own queue pair.
    pub(crate) fn connect_with(&mut self, qp: &Qp) -> Result<(), HarnessError> {
        self.ends[0].qp = qp.clone();
        self.connect().map(drop)
    }

    /// Gives each RNIC `n` turns.
    pub(crate) fn turns(&mut self, n: usize) {
        (0..n).for_each(|_| self.turn(0));
    }

    /// Returns memory of the server that the client may write.
    pub(crate) fn target(&self) -> (Stag, u64) {
        (self.ends[1].mr.stag(), self.ends[1].mr.to())
    }

    /// Sends the client a message from the server.
    pub(crate) fn send_from_server(&mut self) -> Result<(), HarnessError> {
        let server = &self.ends[1];
        server.qp.post_send(&SendWr::send(0, &[server.mr.sge(0, self.shape.size)]))?;
        self.until("the completion of a Send", |harness| Ok(harness.ends[1].reap()? == 1))
    }

    /// Runs `n` operations of the client.
    pub(crate) fn run(&mut self, op: Op, n: usize) -> Result<(), HarnessError> {
        let depth = self.shape.depth;
        let (mut posted, mut done, mut buffers, mut arrived) = (0, 0, 0, 0);
        let mut idle = 0;
        while done < n || op.takes_buffer() && arrived < n {
            while op.takes_buffer() && buffers < n && buffers - arrived < depth {
                self.post_recv(buffers)?;
                buffers += 1;
            }
            let allowed = if op.takes_buffer() { buffers } else { n };
            while posted < allowed && posted - done < depth {
                self.post(op, posted)?;
                posted += 1;
            }
            self.turn(usize::from(op.is_answered()));
            let before = done + arrived;
            done += self.ends[0].reap()?;
            arrived += self.ends[1].reap()?;
            idle = if done + arrived == before { idle + 1 } else { 0 };
            if idle == PATIENCE {
                return Err(HarnessError::Stalled("completions"));
            }
        }
        self.before += n as u64;
        self.counter(op)
    }

    /// Fails if an Atomic Operation missed the value that it was to find: such an operation would
    /// be cheaper than the intended one.
    fn counter(&self, op: Op) -> Result<(), HarnessError> {
        let mut counter = [0; COUNTER];
        self.ends[1].mr.read(0, &mut counter);
        match u64::from_ne_bytes(counter) {
            n if op.is_atomic() && n != self.before => {
                Err(HarnessError::Failed(format!("the counter holds {n}, not {}", self.before)))
            }
            _ => Ok(()),
        }
    }

    fn slot(&self, i: usize) -> usize {
        i % self.shape.depth * self.shape.size
    }

    fn post_recv(&self, i: usize) -> Result<(), HarnessError> {
        let sges = [self.ends[1].mr.sge(self.slot(i), self.shape.size)];
        Ok(self.ends[1].qp.post_recv(&RecvWr { wr_id: i as u64, sges: &sges })?)
    }

    fn post(&self, op: Op, i: usize) -> Result<(), HarnessError> {
        let [client, server] = &self.ends;
        let stag = server.mr.stag();
        let to = server.mr.to() + self.slot(i) as u64;
        let sges = [client.mr.sge(self.slot(i), self.shape.size)];
        let id = i as u64;
        let found = self.before + id;
        let wr = match op {
            Op::Send => SendWr::send(id, &sges),
            Op::Write => SendWr::write(id, &sges, stag, to),
            Op::Read => SendWr::read(id, &sges, stag, to),
            Op::WriteImm => SendWr::write_immediate(id, &sges, stag, to, id),
            Op::SendImm => SendWr::immediate(id, id),
            // All Atomic Operations use one address.
            Op::FetchAdd => SendWr::fetch_add(id, &sges, stag, server.mr.to(), 1),
            Op::CmpSwap => SendWr::compare_swap(id, &sges, stag, server.mr.to(), found, found + 1),
        };
        Ok(client.qp.post_send(&wr)?)
    }

    /// Posts a Write of two segments, and returns the segments, which have left the client and wait
    /// on the wire.
    fn two_segments(&mut self) -> Result<[Frames; 2], HarnessError> {
        self.hand.advance(TURN);
        self.post(Op::Write, 0)?;
        self.ends[0].poll();
        let mut frames = self.take(0);
        match (frames.pop(), frames.pop(), frames.len()) {
            (Some(second), Some(first), 0) => {
                Ok([first, second].map(|f| [f].into_iter().collect()))
            }
            (a, b, more) => {
                let frames = usize::from(a.is_some()) + usize::from(b.is_some()) + more;
                Err(HarnessError::Frames { frames, expected: 2 })
            }
        }
    }

    /// Completes the Write of [`two_segments`](Harness::two_segments).
    fn finish(&mut self) -> Result<(), HarnessError> {
        self.until("the completion of a Write", |harness| Ok(harness.ends[0].reap()? == 1))?;
        // Let both RNICs send everything that still waits.
        (0..8).for_each(|_| self.turn(0));
        Ok(())
    }

    /// Passes the client an ACK for the first of two segments. Callgrind counts this if `count`.
    pub(crate) fn ack(&mut self, count: bool) -> Result<(), HarnessError> {
        let [first, second] = self.two_segments()?;
        self.give(1, first);
        let mut ack = Frames::new();
        for _ in 0..PATIENCE {
            self.ends[1].poll();
            ack = self.take(1);
            if !ack.is_empty() {
                break;
            }
            self.hand.advance(TURN);
        }
        if ack.len() != 1 {
            return Err(HarnessError::Frames { frames: ack.len(), expected: 1 });
        }
        self.give(0, ack);
        counted(count, || self.ends[0].poll());
        self.give(1, second);
        self.finish()
    }

    /// Passes the server the second of two segments and then the first. Callgrind counts this if
    /// `count`.
    pub(crate) fn out_of_order(&mut self, count: bool) -> Result<(), HarnessError> {
        let [first, second] = self.two_segments()?;
        self.give(1, second);
        counted(count, || self.ends[1].poll());
        let snapshot = self.ends[1].endpoint.as_ref().map(Endpoint::snapshot);
        let ahead = snapshot.map_or(0, |s| s.worker.engine.rnic.rx_placed_ahead);
        if self.shape.markers != (ahead > 0) {
            return Err(HarnessError::Failed(format!("{ahead} FPDUs placed ahead of a gap")));
        }
        // Lose the ACK that reports the gap.
        let said = self.take(1).len();
        if said != 1 {
            return Err(HarnessError::Frames { frames: said, expected: 1 });
        }
        self.give(1, first);
        counted(count, || self.ends[1].poll());
        self.finish()
    }
}

impl End {
    fn new(endpoint: Option<Endpoint>, device: Device, shape: &Shape) -> Result<End, HarnessError> {
        let pd = device.alloc_pd().expect("there are few");
        let all = Access::LOCAL_WRITE
            .with(Access::REMOTE_WRITE)
            .with(Access::REMOTE_READ)
            .with(Access::REMOTE_ATOMIC);
        let mr = device.alloc_mr(pd, shape.size * shape.depth, all)?;
        let cq = device.create_cq(depth(4 * shape.depth * shape.conns), None)?;
        let qp = device.create_qp(pd, init(&cq, shape))?;
        Ok(End { events: EventQueue::new(None), pd, mr, cq, qp, endpoint, device })
    }

    /// Gives the RNIC of this end, if it has one, a turn.
    fn poll(&mut self) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.poll();
        }
    }

    fn new_qp(&self, shape: &Shape) -> Result<Qp, HarnessError> {
        Ok(self.device.create_qp(self.pd, init(&self.cq, shape))?)
    }

    /// Takes completions. Returns their number.
    fn reap(&self) -> Result<usize, HarnessError> {
        let mut n = 0;
        while let Some(cqe) = self.cq.poll() {
            if !cqe.status.is_success() {
                return Err(HarnessError::Failed(format!("{:?}", cqe.status)));
            }
            n += 1;
        }
        Ok(n)
    }
}

/// Converts a depth; depths of a harness are small.
fn depth(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn init(cq: &Cq, shape: &Shape) -> QpInit {
    let depth = depth(shape.depth);
    QpInit::new(cq.clone()).depths(depth, depth)
}

fn mpa(shape: &Shape) -> Protocol {
    let crc = if shape.crc { CrcPolicy::Required } else { CrcPolicy::Off };
    Protocol::Mpa(MpaOptions { crc, markers: shape.markers, ..MpaOptions::default() })
}

/// Opens a device of `hub` for a tenant. A thread serves the tenant until the device is dropped.
fn tenant(hub: Arc<Hub>, shape: &Shape) -> Result<Device, HarnessError> {
    let (ours, theirs) = UnixStream::pair()?;
    // An error of the server shows as the end of the device.
    thread::spawn(move || drop(serve(&hub, Policy::default(), &theirs)));
    let params = OpenParams {
        memory: shape.size * shape.depth + (1 << 20),
        queues: QUEUES + shape.conns * QP_QUEUES,
        name: "harness".into(),
        ..OpenParams::default()
    };
    Ok(Device::open_on(ours, &params)?)
}

/// Opens an RNIC. Returns the RNIC and the far end of its rings.
fn tapped(
    eal: &Eal,
    name: &str,
    config: &EndpointConfig,
) -> Result<(Endpoint, (RxQueue, TxQueue)), HarnessError> {
    let pool = Mempool::new(eal, &MempoolConfig::for_mtu(FRAMES, config.mtu))?;
    let ports = PortConfig { mtu: config.mtu, ..PortConfig::new(pool) };
    let (port, mut tap) = Port::ring_pair(eal, name, RING, &ports, &ports)?;
    let queues = tap.take_queues().pop().ok_or(OpenError::NoQueues)?;
    Ok((Endpoint::on_port(eal, port, pool, config)?, queues))
}

pub(crate) fn counted<R>(count: bool, part: impl FnOnce() -> R) -> R {
    if count { measured(part) } else { part() }
}
