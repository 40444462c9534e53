//! The life of an entry: asked for, confirmed, contested, given up; by what ARP packets say and by
//! time. Why so, see the [parent](super).

use core::net::Ipv4Addr;
use core::time::Duration;
use heddle_base::Instant;

use super::{Neighbor, Neighbors};
use crate::wire::MacAddr;

/// What is to be done about a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) enum Due {
    /// Ask for `ip`, at this hardware address or everywhere.
    Ask { ip: Ipv4Addr, at: MacAddr },
    /// It never answered: its users fail.
    Failed(u32),
    /// It is in use but no longer answers; its address is kept.
    Unconfirmed,
    /// The station it was at is silent: it is at `at` now, which is to confirm it.
    Changed { neighbor: u32, ip: Ipv4Addr, at: MacAddr },
}

/// How we come to know an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) enum Source {
    /// An answer sent to us.
    Reply,
    /// A question for one of our addresses.
    Request,
    /// A packet meant for others.
    Overheard,
}

/// What an ARP packet changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) enum Learned {
    /// Nothing.
    Ignored,
    /// Known before.
    Confirmed,
    /// A new neighbor.
    New,
    /// Someone waited for this one.
    Resolved(u32),
    /// It has another address now.
    Changed,
    /// It is said to be elsewhere: ask the station we know, which is here.
    Contested(MacAddr),
    /// It is said to be elsewhere, too soon after the same was found wrong.
    Refused,
    /// The station we know answers: another's claim was wrong.
    Defended(u32),
}

/// How far an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Asked so many times, never answered.
    Incomplete(u8),
    /// Known.
    Reachable,
    /// Known, but the answer is old; asked again so many times.
    Probing(u8),
    /// Known, but another station claims to be it; the one we know was asked so many times.
    Contested { claim: MacAddr, tries: u8 },
    /// Never answered; waits for its users to leave.
    Failed,
}

impl Neighbors {
    /// `ip` is said to be at `mac`.
    pub(in crate::stack) fn learn(
        &mut self,
        now: Instant,
        ip: Ipv4Addr,
        mac: MacAddr,
        source: Source,
    ) -> Learned {
        let Some(&index) = self.by_ip.get(&ip) else {
            if source != Source::Request {
                return Learned::Ignored;
            }
            let n = Neighbor::new(ip, mac, State::Reachable, now, 0);
            return match self.insert(n) {
                Some(index) => {
                    self.timers.arm(index, now + LIFETIME);
                    Learned::New
                }
                None => Learned::Ignored,
            };
        };
        let Some(n) = self.slots.get_mut(index) else { return Learned::Ignored };
        let outcome = match n.state {
            State::Incomplete(_) if source == Source::Overheard => return Learned::Ignored,
            State::Incomplete(_) => {
                self.incomplete -= 1;
                Learned::Resolved(index)
            }
            State::Contested { .. } if n.mac == mac => {
                n.quiet_until = now + QUIET;
                Learned::Defended(index)
            }
            _ if n.mac == mac => Learned::Confirmed,
            // Everyone was asked, since the station we know did not answer.
            State::Probing(tries) if tries > TRIES && source == Source::Reply => Learned::Changed,
            State::Contested { .. } => return Learned::Ignored,
            _ if n.users == 0 => {
                self.remove(index);
                return Learned::Changed;
            }
            _ if now < n.quiet_until => return Learned::Refused,
            _ => {
                n.state = State::Contested { claim: mac, tries: 1 };
                let known = n.mac;
                self.timers.arm(index, now + CONTEST);
                return Learned::Contested(known);
            }
        };
        n.mac = mac;
        n.state = State::Reachable;
        n.fresh = now;
        if n.idle.is_in() {
            // It is the youngest again.
            self.idle.remove(&mut self.slots, index);
            self.idle.push(&mut self.slots, index);
        }
        self.timers.arm(index, now + LIFETIME);
        outcome
    }

    /// What is due at `now`; call until it gives `None`.
    pub(in crate::stack) fn poll_due(&mut self, now: Instant) -> Option<Due> {
        while let Some(index) = self.timers.pop_due(now) {
            let Some(n) = self.slots.get_mut(index) else { continue };
            match n.state {
                State::Incomplete(tries) if n.users == 0 || tries >= TRIES => {
                    let failed = n.users > 0;
                    n.state = State::Failed;
                    self.incomplete -= 1;
                    self.by_ip.remove(&n.ip);
                    if failed {
                        return Some(Due::Failed(index));
                    }
                    self.remove(index);
                }
                State::Incomplete(tries) => {
                    n.state = State::Incomplete(tries + 1);
                    let ip = n.ip;
                    self.timers.arm(index, now + RETRY);
                    return Some(Due::Ask { ip, at: MacAddr::BROADCAST });
                }
                State::Reachable if now < n.fresh + LIFETIME => {
                    // Confirmed after the timer was armed.
                    let at = n.fresh + LIFETIME;
                    self.timers.arm(index, at);
                }
                _ if n.users == 0 => self.remove(index),
                State::Contested { claim, tries } if tries < CONTEST_TRIES => {
                    n.state = State::Contested { claim, tries: tries + 1 };
                    let due = Due::Ask { ip: n.ip, at: n.mac };
                    self.timers.arm(index, now + CONTEST);
                    return Some(due);
                }
                State::Contested { claim, .. } => {
                    n.mac = claim;
                    n.state = State::Probing(1);
                    let due = Due::Changed { neighbor: index, ip: n.ip, at: claim };
                    self.timers.arm(index, now + RETRY);
                    return Some(due);
                }
                // First at the address we know, then everywhere.
                State::Reachable => {
                    n.state = State::Probing(1);
                    let due = Due::Ask { ip: n.ip, at: n.mac };
                    self.timers.arm(index, now + RETRY);
                    return Some(due);
                }
                State::Probing(tries) if tries < 2 * TRIES => {
                    n.state = State::Probing(tries + 1);
                    let at = if tries < TRIES { n.mac } else { MacAddr::BROADCAST };
                    let due = Due::Ask { ip: n.ip, at };
                    self.timers.arm(index, now + RETRY);
                    return Some(due);
                }
                State::Probing(_) => {
                    n.state = State::Reachable;
                    n.fresh = now;
                    self.timers.arm(index, now + LIFETIME);
                    return Some(Due::Unconfirmed);
                }
                State::Failed => {}
            }
        }
        None
    }
}

/// Between two requests.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Requests before we give up.
const TRIES: u8 = 3;
/// How long an answer is good for.
pub(super) const LIFETIME: Duration = Duration::from_secs(60);
/// How long the station we know has for an answer when another claims its address, each time.
const CONTEST: Duration = Duration::from_millis(100);
/// How often it is asked then.
const CONTEST_TRIES: u8 = 2;
/// How long no other claim is tried out after one was refused.
const QUIET: Duration = Duration::from_secs(1);
