//! Handles reports of the RNIC.

use std::net::SocketAddr;

use super::super::address::in_family;
use super::super::number::qp_type;
use super::{
    CmId, ConnParam, Errno, Event, EventKind, Happening, Id, ListenerId, Outside, Phase, State,
    Waiting,
};

impl State {
    /// Handles one report of the RNIC.
    pub fn handle_event(&mut self, happening: Happening, outside: &mut dyn Outside) {
        match happening {
            Happening::Listening { id } => self.answer_listen(id, Ok(())),
            Happening::ListenFailed { id, errno } => self.answer_listen(id, Err(errno)),
            Happening::Request { conn, listener, local, remote, param } => {
                let ends = (local, remote);
                if self.requested(conn, listener, ends, param, outside).is_none() {
                    outside.reject(conn, Vec::new());
                }
            }
            Happening::Established { conn, local, param } => {
                let Some(n) = self.by_conn.get(&conn).copied() else { return };
                let Some(id) = self.ids.get_mut(&n) else { return };
                id.phase = Phase::Established;
                id.src = id.src.map(|src| in_family(local, src));
                self.report(n, EventKind::Established, 0, param);
            }
            Happening::Failed { conn, kind, errno, param } => {
                self.ended(conn, kind, -errno.0, param);
            }
            Happening::Disconnected { conn } => {
                self.ended(conn, EventKind::Disconnected, 0, ConnParam::default());
            }
            Happening::DeviceGone => self.device_gone(),
        }
    }

    fn answer_listen(&mut self, listener: ListenerId, answer: Result<(), Errno>) {
        let Some(n) = self.by_listener.get(&listener).copied() else { return };
        let Some(id) = self.ids.get_mut(&n) else { return };
        if answer.is_err() {
            // A listener that ends later ends silently, like a kernel's listener whose address is
            // removed.
            id.listener = None;
            self.by_listener.remove(&listener);
        }
        if id.phase == Phase::Starting {
            id.listened = Some(answer);
        }
    }

    /// Makes an id for a connect request; `None` if the program cannot receive the request.
    fn requested(
        &mut self,
        conn: CmId,
        listener: ListenerId,
        ends: (SocketAddr, SocketAddr),
        param: ConnParam,
        outside: &mut dyn Outside,
    ) -> Option<()> {
        let device = outside.identity()?;
        let n = *self.by_listener.get(&listener)?;
        let at = self.ids.get_mut(&n)?;
        at.backlog = at.backlog.checked_sub(1)?;
        let (channel, uid, like) = (at.channel, at.uid, at.src?);
        let mut id = Id::new(channel, 0, qp_type::RC);
        (id.src, id.dst) = (Some(in_family(ends.0, like)), Some(in_family(ends.1, like)));
        (id.phase, id.conn, id.device) = (Phase::Requested, Some(conn), Some(device));
        let Ok(new) = self.enter(id) else {
            self.ids.get_mut(&n)?.backlog += 1;
            return None;
        };
        self.by_conn.insert(conn, new);
        let event = Event { uid, id: new, kind: EventKind::ConnectRequest, status: 0, param };
        self.push(channel, Waiting { owner: n, event });
        Some(())
    }

    /// Ends a connection, or an attempt to make one.
    fn ended(&mut self, conn: CmId, kind: EventKind, status: i32, param: ConnParam) {
        let Some(n) = self.by_conn.remove(&conn) else { return };
        let Some(id) = self.ids.get_mut(&n) else { return };
        id.conn = None;
        if id.phase == Phase::Requested {
            // The program has no name for this id yet, so it learns of the end when it answers.
            id.phase = Phase::Withdrawn;
            return;
        }
        id.phase = Phase::Over;
        self.report(n, kind, status, param);
    }

    /// Removes silently from all ids everything that they have of the RNIC: the child of a fork has
    /// no part in it.
    pub fn forget_device(&mut self) {
        self.by_conn.clear();
        self.by_listener.clear();
        for id in self.ids.values_mut() {
            std::mem::forget(id.reserved.take());
            (id.conn, id.listener, id.listened) = (None, None, None);
            id.phase = match id.phase {
                Phase::Starting | Phase::Listening => Phase::Bound,
                Phase::Requested => Phase::Withdrawn,
                Phase::Connecting | Phase::Established => Phase::Over,
                other => other,
            };
        }
    }

    fn device_gone(&mut self) {
        self.by_conn.clear();
        self.by_listener.clear();
        let bound = self.ids.iter_mut().filter(|(_, id)| {
            id.device.is_some() || id.listener.is_some() || id.phase == Phase::Starting
        });
        let mut told = Vec::new();
        for (&n, id) in bound {
            let phase = id.phase;
            (id.conn, id.listener) = (None, None);
            match phase {
                Phase::Starting => id.listened = Some(Err(Errno::NODEV)),
                Phase::Requested => id.phase = Phase::Withdrawn,
                Phase::Connecting | Phase::Established => id.phase = Phase::Over,
                _ => {}
            }
            if id.uid != 0 || !matches!(id.phase, Phase::Withdrawn) {
                told.push((n, phase));
            }
        }
        for (n, phase) in told {
            if phase == Phase::Established {
                self.report(n, EventKind::Disconnected, 0, ConnParam::default());
            }
            self.report(n, EventKind::DeviceRemoval, 0, ConnParam::default());
        }
    }
}
