//! Listeners and connections of one session.

use core::net::SocketAddr;

use heddle_cm::{CmId, Event, ListenerId};
use heddle_socket::document::{Fault, FaultKind};

use super::{MAX_UNTAKEN, Open, Outcome, Request, Session, done, not_found, quota};
use crate::params::{AcceptParams, ConnectParams, ListenParams};
use crate::remote::policy::Addresses;
use crate::remote::protocol::{Connecting, Listening};

impl Session {
    pub(super) fn carry_out_connection(
        &mut self,
        open: &Open,
        request: Request,
    ) -> Result<Outcome, Fault> {
        let device = &open.device;
        match request {
            Request::Listen(a) => {
                may(&self.policy.listen, a.addr, "listen at")?;
                self.check_taken()?;
                if self.listeners.len() >= self.policy.listeners as usize {
                    return Err(quota("listeners", self.policy.listeners));
                }
                let backlog = a.params.backlog.min(self.policy.backlog as usize);
                let params = ListenParams { backlog, ..a.params };
                let id = device.listen(a.addr, params, &self.events).map_err(|e| self.fault(e))?;
                self.listeners.insert(id.0);
                done(&Listening { listener: id.0 })
            }
            Request::Unlisten(a) => {
                if !self.listeners.contains(&a.listener) {
                    return Err(not_found(format!("there is no listener {}", a.listener)));
                }
                device.unlisten(ListenerId(a.listener)).map_err(|e| self.fault(e))?;
                self.listeners.remove(&a.listener);
                done(&())
            }
            Request::Connect(a) => {
                may(&self.policy.connect, a.remote, "connect to")?;
                self.check_taken()?;
                self.check_conns()?;
                let qp = self.objects.qp_for_connection(a.qp)?;
                let mut params = ConnectParams::new(qp).reads(a.ird, a.ord);
                (params.protocol, params.timeout, params.local) = (a.protocol, a.timeout, a.local);
                params.private_data = a.private_data;
                let id = device.connect(a.remote, params, &self.events);
                let id = id.map_err(|e| self.fault(e))?;
                self.conns.insert(id.0);
                done(&Connecting { conn: id.0 })
            }
            Request::Accept(a) => {
                self.check_asked(a.conn)?;
                self.check_conns()?;
                let qp = self.objects.qp_for_connection(a.qp)?;
                let private_data = a.private_data;
                let params = AcceptParams { qp, ird: a.ird, ord: a.ord, private_data };
                device.accept(CmId(a.conn), params).map_err(|e| self.fault(e))?;
                self.asked.remove(&a.conn);
                self.conns.insert(a.conn);
                done(&())
            }
            Request::Reject(a) => {
                self.check_asked(a.conn)?;
                let rejected = match a.needs_ord {
                    None => device.reject(CmId(a.conn), a.private_data),
                    Some(n) => device.reject_needing_ord(CmId(a.conn), a.private_data, n),
                };
                rejected.map_err(|e| self.fault(e))?;
                self.asked.remove(&a.conn);
                done(&())
            }
            Request::Disconnect(a) => {
                if !self.conns.contains(&a.conn) && !self.asked.contains(&a.conn) {
                    return Err(not_found(format!("there is no connection {}", a.conn)));
                }
                device.disconnect(CmId(a.conn)).map_err(|e| self.fault(e))?;
                done(&())
            }
            Request::Taken(a) => {
                let count = self.untaken.len().min(a.count as usize);
                self.untaken.drain(..count).for_each(|taken| taken.add_one());
                done(&())
            }
            _ => Err(super::invalid("not here")),
        }
    }

    /// What an event changes in what there is.
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::ListenFailed { id, .. } => {
                self.listeners.remove(&id.0);
            }
            Event::ConnectRequest { id, .. } => {
                self.asked.insert(id.0);
            }
            Event::Rejected { id, .. }
            | Event::ConnectError { id, .. }
            | Event::Disconnected { id, .. } => {
                self.asked.remove(&id.0);
                self.conns.remove(&id.0);
            }
            Event::Listening { .. } | Event::Established { .. } => {}
        }
    }

    fn check_taken(&self) -> Result<(), Fault> {
        match self.untaken.len() < MAX_UNTAKEN {
            true => Ok(()),
            false => {
                Err(Fault::new(FaultKind::Busy, "too many events have not been taken".to_owned()))
            }
        }
    }

    fn check_conns(&self) -> Result<(), Fault> {
        match self.conns.len() < self.policy.connections as usize {
            true => Ok(()),
            false => Err(quota("connections", self.policy.connections)),
        }
    }

    fn check_asked(&self, conn: u64) -> Result<(), Fault> {
        match self.asked.contains(&conn) {
            true => Ok(()),
            false => Err(not_found(format!("no connection {conn} waits for an answer"))),
        }
    }
}

fn may(rules: &[Addresses], at: SocketAddr, what: &str) -> Result<(), Fault> {
    match rules.iter().any(|rule| rule.contain(at)) {
        true => Ok(()),
        false => Err(Fault::new(FaultKind::Denied, format!("may not {what} {at}"))),
    }
}
