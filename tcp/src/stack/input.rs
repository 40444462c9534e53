//! From a received frame to its connection.
//!
//! The path of a segment of an established connection comes first and checks as little as possible.
//! For a frame to our station address whose addresses and ports name a connection, the stack need
//! not check whether these addresses are sensible: otherwise the connection would not exist. Frames
//! of the usual shape (`plain`) come before the others, which the stack parses field by field.

use core::net::IpAddr;
use heddle_base::Instant;

use super::Stack;
use super::counters::DropReason;
use super::flow::FlowKey;
use super::frame::{FrameOutcome, FramePayload, Run, RxChecksum, RxFrame};
use super::plain::{self, Checksums, Plain};
use super::slab::Owner;
use crate::wire::{EtherType, EthernetHeader, Ipv4Header, Malformed, TcpHeader};
use crate::wire::{ethernet, ipv4, tcp};
use crate::{Flags, SackBlocks, Segment, SegmentOutcome, SendQueue};
use heddle_types::ConnId;

/// A TCP segment with the headers around it.
pub(super) struct Arrival {
    pub(super) ethernet: EthernetHeader,
    pub(super) ip: Ipv4Header,
    pub(super) tcp: TcpHeader,
}

impl Arrival {
    /// Returns the key of the connection that the segment is for.
    pub(super) fn flow(&self) -> FlowKey {
        FlowKey::v4(self.ip.dst, self.tcp.dst_port, self.ip.src, self.tcp.src_port)
    }
}

impl<S: SendQueue + Default> Stack<S> {
    /// Takes a received frame, as [`Stack::handle_frames`] takes the first of several.
    #[inline]
    pub fn handle_frame<F: RxFrame>(&mut self, now: Instant, frame: F) -> FrameOutcome {
        self.handle_frames(now, &mut [Some(frame)]).outcome
    }

    /// Takes the first of the received frames, and with it the frames that continue it: segments
    /// in order of one connection that differ in nothing but their place in the stream. The
    /// connection handles such a run as one segment. The worker that owns the stack calls this
    /// function until it has taken every frame; there must be one.
    ///
    /// A frame keeps what the stack learns about its payload ([`RxFrame::sum_segment`]). The stack
    /// treats the bytes that the outcome reports as if they had not arrived, until
    /// [`Stack::accept_payload`].
    #[inline]
    pub fn handle_frames<F: RxFrame>(&mut self, now: Instant, frames: &mut [Option<F>]) -> Run {
        self.counters.rx_frames += 1;
        if let Some(run) = self.take_plain(now, frames) {
            self.ahead.pass(run.frames);
            return run;
        }
        let outcome = match frames.first_mut() {
            Some(Some(frame)) => self.take_other(now, frame),
            _ => FrameOutcome::Done,
        };
        self.ahead.pass(1);
        Run { frames: 1, last: outcome.payload_len(), outcome }
    }

    /// Takes a segment of the usual shape and those that continue it. Returns `None`, and does
    /// nothing, when the frame has another shape, belongs to no connection, or has a wrong
    /// checksum.
    #[inline(always)]
    fn take_plain<F: RxFrame>(&mut self, now: Instant, frames: &mut [Option<F>]) -> Option<Run> {
        let (frame, later) = frames.split_first_mut()?;
        let frame = frame.as_mut()?;
        let plain = Plain::of(frame.chunk_at(0), frame.len(), self.station)?;
        let flow = plain.flow();
        let index = self.find(&flow)?;
        let mut segment = plain.segment();
        let sums = plain.checksums();
        if !is_right(frame, sums) {
            return None;
        }
        let (conn, e) = self.conns.named_mut(index)?;
        if e.owner != Owner::Held {
            return None;
        }
        self.counters.rx_segments += 1;
        let Some(advance) = e.conn.predict(&segment) else {
            let outcome = self.take_unexpected(now, index, &segment);
            return Some(Run { frames: 1, last: outcome.payload_len(), outcome });
        };
        let mut run = Run { frames: 1, last: segment.len, outcome: FrameOutcome::Done };
        let len = segment.len;
        if len > 0 && !later.is_empty() {
            let room = e.conn.receive_room();
            for frame in later {
                let Some(frame) = frame.as_mut() else { break };
                let Some(next) = Plain::of(frame.chunk_at(0), frame.len(), self.station) else {
                    break;
                };
                let Some(n) = next.continues(&flow, &segment, len) else { break };
                let sums = next.checksums();
                if segment.len + n > room || !is_right(frame, sums) {
                    break;
                }
                segment.len += n;
                (run.frames, run.last) = (run.frames + 1, n);
                if n < len {
                    break;
                }
            }
            self.counters.rx_frames += u64::from(run.frames - 1);
            self.counters.rx_segments += u64::from(run.frames - 1);
            self.counters.rx_merged += u64::from(run.frames - 1);
        }
        let mut outcome = e.conn.handle_predicted(now, &segment, advance);
        if let Some(payload) = &mut outcome.payload {
            payload.len = len;
        }
        self.defer_update(index);
        run.outcome = outcome.of(conn, plain::LEN);
        Some(run)
    }

    /// Continues with a frame of the usual shape whose segment is not the expected one.
    #[inline(never)]
    fn take_unexpected(&mut self, now: Instant, index: u32, segment: &Segment) -> FrameOutcome {
        let mut out = FrameOutcome::Done;
        if let Some(e) = self.conns.get_mut(index) {
            let outcome = e.conn.handle_segment(now, segment);
            self.after_segment(now, index, outcome, plain::LEN, &mut out);
        }
        out
    }

    /// Takes a frame of any shape.
    #[inline(never)]
    fn take_other<F: RxFrame>(&mut self, now: Instant, frame: &mut F) -> FrameOutcome {
        let mut outcome = FrameOutcome::Done;
        if let Err(reason) = self.take(now, frame, &mut outcome) {
            self.counters.count_drop(reason);
        }
        outcome
    }

    #[inline(always)]
    fn take<F: RxFrame>(
        &mut self,
        now: Instant,
        frame: &mut F,
        out: &mut FrameOutcome,
    ) -> Result<(), DropReason> {
        let head = frame.chunk_at(0);
        let ethernet = EthernetHeader::parse(head).map_err(|_| {
            if frame.len() < ethernet::HEADER_LEN {
                DropReason::RxTruncated
            } else {
                DropReason::RxSplitHeader
            }
        })?;
        if ethernet.dst.0 != self.cfg.mac && !ethernet.dst.is_group() {
            return Err(DropReason::RxOtherStation);
        }
        match ethernet.ethertype {
            EtherType::IPV4 => self.take_ipv4(now, frame, ethernet, out),
            EtherType::ARP => self.handle_arp(now, &head[ethernet::HEADER_LEN..]).map(|_| ()),
            _ => Err(DropReason::RxUnknownEthertype),
        }
    }

    /// Completes the handling of a segment whose payload starts `off` bytes into its frame.
    fn after_segment(
        &mut self,
        now: Instant,
        index: u32,
        outcome: SegmentOutcome,
        off: usize,
        out: &mut FrameOutcome,
    ) {
        let Some(e) = self.conns.get(index) else { return };
        let plain = e.owner == Owner::Held && !e.conn.has_events();
        if plain {
            self.defer_update(index);
        } else {
            self.update(index);
            self.adopt_next_hop(now, index);
        }
        // The stack does not take payload that comes before the handshake is done, or after the
        // owner has released the connection.
        if plain || self.conns.get(index).is_some_and(|e| e.owner == Owner::Held) {
            *out = outcome.of(self.conns.id(index), off);
        }
    }

    #[inline(always)]
    fn take_ipv4<F: RxFrame>(
        &mut self,
        now: Instant,
        frame: &mut F,
        ethernet: EthernetHeader,
        out: &mut FrameOutcome,
    ) -> Result<(), DropReason> {
        // Headers outside the first piece count as split.
        let head = frame.chunk_at(0).get(ethernet::HEADER_LEN..).unwrap_or_default();
        let ip =
            Ipv4Header::parse(head, frame.len() - ethernet::HEADER_LEN).map_err(|e| match e {
                Malformed::Truncated => DropReason::RxTruncated,
                Malformed::Split => DropReason::RxSplitHeader,
                Malformed::Header | Malformed::Options => DropReason::RxBadIpHeader,
            })?;
        let checksum = frame.checksum();
        match checksum {
            RxChecksum::Good => {}
            RxChecksum::Unknown if ip.checksum_valid(head) => {}
            RxChecksum::Unknown => return Err(DropReason::RxBadIpChecksum),
            RxChecksum::Bad => return Err(DropReason::RxBadPortChecksum),
        }
        if ip.fragment {
            return Err(DropReason::RxFragments);
        }
        // The stack ignores the TTL: it only concerns hosts that forward datagrams (RFC 1122
        // section 3.2.1.7).
        match ip.protocol {
            ipv4::PROTO_TCP => {}
            ipv4::PROTO_ICMP => return self.take_icmp(now, frame, &ethernet, &ip).map(|_| ()),
            ipv4::PROTO_UDP => return self.take_udp(now, frame, &ethernet, &ip),
            _ => return Err(DropReason::RxUnknownProtocol),
        }

        let tcp_len = ip.total_len - ip.header_len;
        let tcp = match TcpHeader::parse(&head[ip.header_len..], tcp_len) {
            Ok(tcp) => tcp,
            Err(e) => return Err(tcp_fault(e)),
        };
        if checksum == RxChecksum::Unknown && !tcp_checksum_valid(frame, &ip, tcp.header_len) {
            return Err(DropReason::RxBadTcpChecksum);
        }
        if ethernet.dst.is_group() {
            return Err(DropReason::RxTcpGroup);
        }
        let flow = FlowKey::v4(ip.dst, tcp.dst_port, ip.src, tcp.src_port);
        let Some(index) = self.find(&flow) else {
            let arrival = Arrival { ethernet, ip, tcp };
            return self.take_stranger(now, &arrival, None);
        };
        let seg = &tcp.segment;
        self.counters.rx_segments += 1;
        let Some(e) = self.conns.get_mut(index) else { return Ok(()) };
        if seg.flags.has(Flags::SYN) && e.conn.may_be_replaced_by(seg) {
            self.replace(now, index, &Arrival { ethernet, ip, tcp });
            return Ok(());
        }
        let outcome = if tcp.has_sack {
            let head = frame.chunk_at(0).get(ethernet::HEADER_LEN + ip.header_len..);
            e.conn.handle_selective(now, seg, &read_sack(head.unwrap_or_default()))
        } else {
            e.conn.handle_segment(now, seg)
        };
        let off = ethernet::HEADER_LEN + ip.header_len + tcp.header_len;
        self.after_segment(now, index, outcome, off, out);
        Ok(())
    }

    /// Handles a SYN for the addresses of a connection in TIME-WAIT, which a new connection may
    /// replace.
    #[cold]
    fn replace(&mut self, now: Instant, index: u32, arrival: &Arrival) {
        let listening =
            self.listeners.find(IpAddr::V4(arrival.ip.dst), arrival.tcp.dst_port).is_some();
        if !listening {
            return;
        }
        self.counters.time_wait_reused += 1;
        let beyond = self.conns.get(index).map(|e| e.conn.snd_end());
        self.end_time_wait(index);
        if let Err(reason) = self.take_stranger(now, arrival, beyond) {
            self.counters.count_drop(reason);
        }
    }
}

impl SegmentOutcome {
    /// Converts to the outcome for the owner; the payload starts `off` bytes into the frame.
    #[inline(always)]
    fn of(self, conn: ConnId, off: usize) -> FrameOutcome {
        FrameOutcome::Conn {
            conn,
            acked: self.acked,
            payload: self.payload.map(|p| FramePayload {
                pos: p.pos,
                frame_off: off + p.skip as usize,
                len: p.len,
                in_order: p.in_order,
            }),
        }
    }
}

/// Returns true if both checksums of `frame` are right; `sums` are those of its headers.
#[inline(always)]
fn is_right<F: RxFrame>(frame: &mut F, sums: Checksums) -> bool {
    match frame.checksum() {
        RxChecksum::Good => true,
        RxChecksum::Unknown => sums.are_right(frame),
        RxChecksum::Bad => false,
    }
}

#[cold]
fn tcp_fault(e: Malformed) -> DropReason {
    match e {
        Malformed::Split => DropReason::RxSplitHeader,
        Malformed::Options => DropReason::RxBadTcpOptions,
        Malformed::Truncated | Malformed::Header => DropReason::RxBadTcpHeader,
    }
}

/// Reads the SACK option of a segment. Kept out of line: few segments have the option, and the
/// others should not have to keep their headers at hand.
#[cold]
#[inline(never)]
fn read_sack(head: &[u8]) -> SackBlocks {
    tcp::sack_blocks(head)
}

#[inline]
fn tcp_checksum_valid<F: RxFrame>(frame: &mut F, ip: &Ipv4Header, header: usize) -> bool {
    let (start, tcp_len) = (ethernet::HEADER_LEN + ip.header_len, ip.total_len - ip.header_len);
    let Ok(len) = u16::try_from(tcp_len) else { return false };
    let Some(sum) = frame.sum_segment(start, header, tcp_len) else { return false };
    ipv4::pseudo_header(ip.src, ip.dst, len).plus(sum).is_valid()
}
