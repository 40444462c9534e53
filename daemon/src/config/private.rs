//! The RNIC of one user, for programs on this host: it has no device, no privileges, and no file.

use core::time::Duration;
use std::path::PathBuf;

use heddle_ctl::{InnerSetup, Patience};
use heddle_dataplane::{Hugepages, IdlePolicy, Naps};
use heddle_hub::Policy;
use heddle_tcp::SynCookies;
use heddle_verbs::{DeviceLimits, MpaOptions, PageSize};

use super::{Config, Control, Dpdk, Limits, Log, Memory, Sharing, Workers, keepalive};

/// Settings of an RNIC that programs start for themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Private {
    /// Time for which the RNIC lives without a client, after its start and after its last client
    /// has gone.
    pub grace: Duration,
}

/// Sessions and connections of clients that one user may have. There is a single user, who has
/// everything.
const SESSIONS: u32 = 2048;

/// Connections of the worker, at which both ends count.
const CONNECTIONS: usize = 4096;

/// STags of all programs together.
const REGISTRATIONS: usize = 1 << 16;

/// Time that a program has to post a late receive. Many programs were written for InfiniBand, where
/// the sender tries again.
const RNR_WAIT: Duration = Duration::from_secs(5);

impl Config {
    /// Returns the configuration of a private RNIC with the control socket `socket`.
    pub fn private(socket: impl Into<PathBuf>, private: Private, log: Log) -> Config {
        let control =
            Control { mode: 0o600, clients: 2 * SESSIONS as usize, ..Control::at(socket.into()) };
        Config {
            dpdk: Dpdk { memory: None, hugepages: Hugepages::Never, iova: None },
            log,
            control: Some(control),
            metrics: None,
            ports: Vec::new(),
            inner: InnerSetup::loopback(),
            private: Some(private),
            workers: Workers { lcores: Vec::new(), idle: IdlePolicy::Backoff(naps()) },
            // Programs bring their own memory. These amounts are for services, of which there are
            // none.
            memory: Memory { registered: 1, pages: PageSize::Auto, queues: 1 },
            limits: Limits {
                connections: CONNECTIONS,
                registrations: REGISTRATIONS,
                rnr_wait: RNR_WAIT,
                ..Limits::default()
            },
            weight: 1,
            mpa: MpaOptions::new(),
            keepalive: keepalive(Duration::from_secs(60)),
            sharing: Sharing::default(),
            syn_cookies: SynCookies::default(),
            patience: Patience::default(),
            infiniband: false,
            ib_keepalive: None,
            listen: Vec::new(),
            forward: Vec::new(),
            clients: Vec::new(),
            shutdown: Duration::from_secs(1),
        }
    }
}

/// Returns the times for the worker's sleep. The worker sleeps soon, because the program that
/// awaits its work may need the processor for polling, and a program that posts wakes the worker.
/// After 20 µs a round trip between two programs on two processors takes twice as long.
fn naps() -> Naps {
    Naps { after: Duration::from_micros(5), ..Naps::default() }
}

/// Returns the policy of the single user's programs: all resources. The host bounds their memory.
pub(super) fn policy(limits: &Limits) -> Policy {
    let stags = u32::try_from(limits.registrations).unwrap_or(u32::MAX);
    Policy {
        sessions: SESSIONS,
        descriptors: u32::MAX,
        memory: 1 << 46,
        mapped: Policy::mapped_for(super::PRIVATE_REGIONS),
        queues: 1 << 40,
        regions: super::PRIVATE_REGIONS,
        connections: u32::try_from(2 * limits.connections).unwrap_or(u32::MAX),
        listeners: 4096,
        backlog: 4096,
        limits: DeviceLimits { max_mrs: stags, max_mws: stags, ..DeviceLimits::default() },
        ..Policy::default()
    }
}
