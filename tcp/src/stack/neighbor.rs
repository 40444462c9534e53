//! Which hardware address an IPv4 neighbor has (RFC 826): the table; what ARP packets make of it
//! is decided in `arp`.
//!
//! Who is believed. An entry is made when we need it (and ask), or when a host asks for our own
//! address; never by an answer we did not ask for. RFC 826 has an entry follow whatever any packet
//! says, and hosts announce a failover that way, but so does whoever wants the traffic of another.
//! So a claim of another station address is tried out first: the station we know is asked, by
//! itself, and if it answers the claim is refused; if it is silent for a fifth of a second it is
//! gone, or no longer that host, and the claim holds. Connections opened meanwhile wait for the
//! outcome. After a refusal no claim is tried out for a second, so that claims cannot make us ask
//! more often than that. A claim about an entry that nobody uses only has us forget it: whoever
//! needs it asks everyone. An answer to a question asked of everyone, because the station we knew
//! did not answer, is believed at once. ARP has no authentication: whoever is on the link and
//! outlasts or outruns the other can still lie, as towards any host.
//!
//! The table is bounded. Entries in use by connections are never evicted; of the others the one
//! unused for longest goes first. At most half of the table can be questions without answer.

use std::collections::HashMap;

use core::hash::BuildHasher;
use core::net::Ipv4Addr;
use core::time::Duration;
use heddle_base::Instant;
use siphasher::sip::SipHasher13;

use super::timers::Timers;
use crate::wire::MacAddr;

/// Between two requests.
const RETRY: Duration = Duration::from_secs(1);
/// Requests before we give up.
const TRIES: u8 = 3;
/// How long an answer is good for.
const LIFETIME: Duration = Duration::from_secs(60);
/// How long the station we know has for an answer when another claims its address, each time.
const CONTEST: Duration = Duration::from_millis(100);
/// How often it is asked then.
const CONTEST_TRIES: u8 = 2;
/// How long no other claim is tried out after one was refused.
const QUIET: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
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

#[derive(Debug)]
struct Neighbor {
    ip: Ipv4Addr,
    mac: MacAddr,
    state: State,
    /// When its address was last confirmed, or it was last given to a user.
    fresh: Instant,
    /// Until when no claim of another address is tried out.
    quiet_until: Instant,
    /// Connections that send through it.
    users: u32,
}

/// What is to be done about a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
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
pub(super) enum Source {
    /// An answer sent to us.
    Reply,
    /// A question for one of our addresses.
    Request,
    /// A packet meant for others.
    Overheard,
}

/// What an ARP packet changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learned {
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

struct Keyed([u8; 16]);

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// The table.
pub(super) struct Neighbors {
    slots: Vec<Option<Neighbor>>,
    free: Vec<u32>,
    by_ip: HashMap<Ipv4Addr, u32, Keyed>,
    timers: Timers,
    max: usize,
    incomplete: usize,
    /// Entries forgotten to make room.
    pub(super) evictions: u64,
}

impl Neighbors {
    pub(super) fn new(max: usize, key: [u8; 16]) -> Neighbors {
        Neighbors {
            slots: Vec::new(),
            free: Vec::new(),
            by_ip: HashMap::with_hasher(Keyed(key)),
            timers: Timers::default(),
            max: max.max(2),
            incomplete: 0,
            evictions: 0,
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// The address of neighbor `index`, when known.
    #[inline]
    pub(super) fn mac(&self, index: u32) -> Option<MacAddr> {
        let n = self.slots.get(index as usize)?.as_ref()?;
        matches!(n.state, State::Reachable | State::Probing(_) | State::Contested { .. })
            .then_some(n.mac)
    }

    /// Whether neighbor `index` can be sent to: its address is known, and no one else claims it.
    pub(super) fn is_settled(&self, index: u32) -> bool {
        let n = self.slots.get(index as usize).and_then(Option::as_ref);
        n.is_some_and(|n| matches!(n.state, State::Reachable | State::Probing(_)))
    }

    /// A user for `ip`; true when it must be asked for now. `None` when there is no room.
    pub(super) fn acquire(&mut self, now: Instant, ip: Ipv4Addr) -> Option<(u32, bool)> {
        if let Some(&index) = self.by_ip.get(&ip) {
            let n = self.slots[index as usize].as_mut()?;
            n.users += 1;
            return Some((index, false));
        }
        if self.incomplete >= self.max / 2 {
            return None;
        }
        let n = Neighbor {
            ip,
            mac: MacAddr::default(),
            state: State::Incomplete(1),
            fresh: now,
            quiet_until: Instant::ZERO,
            users: 1,
        };
        let index = self.insert(n)?;
        self.incomplete += 1;
        self.timers.arm(index, now + RETRY);
        Some((index, true))
    }

    /// A user of `index` is gone.
    pub(super) fn release(&mut self, index: u32) {
        let Some(Some(n)) = self.slots.get_mut(index as usize) else { return };
        n.users = n.users.saturating_sub(1);
        if n.users == 0 && n.state == State::Failed {
            self.remove(index);
        }
    }

    /// `ip` is said to be at `mac`.
    pub(super) fn learn(
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
            let n = Neighbor {
                ip,
                mac,
                state: State::Reachable,
                fresh: now,
                quiet_until: Instant::ZERO,
                users: 0,
            };
            return match self.insert(n) {
                Some(index) => {
                    self.timers.arm(index, now + LIFETIME);
                    Learned::New
                }
                None => Learned::Ignored,
            };
        };
        let Some(n) = self.slots[index as usize].as_mut() else { return Learned::Ignored };
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
        self.timers.arm(index, now + LIFETIME);
        outcome
    }

    /// What is due at `now`; call until it gives `None`.
    pub(super) fn poll_due(&mut self, now: Instant) -> Option<Due> {
        while let Some(index) = self.timers.pop_due(now) {
            let Some(n) = self.slots.get_mut(index as usize).and_then(Option::as_mut) else {
                continue;
            };
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

    fn insert(&mut self, n: Neighbor) -> Option<u32> {
        if self.slots.len() - self.free.len() >= self.max {
            self.evict()?;
        }
        let index = match self.free.pop() {
            Some(i) => i,
            None => {
                self.slots.push(None);
                u32::try_from(self.slots.len() - 1).ok()?
            }
        };
        self.by_ip.insert(n.ip, index);
        self.slots[index as usize] = Some(n);
        Some(index)
    }

    /// Forgets the entry unused for longest; `None` when all are in use.
    fn evict(&mut self) -> Option<()> {
        let idle = (0u32..)
            .zip(&self.slots)
            .filter_map(|(i, n)| n.as_ref().filter(|n| n.users == 0).map(|n| (n.fresh, i)));
        let (_, index) = idle.min()?;
        self.remove(index);
        self.evictions += 1;
        Some(())
    }

    fn remove(&mut self, index: u32) {
        self.timers.cancel(index);
        let Some(n) = self.slots.get_mut(index as usize).and_then(Option::take) else { return };
        self.free.push(index);
        match n.state {
            State::Failed => return,
            State::Incomplete(_) => self.incomplete -= 1,
            _ => {}
        }
        self.by_ip.remove(&n.ip);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests;
