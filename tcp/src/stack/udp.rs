//! UDP (RFC 768) for one port: whole datagrams in and out, for a service that is asked rarely, such
//! as the connection manager of RoCEv2.
//!
//! Nothing is taken until [`Stack::bind_udp`]. What is taken waits in a queue of its own for
//! [`Stack::poll_datagram`]. So many a second are taken, and so many may wait; what comes beyond is
//! counted and dropped before it is copied, so that a flood costs TCP no more than other frames that
//! are dropped do.
//!
//! A received datagram teaches no neighbor, as a SYN does not: whoever forges source addresses would
//! fill the table. An answer finds the entry that its peer's own question for our address has made,
//! or waits until the next hop has said where it is. Few wait, of one next hop and in all.

use std::collections::VecDeque;

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use heddle_base::Instant;

use super::Stack;
use super::arp::plain_frame;
use super::control::Control;
use super::counters::DropReason;
use super::frame::{RxFrame, TxBody, TxFrame};
use super::limit::RateLimit;
use crate::SendQueue;
use crate::wire::{
    EtherType, EthernetHeader, Ipv4Header, MacAddr, Malformed, UdpHeader, ethernet, ipv4, udp,
};

/// A UDP datagram that came to the port that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RxDatagram {
    /// The peer; its port may be 0.
    pub remote: SocketAddr,
    /// Our address, and the port that is open.
    pub local: SocketAddr,
    /// The IPv4 datagram from its header to the end of the payload, as it came: who checks an
    /// invariant CRC needs the headers. Checksums have been verified.
    pub bytes: Vec<u8>,
    /// Where the payload lies in it.
    pub payload_at: usize,
}

impl RxDatagram {
    /// What UDP carries.
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.payload_at..).unwrap_or_default()
    }
}

/// A UDP datagram to send.
///
/// Its IPv4 header has no options, identification 0 and Don't Fragment (see [`Ipv4Header::emit`]),
/// and DSCP and TTL as configured; the UDP checksum is 0. Who puts an invariant CRC at the end of
/// the payload counts on that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxDatagram {
    /// One of our addresses, and the source port.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// What UDP carries: at most the MTU less 28 octets.
    pub payload: Vec<u8>,
}

/// The port, and what waits.
#[derive(Debug)]
pub(super) struct Udp {
    port: Option<u16>,
    received: VecDeque<RxDatagram>,
    limit: RateLimit,
    /// Frames whose next hop is being asked for, the oldest first: each is a user of that neighbor.
    waiting: VecDeque<(u32, TxFrame)>,
}

impl Default for Udp {
    fn default() -> Udp {
        Udp {
            port: None,
            received: VecDeque::new(),
            limit: RateLimit::per_second(PER_SECOND),
            waiting: VecDeque::new(),
        }
    }
}

/// Datagrams taken a second: two thousand connections of the InfiniBand CM, and little work.
pub(super) const PER_SECOND: u32 = 10_000;
/// Datagrams that wait to be taken by the owner.
pub(super) const MAX_RECEIVED: usize = 64;
/// Datagrams that wait for the address of a next hop: in all, and of one.
pub(super) const MAX_WAITING: usize = 64;
pub(super) const MAX_WAITING_EACH: usize = 8;

const HEADERS: usize = ipv4::HEADER_LEN + udp::HEADER_LEN;

impl<S: SendQueue + Default> Stack<S> {
    /// Takes UDP datagrams to `port` on all our addresses from now on, and to no other.
    pub fn bind_udp(&mut self, port: u16) {
        self.udp.port = Some(port);
    }

    /// Takes no UDP datagrams any more. Those taken are forgotten; those to be sent are sent.
    pub fn unbind_udp(&mut self) {
        self.udp.port = None;
        self.udp.received.clear();
    }

    /// The next datagram that came.
    pub fn poll_datagram(&mut self) -> Option<RxDatagram> {
        self.udp.received.pop_front()
    }

    /// Whether [`Stack::poll_datagram`] has something to give.
    #[inline]
    pub fn has_datagrams(&self) -> bool {
        !self.udp.received.is_empty()
    }

    /// Sends a datagram, once its next hop's address is known. UDP promises nothing: one that
    /// cannot be sent is counted and dropped.
    pub fn send_datagram(&mut self, now: Instant, datagram: &TxDatagram) {
        if let Err(counter) = self.try_send_datagram(now, datagram) {
            *counter(&mut self.counters) += 1;
        }
    }

    fn try_send_datagram(&mut self, now: Instant, d: &TxDatagram) -> Result<(), DropReason> {
        let refused: DropReason = |c| &mut c.tx_datagrams_refused;
        let full: DropReason = |c| &mut c.tx_datagrams_full;
        let (SocketAddr::V4(local), SocketAddr::V4(remote)) = (d.local, d.remote) else {
            return Err(refused);
        };
        if !self.cfg.net.is_ours(d.local.ip())
            || !self.cfg.net.is_peer(*remote.ip())
            || remote.port() == 0
            || d.payload.len() + HEADERS > usize::from(self.cfg.mtu)
        {
            return Err(refused);
        }
        let hop = self.cfg.net.route(d.remote.ip()).ok_or(refused)?;
        let (neighbor, ask) = self.neighbors.acquire(now, hop.next).ok_or(full)?;
        if ask {
            self.ask(hop.local, hop.next, MacAddr::BROADCAST);
        }
        let mac = self.neighbors.mac(neighbor);
        let frame = self.datagram_frame(
            mac.unwrap_or_default(),
            (*local.ip(), local.port()),
            (*remote.ip(), remote.port()),
            &d.payload,
        );
        if mac.is_some() {
            self.neighbors.release(neighbor);
            self.push_datagram(frame);
            return Ok(());
        }
        let waiting = &mut self.udp.waiting;
        if waiting.len() >= MAX_WAITING
            || waiting.iter().filter(|(n, _)| *n == neighbor).count() >= MAX_WAITING_EACH
        {
            self.neighbors.release(neighbor);
            return Err(full);
        }
        waiting.push_back((neighbor, frame));
        Ok(())
    }

    fn datagram_frame(
        &self,
        to: MacAddr,
        (src, src_port): (Ipv4Addr, u16),
        (dst, dst_port): (Ipv4Addr, u16),
        payload: &[u8],
    ) -> TxFrame {
        let mut eth = [0; ethernet::HEADER_LEN];
        EthernetHeader { dst: to, src: MacAddr(self.cfg.mac), ethertype: EtherType::IPV4 }
            .emit(&mut eth);
        let mut ip = [0; ipv4::HEADER_LEN];
        Ipv4Header {
            src,
            dst,
            protocol: ipv4::PROTO_UDP,
            ttl: self.cfg.ttl,
            traffic_class: self.cfg.dscp << 2,
            header_len: ipv4::HEADER_LEN,
            total_len: HEADERS + payload.len(),
            fragment: false,
        }
        .emit(&mut ip);
        let mut header = [0; udp::HEADER_LEN];
        UdpHeader { src_port, dst_port, len: udp::HEADER_LEN + payload.len() }.emit(&mut header);
        plain_frame(&[&eth, &ip], TxBody::Owned([&header, payload].concat()))
    }

    fn push_datagram(&mut self, frame: TxFrame) {
        if self.control.push(Control::Datagram, frame) {
            self.counters.tx_datagrams += 1;
        } else {
            self.counters.tx_datagrams_full += 1;
        }
    }

    /// The address of `neighbor` is known: what waited for it goes.
    pub(super) fn send_waiting(&mut self, neighbor: u32) {
        if self.udp.waiting.is_empty() {
            return;
        }
        let Some(mac) = self.neighbors.mac(neighbor) else { return };
        for mut frame in self.take_waiting(neighbor) {
            frame.header[..mac.0.len()].copy_from_slice(&mac.0);
            self.push_datagram(frame);
        }
    }

    /// `neighbor` does not answer: what waited for it is dropped.
    pub(super) fn drop_waiting(&mut self, neighbor: u32) {
        let dropped = self.take_waiting(neighbor).len();
        self.counters.tx_datagrams_unreachable += dropped as u64;
    }

    /// The frames that wait for a neighbor, which are its users no more.
    fn take_waiting(&mut self, neighbor: u32) -> Vec<TxFrame> {
        let all = core::mem::take(&mut self.udp.waiting);
        let (these, others): (VecDeque<_>, _) = all.into_iter().partition(|(n, _)| *n == neighbor);
        self.udp.waiting = others;
        for _ in &these {
            self.neighbors.release(neighbor);
        }
        these.into_iter().map(|(_, frame)| frame).collect()
    }

    #[inline(never)]
    pub(super) fn take_udp<F: RxFrame + ?Sized>(
        &mut self,
        now: Instant,
        frame: &F,
        eth: &EthernetHeader,
        ip: &Ipv4Header,
    ) -> Result<(), DropReason> {
        let Some(port) = self.udp.port else { return Err(|c| &mut c.rx_unknown_protocol) };
        let at = ethernet::HEADER_LEN + ip.header_len;
        let head = frame.chunk_at(0).get(at..).unwrap_or_default();
        let header =
            UdpHeader::parse(head, ip.total_len - ip.header_len).map_err(|e| -> DropReason {
                match e {
                    Malformed::Split => |c| &mut c.rx_split_header,
                    _ => |c| &mut c.udp_malformed,
                }
            })?;
        if header.dst_port != port {
            return Err(|c| &mut c.rx_unknown_protocol);
        }
        // What was sent to many, or by no single host, gets no answer.
        if eth.dst.is_group() || !self.cfg.net.is_ours(IpAddr::V4(ip.dst)) {
            return Err(|c| &mut c.rx_other_host);
        }
        if !self.cfg.net.is_peer(ip.src) || !eth.src.is_station() {
            return Err(|c| &mut c.rx_bad_source);
        }
        if ip.total_len > usize::from(self.cfg.mtu)
            || self.udp.received.len() >= MAX_RECEIVED
            || !self.udp.limit.allow(now)
        {
            return Err(|c| &mut c.udp_limited);
        }
        let mut bytes = vec![0; ip.header_len + header.len];
        frame.copy_at(ethernet::HEADER_LEN, &mut bytes);
        // The port may have verified it, or not know UDP: it is not asked.
        if !udp::checksum_valid(ip.src, ip.dst, &bytes[ip.header_len..]) {
            return Err(|c| &mut c.udp_malformed);
        }
        self.udp.received.push_back(RxDatagram {
            remote: (ip.src, header.src_port).into(),
            local: (ip.dst, port).into(),
            bytes,
            payload_at: ip.header_len + udp::HEADER_LEN,
        });
        self.counters.rx_datagrams += 1;
        Ok(())
    }
}
