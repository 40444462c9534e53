//! Neighbor discovery (RFC 4861): our questions and answers, and what we learn from others'.
//!
//! The messages fill the same table as ARP packets, by the same [rules](super::neighbor): a solicited
//! advertisement answers our question, a solicitation for our address introduces its sender, and
//! everything else is only a claim. A claim of another station address for a neighbor in use is
//! tested first, also where its sender sets the Override flag.
//!
//! Our addresses are in use from the moment on at which the owner configures them. At the same time
//! the stack asks whether another host has the address (RFC 4862 section 5.4, as RFC 4429 lets a
//! host do that expects no conflict), counts a conflict that it hears of, and tells the owner of one
//! that it hears of soon.
//!
//! The stack follows no redirect: a host that sends one could lead traffic to any station of the link.

use core::net::{IpAddr, Ipv6Addr};
use heddle_base::Instant;

use super::Stack;
use super::control::Control;
use super::counters::DropReason;
use super::input::Layer2;
use super::neighbor::{LinkAddr, Source};
use super::questions::Question;
use crate::SendQueue;
use crate::wire::icmpv6::{HOP_LIMIT, Message, neighbor_advert, neighbor_solicit};
use crate::wire::{Ipv6Header, MacAddr, Vid, ipv6};

impl<S: SendQueue + Default> Stack<S> {
    /// Takes a message of neighbor discovery, which has come from the link itself.
    pub(super) fn take_discovery(
        &mut self,
        now: Instant,
        eth: &Layer2,
        ip: &Ipv6Header,
        message: &Message<'_>,
    ) -> Result<(), DropReason> {
        if !eth.src.is_station() {
            return Err(DropReason::NdMalformed);
        }
        match message {
            &Message::NeighborSolicit { target, source } => {
                self.take_solicitation(now, eth, ip, target, source)
            }
            &Message::NeighborAdvert { target, station, solicited, .. } => {
                self.take_advertisement(now, eth.vid, ip, (target, station, solicited))
            }
            Message::RouterAdvert(advert) => self.take_router_advert(now, eth.vid, ip, advert),
            _ => Err(DropReason::NdIgnored),
        }
    }

    /// RFC 4861 sections 7.1.1 and 7.2.3.
    fn take_solicitation(
        &mut self,
        now: Instant,
        eth: &Layer2,
        ip: &Ipv6Header,
        target: Ipv6Addr,
        source: Option<MacAddr>,
    ) -> Result<(), DropReason> {
        // A host that has no address yet asks whether ours is taken.
        let probe = ip.src.is_unspecified();
        let group = ipv6::solicited_node(target);
        if target.is_multicast() || probe && (source.is_some() || ip.dst != group) {
            return Err(DropReason::NdMalformed);
        }
        if ip.dst != group && ip.dst != target {
            return Err(DropReason::NdIgnored);
        }
        let net = self.cfg.net.on(eth.vid);
        if net.is_ours(ip.src.into()) {
            let ours = eth.src.0 == self.cfg.mac;
            return Err(if ours { DropReason::NdIgnored } else { DropReason::NdConflicts });
        }
        if !net.is_ours(target.into()) {
            return Err(DropReason::NdIgnored);
        }
        let from = IpAddr::V6(ip.src);
        if probe && eth.src.0 == self.cfg.mac {
            // Our own question, which a switch sent back.
            return Err(DropReason::NdIgnored);
        }
        if !probe {
            if net.link_to(from).is_none() || !net.is_peer(from) {
                return Err(DropReason::NdMalformed);
            }
            if let Some(mac) = source {
                self.learn(now, LinkAddr::new(eth.vid, from), mac, Source::Request);
            }
        }
        let asker = source.unwrap_or(eth.src);
        let who = LinkAddr::new(eth.vid, from);
        if self.may_tell(now, &Question { who, station: asker, target: target.into() }) {
            let mac = MacAddr(self.cfg.mac);
            let (dst, station) = if probe {
                (ipv6::ALL_NODES, MacAddr::of_group(ipv6::ALL_NODES))
            } else {
                (ip.src, asker)
            };
            let answer = neighbor_advert(target, dst, target, mac, !probe);
            let sent = self.push_discovery(eth.vid, target, (dst, station), answer);
            self.counters.tx_neighbor_adverts += u64::from(sent);
        }
        Ok(())
    }

    /// RFC 4861 sections 7.1.2 and 7.2.5.
    fn take_advertisement(
        &mut self,
        now: Instant,
        vid: Vid,
        ip: &Ipv6Header,
        (target, station, solicited): (Ipv6Addr, Option<MacAddr>, bool),
    ) -> Result<(), DropReason> {
        if target.is_multicast() || solicited && ip.dst.is_multicast() {
            return Err(DropReason::NdMalformed);
        }
        let net = self.cfg.net.on(vid);
        if net.is_ours(target.into()) {
            if station.is_some_and(|mac| mac.0 == self.cfg.mac) {
                return Err(DropReason::NdIgnored);
            }
            self.report_conflict(now, vid, target);
            return Err(DropReason::NdConflicts);
        }
        let who = LinkAddr::new(vid, target.into());
        if net.link_to(who.ip).is_none() || !net.is_peer(who.ip) {
            return Err(DropReason::NdMalformed);
        }
        // An answer to a question that we put to the station alone need not repeat its address.
        let known = || self.neighbors.known(who);
        let Some(mac) = station.or_else(known) else { return Err(DropReason::NdIgnored) };
        let source =
            if solicited && net.is_ours(ip.dst.into()) { Source::Reply } else { Source::Overheard };
        if self.learn(now, who, mac, source) { Ok(()) } else { Err(DropReason::NdIgnored) }
    }

    /// Queues a message of neighbor discovery for a host of the link `vid` and its station.
    pub(super) fn push_discovery(
        &mut self,
        vid: Vid,
        src: Ipv6Addr,
        to: (Ipv6Addr, MacAddr),
        message: Vec<u8>,
    ) -> bool {
        self.push_icmpv6(Control::Neighbor, (vid, src), to, (HOP_LIMIT, 0), message)
    }

    /// Asks which station of the link `vid` has `ip`: the station `at`, or all stations that may
    /// have it.
    pub(super) fn solicit(&mut self, vid: Vid, local: Ipv6Addr, ip: Ipv6Addr, at: MacAddr) {
        let (dst, station) = if at == MacAddr::BROADCAST {
            let group = ipv6::solicited_node(ip);
            (group, MacAddr::of_group(group))
        } else {
            (ip, at)
        };
        let question = neighbor_solicit(local, dst, ip, MacAddr(self.cfg.mac));
        let sent = self.push_discovery(vid, local, (dst, station), question);
        self.counters.tx_neighbor_solicits += u64::from(sent);
    }

    /// Tells all nodes of the link `vid` which station has our address `ip`, and asks whether another host
    /// has it as well.
    pub(super) fn advertise_unasked(&mut self, vid: Vid, ip: Ipv6Addr) {
        self.join(vid, ip);
        let mac = MacAddr(self.cfg.mac);
        let group = ipv6::solicited_node(ip);
        let none = Ipv6Addr::UNSPECIFIED;
        let probe = neighbor_solicit(none, group, ip, mac);
        let to = (group, MacAddr::of_group(group));
        let sent = self.push_discovery(vid, none, to, probe);
        self.counters.tx_neighbor_solicits += u64::from(sent);
        let all = ipv6::ALL_NODES;
        let told = neighbor_advert(ip, all, ip, mac, false);
        let to = (all, MacAddr::of_group(all));
        let sent = self.push_discovery(vid, ip, to, told);
        self.counters.tx_neighbor_adverts += u64::from(sent);
    }
}
