//! InfiniBand: datagrams in and out, and applications' requests about its connections.

mod req;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::sync::Arc;

use heddle_base::Instant;
use heddle_ib::cm::{
    Answered, Apr, CLASS_VERSION, ClassPortInfo, Lap, Mad, Message, SidrRep, SidrStatus,
};
use heddle_ib::mad::BASE_VERSION;
use heddle_ib::roce::{PacketError, UdPacket};
use heddle_ib::{CommId, Qpn as IbQpn, TimeCode};
use heddle_tcp::DatagramFilter;
use heddle_types::{
    AcceptTerms, AppId, CmId, ConnectTerms, ParamsError, Request, RequestError, WorkerId,
    ib::RejReason,
};

use super::ConnectionManager;
use crate::ib::{
    Depths, Effect, Filter, IbConfig, IbConn, IbCounters, IbDatagram, IbLink, IbPort, IbState,
    Input, MAX_INTERVAL, MIN_INTERVAL, Table, To, Wait,
};

/// Source port of answers that belong to no connection.
const PLAIN_PORT: u16 = 0xc000;

/// The way by which a datagram came; the answer goes back the same way.
#[derive(Clone, Copy, Debug)]
struct Way {
    worker: WorkerId,
    ours: IpAddr,
    peer: IpAddr,
    tid: u64,
}

impl Way {
    /// Returns the way back to a sender of which no more is known.
    const fn back(self) -> To {
        let addresses = [self.ours, self.peer];
        To { worker: self.worker, addresses, src_port: PLAIN_PORT, is_stranger: true }
    }
}

impl ConnectionManager {
    /// Enables InfiniBand, beside iWARP. A second call changes nothing.
    pub fn enable_infiniband(&mut self, config: IbConfig) {
        self.ib.get_or_insert_with(|| Box::new(Table::new(config)));
    }

    /// Returns the filter for the workers' UDP port of RoCEv2; `None` when InfiniBand is not
    /// enabled. The filter knows at all times which messages belong to existing connections.
    pub fn ib_filter(&self) -> Option<Arc<dyn DatagramFilter>> {
        let ib = self.ib.as_ref()?;
        Some(Arc::new(Filter(ib.comm_ids().clone())))
    }

    /// Returns the counters of InfiniBand; `None` when InfiniBand is not enabled.
    pub fn ib_counters(&self) -> Option<&IbCounters> {
        self.ib.as_deref().map(Table::counters)
    }

    /// Returns the next datagram, and the worker that is to send it by UDP. The shell may drop a
    /// datagram that cannot be sent.
    pub fn poll_datagram(&mut self) -> Option<(WorkerId, IbDatagram)> {
        self.ib.as_mut()?.poll_datagram()
    }

    /// Takes a datagram that came to the UDP port of RoCEv2, as the IP packet from its header on.
    /// The manager answers it with at most one datagram.
    pub fn handle_datagram(&mut self, now: Instant, worker: WorkerId, packet: &[u8]) {
        self.now = now;
        if !self.is_running(worker) {
            return;
        }
        let Some(ib) = &mut self.ib else { return };
        let counters = &mut ib.fx.ib;
        counters.rx_datagrams += 1;
        let ud = match UdPacket::parse_gsi(packet) {
            Ok(ud) => ud,
            Err(PacketError::Icrc) => return counters.rx_bad_icrc += 1,
            Err(PacketError::DestQp(_) | PacketError::PKey(_) | PacketError::QKey(_)) => {
                return counters.rx_not_gsi += 1;
            }
            Err(_) => return counters.rx_bad_packet += 1,
        };
        let (peer, ours) = (ud.repr.src, ud.repr.dst);
        let strange = peer.is_unspecified() || peer.is_multicast() || ib.config.is_ours(peer);
        if ib.config.worker_of(ours) != Some(worker) || strange {
            ib.fx.ib.rx_not_ours += 1;
            return;
        }
        match Mad::parse(ud.payload) {
            Ok(mad) => {
                self.handle_mad(Way { worker, ours, peer, tid: mad.tid }, &mad.message);
            }
            Err(e) => {
                ib.fx.ib.rx_bad_mad += 1;
                if let Some(answer) = e.answer(ud.payload) {
                    let way = Way { worker, ours, peer, tid: 0 };
                    ib.send_mad(way.back(), &answer);
                }
            }
        }
    }

    fn handle_mad(&mut self, way: Way, message: &Message) {
        let Some(ib) = &mut self.ib else { return };
        if let Some(names) = crate::ib::names(message)
            && !matches!(message, Message::Lap(_) | Message::Apr(_))
        {
            return self.about_connection(way, names, message);
        }
        let answer = match message {
            Message::Req(req) => return self.requested(way, req, message),
            Message::SidrReq(req) => {
                ib.fx.ib.sidr_requests += 1;
                Message::SidrRep(Box::new(SidrRep::refusal(req, SidrStatus::UNSUPPORTED)))
            }
            Message::GetClassPortInfo => Message::ClassPortInfo(Box::new(ClassPortInfo {
                base_version: BASE_VERSION,
                class_version: CLASS_VERSION,
                capability_mask: ClassPortInfo::RC_CAPABLE,
                response_time: ib.config.response,
                ..ClassPortInfo::default()
            })),
            Message::Lap(lap) => {
                ib.fx.ib.lap_requests += 1;
                ib.no_path(lap)
            }
            _ => return ib.fx.ib.rx_unexpected += 1,
        };
        self.reply(way, answer);
    }

    fn reply(&mut self, way: Way, message: Message) {
        let Some(ib) = &mut self.ib else { return };
        ib.send(way.back(), way.tid, message);
    }

    /// Handles a message that names a connection of ours: first its sender's name of the
    /// connection, then ours.
    fn about_connection(&mut self, way: Way, (peer, our): (CommId, CommId), message: &Message) {
        let Some(ib) = &mut self.ib else { return };
        // A sender that gives up before it has heard from us knows only its own name.
        let unnamed = our == CommId(0) && matches!(message, Message::Rej(_));
        let found = if unnamed { ib.by_peer(way.peer, peer) } else { ib.by_comm(our) };
        let Some(id) = found else {
            let answer = match message {
                Message::Dreq(_) => crate::ib::drep(our, peer),
                Message::Rep(_) => {
                    let reason = RejReason::INVALID_COMM_ID;
                    let rej = crate::ib::rej(our, peer, Answered::REP, reason);
                    Message::Rej(Box::new(rej))
                }
                _ => return ib.fx.ib.rx_unknown += 1,
            };
            ib.fx.ib.rx_unknown += 1;
            return self.reply(way, answer);
        };
        let Some((IbConn { link, .. }, fx)) = ib.get_mut(id) else { return };
        let known = link.remote_comm.is_none_or(|name| name == peer);
        if link.remote.ip() != way.peer || link.local.ip() != way.ours || !known {
            fx.ib.rx_foreign += 1;
            return;
        }
        link.is_stranger &= unnamed;
        self.drive_ib(id, Input::Message(way.tid, message));
    }

    /// Connects to a peer over InfiniBand.
    pub(super) fn connect_ib(
        &mut self,
        app: AppId,
        id: CmId,
        remote: SocketAddr,
        params: &ConnectTerms,
    ) -> Result<(), RequestError> {
        let local = params.local.or_else(|| self.config.ports.source(remote.ip()));
        let tenant = self.tenant(app);
        let lost = &self.lost;
        let ib = self.ib.as_mut().ok_or(ParamsError::NoInfiniBand)?;
        let IbPort { addr: local, worker } =
            ib.config.source(local, remote.ip()).ok_or(ParamsError::NoInfiniBand)?;
        if lost.contains(&worker) {
            return Err(RequestError::NoWorker);
        }
        if ib.config.is_ours(remote.ip()) {
            return Err(ParamsError::NoInfiniBand.into());
        }
        let mut link = IbLink {
            id,
            app,
            tenant,
            worker,
            listener: None,
            local: SocketAddr::new(local, ib.ephemeral()),
            remote,
            src_port: PLAIN_PORT,
            local_comm: CommId(0),
            remote_comm: None,
            // Our application chose the peer.
            is_stranger: false,
            tid: 0,
            dreq_tid: 0,
            ca_guid: ib.config.ca_guid,
            local_qpn: IbQpn::default(),
            local_psn: 0,
            remote_qpn: IbQpn::default(),
            remote_guid: 0,
            peer: Depths::default(),
            interval: interval(ib.config.response),
            retries: ib.config.max_retries.min(15),
            time_wait: ib.config.time_wait,
            keepalive: None,
        };
        ib.name(&mut link);
        let ours = Depths::ours(params.ird, params.ord);
        let req = link.req(ours, ib.config.response, &params.private_data);
        let req = req.ok_or(ParamsError::PrivateData)?;
        if !ib.make_room() {
            return Err(RequestError::IbFull);
        }
        let qpn = params.qp.qpn;
        let (tid, interval, retries) = (link.tid, link.interval, link.retries);
        let wait = Wait::new(self.now, tid, req.clone(), interval, retries, params.timeout);
        let to = To::peer(&link);
        let state = IbState::ReqSent { wait, qpn, ours };
        ib.insert(IbConn { link, state, deadline: None });
        ib.send(to, tid, req);
        self.claims.claim(qpn, app, id);
        self.fx.counters.requests_sent += 1;
        self.apps.entry(app).or_default().conns.insert(id);
        Ok(())
    }

    pub(super) fn accept_ib(
        &mut self,
        app: AppId,
        id: CmId,
        params: &AcceptTerms,
    ) -> Result<(), RequestError> {
        self.ask_ib(app, id, Input::Accept(params))?;
        self.claims.claim(params.qp.qpn, app, id);
        Ok(())
    }

    /// Handles a request about one of the application's own connections.
    pub(super) fn ask_ib(
        &mut self,
        app: AppId,
        id: CmId,
        input: Input<'_>,
    ) -> Result<(), RequestError> {
        let conn = self.ib.as_ref().and_then(|ib| ib.get(id));
        conn.filter(|c| c.link.app == app && !c.state.is_over() && !self.is_gone(app))
            .ok_or(RequestError::NoConnection)?;
        self.drive_ib(id, input).map_or(Ok(()), Err)
    }

    /// Returns true if InfiniBand has a connection of that name.
    pub(super) fn is_ib(&self, id: CmId) -> bool {
        self.ib.as_ref().is_some_and(|ib| ib.get(id).is_some())
    }

    /// Refuses a connection request with `reason`, the reason of a REJ, in the name of InfiniBand
    /// instead of the application. A gateway passes a refusal on in this way. Over iWARP, which has
    /// no reasons, the refusal is a rejection without private data. No event follows.
    ///
    /// # Errors
    /// As for [`Request::Reject`](heddle_types::Request::Reject).
    pub fn refuse(
        &mut self,
        now: Instant,
        app: AppId,
        id: CmId,
        reason: u16,
    ) -> Result<(), RequestError> {
        if !self.is_ib(id) {
            let private_data = Vec::new();
            let reject = Request::Reject { id, private_data, needs_ord: None };
            return self.handle_request(now, app, reject);
        }
        self.now = now;
        self.ask_ib(app, id, Input::Refuse(reason))
            .inspect_err(|_| self.fx.counters.requests_refused += 1)
    }

    /// Probes peers, from now on, that have been silent for `idle`, including peers of existing
    /// connections; `None` ends the probes. Silence counts from now.
    ///
    /// The manager probes a peer that made its connection: it sends our REP again, which the peer
    /// answers with an RTU. A peer that does not answer as many probes as it would send REQs
    /// itself, and at least three, gets one DREQ, and the connection ends with
    /// [`DisconnectReason::PeerSilent`](heddle_types::DisconnectReason::PeerSilent). A peer that we
    /// connected to cannot be probed, because no message makes it answer.
    pub fn set_ib_keepalive(&mut self, now: Instant, idle: Option<Duration>) {
        self.now = now;
        if let Some(ib) = &mut self.ib {
            ib.set_keepalive(now, idle);
        }
    }

    /// Handles the connections whose deadline has passed.
    pub(super) fn ib_timeouts(&mut self) {
        while let Some(id) = self.ib.as_ref().and_then(|ib| ib.due(self.now)) {
            self.drive_ib(id, Input::Timeout);
        }
    }

    /// Ends the connections of a worker that has ended.
    pub(super) fn ib_worker_lost(&mut self, worker: WorkerId) {
        let Some(ib) = &mut self.ib else { return };
        ib.forget_datagrams(worker);
        for id in ib.all_but(|link| link.worker != worker) {
            self.drive_ib(id, Input::WorkerLost);
        }
    }

    /// Ends the connections that have lost their address or route, after addresses and routes have
    /// changed.
    pub(super) fn ib_readdressed(&mut self) {
        let Some(ib) = &self.ib else { return };
        let has_way = |link: &IbLink| {
            let remote = link.remote.ip();
            // For IPv6 there are no routes.
            let leads =
                |port| self.config.ports.net(port).is_some_and(|n| n.route_any(remote).is_some());
            let port = self.config.ports.with_addr(link.local.ip());
            ib.config.worker_of(link.local.ip()) == Some(link.worker)
                && (remote.is_ipv6() || port.is_some_and(leads))
        };
        for id in ib.all_but(has_way) {
            self.drive_ib(id, Input::Withdrawn);
        }
    }

    /// Gives `input` to a connection and carries out its effects.
    pub(super) fn drive_ib(&mut self, id: CmId, input: Input<'_>) -> Option<RequestError> {
        let now = self.now;
        let ib = self.ib.as_mut()?;
        let (conn, fx) = ib.get_mut(id)?;
        let (from, was_over) = (conn.state.place(), conn.state.is_over());
        let was_unanswered = conn.state.is_unanswered();
        let was_known = conn.link.remote_comm.is_some();
        let state = core::mem::replace(&mut conn.state, IbState::Gone);
        conn.state = state.step(&mut conn.link, input, now, fx);
        let (to, over) = (conn.state.place(), conn.state.is_over());
        let (unanswered, half_open) = (conn.state.is_unanswered(), conn.state.is_half_open());
        let gone = matches!(conn.state, IbState::Gone);
        let link = conn.link.clone();
        if !was_known {
            ib.index_peer(&link);
        }
        // These changes come before the place that the connection had is given back: they need its
        // record of usage.
        ib.change_unanswered(&link, was_unanswered, unanswered);
        ib.change_half_open(&link, half_open);
        if over {
            ib.free_qp(&link);
        }
        ib.change_place(&link, from, to);
        ib.renew_deadline(id);
        self.fx.counters.add(&core::mem::take(&mut ib.fx.cm));
        let denied = ib.fx.denied.take();
        for effect in core::mem::take(&mut ib.fx.list) {
            self.carry_out_ib(&link, effect);
        }
        if over
            && !was_over
            && let Some(a) = self.apps.get_mut(&link.app)
        {
            a.conns.remove(&id);
        }
        if gone && let Some(ib) = &mut self.ib {
            ib.remove(id);
        }
        if over {
            self.prune(link.app);
        }
        denied
    }

    fn carry_out_ib(&mut self, link: &IbLink, effect: Effect) {
        match effect {
            Effect::Send(tid, message) => {
                let Some(ib) = &mut self.ib else { return };
                ib.send(To::peer(link), tid, message);
            }
            Effect::Tell(event) => self.tell(link.app, event),
            Effect::Spend(qpn) if !self.is_gone(link.app) => self.claims.spend(qpn),
            Effect::Spend(qpn) | Effect::Free(qpn) => self.claims.free(qpn),
        }
    }
}

impl Table {
    /// Returns the answer to a LAP: there are no other paths here.
    fn no_path(&self, lap: &Lap) -> Message {
        let known = self.by_comm(lap.remote_comm_id).is_some();
        Message::Apr(Box::new(Apr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            status: if known { Apr::UNSUPPORTED } else { Apr::INVALID_COMM_ID },
            ari_len: 0,
            ari: [0; Apr::ARI_LEN],
            private_data: [0; Apr::PRIVATE_LEN],
        }))
    }
}

/// Returns the time between two attempts, within our limits for it, whatever a peer announces.
fn interval(code: TimeCode) -> Duration {
    code.duration().clamp(MIN_INTERVAL, MAX_INTERVAL)
}
