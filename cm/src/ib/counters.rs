heddle_base::counters! {
    /// Counters of a connection manager's InfiniBand side.
    pub struct IbCounters {
        /// Datagrams received on RoCEv2's port.
        rx_datagrams,
        /// Dropped: not a RoCEv2 packet of the unreliable datagram service, or cut short.
        rx_bad_packet,
        /// Dropped: the invariant CRC is wrong.
        rx_bad_icrc,
        /// Dropped: not for the queue pair of general services, its key and its partition.
        rx_not_gsi,
        /// Dropped: to an address that does not speak InfiniBand, or received by another worker
        /// than the address's own.
        rx_not_ours,
        /// Messages outside the communication management class, or of an unknown version, method or
        /// attribute; a Get and a Set get that answer.
        rx_bad_mad,
        /// Dropped: names a connection that does not exist, and needs no answer.
        rx_unknown,
        /// Dropped: from another address, or with another name of the peer's, than the connection
        /// has.
        rx_foreign,
        /// Dropped: has no meaning in the state of its connection.
        rx_unexpected,
        /// Copies of earlier messages; answered as the first time.
        rx_duplicates,
        /// REQs for a service that no application provides: refused with reason 8.
        req_no_service,
        /// REQs for another transport than reliable connections: refused with reason 9.
        req_transport,
        /// REQs whose primary path leads to another port than this one: refused with reason 12.
        req_gid,
        /// REQs whose private data do not follow the annex: refused with reason 28 and the annex's
        /// code.
        req_header,
        /// REQs in the name of another connection: refused with reason 10.
        req_stale,
        /// REQs for which there was no room: refused with reason 3.
        req_no_room,
        /// MRAs sent because our application takes its time.
        mra_sent,
        /// MRAs received: the peer's application takes its time.
        mra_received,
        /// Messages retransmitted because no answer came.
        retransmissions,
        /// SIDR REQs, all answered "not supported".
        sidr_requests,
        /// LAPs, all answered "not supported".
        lap_requests,
        /// Datagrams queued for sending.
        tx_datagrams,
        /// Datagrams dropped because the worker did not take them.
        tx_full,
        /// Ended connections that made room for others before their time.
        time_wait_evicted,
        /// Accepted connections that made room for others before their time, because their peer did
        /// not answer.
        half_open_evicted,
        /// REPs sent to established peers as probes.
        keepalives,
        /// Established connections given up because their peer did not answer the probes.
        keepalive_timeouts,
    }
}
