//! What a stack is told at construction.

use core::time::Duration;

use heddle_base::Seed;

use super::addressing::{Addressing, Cidr};
use crate::{ConnConfig, Spread};

/// How many connections the hosts of one address may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerLimit {
    /// As many as there is room for.
    Unlimited,
    /// A share that leaves something to others, however many of them want all: of half-open
    /// connections half of the backlog, of all connections as many as are free beside (at least
    /// one), where half-open ones and those in TIME-WAIT count as free. Alone, an address thus gets
    /// half of [`max_conns`](StackConfig::max_conns).
    #[default]
    Share,
    /// So many.
    AtMost(usize),
}

/// What a stack is told at construction.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Hardware address of the port.
    pub mac: [u8; 6],
    /// Our addresses, and the ways to what is not beside us.
    pub net: Addressing,
    /// Octets of the largest IP datagram of the link, both ways.
    pub mtu: u16,
    /// Connections at a time, those in TIME-WAIT and those not yet released included.
    pub max_conns: usize,
    /// Neighbors known at a time.
    pub max_neighbors: usize,
    /// The backlog a listener has at least (unless it is 0). The SYNs of clients that start
    /// together come at once, and for each half-open connection evicted an honest client waits a
    /// second; a place costs nothing while nobody takes it.
    pub min_backlog: usize,
    /// How long after the end of a listener a SYN to its place is dropped and not refused with RST.
    /// A server that takes one connection and then listens anew (perftest's do) is away for a moment in
    /// which its client may ask; the client sends its SYN again. A host that speaks with
    /// [itself](Addressing::is_inside) gives every connection as long from its first SYN on: a client there is
    /// often a moment earlier than its server. Zero, as RFC 9293 section 3.10.7.1 has it, unless set.
    pub relisten: Duration,
    /// Half-open connections of one peer address at one listener. A SYN beyond is dropped.
    pub peer_half_open: PeerLimit,
    /// Connections of one peer address at all listeners together, half-open ones included, until the
    /// owner releases them. A SYN beyond is refused with RST.
    pub peer_conns: PeerLimit,
    /// Settings of every new connection. Its `mss` is cut to what `mtu` allows.
    pub conn: ConnConfig,
    /// Where everything a peer must not guess comes from.
    pub seed: Seed,
    /// TTL of what we send.
    pub ttl: u8,
    /// DSCP (0..=63) of what we send, unless set for the connection.
    pub dscp: u8,
    /// Which of the port's connections are this stack's.
    pub spread: Spread,
    /// Whether the port fills in TCP checksums.
    pub tx_tcp_csum: bool,
    /// Whether the port fills in IPv4 header checksums.
    pub tx_ip_csum: bool,
}

impl StackConfig {
    /// A port with one address, or none if no host can have that one, and defaults for the rest: no
    /// routes, MTU 1500, 1024 connections, checksums in software, the port's only worker.
    pub fn new(mac: [u8; 6], addr: Cidr, seed: Seed) -> StackConfig {
        let net = Addressing::new(vec![addr], Vec::new()).unwrap_or_default();
        StackConfig::of(mac, net, seed)
    }

    /// The same with these addresses and routes.
    pub fn of(mac: [u8; 6], net: Addressing, seed: Seed) -> StackConfig {
        StackConfig {
            mac,
            net,
            mtu: 1500,
            max_conns: 1024,
            max_neighbors: 1024,
            min_backlog: 2048,
            relisten: Duration::ZERO,
            peer_half_open: PeerLimit::Share,
            peer_conns: PeerLimit::Share,
            conn: ConnConfig::default(),
            seed,
            ttl: 64,
            dscp: 0,
            spread: Spread::alone(),
            tx_tcp_csum: false,
            tx_ip_csum: false,
        }
    }
}
