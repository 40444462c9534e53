heddle_base::counters! {
    /// Counters of a connection manager.
    pub struct CmCounters {
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
        /// Connections that were not established.
        failed,
        /// MPA start-ups in which the peer broke a rule or the two sides could not agree.
        startup_errors,
        /// MPA start-ups that took too long.
        startup_timeouts,
        /// Accepted connections reset because no good FPDU came in time.
        first_fpdu_timeouts,
        /// Connections made anew in MPA revision 1, the only one that the peer speaks.
        fallbacks,
        /// Orderly closes that took too long and became resets.
        close_timeouts,
        /// Connections reset because their listener had too many in their start-up.
        backlog_full,
        /// Connections reset, before they were established, to make room for newer ones.
        backlog_evicted,
        /// Connections reset because their worker had too many in their start-up.
        startups_full,
        /// Connections reset because their peer has too many at the listener.
        peer_full,
        /// Connections reset because the application does not take its events.
        events_full,
        /// Connections reset because the RNIC drains.
        draining_refused,
        /// Connections reset because there is no listener (any more) at their local address.
        not_listening,
        /// Connections given up by the application before they were established.
        cancelled,
        /// Connections that ended because their worker ended.
        worker_lost,
        /// Established connections whose peer closed its stream too early.
        truncated,
        /// Terminates sent to peers that broke a rule.
        terminates_sent,
        /// Terminates received from peers.
        terminates_received,
        /// Requests of applications that the manager refused at once.
        requests_refused,
        /// Refusal notices that were left out of the log.
        notices_suppressed,
    }
}
