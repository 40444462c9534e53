//! Which datagrams the port takes: a filter of its owner's, and then budgets.
//!
//! The filter comes first, so that a datagram has to be a whole message of the service before it
//! costs any budget: octets at random exhaust nothing. Then the budgets are apart. A message about a
//! connection is charged to that connection alone, a stranger's to the strangers, of whom one source
//! address has a quarter. So no number of strangers, whatever addresses they forge, keeps a message of
//! a connection out; nor does one connection keep out those of another.
//!
//! All state is made when the port is opened; a datagram then costs one call of the filter and a look
//! at one or two budgets.

use core::fmt;
use core::hash::BuildHasher;
use core::net::Ipv4Addr;
use std::sync::Arc;

use heddle_base::Instant;

use super::counters::DropReason;
use super::limit::Rate;
use super::neighbor::Keyed;

/// Tells messages about connections from those of strangers, and both from octets that are no message.
///
/// The worker calls it for each datagram to the port, through a pointer: datagrams are rare next to
/// segments, and the filter's own work, a CRC over the datagram, is many times what the call costs.
pub trait DatagramFilter: fmt::Debug + Send + Sync {
    /// What the IPv4 packet `packet`, of [`MAX_DATAGRAM`](super::udp::MAX_DATAGRAM) octets at most, is.
    /// The caller has verified lengths, addresses and checksums. It is to look at the octets in bounded
    /// time, without a lock and without allocation.
    ///
    /// # Errors
    /// Why it is dropped.
    fn classify(&self, packet: &[u8]) -> Result<DatagramClass, DatagramFault>;

    /// Connections that [`DatagramClass::Known`] can name: all below this.
    fn connections(&self) -> usize;
}

/// Takes everything as a stranger's.
impl DatagramFilter for () {
    fn classify(&self, _: &[u8]) -> Result<DatagramClass, DatagramFault> {
        Ok(DatagramClass::Stranger)
    }

    fn connections(&self) -> usize {
        0
    }
}

/// Whose budget a datagram is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramClass {
    /// That of a connection: the datagram names it as only its peer can, and comes from the peer's
    /// address.
    Known(usize),
    /// That of its source address, and of all strangers.
    Stranger,
}

/// What is wrong with a datagram, from the outside in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramFault {
    /// Its headers are not the service's, or its length cannot be.
    Packet,
    /// Its CRC is wrong.
    Crc,
    /// It is for another endpoint than the service's.
    Endpoint,
    /// It holds no message of the service.
    Message,
}

impl DatagramFault {
    pub(super) fn counter(self) -> DropReason {
        match self {
            DatagramFault::Packet => |c| &mut c.udp_bad_packet,
            DatagramFault::Crc => |c| &mut c.udp_bad_crc,
            DatagramFault::Endpoint => |c| &mut c.udp_bad_endpoint,
            DatagramFault::Message => |c| &mut c.udp_bad_message,
        }
    }
}

/// Datagrams of strangers taken a second, and at once: two thousand new connections each, over and over,
/// are little work for the owner.
pub(super) const STRANGERS: u32 = 10_000;
/// Of those, datagrams of one source address: three others find room beside the busiest.
pub(super) const OF_A_SOURCE: u32 = STRANGERS / 4;
/// Datagrams of one connection taken a second. It has a few messages in its life, each sent again
/// twenty times a second at most for a short time.
pub(super) const OF_A_CONNECTION: u32 = 8;
/// Datagrams of one connection taken at once.
pub(super) const OF_A_CONNECTION_AT_ONCE: u32 = 32;
/// Budgets that source addresses share, by a keyed hash.
const SOURCES: usize = 256;

const ALL: Rate = Rate::per_second(STRANGERS, STRANGERS);
const SOURCE: Rate = Rate::per_second(OF_A_SOURCE, OF_A_SOURCE);
const CONNECTION: Rate = Rate::per_second(OF_A_CONNECTION, OF_A_CONNECTION_AT_ONCE);

/// The filter, and what each has left; see [`Rate`].
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
    /// The counter of the reason why it is dropped.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        source: Ipv4Addr,
        packet: &[u8],
    ) -> Result<bool, DropReason> {
        match self.filter.classify(packet).map_err(DatagramFault::counter)? {
            DatagramClass::Known(n) if let Some(budget) = self.connections.get_mut(n) => {
                CONNECTION.allow(budget, now).then_some(true).ok_or(|c| &mut c.udp_conn_limited)
            }
            _ => {
                // The rest is below `SOURCES`.
                let n = usize::try_from(self.key.hash_one(source) % SOURCES as u64).unwrap_or(0);
                // A source beyond its own budget takes nothing from that of all.
                if !SOURCE.allow(&mut self.sources[n], now) {
                    return Err(|c| &mut c.udp_source_limited);
                }
                ALL.allow(&mut self.strangers, now).then_some(false).ok_or(|c| &mut c.udp_limited)
            }
        }
    }
}
