//! Messages to and fro over an appliance, of which every octet is compared and every request accounted
//! for: what runs while an appliance is soaked.
//!
//! A [`client`] is granted a region of the [`server`]'s. It Writes to it and Reads it back, Sends what it
//! gets back, adds to a counter there, and Writes with Immediate Data that is answered. What it Writes and
//! Sends follows from a seed. Both ends sleep while there is nothing to do.
//!
//! A request that completes twice, out of its turn, never, or with an error on a connection that has not
//! ended is an error here ([`ledger`]); so is an octet that differs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_verbs::{
    ConnectionError, CqeStatus, DeviceError, DisconnectReason, PostError, WaitError,
};

mod account;
pub mod client;
pub mod ledger;
pub mod many;
pub mod server;

use ledger::LedgerError;

/// Octets of the longest message, and of each of the places in a region.
pub const SLOT: usize = 16 << 10;

/// Messages that may be under way on a connection at a time.
pub const DEPTH: usize = 16;

/// Octets that a client is granted: its counter, and behind that its places.
const GRANT: usize = COUNTER + DEPTH * SLOT;

/// Octets before the first place; the first eight are the counter.
const COUNTER: usize = 4096;

/// How long an answer may take where the peer is well.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a round takes when something has held it up: a round is 16 short messages, a matter of milliseconds.
const PAUSE: Duration = Duration::from_millis(100);

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No connection, or no listener.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// It was not posted.
    #[error("cannot post: {0}")]
    Post(#[from] PostError),
    /// Completions did not come, or were lost.
    #[error("no completion: {0}")]
    Wait(#[from] WaitError),
    /// The connection ended in the middle of it.
    #[error("the connection ended: {0}")]
    Ended(DisconnectReason),
    /// A request failed, and the connection is still there.
    #[error("a request failed on a connection that goes on: {0:?}")]
    Failed(CqeStatus),
    /// A completion too many or too few.
    #[error("{0}")]
    Ledger(#[from] LedgerError),
    /// Other octets than were sent.
    #[error("message {message}: {what} differs from octet {at} on")]
    Differs {
        /// Its number on the connection.
        message: u64,
        /// Where it came back from.
        what: &'static str,
        /// The first octet.
        at: usize,
    },
    /// A message of another length.
    #[error("a message of {0} octets instead of {1}")]
    Length(usize, usize),
    /// The counter at the peer is not what was added.
    #[error("the counter was {0} instead of {1}")]
    Counter(u64, u64),
    /// The server's private data is none of ours.
    #[error("the peer is no server of this program")]
    Stranger,
    /// No thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl ExchangeError {
    /// Whether a peer that dies or is told to end its connections explains it.
    pub fn is_of_the_peer(&self) -> bool {
        use ConnectionError as C;
        match self {
            ExchangeError::Ended(_) => true,
            ExchangeError::Connection(e) => {
                matches!(e, C::Connect(_) | C::Rejected { .. } | C::Disconnected(_))
            }
            _ => false,
        }
    }
}

/// What has been done so far, by all connections of a program.
#[derive(Debug, Default)]
pub struct Tally {
    /// Connections that were established.
    pub connections: AtomicU64,
    /// Connections that are.
    pub open: AtomicU64,
    /// Requests posted.
    pub requests: AtomicU64,
    /// Messages that came back, or were answered.
    pub messages: AtomicU64,
    /// Octets in them, all compared (by a client).
    pub octets: AtomicU64,
    /// Rounds of a client that took 100 ms or longer.
    pub pauses: AtomicU64,
    /// Microseconds of the longest round.
    pub longest: AtomicU64,
}

impl Tally {
    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// A round of a client took so long, from its first request to its last completion.
    fn round(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.longest.fetch_max(micros, Ordering::Relaxed);
        if took >= PAUSE {
            Tally::add(&self.pauses, 1);
        }
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        let of = |c: &AtomicU64| c.load(Ordering::Relaxed);
        serde_json::json!({
            "connections": of(&self.connections),
            "open": of(&self.open),
            "requests": of(&self.requests),
            "messages": of(&self.messages),
            "octets": of(&self.octets),
            "pauses": of(&self.pauses),
            "longest_us": of(&self.longest),
        })
        .to_string()
    }
}

/// A connection that is established.
struct Open<'a>(&'a Tally);

impl Open<'_> {
    fn new(tally: &Tally) -> Open<'_> {
        Tally::add(&tally.connections, 1);
        Tally::add(&tally.open, 1);
        Open(tally)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_tally_counts_rounds_that_reach_the_limit_and_keeps_the_longest() {
        let tally = Tally::default();
        tally.round(PAUSE - Duration::from_micros(1));
        assert_eq!(tally.pauses.load(Ordering::Relaxed), 0);
        tally.round(PAUSE);
        tally.round(Duration::from_millis(3));
        let json: serde_json::Value = serde_json::from_str(&tally.to_json()).expect("a document");
        assert_eq!((&json["pauses"], &json["longest_us"]), (&1.into(), &100_000.into()));
    }
}
