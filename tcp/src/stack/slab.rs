//! The table of connections, and the keys that name them.

use core::mem::offset_of;
use core::num::NonZeroU32;

use heddle_base::{Fetch, Instant, StreamPos};
use heddle_types::ConnId;

use super::event::{EventKind, IcmpError, PendingEvents};
use super::flow::FlowKey;
use super::list::{Link, Linked};
use super::template::HeaderTemplate;
#[cfg(doc)]
use super::timers::NEVER;
use super::timers::Timers;
use crate::wire::MacAddr;
use crate::{Connection, SendQueue, SeqNumber, State};

/// The party responsible for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The owner holds the connection.
    Held,
    /// The owner released the connection; its queue ended at `end`.
    Released { end: StreamPos },
}

/// The next hop for the frames of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextHop {
    /// This neighbor, at its current hardware address.
    Neighbor(u32),
    /// The station that the last segment of the handshake came from.
    Station(MacAddr),
}

/// The list of connections that wait for a next hop's address. An entry has a link for each list.
pub(super) const WAITING: usize = 0;
/// The list by age of connections in TIME-WAIT.
pub(super) const AGE: usize = 1;

/// A connection with the stack's data about it, in the order of use: first the fields by which a
/// segment finds its connection and by which the answer gets its headers, then the owner's data and
/// the connection, whose hot fields follow each other without a gap if the owner's data are hot at
/// their end. The fields after the connection are for segments that are sent.
#[repr(C)]
pub(super) struct Entry<S> {
    pub(super) owner: Owner,
    /// Events that the owner has not taken yet.
    pub(super) events: PendingEvents,
    /// True if the connection is in the flow table.
    pub(super) attached: bool,
    /// True if the connect failed: the owner does not want further events of the connection.
    pub(super) muted: bool,
    pub(super) iss: SeqNumber,
    /// The time for which the connection's timer is armed; [`NEVER`] if it is not.
    pub(super) armed: Instant,
    /// The headers of its segments, which also say of which connection they are.
    pub(super) template: HeaderTemplate,
    /// The last ICMP error about the connection.
    pub(super) soft_error: Option<IcmpError>,
    /// The listener at which the peer's count includes this connection; `None` for an active or a
    /// released connection.
    pub(super) listener: Option<NonZeroU32>,
    pub(super) user: S,
    pub(super) conn: Connection,
    pub(super) next_hop: NextHop,
    pub(super) links: [Link; 2],
}

impl<S: SendQueue> Entry<S> {
    /// Returns the position after the last byte queued.
    #[inline]
    pub(super) fn end(&self) -> StreamPos {
        match self.owner {
            Owner::Released { end } => end,
            _ => self.user.end(),
        }
    }
}

impl<S> Entry<S> {
    /// Returns true if the connection has events, or is over.
    #[inline]
    pub(super) fn has_changed(&self) -> bool {
        self.conn.has_events() || !self.events.is_empty() || self.conn.state() == State::Closed
    }

    /// Makes the timer of the connection, whose index this is, come up when the connection needs
    /// it, unless it comes up earlier anyway.
    #[inline]
    pub(super) fn arm(&mut self, timers: &mut Timers, index: u32) {
        if let Some(at) = self.conn.poll_timeout()
            && at < self.armed
        {
            self.armed = at;
            timers.arm(index, at);
        }
    }

    /// Returns true if the connection waits for the next hop's hardware address.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.links[WAITING].is_in()
    }

    /// Returns the addresses and ports of the connection, ours first.
    pub(super) fn flow(&self) -> FlowKey {
        self.template.flow()
    }

    /// Leaves an event for the owner, unless the connection has no owner or is muted.
    pub(super) fn raise(&mut self, event: EventKind) {
        if self.owner == Owner::Held && !self.muted {
            self.events.insert(event);
        }
    }
}

/// The queue of a released connection, to which no byte is added.
pub(super) struct Drained(pub(super) StreamPos);

impl SendQueue for Drained {
    fn end(&self) -> StreamPos {
        self.0
    }

    fn segment_len(&self, from: StreamPos, max: u32) -> u32 {
        u32::try_from(self.0.since(from)).unwrap_or(u32::MAX).min(max)
    }
}

#[repr(C)]
struct Slot<S> {
    generation: u32,
    entry: Option<Entry<S>>,
}

impl<S> Slot<S> {
    /// Returns the slot's entry, if the owner holds it and `id` names it.
    #[inline]
    fn held_mut(&mut self, id: ConnId) -> Option<&mut Entry<S>> {
        if self.generation != id.generation() {
            return None;
        }
        self.entry.as_mut().filter(|e| e.owner == Owner::Held)
    }
}

/// Slots of a page: a power of two, so that the table finds a slot without reading the page's
/// length, and few, so that a new page is soon made.
const PAGE: usize = 16;

type Page<S> = Box<[Slot<S>; PAGE]>;

/// All connections, in pages: the table grows by one page at a time, and no entry ever moves.
pub(super) struct Slab<S> {
    pages: Vec<Page<S>>,
    free: Vec<u32>,
    /// Slots ever used.
    slots: usize,
    max: usize,
}

impl<S> Slab<S> {
    /// Bytes for each connection: its slot, and its place among the free slots.
    pub(super) const SLOT: usize = size_of::<Slot<S>>() + size_of::<u32>();

    pub(super) fn new(max: usize) -> Slab<S> {
        Slab {
            pages: Vec::with_capacity(max.div_ceil(PAGE)),
            free: Vec::with_capacity(max),
            slots: 0,
            max,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots >= self.max
    }

    pub(super) fn len(&self) -> usize {
        self.slots - self.free.len()
    }

    /// Returns the index after the last index that was ever in use.
    pub(super) fn end(&self) -> u32 {
        u32::try_from(self.slots).unwrap_or(u32::MAX)
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<S>> {
        Some(&self.pages.get(index as usize / PAGE)?[index as usize % PAGE])
    }

    #[inline]
    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<S>> {
        Some(&mut self.pages.get_mut(index as usize / PAGE)?[index as usize % PAGE])
    }

    /// Stores an entry. Returns `None` when the table is full.
    pub(super) fn insert(&mut self, entry: Entry<S>) -> Option<ConnId> {
        if self.is_full() {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                if self.slots.is_multiple_of(PAGE) {
                    let empty = || Slot { generation: 0, entry: None };
                    let page: Vec<_> = core::iter::repeat_with(empty).take(PAGE).collect();
                    self.pages.push(page.into_boxed_slice().try_into().ok()?);
                }
                self.slots += 1;
                u32::try_from(self.slots - 1).ok()?
            }
        };
        let slot = self.slot_mut(index)?;
        slot.entry = Some(entry);
        Some(ConnId::new(index, slot.generation))
    }

    /// Removes and drops an entry.
    pub(super) fn remove(&mut self, index: u32) {
        let Some(slot) = self.slot_mut(index) else { return };
        if slot.entry.take().is_none() {
            return;
        }
        // A slot whose generations are used up stays empty: keys are never reused.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(index);
        }
    }

    /// Fetches the part of an entry that segments need.
    #[inline]
    pub(super) fn fetch(&self, index: u32, fetch: impl Fetch) {
        let Some(slot) = self.slot(index) else { return };
        // Whether the slot has an entry is in memory that is not there yet.
        let start = core::ptr::from_ref(slot).cast::<u8>();
        let entry = start.wrapping_add(offset_of!(Slot<S>, entry));
        let conn = entry.wrapping_add(offset_of!(Entry<S>, conn));
        fetch.bytes(start, conn.addr() - start.addr());
        Connection::fetch(conn, fetch);
        let sends = offset_of!(Entry<S>, next_hop)..size_of::<Entry<S>>();
        fetch.bytes(entry.wrapping_add(sends.start), sends.len());
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&Entry<S>> {
        self.slot(index)?.entry.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Entry<S>> {
        self.slot_mut(index)?.entry.as_mut()
    }

    /// Returns the entry stored at `index`, and its key.
    #[inline]
    pub(super) fn named_mut(&mut self, index: u32) -> Option<(ConnId, &mut Entry<S>)> {
        let slot = self.slot_mut(index)?;
        let id = ConnId::new(index, slot.generation);
        Some((id, slot.entry.as_mut()?))
    }

    /// Returns the key of the entry stored at `index`.
    pub(super) fn id(&self, index: u32) -> ConnId {
        ConnId::new(index, self.slot(index).map_or(0, |s| s.generation))
    }

    /// Returns the connection that the owner's key names, unless the owner released the connection
    /// or does not hold it yet.
    #[inline]
    pub(super) fn held(&self, id: ConnId) -> Option<&Entry<S>> {
        let slot = self.slot(id.slot()).filter(|s| s.generation == id.generation())?;
        slot.entry.as_ref().filter(|e| e.owner == Owner::Held)
    }

    /// Returns the same as [`Slab::held`], mutably.
    #[inline]
    pub(super) fn held_mut(&mut self, id: ConnId) -> Option<&mut Entry<S>> {
        self.slot_mut(id.slot())?.held_mut(id)
    }

    /// Returns the same as [`Slab::held_mut`], for two different connections.
    #[inline]
    pub(super) fn both_mut(&mut self, ids: [ConnId; 2]) -> Option<[&mut Entry<S>; 2]> {
        let [(a, i), (b, j)] = ids.map(|id| (id.slot() as usize / PAGE, id.slot() as usize % PAGE));
        let [a, b] = if a == b {
            self.pages.get_mut(a)?.get_disjoint_mut([i, j]).ok()?
        } else {
            let [a, b] = self.pages.get_disjoint_mut([a, b]).ok()?;
            [a.get_mut(i)?, b.get_mut(j)?]
        };
        Some([a.held_mut(ids[0])?, b.held_mut(ids[1])?])
    }

    /// Returns every connection, with or without an owner.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry<S>> + '_ {
        self.pages.iter().flat_map(|p| p.iter()).filter_map(|s| s.entry.as_ref())
    }
}

impl<S> Linked for Slab<S> {
    fn link(&mut self, which: usize, index: u32) -> Option<&mut Link> {
        self.get_mut(index)?.links.get_mut(which)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bounds the cost of a connection beside TCP's own state and the owner's.
    #[test]
    fn test_an_entry_is_little_more_than_its_connection() {
        struct Nothing;
        let (entry, conn) = (size_of::<Entry<Nothing>>(), size_of::<Connection>());
        assert!(entry <= conn + 256, "{entry} bytes, {conn} of them TCP's");
    }
}
