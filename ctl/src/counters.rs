//! What the control plane counts.

use heddle_cm::{CmCounters, CmGauges, IbCounters, StartupTimes};

heddle_base::counters! {
    /// Counters of one control plane, beside those of its connection manager.
    pub struct ControlCounters {
        /// Orders that had to wait because a worker was behind.
        command_backlog,
        /// Workers that ended by a panic.
        worker_panics,
        /// Datagrams of InfiniBand not sent because a worker was behind.
        datagrams_dropped,
        /// Events and reports about things that were gone already.
        stale,
    }
}

/// Everything a control plane counts and measures, and how much it holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct CtlCounters {
    /// The connection manager's.
    pub cm: CmCounters,
    /// The same of InfiniBand; zeros where it is not spoken.
    pub ib: IbCounters,
    /// The shell's around it.
    pub control: ControlCounters,
    /// How long connections took to be established.
    pub startups: StartupTimes,
    /// What there is at this moment.
    pub gauges: CmGauges,
}

impl CtlCounters {
    /// Calls `f` with name, help text and value of every counter.
    pub fn for_each(&self, mut f: impl FnMut(&'static str, &'static str, u64)) {
        self.cm.for_each(&mut f);
        self.ib.for_each(&mut f);
        self.control.for_each(&mut f);
    }
}
