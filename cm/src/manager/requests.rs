//! Requests of applications.

use core::net::SocketAddr;

use heddle_base::Instant;
use heddle_rnic::Order;
use heddle_types::{
    AcceptTerms, AppId, CmId, ConnectTerms, Event, ListenAt, ListenError, ListenFailure,
    ListenParams, ListenerId, Protocol, Request, RequestError, WorkerId,
};

use super::ConnectionManager;
use crate::conn::{Conn, ConnInfo, Input, State};
use crate::dialogue;
use crate::ib::Input as IbInput;
use crate::listener::Listener;
use crate::notice::Refusal;
use crate::small::Stamp;

impl ConnectionManager {
    /// Carries out a request of an application.
    ///
    /// # Errors
    /// Every error that can be known at once. The request has changed nothing then, and no event
    /// follows.
    pub fn handle_request(
        &mut self,
        now: Instant,
        app: AppId,
        request: Request,
    ) -> Result<(), RequestError> {
        self.now = now;
        let result = match request {
            Request::Listen { id, addr, params } => self.listen(app, id, addr, params),
            Request::Unlisten { id } => self.unlisten(app, id),
            Request::Connect { id, remote, params } => self.connect(app, id, remote, params),
            Request::Accept { id, params } => self.accept(app, id, &params),
            Request::Reject { id, private_data, .. } if self.is_ib(id) => {
                self.ask_ib(app, id, IbInput::Reject(&private_data))
            }
            Request::Disconnect { id } if self.is_ib(id) => {
                self.ask_ib(app, id, IbInput::Disconnect)
            }
            Request::Reject { id, private_data, needs_ord } => {
                self.ask(app, id, Input::Reject(&private_data, needs_ord))
            }
            Request::Disconnect { id } => self.ask(app, id, Input::Disconnect),
            Request::EventsTaken { count } => {
                self.events_taken(app, count);
                Ok(())
            }
            Request::ForgetQp { qpn } => self.claims.forget(app, qpn),
            Request::AppGone => {
                self.app_gone(app);
                Ok(())
            }
        };
        if result.is_err() {
            self.fx.counters.requests_refused += 1;
        }
        result
    }

    fn listen(
        &mut self,
        app: AppId,
        id: ListenerId,
        addr: SocketAddr,
        params: ListenParams,
    ) -> Result<(), RequestError> {
        if self.listeners.get(id).is_some() || self.is_gone(app) {
            return Err(RequestError::Id);
        }
        if self.is_overfull(app) {
            return Err(RequestError::EventsNotTaken);
        }
        let at = ListenAt::new(addr.ip(), params.v6_only);
        self.listeners.check(at, addr.port())?;
        // Only the workers of the port that has the address can receive connections to it, from
        // peers beyond that port and from ourselves.
        let workers: Vec<_> = match at.one() {
            None => self.running_workers().collect(),
            Some(ip) => {
                let ports = &self.config.ports;
                let port = ports.with_addr(ip).ok_or(ListenError::NotOurs)?;
                let inner = ports.inner().filter(|&inner| inner != port);
                let of = |port| self.workers_at(port);
                of(port).chain(inner.into_iter().flat_map(of)).collect()
            }
        };
        if workers.is_empty() {
            return Err(RequestError::NoWorker);
        }
        // Every connection makes its own answer; this one only checks the options.
        dialogue::answer(&params.protocol, false)?;
        for &worker in &workers {
            let (port, backlog, tcp) = (addr.port(), params.backlog, params.tcp);
            let order = Order::Listen { token: id.0, at, port, backlog, tcp };
            self.orders.push_back((worker, order));
        }
        self.listeners.insert(id, Listener::new(app, addr, params, workers));
        self.apps.entry(app).or_default().listeners.insert(id);
        Ok(())
    }

    fn unlisten(&mut self, app: AppId, id: ListenerId) -> Result<(), RequestError> {
        let l = self.listeners.get(id).filter(|l| l.app == app).ok_or(RequestError::NoListener)?;
        // The workers stop now and not after their answers, because the application's next request
        // may be to listen at the same address.
        let (workers, listening) = (l.listening_at(), l.is_listening());
        let (at, port) = (l.at(), l.addr.port());
        self.withdraw(&workers, at, port);
        if !listening {
            let error = ListenFailure::Withdrawn;
            self.tell(app, Event::ListenFailed { id, error });
        }
        self.forget_listener(id);
        Ok(())
    }

    /// Orders workers to stop listening.
    pub(super) fn withdraw(&mut self, workers: &[WorkerId], at: ListenAt, port: u16) {
        for &worker in workers {
            if self.is_running(worker) {
                let order = Order::Unlisten { at, port };
                self.orders.push_back((worker, order));
            }
        }
    }

    /// Forgets a listener, and resets those of its connections that no application knows of.
    pub(super) fn forget_listener(&mut self, id: ListenerId) {
        let waiting = self.listeners.get(id).map(|l| l.places.waiting()).unwrap_or_default();
        for conn in waiting {
            self.drive(conn, Input::Evict(Refusal::NotListening));
        }
        let Some(l) = self.listeners.remove(id) else { return };
        if let Some(a) = self.apps.get_mut(&l.app) {
            a.listeners.remove(&id);
        }
        self.prune(l.app);
    }

    fn connect(
        &mut self,
        app: AppId,
        id: CmId,
        remote: SocketAddr,
        params: ConnectTerms,
    ) -> Result<(), RequestError> {
        if id.is_passive() || self.conns.contains_key(&id) || self.is_ib(id) || self.is_gone(app) {
            return Err(RequestError::Id);
        }
        if self.is_overfull(app) {
            return Err(RequestError::EventsNotTaken);
        }
        let qp = params.qp;
        self.claims.check(qp.qpn)?;
        if let Protocol::InfiniBand = params.protocol {
            return self.connect_ib(app, id, remote, &params);
        }
        let local = params.local;
        let has_worker = |port| self.workers_at(port).next().is_some();
        let port = self.config.ports.choose(local, remote, has_worker)?;
        // The port stands for the scope from here on: no frame has it.
        let remote = SocketAddr::new(remote.ip(), remote.port());
        let worker = self.least_busy(port).ok_or(RequestError::NoWorker)?;
        let ask = dialogue::ask(&params.protocol, &params, self.config.ports.is_inside(worker))?;
        self.claims.claim(qp.qpn, app, id);
        let link = ConnInfo {
            id,
            app,
            worker,
            conn: None,
            // The worker reports the port with the connection.
            local: local.map(|ip| SocketAddr::new(ip, 0).into()),
            remote: remote.into(),
            received: 0,
            since: Stamp::of(self.now),
            passive: None,
            tcp: params.tcp,
            close_timeout: self.config.close_timeout.into(),
            close_limit: self.config.close_limit.into(),
        };
        self.insert(link, State::Opening { ask, qp });
        self.set_deadline(id, Some(params.timeout));
        let tcp = params.tcp;
        self.orders.push_back((worker, Order::Connect { token: id.0, local, remote, tcp }));
        Ok(())
    }

    /// Returns the worker of a port that has the fewest connections, of several the first. Taking
    /// workers in turn would not do: connections last, and peers spread theirs by chance. Counting
    /// evens out the differences that peers, and connections of one worker that ended together,
    /// have left.
    fn least_busy(&self, port: usize) -> Option<WorkerId> {
        self.workers_at(port).min_by_key(|w| self.workers.get(w.0).map(|w| w.conns))
    }

    fn accept(&mut self, app: AppId, id: CmId, params: &AcceptTerms) -> Result<(), RequestError> {
        if self.is_ib(id) {
            self.claims.check(params.qp.qpn)?;
            return self.accept_ib(app, id, params);
        }
        let c = self.owned(app, id)?;
        if matches!(c.state, State::AwaitAnswer { .. }) {
            self.claims.check(params.qp.qpn)?;
        }
        self.ask(app, id, Input::Accept(params))?;
        self.claims.claim(params.qp.qpn, app, id);
        Ok(())
    }

    /// Handles a request about one of the application's own connections.
    fn ask(&mut self, app: AppId, id: CmId, input: Input<'_>) -> Result<(), RequestError> {
        self.owned(app, id)?;
        self.drive(id, input).map_or(Ok(()), Err)
    }

    fn owned(&self, app: AppId, id: CmId) -> Result<&Conn, RequestError> {
        self.conns
            .get(&id)
            .map(Box::as_ref)
            .filter(|c| c.link.app == app && !self.is_gone(app))
            .ok_or(RequestError::NoConnection)
    }

    fn events_taken(&mut self, app: AppId, count: usize) {
        if let Some(a) = self.apps.get_mut(&app) {
            a.waiting = a.waiting.saturating_sub(count);
        }
        self.prune(app);
    }

    fn app_gone(&mut self, app: AppId) {
        let Some(a) = self.apps.get_mut(&app) else {
            self.tenants.remove(&app);
            return self.claims.forget_app(app);
        };
        a.gone = true;
        a.waiting = 0;
        let listeners: Vec<_> = a.listeners.iter().copied().collect();
        let conns: Vec<_> = a.conns.iter().copied().collect();
        for id in listeners {
            // The result is ignored: the listener is the application's own, so the request cannot
            // fail.
            let _ = self.unlisten(app, id);
        }
        for id in conns {
            self.drive(id, Input::AppGone);
            self.drive_ib(id, IbInput::AppGone);
        }
        self.events.retain(|(to, _)| *to != app);
        self.claims.forget_app(app);
        self.prune(app);
    }
}
