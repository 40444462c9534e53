//! Questions of a program that watches the RNIC.

use std::collections::HashMap;

use heddle_base::Instant;
use heddle_dataplane::{Command, ConnFacts, INSPECT_MAX};
use heddle_rnic::Order;
use heddle_types::{CmId, ConnId, Request, WorkerId};

use super::Control;
use crate::ask::{ConnPage, ConnStatus, ControlState, Kill, QpStatus, Question, Reply};
use crate::config::Patience;

/// Lists of connections that wait for workers. Each list has a number, which the links to those
/// workers hold too.
#[derive(Debug, Default)]
pub(super) struct Pages {
    waiting: HashMap<u64, Waiting>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    page: ConnPage,
    /// Number of workers that have not answered.
    workers: usize,
    reply: Reply<ConnPage>,
}

impl Control {
    pub(super) fn handle_question(&mut self, now: Instant, question: Question) {
        match question {
            Question::Snapshot { worker, reply } => {
                if let Some(link) = self.links.get_mut(worker.0) {
                    link.ask_snapshot(reply);
                }
            }
            Question::Conns { after, without, reply } => self.ask_conns(after, &without, reply),
            Question::Control { reply } => reply.answer(ControlState {
                counters: self.counters(),
                gauges: self.cm.gauges(),
                listeners: self.cm.listeners().collect(),
            }),
            Question::SetAddressing { nets, reply } => {
                let done = self.set_fixed(now, nets);
                reply.answer(done);
            }
            Question::Announce { port } => {
                self.cm.announce(port);
                self.routers.restart(now, port);
                self.settle();
            }
            Question::Refuse { app, id, reason } => {
                // A connection that is over needs no refusal.
                if self.cm.refuse(now, app, id, reason).is_ok() {
                    self.forget_asker(id);
                }
            }
            Question::SetKeepalive { keepalive, reply } => {
                for link in &mut self.links {
                    link.order(Command::Order(Order::SetKeepalive { keepalive }));
                }
                reply.answer(());
            }
            Question::SetPatience { patience, reply } => {
                let Patience { tcp, close_limit, fpdu_stall } = patience;
                let patience = heddle_rnic::Patience { tcp, fpdu_stall };
                self.cm.set_close_limit(close_limit);
                for link in &mut self.links {
                    link.order(Command::Order(Order::SetPatience { patience }));
                }
                reply.answer(());
            }
            Question::SetIbKeepalive { keepalive, reply } => {
                self.cm.set_ib_keepalive(now, keepalive);
                reply.answer(());
            }
            Question::SetDraining { draining, reply } => {
                self.cm.set_draining(draining);
                reply.answer(());
            }
            Question::Kill { id, how, reply } => {
                let known = self.kill(now, id, how);
                reply.answer(known);
            }
        }
    }

    /// Ends a connection; returns true if it existed. A worker that has ended resets its
    /// connections by itself.
    pub(super) fn kill(&mut self, now: Instant, id: CmId, how: Kill) -> bool {
        let Some(view) = self.cm.conn(id) else { return false };
        match (how, view.conn) {
            (Kill::Reset, Some(conn)) => {
                // The order bypasses the manager. To the manager the connection ends by itself, as
                // by a reset of the peer, which the manager expects in every state.
                if let Some(link) = self.links.get_mut(view.worker.0) {
                    link.order(Command::Order(Order::Abort { conn }));
                }
                true
            }
            // A connection that is not open yet is given up, which resets it.
            _ => self.cm.handle_request(now, view.app, Request::Disconnect { id }).is_ok(),
        }
    }

    fn ask_conns(&mut self, after: Option<CmId>, without: &[WorkerId], reply: Reply<ConnPage>) {
        let views: Vec<_> = self.cm.conns(after).take(INSPECT_MAX).collect();
        let next = (views.len() == INSPECT_MAX).then(|| views.last().map(|v| v.id)).flatten();
        let mut of_worker: Vec<Vec<ConnId>> = vec![Vec::new(); self.links.len()];
        let status = |view: heddle_cm::ConnView| {
            if let Some(conn) = view.conn
                && let Some(conns) = of_worker.get_mut(view.worker.0)
            {
                conns.push(conn);
            }
            let c = self.conns.get(&view.id);
            let qp = c.and_then(|c| self.qps.get(&c.qp?)).map(|qp| QpStatus {
                qpn: qp.qpn(),
                pd: qp.pd(),
                state: qp.qp_state(),
                sq_depth: qp.init().sq_depth,
                rq_depth: qp.init().rq_depth,
                shared: qp.init().srq.is_some(),
            });
            ConnStatus { view, agreed: c.and_then(|c| c.agreed), qp, facts: None }
        };
        let conns = views.into_iter().map(status).collect();
        let mut page = ConnPage { conns, next, silent: Vec::new() };
        let number = self.pages.next;
        let mut workers = 0;
        for (n, (link, conns)) in self.links.iter_mut().zip(of_worker).enumerate() {
            if conns.is_empty() || without.contains(&WorkerId(n)) {
                continue;
            }
            if link.ask_about(number, conns.into()) {
                workers += 1;
            } else if link.is_up() {
                page.silent.push(WorkerId(n));
            }
        }
        if workers == 0 {
            return reply.answer(page);
        }
        self.pages.next += 1;
        self.pages.waiting.insert(number, Waiting { page, workers, reply });
    }

    /// Enters a worker's facts about the connections of a list. `facts` is empty when the worker
    /// has ended.
    pub(super) fn inspected(&mut self, worker: usize, number: u64, facts: Vec<ConnFacts>) {
        let Some(w) = self.pages.waiting.get_mut(&number) else { return };
        let mut facts: HashMap<ConnId, ConnFacts> =
            facts.into_iter().map(|f| (f.conn, f)).collect();
        for c in w.page.conns.iter_mut().filter(|c| c.view.worker.0 == worker) {
            c.facts = c.view.conn.and_then(|conn| facts.remove(&conn));
        }
        w.workers -= 1;
        if w.workers == 0
            && let Some(w) = self.pages.waiting.remove(&number)
        {
            w.reply.answer(w.page);
        }
    }
}
