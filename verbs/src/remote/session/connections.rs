//! Listeners and connections of one session.

use core::net::SocketAddr;

use heddle_cm::{CmId, Event, ListenerId};
use heddle_socket::document::{Fault, FaultKind};

use super::{MAX_UNTAKEN, Open, Outcome, Request, Session, done, not_found, over};
use crate::account::Kind;
use crate::params::{AcceptParams, ConnectParams, ListenParams};
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
                may(self.policy.may_listen(a.addr), "listen at", a.addr)?;
                self.check_taken()?;
                let held = self.account.take(Kind::Listeners, 1).map_err(over)?;
                let backlog = a.params.backlog.min(self.policy.backlog as usize);
                let params = ListenParams { backlog, ..a.params };
                let id = device.listen(a.addr, params, &self.events).map_err(|e| self.fault(e))?;
                self.listeners.insert(id.0, (a.addr, held));
                done(&Listening { listener: id.0 })
            }
            Request::Unlisten(a) => {
                if !self.listeners.contains_key(&a.listener) {
                    return Err(not_found(format!("there is no listener {}", a.listener)));
                }
                device.unlisten(ListenerId(a.listener)).map_err(|e| self.fault(e))?;
                self.listeners.remove(&a.listener);
                done(&())
            }
            Request::Connect(a) => {
                may(self.policy.may_connect(a.remote), "connect to", a.remote)?;
                self.check_taken()?;
                let held = self.account.take(Kind::Connections, 1).map_err(over)?;
                let qp = self.objects.qp_for_connection(a.qp)?;
                let mut params = ConnectParams::new(qp).reads(a.ird, a.ord);
                (params.local, params.protocol, params.timeout) = (a.local, a.protocol, a.timeout);
                params.private_data = a.private_data;
                let id = device.connect(a.remote, params, &self.events);
                let id = id.map_err(|e| self.fault(e))?;
                self.conns.insert(id.0, held);
                done(&Connecting { conn: id.0 })
            }
            Request::Accept(a) => {
                self.check_asked(a.conn)?;
                let held = self.account.take(Kind::Connections, 1).map_err(over)?;
                let qp = self.objects.qp_for_connection(a.qp)?;
                let private_data = a.private_data;
                let params = AcceptParams { qp, ird: a.ird, ord: a.ord, private_data };
                device.accept(CmId(a.conn), params).map_err(|e| self.fault(e))?;
                self.asked.remove(&a.conn);
                self.conns.insert(a.conn, held);
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
                if !self.conns.contains_key(&a.conn) && !self.asked.contains(&a.conn) {
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

    fn check_asked(&self, conn: u64) -> Result<(), Fault> {
        match self.asked.contains(&conn) {
            true => Ok(()),
            false => Err(not_found(format!("no connection {conn} waits for an answer"))),
        }
    }
}

fn may(may: bool, what: &str, at: SocketAddr) -> Result<(), Fault> {
    match may {
        true => Ok(()),
        false => Err(Fault::new(FaultKind::Denied, format!("may not {what} {at}"))),
    }
}
