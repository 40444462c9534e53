//! Another keepalive, and other limits on the patience with peers, for a stack that runs.

use heddle_base::Instant;

use super::Stack;
use crate::{Keepalive, Patience, SendQueue};

impl<S: SendQueue + Default> Stack<S> {
    /// Probes silent peers so from now on, or ([`None`]) never: those of all connections there are, and
    /// of all that will be ([`ConnConfig::keepalive`](crate::ConnConfig::keepalive); RFC 9293 section
    /// 3.8.4). Silence so far counts: a peer that has been silent for longer than is patience for now is
    /// probed at once, and probes that it has not answered are forgotten.
    ///
    /// It looks at every connection: for orders, not for the data path.
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

    /// Bears with peers for so long from now on: those of all connections there are
    /// ([`Connection::set_patience`](crate::Connection::set_patience)), and of all that will be.
    ///
    /// It looks at every connection: for orders, not for the data path.
    pub fn set_patience(&mut self, patience: Patience) {
        self.cfg.conn = self.cfg.conn.with_patience(patience);
        for index in 0..self.conns.end() {
            if let Some(e) = self.conns.get_mut(index) {
                e.conn.set_patience(patience);
            }
        }
    }
}
