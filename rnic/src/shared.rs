//! What the connections of an RNIC share.

use std::collections::VecDeque;
use std::sync::Arc;

use core::time::Duration;

use heddle_iwarp::{Completions, MrTable};
use heddle_tcp::ConnId;

use crate::counters::RnicCounters;
use crate::event::Event;
use crate::handed::Handed;
use crate::held::HoldPool;
use crate::kept::Snapshots;
use crate::looks::Looks;
use crate::rnr::Rnr;
use crate::rounds::Rounds;

/// Tables, buffers and accounts of all connections together, and where a connection leaves what the
/// RNIC's owner is to take. It lies beside the stack that holds the connections, so that a connection
/// that was looked up can work with it.
pub(crate) struct Shared<F> {
    pub(crate) mrs: Arc<MrTable>,
    pub(crate) counters: RnicCounters,
    pub(crate) events: VecDeque<Event>,
    /// Connections whose queue pair has completions nobody has taken; of some all are taken by now.
    pub(crate) completed: VecDeque<ConnId>,
    /// Completions of queue pairs that are gone.
    pub(crate) left: VecDeque<(ConnId, Completions)>,
    /// Connections whose queue pair may have FPDUs to make.
    pub(crate) ready: VecDeque<ConnId>,
    /// Of connections with ourselves.
    pub(crate) handed: Handed,
    pub(crate) kept: Snapshots,
    /// Buffers for bytes that wait.
    pub(crate) pool: HoldPool<F>,
    pub(crate) looks: Looks,
    pub(crate) rounds: Rounds,
    /// Messages that find no receive.
    pub(crate) rnr: Rnr,
    /// See [`RnicConfig::fpdu_stall`](crate::RnicConfig::fpdu_stall).
    pub(crate) fpdu_stall: Duration,
}
