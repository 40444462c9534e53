use core::time::Duration;

use crate::ports::Ports;

/// Settings of a manager.
#[derive(Clone, Debug)]
pub struct CmConfig {
    /// The ports with their workers; worker ids run from 0 over all ports.
    pub ports: Ports,
    /// TCP connections of one worker that may be passive and not established at a time, over all
    /// listeners. Keep the number below the capacity of the worker's TCP stack, so that start-ups
    /// alone never fill the stack.
    pub max_startups: usize,
    /// Start-ups of one worker that the listeners of one tenant may hold.
    pub max_startups_per_tenant: usize,
    /// Number of events that an application may leave untaken. Above it, the manager admits no new
    /// connections to the application's listeners and refuses its connects.
    pub max_events: usize,
    /// How long the orderly close of a connection that was never established, or has ended by an
    /// error, may take before the connection is reset.
    pub close_timeout: Duration,
    /// How long the orderly close of an established connection may take in all, however slowly its
    /// data moves. TCP resets it sooner when nothing moves
    /// ([`ConnConfig::close_stall`](heddle_tcp::ConnConfig::close_stall)).
    pub close_limit: Duration,
    /// Notices of refused start-ups that the manager may give in a burst; after the burst, one a
    /// second.
    pub notice_burst: u32,
}

impl CmConfig {
    /// Returns defaults: 512 start-ups for each worker, 384 of them for one tenant, 4096 events for
    /// each application, 20 s for a close, ten minutes for a close while data moves, 16 notices.
    pub const fn new(ports: Ports) -> CmConfig {
        CmConfig {
            ports,
            max_startups: 512,
            max_startups_per_tenant: 384,
            max_events: 4096,
            close_timeout: Duration::from_secs(20),
            close_limit: Duration::from_secs(600),
            notice_burst: 16,
        }
    }
}
