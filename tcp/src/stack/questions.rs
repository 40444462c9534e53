//! Budgets for answers to questions for our addresses (ARP and neighbor discovery).
//!
//! Anyone on a link can ask, under any address. Two kinds of askers have budgets apart from each
//! other: the hosts on which something depends, and all others.
//!
//! - A host of the first kind is a gateway of ours, or a neighbor through which connections go, at
//!   the station that the table of neighbors has for it. If such a host gets no answer, it takes us
//!   for gone, and the connections with it. Each has a budget that no other host can use up: a
//!   question under its address from another station is of the second kind, and the answer to a
//!   question under its address and its station reaches the host itself.
//! - The others share a budget for each link, of which an asker gets an answer per second for each of
//!   our addresses. A smaller budget is for those who ask more often: it is for all of them, and a
//!   flood uses it up. The answers to strangers take half of the queue at most, so that our own
//!   questions find room.

use core::net::IpAddr;

use heddle_base::Instant;

use super::Stack;
use super::addressing::MAX_VLANS;
use super::control::{Control, MAX_EACH};
use super::limit::{RateLimit, Sources};
use super::neighbor::LinkAddr;
use crate::SendQueue;
use crate::wire::{MacAddr, Vid};

/// The most answers per second to strangers, on each link, and to those who ask often.
const TO_STRANGERS: u32 = 450;
const TO_THE_HASTY: u32 = 50;
/// The most answers per second to a stranger about one of our addresses. A host that gets no answer
/// asks once a second. The hosts of a network of 24 bits, all together, find room in the budget of
/// their link.
const TO_A_STRANGER: u32 = 1;
/// The most answers per second about one of our addresses to a host on which something depends.
const TO_A_NEIGHBOR: u32 = 10;

/// A question for an address of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// The host that asks, and its link; it has no address yet if it is the unspecified address.
    pub(super) who: LinkAddr,
    /// The station of the host.
    pub(super) station: MacAddr,
    /// Our address.
    pub(super) target: IpAddr,
}

/// The budgets.
pub(super) struct Questions {
    neighbors: Sources,
    /// The budgets of strangers, of each link that has any.
    links: Vec<(Vid, Strangers)>,
    key: [u8; 16],
}

/// The budgets of a link's strangers: of each, and of all together.
struct Strangers {
    each: Sources,
    all: RateLimit,
    hasty: RateLimit,
}

impl Questions {
    pub(super) fn new(key: [u8; 16]) -> Questions {
        Questions { neighbors: Sources::per_second(TO_A_NEIGHBOR, key), links: Vec::new(), key }
    }

    fn allow_stranger(&mut self, now: Instant, q: &Question) -> bool {
        let &Question { who, station, target } = q;
        let at = self.links.iter().position(|(vid, _)| *vid == who.vid);
        let at = at.unwrap_or_else(|| {
            if self.links.len() > MAX_VLANS {
                // The others may be VLANs that the port no longer has.
                self.links.clear();
            }
            let each = Sources::per_second(TO_A_STRANGER, self.key);
            let all = RateLimit::per_second(TO_STRANGERS);
            let hasty = RateLimit::per_second(TO_THE_HASTY);
            self.links.push((who.vid, Strangers { each, all, hasty }));
            self.links.len() - 1
        });
        let Some((_, link)) = self.links.get_mut(at) else { return false };
        // A host without an address has its station's name.
        let name = if who.ip.is_unspecified() { station.0 } else { [0; 6] };
        // Hosts share budgets by the hash of their names. In each second others do, so that a host
        // does not share with a flood for long.
        let second = now.as_millis() / 1000;
        let asker = (who.ip, name, target, second);
        link.each.allow(now, asker) && link.all.allow(now) || link.hasty.allow(now)
    }
}

impl<S: SendQueue + Default> Stack<S> {
    /// Returns true if the stack answers the question, and charges the answer. Where several workers
    /// share the port, all of them may see the question and only one answers.
    pub(super) fn may_tell(&mut self, now: Instant, q: &Question) -> bool {
        if !self.cfg.spread.answers_arp() {
            return false;
        }
        let &Question { who, station, target } = q;
        let allowed = if self.depends_on(who, station) {
            self.questions.neighbors.allow(now, (who, station.0, target))
        } else {
            self.control.waiting(Control::Neighbor) < MAX_EACH / 2
                && self.questions.allow_stranger(now, q)
        };
        self.counters.questions_limited += u64::from(!allowed);
        allowed
    }

    /// Returns true if the host is a gateway, or connections go through it, and nothing says that it is
    /// at another station.
    fn depends_on(&self, who: LinkAddr, station: MacAddr) -> bool {
        let is_gateway = || self.cfg.net.on(who.vid).is_gateway(who.ip);
        match self.neighbors.known(who) {
            Some(known) => known == station && (self.neighbors.is_used(who) || is_gateway()),
            None => is_gateway(),
        }
    }
}
