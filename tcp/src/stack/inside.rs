//! Both ends of a connection in one stack: how the owner finds them and works on both.

use super::{ConnId, Stack};
use crate::{Connection, SendQueue};

impl<S: SendQueue + Default> Stack<S> {
    /// Returns the other end of a connection that the stack has with itself; `None` for any other
    /// connection.
    ///
    /// Addresses and ports alone do not prove this: a host of the network that uses an address of
    /// ours, or an earlier connection of the same ports, has them too. Both ends therefore have to
    /// number both streams alike, as each end learned from the other's SYN.
    pub fn other_end(&self, id: ConnId) -> Option<ConnId> {
        let entry = self.conns.held(id)?;
        let other = self.conns.id(self.look_up(self.ids.hashed(&entry.flow().reversed()))?);
        let end = self.conns.held(other)?;
        (other != id && entry.conn.is_other_end_of(&end.conn)).then_some(other)
    }

    /// Returns the connection that has this [index](ConnId::index) now.
    #[inline]
    pub fn id_at(&self, index: u32) -> Option<ConnId> {
        let id = self.conns.id(index);
        self.conns.held(id).map(|_| id)
    }

    /// Returns two connections at once, each with the owner's data. Returns `None` unless both
    /// exist and are different.
    #[inline]
    pub fn get_both_mut(&mut self, ids: [ConnId; 2]) -> Option<[(&mut Connection, &mut S); 2]> {
        let both = self.conns.both_mut(ids)?;
        Some(both.map(|e| (&mut e.conn, &mut e.user)))
    }
}
