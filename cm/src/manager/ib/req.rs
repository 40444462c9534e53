//! A REQ: its owner, the check for room, and the connection that comes of it.

use core::net::{IpAddr, SocketAddr};

use heddle_ib::cm::{Answered, Message, Req};
use heddle_ib::ip_cm::{self, Header, IpVersions};
use heddle_ib::{CommId, Qpn as IbQpn};
use heddle_types::{CmId, Event, ListenerId, Transport, ib::RejReason};

use super::{PLAIN_PORT, Way, interval};
use crate::ConnectionManager;
use crate::ib::{Depths, IbConn, IbLink, IbState, Input, MAX_PUT_OFF, Refused};
use crate::notice::Refusal;
use crate::shares::Room;

impl ConnectionManager {
    /// Handles a REQ.
    pub(super) fn requested(&mut self, way: Way, req: &Req, message: &Message) {
        let Some(ib) = &mut self.ib else { return };
        if let Some(id) = ib.by_peer(way.peer, req.local_comm_id) {
            let is_copy = ib.get(id).is_some_and(|c| {
                let l = &c.link;
                l.listener.is_some()
                    && (l.tid, l.remote_qpn, l.remote_guid)
                        == (way.tid, req.local_qpn, req.local_ca_guid)
            });
            if is_copy {
                self.drive_ib(id, Input::Message(way.tid, message));
                return;
            }
        }
        match self.admit_req(way, req) {
            Ok((listener, header)) => self.take_req(way, req, listener, header),
            Err(why) => self.refuse_req(way, req, why),
        }
    }

    fn refuse_req(&mut self, way: Way, req: &Req, why: Refused) {
        let Some(ib) = &mut self.ib else { return };
        let none = RejReason::default();
        let mut rej = crate::ib::rej(CommId(0), req.local_comm_id, Answered::REQ, none);
        why.say(&mut rej, &mut ib.fx.ib);
        self.reply(way, Message::Rej(Box::new(rej)));
    }

    /// Returns the listener that is to answer the REQ. The peer's own limits come first, as with
    /// iWARP.
    fn admit_req(&mut self, way: Way, req: &Req) -> Result<(ListenerId, Header), Refused> {
        let ib = self.ib.as_ref().ok_or(Refused::NoService)?;
        let local = SocketAddr::new(way.ours, crate::ib::port(req)?);
        let listener = self.listeners.at(local).ok_or(Refused::NoService)?;
        let l = self.listeners.get(listener).ok_or(Refused::NoService)?;
        if !l.params.infiniband {
            return Err(Refused::NoService);
        }
        let header = crate::ib::header(req, IpVersions::BOTH, way.peer, way.ours)?;
        let named = ib.by_peer(way.peer, req.local_comm_id).is_some();
        if named || ib.by_qp(way.peer, req.local_ca_guid, req.local_qpn).is_some() {
            return Err(Refused::Stale);
        }
        let mut full = self.full(listener, way.peer);
        if full.is_some_and(|why| self.give_up_unanswered(why, listener, way.peer)) {
            full = self.full(listener, way.peer);
        }
        let Some(why) = full else {
            self.bound_unanswered(listener);
            self.displace(listener);
            return Ok((listener, header));
        };
        let remote = SocketAddr::new(header.src, header.src_port);
        self.refused(Some(listener), local, remote, why);
        Err(Refused::NoRoom)
    }

    /// Returns the first limit that a REQ of `peer` to `listener` reaches.
    fn full(&self, listener: ListenerId, peer: IpAddr) -> Option<Refusal> {
        let (ib, l) = (self.ib.as_ref()?, self.listeners.get(listener)?);
        let (all, its) = (ib.usage(listener, None), ib.usage(listener, Some(peer)));
        let reached = |limit: Option<usize>, n: usize| limit.is_some_and(|most| n >= most);
        if self.draining {
            Some(Refusal::Draining)
        } else if reached(l.params.max_conns_per_peer, its.asked + its.taken) {
            Some(Refusal::PeerConns)
        } else if reached(l.params.max_startups_per_peer, its.asked) {
            Some(Refusal::PeerStartups)
        } else if self.apps.get(&l.app).is_some_and(|a| a.waiting >= self.config.max_events) {
            Some(Refusal::Events)
        } else if all.asked >= l.params.backlog {
            Some(Refusal::Backlog)
        } else if ib.room(self.tenant(l.app)) == Room::Full || !ib.has_room() {
            Some(Refusal::Startups)
        } else {
            None
        }
    }

    /// A peer that asks under forged addresses does not answer our REP. Evicts the oldest
    /// connection whose REP is unanswered: among the peer's own if the peer has reached its limit,
    /// and among all connections if no place is left. Returns false if there is none.
    fn give_up_unanswered(&mut self, why: Refusal, listener: ListenerId, peer: IpAddr) -> bool {
        let Some(ib) = &self.ib else { return false };
        let first = match why {
            Refusal::PeerConns => ib.unanswered(Some(listener), Some(peer)),
            // A flood ends sooner than the first REP is sent again. So the half-open connection
            // goes that has had longest to answer: longer than a peer that exists takes.
            Refusal::Startups if !ib.has_room() => {
                ib.unanswered(None, None).or_else(|| ib.half_open())
            }
            _ => None,
        };
        self.evict_unanswered(first);
        first.is_some()
    }

    /// Limits a listener's accepted connections without an answer to its backlog, the limit for its
    /// requests, because the application has given a queue pair for each.
    fn bound_unanswered(&mut self, listener: ListenerId) {
        let (Some(ib), Some(l)) = (&self.ib, self.listeners.get(listener)) else { return };
        if ib.usage(listener, None).unanswered >= l.params.backlog {
            let first = ib.unanswered(Some(listener), None);
            self.evict_unanswered(first);
        }
    }

    /// If all places are taken, evicts a connection of the tenant that holds most of them.
    fn displace(&mut self, listener: ListenerId) {
        let (Some(ib), Some(l)) = (&self.ib, self.listeners.get(listener)) else { return };
        if let Room::After(id) = ib.room(self.tenant(l.app)) {
            self.fx.counters.backlog_evicted += 1;
            self.drive_ib(id, Input::MakeRoom);
        }
    }

    fn evict_unanswered(&mut self, first: Option<CmId>) {
        if let (Some(ib), Some(id)) = (&mut self.ib, first) {
            ib.fx.ib.half_open_evicted += 1;
            self.drive_ib(id, Input::MakeRoom);
        }
    }

    /// Enters the request and asks the application.
    fn take_req(&mut self, way: Way, req: &Req, listener: ListenerId, header: Header) {
        let Some(l) = self.listeners.get(listener) else { return };
        let tenant = self.tenant(l.app);
        let Some(ib) = &mut self.ib else { return };
        ib.make_room();
        let port = crate::ib::port(req).unwrap_or_default();
        let id = CmId(self.next_passive);
        self.next_passive += 1;
        let peer = Depths {
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
        };
        let mut link = IbLink {
            id,
            app: l.app,
            tenant,
            worker: way.worker,
            listener: Some(listener),
            local: SocketAddr::new(way.ours, port),
            remote: SocketAddr::new(header.src, header.src_port),
            src_port: PLAIN_PORT,
            local_comm: CommId(0),
            remote_comm: Some(req.local_comm_id),
            is_stranger: true,
            tid: way.tid,
            dreq_tid: 0,
            ca_guid: ib.config.ca_guid,
            local_qpn: IbQpn::default(),
            local_psn: 0,
            remote_qpn: req.local_qpn,
            remote_guid: req.local_ca_guid,
            peer,
            interval: interval(req.local_cm_response_timeout),
            // Our own limit applies too: a forged REQ is to cost its victim little.
            retries: req.max_cm_retries.min(ib.config.max_retries),
            // At least as long as the peer may send this REQ again. Otherwise we would take the
            // copy for another REQ after we have refused the first.
            time_wait: ib.config.time_wait.max(req_lives(req)),
            keepalive: ib.config.keepalive,
        };
        ib.name(&mut link);
        let accept_by = self.now + l.params.accept_timeout;
        // The MRA goes out after half of the time that the peer waits before it asks again.
        let mra_at = Some(self.now + req.remote_cm_response_timeout.duration() / 2);
        let state = IbState::ReqRcvd { accept_by, mra_at };
        let event = Event::ConnectRequest {
            id,
            listener,
            worker: way.worker,
            transport: Transport::InfiniBand,
            local: link.local,
            remote: link.remote,
            private_data: ip_cm::consumer(&req.private_data).to_vec(),
            peer: Some(peer.told()),
            peer_to_peer: false,
        };
        let app = link.app;
        ib.insert(IbConn { link, state, deadline: None });
        self.fx.counters.requests_received += 1;
        self.apps.entry(app).or_default().conns.insert(id);
        self.tell(app, event);
    }
}

/// Returns how long the peer sends a REQ again by its own timing, but no longer than we let any
/// peer delay us.
fn req_lives(req: &Req) -> core::time::Duration {
    let each = interval(req.remote_cm_response_timeout);
    (each * (u32::from(req.max_cm_retries) + 2)).min(MAX_PUT_OFF)
}
