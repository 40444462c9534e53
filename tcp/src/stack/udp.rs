//! UDP (RFC 768) for one port: whole datagrams in and out, for a service that receives few
//! requests, such as the connection manager of RoCEv2.
//!
//! The stack takes no datagram until [`Stack::bind_udp`]. From then on the owner's filter and the
//! budgets of `admit` decide which datagrams it takes. Taken datagrams wait in a queue of their own
//! for [`Stack::poll_datagram`]. The stack makes this queue when the port is opened: a datagram
//! causes no allocation, whether the stack takes or drops it.
//!
//! Like a SYN, a received datagram teaches no neighbor: a host that forges source addresses would
//! fill the table. An answer finds the entry that its peer's own question for our address has made,
//! or waits until the next hop has answered. Few answers may wait, both for one next hop and in
//! all. Answers to strangers have half of that room, and a queue of their own to the port. Where
//! these answers have no room the stack asks for no next hop. Answers that strangers cause
//! therefore hold up no datagram to a connection's peer.

use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use heddle_base::Instant;

use super::Stack;
use super::admit::{Admission, DatagramFilter};
use super::arp::plain_frame;
use super::control::Control;
use super::counters::DropReason;
use super::frame::{RxFrame, TxBody, TxFrame};
use super::input::Layer2;
use super::link::{News, Sought};
use super::neighbor::LinkAddr;
use super::share::Kind;
use crate::SendQueue;
use crate::wire::{
    EtherType, EthernetHeader, Ipv4Header, Ipv6Header, MacAddr, Malformed, UdpHeader, Vid,
    ethernet, ipv4, ipv6, udp,
};

/// A UDP datagram that came to the open port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RxDatagram {
    /// The peer's address and port. The port may be 0.
    pub remote: SocketAddr,
    /// Our address, and the open port.
    pub local: SocketAddr,
    /// The IP packet from its header to the end of the payload, as it came: a check of an
    /// invariant CRC needs the headers. The stack has verified the checksums.
    pub bytes: ArrayVec<u8, MAX_DATAGRAM>,
    /// Offset of the payload in `bytes`.
    pub payload_at: usize,
    /// True if the datagram is about a connection, as the filter says; false if it is a stranger's.
    pub known: bool,
}

impl RxDatagram {
    /// Returns the payload of the UDP datagram.
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.payload_at..).unwrap_or_default()
    }
}

/// A UDP datagram to send.
///
/// An IPv4 header has no options, identification 0 and Don't Fragment (see [`Ipv4Header::emit`]), an
/// IPv6 header flow label 0; DSCP and TTL are as configured. The UDP checksum is 0. A sender that
/// puts an invariant CRC at the end of the payload relies on these values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxDatagram {
    /// One of our addresses, and the source port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// UDP payload: at most the MTU less 28 bytes, over IPv6 less 48.
    pub payload: Vec<u8>,
    /// True if nothing proves that the destination host exists. Answers to such hosts have a
    /// limited room, so that other datagrams keep theirs.
    pub to_stranger: bool,
}

/// The open port, and the datagrams that wait.
#[derive(Debug, Default)]
pub(super) struct Udp {
    open: Option<Open>,
    received: VecDeque<RxDatagram>,
    /// Frames whose next hop the stack is asking for, the oldest first.
    waiting: VecDeque<Waiting>,
    /// News about the links, for the owner.
    pub(super) news: News,
    /// The spare routers that are asked for.
    pub(super) sought: Vec<Sought>,
}

#[derive(Debug)]
struct Open {
    port: u16,
    admission: Admission,
}

/// A frame whose next hop the stack is asking for.
#[derive(Debug)]
struct Waiting {
    /// The neighbor of the next hop. The frame counts as one of its users.
    neighbor: u32,
    kind: Control,
    frame: TxFrame,
}

/// Bytes of the longest IP packet that the stack takes. A management datagram of InfiniBand has 308
/// bytes over IPv4, and 328 over IPv6.
pub const MAX_DATAGRAM: usize = 340;
/// The most datagrams that wait for the owner. The stack takes strangers' datagrams while fewer
/// than half of these places are taken.
pub(super) const MAX_RECEIVED: usize = 64;
/// The most datagrams that wait for the address of a next hop: in all, of which strangers' may be
/// half, and for one next hop.
pub(super) const MAX_WAITING: usize = 64;
pub(super) const MAX_WAITING_EACH: usize = 8;

impl<S: SendQueue + Default> Stack<S> {
    /// Takes UDP datagrams to `port` on all our addresses from now on, except for link-local ones of
    /// VLANs, and to no other port, as far as `filter` and the budgets allow.
    pub fn bind_udp(&mut self, port: u16, filter: Arc<dyn DatagramFilter>) {
        self.udp.received.reserve_exact(MAX_RECEIVED);
        self.udp.open = Some(Open { port, admission: Admission::new(filter, self.ids.peer) });
    }

    /// Closes the UDP port. The stack forgets received datagrams that wait, and still sends
    /// datagrams that wait to be sent.
    pub fn unbind_udp(&mut self) {
        self.udp.open = None;
        self.udp.received.clear();
    }

    /// Returns the next datagram received.
    pub fn poll_datagram(&mut self) -> Option<RxDatagram> {
        self.udp.received.pop_front()
    }

    /// Returns true if [`Stack::poll_datagram`] has a datagram to return.
    #[inline]
    pub fn has_datagrams(&self) -> bool {
        !self.udp.received.is_empty()
    }

    /// Sends a datagram once its next hop's address is known. UDP promises nothing: the stack
    /// counts and drops a datagram that it cannot send.
    pub fn send_datagram(&mut self, now: Instant, datagram: &TxDatagram) {
        if let Err(reason) = self.try_send_datagram(now, datagram) {
            self.counters.count_drop(reason);
        }
    }

    fn try_send_datagram(&mut self, now: Instant, d: &TxDatagram) -> Result<(), DropReason> {
        let refused = DropReason::TxDatagramsRefused;
        let full = DropReason::TxDatagramsFull;
        let (local, remote) = (d.local, d.remote);
        let ip_len = if remote.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        if local.is_ipv4() != remote.is_ipv4()
            || remote.port() == 0
            || d.payload.len() + ip_len + udp::HEADER_LEN > usize::from(self.cfg.mtu)
        {
            return Err(refused);
        }
        let hop = self.cfg.net.way(Some(local.ip()), remote).map_err(|_| refused)?;
        if !self.cfg.net.on(hop.vid).is_peer(remote.ip()) {
            return Err(refused);
        }
        let next = LinkAddr::new(hop.vid, hop.next);
        let kind = if d.to_stranger { Control::Stranger } else { Control::Datagram };
        if let Some(neighbor) = self.neighbors.acquire_known(next) {
            let mac = self.neighbors.mac(neighbor).unwrap_or_default();
            self.neighbors.release(neighbor);
            let frame = self.datagram_frame(mac, hop.vid, d);
            self.push_datagram(kind, frame);
            return Ok(());
        }
        // Check before asking for the next hop: the table has room for a limited number of
        // questions, which connections need as well.
        let waiting = &self.udp.waiting;
        let of_kind = waiting.iter().filter(|w| w.kind == kind).count();
        let most = if d.to_stranger { MAX_WAITING / 2 } else { MAX_WAITING };
        if waiting.len() >= MAX_WAITING || of_kind >= most {
            return Err(full);
        }
        let (neighbor, ask) = self.neighbors.acquire(now, next).ok_or(full)?;
        if ask {
            self.ask(hop.local, next, MacAddr::BROADCAST);
        }
        let its = |w: &&Waiting| w.neighbor == neighbor && w.kind == kind;
        if self.udp.waiting.iter().filter(its).count() >= MAX_WAITING_EACH {
            self.neighbors.release(neighbor);
            return Err(full);
        }
        let frame = self.datagram_frame(MacAddr::default(), hop.vid, d);
        self.udp.waiting.push_back(Waiting { neighbor, kind, frame });
        Ok(())
    }

    fn datagram_frame(&self, to: MacAddr, vid: Vid, d: &TxDatagram) -> TxFrame {
        let (mac, tag) = (MacAddr(self.cfg.mac), self.cfg.net.tag(vid, self.cfg.dscp));
        let len = udp::HEADER_LEN + d.payload.len();
        let mut header = [0; udp::HEADER_LEN];
        UdpHeader { src_port: d.local.port(), dst_port: d.remote.port(), len }.emit(&mut header);
        let body = TxBody::Owned([&header, &d.payload[..]].concat());
        let (ttl, class) = (self.cfg.ttl, self.cfg.dscp << 2);
        let mut eth = [0; ethernet::HEADER_LEN];
        if let (IpAddr::V6(src), IpAddr::V6(dst)) = (d.local.ip(), d.remote.ip()) {
            EthernetHeader { dst: to, src: mac, ethertype: EtherType::IPV6 }.emit(&mut eth);
            let mut ip = [0; ipv6::HEADER_LEN];
            Ipv6Header {
                src,
                dst,
                next_header: ipv6::UDP,
                hop_limit: ttl,
                traffic_class: class,
                flow_label: 0,
                payload_len: len,
            }
            .emit(&mut ip);
            return plain_frame(&[&eth, &ip], body, tag);
        }
        let v4 = |ip| if let IpAddr::V4(ip) = ip { ip } else { Ipv4Addr::UNSPECIFIED };
        EthernetHeader { dst: to, src: mac, ethertype: EtherType::IPV4 }.emit(&mut eth);
        let mut ip = [0; ipv4::HEADER_LEN];
        Ipv4Header {
            src: v4(d.local.ip()),
            dst: v4(d.remote.ip()),
            protocol: ipv4::PROTO_UDP,
            ttl,
            traffic_class: class,
            header_len: ipv4::HEADER_LEN,
            total_len: ipv4::HEADER_LEN + len,
            fragment: false,
        }
        .emit(&mut ip);
        plain_frame(&[&eth, &ip], body, tag)
    }

    fn push_datagram(&mut self, kind: Control, frame: TxFrame) {
        if self.control.push(kind, frame) {
            self.counters.tx_datagrams += 1;
        } else {
            self.counters.tx_datagrams_full += 1;
        }
    }

    /// Sends the datagrams that waited for `neighbor`, whose address is known now.
    pub(super) fn send_waiting(&mut self, neighbor: u32) {
        if self.udp.waiting.is_empty() {
            return;
        }
        let Some(mac) = self.neighbors.mac(neighbor) else { return };
        for Waiting { kind, mut frame, .. } in self.take_waiting(neighbor) {
            frame.header[..mac.0.len()].copy_from_slice(&mac.0);
            self.push_datagram(kind, frame);
        }
    }

    /// Drops the datagrams that waited for `neighbor`, which does not answer.
    pub(super) fn drop_waiting(&mut self, neighbor: u32) {
        let dropped = self.take_waiting(neighbor).len();
        self.counters.tx_datagrams_unreachable += dropped as u64;
    }

    /// Removes and returns the frames that wait for a neighbor. These frames no longer count as
    /// users of the neighbor.
    fn take_waiting(&mut self, neighbor: u32) -> VecDeque<Waiting> {
        let all = core::mem::take(&mut self.udp.waiting);
        let (these, others) = all.into_iter().partition(|w| w.neighbor == neighbor);
        self.udp.waiting = others;
        for _ in &these {
            self.neighbors.release(neighbor);
        }
        these
    }

    /// Takes a UDP datagram of `len` bytes from `src` to `dst`, whose header follows an IP header of
    /// `ip_len` bytes.
    #[inline(never)]
    pub(super) fn take_udp<F: RxFrame + ?Sized>(
        &mut self,
        now: Instant,
        frame: &F,
        eth: &Layer2,
        (src, dst): (IpAddr, IpAddr),
        (ip_len, len): (usize, usize),
    ) -> Result<(), DropReason> {
        let Some(port) = self.udp.open.as_ref().map(|open| open.port) else {
            return Err(DropReason::RxUnknownProtocol);
        };
        let head = frame.chunk_at(0).get(ethernet::HEADER_LEN + ip_len..).unwrap_or_default();
        let header = UdpHeader::parse(head, len).map_err(|e| match e {
            Malformed::Split => DropReason::RxSplitHeader,
            _ => DropReason::UdpMalformed,
        })?;
        if header.dst_port != port {
            return Err(DropReason::RxUnknownProtocol);
        }
        self.charge(now, eth.vid, Kind::Datagram)?;
        let Some(open) = &mut self.udp.open else { return Ok(()) };
        // A datagram sent to many hosts, or from no single host, gets no answer.
        let net = self.cfg.net.on(eth.vid);
        // The owner knows the link of a datagram by our address, and a VLAN's link-local address may
        // be ours on other links too.
        let link_local = matches!(dst, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let unclear = !eth.vid.is_none() && link_local;
        if eth.dst.is_group() || unclear || !net.is_ours(dst) {
            return Err(DropReason::RxOtherHost);
        }
        if !net.is_peer(src) || !eth.src.is_station() {
            return Err(DropReason::RxBadSource);
        }
        let mut bytes = [0; MAX_DATAGRAM];
        let Some(bytes) = bytes.get_mut(..ip_len + header.len) else {
            return Err(DropReason::UdpBadPacket);
        };
        frame.copy_at(ethernet::HEADER_LEN, bytes);
        // The port may have verified the checksum, or may not support UDP. The stack does not ask
        // and verifies the checksum itself.
        if !udp::checksum_valid(src, dst, &bytes[ip_len..]) {
            return Err(DropReason::UdpMalformed);
        }
        let known = open.admission.admit(now, self.cfg.net.site_on(eth.vid, src), bytes)?;
        let room = if known { MAX_RECEIVED } else { MAX_RECEIVED / 2 };
        if self.udp.received.len() >= room {
            return Err(DropReason::UdpFull);
        }
        self.udp.received.push_back(RxDatagram {
            remote: (src, header.src_port).into(),
            local: (dst, port).into(),
            bytes: bytes.iter().copied().collect(),
            payload_at: ip_len + udp::HEADER_LEN,
            known,
        });
        self.counters.rx_datagrams += 1;
        Ok(())
    }
}
