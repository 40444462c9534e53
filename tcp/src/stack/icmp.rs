//! ICMP (RFC 792, RFC 1122 section 3.2.2): echo, and errors about our segments.
//!
//! Errors are hints anyone can forge. One that quotes a segment a connection has in flight is
//! recorded and told to its owner; none ends a connection, in any state (RFC 5927 section 4.1).

use core::net::IpAddr;
use heddle_base::Instant;

use super::Stack;
use super::arp::plain_frame;
use super::control::Control;
use super::counters::DropReason;
use super::event::{EventKind, IcmpError};
use super::flow::FlowKey;
use super::frame::{FrameOutcome, RxFrame, TxBody};
use super::slab::Entry;
use crate::wire::icmpv4::{CODE_FRAG_NEEDED, Message, Quoted, echo_reply};
use crate::wire::{EtherType, EthernetHeader, Ipv4Header, MacAddr, ethernet, ipv4};
use crate::{SendQueue, SeqNumber, State};

impl<S: SendQueue + Default> Stack<S> {
    #[inline(never)]
    pub(super) fn take_icmp<F: RxFrame + ?Sized>(
        &mut self,
        now: Instant,
        frame: &F,
        eth: &EthernetHeader,
        ip: &Ipv4Header,
    ) -> Result<FrameOutcome, DropReason> {
        // No answer to what was sent to many, or by no single host (RFC 1122 section 3.2.2.6).
        if eth.dst.is_group() || !self.cfg.net.is_ours(IpAddr::V4(ip.dst)) {
            return Err(|c| &mut c.rx_other_host);
        }
        if !self.cfg.net.is_peer(ip.src) || !eth.src.is_station() {
            return Err(|c| &mut c.rx_bad_source);
        }
        if ip.total_len > usize::from(self.cfg.mtu) {
            return Err(|c| &mut c.icmp_echo_limited);
        }
        let mut bytes = vec![0; ip.total_len - ip.header_len];
        frame.copy_at(ethernet::HEADER_LEN + ip.header_len, &mut bytes);
        match Message::parse(&bytes) {
            None => Err(|c| &mut c.icmp_malformed),
            Some(Message::Other) => Err(|c| &mut c.icmp_ignored),
            Some(Message::EchoRequest { ident, seq, data }) => {
                if !self.echoes.allow(now) {
                    return Err(|c| &mut c.icmp_echo_limited);
                }
                self.answer_echo(eth.src, ip, echo_reply(ident, seq, data));
                Ok(FrameOutcome::Done)
            }
            Some(Message::Unreachable { code: CODE_FRAG_NEEDED, .. }) => {
                Err(|c| &mut c.icmp_frag_needed)
            }
            Some(Message::Unreachable { code, quoted, .. }) => {
                self.soft_failure(quoted, IcmpError::Unreachable(code))
            }
            Some(Message::TimeExceeded { quoted }) => {
                self.soft_failure(quoted, IcmpError::TimeExceeded)
            }
        }
    }

    fn answer_echo(&mut self, to: MacAddr, request: &Ipv4Header, reply: Vec<u8>) {
        let mac = MacAddr(self.cfg.mac);
        let mut eth = [0; ethernet::HEADER_LEN];
        EthernetHeader { dst: to, src: mac, ethertype: EtherType::IPV4 }.emit(&mut eth);
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
        let frame = plain_frame(&[&eth, &ip], TxBody::Owned(reply));
        let sent = self.push_control(Control::Echo, frame);
        self.counters.tx_echo_replies += u64::from(sent);
    }

    fn soft_failure(
        &mut self,
        quoted: Option<Quoted>,
        error: IcmpError,
    ) -> Result<FrameOutcome, DropReason> {
        let flow = quoted.map(|q| FlowKey::v4(q.src, q.src_port, q.dst, q.dst_port));
        let index = flow.and_then(|f| self.find(&f));
        let (Some(q), Some(index)) = (quoted, index) else {
            return Err(|c| &mut c.icmp_unmatched);
        };
        let Some(e) = self.conns.get_mut(index).filter(|e| in_flight(e, q.seq)) else {
            return Err(|c| &mut c.icmp_unmatched);
        };
        self.counters.icmp_soft_errors += 1;
        // A storm of the same error is one event.
        if e.soft_error.replace(error) != Some(error) {
            e.raise(EventKind::SoftError);
            self.update(index);
        }
        Ok(FrameOutcome::Done)
    }
}

/// Whether `seq` is one the peer has not acknowledged (RFC 5927 section 4.1).
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
