//! Reports to the switches of a link which multicast groups the stack hears (RFC 3810): without them
//! a switch that forwards groups only to those who asked keeps other hosts' questions for our
//! addresses from us. The groups are those of neighbor discovery, one for each IPv6 address.

use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use heddle_base::Instant;

use super::Stack;
use super::arp::plain_frame;
use super::control::Control;
use super::counters::DropReason;
use super::frame::{RxFrame, TxBody};
use crate::SendQueue;
use crate::wire::mld::{self, Query};
use crate::wire::{EtherType, EthernetHeader, Ipv6Header, MacAddr, Vid, ethernet, ipv6};

/// The longest query that the stack reads: nothing of it behind the group matters.
const LONGEST: usize = 128;

/// The answer that the stack owes to a query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    /// The link of the query.
    pub(super) vid: Vid,
    /// When the answer is due.
    pub(super) at: Instant,
    /// The group asked for; `None` for all.
    group: Option<Ipv6Addr>,
    is_v1: bool,
}

impl<S: SendQueue + Default> Stack<S> {
    /// Takes a packet with hop-by-hop options: a query, and nothing else.
    #[inline(never)]
    pub(super) fn take_hop_by_hop<F: RxFrame + ?Sized>(
        &mut self,
        now: Instant,
        frame: &F,
        vid: Vid,
        ip: &Ipv6Header,
    ) -> Result<(), DropReason> {
        let other = Err(DropReason::RxExtensionHeader);
        if ip.hop_limit != mld::HOP_LIMIT
            || !ip.src.is_unicast_link_local()
            || !ip.dst.is_multicast()
            || ip.payload_len > LONGEST
        {
            return other;
        }
        let mut bytes = [0; LONGEST];
        let bytes = &mut bytes[..ip.payload_len];
        frame.copy_at(ethernet::HEADER_LEN + ipv6::HEADER_LEN, bytes);
        let Some(query) = Query::parse(bytes, ip.src, ip.dst) else { return other };
        if !self.cfg.spread.answers_arp() || self.link_local(vid).is_none() {
            return Err(DropReason::NdIgnored);
        }
        self.counters.rx_mld_queries += 1;
        // An answer that is owed already serves, if it is for all groups and comes soon enough. A
        // flood of queries thus draws one answer in each of their times.
        let within = query.within.max(Duration::from_millis(10));
        let at = now + self.ids.part_of(now, within);
        let owed = match self.announcer.owed(vid) {
            Some(o) if o.at <= now + within => Owed {
                group: if o.group == query.group { o.group } else { None },
                is_v1: o.is_v1 || query.is_v1,
                ..o
            },
            _ => Owed { vid, at, group: query.group, is_v1: query.is_v1 },
        };
        self.announcer.owe(owed);
        Ok(())
    }

    /// Reports the groups that a query asks for.
    pub(super) fn answer_query(&mut self, owed: Owed) {
        let mut groups: Vec<Ipv6Addr> = Vec::new();
        for addr in self.cfg.net.on(owed.vid).addrs().iter().map(|c| c.addr()) {
            let IpAddr::V6(ip) = addr else { continue };
            let group = ipv6::solicited_node(ip);
            if owed.group.is_none_or(|g| g == group) && !groups.contains(&group) {
                groups.push(group);
            }
        }
        if owed.is_v1 {
            for group in groups {
                self.push_report(owed.vid, group, |src| mld::report_v1(src, group));
            }
        } else {
            for groups in groups.chunks(mld::MAX_GROUPS) {
                let all = mld::ALL_V2_ROUTERS;
                self.push_report(owed.vid, all, |src| mld::report(src, groups, false));
            }
        }
    }

    /// Reports that the stack hears questions for its new address `ip` of the link `vid` from now on.
    pub(super) fn join(&mut self, vid: Vid, ip: Ipv6Addr) {
        let group = ipv6::solicited_node(ip);
        self.push_report(vid, mld::ALL_V2_ROUTERS, |src| mld::report(src, &[group], true));
    }

    /// Returns our link-local address on the link `vid`.
    pub(super) fn link_local(&self, vid: Vid) -> Option<Ipv6Addr> {
        self.cfg.net.on(vid).addrs().iter().find_map(|c| match c.addr() {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(ip),
            _ => None,
        })
    }

    /// Queues the report that `message` makes for our link-local address.
    fn push_report(&mut self, vid: Vid, dst: Ipv6Addr, message: impl FnOnce(Ipv6Addr) -> Vec<u8>) {
        let Some(src) = self.link_local(vid) else { return };
        let payload = message(src);
        let mac = MacAddr(self.cfg.mac);
        let mut eth = [0; ethernet::HEADER_LEN];
        let station = MacAddr::of_group(dst);
        EthernetHeader { dst: station, src: mac, ethertype: EtherType::IPV6 }.emit(&mut eth);
        let mut header = [0; ipv6::HEADER_LEN];
        Ipv6Header {
            src,
            dst,
            next_header: ipv6::HOP_BY_HOP,
            hop_limit: mld::HOP_LIMIT,
            traffic_class: 0,
            flow_label: 0,
            payload_len: payload.len(),
        }
        .emit(&mut header);
        let tag = self.cfg.net.tag(vid, 0);
        let frame = plain_frame(&[&eth, &header], TxBody::Owned(payload), tag);
        let sent = self.push_control(Control::Neighbor, frame);
        self.counters.tx_mld_reports += u64::from(sent);
    }
}
