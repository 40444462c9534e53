//! What a received frame is, as far as it takes to know whose it is.

use super::{Kind, Spread};
use crate::wire::{EtherType, EthernetHeader, Ipv4Header, be16, ethernet, icmpv4, ipv4};

/// The worker of UDP, and the one that answers ARP requests where all workers see them.
const FIRST: u16 = 0;

/// Whose a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steer {
    /// The worker's that received it.
    Own,
    /// Another worker's of the port: its number among them.
    Other(u16),
    /// Every worker's of the port; each of them takes a copy.
    All,
}

impl Spread {
    /// Whose the frame is that begins with `head`: its first piece, in which all headers lie, or as
    /// much of it as one likes to show beyond them. For every frame that a worker receives from its
    /// queue, before its stack sees it; not again for those that other workers pass on.
    ///
    /// - TCP belongs to the worker that has, or would have, the connection.
    /// - An ICMP error belongs to the worker of the segment it quotes.
    /// - ARP concerns everyone: each stack has neighbors of its own, and an answer must reach
    ///   whoever asked. All learn, and only worker 0 answers, so that a question has one answer.
    /// - UDP belongs to worker 0.
    /// - The rest (echo requests, fragments, what is broken or unknown) stays where it is, and is
    ///   answered or counted and dropped there. So none of it costs a ring's room.
    ///
    /// A queue that is joined to one queue of another port, and to no other, is a link of its own:
    /// everything on it is the receiver's. Where the port spreads segments itself, they are.
    ///
    /// Nothing is verified here: whoever gets the frame does. What is not taken at its word where it
    /// counts is at worst a frame that another worker drops.
    #[inline(always)]
    pub fn steer(&self, head: &[u8]) -> Steer {
        match self.kind {
            Kind::Alone | Kind::Pairs { .. } => Steer::Own,
            Kind::ByPort(_) | Kind::BySoftware(_) => self.look(head).unwrap_or(Steer::Own),
        }
    }

    #[inline]
    fn look(&self, head: &[u8]) -> Option<Steer> {
        let eth = EthernetHeader::parse(head).ok()?;
        if eth.ethertype == EtherType::ARP {
            return Some(Steer::All);
        }
        if eth.ethertype != EtherType::IPV4 {
            return None;
        }
        let head = &head[ethernet::HEADER_LEN..];
        // Lengths beyond the frame are found out by whoever takes it.
        let ip = Ipv4Header::parse(head, usize::MAX).ok()?;
        if ip.fragment {
            return None;
        }
        let payload = head.get(ip.header_len..)?;
        match ip.protocol {
            ipv4::PROTO_TCP if self.tcp_is_spread() || eth.dst.is_group() => None,
            ipv4::PROTO_TCP => {
                let ports = payload.first_chunk::<4>()?;
                self.worker_of((ip.src, be16(ports, 0)), (ip.dst, be16(ports, 2)))
            }
            ipv4::PROTO_ICMP => {
                let q = icmpv4::quoted(payload)?;
                // It went out; what is received of the connection goes the other way.
                self.worker_of((q.dst, q.dst_port), (q.src, q.src_port))
            }
            ipv4::PROTO_UDP => Some(FIRST),
            _ => None,
        }
        .map(|worker| if worker == self.me { Steer::Own } else { Steer::Other(worker) })
    }

    /// Whether this worker answers ARP requests: where all workers of a port see them, one does.
    pub(crate) fn answers_arp(&self) -> bool {
        match self.kind {
            Kind::Alone | Kind::Pairs { .. } => true,
            Kind::ByPort(_) | Kind::BySoftware(_) => self.me == FIRST,
        }
    }

    /// Whether segments are received by the worker they are for as it is.
    fn tcp_is_spread(&self) -> bool {
        !matches!(self.kind, Kind::BySoftware(_))
    }
}
