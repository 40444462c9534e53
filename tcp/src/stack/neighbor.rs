//! The hardware addresses of neighbors (RFC 826 for IPv4, RFC 4861 for IPv6): the table, the users of
//! its entries and the eviction when it is full. `resolve` has the life of an entry; `arp` and
//! `discovery` read and write the packets. A packet below is an ARP packet or a message of neighbor
//! discovery.
//!
//! Which packets the stack believes: the stack makes an entry when it needs one (and asks), or when
//! a host asks for our own address, but never for an answer to no question. RFC 826 makes an entry
//! follow any packet. Hosts announce a failover that way, but so does an attacker that wants the
//! traffic of another host. The stack therefore tests a claim of another station address first: it
//! asks the known station alone. If this station answers, the stack refuses the claim. If it is
//! silent for a fifth of a second, it has disappeared, or is no longer that host, and the claim
//! holds. Connections opened meanwhile wait for the outcome. After a refusal the stack tests no
//! claim for a second, so that claims cannot make it ask more often. A claim about an entry without
//! users only removes the entry: the next user asks everyone. The stack believes at once an answer
//! to a question that it asked everyone because the known station did not answer. Neither protocol has
//! authentication: an attacker on the link that outlasts or outruns the other station can still
//! lie, as towards any host.
//!
//! A SYN teaches nothing: a host that forges source addresses would fill the table. Only a
//! handshake completed through a station teaches that station, where there is no entry yet; see
//! `open`.
//!
//! A host is an address on a link: another VLAN may have another host of the same address, and a
//! packet says nothing about hosts of another VLAN than its own.
//!
//! The table is bounded. The stack never evicts entries in use by connections; among the others it
//! evicts the entry unused for longest first. At most half of the table can be questions without
//! answer. Every operation takes a few steps, however many entries there are (timers: their
//! logarithm): a list by age threads the unused entries together, and each entry has a list of the
//! connections that wait for its answer.

use std::collections::HashMap;

use core::hash::{BuildHasher, Hash, Hasher};
use core::net::IpAddr;
use heddle_base::Instant;
use siphasher::sip::SipHasher13;

use super::flow::halves;
use super::half_open::{STAGE, Table};
use super::list::{Link, Linked, List};
use super::slab::{Slab, WAITING};
use super::timers::Timers;
use crate::wire::{MacAddr, Vid};

mod resolve;
#[cfg(test)]
mod tests;

pub(super) use resolve::{Due, Learned, Source};
use resolve::{LIFETIME, RETRY, State};

/// The address of a host, and the link on which it has this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkAddr {
    pub(super) vid: Vid,
    pub(super) ip: IpAddr,
}

impl LinkAddr {
    pub(super) fn new(vid: Vid, ip: IpAddr) -> LinkAddr {
        LinkAddr { vid, ip }
    }
}

impl Hash for LinkAddr {
    /// Hands the address over in whole words: each frame of a stranger is hashed, and a keyed hash
    /// costs by its pieces. The number of words tells the versions of IP apart.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let vid = u64::from(self.vid.get());
        match self.ip {
            IpAddr::V4(ip) => state.write_u64(vid << 32 | u64::from(ip.to_bits())),
            IpAddr::V6(ip) => {
                let [high, low] = halves(ip);
                state.write_u64(high);
                state.write_u64(low);
                state.write_u64(vid);
            }
        }
    }
}

#[derive(Debug)]
struct Neighbor {
    at: LinkAddr,
    mac: MacAddr,
    state: State,
    /// When a packet last confirmed the address, or the entry last got a user.
    fresh: Instant,
    /// Until when the stack tests no claim of another address.
    quiet_until: Instant,
    /// Connections that send through this neighbor.
    users: u32,
    /// Connections that wait until the stack can send to this neighbor.
    waiters: List<WAITING>,
    /// Half-open connections that wait for the same.
    half_open: List<STAGE>,
    /// The place of the entry among the entries without users.
    idle: Link,
}

impl Neighbor {
    fn new(at: LinkAddr, mac: MacAddr, state: State, fresh: Instant, users: u32) -> Neighbor {
        let (waiters, half_open, idle) = (List::default(), List::default(), Link::OUT);
        let quiet_until = Instant::ZERO;
        Neighbor { at, mac, state, fresh, quiet_until, users, waiters, half_open, idle }
    }

    /// Returns true if the stack can send to this neighbor, and no other station claims its
    /// address.
    fn is_settled(&self) -> bool {
        matches!(self.state, State::Reachable | State::Probing(_))
    }
}

/// Hashes with a key that no other host knows.
pub(super) struct Keyed(pub(super) [u8; 16]);

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    #[inline]
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

/// The table of neighbors.
pub(super) struct Neighbors {
    slots: Slots,
    free: Vec<u32>,
    /// Entries without users, the entry unused for longest first.
    idle: List<0>,
    by_addr: HashMap<LinkAddr, u32, Keyed>,
    timers: Timers,
    max: usize,
    incomplete: usize,
    /// Entries evicted to make room.
    pub(super) evictions: u64,
}

impl Neighbors {
    pub(super) fn new(max: usize, key: [u8; 16]) -> Neighbors {
        let max = max.max(2);
        // Neither table moves later on.
        let room = max.min(1 << 20);
        Neighbors {
            slots: Slots(Vec::with_capacity(room)),
            free: Vec::with_capacity(room),
            idle: List::default(),
            by_addr: HashMap::with_capacity_and_hasher(room, Keyed(key)),
            timers: Timers::with_capacity(room),
            max,
            incomplete: 0,
            evictions: 0,
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Returns true if [`Neighbors::poll_due`] has a timer to handle.
    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.timers.is_due(now)
    }

    /// Returns the hardware address of neighbor `index`, if it is known.
    #[inline]
    pub(super) fn mac(&self, index: u32) -> Option<MacAddr> {
        let n = self.slots.get(index)?;
        matches!(n.state, State::Reachable | State::Probing(_) | State::Contested { .. })
            .then_some(n.mac)
    }

    /// Returns the IP address of neighbor `index`.
    pub(super) fn ip(&self, index: u32) -> Option<IpAddr> {
        self.at(index).map(|at| at.ip)
    }

    /// Returns the address of neighbor `index` with its link.
    pub(super) fn at(&self, index: u32) -> Option<LinkAddr> {
        self.slots.get(index).map(|n| n.at)
    }

    /// Returns the hardware address of the host `at`, if the stack can send there.
    pub(super) fn known(&self, at: LinkAddr) -> Option<MacAddr> {
        self.mac(*self.by_addr.get(&at)?)
    }

    /// Returns true if connections go through the host `at`.
    pub(super) fn is_used(&self, at: LinkAddr) -> bool {
        let n = self.by_addr.get(&at).and_then(|&index| self.slots.get(index));
        n.is_some_and(|n| n.users > 0)
    }

    /// Adds a user for the host `at`. The flag is true when the caller must ask for the address now. Returns
    /// `None` when there is no room.
    pub(super) fn acquire(&mut self, now: Instant, at: LinkAddr) -> Option<(u32, bool)> {
        if let Some(&index) = self.by_addr.get(&at) {
            self.add_user(index);
            return Some((index, false));
        }
        if self.incomplete >= self.max / 2 {
            return None;
        }
        let n = Neighbor::new(at, MacAddr::default(), State::Incomplete(1), now, 1);
        let index = self.insert(n)?;
        self.incomplete += 1;
        self.timers.arm(index, now + RETRY);
        Some((index, true))
    }

    /// Adds a user for the host `at` if its hardware address is known, even if contested.
    pub(super) fn acquire_known(&mut self, at: LinkAddr) -> Option<u32> {
        let &index = self.by_addr.get(&at)?;
        self.mac(index)?;
        self.add_user(index);
        Some(index)
    }

    /// Adds a user for the host `at` after a handshake that was completed through the station
    /// `mac`. Uses the host's entry if its address is known, and makes an entry with `mac` if there is none.
    /// Returns `None` when there is no room for an entry, or when the stack is asking for the
    /// address.
    pub(super) fn acquire_proven(
        &mut self,
        now: Instant,
        at: LinkAddr,
        mac: MacAddr,
    ) -> Option<u32> {
        if self.by_addr.contains_key(&at) {
            return self.acquire_known(at);
        }
        let index = self.insert(Neighbor::new(at, mac, State::Reachable, now, 1))?;
        self.timers.arm(index, now + LIFETIME);
        Some(index)
    }

    /// Returns the hardware address of neighbor `index`, if the stack can send to it and no other
    /// station claims its address.
    pub(super) fn settled(&self, index: u32) -> Option<MacAddr> {
        self.slots.get(index).filter(|n| n.is_settled()).map(|n| n.mac)
    }

    /// Makes the half-open connection `entry` wait for neighbor `index`.
    pub(super) fn wait_half_open(&mut self, index: u32, table: &mut Table, entry: u32) {
        if let Some(n) = self.slots.get_mut(index) {
            n.half_open.push(table, entry);
        }
    }

    /// Stops the half-open connection `entry` from waiting for neighbor `index`, if it did.
    pub(super) fn stop_half_open(&mut self, index: u32, table: &mut Table, entry: u32) {
        if let Some(n) = self.slots.get_mut(index) {
            n.half_open.remove(table, entry);
        }
    }

    /// Removes and returns the half-open connection that has waited for neighbor `index` for longest.
    pub(super) fn next_half_open(&mut self, index: u32, table: &mut Table) -> Option<u32> {
        self.slots.get_mut(index)?.half_open.pop(table)
    }

    fn add_user(&mut self, index: u32) {
        self.idle.remove(&mut self.slots, index);
        if let Some(n) = self.slots.get_mut(index) {
            n.users += 1;
        }
    }

    /// Removes a user of `index`.
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

    /// Makes the connection `conn` wait for neighbor `index`, unless the stack can send to this
    /// neighbor.
    pub(super) fn wait<S>(&mut self, index: u32, conns: &mut Slab<S>, conn: u32) {
        if let Some(n) = self.slots.get_mut(index)
            && !n.is_settled()
        {
            n.waiters.push(conns, conn);
        }
    }

    /// Stops the connection `conn` from waiting for neighbor `index`, if it did.
    pub(super) fn stop_waiting<S>(&mut self, index: u32, conns: &mut Slab<S>, conn: u32) {
        if let Some(n) = self.slots.get_mut(index) {
            n.waiters.remove(conns, conn);
        }
    }

    /// Removes and returns the connection that has waited for neighbor `index` for longest.
    pub(super) fn next_waiting<S>(&mut self, index: u32, conns: &mut Slab<S>) -> Option<u32> {
        self.slots.get_mut(index)?.waiters.pop(conns)
    }

    fn insert(&mut self, n: Neighbor) -> Option<u32> {
        if self.slots.0.len() - self.free.len() >= self.max {
            // Evict the entry unused for longest. When all are in use there is no room.
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
        self.by_addr.insert(n.at, index);
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
        self.by_addr.remove(&n.at);
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
