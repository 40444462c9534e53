//! Measures what idle connections cost a busy one: RDMA Writes of 64 KiB on one connection, beside
//! no other connection and beside many on which nothing happens but keepalives.
//!
//! There are two pairs of RNICs, each joined by rings and polled by this thread. The pairs take
//! turns, so that both see the same load of the machine. The timers of a pair that fall due in the
//! other's turn wait for its own: idle connections seem dearer than they are, at most twice.
//!
//! ```sh
//! cargo run --release -p heddle-perf --example idle_connections -- 100000
//! ```
//!
//! The arguments are the number of idle connections, of rounds (9), the milliseconds of a turn
//! (500) and the seconds of silence before a keepalive (60).

#![allow(clippy::print_stdout, reason = "what it is for")]

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use heddle_base::Seed;
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{Eal, EalConfig, Hugepages};
use heddle_hub::DeviceConfig;
use heddle_tcp::{Cidr, ConnConfig, Keepalive, PeerLimit};
use heddle_verbs::{
    AcceptParams, Access, CmEvent, ConnectParams, Cq, Device, DeviceLimits, EventQueue,
    ListenParams, Mr, Pd, Qp, QpInit, SendWr,
};

type Fault = Box<dyn Error + Send + Sync>;

/// Bytes of a Write, and Writes outstanding.
const SIZE: usize = 64 << 10;
const DEPTH: usize = 4;

/// Returns the address at which an application of the server listens.
fn server(app: usize) -> Result<SocketAddr, Fault> {
    Ok(SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), 7471 + u16::try_from(app)?))
}

/// Connections that are set up at a time.
const CONNECTING: usize = 64;

/// How long the set-up of connections may take without an event.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connections of an application: there are as many doorbells.
const CONNS: usize = 16 << 10;

/// An application of an RNIC.
struct App {
    device: Device,
    events: EventQueue,
    pd: Pd,
    mr: Mr,
    cq: Cq,
}

struct Side {
    endpoint: Endpoint,
    apps: Vec<App>,
}

struct Pair {
    sides: [Side; 2],
    busy: Qp,
    /// The queue pairs that must not be dropped.
    others: Vec<Qp>,
    outstanding: usize,
}

impl App {
    fn new(device: Device) -> Result<App, Fault> {
        let pd = device.alloc_pd()?;
        let access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);
        let mr = device.alloc_mr(pd, SIZE * DEPTH, access)?;
        let cq = device.create_cq(64, None)?;
        Ok(App { events: EventQueue::new(None), pd, mr, cq, device })
    }

    fn qp(&self, depth: u32) -> Result<Qp, Fault> {
        let init = QpInit {
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            ..QpInit::new(self.cq.clone()).depths(depth, 1)
        };
        Ok(self.device.create_qp(self.pd, init)?)
    }
}

impl Side {
    /// Opens enough applications for `conns` connections.
    fn new(endpoint: Endpoint, conns: usize) -> Result<Side, Fault> {
        let config = DeviceConfig {
            memory: SIZE * DEPTH + (1 << 20),
            queues: (16 << 20) + 4096 * CONNS.min(conns),
            limits: DeviceLimits::MOST,
            ..DeviceConfig::default()
        };
        let apps = (0..conns.div_ceil(CONNS)).map(|_| App::new(endpoint.hub().open(&config)?));
        Ok(Side { apps: apps.collect::<Result<_, _>>()?, endpoint })
    }
}

impl Pair {
    fn open(eal: &Eal, name: &str, idle: usize, silence: Duration) -> Result<Pair, Fault> {
        let keepalive = Keepalive { idle: silence, interval: silence / 3, count: 3 };
        let config = |n: u8| EndpointConfig {
            // Half of the connections may be in their set-up, three quarters of these for a tenant.
            max_conns: idle + 8 * CONNECTING,
            peer_conns: PeerLimit::Unlimited,
            tcp: ConnConfig { keepalive: Some(keepalive), ..ConnConfig::default() },
            ..EndpointConfig::with_seed(
                Cidr::new(Ipv4Addr::new(10, 0, 0, n).into(), 24).into_iter().collect(),
                Seed::from_u64(n.into()),
            )
        };
        let (a, b) = Endpoint::ring_pair(eal, name, &config(1), &config(2))?;
        let sides = [Side::new(a, idle + 1)?, Side::new(b, idle + 1)?];
        let busy = sides[0].apps[0].qp(u32::try_from(DEPTH)?)?;
        let mut pair = Pair { sides, busy, others: Vec::new(), outstanding: 0 };
        for (i, app) in pair.sides[1].apps.iter().enumerate() {
            let params = ListenParams {
                backlog: 4 * CONNECTING,
                // Most connections never carry a message.
                first_fpdu_timeout: None,
                ..ListenParams::default()
            };
            app.device.listen(server(i)?, params, &app.events)?;
        }
        let mut listening = 0;
        while listening < pair.sides[1].apps.len() {
            pair.poll();
            let events = pair.sides[1].apps.iter().filter_map(|app| app.events.poll());
            listening += events.filter(|e| matches!(e, CmEvent::Listening { .. })).count();
        }
        pair.connect(idle)?;
        Ok(pair)
    }

    fn poll(&mut self) {
        for side in &mut self.sides {
            side.endpoint.poll();
        }
    }

    /// Connects the busy queue pair, and so many others.
    fn connect(&mut self, idle: usize) -> Result<(), Fault> {
        let (mut begun, mut up, mut accepted) = (0, 0, 0);
        let mut moved = Instant::now();
        while up < idle + 1 || accepted < idle + 1 {
            while begun < idle + 1 && begun - up.min(accepted) < CONNECTING {
                let client = &self.sides[0].apps[begun / CONNS];
                let qp = if begun == 0 { self.busy.clone() } else { client.qp(1)? };
                let params = ConnectParams::new(qp.clone());
                client.device.connect(server(begun / CONNS)?, params, &client.events)?;
                self.others.push(qp);
                begun += 1;
            }
            self.poll();
            for client in &self.sides[0].apps {
                while let Some(event) = client.events.poll() {
                    match event {
                        CmEvent::Established { .. } => up += 1,
                        other => return Err(format!("the client got {other:?}").into()),
                    }
                    moved = Instant::now();
                }
            }
            for server in &self.sides[1].apps {
                while let Some(event) = server.events.poll() {
                    match event {
                        CmEvent::ConnectRequest { id, .. } => {
                            let qp = server.qp(1)?;
                            server.device.accept(id, AcceptParams::new(qp.clone()))?;
                            self.others.push(qp);
                        }
                        CmEvent::Established { .. } => accepted += 1,
                        other => return Err(format!("the server got {other:?}").into()),
                    }
                }
            }
            if moved.elapsed() > PATIENCE {
                return Err(format!("{up} of {} connections are up", idle + 1).into());
            }
        }
        Ok(())
    }

    /// Writes for so long. Returns Gbit/s.
    fn write(&mut self, turn: Duration) -> Result<f64, Fault> {
        let (begin, mut done) = (Instant::now(), 0u32);
        while begin.elapsed() < turn {
            while self.outstanding < DEPTH {
                let at = self.outstanding * SIZE;
                let [client, server] = self.sides.each_ref().map(|side| &side.apps[0]);
                let to = server.mr.to() + at as u64;
                let sges = [client.mr.sge(at, SIZE)];
                self.busy.post_send(&SendWr::write(0, &sges, server.mr.stag(), to))?;
                self.outstanding += 1;
            }
            self.poll();
            while let Some(cqe) = self.sides[0].apps[0].cq.poll() {
                if !cqe.status.is_success() {
                    return Err(format!("a Write failed: {:?}", cqe.status).into());
                }
                self.outstanding -= 1;
                done += 1;
            }
        }
        let bits = f64::from(done) * SIZE as f64 * 8.0;
        Ok(bits / begin.elapsed().as_secs_f64() / 1e9)
    }

    /// Returns the keepalives that both ends have sent.
    fn keepalives(&self) -> u64 {
        let snapshots = self.sides.iter().map(|side| side.endpoint.snapshot());
        snapshots.map(|s| s.worker.engine.tcp.keepalives).sum()
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() -> Result<(), Fault> {
    let mut args = std::env::args().skip(1);
    let mut next = |default: usize| args.next().map_or(Ok(default), |arg| arg.parse());
    let (idle, rounds) = (next(100_000)?, next(9)?.max(1));
    let turn = Duration::from_millis(next(500)?.try_into()?);
    let silence = Duration::from_secs(next(60)?.try_into()?);
    let config = EalConfig { memory_mb: 1024, hugepages: Hugepages::Never, ..EalConfig::default() };
    let eal = Eal::init(&config)?;
    let begun = Instant::now();
    let mut pairs =
        [Pair::open(&eal, "alone", 0, silence)?, Pair::open(&eal, "beside", idle, silence)?];
    println!("{idle} idle connections after {:.1} s", begun.elapsed().as_secs_f64());
    // The first keepalives are due after the silence.
    let begun = Instant::now();
    while begun.elapsed() < silence {
        pairs.iter_mut().for_each(Pair::poll);
    }
    let before = pairs[1].keepalives();
    let mut rates = [Vec::new(), Vec::new()];
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let mut now = [0.0; 2];
        // Each pair is first in every other round.
        for i in [round % 2, 1 - round % 2] {
            now[i] = pairs[i].write(turn)?;
            rates[i].push(now[i]);
        }
        ratios.push(now[1] / now[0]);
    }
    let keepalives = pairs[1].keepalives() - before;
    let [alone, beside] = rates.map(median);
    println!("alone {alone:.2} Gb/s, beside {idle} idle connections {beside:.2} Gb/s");
    println!("ratio {:.3}, {keepalives} keepalives", median(ratios));
    Ok(())
}
