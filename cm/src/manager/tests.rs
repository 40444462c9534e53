//! The manager's rules across connections: claims, owners, places, listeners. The test plays the
//! worker; `tests/` has real ones.

mod claims;
mod limits;
mod listeners;
mod lost;
mod ports;
mod times;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use heddle_iwarp::QpEvent;
use heddle_iwarp::mpa::frame::{Frame, Kind};
use heddle_rnic::{Event as RnicEvent, Report};
use heddle_types::{
    AcceptTerms, CloseReason, ConnectFailure, ConnectTerms, DisconnectReason, ListenError,
    ListenFailure, ListenParams, MpaOptions, Pd, Protocol, QpFate, QpSpec, Qpn, Request, RnicError,
    mpa::Revision,
};

use super::*;
use crate::conn::tests::conn_ids;
use crate::ports::Ports;
use crate::ports::tests::net;

const APP: AppId = AppId(1);
const OTHER: AppId = AppId(2);
const L: ListenerId = ListenerId(1);
const W: WorkerId = WorkerId(0);

fn qp(qpn: u32) -> QpSpec {
    QpSpec { qpn: Qpn(qpn), pd: Pd(1), sq_depth: 8, rq_depth: 8 }
}

fn local() -> SocketAddr {
    "10.0.0.1:7174".parse().unwrap()
}

/// Returns a configuration of one port, whose link reaches every peer.
fn config(workers: usize) -> CmConfig {
    CmConfig::new(Ports::one(workers, net(&["10.0.0.1/8"], &[])))
}

fn peer(n: u8) -> SocketAddr {
    ([10, 0, 1, n], 1000).into()
}

fn request() -> Vec<u8> {
    frame(Kind::Request)
}

/// Returns a frame of revision 1, without private data.
fn frame(kind: Kind) -> Vec<u8> {
    Frame {
        kind,
        markers: false,
        crc: true,
        reject: false,
        revision: Revision::V1,
        enhanced: None,
        private_data: b"",
    }
    .emit()
    .unwrap()
}

/// A manager, and the names that a worker would give.
struct Bench {
    cm: ConnectionManager,
    now: Instant,
    names: Box<dyn Iterator<Item = ConnId>>,
    /// Local end of the connections that peers make, so that the test may listen in two places.
    at: SocketAddr,
    live: BTreeMap<ConnId, CmId>,
}

impl Bench {
    fn new(config: CmConfig) -> Bench {
        let now = Instant::from_millis(1000);
        let cm = ConnectionManager::new(config);
        Bench { cm, now, names: Box::new(conn_ids()), at: local(), live: BTreeMap::new() }
    }

    fn ask(&mut self, app: AppId, request: Request) -> Result<(), RequestError> {
        self.cm.handle_request(self.now, app, request)
    }

    fn report(&mut self, report: Report) {
        self.cm.handle_report(self.now, W, report);
    }

    fn event(&mut self, event: RnicEvent) {
        self.report(Report::Event(event));
    }

    fn orders(&mut self) -> Vec<String> {
        let name = |(w, o): (WorkerId, Order)| {
            let text = format!("{o:?}");
            format!("{} {}", w.0, text.split(' ').next().unwrap_or_default())
        };
        std::iter::from_fn(|| self.cm.poll_order()).map(name).collect()
    }

    fn events(&mut self) -> Vec<(AppId, Event)> {
        std::iter::from_fn(|| self.cm.poll_event()).collect()
    }

    /// Adds a listener that every worker has agreed to.
    fn listen(&mut self, params: ListenParams) {
        self.listen_as(APP, L, local(), params);
    }

    fn listen_as(&mut self, app: AppId, id: ListenerId, addr: SocketAddr, params: ListenParams) {
        self.ask(app, Request::Listen { id, addr, params }).unwrap();
        for w in 0..self.cm.workers.len() {
            let report = Report::Listening { token: id.0, result: Ok(()) };
            self.cm.handle_report(self.now, WorkerId(w), report);
        }
        assert_eq!(self.events(), [(app, Event::Listening { id })]);
        self.orders();
    }

    /// Opens a peer's TCP connection.
    fn accepted(&mut self, remote: SocketAddr) -> ConnId {
        let conn = self.names.next().unwrap();
        self.event(RnicEvent::Accepted { conn, local: self.at, remote });
        conn
    }

    /// Opens a peer's connection and sends its request; returns both names.
    fn asked(&mut self, remote: SocketAddr) -> (ConnId, CmId) {
        let conn = self.accepted(remote);
        self.event(RnicEvent::StartupBytes { conn, bytes: request() });
        let events = self.events();
        let [(APP, Event::ConnectRequest { id, .. })] = events[..] else { panic!("{events:?}") };
        self.live.insert(conn, id);
        (conn, id)
    }

    fn connect(&mut self, id: u64, qpn: u32) -> Result<(), RequestError> {
        let params = ConnectTerms::new(qp(qpn));
        self.ask(APP, Request::Connect { id: CmId(id), remote: peer(1), params })
    }

    /// Makes a connection of ours to which the peer has replied; the worker has the order to enter
    /// FPDU mode.
    fn entering(&mut self, id: u64, qpn: u32) -> ConnId {
        let protocol = Protocol::Mpa(MpaOptions::new().revision(Revision::V1));
        let params = ConnectTerms { protocol, ..ConnectTerms::new(qp(qpn)) };
        self.ask(APP, Request::Connect { id: CmId(id), remote: peer(1), params }).unwrap();
        let conn = self.names.next().unwrap();
        self.report(Report::Connecting { token: id, result: Ok(conn) });
        self.event(RnicEvent::Connected { conn, local: local() });
        self.event(RnicEvent::StartupBytes { conn, bytes: frame(Kind::Reply) });
        conn
    }

    fn accept(&mut self, id: CmId, qpn: u32) -> Result<(), RequestError> {
        self.ask(APP, Request::Accept { id, params: AcceptTerms::new(qp(qpn)) })
    }

    fn established(&mut self, qpn: u32) -> (ConnId, CmId) {
        let (conn, id) = self.asked(peer(1));
        self.accept(id, qpn).unwrap();
        self.report(Report::Entered { conn, result: Ok(()) });
        let events = self.events();
        assert!(matches!(events[..], [(APP, Event::Established { .. })]), "{events:?}");
        (conn, id)
    }

    fn closed(&mut self, conn: ConnId) {
        self.event(RnicEvent::Closed { conn, reason: CloseReason::Reset });
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(t) = self.cm.poll_timeout().filter(|t| *t <= end) {
            self.now = t;
            self.cm.handle_timeout(t);
        }
        self.now = end;
    }

    fn notices(&mut self) -> Vec<Refusal> {
        std::iter::from_fn(|| self.cm.poll_notice()).map(|n| n.reason).collect()
    }

    fn is_known(&self, conn: ConnId) -> bool {
        self.cm.by_worker.contains_key(&(W, conn))
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
