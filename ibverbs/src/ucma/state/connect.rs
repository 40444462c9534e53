//! Handles connections: `CONNECT`, `ACCEPT`, `REJECT`, `DISCONNECT`.

use super::super::address::on_wire;
use super::super::number::reject;
use super::{ChannelId, ConnParam, Dial, Errno, Outside, Phase, State};

impl State {
    pub(super) fn connect(
        &mut self,
        channel: ChannelId,
        n: u32,
        param: ConnParam,
        outside: &mut dyn Outside,
    ) -> Result<(), Errno> {
        let id = self.with_device(channel, n)?;
        if id.phase != Phase::RouteResolved {
            return Err(Errno::INVAL);
        }
        let (local, remote) = id.src.zip(id.dst).ok_or(Errno::INVAL)?;
        let (local, remote) = (on_wire(local), on_wire(remote));
        let conn = outside.connect(Dial { local, remote, param })?;
        (id.conn, id.phase) = (Some(conn), Phase::Connecting);
        self.by_conn.insert(conn, n);
        Ok(())
    }

    pub(super) fn accept(
        &mut self,
        channel: ChannelId,
        n: u32,
        uid: u64,
        param: Option<ConnParam>,
        outside: &mut dyn Outside,
    ) -> Result<(), Errno> {
        let id = self.with_device(channel, n)?;
        let conn = match (id.phase, id.conn) {
            (Phase::Requested, Some(conn)) => conn,
            (Phase::Withdrawn, _) => {
                id.phase = Phase::Over;
                return Err(Errno::CONNRESET);
            }
            _ => return Err(Errno::INVAL),
        };
        let accepted = match param {
            Some(param) => outside.accept(conn, param),
            None => Err(Errno::INVAL),
        };
        match accepted {
            Ok(()) => (id.uid, id.phase) = (uid, Phase::Connecting),
            Err(_) => {
                // Like the kernel, reject a request that cannot be accepted.
                (id.conn, id.phase) = (None, Phase::Over);
                self.by_conn.remove(&conn);
                outside.reject(conn, Vec::new());
            }
        }
        accepted
    }

    pub(super) fn reject(
        &mut self,
        channel: ChannelId,
        n: u32,
        reason: u8,
        private_data: Vec<u8>,
        outside: &mut dyn Outside,
    ) -> Result<(), Errno> {
        if !matches!(reason, 0 | reject::CONSUMER | reject::VENDOR_OPTION) {
            return Err(Errno::INVAL);
        }
        let id = self.with_device(channel, n)?;
        let conn = match (id.phase, id.conn) {
            (Phase::Requested, Some(conn)) => conn,
            (Phase::Withdrawn, _) => {
                id.phase = Phase::Over;
                return Err(Errno::CONNRESET);
            }
            _ => return Err(Errno::INVAL),
        };
        (id.conn, id.phase) = (None, Phase::Over);
        self.by_conn.remove(&conn);
        outside.reject(conn, private_data);
        Ok(())
    }

    pub(super) fn disconnect(
        &mut self,
        channel: ChannelId,
        n: u32,
        outside: &mut dyn Outside,
    ) -> Result<(), Errno> {
        let id = self.with_device(channel, n)?;
        match (id.phase, id.conn) {
            (Phase::Connecting | Phase::Established, Some(conn)) => outside.disconnect(conn),
            // A second disconnect does nothing, nor does the disconnect of a request that was not
            // accepted.
            (Phase::Over | Phase::Requested | Phase::Withdrawn, _) => {}
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }
}
