//! Other addresses and routes for a stack that runs.

use core::net::IpAddr;
use heddle_base::Instant;

use super::Stack;
use super::addressing::Addressing;
use super::event::EventKind;
use super::slab::{NextHop, Owner};
use crate::{SendQueue, State};

impl<S: SendQueue + Default> Stack<S> {
    /// Has the stack use the addresses and routes of `net` from now on, instead of those it has.
    /// What they have in common goes on untouched, so what is to be changed is all that need
    /// differ; an address with another prefix is the same address on another link.
    ///
    /// - A new address can be listened on and is answered for at once, and is announced.
    /// - Of an address that is ours no more the listeners end, and so do the connections: each peer
    ///   is sent a reset from that address, and the owner is told [`StackEvent::Withdrawn`]. Those
    ///   in TIME-WAIT go without a word. Listeners on all addresses go on.
    /// - A connection to which another next hop leads now sends there, once that is found; if it
    ///   is not, the connection ends as [`StackEvent::Unreachable`]. One to whose peer nothing
    ///   leads any more, or to a next hop for which the table of neighbors has no room, ends as
    ///   those of an address do.
    ///
    /// It looks at every connection: for orders, not for the data path.
    ///
    /// [`StackEvent::Withdrawn`]: super::StackEvent::Withdrawn
    /// [`StackEvent::Unreachable`]: super::StackEvent::Unreachable
    pub fn set_addressing(&mut self, now: Instant, net: Addressing) {
        if self.cfg.net == net {
            return;
        }
        self.update_deferred();
        let old = core::mem::replace(&mut self.cfg.net, net);
        let new = self.cfg.net.addrs().iter().map(|c| c.addr()).filter(|ip| !old.is_ours(*ip));
        let new: Vec<_> = new.collect();
        self.announce_each(&new);
        for gone in old.addrs().iter().map(|c| c.addr()) {
            if !self.cfg.net.is_ours(gone) {
                for port in self.listeners.ports_at(gone) {
                    self.unlisten(now, Some(gone), port);
                }
            }
        }
        for index in 0..self.conns.end() {
            if !self.is_led(now, index) {
                self.withdraw(index);
            }
        }
    }

    /// Has a connection's segments go where they should now; false when there is no such place.
    fn is_led(&mut self, now: Instant, index: u32) -> bool {
        let Some(e) = self.conns.get(index) else { return true };
        if e.conn.state() == State::Closed {
            // All it may have to say is a reset, and its next hop is in use until it is said.
            return true;
        }
        let (peer, before) = (*e.flow.remote().ip(), e.next_hop);
        if !self.cfg.net.is_ours(IpAddr::V4(*e.flow.local().ip())) {
            return false;
        }
        let Some(hop) = self.cfg.net.route(IpAddr::V4(peer)) else { return false };
        let known = match before {
            NextHop::Neighbor(n) => self.neighbors.ip(n),
            NextHop::Station(_) => Some(peer),
        };
        if known == Some(hop.next) {
            return true;
        }
        let Some(next_hop) = self.next_hop(now, hop) else { return false };
        if let NextHop::Neighbor(n) = before {
            self.neighbors.stop_waiting(n, &mut self.conns, index);
            self.neighbors.release(n);
        }
        if let Some(e) = self.conns.get_mut(index) {
            e.next_hop = next_hop;
        }
        if let NextHop::Neighbor(n) = next_hop {
            self.neighbors.wait(n, &mut self.conns, index);
        }
        self.update(index);
        true
    }

    /// Ends a connection that has no place any more.
    fn withdraw(&mut self, index: u32) {
        // What has happened before is told before.
        self.update(index);
        let Some(e) = self.conns.get_mut(index) else { return };
        if matches!(e.owner, Owner::Released { .. }) && e.conn.state() == State::TimeWait {
            return self.remove(index);
        }
        let told = matches!(e.conn.state(), State::TimeWait | State::Closed);
        e.conn.abort();
        if !told {
            // The one event of the end is ours.
            while e.conn.poll_event().is_some() {}
            e.raise(EventKind::Withdrawn);
        }
        self.update(index);
    }
}
