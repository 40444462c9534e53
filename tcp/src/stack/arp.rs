//! ARP packets: the facts that we learn from them, and our own questions and answers (RFC 826).

use arrayvec::ArrayVec;
use core::net::{IpAddr, Ipv4Addr};
use heddle_base::Instant;

use super::Stack;
use super::control::Control;
use super::counters::DropReason;
use super::frame::{FrameOutcome, TxBody, TxFrame};
use super::neighbor::{Due, Learned, LinkAddr, Source};
use super::questions::Question;
use crate::SendQueue;
use crate::wire::arp::{Arp, Operation, PACKET_LEN};
use crate::wire::{EtherType, EthernetHeader, MacAddr, Tag, Vid, ethernet, ipv6};

impl<S: SendQueue + Default> Stack<S> {
    #[inline(never)]
    pub(super) fn handle_arp(
        &mut self,
        now: Instant,
        vid: Vid,
        packet: &[u8],
    ) -> Result<FrameOutcome, DropReason> {
        let net = self.cfg.net.on(vid);
        let arp = Arp::parse(packet).map_err(|_| DropReason::ArpMalformed)?;
        if !arp.sender_mac.is_station() {
            return Err(DropReason::ArpMalformed);
        }
        let sender = IpAddr::V4(arp.sender_ip);
        if net.is_ours(sender) {
            return Err(if arp.sender_mac.0 == self.cfg.mac {
                DropReason::ArpIgnored
            } else {
                DropReason::ArpConflicts
            });
        }
        let for_us = net.is_ours(IpAddr::V4(arp.target_ip));
        // A host that has no address yet asks whether ours is taken (RFC 5227 section 2.1.1).
        let probe = arp.sender_ip.is_unspecified();
        let mut told = false;
        if !probe {
            if net.link_to(sender).is_none() || !net.is_peer(sender) {
                return Err(DropReason::ArpMalformed);
            }
            let source = match arp.operation {
                Operation::Request if for_us => Source::Request,
                Operation::Reply if for_us && arp.target_mac.0 == self.cfg.mac => Source::Reply,
                _ => Source::Overheard,
            };
            told = self.learn(now, LinkAddr::new(vid, sender), arp.sender_mac, source);
        }
        if for_us && arp.operation == Operation::Request {
            let (who, station) = (LinkAddr::new(vid, sender), arp.sender_mac);
            let question = Question { who, station, target: arp.target_ip.into() };
            if self.may_tell(now, &question) {
                let (ours, to) = (arp.target_ip, (arp.sender_mac, arp.sender_ip));
                let answered = self.push_arp(vid, Operation::Reply, ours, to);
                self.counters.tx_arp_replies += u64::from(answered);
            }
            told = true;
        }
        if told { Ok(FrameOutcome::Done) } else { Err(DropReason::ArpIgnored) }
    }

    /// Passes a claim to the table of neighbors. Returns true if the packet was of any use.
    pub(super) fn learn(
        &mut self,
        now: Instant,
        who: LinkAddr,
        mac: MacAddr,
        source: Source,
    ) -> bool {
        let learned = self.neighbors.learn(now, who, mac, source);
        self.counters.neighbor_evictions = self.neighbors.evictions;
        match learned {
            Learned::Ignored => return false,
            Learned::Resolved(neighbor) => {
                self.resolved(neighbor);
                self.end_search(now, neighbor, true);
            }
            Learned::Changed => self.counters.neighbor_changes += 1,
            Learned::Contested(known) => self.ask_again(who, known),
            Learned::Refused => self.counters.arp_change_refused += 1,
            Learned::Defended(neighbor) => {
                self.counters.arp_change_refused += 1;
                self.resolved(neighbor);
                self.end_search(now, neighbor, true);
            }
            Learned::Confirmed | Learned::New => {}
        }
        true
    }

    pub(super) fn handle_neighbor_timeouts(&mut self, now: Instant) {
        for _ in 0..super::ANSWERS_A_TURN {
            let Some(due) = self.neighbors.poll_due(now) else { break };
            match due {
                Due::Ask { who, at } => self.ask_again(who, at),
                Due::Failed(neighbor) => {
                    self.seek_router(now, neighbor);
                    self.unreachable(neighbor);
                    self.end_search(now, neighbor, false);
                }
                Due::Changed { neighbor, who, at } => {
                    self.counters.neighbor_changes += 1;
                    self.resolved(neighbor);
                    self.end_search(now, neighbor, true);
                    self.ask_again(who, at);
                }
                Due::Unconfirmed(neighbor) => {
                    self.counters.neighbor_unconfirmed += 1;
                    self.seek_router(now, neighbor);
                }
            }
        }
    }

    /// Asks for `who` as [`ask`](Self::ask) does, if we still have an address on the link.
    fn ask_again(&mut self, who: LinkAddr, at: MacAddr) {
        if let Some(local) = self.cfg.net.on(who.vid).link_to(who.ip) {
            self.ask(local, who, at);
        }
    }

    /// Asks which station has the address `who`: the station `at`, or all stations of the link.
    pub(super) fn ask(&mut self, local: IpAddr, who: LinkAddr, at: MacAddr) {
        match (local, who.ip) {
            (IpAddr::V4(local), IpAddr::V4(ip)) => {
                let asked = self.push_arp(who.vid, Operation::Request, local, (at, ip));
                self.counters.tx_arp_requests += u64::from(asked);
            }
            (IpAddr::V6(local), IpAddr::V6(ip)) => self.solicit(who.vid, local, ip, at),
            _ => {}
        }
    }

    pub(super) fn push_arp(
        &mut self,
        vid: Vid,
        operation: Operation,
        local: Ipv4Addr,
        (to, ip): (MacAddr, Ipv4Addr),
    ) -> bool {
        let mac = MacAddr(self.cfg.mac);
        let mut header = [0; ethernet::HEADER_LEN];
        EthernetHeader { dst: to, src: mac, ethertype: EtherType::ARP }.emit(&mut header);
        let mut packet = [0; PACKET_LEN];
        Arp {
            operation,
            sender_mac: mac,
            sender_ip: local,
            target_mac: if operation == Operation::Request { MacAddr::default() } else { to },
            target_ip: ip,
        }
        .emit(&mut packet);
        let tag = self.cfg.net.tag(vid, 0);
        self.push_control(Control::Neighbor, plain_frame(&[&header, &packet], TxBody::None, tag))
    }
}

/// Returns a frame that is not TCP: `headers` are the Ethernet header, and the IP header or an ARP
/// packet.
pub(super) fn plain_frame(headers: &[&[u8]; 2], body: TxBody, tag: Tag) -> TxFrame {
    let mut header = ArrayVec::new();
    for h in headers {
        let fits = header.try_extend_from_slice(h);
        debug_assert!(fits.is_ok());
    }
    let len = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    let l3_len = if matches!(body, TxBody::None) { 0 } else { len(headers[1].len()) };
    let (l2_len, is_ipv6) = (len(headers[0].len()), headers[1].len() == ipv6::HEADER_LEN);
    let mut frame = TxFrame { header, body, l2_len, l3_len, is_ipv6, ..TxFrame::default() };
    if !tag.is_none() {
        frame.put_tag(tag);
    }
    frame
}
