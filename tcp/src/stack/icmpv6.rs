//! ICMPv6 (RFC 4443): echo, errors about our segments, and the way to neighbor discovery
//! (`discovery`). Errors count as little as those of [IPv4](super::icmp).

use core::net::Ipv6Addr;
use heddle_base::Instant;

use super::Stack;
use super::arp::plain_frame;
use super::control::Control;
use super::counters::DropReason;
use super::event::IcmpError;
use super::frame::{RxFrame, TxBody};
use super::icmp::PATH_V6;
use super::input::Layer2;
use super::share::Kind;
use crate::SendQueue;
use crate::wire::icmpv6::{DISCOVERY, ECHO_REQUEST, HOP_LIMIT, Message, echo_reply, quoted};
use crate::wire::{EtherType, EthernetHeader, Ipv6Header, MacAddr, Vid, ethernet, ipv6};

impl<S: SendQueue + Default> Stack<S> {
    #[inline(never)]
    pub(super) fn take_icmpv6<F: RxFrame + ?Sized>(
        &mut self,
        now: Instant,
        frame: &F,
        eth: &Layer2,
        ip: &Ipv6Header,
    ) -> Result<(), DropReason> {
        if ip.payload_len + ipv6::HEADER_LEN > usize::from(self.cfg.mtu) {
            return Err(DropReason::IcmpEchoLimited);
        }
        let off = ethernet::HEADER_LEN + ipv6::HEADER_LEN;
        let head = frame.chunk_at(off);
        let head = &head[..head.len().min(ip.payload_len)];
        let Some(&kind) = head.first() else { return Err(DropReason::IcmpMalformed) };
        if DISCOVERY.contains(&kind) {
            // A message from beyond the link has passed a router, which has lowered its hop limit.
            if ip.hop_limit != HOP_LIMIT || head.get(1) != Some(&0) {
                return Err(DropReason::NdMalformed);
            }
            let mut bytes = vec![0; ip.payload_len];
            frame.copy_at(off, &mut bytes);
            let message = Message::parse(&bytes, ip.src, ip.dst).ok_or(DropReason::NdMalformed)?;
            return self.take_discovery(now, eth, ip, &message);
        }
        self.charge(now, eth.vid, Kind::Icmp)?;
        // A message to many hosts, or from no single host, gets no answer (RFC 4443 section 2.4).
        let net = self.cfg.net.on(eth.vid);
        if eth.dst.is_group() || !net.is_ours(ip.dst.into()) {
            return Err(DropReason::RxOtherHost);
        }
        if !net.is_peer(ip.src.into()) || !eth.src.is_station() {
            return Err(DropReason::RxBadSource);
        }
        let site = self.cfg.net.site_on(eth.vid, ip.src.into());
        match quoted(head) {
            _ if kind == ECHO_REQUEST => {
                if !self.echoes.allow(now, site) {
                    return Err(DropReason::IcmpEchoLimited);
                }
            }
            // A quote that lies in another piece of the frame does not count.
            Some(q) => {
                if self.quoted_conn(eth.vid, q).is_none() {
                    return Err(DropReason::IcmpUnmatched);
                }
                if !self.icmp_errors.allow(now, site) {
                    return Err(DropReason::IcmpErrorsLimited);
                }
            }
            None => return Err(DropReason::IcmpIgnored),
        }
        let mut bytes = vec![0; ip.payload_len];
        frame.copy_at(off, &mut bytes);
        match Message::parse(&bytes, ip.src, ip.dst) {
            None => Err(DropReason::IcmpMalformed),
            Some(Message::EchoRequest { ident, seq, data }) => {
                let reply = echo_reply(ip.dst, ip.src, ident, seq, data);
                let class = ip.traffic_class & !3;
                let to = (ip.src, eth.src);
                let (src, limits) = ((eth.vid, ip.dst), (self.cfg.ttl, class));
                let sent = self.push_icmpv6(Control::Echo, src, to, limits, reply);
                self.counters.tx_echo_replies += u64::from(sent);
                Ok(())
            }
            Some(Message::TooBig { mtu, quoted }) => {
                self.lower_segment_size(now, eth.vid, quoted, Some(mtu), &PATH_V6)
            }
            Some(Message::Unreachable { code, quoted }) => {
                self.soft_failure(eth.vid, quoted, IcmpError::Unreachable(code))
            }
            Some(Message::TimeExceeded { quoted }) => {
                self.soft_failure(eth.vid, quoted, IcmpError::TimeExceeded)
            }
            Some(_) => Err(DropReason::IcmpIgnored),
        }
    }

    /// Queues an ICMPv6 message from our address on a link to a host and its station, with a hop
    /// limit and a traffic class. Returns false when too many frames of its kind wait.
    pub(super) fn push_icmpv6(
        &mut self,
        kind: Control,
        (vid, src): (Vid, Ipv6Addr),
        (dst, station): (Ipv6Addr, MacAddr),
        (hop_limit, traffic_class): (u8, u8),
        message: Vec<u8>,
    ) -> bool {
        let mut eth = [0; ethernet::HEADER_LEN];
        let mac = MacAddr(self.cfg.mac);
        EthernetHeader { dst: station, src: mac, ethertype: EtherType::IPV6 }.emit(&mut eth);
        let mut header = [0; ipv6::HEADER_LEN];
        Ipv6Header {
            src,
            dst,
            next_header: ipv6::ICMP,
            hop_limit,
            traffic_class,
            flow_label: 0,
            payload_len: message.len(),
        }
        .emit(&mut header);
        let tag = self.cfg.net.tag(vid, traffic_class >> 2);
        self.push_control(kind, plain_frame(&[&eth, &header], TxBody::Owned(message), tag))
    }
}
