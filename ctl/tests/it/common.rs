//! An RNIC in virtual time with a peer whose iWARP is made by hand: TCP is `heddle-tcp`, and the
//! test makes every byte above it.
#![allow(unreachable_pub, dead_code, reason = "each test file that has this module uses a part")]
#![allow(unused_imports, reason = "as above")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use heddle_base::{Instant, Seed};
use heddle_ctl::{CtlCounters, Endpoint, EndpointConfig};
use heddle_dataplane::{Clock, Eal, EalConfig, Hugepages, ManualClock, WorkerSnapshot};
use heddle_tcp::{Cidr, ConnEvent};
use heddle_types::ConnId;
use heddle_verbs::{CmEvent, EventQueue};

mod end;
mod far;
mod link;
mod peer;
mod wire;

pub use end::*;
pub use far::*;
pub use link::*;
pub use peer::*;
pub use wire::*;

pub const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const PORT: u16 = 7174;
pub const MS: Duration = Duration::from_millis(1);

/// Returns DPDK, started once in this process, and the right to use it: one test runs at a time.
pub fn eal() -> (Eal, MutexGuard<'static, ()>) {
    static EAL: OnceLock<Eal> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let config = EalConfig { hugepages: Hugepages::Never, memory_mb: 4096, ..EalConfig::default() };
    (*EAL.get_or_init(|| Eal::init(&config).expect("DPDK starts")), turn)
}

/// Returns a new name for a pair of rings.
pub fn name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("ctl{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

pub fn us(port: u16) -> SocketAddr {
    (US, port).into()
}

pub fn config(ip: Ipv4Addr, clock: &Clock) -> EndpointConfig {
    EndpointConfig {
        memory: 1 << 20,
        frames: 2047,
        max_conns: 64,
        clock: Some(clock.clone()),
        ..EndpointConfig::with_seed(
            vec![Cidr::new(ip.into(), 24).unwrap()],
            Seed::from_u64(ip.octets()[3].into()),
        )
    }
}

/// The RNIC under test and its peer.
pub struct Net {
    pub us: Endpoint,
    pub peer: Peer,
    hand: ManualClock,
}

impl Net {
    pub fn new(eal: &Eal) -> Net {
        Net::with(eal, |_| {})
    }

    pub fn with(eal: &Eal, change: impl FnOnce(&mut EndpointConfig)) -> Net {
        let (clock, hand) = Clock::manual();
        let mut config = config(US, &clock);
        change(&mut config);
        let (us, far) = Far::open(eal, &config);
        Net { us, peer: Peer::new(far), hand }
    }

    pub fn now(&self) -> Instant {
        self.hand.now()
    }

    /// Lets both ends do all work that waits now; time stands still.
    pub fn settle(&mut self) {
        let now = self.now();
        let mut quiet = 0;
        while quiet < 2 {
            let mut busy = self.peer.poll(now);
            // The control plane of an idle endpoint has a turn only in every 32 polls.
            for _ in 0..33 {
                busy |= self.us.poll();
            }
            quiet = if busy { 0 } else { quiet + 1 };
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now() + time;
        self.settle();
        while self.now() < end {
            self.hand.advance(MS);
            self.settle();
        }
    }

    /// Lets time pass until `found` returns a value, for at most five minutes.
    pub fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Net) -> Option<T>) -> T {
        let end = self.now() + Duration::from_secs(300);
        loop {
            self.settle();
            if let Some(t) = found(self) {
                return t;
            }
            assert!(self.now() < end, "{what} did not come");
            self.hand.advance(MS);
        }
    }

    pub fn event(&mut self, events: &EventQueue) -> CmEvent {
        self.until("an event", |_| events.poll())
    }

    /// Opens a TCP connection of the peer to our `port`.
    pub fn tcp(&mut self, port: u16) -> ConnId {
        let now = self.now();
        let conn = self.peer.stack.connect(now, us(port), None).unwrap();
        self.until("a TCP connection", |n| n.peer.says(conn, ConnEvent::Connected).then_some(()));
        conn
    }

    pub fn ctl(&self) -> CtlCounters {
        self.us.snapshot().ctl
    }

    pub fn worker(&self) -> WorkerSnapshot {
        self.us.snapshot().worker
    }
}
