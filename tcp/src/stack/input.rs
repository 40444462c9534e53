//! From a received frame to its connection.
//!
//! The path of a segment of an established connection comes first and checks as little as possible.
//! For a frame to our station address whose addresses and ports name a connection, the stack need
//! not check whether these addresses are sensible: otherwise the connection would not exist. Frames
//! of the usual shape (`plain`) come before the others, which the stack parses field by field.

use core::net::IpAddr;
use heddle_base::{Instant, Sum};

use super::Stack;
use super::counters::DropReason;
use super::flow::{FlowKey, Hashed};
use super::frame::{FrameOutcome, FramePayload, Run, RxChecksum, RxFrame};
use super::plain::{self, Checksums, Plain, Plain4, Plain6, Shape};
use super::share::Kind;
use super::slab::Owner;
use crate::wire::vlan::TAG_LEN;
use crate::wire::{EtherType, EthernetHeader, Ipv4Header, Ipv6Header, MacAddr, Malformed};
use crate::wire::{Tag, TcpHeader, Vid, ethernet, ipv4, ipv6, tcp};
use crate::{Codepoint, Flags, RareOptions, SackBlocks, Segment, SegmentOutcome, SendQueue};
use heddle_types::ConnId;

/// The link layer's part of a received frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer2 {
    pub(super) dst: MacAddr,
    pub(super) src: MacAddr,
    /// The VLAN of the link.
    pub(super) vid: Vid,
}

/// A TCP segment with the headers around it.
pub(super) struct Arrival {
    pub(super) ethernet: Layer2,
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    /// The key of the connection that the segment is for, and its hash.
    pub(super) flow: FlowKey,
    pub(super) hash: u64,
    pub(super) tcp: TcpHeader,
    pub(super) options: Option<RareOptions>,
    /// Where the payload begins in the frame.
    pub(super) payload_at: usize,
}

impl Arrival {
    /// Returns the flow with its hash.
    pub(super) fn hashed(&self) -> Hashed<'_> {
        Hashed { key: &self.flow, hash: self.hash }
    }
}

/// An IP packet, as far as TCP needs to know it.
struct Packet {
    src: IpAddr,
    dst: IpAddr,
    /// Where its payload begins in the frame, and how many bytes it has.
    at: usize,
    len: usize,
    /// The sum of the pseudo-header.
    pseudo: Sum,
    /// Its codepoint.
    ecn: Codepoint,
    seen: Seen,
}

/// The findings about a frame that the stack does not handle as one of the usual shape.
#[derive(Clone, Copy)]
enum Seen {
    /// None.
    Nothing,
    /// The frame is a SYN.
    Syn,
    /// The frame has the usual shape, and its flow, of this hash, has no connection.
    Stranger(u64),
}

impl Seen {
    /// Returns the kind of a frame that is a stranger's.
    #[inline]
    fn kind(self) -> Option<Kind> {
        match self {
            Seen::Nothing => None,
            Seen::Syn => Some(Kind::Syn),
            Seen::Stranger(_) => Some(Kind::Segment),
        }
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
        let run = match self.take_plain::<F, { plain::TCP4 }, { Plain4::LEN }>(now, frames) {
            Ok(run) => run,
            Err(seen) => self.take_others(now, frames, seen),
        };
        self.ahead.pass(run.frames);
        run
    }

    /// Continues with frames of which the first has not the usual shape over IPv4, or no connection.
    #[inline(never)]
    fn take_others<F: RxFrame>(
        &mut self,
        now: Instant,
        frames: &mut [Option<F>],
        mut seen: Seen,
    ) -> Run {
        if matches!(seen, Seen::Nothing) {
            match self.take_plain::<F, { plain::TCP6 }, { Plain6::LEN }>(now, frames) {
                Ok(run) => return run,
                Err(found) => seen = found,
            }
        }
        if let Some(Some(frame)) = frames.first_mut()
            && matches!(seen, Seen::Nothing)
        {
            if plain::is_syn(frame.chunk_at(0), self.station) {
                seen = Seen::Syn;
            } else if has_tag(frame) && frame.take_tag() {
                return self.take_tagged(now, frames);
            }
        }
        // Budgets are of the port's links alone.
        if let Some(kind) = seen.kind()
            && let Some(Some(frame)) = frames.first()
            && let vid = frame.vid()
            && self.cfg.net.has_vlan(vid)
            && let Err(reason) = self.charge(now, vid, kind)
        {
            self.counters.count_drop(reason);
            return Run { frames: 1, last: 0, outcome: FrameOutcome::Done };
        }
        self.take_first(now, frames, seen)
    }

    /// Continues with frames of which the first had a tag, which was taken out. The stack
    /// takes out the tags of the frames behind it as well, so that they may continue the first.
    #[cold]
    fn take_tagged<F: RxFrame>(&mut self, now: Instant, frames: &mut [Option<F>]) -> Run {
        for frame in frames.iter_mut().skip(1).flatten() {
            if !has_tag(frame) || !frame.take_tag() {
                break;
            }
        }
        match self.take_plain::<F, { plain::TCP4 }, { Plain4::LEN }>(now, frames) {
            Ok(run) => run,
            // The frame has one tag less, and none that could be taken out again.
            Err(seen) => self.take_others(now, frames, seen),
        }
    }

    /// Takes the first frame, of any shape.
    #[inline(always)]
    fn take_first<F: RxFrame>(
        &mut self,
        now: Instant,
        frames: &mut [Option<F>],
        seen: Seen,
    ) -> Run {
        let outcome = match frames.first_mut() {
            Some(Some(frame)) => self.take_other(now, frame, seen),
            _ => FrameOutcome::Done,
        };
        Run { frames: 1, last: outcome.payload_len(), outcome }
    }

    /// Takes a segment of the usual shape and those that continue it. Does nothing, and returns what it
    /// has seen, when the frame has another shape, belongs to no connection, or has a wrong checksum.
    #[inline(always)]
    fn take_plain<F: RxFrame, const TCP: usize, const N: usize>(
        &mut self,
        now: Instant,
        frames: &mut [Option<F>],
    ) -> Result<Run, Seen>
    where
        for<'a> Plain<'a, TCP, N>: Shape<'a>,
    {
        let (frame, later) = frames.split_first_mut().ok_or(Seen::Nothing)?;
        let frame = frame.as_mut().ok_or(Seen::Nothing)?;
        let plain = Plain::<TCP, N>::of(frame.chunk_at(0), frame.len(), self.station);
        let plain = plain.ok_or(Seen::Nothing)?;
        let flow = plain.flow().on(frame.vid());
        let index = self.find_or_hash(&flow).map_err(Seen::Stranger)?;
        let mut segment = plain.segment();
        let sums = plain.checksums();
        if !is_right(frame, sums) {
            return Err(Seen::Nothing);
        }
        let (conn, e) = self.conns.named_mut(index).ok_or(Seen::Nothing)?;
        if e.owner != Owner::Held {
            return Err(Seen::Nothing);
        }
        self.counters.rx_segments += 1;
        let Some(advance) = e.conn.predict(&segment) else {
            let outcome = self.take_unexpected(now, index, &segment, N);
            return Ok(Run { frames: 1, last: outcome.payload_len(), outcome });
        };
        let mut run = Run { frames: 1, last: segment.len, outcome: FrameOutcome::Done };
        let len = segment.len;
        if len > 0 && !later.is_empty() {
            let room = e.conn.receive_room();
            for frame in later {
                let Some(frame) = frame.as_mut() else { break };
                let next = Plain::<TCP, N>::of(frame.chunk_at(0), frame.len(), self.station);
                let Some(next) = next else { break };
                let next_flow = next.flow().on(frame.vid());
                let Some(n) = next.continues(&segment, len).filter(|_| next_flow == flow) else {
                    break;
                };
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
        run.outcome = outcome.of(conn, N);
        Ok(run)
    }

    /// Continues with a frame of the usual shape whose segment is not the expected one. Its headers
    /// have `headers` bytes.
    #[inline(never)]
    fn take_unexpected(
        &mut self,
        now: Instant,
        index: u32,
        segment: &Segment,
        headers: usize,
    ) -> FrameOutcome {
        let mut out = FrameOutcome::Done;
        if let Some(e) = self.conns.get_mut(index) {
            let outcome = e.conn.handle_segment(now, segment);
            self.after_segment(now, index, outcome, headers, &mut out);
        }
        out
    }

    /// Takes a frame of any shape.
    #[inline(never)]
    fn take_other<F: RxFrame>(&mut self, now: Instant, frame: &mut F, seen: Seen) -> FrameOutcome {
        let mut outcome = FrameOutcome::Done;
        if let Err(reason) = self.take(now, frame, seen, &mut outcome) {
            self.counters.count_drop(reason);
        }
        outcome
    }

    #[inline(always)]
    fn take<F: RxFrame>(
        &mut self,
        now: Instant,
        frame: &mut F,
        seen: Seen,
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
        let EthernetHeader { dst, src, ethertype } = ethernet;
        if dst.0 != self.cfg.mac && !dst.is_group() {
            return Err(DropReason::RxOtherStation);
        }
        let tag = frame.tag();
        let vid = tag.map_or(Vid::NONE, Tag::vid);
        if !self.cfg.net.has_vlan(vid) {
            return Err(DropReason::RxUnknownVlan);
        }
        let ethernet = Layer2 { dst, src, vid };
        match ethertype {
            EtherType::IPV4 => self.take_ipv4(now, frame, ethernet, seen, out),
            EtherType::IPV6 => self.take_ipv6(now, frame, ethernet, seen, out),
            EtherType::ARP => self.handle_arp(now, vid, &head[ethernet::HEADER_LEN..]).map(|_| ()),
            // The frame ends within its tag.
            EtherType::VLAN if tag.is_none() && frame.len() < ethernet::HEADER_LEN + TAG_LEN => {
                Err(DropReason::RxTruncated)
            }
            EtherType::VLAN | EtherType::SERVICE => Err(DropReason::RxStackedTags),
            _ => Err(DropReason::RxUnknownEthertype),
        }
    }

    /// Completes the handling of a segment whose payload starts `off` bytes into its frame.
    pub(super) fn after_segment(
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
        ethernet: Layer2,
        seen: Seen,
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
            ipv4::PROTO_UDP => {
                let (ends, len) = ((ip.src.into(), ip.dst.into()), ip.total_len - ip.header_len);
                return self.take_udp(now, frame, &ethernet, ends, (ip.header_len, len));
            }
            _ => return Err(DropReason::RxUnknownProtocol),
        }

        let len = ip.total_len - ip.header_len;
        let packet = Packet {
            src: ip.src.into(),
            dst: ip.dst.into(),
            at: ethernet::HEADER_LEN + ip.header_len,
            len,
            pseudo: ipv4::pseudo_header(ip.src, ip.dst, u16::try_from(len).unwrap_or(u16::MAX)),
            ecn: Codepoint::of(ip.traffic_class),
            seen,
        };
        self.take_tcp(now, frame, ethernet, &packet, checksum, out)
    }

    #[inline(never)]
    fn take_ipv6<F: RxFrame>(
        &mut self,
        now: Instant,
        frame: &mut F,
        ethernet: Layer2,
        seen: Seen,
        out: &mut FrameOutcome,
    ) -> Result<(), DropReason> {
        let head = frame.chunk_at(0).get(ethernet::HEADER_LEN..).unwrap_or_default();
        let ip =
            Ipv6Header::parse(head, frame.len() - ethernet::HEADER_LEN).map_err(|e| match e {
                Malformed::Truncated => DropReason::RxTruncated,
                Malformed::Split => DropReason::RxSplitHeader,
                Malformed::Header | Malformed::Options => DropReason::RxBadIpHeader,
            })?;
        let checksum = frame.checksum();
        if checksum == RxChecksum::Bad {
            return Err(DropReason::RxBadPortChecksum);
        }
        match ip.next_header {
            ipv6::TCP => {}
            ipv6::ICMP => return self.take_icmpv6(now, frame, &ethernet, &ip),
            ipv6::UDP => {
                let ends = (ip.src.into(), ip.dst.into());
                let lens = (ipv6::HEADER_LEN, ip.payload_len);
                return self.take_udp(now, frame, &ethernet, ends, lens);
            }
            ipv6::FRAGMENT => return Err(DropReason::RxFragments),
            ipv6::HOP_BY_HOP => return self.take_hop_by_hop(now, frame, ethernet.vid, &ip),
            // The stack follows no chain of headers: RDMA has no use for one, and attackers have.
            other if ipv6::is_extension(other) => return Err(DropReason::RxExtensionHeader),
            _ => return Err(DropReason::RxUnknownProtocol),
        }
        let len = ip.payload_len;
        let pseudo_len = u32::try_from(len).unwrap_or(u32::MAX);
        let packet = Packet {
            src: ip.src.into(),
            dst: ip.dst.into(),
            at: ethernet::HEADER_LEN + ipv6::HEADER_LEN,
            len,
            pseudo: ipv6::pseudo_header(ipv6::TCP, ip.src, ip.dst, pseudo_len),
            ecn: Codepoint::of(ip.traffic_class),
            seen,
        };
        self.take_tcp(now, frame, ethernet, &packet, checksum, out)
    }

    /// Takes a segment; the port has found out `checksum` about its frame.
    #[inline(always)]
    fn take_tcp<F: RxFrame>(
        &mut self,
        now: Instant,
        frame: &mut F,
        ethernet: Layer2,
        packet: &Packet,
        checksum: RxChecksum,
        out: &mut FrameOutcome,
    ) -> Result<(), DropReason> {
        let head = frame.chunk_at(0).get(packet.at..).unwrap_or_default();
        let mut tcp = TcpHeader::parse(head, packet.len).map_err(tcp_fault)?;
        tcp.segment.ecn = packet.ecn;
        if checksum == RxChecksum::Unknown {
            let sum = match head.get(..packet.len) {
                // The frame has no payload of which its owner could want to learn anything.
                Some(header) if tcp.segment.len == 0 => Some(Sum::of_short(header)),
                _ => frame.sum_segment(packet.at, tcp.header_len, packet.len),
            };
            if !sum.is_some_and(|sum| packet.pseudo.plus(sum).is_valid()) {
                return Err(DropReason::RxBadTcpChecksum);
            }
        }
        if ethernet.dst.is_group() {
            return Err(DropReason::RxTcpGroup);
        }
        let (src, dst) = (packet.src, packet.dst);
        let flow = FlowKey::new((dst, tcp.dst_port), (src, tcp.src_port));
        let flow = flow.ok_or(DropReason::RxBadIpHeader)?.on(ethernet.vid);
        let payload_at = packet.at + tcp.header_len;
        let uncharged = matches!(packet.seen, Seen::Nothing);
        let opens = tcp.segment.flags.has(Flags::SYN) && !tcp.segment.flags.has(Flags::ACK);
        if uncharged && opens {
            self.charge(now, ethernet.vid, Kind::Syn)?;
        }
        let found = match packet.seen {
            Seen::Stranger(hash) => Err(hash),
            _ => self.find_or_hash(&flow),
        };
        let index = match found {
            Ok(index) => index,
            Err(hash) => {
                if uncharged && !opens {
                    self.charge(now, ethernet.vid, Kind::Segment)?;
                }
                let options = tcp.has_rare.then(|| read_options(frame, packet.at));
                let arrival = Arrival { ethernet, src, dst, flow, hash, tcp, options, payload_at };
                return self.take_stranger(now, &arrival, None, out);
            }
        };
        let seg = &tcp.segment;
        self.counters.rx_segments += 1;
        let Some(e) = self.conns.get_mut(index) else { return Ok(()) };
        if seg.flags.has(Flags::SYN) && e.conn.may_be_replaced_by(seg) {
            let hash = flow.hash(&self.ids.flow);
            let options = None;
            let arrival = Arrival { ethernet, src, dst, flow, hash, tcp, options, payload_at };
            self.replace(now, index, &arrival);
            return Ok(());
        }
        let outcome = if tcp.has_rare {
            let head = frame.chunk_at(0).get(packet.at..).unwrap_or_default();
            let sack = tcp.has_sack.then(|| read_sack(head));
            e.conn.handle_with_options(now, seg, sack.as_ref(), &tcp::rare_options(head))
        } else if tcp.has_sack {
            let head = frame.chunk_at(0).get(packet.at..).unwrap_or_default();
            e.conn.handle_selective(now, seg, &read_sack(head))
        } else {
            e.conn.handle_segment(now, seg)
        };
        self.after_segment(now, index, outcome, payload_at, out);
        Ok(())
    }

    /// Handles a SYN for the addresses of a connection in TIME-WAIT, which a new connection may
    /// replace.
    #[cold]
    fn replace(&mut self, now: Instant, index: u32, arrival: &Arrival) {
        let listening = self.listeners.find(arrival.dst, arrival.tcp.dst_port).is_some();
        if !listening {
            return;
        }
        self.counters.time_wait_reused += 1;
        let beyond = self.conns.get(index).map(|e| e.conn.snd_end());
        self.end_time_wait(index);
        let mut nothing = FrameOutcome::Done;
        if let Err(reason) = self.take_stranger(now, arrival, beyond, &mut nothing) {
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

/// Returns true if the frame begins with one tag, and the tag is still in it.
#[inline]
fn has_tag<F: RxFrame>(frame: &F) -> bool {
    Tag::of(frame.chunk_at(0)).is_some() && frame.tag().is_none()
}

#[cold]
fn tcp_fault(e: Malformed) -> DropReason {
    match e {
        Malformed::Split => DropReason::RxSplitHeader,
        Malformed::Options => DropReason::RxBadTcpOptions,
        Malformed::Truncated | Malformed::Header => DropReason::RxBadTcpHeader,
    }
}

/// Reads the rare options of a segment of a frame.
#[cold]
#[inline(never)]
fn read_options<F: RxFrame>(frame: &F, at: usize) -> RareOptions {
    tcp::rare_options(frame.chunk_at(0).get(at..).unwrap_or_default())
}

/// Reads the SACK option of a segment. Kept out of line: few segments have the option, and the
/// others should not have to keep their headers at hand.
#[cold]
#[inline(never)]
fn read_sack(head: &[u8]) -> SackBlocks {
    tcp::sack_blocks(head)
}
