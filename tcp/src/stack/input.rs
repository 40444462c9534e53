//! From a received frame to its connection.
//!
//! The way of a segment of an established connection comes first and asks as little as it can: a
//! frame to our station address whose addresses and ports name a connection needs no look at
//! whether those addresses are sensible, for the connection would not be there otherwise.

use core::net::IpAddr;
use heddle_base::{Instant, Sum};

use super::Stack;
use super::counters::Drop;
use super::flow::FlowKey;
use super::frame::{FrameOutcome, FramePayload, RxChecksum, RxFrame};
use super::slab::Owner;
use crate::wire::{EtherType, EthernetHeader, Ipv4Header, Malformed, TcpHeader};
use crate::wire::{ethernet, ipv4, tcp};
use crate::{Flags, SackBlocks, SendQueue};

/// A TCP segment with the headers around it.
pub(super) struct Arrival {
    pub(super) ethernet: EthernetHeader,
    pub(super) ip: Ipv4Header,
    pub(super) tcp: TcpHeader,
}

impl Arrival {
    /// The connection it is for.
    pub(super) fn flow(&self) -> FlowKey {
        FlowKey::v4(self.ip.dst, self.tcp.dst_port, self.ip.src, self.tcp.src_port)
    }

    /// Where its payload lies in the frame.
    fn payload_off(&self) -> usize {
        ethernet::HEADER_LEN + self.ip.header_len + self.tcp.header_len
    }
}

impl<S: SendQueue + Default> Stack<S> {
    /// Takes a received frame. Called by the worker that owns the stack, for every frame.
    ///
    /// Bytes the answer tells of are as if they had not arrived until
    /// [`Stack::accept_payload`].
    pub fn handle_frame<F: RxFrame + ?Sized>(&mut self, now: Instant, frame: &F) -> FrameOutcome {
        self.counters.rx_frames += 1;
        match self.take(now, frame) {
            Ok(outcome) => outcome,
            Err(counter) => {
                *counter(&mut self.counters) += 1;
                FrameOutcome::Done
            }
        }
    }

    fn take<F: RxFrame + ?Sized>(&mut self, now: Instant, frame: &F) -> Result<FrameOutcome, Drop> {
        let head = frame.chunk_at(0);
        let ethernet = EthernetHeader::parse(head).map_err(|_| -> Drop {
            if frame.len() < ethernet::HEADER_LEN {
                |c| &mut c.rx_truncated
            } else {
                |c| &mut c.rx_split_header
            }
        })?;
        if ethernet.dst.0 != self.cfg.mac && !ethernet.dst.is_group() {
            return Err(|c| &mut c.rx_other_station);
        }
        match ethernet.ethertype {
            EtherType::IPV4 => self.take_ipv4(now, frame, head, ethernet),
            EtherType::ARP => self.handle_arp(now, &head[ethernet::HEADER_LEN..]),
            _ => Err(|c| &mut c.rx_unknown_ethertype),
        }
    }

    fn take_ipv4<F: RxFrame + ?Sized>(
        &mut self,
        now: Instant,
        frame: &F,
        head: &[u8],
        ethernet: EthernetHeader,
    ) -> Result<FrameOutcome, Drop> {
        let head = &head[ethernet::HEADER_LEN..];
        let ip =
            Ipv4Header::parse(head, frame.len() - ethernet::HEADER_LEN).map_err(|e| -> Drop {
                match e {
                    Malformed::Truncated => |c| &mut c.rx_truncated,
                    Malformed::Split => |c| &mut c.rx_split_header,
                    Malformed::Header | Malformed::Options => |c| &mut c.rx_bad_ip_header,
                }
            })?;
        let checksum = frame.checksum();
        match checksum {
            RxChecksum::Good => {}
            RxChecksum::Unknown if ip.checksum_valid(head) => {}
            RxChecksum::Unknown => return Err(|c| &mut c.rx_bad_ip_checksum),
            RxChecksum::Bad => return Err(|c| &mut c.rx_bad_port_checksum),
        }
        if ip.fragment {
            return Err(|c| &mut c.rx_fragments);
        }
        if ip.ttl == 0 {
            return Err(|c| &mut c.rx_ttl_zero);
        }
        match ip.protocol {
            ipv4::PROTO_TCP => {}
            ipv4::PROTO_ICMP => return self.take_icmp(now, frame, &ethernet, &ip),
            _ => return Err(|c| &mut c.rx_unknown_protocol),
        }

        let tcp_len = ip.total_len - ip.header_len;
        let tcp = TcpHeader::parse(&head[ip.header_len..], tcp_len).map_err(|e| -> Drop {
            match e {
                Malformed::Split => |c| &mut c.rx_split_header,
                Malformed::Options => |c| &mut c.rx_bad_tcp_options,
                Malformed::Truncated | Malformed::Header => |c| &mut c.rx_bad_tcp_header,
            }
        })?;
        if checksum == RxChecksum::Unknown && !tcp_checksum_valid(frame, &ip, tcp_len) {
            return Err(|c| &mut c.rx_bad_tcp_checksum);
        }
        let arrival = Arrival { ethernet, ip, tcp };
        if ethernet.dst.is_group() {
            return Err(|c| &mut c.rx_tcp_group);
        }
        match self.find(&arrival.flow()) {
            Some(index) => {
                let sack = if arrival.tcp.has_sack { read_sack(frame, &ip) } else { None };
                Ok(self.take_segment(now, index, &arrival, sack.as_ref()))
            }
            None => self.take_stranger(now, &arrival).map(|()| FrameOutcome::Done),
        }
    }

    /// A segment of a connection.
    fn take_segment(
        &mut self,
        now: Instant,
        index: u32,
        arrival: &Arrival,
        sack: Option<&SackBlocks>,
    ) -> FrameOutcome {
        self.counters.rx_segments += 1;
        let seg = &arrival.tcp.segment;
        let Some(e) = self.conns.get_mut(index) else { return FrameOutcome::Done };
        if seg.flags.has(Flags::SYN) && e.conn.may_be_replaced_by(seg) {
            self.replace(now, index, arrival);
            return FrameOutcome::Done;
        }
        let outcome = match sack {
            None => e.conn.handle_segment(now, seg),
            Some(sack) => e.conn.handle_selective(now, seg, sack),
        };
        self.settle(index);
        match self.conns.get(index) {
            Some(e) if e.owner == Owner::Held => FrameOutcome::Conn {
                conn: self.conns.id(index),
                acked: outcome.acked,
                payload: outcome.payload.map(|p| FramePayload {
                    pos: p.pos,
                    frame_off: arrival.payload_off() + p.skip as usize,
                    len: p.len,
                    in_order: p.in_order,
                }),
            },
            // What comes before the handshake is done, or after the owner let go, is not taken.
            _ => FrameOutcome::Done,
        }
    }

    /// A SYN for the addresses of a connection in TIME-WAIT that may take its place.
    fn replace(&mut self, now: Instant, index: u32, arrival: &Arrival) {
        let listening =
            self.listeners.find(IpAddr::V4(arrival.ip.dst), arrival.tcp.dst_port).is_some();
        if !listening {
            return;
        }
        self.counters.time_wait_reused += 1;
        if let Some(e) = self.conns.get_mut(index) {
            e.conn.abort();
        }
        self.settle(index);
        self.detach(index);
        if let Err(counter) = self.take_stranger(now, arrival) {
            *counter(&mut self.counters) += 1;
        }
    }
}

/// The SACK option of a segment that has one. Few have, and the others should not have to keep their
/// headers at hand for it.
#[cold]
#[inline(never)]
fn read_sack<F: RxFrame + ?Sized>(frame: &F, ip: &Ipv4Header) -> Option<SackBlocks> {
    Some(tcp::sack_blocks(frame.chunk_at(ethernet::HEADER_LEN + ip.header_len)))
}

fn tcp_checksum_valid<F: RxFrame + ?Sized>(frame: &F, ip: &Ipv4Header, tcp_len: usize) -> bool {
    let start = ethernet::HEADER_LEN + ip.header_len;
    let Ok(len) = u16::try_from(tcp_len) else { return false };
    let mut sum = ipv4::pseudo_header(ip.src, ip.dst, len);
    let mut done = 0;
    while done < tcp_len {
        let piece = frame.chunk_at(start + done);
        if piece.is_empty() {
            return false;
        }
        let n = piece.len().min(tcp_len - done);
        sum = sum.add_at(done, Sum::of(&piece[..n]));
        done += n;
    }
    sum.is_valid()
}
