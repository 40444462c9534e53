//! The services of a running RNIC for applications, in its process and over a socket: each test
//! runs both ways.

mod addresses;
mod channels;
mod events;
mod queue_pairs;
mod regions;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heddle_base::Seed;
use heddle_ctl::{EndpointConfig, Node, Question, Reply};
use heddle_dataplane::eal::allowed_cpus;
use heddle_hub::{DeviceConfig, Policy, serve};
use heddle_tcp::{Addressing, Cidr, ConnConfig};
use heddle_types::mpa::RtrSet;
use heddle_verbs::remote::OpenParams;
use heddle_verbs::{
    ConnectParams, Connection, Device, DeviceLimits, Ends, Listener, MpaOptions, Protocol, QpInit,
};

use crate::common::eal;

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// The place of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// In the RNIC's process.
    Local,
    /// At the other end of a socket.
    Remote,
}

/// Two RNICs on threads of their own.
struct Nodes {
    us: Node,
    them: Node,
    serving: Vec<JoinHandle<()>>,
    _turn: MutexGuard<'static, ()>,
}

impl Nodes {
    fn new() -> Nodes {
        Nodes::with(|_| {})
    }

    fn with(change: impl Fn(&mut EndpointConfig)) -> Nodes {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (eal, turn) = eal();
        let config = |ip: Ipv4Addr| {
            // A thread may be off its processor for longer than the usual time-out.
            let tcp = ConnConfig { rto_min: Duration::from_millis(200), ..ConnConfig::default() };
            let mut config = EndpointConfig {
                memory: 1 << 20,
                frames: 2047,
                max_conns: 64,
                tcp,
                ..EndpointConfig::with_seed(
                    vec![Cidr::new(ip.into(), 24).unwrap()],
                    Seed::from_u64(ip.octets()[3].into()),
                )
            };
            change(&mut config);
            config
        };
        let name = format!("apps{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        assert!(!allowed_cpus().is_empty());
        let (us, them) = Node::ring_pair(&eal, &name, &config(US), &config(THEM)).unwrap();
        Nodes { us, them, serving: Vec::new(), _turn: turn }
    }

    /// Opens a device of our RNIC.
    fn device(&mut self, kind: Kind) -> Device {
        self.device_with(kind, DeviceLimits::default())
    }

    fn device_with(&mut self, kind: Kind, limits: DeviceLimits) -> Device {
        match kind {
            Kind::Local => {
                let config = DeviceConfig { memory: 1 << 20, limits, ..DeviceConfig::default() };
                self.us.hub().open(&config).unwrap()
            }
            Kind::Remote => {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let (hub, policy) = (self.us.hub().clone(), Policy { limits, ..Policy::default() });
                self.serving.push(std::thread::spawn(move || {
                    // The session ends with the client's end, so its result does not matter.
                    let _ = serve(&hub, policy, &theirs);
                }));
                let params = OpenParams { memory: 1 << 20, ..OpenParams::default() };
                Device::open_on(ours, &params).unwrap()
            }
        }
    }

    /// Waits until served devices are given back; the test must have dropped their handles.
    fn served(&mut self) {
        for serving in self.serving.drain(..) {
            serving.join().unwrap();
        }
    }

    /// Makes a connection from `ends` to a listener of the other RNIC.
    fn connect(&self, device: &Device, ends: Ends, port: u16) -> (Connection, Connection) {
        let listener = self.them.device().bind((THEM, port)).unwrap();
        Nodes::connect_to(device, ends, &listener, addr(THEM, port))
    }

    fn connect_to(
        device: &Device,
        ends: Ends,
        listener: &Listener,
        at: SocketAddr,
    ) -> (Connection, Connection) {
        // With the peer-to-peer model, either side may send first.
        let options = MpaOptions::new().peer_to_peer(RtrSet::ALL);
        let params = ConnectParams {
            protocol: Protocol::Mpa(options),
            ..ConnectParams::new(ends.qp.clone())
        };
        let connecting = device.dial_with(at, params, ends).unwrap();
        let theirs = listener.accept().unwrap();
        (connecting.wait().unwrap(), theirs)
    }
}

/// Makes ends with a queue pair that `configure` adjusts.
fn ends(device: &Device, configure: impl FnOnce(QpInit) -> QpInit) -> Ends {
    Ends::with(device, device.alloc_pd().unwrap(), 64, |init| configure(init.depths(16, 16)))
        .unwrap()
}

/// Waits for a state, not for a time.
fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(t) = found() {
            return t;
        }
        assert!(Instant::now() < end, "{what} did not come");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn addr(ip: Ipv4Addr, port: u16) -> SocketAddr {
    (ip, port).into()
}

/// Gives our RNIC these addresses.
fn readdress(nodes: &Nodes, addrs: &[(Ipv4Addr, u8)]) {
    let addrs = addrs.iter().map(|(ip, prefix)| Cidr::new((*ip).into(), *prefix).unwrap());
    set_addressing(nodes, Addressing::new(addrs.collect(), Vec::new()).unwrap());
}

fn set_addressing(nodes: &Nodes, net: Addressing) {
    let nets = vec![net];
    let (to, done) = channel();
    let reply = Reply::new(move |answer| to.send(answer).unwrap());
    nodes.us.asker().ask(Question::SetAddressing { nets, reply }).unwrap();
    assert_eq!(done.recv_timeout(PATIENCE).unwrap(), Ok(()));
}

/// Runs a test for an application of each kind.
fn both(test: impl Fn(&mut Nodes, Kind)) {
    let mut nodes = Nodes::new();
    for kind in [Kind::Local, Kind::Remote] {
        test(&mut nodes, kind);
        nodes.served();
    }
}
