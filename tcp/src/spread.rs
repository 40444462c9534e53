//! The rule that assigns connections to the workers of a port.
//!
//! A port may have several workers, each with a queue pair of the port and a
//! [`Stack`](crate::Stack) of its own. A connection belongs for its whole life to the one worker
//! that its peer's segments reach. The segments alone decide which worker this is, so no worker has
//! to ask another:
//!
//! ```text
//!                       addresses and ports of a received segment, the peer's first
//!                                                 |
//!              Toeplitz hash (the port's key) --> low bits --> indirection table --> worker
//! ```
//!
//! The port computes the worker itself if it can (RSS). If it cannot, the workers do: a worker that
//! receives a segment of another worker passes the segment on. Both ways use the same key and
//! table. A connection that we open can therefore get a local port by which the peer's answers
//! reach the worker that opened it.
//!
//! [`Spread::steer`] defines how a worker treats frames that are not segments.

mod steer;
#[cfg(test)]
mod tests;
mod toeplitz;

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

pub use steer::Steer;
pub use toeplitz::MIN_KEY as MIN_RSS_KEY;
use toeplitz::Toeplitz;

/// Why the given values cannot spread flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpreadError {
    /// The key is too short for the longest flow, which is an IPv6 flow.
    #[error("a key of {0} bytes: {MIN_RSS_KEY} are needed")]
    KeyLength(usize),
    /// The table's length is no power of two. The low bits of a hash name an entry only with such a
    /// length.
    #[error("an indirection table of {0} entries: it takes a power of two, at most 65536")]
    TableLength(usize),
    /// No worker has this number.
    #[error("there are {workers} workers, and none has the number {worker}")]
    NoSuchWorker {
        /// The given number of the worker, counted from 0.
        worker: u16,
        /// The number of workers.
        workers: u16,
    },
}

/// The rule that spreads the flows of one port over its workers: a key and an indirection table.
/// All workers of the port share it.
pub struct Rss {
    hash: Toeplitz,
    table: Box<[u16]>,
    workers: u16,
}

impl Rss {
    /// Returns the rule that uses the hash with `key` (at least [`MIN_RSS_KEY`] bytes) and `table`,
    /// whose entries are numbers of workers below `workers`. The table may be uneven, and leave
    /// workers out.
    ///
    /// # Errors
    /// Returns the error that applies; see [`SpreadError`].
    pub fn new(key: &[u8], table: &[u16], workers: u16) -> Result<Rss, SpreadError> {
        let hash = Toeplitz::new(key).ok_or(SpreadError::KeyLength(key.len()))?;
        check_entries(table.len())?;
        if let Some(&worker) = table.iter().find(|&&w| w >= workers) {
            return Err(SpreadError::NoSuchWorker { worker, workers });
        }
        Ok(Rss { hash, table: table.into(), workers })
    }

    /// Returns a rule as [`Rss::new`] does, with a table of `entries` that gives each worker as
    /// many entries as the others, or one more.
    ///
    /// # Errors
    /// Returns the error that applies; see [`SpreadError`].
    pub fn even(key: &[u8], entries: usize, workers: u16) -> Result<Rss, SpreadError> {
        check_entries(entries)?;
        // With no worker, the first entry is already too large.
        let table: Vec<u16> = (0..workers.max(1)).cycle().take(entries).collect();
        Rss::new(key, &table, workers)
    }

    /// Returns the worker that a segment from `src` to `dst` reaches; `None` when the addresses are
    /// of different families.
    pub fn worker(&self, src: SocketAddr, dst: SocketAddr) -> Option<u16> {
        self.hash.of_segment(src, dst).map(|hash| self.entry(hash))
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> u16 {
        self.workers
    }

    /// Returns the indirection table.
    pub fn table(&self) -> &[u16] {
        &self.table
    }

    #[inline]
    fn entry(&self, hash: u32) -> u16 {
        // The table's length is a power of two.
        self.table[hash as usize & (self.table.len() - 1)]
    }
}

impl fmt::Debug for Rss {
    /// Leaves out the key: an attacker that knows the key can aim at one worker.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rss({} entries, {} workers)", self.table.len(), self.workers)
    }
}

/// The share of one worker in the flows of its port.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    kind: Kind,
    /// The worker's number.
    me: u16,
}

#[derive(Clone, Debug, Default)]
enum Kind {
    #[default]
    Alone,
    Pairs {
        workers: u16,
    },
    ByPort(Arc<Rss>),
    BySoftware(Arc<Rss>),
}

impl Spread {
    /// Returns the share of the only worker of a port: all flows.
    pub fn alone() -> Spread {
        Spread::default()
    }

    /// Returns the share of worker `me` where the queues of two ports are joined one to one, as
    /// `net_ring`'s are: frames from queue 3 come out of queue 3 of the other port, and the answers
    /// come back to queue 3, whatever the ports of the segments. Only two workers must not use the
    /// same addresses and ports: worker `me` of `workers` opens connections from local ports whose
    /// remainder modulo `workers` is `me`.
    ///
    /// # Errors
    /// Fails if there is no such worker.
    pub fn pairs(me: u16, workers: u16) -> Result<Spread, SpreadError> {
        Spread::of(Kind::Pairs { workers }, me, workers)
    }

    /// Returns the share of worker `me` of a port that spreads segments itself, by `rss`.
    ///
    /// # Errors
    /// Fails if there is no such worker.
    pub fn by_port(rss: Arc<Rss>, me: u16) -> Result<Spread, SpreadError> {
        let workers = rss.workers;
        Spread::of(Kind::ByPort(rss), me, workers)
    }

    /// Returns the share of worker `me` of a port that does not spread segments, or not in a way
    /// that we know. The workers spread the segments, by `rss`. No port needs the key, so the key
    /// should be secret.
    ///
    /// # Errors
    /// Fails if there is no such worker.
    pub fn by_software(rss: Arc<Rss>, me: u16) -> Result<Spread, SpreadError> {
        let workers = rss.workers;
        Spread::of(Kind::BySoftware(rss), me, workers)
    }

    fn of(kind: Kind, me: u16, workers: u16) -> Result<Spread, SpreadError> {
        if me >= workers {
            return Err(SpreadError::NoSuchWorker { worker: me, workers });
        }
        Ok(Spread { kind: if workers == 1 { Kind::Alone } else { kind }, me })
    }

    /// Returns the worker's number among the workers of the port.
    pub fn worker(&self) -> u16 {
        self.me
    }

    /// Returns the number of workers of the port.
    pub fn workers(&self) -> u16 {
        match &self.kind {
            Kind::Alone => 1,
            Kind::Pairs { workers } => *workers,
            Kind::ByPort(rss) | Kind::BySoftware(rss) => rss.workers,
        }
    }

    /// Returns true if the worker has to pass received frames to [`Spread::steer`], because they
    /// may be for other workers.
    pub fn steers(&self) -> bool {
        matches!(self.kind, Kind::ByPort(_) | Kind::BySoftware(_))
    }

    /// Returns the worker that a segment from `src` to `dst` reaches; `None` when that depends on
    /// the queue that receives the segment.
    #[inline]
    fn worker_of(&self, src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16)) -> Option<u16> {
        match &self.kind {
            Kind::Alone | Kind::Pairs { .. } => None,
            Kind::ByPort(rss) | Kind::BySoftware(rss) => {
                Some(rss.entry(rss.hash.of_v4(&input(src, dst))))
            }
        }
    }

    /// Does the same as [`Spread::worker_of`] for either family.
    fn worker_of_any(&self, src: SocketAddr, dst: SocketAddr) -> Option<u16> {
        match &self.kind {
            Kind::Alone | Kind::Pairs { .. } => None,
            Kind::ByPort(rss) | Kind::BySoftware(rss) => rss.worker(src, dst),
        }
    }

    /// Returns a test for local ports at `local`: whether connections from them to `peer` are this
    /// worker's.
    pub(crate) fn landing(&self, local: IpAddr, peer: SocketAddr) -> Landing<'_> {
        match &self.kind {
            Kind::Alone => Landing::Everywhere,
            Kind::Pairs { workers } => Landing::EveryNth { n: *workers, rest: self.me },
            Kind::ByPort(rss) | Kind::BySoftware(rss) => {
                match rss.hash.of_segment(peer, SocketAddr::new(local, 0)) {
                    Some(hash) => {
                        let port_at = Toeplitz::port_at(local);
                        Landing::Hashed { rss, hash, port_at, me: self.me }
                    }
                    None => Landing::Nowhere,
                }
            }
        }
    }
}

/// The local ports from which one worker may open connections to one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Landing<'a> {
    Everywhere,
    Nowhere,
    EveryNth {
        n: u16,
        rest: u16,
    },
    Hashed {
        rss: &'a Rss,
        /// The hash of the answers' addresses and ports, with 0 for the local port.
        hash: u32,
        /// Where the local port lies in the input of the hash.
        port_at: usize,
        me: u16,
    },
}

impl Landing<'_> {
    /// Returns true if `port` is one of these ports. The test costs a few loads, because callers
    /// try many ports.
    #[inline]
    pub(crate) fn has(&self, port: u16) -> bool {
        match *self {
            Landing::Everywhere => true,
            Landing::Nowhere => false,
            Landing::EveryNth { n, rest } => port % n.max(1) == rest,
            Landing::Hashed { rss, hash, port_at, me } => {
                rss.entry(hash ^ rss.hash.of_port(port_at, port)) == me
            }
        }
    }
}

fn check_entries(entries: usize) -> Result<(), SpreadError> {
    let fits = entries.is_power_of_two() && entries <= 1 << 16;
    if fits { Ok(()) } else { Err(SpreadError::TableLength(entries)) }
}

/// Returns the input of the hash for a received segment.
#[inline]
fn input(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16)) -> [u8; 12] {
    let [a, b, c, d] = src.0.octets();
    let [e, f, g, h] = dst.0.octets();
    let ([i, j], [k, l]) = (src.1.to_be_bytes(), dst.1.to_be_bytes());
    [a, b, c, d, e, f, g, h, i, j, k, l]
}
