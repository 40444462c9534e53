//! Announcements of our addresses (RFC 5227 section 2.3): hosts of our links believe what they know of an
//! address for a quarter of a minute and longer, and after a change of NIC that leads to a station which
//! is gone. A broadcast question for our own address corrects what they know.
//!
//! The owner asks for announcements when it starts, and when a link has come up; addresses that are added
//! later are announced without being asked for.

use std::collections::VecDeque;

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use heddle_base::Instant;

use super::Stack;
use crate::SendQueue;
use crate::wire::MacAddr;
use crate::wire::arp::Operation;

/// Between the two announcements of an address (`ANNOUNCE_INTERVAL`; there are two, `ANNOUNCE_NUM`).
const INTERVAL: Duration = Duration::from_secs(2);

/// Between any two, so that a port with many addresses, or a link that flaps, does not take the place of
/// answers: 50 a second, whoever asks for them how often.
const PACE: Duration = Duration::from_millis(20);

const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Addresses that are to be announced.
#[derive(Debug)]
pub(super) struct Announcer {
    /// Now.
    first: VecDeque<Ipv4Addr>,
    /// Once more, the earliest first.
    again: VecDeque<(Instant, Ipv4Addr)>,
    /// Not before.
    paced: Instant,
    /// When there is something to announce.
    next: Instant,
}

impl Default for Announcer {
    fn default() -> Announcer {
        let (first, again) = (VecDeque::new(), VecDeque::new());
        Announcer { first, again, paced: Instant::ZERO, next: NEVER }
    }
}

impl Announcer {
    /// Announces an address from now on, twice; what was left of an earlier time is forgotten.
    fn push(&mut self, ip: Ipv4Addr) {
        self.first.retain(|known| *known != ip);
        self.again.retain(|(_, known)| *known != ip);
        self.first.push_back(ip);
        self.schedule();
    }

    fn schedule(&mut self) {
        let again = self.again.front().map(|(at, _)| *at);
        let at = if self.first.is_empty() { again } else { Some(Instant::ZERO) };
        self.next = at.map_or(NEVER, |at| at.max(self.paced));
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        (self.next != NEVER).then_some(self.next)
    }

    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// The address to announce now.
    fn poll(&mut self, now: Instant) -> Option<Ipv4Addr> {
        if !self.is_due(now) {
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
    /// Has the hosts of our links told which station has our addresses: each address is announced twice,
    /// two seconds apart. To be called when the port starts and when its link has come up; calls that
    /// come sooner than that begin anew and do not make for more than 50 announcements a second. Where
    /// several workers share the port, the one that answers ARP announces.
    pub fn announce(&mut self) {
        let ours = self.cfg.net.addrs().iter().map(|c| c.addr()).collect::<Vec<_>>();
        self.announce_each(&ours);
    }

    pub(super) fn announce_each(&mut self, addrs: &[IpAddr]) {
        if !self.cfg.spread.answers_arp() || self.cfg.net.is_inside() {
            return;
        }
        for addr in addrs {
            if let IpAddr::V4(ip) = addr {
                self.announcer.push(*ip);
            }
        }
    }

    /// Sends the announcement that is due.
    #[cold]
    pub(super) fn handle_announcements(&mut self, now: Instant) {
        let Some(ip) = self.announcer.poll(now) else { return };
        // It may have been taken away meanwhile.
        if self.cfg.net.is_ours(IpAddr::V4(ip)) {
            let sent = self.push_arp(Operation::Request, ip, MacAddr::BROADCAST, ip);
            self.counters.tx_arp_announcements += u64::from(sent);
        }
    }
}
