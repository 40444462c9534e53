//! Requests that read the appliance's state.

use core::time::Duration;
use std::collections::BTreeMap;

use heddle_ctl::{ConnPage, ConnStatus, Question};
use heddle_dataplane::{PortStats, WorkerSnapshot};
use heddle_socket::Fault;
use heddle_socket::admin::{
    Agreed, Conn, Conns, ConnsArgs, ControlStatus, Counter, Listener, MAX_CONNS, MAX_MRS, Mr, Mrs,
    MrsArgs, Port, PortVlan, Ports, Qp, Stats, Status, Tcp, WorkerStatus,
};
use heddle_tcp::Vlan;
use heddle_types::{Access as Rights, AppId, CmId, WorkerId};
use tokio::time::timeout;

use super::links::History;
use super::{Appliance, LISTED, bonds, silent};
use crate::access::Access;
use crate::config;
use crate::services::Stage;

/// Name of the service that has the forwarded connections.
const FORWARD: &str = "forward";

/// Time that a worker has to answer for its line of the status, which goes without it.
const SOON: Duration = Duration::from_secs(1);

/// Default number of connections in an answer.
const CONNS: usize = 256;

impl Appliance {
    pub(crate) async fn status(&self) -> Result<Status, Fault> {
        let control = self.ask(|reply| Question::Control { reply }).await;
        let control = control.ok_or_else(|| silent("the control plane"))?;
        let busy = self.busy().await;
        let registry = self.node.hub().registry();
        let config = self.config.borrow();
        let services = self.services.borrow().list();
        let (forwarded, exports) = (self.forwarded(), self.exports());
        let of = |addr: core::net::SocketAddr| {
            services.iter().find(|(s, stage)| {
                s.addr == addr && matches!(stage, Stage::Starting | Stage::Listening)
            })
        };
        let listeners = control.listeners.iter().map(|l| Listener {
            address: l.addr.to_string(),
            service: if self.is_gateway(l.app) {
                let rule = forwarded.rules.iter().find(|(f, _)| f.addr == l.addr);
                rule.map_or_else(|| FORWARD.into(), |(f, _)| f.to_string())
            } else {
                of(l.addr).map_or_else(|| self.application(l.app), |(s, _)| s.kind.to_string())
            },
            state: if l.listening { Stage::Listening } else { Stage::Starting }.name().into(),
            startups: l.startups,
            backlog: l.backlog,
            nfs: of(l.addr).and_then(|(s, _)| exports.of(s)),
            exports: of(l.addr).map(|(s, _)| exports.directories(s)).unwrap_or_default(),
        });
        // These services listen no more, so the control plane does not know them.
        let ending = services.iter();
        let ending = ending.filter(|(_, s)| matches!(s, Stage::Ending | Stage::Failed(_)));
        let ending = ending.map(|(s, stage)| Listener {
            address: s.addr.to_string(),
            service: s.kind.to_string(),
            state: stage.describe(),
            nfs: exports.of(s),
            exports: exports.directories(s),
            ..Listener::default()
        });
        let port =
            |n: usize| config.ports.get(n).map_or_else(|| "inner".into(), |p| p.name.clone());
        let workers = self.node.places().enumerate().map(|(worker, place)| WorkerStatus {
            worker,
            port: port(place.port),
            lcore: Some(place.lcore),
            socket: place.socket,
            port_socket: place.wanted,
            running: place.running,
            busy_ns: busy.get(worker).copied().flatten(),
        });
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            at_ns: self.at_ns(),
            config: self.file.as_ref().map(|f| f.display().to_string()),
            last_reload: self.last_reload.borrow().clone(),
            ports: config.ports.iter().map(|p| p.name.clone()).collect(),
            workers: workers.collect(),
            conns: control.gauges.conns,
            startups: control.gauges.startups,
            applications: control.gauges.apps,
            registrations: registry.mrs().len(),
            registrations_max: registry.mrs().capacity(),
            draining: registry.draining(),
            page: self.node.device().memory().map_or(0, |m| m.page_size() as u64),
            listeners: listeners.chain(ending).collect(),
            clients: self.applications.borrow().all(),
            draining_ns: self.draining_since(),
            control: self.control_status(),
        })
    }

    /// Returns the time that each worker has been busy, where the worker answers soon.
    async fn busy(&self) -> Vec<Option<u64>> {
        let Ok(_turn) = timeout(SOON, self.asking.lock()).await else { return Vec::new() };
        let all = self.snapshots(SOON).await;
        all.into_iter().map(|s| Some(s?.worker.busy_ns)).collect()
    }

    /// Returns true if the application is the gateway, which has the forwarded connections.
    fn is_gateway(&self, app: AppId) -> bool {
        self.gateway().is_some_and(|g| g.app() == app)
    }

    /// Returns the name that an application chose, with its number, which the appliance chose.
    fn application(&self, app: AppId) -> String {
        if self.is_gateway(app) {
            return FORWARD.into();
        }
        let applications = self.applications.borrow();
        let name = applications.get(app.0).map_or("", |a| a.name.as_str());
        format!("{name}#{}", app.0)
    }

    /// Returns the name of the owner of an object of the RNIC.
    fn owner(&self, app: AppId) -> String {
        if app == self.node.device().app() { "services".into() } else { self.application(app) }
    }

    fn control_status(&self) -> ControlStatus {
        let c = &self.counters;
        ControlStatus {
            clients: c.clients.get(),
            requests: c.requests.get(),
            refused: c.refused.get(),
            turned_away: c.turned_away.get(),
            slow: c.slow.get(),
            broken: c.broken.get(),
            evicted: c.evicted.get(),
        }
    }

    /// Returns a page of connections, without facts of the workers in `mute`. Adds the workers to
    /// `mute` that answer neither for this page nor for their counters.
    async fn page(&self, after: Option<CmId>, mute: &mut Vec<WorkerId>) -> Result<ConnPage, Fault> {
        let _turn = self.asking.lock().await;
        let page = |without| self.put(move |reply| Question::Conns { after, without, reply });
        for _ in 0..2 {
            if let Ok(answer) = timeout(LISTED, page(mute.clone())).await {
                return answer.map_err(|_| silent("the control plane"));
            }
            let answers = self.snapshots(LISTED).await;
            let no_answer = answers.iter().enumerate().filter(|(_, a)| a.is_none());
            *mute = no_answer.map(|(n, _)| WorkerId(n)).collect();
        }
        Err(silent("the control plane"))
    }

    /// Returns the next connections, page by page from the control plane. A worker that does not
    /// answer is named, and its connections are listed as the control plane knows them.
    pub(crate) async fn conns(&self, args: &ConnsArgs) -> Result<Conns, Fault> {
        let at_ns = self.at_ns();
        let limit = args.limit.unwrap_or(CONNS).clamp(1, MAX_CONNS);
        let (mut conns, mut after) = (Vec::new(), args.after.map(CmId));
        let pairs = self.forwarded().pairs;
        let mut mute = Vec::new();
        let running: Vec<_> = self.node.places().map(|place| place.running).collect();
        let answer = |conns, next: Option<CmId>, mute: &[WorkerId]| {
            // The end of a worker is no silence: its connections have ended.
            let silent = mute.iter().map(|w| w.0).filter(|w| running.get(*w) == Some(&true));
            Conns { at_ns, conns, next: next.map(|a| a.0), silent: silent.collect() }
        };
        // The limit keeps a filter that lets nothing through from reading all connections in one
        // answer.
        for _ in 0..MAX_CONNS {
            let page = self.page(after, &mut mute).await?;
            mute.extend(page.silent);
            for c in &page.conns {
                after = Some(c.view.id);
                if passes(args, c) {
                    conns.push(self.conn(c, pairs.get(&c.view.id).copied()));
                    if conns.len() == limit {
                        return Ok(answer(conns, after, &mute));
                    }
                }
            }
            if page.next.is_none() {
                return Ok(answer(conns, None, &mute));
            }
        }
        Ok(answer(conns, after, &mute))
    }

    fn conn(&self, c: &ConnStatus, pair: Option<CmId>) -> Conn {
        let (local, config) = (c.view.local, self.config.borrow());
        let unspecified = core::net::SocketAddr::new([0; 4].into(), local.port());
        let service = (c.view.app == self.node.device().app())
            .then(|| config.service_at(local).or_else(|| config.service_at(unspecified)))
            .flatten();
        let mut counters = BTreeMap::new();
        let mut count = |part: &str, name: &str, value: u64| {
            if value > 0 {
                counters.insert(format!("{part}_{name}"), value);
            }
        };
        if let Some(f) = &c.facts {
            f.engine.tcp.counters.for_each(|name, _, value| count("tcp", name, value));
            if let Some(qp) = &f.engine.qp {
                qp.for_each(|name, _, value| count("qp", name, value));
            }
        }
        Conn {
            conn: c.view.id.0,
            local: local.to_string(),
            remote: c.view.remote.to_string(),
            state: c.view.state.into(),
            worker: c.view.worker.0,
            transport: config::forward::name(c.view.transport).into(),
            pair: pair.map(|p| p.0),
            service: service.map_or_else(|| self.application(c.view.app), |s| s.kind.to_string()),
            agreed: c.agreed.map(|a| Agreed {
                revision: a.revision,
                crc: a.crc,
                ird: a.ird,
                ord: a.ord,
                send_markers: a.send_markers,
                recv_markers: a.recv_markers,
            }),
            qp: qp(c),
            tcp: tcp(c),
            counters,
        }
    }

    pub(crate) fn mrs(&self, args: &MrsArgs, access: Access) -> Mrs {
        let mut answer = Mrs::default();
        let mrs = self.node.hub().registry().mrs();
        mrs.for_each(|mr| {
            if answer.mrs.len() == MAX_MRS {
                answer.cut = true;
                return;
            }
            let rights = RIGHTS.iter().filter(|(r, _)| mr.access.has(*r));
            answer.mrs.push(Mr {
                index: mrs.index(mr.stag),
                stag: (args.stags && access.secrets).then_some(mr.stag.0),
                pd: mr.pd.0,
                owner: self.node.hub().owner(mr.pd).map(|app| self.owner(app)),
                qpn: mr.qpn.map(|q| q.0),
                len: mr.len,
                access: rights.map(|(_, name)| (*name).into()).collect(),
            });
        });
        answer
    }

    pub(crate) fn ports(&self) -> Ports {
        let config = self.config.borrow();
        let places: Vec<_> = self.node.places().collect();
        let ports = self.node.ports().iter().zip(&config.ports).enumerate();
        let ports = ports.map(|(n, (port, config))| {
            let workers = places.iter().filter(|p| p.port == n).count();
            answer_port(port, config, workers, self.links.of(n), self.bonds.of(n))
        });
        Ports { at_ns: self.at_ns(), ports: ports.collect() }
    }

    pub(crate) async fn stats(&self) -> Result<Stats, Fault> {
        let _turn = self.asking.lock().await;
        let at_ns = self.at_ns();
        let control = self.ask(|reply| Question::Control { reply }).await;
        let control = control.ok_or_else(|| silent("the control plane"))?;
        let mut sum = Sum::default();
        for (n, answer) in self.snapshots(2 * LISTED).await.into_iter().enumerate() {
            match answer {
                Some(snapshot) => sum.add(n, &snapshot),
                None => sum.silent.push(n),
            }
        }
        control.counters.for_each(|name, help, value| sum.push("ctl", name, help, value));
        let gateway = self.forwarded().counters;
        gateway.for_each(|name, help, value| sum.push("gateway", name, help, value));
        if let Some(counts) = self.exports().counts() {
            counts.for_each(|name, help, value| sum.push("nfs", name, help, value));
        }
        for lcore in self.node.lcores() {
            let part = format!("lcore{}", lcore.lcore);
            lcore.rest.for_each(|name, help, value| sum.push(&part, name, help, value));
        }
        for port in self.ports().ports {
            for (name, value) in port.counters {
                sum.push(&port.name, &name, "", value);
            }
        }
        Ok(Stats { at_ns, workers: sum.workers, silent: sum.silent, counters: sum.counters })
    }
}

fn answer_port(
    port: &heddle_dataplane::Port,
    config: &config::Port,
    workers: usize,
    links: Option<History>,
    bond: Option<bonds::History>,
) -> Port {
    let link = links.map_or_else(|| port.link(), |l| l.link);
    Port {
        name: config.name.clone(),
        device: port.name().into(),
        driver: port.driver().into(),
        mac: bonds::station(port.mac()),
        mtu: port.mtu(),
        up: link.up,
        mbps: link.mbps,
        link_changes: links.map_or(0, |l| l.changes),
        link_changed_ns: links.and_then(|l| l.changed_ns),
        addresses: config.addresses.iter().map(ToString::to_string).collect(),
        routes: config.routes.iter().map(ToString::to_string).collect(),
        vlans: config.vlans.iter().map(answer_vlan).collect(),
        bond: bond.map(|b| bonds::answer(port, &b)),
        workers,
        offloads: port.caps().each().iter().filter(|o| o.1).map(|o| o.0.to_owned()).collect(),
        no_interrupts: port.no_interrupts().map(str::to_owned),
        counters: counters(&port.stats()),
    }
}

/// Returns the counters of a device, by name.
pub(super) fn counters(s: &PortStats) -> BTreeMap<String, u64> {
    let counters = [
        ("rx_frames", s.rx_frames),
        ("rx_bytes", s.rx_bytes),
        ("rx_missed", s.rx_missed),
        ("rx_errors", s.rx_errors),
        ("rx_no_mbuf", s.rx_no_mbuf),
        ("tx_frames", s.tx_frames),
        ("tx_bytes", s.tx_bytes),
        ("tx_errors", s.tx_errors),
    ];
    counters.map(|(name, value)| (name.to_owned(), value)).into()
}

fn answer_vlan(vlan: &Vlan) -> PortVlan {
    PortVlan {
        id: vlan.vid.get(),
        priority: vlan.priority.to_string(),
        addresses: vlan.net.addrs().iter().map(ToString::to_string).collect(),
        routes: vlan.net.routes().iter().map(ToString::to_string).collect(),
    }
}

/// Counters of workers side by side.
#[derive(Default)]
struct Sum {
    workers: Vec<usize>,
    silent: Vec<usize>,
    counters: Vec<Counter>,
}

impl Sum {
    /// Adds a snapshot. Every snapshot has the same counters in the same order.
    fn add(&mut self, worker: usize, snapshot: &WorkerSnapshot) {
        let first = self.workers.is_empty();
        self.workers.push(worker);
        let mut at = 0;
        snapshot.for_each(|part, name, help, value| {
            if first {
                self.push(part, name, help, 0);
            }
            if let Some(c) = self.counters.get_mut(at) {
                c.value = c.value.wrapping_add(value);
                c.workers.push(value);
            }
            at += 1;
        });
    }

    fn push(&mut self, part: &str, name: &str, help: &str, value: u64) {
        // A doc comment of several lines has a space at the beginning of each.
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let (part, name) = (part.into(), name.into());
        self.counters.push(Counter { part, name, help, value, workers: Vec::new() });
    }
}

fn passes(args: &ConnsArgs, c: &ConnStatus) -> bool {
    args.remote.is_none_or(|r| r == c.view.remote.ip())
        && args.port.is_none_or(|p| p == c.view.local.port())
        && args.worker.is_none_or(|w| w == c.view.worker.0)
        && args.state.as_ref().is_none_or(|s| s == c.view.state)
}

const RIGHTS: [(Rights, &str); 6] = [
    (Rights::LOCAL_WRITE, "local-write"),
    (Rights::REMOTE_READ, "remote-read"),
    (Rights::REMOTE_WRITE, "remote-write"),
    (Rights::REMOTE_ATOMIC, "remote-atomic"),
    (Rights::REMOTE_INVALIDATE, "remote-invalidate"),
    (Rights::BIND, "bind"),
];

fn qp(c: &ConnStatus) -> Option<Qp> {
    let qp = c.qp?;
    // A worker without the queue pair has taken no requests of it.
    let facts = c.facts.as_ref().filter(|f| f.engine.qp.is_some());
    let counters = facts.and_then(|f| f.engine.qp).unwrap_or_default();
    Some(Qp {
        qpn: qp.qpn.0,
        pd: qp.pd.0,
        state: qp.state.to_string(),
        sq_depth: qp.sq_depth,
        rq_depth: qp.rq_depth,
        shared: qp.shared,
        sq_outstanding: facts.map_or(0, |f| f.send_outstanding),
        rq_outstanding: facts.map_or(0, |f| f.recv_outstanding),
        tx_bytes: counters.tx_bytes,
        rx_bytes: counters.rx_bytes,
        tx_fpdus: counters.tx_fpdus,
        rx_fpdus: counters.rx_fpdus,
    })
}

fn tcp(c: &ConnStatus) -> Option<Tcp> {
    let f = c.facts.as_ref()?;
    let ns = |d: core::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let t = &f.engine.tcp;
    Some(Tcp {
        state: state_name(f.engine.state).into(),
        emss: f.engine.emss,
        srtt_ns: t.srtt.map(ns),
        rttvar_ns: ns(t.rttvar),
        rto_ns: ns(t.rto),
        cwnd: t.cwnd,
        ssthresh: t.ssthresh,
        in_flight: t.in_flight,
        snd_wnd: t.snd_wnd,
        acked: f.engine.acked,
        received: f.engine.received,
        hindrance: f.engine.hindrance.map(|h| hindrance_name(h).into()),
        retransmits: t.counters.retransmits,
        timeouts: t.counters.timeouts,
    })
}

const fn hindrance_name(hindrance: heddle_tcp::Hindrance) -> &'static str {
    match hindrance {
        heddle_tcp::Hindrance::Silent => "peer silent",
        heddle_tcp::Hindrance::WindowShut => "window shut",
    }
}

/// Returns the name of a TCP state as RFC 9293 writes it.
const fn state_name(state: heddle_tcp::State) -> &'static str {
    use heddle_tcp::State;
    match state {
        State::SynSent => "SYN-SENT",
        State::SynReceived => "SYN-RECEIVED",
        State::Established => "ESTABLISHED",
        State::FinWait1 => "FIN-WAIT-1",
        State::FinWait2 => "FIN-WAIT-2",
        State::CloseWait => "CLOSE-WAIT",
        State::Closing => "CLOSING",
        State::LastAck => "LAST-ACK",
        State::TimeWait => "TIME-WAIT",
        State::Closed => "CLOSED",
    }
}
