//! Where connections live, and the keys that name them.

use core::fmt;
use heddle_base::StreamPos;

use super::event::{IcmpError, StackEvent};
use super::flow::FlowKey;
use super::template::HeaderTemplate;
use crate::{Connection, SendQueue, SeqNumber, State};
use arrayvec::ArrayVec;

/// Names a connection of a stack. A key of a released connection never names a later one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    index: u32,
    generation: u32,
}

impl ConnId {
    /// Names no connection.
    pub(super) const NONE: ConnId = ConnId { index: u32::MAX, generation: u32::MAX };

    /// Below the stack's `max_conns`, and no two connections have the same at a time: for tables
    /// kept beside the stack.
    pub fn index(self) -> usize {
        self.index as usize
    }

    pub(super) fn slot(self) -> u32 {
        self.index
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}.{}", self.index, self.generation)
    }
}

/// Who cares for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// No one yet: a passive connection of this listener, handshake not done.
    HalfOpen { listener: u32 },
    /// The owner.
    Held,
    /// The owner let go; its queue ended here.
    Released { end: StreamPos },
}

/// A connection with what the stack keeps about it.
pub(super) struct Entry<S> {
    pub(super) flow: FlowKey,
    pub(super) conn: Connection,
    pub(super) user: S,
    pub(super) template: HeaderTemplate,
    /// Index of the next hop.
    pub(super) neighbor: u32,
    /// Whether the next hop's hardware address is awaited.
    pub(super) waits: bool,
    /// Whether the flow table has it.
    pub(super) attached: bool,
    pub(super) owner: Owner,
    pub(super) iss: SeqNumber,
    pub(super) soft_error: Option<IcmpError>,
    /// Events not taken yet, each kind at most once.
    pub(super) events: ArrayVec<StackEvent, 12>,
    /// Its connect failed: what the connection says from now on is of no interest.
    pub(super) muted: bool,
}

impl<S: SendQueue> Entry<S> {
    /// One past the last byte queued.
    pub(super) fn end(&self) -> StreamPos {
        match self.owner {
            Owner::Released { end } => end,
            _ => self.user.end(),
        }
    }
}

impl<S> Entry<S> {
    /// Leaves an event for the owner, unless the same waits already.
    pub(super) fn tell(&mut self, event: StackEvent) {
        // There are fewer kinds than places.
        if !self.events.contains(&event) && !self.events.is_full() {
            self.events.push(event);
        }
    }
}

/// The queue of a connection that has been released: nothing more comes.
pub(super) struct Drained(pub(super) StreamPos);

impl SendQueue for Drained {
    fn end(&self) -> StreamPos {
        self.0
    }

    fn segment_len(&self, from: StreamPos, max: u32) -> u32 {
        u32::try_from(self.0.since(from)).unwrap_or(u32::MAX).min(max)
    }
}

struct Slot<S> {
    generation: u32,
    entry: Option<Entry<S>>,
}

/// All connections.
pub(super) struct Slab<S> {
    slots: Vec<Slot<S>>,
    free: Vec<u32>,
    max: usize,
}

impl<S> Slab<S> {
    pub(super) fn new(max: usize) -> Slab<S> {
        Slab { slots: Vec::with_capacity(max.min(1 << 16)), free: Vec::new(), max }
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= self.max
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Stores an entry; `None` when full.
    pub(super) fn insert(&mut self, entry: Entry<S>) -> Option<ConnId> {
        if self.is_full() {
            return None;
        }
        let index = match self.free.pop() {
            Some(i) => i,
            None => {
                let i = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot { generation: 0, entry: None });
                i
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.entry = Some(entry);
        Some(ConnId { index, generation: slot.generation })
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<Entry<S>> {
        let slot = self.slots.get_mut(index as usize)?;
        let entry = slot.entry.take()?;
        // A slot whose generations are used up stays empty: keys are never reused.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(index);
        }
        Some(entry)
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&Entry<S>> {
        self.slots.get(index as usize)?.entry.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Entry<S>> {
        self.slots.get_mut(index as usize)?.entry.as_mut()
    }

    /// The key of what is stored at `index`.
    pub(super) fn id(&self, index: u32) -> ConnId {
        let generation = self.slots.get(index as usize).map_or(0, |s| s.generation);
        ConnId { index, generation }
    }

    /// What the owner's key names: not what it released, nor what is not its own yet.
    pub(super) fn held(&self, id: ConnId) -> Option<&Entry<S>> {
        self.by_key(id).filter(|e| e.owner == Owner::Held)
    }

    /// As [`Slab::held`].
    pub(super) fn held_mut(&mut self, id: ConnId) -> Option<&mut Entry<S>> {
        let slot =
            self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?;
        slot.entry.as_mut().filter(|e| e.owner == Owner::Held)
    }

    /// Whether `id` names a connection whose handshake is not done.
    pub(super) fn is_half_open(&self, id: ConnId) -> bool {
        self.by_key(id).is_some_and(|e| matches!(e.owner, Owner::HalfOpen { .. }))
    }

    /// Whether `id` names a connection in TIME-WAIT that the owner let go.
    pub(super) fn is_waiting_out(&self, id: ConnId) -> bool {
        self.by_key(id).is_some_and(|e| {
            matches!(e.owner, Owner::Released { .. }) && e.conn.state() == State::TimeWait
        })
    }

    fn by_key(&self, id: ConnId) -> Option<&Entry<S>> {
        let slot = self.slots.get(id.index as usize).filter(|s| s.generation == id.generation)?;
        slot.entry.as_ref()
    }

    /// Every connection, whoever cares for it.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry<S>> + '_ {
        self.slots.iter().filter_map(|s| s.entry.as_ref())
    }

    /// Indices in use.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.slots).filter(|(_, s)| s.entry.is_some()).map(|(i, _)| i)
    }
}
