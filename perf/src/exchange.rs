//! The traffic of a soak test: messages that two programs exchange over an appliance. The programs
//! compare every byte and account for every request.
//!
//! The [`server`] grants a [`client`] a region. The client Writes to the region and Reads back,
//! Sends messages that the server returns, adds to a counter in the region, and sends Writes with
//! Immediate Data that the server answers. A seed determines all that the client Writes and Sends.
//! Both ends sleep while there is nothing to do.
//!
//! An error is a request that completes twice, out of its turn, never, or with an error on a
//! connection that has not ended ([`ledger`]); a byte that differs is an error, too.

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

/// Bytes of the longest message, and of each place in a region.
pub const SLOT: usize = 16 << 10;

/// The number of messages that may be in flight on a connection at a time.
pub const DEPTH: usize = 16;

/// Bytes that the server grants a client: its counter, followed by its places.
const GRANT: usize = COUNTER + DEPTH * SLOT;

/// Bytes before the first place; the first eight are the counter.
const COUNTER: usize = 4096;

/// How long an answer may take from a healthy peer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The duration from which a round counts as delayed: a round is 16 short messages, which take
/// milliseconds.
const PAUSE: Duration = Duration::from_millis(100);

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The device refused a call.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The connection or the listener failed.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The device did not take a request.
    #[error("cannot post: {0}")]
    Post(#[from] PostError),
    /// Completions did not come, or were lost.
    #[error("no completion: {0}")]
    Wait(#[from] WaitError),
    /// The connection ended in the middle of the exchange.
    #[error("the connection ended: {0}")]
    Ended(DisconnectReason),
    /// A request failed, and the connection goes on.
    #[error("a request failed on a connection that goes on: {0}")]
    Failed(CqeStatus),
    /// There is a completion too many or too few.
    #[error("{0}")]
    Ledger(#[from] LedgerError),
    /// Received bytes differ from the bytes that were sent.
    #[error("message {message}: {what} differs from byte {at} on")]
    Differs {
        /// The message's number on the connection.
        message: u64,
        /// The path by which the bytes came back.
        what: &'static str,
        /// The index of the first byte that differs.
        at: usize,
    },
    /// A received message has another length than the one that was sent.
    #[error("a message of {0} bytes instead of {1}")]
    Length(usize, usize),
    /// The counter at the peer is not the sum of the additions.
    #[error("the counter was {0} instead of {1}")]
    Counter(u64, u64),
    /// The server's private data is not in this program's format.
    #[error("the peer is no server of this program")]
    Stranger,
    /// A thread could not start.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl ExchangeError {
    /// Returns true if the peer's death, or an order to the peer to end its connections, explains
    /// the error.
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

/// Counts over all connections of a program.
#[derive(Debug, Default)]
pub struct Tally {
    /// Connections that were established.
    pub connections: AtomicU64,
    /// Connections that are established now.
    pub open: AtomicU64,
    /// Requests posted.
    pub requests: AtomicU64,
    /// Messages that came back, or that the server answered.
    pub messages: AtomicU64,
    /// Bytes in these messages, all compared (by a client).
    pub bytes: AtomicU64,
    /// Rounds of a client that took 100 ms or longer.
    pub pauses: AtomicU64,
    /// The duration of the longest round in microseconds.
    pub longest: AtomicU64,
}

impl Tally {
    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// Counts a round of a client, which took `took` from its first request to its last completion.
    fn round(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.longest.fetch_max(micros, Ordering::Relaxed);
        if took >= PAUSE {
            Tally::add(&self.pauses, 1);
        }
    }

    /// Returns the counts as one line of JSON.
    pub fn to_json(&self) -> String {
        let of = |c: &AtomicU64| c.load(Ordering::Relaxed);
        serde_json::json!({
            "connections": of(&self.connections),
            "open": of(&self.open),
            "requests": of(&self.requests),
            "messages": of(&self.messages),
            "bytes": of(&self.bytes),
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
