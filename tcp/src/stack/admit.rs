//! Which datagrams the port takes: the owner's filter decides first, then budgets.
//!
//! The filter comes first, so that a datagram has to be a whole message of the service before it
//! costs any budget: random bytes exhaust nothing. The budgets are separate. The stack charges a
//! message about a connection to that connection alone, and a stranger's message to the strangers,
//! where one source address may use a quarter. No number of strangers, whatever addresses they
//! forge, therefore keeps out a message of a connection, and no connection keeps out the messages
//! of another.
//!
//! Opening the port allocates all state. A datagram then costs one call of the filter and a check
//! of one or two budgets.

use core::fmt;
use core::hash::BuildHasher;
use std::sync::Arc;

use heddle_base::Instant;

use super::counters::DropReason;
use super::limit::Rate;
use super::neighbor::{Keyed, LinkAddr};

/// Distinguishes messages about connections, messages of strangers, and bytes that are no message.
///
/// The worker calls the filter for each datagram to the port, through a pointer: datagrams are rare
/// next to segments, and the filter's own work, a CRC over the datagram, costs many times as much
/// as the call.
pub trait DatagramFilter: fmt::Debug + Send + Sync {
    /// Returns the class of the IP packet `packet`, which has at most
    /// [`MAX_DATAGRAM`](super::udp::MAX_DATAGRAM) bytes. The caller has verified lengths, addresses
    /// and checksums. The implementation must examine the bytes in bounded time, without a lock and
    /// without allocation.
    ///
    /// # Errors
    /// Returns the fault for which the stack drops the packet.
    fn classify(&self, packet: &[u8]) -> Result<DatagramClass, DatagramFault>;

    /// Returns a bound on the connections that [`DatagramClass::Known`] can name: all are below it.
    fn connections(&self) -> usize;
}

/// Classifies every datagram as a stranger's.
impl DatagramFilter for () {
    fn classify(&self, _: &[u8]) -> Result<DatagramClass, DatagramFault> {
        Ok(DatagramClass::Stranger)
    }

    fn connections(&self) -> usize {
        0
    }
}

/// The budget to which the stack charges a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramClass {
    /// The budget of this connection: the datagram names it as only its peer can, and comes from
    /// the peer's address.
    Known(usize),
    /// The budgets of its source address and of all strangers.
    Stranger,
}

/// A fault of a datagram. The variants go from the outside in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramFault {
    /// The headers are not the service's, or the length is impossible.
    Packet,
    /// The CRC is wrong.
    Crc,
    /// The datagram is for another endpoint than the service's.
    Endpoint,
    /// The datagram holds no message of the service.
    Message,
}

impl DatagramFault {
    pub(super) fn reason(self) -> DropReason {
        match self {
            DatagramFault::Packet => DropReason::UdpBadPacket,
            DatagramFault::Crc => DropReason::UdpBadCrc,
            DatagramFault::Endpoint => DropReason::UdpBadEndpoint,
            DatagramFault::Message => DropReason::UdpBadMessage,
        }
    }
}

/// Strangers' datagrams taken per second, and at once: two thousand new connections each second are
/// little work for the owner, even continuously.
pub(super) const STRANGERS: u32 = 10_000;
/// Strangers' datagrams of one source address: three others find room beside the busiest.
pub(super) const OF_A_SOURCE: u32 = STRANGERS / 4;
/// Datagrams of one connection taken per second. A connection has a few messages in its life, each
/// sent again at most twenty times a second for a short time.
pub(super) const OF_A_CONNECTION: u32 = 8;
/// Datagrams of one connection taken at once.
pub(super) const OF_A_CONNECTION_AT_ONCE: u32 = 32;
/// The number of budgets that source addresses share, by a keyed hash.
const SOURCES: usize = 256;

const ALL: Rate = Rate::per_second(STRANGERS, STRANGERS);
const SOURCE: Rate = Rate::per_second(OF_A_SOURCE, OF_A_SOURCE);
const CONNECTION: Rate = Rate::per_second(OF_A_CONNECTION, OF_A_CONNECTION_AT_ONCE);

/// The filter and the state of each budget; see [`Rate`].
pub(super) struct Admission {
    filter: Arc<dyn DatagramFilter>,
    strangers: u64,
    sources: Box<[u64; SOURCES]>,
    connections: Box<[u64]>,
    key: Keyed,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("filter", &self.filter).finish_non_exhaustive()
    }
}

impl Admission {
    pub(super) fn new(filter: Arc<dyn DatagramFilter>, key: [u8; 16]) -> Admission {
        Admission {
            strangers: 0,
            sources: Box::new([0; SOURCES]),
            connections: vec![0; filter.connections()].into(),
            filter,
            key: Keyed(key),
        }
    }

    /// Returns true if the datagram is about a connection, false if it is a stranger's.
    ///
    /// # Errors
    /// Returns the counter of the reason for which the stack drops the datagram.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        source: LinkAddr,
        packet: &[u8],
    ) -> Result<bool, DropReason> {
        match self.filter.classify(packet).map_err(DatagramFault::reason)? {
            DatagramClass::Known(n) if let Some(budget) = self.connections.get_mut(n) => {
                CONNECTION.allow(budget, now).then_some(true).ok_or(DropReason::UdpConnLimited)
            }
            _ => {
                // The remainder is below `SOURCES`.
                let n = usize::try_from(self.key.hash_one(source) % SOURCES as u64).unwrap_or(0);
                // A source beyond its own budget takes nothing from the common budget.
                if !SOURCE.allow(&mut self.sources[n], now) {
                    return Err(DropReason::UdpSourceLimited);
                }
                ALL.allow(&mut self.strangers, now).then_some(false).ok_or(DropReason::UdpLimited)
            }
        }
    }
}
