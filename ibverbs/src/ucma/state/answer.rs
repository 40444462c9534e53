//! Answers queries: `QUERY_ROUTE`, `QUERY`, `INIT_QP_ATTR`.

use super::super::command::Command;
use super::{ChannelId, Errno, Phase, Reply, State};

/// States of a queue pair, as numbers of libibverbs.
mod qp_state {
    pub(super) const INIT: u32 = 1;
    pub(super) const RTR: u32 = 2;
    pub(super) const RTS: u32 = 3;
    pub(super) const ERR: u32 = 6;
}

/// Bits of the attributes to set.
mod mask {
    pub(super) const STATE: u32 = 1;
    pub(super) const ACCESS: u32 = 1 << 3;
    pub(super) const PORT: u32 = 1 << 5;
}

/// `IBV_ACCESS_REMOTE_WRITE` and `IBV_ACCESS_REMOTE_READ`.
const REMOTE: u32 = 2 | 4;

impl State {
    pub(super) fn ask(&mut self, channel: ChannelId, command: &Command) -> Result<Reply, Errno> {
        Ok(match *command {
            Command::QueryRoute { id } => Reply::Route(self.id(channel, id)?.ends()),
            Command::QueryAddr { id } => Reply::Addr(self.id(channel, id)?.ends()),
            Command::QueryGid { id } => Reply::Gid(self.id(channel, id)?.ends()),
            Command::QueryPath { id } => {
                self.id(channel, id)?;
                Reply::Path
            }
            Command::InitQpAttr { id, qp_state } => self.qp_attr(channel, id, qp_state)?,
            _ => return Err(Errno::NOSYS),
        })
    }

    fn qp_attr(&mut self, channel: ChannelId, n: u32, state: u32) -> Result<Reply, Errno> {
        if state > qp_state::ERR {
            return Err(Errno::INVAL);
        }
        let id = self.with_device(channel, n)?;
        // Before the id has a connection, the program may ask for any state.
        let connected = matches!(
            id.phase,
            Phase::Requested | Phase::Connecting | Phase::Established | Phase::Over
        );
        let (mask, access) = match state {
            _ if !connected => (mask::STATE | mask::ACCESS | mask::PORT, 0),
            qp_state::INIT | qp_state::RTR => (mask::STATE | mask::ACCESS | mask::PORT, REMOTE),
            qp_state::RTS => (mask::PORT, 0),
            _ => return Err(Errno::INVAL),
        };
        Ok(Reply::QpAttr { state, mask, access })
    }
}
