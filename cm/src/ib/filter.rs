//! The workers' filter on RoCEv2's port: drops datagrams that are no messages, and recognizes the
//! messages of connections.
//!
//! The control plane gives each connection a communication id and writes it, with the peer's
//! address, into a table that workers read. A message that names such an id and comes from that
//! address can only come from the peer, or from a host between the two, because the id is 32 random
//! bits. So a worker can tell messages of connections from messages of strangers without reading
//! any other data of the control plane.
//!
//! ```text
//!   id ── low bits ──▶ bucket of 8 entries (a cache line): id 32 │ IPv4 address 32; 0 where free
//! ```
//!
//! An entry is one word, so a worker sees a whole entry or none. Only the control plane stores. An
//! id goes into the bucket that its low bits select and nowhere else; if that bucket is full
//! ([`CommIds::has_room`]), the control plane chooses another id. There are twice as many entries
//! as there can be connections, so some bucket has room.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use heddle_ib::CommId;
use heddle_ib::cm::named;
use heddle_ib::mad::MadError;
use heddle_ib::roce::{PacketError, UdPacket};
use heddle_tcp::{DatagramClass, DatagramFault, DatagramFilter};

/// Entries of a bucket.
const WAYS: usize = 8;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket([AtomicU64; WAYS]);

/// The communication ids in use, each with its peer's address.
#[derive(Debug)]
pub(crate) struct CommIds(Box<[Bucket]>);

impl CommIds {
    /// Makes a table with room for `conns` connections.
    pub(crate) fn new(conns: usize) -> CommIds {
        let buckets = (2 * conns).div_ceil(WAYS).next_power_of_two();
        CommIds((0..buckets).map(|_| Bucket::default()).collect())
    }

    /// Returns the bucket of an id, and its number.
    fn bucket(&self, id: CommId) -> (usize, &[AtomicU64; WAYS]) {
        // The ids are random, and the number of buckets is a power of two.
        let n = usize::try_from(id.0).unwrap_or(0) & (self.0.len() - 1);
        (n, &self.0[n].0)
    }

    /// Returns true if an entry for `id` is free.
    pub(crate) fn has_room(&self, id: CommId) -> bool {
        // Relaxed, here and below: the word is the whole message, and its load or store orders no
        // other memory. A worker sees an entry before the peer's answer comes: the message that
        // carries the id to the peer goes to the worker through a ring, after the entry was stored.
        self.bucket(id).1.iter().any(|e| e.load(Ordering::Relaxed) == 0)
    }

    /// Enters `id` for `peer`.
    pub(crate) fn insert(&self, id: CommId, peer: IpAddr) {
        if let Some(free) = self.bucket(id).1.iter().find(|e| e.load(Ordering::Relaxed) == 0) {
            free.store(entry(id, peer), Ordering::Relaxed);
        }
    }

    /// Removes `id`.
    pub(crate) fn remove(&self, id: CommId, peer: IpAddr) {
        if let Some(n) = self.find(id, peer) {
            self.0[n / WAYS].0[n % WAYS].store(0, Ordering::Relaxed);
        }
    }

    /// Returns the number of the entry for `id`, if it belongs to `peer`.
    fn find(&self, id: CommId, peer: IpAddr) -> Option<usize> {
        let (n, bucket) = self.bucket(id);
        let way = bucket.iter().position(|e| e.load(Ordering::Relaxed) == entry(id, peer))?;
        (id != CommId(0)).then_some(n * WAYS + way)
    }

    fn len(&self) -> usize {
        self.0.len() * WAYS
    }
}

/// Returns the word for a connection. It has room for half of what IPv6 addresses differ in, so
/// another host could find an address that fits as well; the id, which only the peer knows, tells
/// them apart.
fn entry(id: CommId, peer: IpAddr) -> u64 {
    let peer = match peer {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(ip) => {
            let [a, b, c, d] = [0, 4, 8, 12].map(|at| {
                let o = ip.octets();
                u32::from_be_bytes([o[at], o[at + 1], o[at + 2], o[at + 3]])
            });
            a ^ b.rotate_left(8) ^ c.rotate_left(16) ^ d
        }
    };
    u64::from(id.0) << 32 | u64::from(peer)
}

/// The filter of the workers on RoCEv2's port.
#[derive(Debug)]
pub(crate) struct Filter(pub(crate) Arc<CommIds>);

impl DatagramFilter for Filter {
    fn classify(&self, packet: &[u8]) -> Result<DatagramClass, DatagramFault> {
        let ud = UdPacket::parse_gsi(packet).map_err(|e| match e {
            PacketError::Icrc => DatagramFault::Crc,
            PacketError::DestQp(_) | PacketError::PKey(_) | PacketError::QKey(_) => {
                DatagramFault::Endpoint
            }
            _ => DatagramFault::Packet,
        })?;
        let name = match named(ud.payload) {
            Ok(name) => name,
            Err(MadError::Length(_) | MadError::Class(_)) => return Err(DatagramFault::Message),
            // A message of another version goes to the control plane, which answers that it does
            // not speak that version.
            Err(_) => None,
        };
        let Some(id) = name else { return Ok(DatagramClass::Stranger) };
        Ok(self.0.find(id, ud.repr.src).map_or(DatagramClass::Stranger, DatagramClass::Known))
    }

    fn connections(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const A6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4));
    const B6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 4, 3));

    #[test]
    fn test_comm_id_is_found_for_its_peer_only_until_it_is_removed() {
        for (a, b) in [(A, B), (A6, B6), (A, B6), (A6, B)] {
            let ids = CommIds::new(4);
            assert_eq!(ids.find(CommId(7), a), None);
            ids.insert(CommId(7), a);
            assert!(ids.find(CommId(7), a).is_some_and(|n| n < ids.len()));
            assert_eq!((ids.find(CommId(7), b), ids.find(CommId(8), a)), (None, None));
            ids.remove(CommId(7), b);
            assert!(ids.find(CommId(7), a).is_some(), "another's word takes nothing back");
            ids.remove(CommId(7), a);
            assert_eq!(ids.find(CommId(7), a), None);
        }
    }

    /// Messages of peers that have not heard from us name the id zero.
    #[test]
    fn test_comm_id_of_zero_is_never_found() {
        let ids = CommIds::new(4);
        assert_eq!(ids.find(CommId(0), Ipv4Addr::UNSPECIFIED.into()), None);
        assert_eq!(ids.find(CommId(0), A), None);
    }

    /// As many connections as the table allows find ids, however the random numbers fall.
    #[test]
    fn test_every_connection_finds_a_bucket_with_room() {
        for conns in [0, 1, 5, 4096] {
            let ids = CommIds::new(conns);
            let mut random = heddle_base::Random::new(&heddle_base::Seed::from_u64(conns as u64));
            let given: Vec<CommId> = (0..conns)
                .map(|_| {
                    let mut tries = (0..1000).map(|_| CommId(random.next_u32() | 1 << 31));
                    let id = tries.find(|id| ids.has_room(*id)).expect("a bucket has room");
                    ids.insert(id, A);
                    id
                })
                .collect();
            assert!(given.iter().all(|id| ids.find(*id, A).is_some()), "{conns}");
            given.iter().for_each(|id| ids.remove(*id, A));
            assert!(ids.0.iter().flat_map(|b| &b.0).all(|e| e.load(Ordering::Relaxed) == 0));
        }
    }
}
