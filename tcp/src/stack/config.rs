//! The configuration of a stack.

use core::time::Duration;
use std::borrow::Cow;

use heddle_base::Seed;
use heddle_types::TcpTerms;

use super::addressing::{Addressing, Cidr};
use super::flow::FlowKey;
use crate::wire::Vid;
use crate::{ConnConfig, Spread};

/// The default of [`StackConfig::recv_window_budget`]: a host has half of it, the bytes of 5 Gb/s with
/// round trips of 50 ms.
pub const RECV_WINDOW_BUDGET: u64 = 64 << 20;

/// The limit on the connections of the hosts of one address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerLimit {
    /// No limit except the room of the stack.
    Unlimited,
    /// A share that leaves room for others, however many peers want all. For half-open connections
    /// the share is half of the backlog. For all connections it is as many as remain free (at least
    /// one), where connections in TIME-WAIT count as free. A single
    /// address thus gets half of [`max_conns`](StackConfig::max_conns).
    #[default]
    Share,
    /// A fixed number.
    AtMost(usize),
}

/// When the stack answers a SYN with a cookie (RFC 4987 section 3.6), for which it keeps nothing,
/// instead of an entry among the half-open connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynCookies {
    /// Where the listener, the stack or the peer has as many half-open connections as it may have.
    #[default]
    Auto,
    /// Never: a SYN takes the place of the listener's oldest half-open connection, and a SYN beyond
    /// the limit of its peer is dropped.
    Off,
    /// Always. A SYN that takes the place of a connection in TIME-WAIT gets an entry all the same,
    /// because its answer has to be numbered beyond that connection.
    Always,
}

impl SynCookies {
    /// The names in settings.
    pub const NAMES: [(&str, SynCookies); 3] =
        [("auto", SynCookies::Auto), ("off", SynCookies::Off), ("always", SynCookies::Always)];
}

/// The values that a stack gets at construction.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Hardware address of the port.
    pub mac: [u8; 6],
    /// Our addresses, and the routes to hosts on no link of ours.
    pub net: Addressing,
    /// Bytes of the largest IP datagram of the link, both ways.
    pub mtu: u16,
    /// The most connections at a time, including connections in TIME-WAIT and connections not yet
    /// released.
    pub max_conns: usize,
    /// The most neighbors known at a time.
    pub max_neighbors: usize,
    /// The smallest backlog of a listener (unless its backlog is 0). The SYNs of clients that start
    /// together come at once, and for each half-open connection evicted an honest client waits a
    /// second. A free place costs nothing.
    pub min_backlog: usize,
    /// How long after the end of a listener the stack drops a SYN to its place instead of refusing
    /// the SYN with RST. A server that takes one connection and then listens again (perftest's
    /// servers do) is absent for a moment in which its client may ask; the client sends its SYN
    /// again. A host that speaks with [itself](Addressing::is_inside) also grants every connection
    /// this time from its first SYN on, because a client there is often a moment earlier than its
    /// server. The default is zero, as RFC 9293 section 3.10.7.1 demands.
    pub relisten: Duration,
    /// The most half-open connections of one peer address at one listener. The stack answers a
    /// further SYN with a cookie, or drops it.
    pub peer_half_open: PeerLimit,
    /// The most connections of one peer address at all listeners together, including half-open
    /// connections, until the owner releases them. The stack refuses a further SYN with RST, and
    /// also the end of a handshake by a cookie.
    pub peer_conns: PeerLimit,
    /// When the stack answers a SYN with a cookie.
    pub syn_cookies: SynCookies,
    /// Bytes by which the receive windows of all connections together may grow beyond
    /// [`ConnConfig::recv_window`]. A host gets as many of them as are left besides.
    pub recv_window_budget: u64,
    /// Settings of every new connection. The stack lowers `mss` to the size that `mtu` allows.
    pub conn: ConnConfig,
    /// The source of every number that a peer must not guess.
    pub seed: Seed,
    /// TTL of the datagrams that we send.
    pub ttl: u8,
    /// DSCP (0..=63) of the datagrams that we send, unless set for the connection.
    pub dscp: u8,
    /// True if the stack reports what routers of the link tell ([`LinkNews`](crate::LinkNews)); false
    /// to drop it.
    pub hears_routers: bool,
    /// The rule that selects this stack's connections among the port's.
    pub spread: Spread,
    /// True if the port fills in TCP checksums.
    pub tx_tcp_csum: bool,
    /// True if the port fills in IPv4 header checksums.
    pub tx_ip_csum: bool,
}

impl StackConfig {
    /// Returns the configuration of a port with one address, or none if no host can have that
    /// address, and defaults for the rest: no routes, MTU 1500, 1024 connections, checksums in
    /// software, the port's only worker.
    pub fn new(mac: [u8; 6], addr: Cidr, seed: Seed) -> StackConfig {
        let net = Addressing::new(vec![addr], Vec::new()).unwrap_or_default();
        StackConfig::of(mac, net, seed)
    }

    /// Returns the same configuration with these addresses and routes.
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
            syn_cookies: SynCookies::Auto,
            recv_window_budget: RECV_WINDOW_BUDGET,
            conn: ConnConfig::default(),
            seed,
            ttl: 64,
            dscp: 0,
            hears_routers: false,
            spread: Spread::alone(),
            tx_tcp_csum: false,
            tx_ip_csum: false,
        }
    }

    /// Returns the settings of a connection, with those that `tcp` names. Most connections have those
    /// of the configuration itself, which are not copied.
    pub(super) fn settings(&self, flow: &FlowKey, tcp: TcpTerms) -> Cow<'_, ConnConfig> {
        match (flow.is_ipv6(), tcp == TcpTerms::default()) {
            (true, true) => Cow::Owned(self.over_ipv6(flow.vid())),
            (true, false) => Cow::Owned(self.over_ipv6(flow.vid()).with_terms(tcp)),
            (false, true) => Cow::Borrowed(&self.conn),
            (false, false) => Cow::Owned(self.conn.with_terms(tcp)),
        }
    }

    /// Returns the settings of a connection over IPv6, whose header takes 20 bytes more, and whose
    /// peers take segments of 1,220 bytes if they say nothing (RFC 9293 section 3.7.1).
    pub(super) fn over_ipv6(&self, vid: Vid) -> ConnConfig {
        let mtu = self.net.on(vid).ipv6_mtu().map_or(self.mtu, |mtu| mtu.min(self.mtu));
        let mss = self.conn.mss.min(mtu.saturating_sub(60)).max(1);
        // Copied as a whole: field by field takes a hundred instructions.
        let mut conn = self.conn;
        (conn.mss, conn.default_peer_mss) = (mss, 1220);
        conn
    }
}
