//! News about the links that the stack cannot decide on by itself: routers and their prefixes, and
//! other hosts with an address of ours. The owner decides ([`Autoconf`](crate::autoconf::Autoconf)),
//! for all stacks of a port together.

use std::collections::VecDeque;

use core::net::{IpAddr, Ipv6Addr};
use heddle_base::Instant;

use super::Stack;
use super::counters::DropReason;
use super::limit::ByLink;
use super::neighbor::LinkAddr;
use crate::SendQueue;
use crate::wire::icmpv6::{RouterAdvert, router_solicit};
use crate::wire::{Ipv6Header, MacAddr, Vid, ipv6};

/// News of a stack about its links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkNews {
    /// A router has told about itself and its link.
    Router {
        /// The VLAN of the link.
        vid: Vid,
        /// The router's link-local address.
        from: Ipv6Addr,
        /// The contents of the message.
        advert: Box<RouterAdvert>,
    },
    /// Another host has an address of ours, and told so soon after the stack had asked (RFC 4862
    /// section 5.4.4).
    Conflict {
        /// The VLAN of the link.
        vid: Vid,
        /// Our address.
        addr: Ipv6Addr,
    },
    /// The default router of a link does not answer, and this one of its spare routers does (RFC
    /// 4861 section 6.3.6).
    RouterAnswers {
        /// The VLAN of the link.
        vid: Vid,
        /// The router that does not answer.
        silent: Ipv6Addr,
        /// The router that answers.
        router: Ipv6Addr,
    },
}

impl LinkNews {
    /// Returns the VLAN of the link.
    pub fn vid(&self) -> Vid {
        match self {
            LinkNews::Router { vid, .. }
            | LinkNews::Conflict { vid, .. }
            | LinkNews::RouterAnswers { vid, .. } => *vid,
        }
    }
}

/// A spare router that is asked for in place of the default router of its link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought {
    /// The spare router, which counts this as its user.
    neighbor: u32,
    /// The default router.
    silent: Ipv6Addr,
}

/// The most news of a link that wait for the owner, and that a second brings: other links' news
/// have room besides.
const MOST: u32 = 16;

/// The news that wait for the owner.
#[derive(Debug)]
pub(super) struct News {
    waiting: VecDeque<LinkNews>,
    rate: ByLink,
}

impl Default for News {
    fn default() -> News {
        News { waiting: VecDeque::new(), rate: ByLink::per_second(MOST) }
    }
}

impl News {
    /// Keeps news for the owner. Returns false when too many have come.
    fn push(&mut self, now: Instant, news: LinkNews) -> bool {
        let vid = news.vid();
        let waiting = self.waiting.iter().filter(|n| n.vid() == vid).count();
        // A router's answer follows from a question of ours, so there are few. Forged advertisements,
        // which fill only the first half of the room, must not hide it.
        let fits = match news {
            LinkNews::RouterAnswers { .. } => waiting < 2 * MOST as usize,
            _ => waiting < MOST as usize && self.rate.allow(now, vid),
        };
        if fits {
            self.waiting.push_back(news);
        }
        fits
    }
}

impl<S: SendQueue + Default> Stack<S> {
    /// Returns true if [`Stack::poll_news`] has something to return.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.udp.news.waiting.is_empty()
    }

    /// Returns the next news about the links. The stack keeps few and drops the rest.
    pub fn poll_news(&mut self) -> Option<LinkNews> {
        self.udp.news.waiting.pop_front()
    }

    /// Asks the routers of the link `vid` to tell about themselves (RFC 4861 section 6.3.7), if the
    /// stack has a link-local address there. Where several workers share the port, the worker that answers ARP
    /// asks.
    pub fn solicit_routers(&mut self, vid: Vid) {
        let Some(src) = self.link_local(vid) else { return };
        if !self.cfg.spread.answers_arp() || self.cfg.net.is_inside() {
            return;
        }
        let dst = ipv6::ALL_ROUTERS;
        let question = router_solicit(src, dst, MacAddr(self.cfg.mac));
        let to = (dst, MacAddr::of_group(dst));
        let sent = self.push_discovery(vid, src, to, question);
        self.counters.tx_router_solicits += u64::from(sent);
    }

    /// Takes what a router tells (RFC 4861 section 6.1.2).
    pub(super) fn take_router_advert(
        &mut self,
        now: Instant,
        vid: Vid,
        ip: &Ipv6Header,
        advert: &RouterAdvert,
    ) -> Result<(), DropReason> {
        if !ip.src.is_unicast_link_local() {
            return Err(DropReason::NdMalformed);
        }
        // All workers of the port may hear the router; only one reports it.
        let hears = self.hears_routers(vid) && self.cfg.spread.answers_arp();
        let ours = |ip: Ipv6Addr| self.cfg.net.on(vid).is_ours(ip.into());
        if !hears || ours(ip.src) || ip.dst != ipv6::ALL_NODES && !ours(ip.dst) {
            return Err(DropReason::NdIgnored);
        }
        let news = LinkNews::Router { vid, from: ip.src, advert: Box::new(advert.clone()) };
        if self.udp.news.push(now, news) {
            self.counters.rx_router_adverts += 1;
            Ok(())
        } else {
            Err(DropReason::NdIgnored)
        }
    }

    /// Tells the owner that another host says that it has our address, if the stack has begun to use
    /// the address only now. Later the claim is no more than that: any host could make it, to take
    /// the address from us.
    pub(super) fn report_conflict(&mut self, now: Instant, vid: Vid, addr: Ipv6Addr) {
        if self.hears_routers(vid) && self.announcer.is_new(LinkAddr::new(vid, addr.into())) {
            let _ = self.udp.news.push(now, LinkNews::Conflict { vid, addr });
        }
    }

    /// Asks the spare routers of a link whose default router, a neighbor, does not answer.
    #[cold]
    pub(super) fn seek_router(&mut self, now: Instant, neighbor: u32) {
        let Some(LinkAddr { vid, ip }) = self.neighbors.at(neighbor) else { return };
        let IpAddr::V6(silent) = ip else { return };
        let net = self.cfg.net.on(vid);
        let (spares, local) = (net.spares_of(ip).to_vec(), net.link_to(ip));
        for router in spares {
            let at = LinkAddr::new(vid, router.into());
            let Some((sought, ask)) = self.neighbors.acquire(now, at) else { continue };
            if self.neighbors.settled(sought).is_some() {
                self.neighbors.release(sought);
                let _ = self.udp.news.push(now, LinkNews::RouterAnswers { vid, silent, router });
                return;
            }
            if self.udp.sought.iter().any(|s| s.neighbor == sought) {
                self.neighbors.release(sought);
                continue;
            }
            self.udp.sought.push(Sought { neighbor: sought, silent });
            if let (true, Some(local)) = (ask, local) {
                self.ask(local, at, MacAddr::BROADCAST);
            }
        }
    }

    /// Tells the owner of a spare router that has answered, or forgets one that has not.
    pub(super) fn end_search(&mut self, now: Instant, neighbor: u32, answers: bool) {
        let Some(place) = self.udp.sought.iter().position(|s| s.neighbor == neighbor) else {
            return;
        };
        let Sought { silent, .. } = self.udp.sought.swap_remove(place);
        let at = self.neighbors.at(neighbor);
        self.neighbors.release(neighbor);
        if let Some(LinkAddr { vid, ip: IpAddr::V6(router) }) = at.filter(|_| answers) {
            let _ = self.udp.news.push(now, LinkNews::RouterAnswers { vid, silent, router });
        }
    }

    /// Returns true if the owner wants to know what the routers of the link tell.
    fn hears_routers(&self, vid: Vid) -> bool {
        if vid.is_none() { self.cfg.hears_routers } else { self.cfg.net.hears_routers_on(vid) }
    }
}
