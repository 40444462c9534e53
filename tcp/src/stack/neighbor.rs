//! Which hardware address an IPv4 neighbor has (RFC 826): the table, who uses its entries and who
//! goes when it is full. `resolve` has the life of an entry; ARP packets are read and written in
//! `arp`.
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
use heddle_base::Instant;
use siphasher::sip::SipHasher13;

use super::list::{Link, Linked, List};
use super::slab::{Slab, WAITING};
use super::timers::Timers;
use crate::wire::MacAddr;

mod resolve;
#[cfg(test)]
mod tests;

pub(super) use resolve::{Due, Learned, Source};
use resolve::{LIFETIME, RETRY, State};

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

    /// Who neighbor `index` is.
    pub(super) fn ip(&self, index: u32) -> Option<Ipv4Addr> {
        self.slots.get(index).map(|n| n.ip)
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
