//! Changing addresses and routes while the stack runs.

use core::num::NonZeroU32;
use heddle_base::Instant;

use super::Stack;
use super::addressing::{Addressing, Cidr};
use super::event::EventKind;
use super::neighbor::LinkAddr;
use super::slab::{NextHop, Owner};
use crate::{SendQueue, State};

impl<S: SendQueue + Default> Stack<S> {
    /// Makes the stack use the addresses and routes of `net` from now on, in place of its current
    /// ones. Everything that both have in common continues undisturbed, so a caller that changes
    /// one entry repeats the others. An address with another prefix is the same address on another
    /// link.
    ///
    /// - An address that moves to another VLAN is removed from the first, and new on the second.
    /// - The stack allows listening on a new address, answers for it at once, and announces it.
    /// - The listeners of an address that is ours no more end, and so do its connections: the stack
    ///   sends each peer a reset from that address and reports [`StackEvent::Withdrawn`] to the
    ///   owner. Connections in TIME-WAIT end silently. Listeners on all addresses continue.
    /// - A connection over IPv6 makes its segments smaller where its link has a smaller MTU now.
    /// - A connection with another next hop sends there as soon as the stack has found this hop. If
    ///   the stack cannot find it, the connection ends as [`StackEvent::Unreachable`]. A connection
    ///   without a route to its peer, or with a next hop for which the table of neighbors has no
    ///   room, ends like the connections of a removed address.
    ///
    /// The function visits every connection: use it for configuration, not on the data path.
    ///
    /// [`StackEvent::Withdrawn`]: super::StackEvent::Withdrawn
    /// [`StackEvent::Unreachable`]: super::StackEvent::Unreachable
    pub fn set_addressing(&mut self, now: Instant, net: Addressing) {
        let net = net.with_station(self.cfg.mac);
        if self.cfg.net == net {
            return;
        }
        self.update_deferred();
        let old = core::mem::replace(&mut self.cfg.net, net);
        // Nothing goes through a spare router: forged ones must not have all connections visited.
        if old.without_spare_routers() == self.cfg.net.without_spare_routers() {
            return;
        }
        let addr = |(vid, c): (_, Cidr)| LinkAddr::new(vid, c.addr());
        let new = self.cfg.net.all_addrs().map(addr);
        let new: Vec<_> = new.filter(|at| !old.on(at.vid).is_ours(at.ip)).collect();
        self.announce_each(&new);
        for gone in old.all_addrs().map(|(_, c)| c.addr()) {
            if !self.cfg.net.has(gone) {
                for port in self.listeners.ports_at(gone) {
                    self.unlisten(now, Some(gone), port);
                }
            }
        }
        self.recount_peers();
        self.readdress_half_opens();
        self.recount_windows();
        for index in 0..self.conns.end() {
            if !self.is_led(now, index) {
                self.withdraw(index);
            } else if let Some(e) = self.conns.get_mut(index) {
                // The VLAN's frames may have another priority.
                e.template.set_tag(self.cfg.net.tag(e.flow().vid(), e.template.dscp()));
                self.fit_link(now, index);
            }
        }
    }

    /// Counts the connections of each peer again, without half-open ones: a peer that was on a link of
    /// ours may be beyond it now, and is then counted [otherwise](super::Addressing::site).
    fn recount_peers(&mut self) {
        self.peers.clear();
        for e in self.conns.iter() {
            let Some(listener) = e.listener.map(NonZeroU32::get) else { continue };
            let flow = e.flow();
            let site = self.cfg.net.site_on(flow.vid(), flow.remote().ip());
            self.peers.opened(listener, site);
            self.peers.established(listener, site);
        }
    }

    /// Counts the windows of each host again, for the same reason.
    fn recount_windows(&mut self) {
        self.windows.clear();
        for e in self.conns.iter() {
            let (held, _) = e.conn.window_growth();
            let flow = e.flow();
            let site = self.cfg.net.site_on(flow.vid(), flow.remote().ip());
            self.windows.count(site, held);
        }
    }

    /// Makes a connection's segments go to the current next hop. Returns false when there is no
    /// next hop.
    fn is_led(&mut self, now: Instant, index: u32) -> bool {
        let Some(e) = self.conns.get(index) else { return true };
        if e.conn.state() == State::Closed {
            // Such a connection can only have a reset to send. Its next hop stays in use until
            // then.
            return true;
        }
        let (flow, before) = (e.flow(), e.next_hop);
        let (vid, peer) = (flow.vid(), flow.remote().ip());
        if !self.cfg.net.on(vid).is_ours(flow.local().ip()) {
            return false;
        }
        let Some(hop) = self.cfg.net.route_on(vid, peer) else { return false };
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

    /// Lowers the segment size of a connection over IPv6 if its link carries less than before: routers
    /// may say so at any time (RFC 4861 section 6.3.4).
    fn fit_link(&mut self, now: Instant, index: u32) {
        let Some(e) = self.conns.get_mut(index) else { return };
        let flow = e.flow();
        if !flow.is_ipv6() {
            return;
        }
        let mss = u32::from(self.cfg.over_ipv6(flow.vid()).mss);
        e.conn.limit_link(now, mss.saturating_sub(e.conn.options_len().into()));
        self.update(index);
    }

    /// Ends a connection whose address or route no longer exists.
    fn withdraw(&mut self, index: u32) {
        // Report earlier events of the connection first.
        self.update(index);
        let Some(e) = self.conns.get_mut(index) else { return };
        if matches!(e.owner, Owner::Released { .. }) && e.conn.state() == State::TimeWait {
            return self.remove(index);
        }
        let told = matches!(e.conn.state(), State::TimeWait | State::Closed);
        e.conn.abort();
        if !told {
            // The stack itself reports the one event of the end.
            while e.conn.poll_event().is_some() {}
            e.raise(EventKind::Withdrawn);
        }
        self.update(index);
    }
}
