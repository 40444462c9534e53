//! Which worker of a port a connection belongs to.
//!
//! A port may have several workers, each with a queue pair of the port and a [`Stack`](crate::Stack)
//! of its own. A connection belongs to one of them for its whole life: to the one that its peer's
//! segments reach. What decides that is in the segments and nowhere else, so no worker has to ask
//! another:
//!
//! ```text
//!                       addresses and ports of a received segment, the peer's first
//!                                                 |
//!              Toeplitz hash (the port's key) --> low bits --> indirection table --> worker
//! ```
//!
//! The port computes that itself if it can (RSS), and the workers do if it cannot: whoever receives
//! a segment of another hands it on. Both take the same key and table, so a connection we open can
//! be given a local port by which the peer's answers reach the worker that opened it.
//!
//! What a worker does with the frames that are no segments says [`Spread::steer`].

mod steer;
#[cfg(test)]
mod tests;
mod toeplitz;

use core::fmt;
use core::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

pub use steer::Steer;
pub use toeplitz::MIN_KEY as MIN_RSS_KEY;
use toeplitz::Toeplitz;

/// Why flows cannot be spread as told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpreadError {
    /// The key is too short for the longest flow, that of IPv6.
    #[error("a key of {0} octets: {MIN_RSS_KEY} are needed")]
    KeyLength(usize),
    /// The low bits of a hash name an entry only if the number of entries is a power of two.
    #[error("an indirection table of {0} entries: it takes a power of two, at most 65536")]
    TableLength(usize),
    /// There is no such worker.
    #[error("there are {workers} workers, and none has the number {worker}")]
    NoSuchWorker {
        /// The number it has, counted from 0.
        worker: u16,
        /// How many there are.
        workers: u16,
    },
}

/// The rule by which the flows of one port are spread over its workers: a key and an indirection
/// table. One for all workers of the port.
pub struct Rss {
    hash: Toeplitz,
    table: Box<[u16]>,
    workers: u16,
}

impl Rss {
    /// By the hash with `key` (at least [`MIN_RSS_KEY`] octets) and `table`, whose entries are
    /// numbers of workers below `workers`. The table may be uneven, and leave workers out.
    ///
    /// # Errors
    /// See [`SpreadError`].
    pub fn new(key: &[u8], table: &[u16], workers: u16) -> Result<Rss, SpreadError> {
        let hash = Toeplitz::new(key).ok_or(SpreadError::KeyLength(key.len()))?;
        check_entries(table.len())?;
        if let Some(&worker) = table.iter().find(|&&w| w >= workers) {
            return Err(SpreadError::NoSuchWorker { worker, workers });
        }
        Ok(Rss { hash, table: table.into(), workers })
    }

    /// As [`Rss::new`], with a table of `entries` that gives each worker as many as the others, or
    /// one more.
    ///
    /// # Errors
    /// See [`SpreadError`].
    pub fn even(key: &[u8], entries: usize, workers: u16) -> Result<Rss, SpreadError> {
        check_entries(entries)?;
        // With no worker, the first entry is one too many.
        let table: Vec<u16> = (0..workers.max(1)).cycle().take(entries).collect();
        Rss::new(key, &table, workers)
    }

    /// The worker that a segment from `src` to `dst` reaches; `None` when they are of two
    /// families.
    pub fn worker(&self, src: SocketAddr, dst: SocketAddr) -> Option<u16> {
        self.hash.of_segment(src, dst).map(|hash| self.entry(hash))
    }

    /// Workers there are.
    pub fn workers(&self) -> u16 {
        self.workers
    }

    /// The indirection table.
    pub fn table(&self) -> &[u16] {
        &self.table
    }

    #[inline]
    fn entry(&self, hash: u32) -> u16 {
        // As long as a power of two.
        self.table[hash as usize & (self.table.len() - 1)]
    }
}

impl fmt::Debug for Rss {
    /// Without the key: who knows it can aim at one worker.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rss({} entries, {} workers)", self.table.len(), self.workers)
    }
}

/// The share that one worker has in the flows of its port.
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
    /// All of them: the port has one worker.
    pub fn alone() -> Spread {
        Spread::default()
    }

    /// That of worker `me` where the queues of two ports are joined one to one, as `net_ring`'s
    /// are: what queue 3 sends comes out of queue 3 over there, and the answers come back to it,
    /// whatever the ports of the segments. Only the same addresses and ports must not be used by
    /// two workers: worker `me` of `workers` opens connections from local ports that leave the rest
    /// `me`.
    ///
    /// # Errors
    /// There is no such worker.
    pub fn pairs(me: u16, workers: u16) -> Result<Spread, SpreadError> {
        Spread::of(Kind::Pairs { workers }, me, workers)
    }

    /// That of worker `me` of a port that spreads segments itself, by `rss`.
    ///
    /// # Errors
    /// There is no such worker.
    pub fn by_port(rss: Arc<Rss>, me: u16) -> Result<Spread, SpreadError> {
        let workers = rss.workers;
        Spread::of(Kind::ByPort(rss), me, workers)
    }

    /// That of worker `me` of a port that does not spread segments, or not in a way we know: the
    /// workers do, by `rss`. No port need know the key, so it should be one that nobody knows.
    ///
    /// # Errors
    /// There is no such worker.
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

    /// The worker's number among those of the port.
    pub fn worker(&self) -> u16 {
        self.me
    }

    /// Workers of the port.
    pub fn workers(&self) -> u16 {
        match &self.kind {
            Kind::Alone => 1,
            Kind::Pairs { workers } => *workers,
            Kind::ByPort(rss) | Kind::BySoftware(rss) => rss.workers,
        }
    }

    /// Whether received frames have to be looked at by [`Spread::steer`]: there are workers they
    /// may be for.
    pub fn steers(&self) -> bool {
        matches!(self.kind, Kind::ByPort(_) | Kind::BySoftware(_))
    }

    /// The worker a segment from `src` to `dst` reaches; `None` when that depends on where it is
    /// received.
    #[inline]
    fn worker_of(&self, src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16)) -> Option<u16> {
        match &self.kind {
            Kind::Alone | Kind::Pairs { .. } => None,
            Kind::ByPort(rss) | Kind::BySoftware(rss) => {
                Some(rss.entry(rss.hash.of_v4(&input(src, dst))))
            }
        }
    }

    /// Says of local ports whether connections from there, at `local`, to `peer` are this worker's.
    pub(crate) fn landing(&self, local: Ipv4Addr, peer: (Ipv4Addr, u16)) -> Landing<'_> {
        match &self.kind {
            Kind::Alone => Landing::Everywhere,
            Kind::Pairs { workers } => Landing::EveryNth { n: *workers, rest: self.me },
            Kind::ByPort(rss) | Kind::BySoftware(rss) => {
                let hash = rss.hash.of_v4(&input(peer, (local, 0)));
                Landing::Hashed { rss, hash, me: self.me }
            }
        }
    }
}

/// Which local ports one worker may open connections to one peer from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Landing<'a> {
    Everywhere,
    EveryNth {
        n: u16,
        rest: u16,
    },
    Hashed {
        rss: &'a Rss,
        /// The hash of the answers but for the port.
        hash: u32,
        me: u16,
    },
}

impl Landing<'_> {
    /// Whether `port` is one of them: a few loads, for whoever tries many.
    #[inline]
    pub(crate) fn has(&self, port: u16) -> bool {
        match *self {
            Landing::Everywhere => true,
            Landing::EveryNth { n, rest } => port % n.max(1) == rest,
            Landing::Hashed { rss, hash, me } => rss.entry(hash ^ rss.hash.last_octets(port)) == me,
        }
    }
}

fn check_entries(entries: usize) -> Result<(), SpreadError> {
    let fits = entries.is_power_of_two() && entries <= 1 << 16;
    if fits { Ok(()) } else { Err(SpreadError::TableLength(entries)) }
}

/// What is hashed of a received segment.
#[inline]
fn input(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16)) -> [u8; 12] {
    let [a, b, c, d] = src.0.octets();
    let [e, f, g, h] = dst.0.octets();
    let ([i, j], [k, l]) = (src.1.to_be_bytes(), dst.1.to_be_bytes());
    [a, b, c, d, e, f, g, h, i, j, k, l]
}
