//! Changing the keepalive and the other limits of patience while the stack runs.

use heddle_base::Instant;

use super::Stack;
use crate::{Keepalive, Patience, SendQueue};

impl<S: SendQueue + Default> Stack<S> {
    /// Changes how the stack probes silent peers from now on; [`None`] stops all probes. The
    /// setting applies to all present connections and to all later ones
    /// ([`ConnConfig::keepalive`](crate::ConnConfig::keepalive); RFC 9293 section 3.8.4). The
    /// silence before this call counts: the stack probes at once a peer that has been silent for
    /// longer than the new setting allows, and forgets probes that the peer has not answered.
    ///
    /// The function visits every connection: use it for configuration, not on the data path.
    pub fn set_keepalive(&mut self, now: Instant, keepalive: Option<Keepalive>) {
        if self.cfg.conn.keepalive == keepalive {
            return;
        }
        self.update_deferred();
        self.cfg.conn.keepalive = keepalive;
        for index in 0..self.conns.end() {
            if let Some(e) = self.conns.get_mut(index) {
                e.conn.set_keepalive(now, keepalive);
                self.update(index);
            }
        }
    }

    /// Changes how long the stack tolerates peers that make no progress, for all present
    /// connections ([`Connection::set_patience`](crate::Connection::set_patience)) and all later
    /// ones.
    ///
    /// The function visits every connection: use it for configuration, not on the data path.
    pub fn set_patience(&mut self, patience: Patience) {
        self.update_deferred();
        self.cfg.conn = self.cfg.conn.with_patience(patience);
        for index in 0..self.conns.end() {
            if let Some(e) = self.conns.get_mut(index) {
                e.conn.set_patience(patience);
                self.update(index);
            }
        }
    }
}
