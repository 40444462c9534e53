//! A client and a server, each on an RNIC of its own, in one thread: rings join the RNICs, and the
//! test polls all four. No thread waits, so no test depends on how busy the machine is.
#![allow(unreachable_pub, dead_code, reason = "each test file that has this module uses a part")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

pub mod hand;
pub mod lists;
pub mod raw;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use heddle_base::Seed;
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{Eal, EalConfig, Hugepages};
use heddle_rpc::binding::{Entry, Reply, ReplySize, Table, Walk};
use heddle_rpc::client::PendingCall;
use heddle_rpc::{
    Body, CallError, Client, ClientConfig, Memory, Procedure, Refusal, Request, Server,
    ServerConfig, Speaks,
};

pub const SERVER: &str = "10.0.0.2:20049";
const PATIENCE: Duration = Duration::from_secs(120);

/// Hosts beside 10.0.0.1, on the same RNIC.
pub const OTHERS: [u8; 2] = [3, 4];

pub const PROGRAM: u32 = 0x2000_0001;
pub const MAX: u32 = 1 << 20;

pub const fn procedure(procedure: u32) -> Procedure {
    Procedure { program: PROGRAM, version: 1, procedure }
}

/// Takes a number and data; replies with the number and the data reversed, which may be placed.
pub const ECHO: Procedure = procedure(1);
/// Takes data and replies with the same data; neither may be placed.
pub const PLAIN: Procedure = procedure(2);
/// Answered when the test decides.
pub const LATER: Procedure = procedure(3);
/// Takes two pieces of data, which may be placed, with words around them; replies with both pieces
/// in exchanged order.
pub const TWO: Procedure = procedure(4);
/// Takes a number and data, which may be placed; replies with the number. The request is held like
/// that of [`LATER`].
pub const KEEP: Procedure = procedure(5);
/// Like [`KEEP`], but executed at once.
pub const STORE: Procedure = procedure(6);

const DATA: Walk = |s| {
    s.u32()?;
    s.item()
};

pub const BINDING: Table<'static> = Table(&[
    Entry {
        procedure: ECHO,
        arguments: Some(|s| {
            s.u32()?;
            s.item()
        }),
        results: Some(|s| {
            s.u32()?;
            s.item()
        }),
        reply: Reply::Of(|_| Ok(ReplySize { stream: 8, item: MAX })),
    },
    Entry { procedure: PLAIN, arguments: None, results: None, reply: Reply::Unknown },
    Entry { procedure: LATER, arguments: None, results: None, reply: Reply::Fixed(4) },
    Entry { procedure: KEEP, arguments: Some(DATA), results: None, reply: Reply::Unknown },
    Entry { procedure: STORE, arguments: Some(DATA), results: None, reply: Reply::Fixed(4) },
    Entry {
        procedure: TWO,
        arguments: Some(|s| {
            s.u32()?;
            s.item()?;
            s.u32()?;
            s.item()
        }),
        results: Some(|s| {
            s.item()?;
            s.item()
        }),
        reply: Reply::Of(|_| Ok(ReplySize { stream: 8, item: MAX })),
    },
]);

/// Starts DPDK once in this process. The guard lets one test run at a time.
pub fn eal() -> (Eal, MutexGuard<'static, ()>) {
    static EAL: OnceLock<Eal> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let config = EalConfig { hugepages: Hugepages::Never, memory_mb: 8192, ..EalConfig::default() };
    (*EAL.get_or_init(|| Eal::init(&config).expect("DPDK starts")), turn)
}

/// Requests that wait for the test's answer.
pub type Held = Arc<Mutex<Vec<Request>>>;

/// Returns the test's program.
pub fn program(memory: Memory, held: Held) -> impl FnMut(Request) + Send {
    move |request: Request| match request.procedure.procedure {
        3 | 5 => held.lock().unwrap().push(request),
        _ => {
            let outcome = carry_out(&memory, &request);
            request.reply(outcome);
        }
    }
}

fn carry_out(memory: &Memory, request: &Request) -> Result<Body, Refusal> {
    let (mut r, mut results) = (request.arguments.reader(), Body::new());
    let apart = |data: &[u8]| {
        let buffer = memory.take(data.len())?;
        buffer.write(0, data).unwrap();
        Ok::<_, Refusal>(buffer)
    };
    match request.procedure {
        ECHO => {
            let number = r.u32()?;
            let mut data = r.opaque(MAX)?.to_vec();
            r.finish()?;
            data.reverse();
            results.u32(number)?.item(apart(&data)?)?;
        }
        STORE => {
            let number = r.u32()?;
            let data = r.opaque(MAX)?.to_vec();
            r.finish()?;
            assert!(data == pattern(number, data.len()), "{} bytes", data.len());
            results.u32(number)?;
        }
        PLAIN => {
            let data = r.opaque(MAX)?.to_vec();
            r.finish()?;
            results.opaque(&data)?;
        }
        TWO => {
            r.u32()?;
            let first = r.opaque(MAX)?.to_vec();
            r.u32()?;
            let second = r.opaque(MAX)?.to_vec();
            r.finish()?;
            results.item(apart(&second)?)?.item(apart(&first)?)?;
        }
        _ => return Err(Refusal::ProcUnavail),
    }
    Ok(results)
}

pub struct World {
    pub client: Client,
    pub server: Server,
    pub held: Held,
    /// True while the client's application does something else.
    pub paused: bool,
    /// True while no thread steps the server.
    pub deaf: bool,
    /// True while the client's RNIC stands still.
    pub frozen: bool,
    a: Endpoint,
    b: Endpoint,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    pub fn new(speaks: Speaks) -> World {
        World::with(|client, server| {
            (client.transport.speaks, server.transport.speaks) = (speaks, speaks);
        })
    }

    pub fn with(change: impl FnOnce(&mut ClientConfig, &mut ServerConfig)) -> World {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (eal, turn) = eal();
        let name = format!("rpc{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let config = |n: u8| EndpointConfig {
            frames: 2047,
            max_conns: 64,
            ..EndpointConfig::with_seed(
                vec![format!("10.0.0.{n}/24").parse().unwrap()],
                Seed::from_u64(n.into()),
            )
        };
        let mut hosts = config(1);
        // Other hosts, for hand-made clients.
        for n in OTHERS {
            hosts.addrs.push(format!("10.0.0.{n}/24").parse().unwrap());
        }
        let (a, b) = Endpoint::ring_pair(&eal, &name, &hosts, &config(2)).unwrap();
        let mut client = ClientConfig { binding: Box::new(BINDING), ..ClientConfig::default() };
        let mut server = ServerConfig::default();
        change(&mut client, &mut server);
        let client = Client::new(a.device(), addr(), client).unwrap();
        let mut server = Server::new(b.device(), addr(), server).unwrap();
        let held = Held::default();
        let program = program(server.memory().clone(), held.clone());
        server.register(PROGRAM, 1..=1, BINDING, program).unwrap();
        let mut world = World {
            client,
            server,
            held,
            paused: false,
            deaf: false,
            frozen: false,
            a,
            b,
            _turn: turn,
        };
        world.until("a listener", |w| w.server.listening().unwrap().then_some(()));
        world
    }

    /// Returns the RNIC that the client uses.
    pub fn client_device(&self) -> heddle_verbs::Device {
        self.a.device().clone()
    }

    /// Returns the RNIC that the server uses.
    pub fn server_device(&self) -> heddle_verbs::Device {
        self.b.device().clone()
    }

    /// Returns each STag on the server's RNIC, with the tagged offset of its first byte.
    pub fn server_stags(&self) -> Vec<(heddle_verbs::Stag, u64)> {
        let mut stags = Vec::new();
        self.b.hub().registry().mrs().for_each(|mr| stags.push((mr.stag, mr.to)));
        stags
    }

    /// Creates another client on the same RNIC.
    pub fn another(&self, config: ClientConfig) -> Client {
        Client::new(self.a.device(), addr(), config).unwrap()
    }

    pub fn poll(&mut self) {
        // The control plane of an idle endpoint has its turn only now and then, so poll several
        // times.
        for _ in 0..8 {
            if !self.frozen {
                self.a.poll();
            }
            self.b.poll();
        }
        if !self.paused {
            self.client.step();
        }
        if !self.deaf {
            self.server.step();
        }
    }

    pub fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut World) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            self.poll();
            if let Some(t) = found(self) {
                return t;
            }
            assert!(Instant::now() < end, "{what} did not come: {}", self.report());
        }
    }

    fn report(&self) -> String {
        format!(
            "client {:?} {:?} {:?}, server {:?} with {} connections",
            self.client.counters(),
            self.client.transport_counters(),
            self.client.last_failure(),
            self.server.counters(),
            self.server.connections(),
        )
    }

    pub fn outcome(&mut self, mut call: PendingCall) -> Result<Body, CallError> {
        self.until("what comes of a call", |_| call.try_take())
    }

    /// Makes a call of ECHO with `len` bytes and checks its results. `apart` puts the bytes into an
    /// item, and `room` gives the results room of their own.
    pub fn echo(&mut self, number: u32, len: usize, apart: bool, room: bool) {
        let call = echo(&self.client, number, len, apart, room).unwrap();
        let results = self.outcome(call).unwrap();
        check_echo(&results, number, len);
    }
}

pub fn addr() -> SocketAddr {
    SERVER.parse().unwrap()
}

/// Returns bytes whose values depend on their positions.
pub fn pattern(number: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(7) ^ (i >> 8) ^ number) as u8).collect()
}

pub fn echo(
    client: &Client,
    number: u32,
    len: usize,
    apart: bool,
    room: bool,
) -> Result<PendingCall, CallError> {
    let (mut arguments, data) = (Body::new(), pattern(number, len));
    arguments.u32(number)?;
    if apart {
        let buffer = client.buffer(len)?;
        buffer.write(0, &data).unwrap();
        arguments.item(buffer)?;
    } else {
        arguments.opaque(&data)?;
    }
    let mut call = client.call(ECHO).arguments(arguments).timeout(PATIENCE);
    if room {
        call = call.room(client.buffer(len)?);
    } else {
        call = call.results_max(len as u32 + 16);
    }
    call.send()
}

pub fn check_echo(results: &Body, number: u32, len: usize) {
    let mut r = results.reader();
    assert_eq!(r.u32(), Ok(number));
    let mut data = r.opaque(MAX).unwrap().to_vec();
    r.finish().unwrap();
    data.reverse();
    assert!(data == pattern(number, len), "{len} bytes of call {number} are others");
}
