//! Counters of the control plane.

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
        /// Events and reports about objects that had already ended.
        stale,
    }
}

/// All counters, times and gauges of a control plane.
#[derive(Clone, Copy, Debug, Default)]
pub struct CtlCounters {
    /// Counters of the connection manager.
    pub cm: CmCounters,
    /// Counters of the connection manager's InfiniBand side; zero where InfiniBand is not enabled.
    pub ib: IbCounters,
    /// Counters of the shell around the connection manager.
    pub control: ControlCounters,
    /// Times that connections took to be established.
    pub startups: StartupTimes,
    /// Numbers of existing objects at this moment.
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
