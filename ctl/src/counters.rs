//! What the control plane counts.

heddle_base::counters! {
    /// Counters of one control plane.
    pub struct CtlCounters {
        /// MPA Requests received whole and valid.
        requests_received,
        /// MPA Requests sent.
        requests_sent,
        /// Connections accepted by applications.
        accepts_sent,
        /// Connections rejected by applications.
        rejects_sent,
        /// Connections rejected by peers.
        rejects_received,
        /// Connections established.
        established,
        /// Connections that did not come about.
        failed,
        /// MPA start-ups that broke a rule.
        startup_errors,
        /// MPA start-ups that took too long.
        startup_timeouts,
        /// Orderly closes that took too long and became resets.
        close_timeouts,
        /// Connections reset because their listener had too many in their start-up.
        backlog_full,
        /// Connections reset, while their MPA Request was awaited, to make room for newer ones.
        backlog_evicted,
        /// Connections reset because the application does not take its events.
        events_full,
        /// Connections given up by the application before they were established.
        cancelled,
        /// Terminates sent: peers that broke a rule.
        terminates_sent,
        /// Terminates received.
        terminates_received,
        /// Orders that had to wait because a worker was behind.
        command_backlog,
    }
}
