//! Handles options: `SET_OPTION`.

use super::super::command::OptionValue;
use super::super::number::{option, qp_type};
use super::{ChannelId, Errno, Phase, State};

impl State {
    pub(super) fn set_option(
        &mut self,
        channel: ChannelId,
        n: u32,
        level: u32,
        name: u32,
        value: OptionValue,
    ) -> Result<(), Errno> {
        let id = self.id(channel, n)?;
        match (level, name) {
            // No field of a frame carries this value: the RNIC takes its class of service from its
            // configuration.
            (option::LEVEL_ID, option::TOS) => value.byte().map(drop),
            (option::LEVEL_ID, option::REUSEADDR) => {
                let reuse = value.int()? != 0;
                if id.phase != Phase::Idle && (!reuse || id.phase == Phase::Listening) {
                    return Err(Errno::INVAL);
                }
                id.reuse = reuse;
                Ok(())
            }
            (option::LEVEL_ID, option::AFONLY) => {
                let only = value.int()? != 0;
                if !matches!(id.phase, Phase::Idle | Phase::Bound) {
                    return Err(Errno::INVAL);
                }
                if id.af_only != Some(only) {
                    // The RNIC reserved the address for the families of the time. The listener
                    // asks for its address anew.
                    id.reserved = None;
                }
                id.af_only = Some(only);
                Ok(())
            }
            // An option of InfiniBand. The kernel accepts it for every reliable id, and so does
            // this module.
            (option::LEVEL_ID, option::ACK_TIMEOUT) => {
                value.byte()?;
                let reliable = matches!(id.qp_type, qp_type::RC | qp_type::XRC_INI);
                if reliable { Ok(()) } else { Err(Errno::INVAL) }
            }
            // iWARP has no path records.
            (option::LEVEL_IB, option::PATH) => Err(Errno::INVAL),
            _ => Err(Errno::NOSYS),
        }
    }
}
