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
//! more often than that. A claim about an entry that nobody uses only removes it: whoever
//! needs it asks everyone. An answer to a question asked of everyone, because the station we knew
//! did not answer, is believed at once. ARP has no authentication: whoever is on the link and
//! outlasts or outruns the other can still lie, as towards any host.
//!
//! A SYN teaches nothing: whoever forges source addresses would fill the table. Only a handshake
//! that was completed through a station does, where there is no entry yet; see `open`.
//!
//! The table is bounded. Entries in use by connections are never evicted; of the others the one
//! unused for longest goes first. At most half of the table can be questions without answer.
//! Everything here is done in a few steps, however many entries there are (timers: their
//! logarithm): unused entries are threaded into a list by age, and who waits for an answer into a
//! list of the entry.

use std::collections::HashMap;

use core::hash::BuildHasher;
use core::net::Ipv4Addr;
use core::time::Duration;
use heddle_base::Instant;
use siphasher::sip::SipHasher13;

use super::list::{Link, Linked, List};
use super::slab::{Slab, WAITING};
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
    /// Connections that wait until it can be sent to.
    waiters: List<WAITING>,
    /// Its place among those without users.
    idle: Link,
}

impl Neighbor {
    fn new(ip: Ipv4Addr, mac: MacAddr, state: State, fresh: Instant, users: u32) -> Neighbor {
        let (waiters, idle) = (List::default(), Link::OUT);
        Neighbor { ip, mac, state, fresh, quiet_until: Instant::ZERO, users, waiters, idle }
    }

    /// Whether it can be sent to, and no one else claims its address.
    fn is_settled(&self) -> bool {
        matches!(self.state, State::Reachable | State::Probing(_))
    }
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

/// Hashes with a key that no one else has.
pub(super) struct Keyed(pub(super) [u8; 16]);

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

struct Slots(Vec<Option<Neighbor>>);

impl Slots {
    fn get(&self, index: u32) -> Option<&Neighbor> {
        self.0.get(index as usize)?.as_ref()
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut Neighbor> {
        self.0.get_mut(index as usize)?.as_mut()
    }
}

impl Linked for Slots {
    fn link(&mut self, _: usize, index: u32) -> Option<&mut Link> {
        self.get_mut(index).map(|n| &mut n.idle)
    }
}

/// The table.
pub(super) struct Neighbors {
    slots: Slots,
    free: Vec<u32>,
    /// Entries without users, the one unused for longest first.
    idle: List<0>,
    by_ip: HashMap<Ipv4Addr, u32, Keyed>,
    timers: Timers,
    max: usize,
    incomplete: usize,
    /// Entries evicted to make room.
    pub(super) evictions: u64,
}

impl Neighbors {
    pub(super) fn new(max: usize, key: [u8; 16]) -> Neighbors {
        let max = max.max(2);
        // Neither moves later on.
        let room = max.min(1 << 20);
        Neighbors {
            slots: Slots(Vec::with_capacity(room)),
            free: Vec::with_capacity(room),
            idle: List::default(),
            by_ip: HashMap::with_capacity_and_hasher(room, Keyed(key)),
            timers: Timers::with_capacity(room),
            max,
            incomplete: 0,
            evictions: 0,
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Whether [`Neighbors::poll_due`] has something to look at.
    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.timers.is_due(now)
    }

    /// The address of neighbor `index`, when known.
    #[inline]
    pub(super) fn mac(&self, index: u32) -> Option<MacAddr> {
        let n = self.slots.get(index)?;
        matches!(n.state, State::Reachable | State::Probing(_) | State::Contested { .. })
            .then_some(n.mac)
    }

    /// A user for `ip`; true when it must be asked for now. `None` when there is no room.
    pub(super) fn acquire(&mut self, now: Instant, ip: Ipv4Addr) -> Option<(u32, bool)> {
        if let Some(&index) = self.by_ip.get(&ip) {
            self.add_user(index);
            return Some((index, false));
        }
        if self.incomplete >= self.max / 2 {
            return None;
        }
        let n = Neighbor::new(ip, MacAddr::default(), State::Incomplete(1), now, 1);
        let index = self.insert(n)?;
        self.incomplete += 1;
        self.timers.arm(index, now + RETRY);
        Some((index, true))
    }

    /// A user for `ip` if its address is known, be it contested.
    pub(super) fn acquire_known(&mut self, ip: Ipv4Addr) -> Option<u32> {
        let &index = self.by_ip.get(&ip)?;
        self.mac(index)?;
        self.add_user(index);
        Some(index)
    }

    /// A user for `ip`, with which a handshake was completed by way of the station `mac`: its entry
    /// when the address is known, one made of this when there is none. `None` when there is no room
    /// for one, or when the address is being asked for.
    pub(super) fn acquire_proven(
        &mut self,
        now: Instant,
        ip: Ipv4Addr,
        mac: MacAddr,
    ) -> Option<u32> {
        if self.by_ip.contains_key(&ip) {
            return self.acquire_known(ip);
        }
        let index = self.insert(Neighbor::new(ip, mac, State::Reachable, now, 1))?;
        self.timers.arm(index, now + LIFETIME);
        Some(index)
    }

    fn add_user(&mut self, index: u32) {
        self.idle.remove(&mut self.slots, index);
        if let Some(n) = self.slots.get_mut(index) {
            n.users += 1;
        }
    }

    /// A user of `index` is gone.
    pub(super) fn release(&mut self, index: u32) {
        let Some(n) = self.slots.get_mut(index) else { return };
        n.users = n.users.saturating_sub(1);
        if n.users > 0 {
            return;
        }
        if n.state == State::Failed {
            self.remove(index);
        } else if !n.idle.is_in() {
            self.idle.push(&mut self.slots, index);
        }
    }

    /// Has the connection `conn` wait for neighbor `index`, unless it can be sent to.
    pub(super) fn wait<S>(&mut self, index: u32, conns: &mut Slab<S>, conn: u32) {
        if let Some(n) = self.slots.get_mut(index)
            && !n.is_settled()
        {
            n.waiters.push(conns, conn);
        }
    }

    /// The connection `conn` waits for neighbor `index` no more, if it did.
    pub(super) fn stop_waiting<S>(&mut self, index: u32, conns: &mut Slab<S>, conn: u32) {
        if let Some(n) = self.slots.get_mut(index) {
            n.waiters.remove(conns, conn);
        }
    }

    /// The connection that has waited for neighbor `index` for longest, and does no more.
    pub(super) fn next_waiting<S>(&mut self, index: u32, conns: &mut Slab<S>) -> Option<u32> {
        self.slots.get_mut(index)?.waiters.pop(conns)
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
    pub(super) fn poll_due(&mut self, now: Instant) -> Option<Due> {
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

    fn insert(&mut self, n: Neighbor) -> Option<u32> {
        if self.slots.0.len() - self.free.len() >= self.max {
            // The entry unused for longest goes; when all are in use there is no room.
            let idle = self.idle.pop(&mut self.slots)?;
            self.remove(idle);
            self.evictions += 1;
        }
        let index = match self.free.pop() {
            Some(i) => i,
            None => {
                self.slots.0.push(None);
                u32::try_from(self.slots.0.len() - 1).ok()?
            }
        };
        self.by_ip.insert(n.ip, index);
        let is_idle = n.users == 0;
        self.slots.0[index as usize] = Some(n);
        if is_idle {
            self.idle.push(&mut self.slots, index);
        }
        Some(index)
    }

    fn remove(&mut self, index: u32) {
        self.timers.cancel(index);
        self.idle.remove(&mut self.slots, index);
        let Some(n) = self.slots.0.get_mut(index as usize).and_then(Option::take) else { return };
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
        self.slots.0.len() - self.free.len()
    }

    #[cfg(test)]
    pub(super) fn is_settled(&self, index: u32) -> bool {
        self.slots.get(index).is_some_and(Neighbor::is_settled)
    }
}

#[cfg(test)]
mod tests;
