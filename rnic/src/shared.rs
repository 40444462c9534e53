//! State that the connections of an RNIC share.

use std::collections::VecDeque;
use std::sync::Arc;

use core::time::Duration;

use heddle_engine::{Completions, Shares};
use heddle_mr::MrTable;
use heddle_types::ConnId;

use crate::counters::RnicCounters;
use crate::event::Event;
use crate::handed::Handed;
use crate::held::HoldPool;
use crate::kept::Snapshots;
use crate::looks::Looks;
use crate::rnr::Rnr;
use crate::rounds::Rounds;
use crate::turns::FairTurns;

/// Tables, buffers and accounts of all connections together, and the queues in which a connection
/// leaves items for the RNIC's owner. This struct lies beside the stack that holds the connections,
/// so that a caller can borrow a connection and this struct at the same time.
pub(crate) struct Shared<F> {
    pub(crate) mrs: Arc<MrTable>,
    pub(crate) counters: RnicCounters,
    pub(crate) events: VecDeque<Event>,
    /// Connections whose queue pair may have completions; some of these queue pairs have none left.
    pub(crate) completed: VecDeque<ConnId>,
    /// Completions of queue pairs that no longer exist.
    pub(crate) left: VecDeque<(ConnId, Completions)>,
    /// Connections whose queue pair may have FPDUs to make.
    pub(crate) ready: VecDeque<ConnId>,
    /// The shares that the connections have.
    pub(crate) shares: Shares,
    /// Turns of the shares, once there are several.
    pub(crate) fair: Box<FairTurns>,
    /// State of connections of the RNIC with itself.
    pub(crate) handed: Handed,
    pub(crate) kept: Snapshots,
    /// Connections with FPDUs that may owe their snapshots, and the index of the first such FPDU: those
    /// of this turn.
    pub(crate) owing: Vec<(ConnId, u32)>,
    /// Buffers for bytes that wait.
    pub(crate) pool: HoldPool<F>,
    pub(crate) looks: Looks,
    pub(crate) rounds: Rounds,
    /// Messages that found no receive.
    pub(crate) rnr: Rnr,
    /// See [`RnicConfig::fpdu_stall`](crate::RnicConfig::fpdu_stall).
    pub(crate) fpdu_stall: Duration,
}
