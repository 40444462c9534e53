//! Listeners and connections of one session.

use core::net::SocketAddr;

use heddle_shm::account::{Kind, Reserved};
use heddle_socket::document::{Fault, FaultKind};
use heddle_types::{CmId, Event, ListenerId};
use heddle_verbs::provider::{Backend, Owner};
use heddle_verbs::remote::protocol::{Connecting, Listening, ReservedAddr};
use heddle_verbs::{AcceptParams, ConnectParams, DeviceError, ListenParams};

use super::{MAX_UNTAKEN, Open, Outcome, Request, Session, done, not_found, over};

/// A listener of the application.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) addr: SocketAddr,
    pub(super) v6_only: bool,
    held: Reserved,
    /// Name of the reservation by which the listener listens.
    bound: Option<u64>,
}

/// An address that the application has reserved.
#[derive(Debug)]
pub(super) struct Bound {
    addr: SocketAddr,
    v6_only: bool,
    number: u64,
    /// The amount taken from the account, unless a listener at the address holds it.
    held: Option<Reserved>,
    /// Frees the address when dropped.
    _owner: Owner,
}

impl Session {
    pub(super) fn carry_out_connection(
        &mut self,
        open: &Open,
        request: Request,
    ) -> Result<Outcome, Fault> {
        let device = &open.device;
        match request {
            Request::Listen(a) => {
                let at = (a.addr, a.params.v6_only);
                may(self.policy.may_listen(at), "listen at", a.addr)?;
                self.check_taken()?;
                let backlog = a.params.backlog.min(self.policy.backlog as usize);
                let tcp = a.params.tcp.or(self.policy.tcp);
                let params = ListenParams { backlog, tcp, ..a.params };
                let reserved = a.bound.map(|name| self.bound_number(name, at)).transpose()?;
                // A reservation counts as a listener already.
                let held = a.bound.and_then(|name| self.bound.get_mut(&name)?.held.take());
                let held = match held {
                    Some(held) => held,
                    None => self.account.take(Kind::Listeners, 1).map_err(over)?,
                };
                let id = open.local.listen(a.addr, reserved, params, &self.events);
                let listener = Listener { addr: a.addr, v6_only: at.1, held, bound: a.bound };
                match id {
                    Ok(id) => {
                        self.listeners.insert(id.0, listener);
                        done(&Listening { listener: id.0 })
                    }
                    Err(e) => {
                        self.give_back(listener);
                        Err(self.fault(e))
                    }
                }
            }
            Request::ReserveAddr(a) => {
                let v6_only = a.v6_only;
                if a.addr.port() != 0 {
                    may(self.policy.may_listen((a.addr, v6_only)), "listen at", a.addr)?;
                }
                let held = self.account.take(Kind::Listeners, 1).map_err(over)?;
                let policy = &self.policy;
                let allowed = |at| policy.may_listen((at, v6_only));
                match open.local.clone().reserve_allowed((a.addr, v6_only), allowed) {
                    Ok((addr, number, owner)) => {
                        let id = number;
                        let held = Some(held);
                        let bound = Bound { addr, v6_only, number, held, _owner: owner };
                        self.bound.insert(id, bound);
                        done(&ReservedAddr { id, addr, refused: None })
                    }
                    Err(DeviceError::Address(addr, why)) => {
                        done(&ReservedAddr { id: 0, addr, refused: Some(why) })
                    }
                    Err(e) => Err(self.fault(e)),
                }
            }
            Request::DestroyReservedAddr(a) => {
                let gone = self.bound.remove(&a.id);
                gone.ok_or_else(|| not_found(format!("there is no reservation {}", a.id)))?;
                done(&())
            }
            Request::Unlisten(a) => {
                if !self.listeners.contains_key(&a.listener) {
                    return Err(not_found(format!("there is no listener {}", a.listener)));
                }
                device.unlisten(ListenerId(a.listener)).map_err(|e| self.fault(e))?;
                self.forget_listener(a.listener);
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
                params.tcp = a.tcp.or(self.policy.tcp);
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

    /// Updates the session's tables after an event.
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::ListenFailed { id, .. } => {
                self.forget_listener(id.0);
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

    /// Returns the number of a reservation, which has to be of this address.
    fn bound_number(&self, name: u64, at: (SocketAddr, bool)) -> Result<u64, Fault> {
        let bound = self.bound.get(&name).filter(|bound| (bound.addr, bound.v6_only) == at);
        let number = bound.map(|bound| bound.number);
        number.ok_or_else(|| not_found(format!("there is no reservation {name} of {}", at.0)))
    }

    pub(super) fn forget_listener(&mut self, id: u64) {
        if let Some(listener) = self.listeners.remove(&id) {
            self.give_back(listener);
        }
    }

    /// Gives the amount of a listener back to its reservation, if that still exists.
    fn give_back(&mut self, listener: Listener) {
        if let Some(bound) = listener.bound.and_then(|name| self.bound.get_mut(&name))
            && bound.held.is_none()
        {
            bound.held = Some(listener.held);
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
