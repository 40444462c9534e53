//! Classifies a received frame as far as needed to know which worker it belongs to.

use core::net::SocketAddr;

use super::{Kind, Spread};
use crate::wire::icmpv4::Quoted;
use crate::wire::vlan::TAG_LEN;
use crate::wire::{EtherType, EthernetHeader, Ipv4Header, Ipv6Header, be16};
use crate::wire::{ethernet, icmpv4, icmpv6, ipv4, ipv6};

/// The worker of UDP, which also answers questions for our addresses where all workers see them.
const FIRST: u16 = 0;

/// The owner of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steer {
    /// The worker that received the frame.
    Own,
    /// Another worker of the port, by its number.
    Other(u16),
    /// Every worker of the port; each worker takes a copy.
    All,
}

impl Spread {
    /// Returns the owner of the frame that begins with `head`: its first piece, which holds all
    /// headers and any number of further bytes. A worker calls this function for every frame that
    /// it receives from its queue, before its stack sees the frame, but not again for frames that
    /// other workers pass on.
    ///
    /// A VLAN's tag changes nothing about the owner. The tag may stand in `head`, or the port has
    /// taken it out (`untagged`).
    ///
    /// - TCP belongs to the worker that has, or would have, the connection.
    /// - An ICMP error belongs to the worker of the segment that it quotes.
    /// - ARP and neighbor discovery concern all workers: each stack has neighbors of its own, and an
    ///   answer must reach the stack that asked. All learn, and only worker 0 answers, so that a
    ///   question has one answer.
    /// - UDP belongs to worker 0.
    /// - All other frames (echo requests, fragments, broken or unknown frames) stay with the worker
    ///   that received them, which answers them, or counts and drops them. Such frames therefore
    ///   take no room in a ring.
    ///
    /// A queue that is joined to exactly one queue of another port is a link of its own: every
    /// frame on it is the receiver's. Where the port spreads segments itself, segments are the
    /// receiver's too, over IPv4 and without a tag.
    ///
    /// This function verifies nothing: the worker that gets the frame does. A frame with false
    /// contents is at worst dropped by another worker.
    #[inline(always)]
    pub fn steer(&self, head: &[u8], untagged: bool) -> Steer {
        match self.kind {
            Kind::Alone | Kind::Pairs { .. } => Steer::Own,
            Kind::ByPort(_) | Kind::BySoftware(_) => {
                self.look(head, untagged).unwrap_or(Steer::Own)
            }
        }
    }

    #[inline]
    fn look(&self, head: &[u8], untagged: bool) -> Option<Steer> {
        let eth = EthernetHeader::parse(head).ok()?;
        let packet = &head[ethernet::HEADER_LEN..];
        if eth.ethertype == EtherType::VLAN && !untagged {
            let [_, _, a, b] = *packet.first_chunk::<TAG_LEN>()?;
            let ethertype = EtherType(u16::from_be_bytes([a, b]));
            return self.look_at(&EthernetHeader { ethertype, ..eth }, &packet[TAG_LEN..], true);
        }
        self.look_at(&eth, packet, untagged)
    }

    /// Does the work of [`Spread::steer`] for a frame with this header and packet. A VLAN's tag is,
    /// or was, between the two if the frame is `tagged`.
    #[inline(always)]
    fn look_at(&self, eth: &EthernetHeader, packet: &[u8], tagged: bool) -> Option<Steer> {
        match eth.ethertype {
            EtherType::ARP => Some(Steer::All),
            EtherType::IPV4 => self.look_ipv4(eth, packet, tagged),
            EtherType::IPV6 => self.look_ipv6(eth, packet),
            _ => None,
        }
    }

    #[inline]
    fn look_ipv4(&self, eth: &EthernetHeader, head: &[u8], tagged: bool) -> Option<Steer> {
        // The worker that takes the frame detects lengths beyond the frame.
        let ip = Ipv4Header::parse(head, usize::MAX).ok()?;
        if ip.fragment {
            return None;
        }
        let payload = head.get(ip.header_len..)?;
        match ip.protocol {
            // Not every port sees through a tag, so the workers look themselves.
            ipv4::PROTO_TCP if self.tcp_is_spread() && !tagged || eth.dst.is_group() => None,
            ipv4::PROTO_TCP => {
                let ports = payload.first_chunk::<4>()?;
                self.worker_of((ip.src, be16(ports, 0)), (ip.dst, be16(ports, 2)))
            }
            ipv4::PROTO_ICMP => self.worker_of_quoted(&icmpv4::quoted(payload)?),
            ipv4::PROTO_UDP => Some(FIRST),
            _ => None,
        }
        .map(|worker| self.to(worker))
    }

    fn look_ipv6(&self, eth: &EthernetHeader, head: &[u8]) -> Option<Steer> {
        let ip = Ipv6Header::parse(head, usize::MAX).ok()?;
        let payload = head.get(ipv6::HEADER_LEN..)?;
        match ip.next_header {
            ipv6::TCP if eth.dst.is_group() => None,
            // Not every port that spreads IPv4 spreads IPv6 as well, so the workers look themselves.
            ipv6::TCP => {
                let ports = payload.first_chunk::<4>()?;
                let src = SocketAddr::new(ip.src.into(), be16(ports, 0));
                self.worker_of_any(src, SocketAddr::new(ip.dst.into(), be16(ports, 2)))
            }
            ipv6::ICMP if icmpv6::DISCOVERY.contains(payload.first()?) => return Some(Steer::All),
            ipv6::ICMP => self.worker_of_quoted(&icmpv6::quoted(payload)?),
            ipv6::UDP => Some(FIRST),
            _ => None,
        }
        .map(|worker| self.to(worker))
    }

    /// Returns the worker of the connection whose segment an ICMP error quotes. We sent the segment;
    /// received segments of the connection go the other way.
    fn worker_of_quoted(&self, q: &Quoted) -> Option<u16> {
        self.worker_of_any(SocketAddr::new(q.dst, q.dst_port), SocketAddr::new(q.src, q.src_port))
    }

    fn to(&self, worker: u16) -> Steer {
        if worker == self.me { Steer::Own } else { Steer::Other(worker) }
    }

    /// Returns true if this worker answers ARP requests. Where all workers of a port see them,
    /// exactly one does.
    pub(crate) fn answers_arp(&self) -> bool {
        match self.kind {
            Kind::Alone | Kind::Pairs { .. } => true,
            Kind::ByPort(_) | Kind::BySoftware(_) => self.me == FIRST,
        }
    }

    /// Returns true if the port already delivers each segment to the worker that it is for.
    fn tcp_is_spread(&self) -> bool {
        !matches!(self.kind, Kind::BySoftware(_))
    }
}
