//! Announcements of our addresses (RFC 5227 section 2.3; for IPv6 RFC 4861 section 7.2.6). Hosts of
//! our links keep the station of an address for a quarter of a minute and longer, and after a change
//! of NIC this station no longer exists. A broadcast question for our own address, or an
//! advertisement to all nodes, corrects their entries.
//!
//! The owner asks for announcements when it starts, and when a link has come up. The stack
//! announces addresses that are added later without being asked.

use std::collections::VecDeque;

use core::net::IpAddr;
use core::time::Duration;
use heddle_base::Instant;

use super::Stack;
use super::mld::Owed;
use super::neighbor::LinkAddr;
use crate::SendQueue;
use crate::wire::arp::Operation;
use crate::wire::{MacAddr, Vid};

/// The time between the two announcements of an address (`ANNOUNCE_INTERVAL`; there are two,
/// `ANNOUNCE_NUM`).
const INTERVAL: Duration = Duration::from_secs(2);

/// The least time between any two announcements: 50 a second, however often the owner asks for
/// them. A port with many addresses, or a link that flaps, thus leaves room for answers.
const PACE: Duration = Duration::from_millis(20);

const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// The addresses that wait to be announced.
#[derive(Debug)]
pub(super) struct Announcer {
    /// Addresses to announce now, for the first time.
    first: VecDeque<LinkAddr>,
    /// Addresses to announce once more, and when, the earliest first.
    again: VecDeque<(Instant, LinkAddr)>,
    /// The answers owed to queries for multicast groups, one on each link at most.
    owed: Vec<Owed>,
    /// The stack announces nothing before this instant.
    paced: Instant,
    /// When the next announcement is due.
    next: Instant,
}

impl Default for Announcer {
    fn default() -> Announcer {
        let (first, again) = (VecDeque::new(), VecDeque::new());
        Announcer { first, again, owed: Vec::new(), paced: Instant::ZERO, next: NEVER }
    }
}

impl Announcer {
    /// Announces an address from now on, twice. Forgets an earlier announcement of the same address
    /// that is not complete.
    fn push(&mut self, ip: LinkAddr) {
        self.first.retain(|known| *known != ip);
        self.again.retain(|(_, known)| *known != ip);
        self.first.push_back(ip);
        self.schedule();
    }

    fn schedule(&mut self) {
        let again = self.again.front().map(|(at, _)| *at);
        let at = if self.first.is_empty() { again } else { Some(Instant::ZERO) };
        let next = at.map_or(NEVER, |at| at.max(self.paced));
        self.next = self.owed.iter().map(|owed| owed.at).min().map_or(next, |at| at.min(next));
    }

    /// Returns true if the stack has announced the address once, less than [`INTERVAL`] ago.
    pub(super) fn is_new(&self, ip: LinkAddr) -> bool {
        self.again.iter().any(|(_, known)| *known == ip)
    }

    /// Returns the answer owed on the link `vid`.
    pub(super) fn owed(&self, vid: Vid) -> Option<Owed> {
        self.owed.iter().find(|owed| owed.vid == vid).copied()
    }

    /// Makes the stack answer a query, with this answer in place of one that it owes on the link.
    pub(super) fn owe(&mut self, owed: Owed) {
        self.owed.retain(|o| o.vid != owed.vid);
        self.owed.push(owed);
        self.schedule();
    }

    /// Returns the answer to a query that is due.
    fn poll_owed(&mut self, now: Instant) -> Option<Owed> {
        let due = self.owed.iter().position(|owed| owed.at <= now)?;
        let due = self.owed.swap_remove(due);
        self.schedule();
        Some(due)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        (self.next != NEVER).then_some(self.next)
    }

    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// Returns the address to announce now, if an announcement is due.
    fn poll(&mut self, now: Instant) -> Option<LinkAddr> {
        if !self.is_due(now) || self.paced > now {
            return None;
        }
        let ip = match self.first.pop_front() {
            Some(ip) => {
                self.again.push_back((now + INTERVAL, ip));
                Some(ip)
            }
            None => self.again.pop_front().map(|(_, ip)| ip),
        };
        self.paced = now + PACE;
        self.schedule();
        ip
    }
}

impl<S: SendQueue + Default> Stack<S> {
    /// Announces to the hosts of our links which station has our addresses: each address twice, two
    /// seconds apart. The owner calls this function when the port starts and when its link has come
    /// up. A call within these two seconds begins anew and does not cause more than 50
    /// announcements a second. Where several workers share the port, the worker that answers ARP
    /// announces.
    pub fn announce(&mut self) {
        let ours = self.cfg.net.all_addrs().map(|(vid, c)| LinkAddr::new(vid, c.addr()));
        let ours = ours.collect::<Vec<_>>();
        self.announce_each(&ours);
    }

    pub(super) fn announce_each(&mut self, addrs: &[LinkAddr]) {
        if !self.cfg.spread.answers_arp() || self.cfg.net.is_inside() {
            return;
        }
        for addr in addrs {
            self.announcer.push(*addr);
        }
    }

    /// Sends the announcement that is due.
    #[cold]
    pub(super) fn handle_announcements(&mut self, now: Instant) {
        if let Some(owed) = self.announcer.poll_owed(now) {
            self.answer_query(owed);
        }
        let Some(LinkAddr { vid, ip }) = self.announcer.poll(now) else { return };
        // The owner may have removed the address meanwhile.
        if !self.cfg.net.on(vid).is_ours(ip) {
            return;
        }
        match ip {
            IpAddr::V4(ip) => {
                let to = (MacAddr::BROADCAST, ip);
                let sent = self.push_arp(vid, Operation::Request, ip, to);
                self.counters.tx_arp_announcements += u64::from(sent);
            }
            IpAddr::V6(ip) => self.advertise_unasked(vid, ip),
        }
    }
}
