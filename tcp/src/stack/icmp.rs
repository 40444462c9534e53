//! ICMP (RFC 792, RFC 1122 section 3.2.2): echo, and errors about our segments.
//!
//! Errors are hints that anyone can forge. The stack records an error that quotes a segment in
//! flight and reports it to the owner of the connection. No error ends a connection, in any state
//! (RFC 5927 section 4.1). "Fragmentation needed" about such a segment lowers the connection's
//! segment size (RFC 1191), never below the least that [`Path`] has, and only where the segment was larger
//! than the reported path MTU.
//!
//! The stack decides whether to read a message before it copies any of it: an echo request must
//! find room in its budget. An error must quote a segment in flight, and then find room.

use core::net::IpAddr;
use heddle_base::Instant;

use super::Stack;
use super::arp::plain_frame;
use super::control::Control;
use super::counters::DropReason;
use super::event::{EventKind, IcmpError};
use super::flow::FlowKey;
use super::frame::{FrameOutcome, RxFrame, TxBody};
use super::input::Layer2;
use super::neighbor::LinkAddr;
use super::open::peer_of;
use super::share::Kind;
use super::slab::Entry;
use crate::conn::RAISE_AFTER;
use crate::wire::icmpv4::{CODE_FRAG_NEEDED, ECHO_REQUEST, Message, Quoted, echo_reply, quoted};
use crate::wire::{EtherType, EthernetHeader, Ipv4Header, MacAddr, Vid, ethernet, ipv4, ipv6};
use crate::{SendQueue, SeqNumber, State};

/// The limits of a version of IP for paths.
pub(super) struct Path {
    /// The smallest path MTU that the stack believes.
    least: u32,
    /// Bytes of the IP and TCP headers without options.
    headers: u32,
}

/// A forged message costs a connection little more than half of its speed. Every host takes
/// datagrams of 576 bytes (RFC 791), and no link is known to carry less than this value.
const PATH_V4: Path = Path { least: 552, headers: 40 };
/// Every link of IPv6 carries as much, and a host does not send fragments because of a report (RFC
/// 8200 section 5, RFC 8201 section 4).
pub(super) const PATH_V6: Path = Path { least: ipv6::MIN_MTU as u32, headers: 60 };

impl<S: SendQueue + Default> Stack<S> {
    #[inline(never)]
    pub(super) fn take_icmp<F: RxFrame + ?Sized>(
        &mut self,
        now: Instant,
        frame: &F,
        eth: &Layer2,
        ip: &Ipv4Header,
    ) -> Result<FrameOutcome, DropReason> {
        self.charge(now, eth.vid, Kind::Icmp)?;
        // A message sent to many hosts, or from no single host, gets no answer (RFC 1122 section
        // 3.2.2.6).
        let net = self.cfg.net.on(eth.vid);
        if eth.dst.is_group() || !net.is_ours(IpAddr::V4(ip.dst)) {
            return Err(DropReason::RxOtherHost);
        }
        if !net.is_peer(ip.src.into()) || !eth.src.is_station() {
            return Err(DropReason::RxBadSource);
        }
        if ip.total_len > usize::from(self.cfg.mtu) {
            return Err(DropReason::IcmpEchoLimited);
        }
        let (off, len) = (ethernet::HEADER_LEN + ip.header_len, ip.total_len - ip.header_len);
        let head = frame.chunk_at(off);
        let head = &head[..head.len().min(len)];
        let source = LinkAddr::new(eth.vid, ip.src.into());
        match head.first() {
            None => return Err(DropReason::IcmpMalformed),
            Some(&ECHO_REQUEST) => {
                if !self.echoes.allow(now, source) {
                    return Err(DropReason::IcmpEchoLimited);
                }
            }
            // A quote that lies in another piece of the frame does not count.
            Some(_) if let Some(q) = quoted(head) => {
                if self.quoted_conn(eth.vid, q).is_none() {
                    return Err(DropReason::IcmpUnmatched);
                }
                if !self.icmp_errors.allow(now, source) {
                    return Err(DropReason::IcmpErrorsLimited);
                }
            }
            Some(_) => return Err(DropReason::IcmpIgnored),
        }
        let mut bytes = vec![0; len];
        frame.copy_at(off, &mut bytes);
        match Message::parse(&bytes) {
            None => Err(DropReason::IcmpMalformed),
            Some(Message::Other) => Err(DropReason::IcmpIgnored),
            Some(Message::EchoRequest { ident, seq, data }) => {
                self.answer_echo(eth, ip, echo_reply(ident, seq, data));
                Ok(FrameOutcome::Done)
            }
            Some(Message::Unreachable { code: CODE_FRAG_NEEDED, mtu, quoted }) => {
                let mtu = (mtu != 0).then_some(u32::from(mtu));
                let lowered = self.lower_segment_size(now, eth.vid, quoted, mtu, &PATH_V4);
                lowered.map(|()| FrameOutcome::Done)
            }
            Some(Message::Unreachable { code, quoted, .. }) => {
                let error = IcmpError::Unreachable(code);
                self.soft_failure(eth.vid, quoted, error).map(|()| FrameOutcome::Done)
            }
            Some(Message::TimeExceeded { quoted }) => {
                let error = IcmpError::TimeExceeded;
                self.soft_failure(eth.vid, quoted, error).map(|()| FrameOutcome::Done)
            }
        }
    }

    fn answer_echo(&mut self, to: &Layer2, request: &Ipv4Header, reply: Vec<u8>) {
        let mac = MacAddr(self.cfg.mac);
        let mut eth = [0; ethernet::HEADER_LEN];
        EthernetHeader { dst: to.src, src: mac, ethertype: EtherType::IPV4 }.emit(&mut eth);
        let mut ip = [0; ipv4::HEADER_LEN];
        Ipv4Header {
            src: request.dst,
            dst: request.src,
            protocol: ipv4::PROTO_ICMP,
            ttl: self.cfg.ttl,
            traffic_class: request.traffic_class & !3,
            header_len: ipv4::HEADER_LEN,
            total_len: ipv4::HEADER_LEN + reply.len(),
            fragment: false,
        }
        .emit(&mut ip);
        let tag = self.cfg.net.tag(to.vid, request.traffic_class >> 2);
        let frame = plain_frame(&[&eth, &ip], TxBody::Owned(reply), tag);
        let sent = self.push_control(Control::Echo, frame);
        self.counters.tx_echo_replies += u64::from(sent);
    }

    /// Returns the connection on the link `vid` that has the segment of `quoted` in flight.
    pub(super) fn quoted_conn(&mut self, vid: Vid, q: Quoted) -> Option<u32> {
        let flow = FlowKey::new((q.src, q.src_port), (q.dst, q.dst_port))?.on(vid);
        let index = self.look_up(self.ids.hashed(&flow))?;
        self.conns.get(index).filter(|e| in_flight(e, q.seq)).map(|_| index)
    }

    /// Handles the report that a router cannot forward the segment of `quoted`: its next link
    /// carries `mtu` bytes, if the router says how many.
    pub(super) fn lower_segment_size(
        &mut self,
        now: Instant,
        vid: Vid,
        quoted: Option<Quoted>,
        mtu: Option<u32>,
        path: &Path,
    ) -> Result<(), DropReason> {
        let found = quoted.and_then(|q| Some((q, self.quoted_conn(vid, q)?)));
        let Some((q, index)) = found else { return Err(DropReason::IcmpUnmatched) };
        // A router from before RFC 1191 gives no MTU: section 5 of the RFC has a list of likely
        // values.
        let mtu = mtu.unwrap_or_else(|| plateau_below(q.total_len)).max(path.least);
        let Some(e) = self.conns.get_mut(index) else { return Err(DropReason::IcmpUnmatched) };
        let before = e.conn.emss();
        let headers = path.headers + u32::from(e.conn.options_len());
        let largest = before + headers;
        let fits = mtu.saturating_sub(headers);
        // The datagram was too large for that link, and we may have sent it (RFC 5927 section 7.2).
        if q.total_len > mtu && q.total_len <= largest {
            e.conn.limit_emss(now, fits);
        } else if e.conn.probe_too_large(q.total_len.saturating_sub(headers), fits) {
            self.counters.icmp_frag_needed += 1;
            return Ok(());
        }
        let after = e.conn.emss();
        if after == before {
            return Err(DropReason::IcmpFragNeededIgnored);
        }
        self.counters.icmp_frag_needed += 1;
        let (host, mss) = (peer_of(&e.flow()), after + u32::from(e.conn.options_len()));
        self.paths.learn(now, host, mss, now + RAISE_AFTER);
        self.update(index);
        Ok(())
    }

    pub(super) fn soft_failure(
        &mut self,
        vid: Vid,
        quoted: Option<Quoted>,
        error: IcmpError,
    ) -> Result<(), DropReason> {
        let index = quoted.and_then(|q| self.quoted_conn(vid, q));
        let Some((index, e)) = index.and_then(|i| Some((i, self.conns.get_mut(i)?))) else {
            return Err(DropReason::IcmpUnmatched);
        };
        self.counters.icmp_soft_errors += 1;
        // A storm of the same error is one event.
        if e.soft_error.replace(error) != Some(error) {
            e.raise(EventKind::SoftError);
            self.update(index);
        }
        Ok(())
    }
}

/// Returns the largest MTU in use below `len` (RFC 1191 section 7.1).
fn plateau_below(len: u32) -> u32 {
    const PLATEAUS: [u32; 9] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296];
    PLATEAUS.into_iter().find(|&p| p < len).unwrap_or(PATH_V4.least)
}

/// Returns true if the peer has not acknowledged `seq` (RFC 5927 section 4.1).
fn in_flight<S>(e: &Entry<S>, seq: SeqNumber) -> bool {
    if matches!(e.conn.state(), State::SynSent | State::SynReceived) {
        return seq == e.iss;
    }
    let at = |pos: heddle_base::StreamPos| {
        let [a, b, c, d, ..] = pos.0.to_le_bytes();
        e.iss.advance(1).advance(u32::from_le_bytes([a, b, c, d]))
    };
    !seq.before(at(e.conn.snd_una())) && !seq.after(at(e.conn.snd_max()))
}
