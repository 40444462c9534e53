heddle_base::counters! {
    /// What a connection manager counts of InfiniBand.
    pub struct IbCounters {
        /// Datagrams received on RoCEv2's port.
        rx_datagrams,
        /// Dropped: no RoCEv2 packet of unreliable datagrams, or one cut short.
        rx_bad_packet,
        /// Dropped: the invariant CRC is wrong.
        rx_bad_icrc,
        /// Dropped: not for the queue pair of general services, its key and its partition.
        rx_not_gsi,
        /// Dropped: to an address that does not speak InfiniBand, or by another worker than its own.
        rx_not_ours,
        /// Not of the communication management class, or of a version, method or attribute that is
        /// not known; a Get and a Set are answered so.
        rx_bad_mad,
        /// Dropped: about a connection that there is not, and not to be answered.
        rx_unknown,
        /// Dropped: from another address, or with another name of the peer's, than the connection's.
        rx_foreign,
        /// Dropped: what has no meaning in the state of its connection.
        rx_unexpected,
        /// Messages that had come before; answered as the first time.
        rx_duplicates,
        /// REQs for a service nobody gives: refused with reason 8.
        req_no_service,
        /// REQs for another transport than reliable connections: refused with reason 9.
        req_transport,
        /// REQs whose primary path leads to another port than this one: refused with reason 12.
        req_gid,
        /// REQs whose private data are not the annex's: refused with reason 28 and its code.
        req_header,
        /// REQs in the name of another connection: refused with reason 10.
        req_stale,
        /// REQs for which there was no room: refused with reason 3.
        req_no_room,
        /// MRAs sent: the application takes its time.
        mra_sent,
        /// MRAs received: the peer's does.
        mra_received,
        /// Messages sent again because no answer came.
        retransmissions,
        /// SIDR REQs, all of them answered "not supported".
        sidr_requests,
        /// LAPs, all of them answered "not supported".
        lap_requests,
        /// Datagrams to send.
        tx_datagrams,
        /// Datagrams dropped because the worker did not take them.
        tx_full,
        /// Connections that had ended and made room for others before their time.
        time_wait_evicted,
        /// Accepted connections whose peer did not answer and that made room for others before their
        /// time.
        half_open_evicted,
        /// REPs sent to established peers to see whether they are there.
        keepalives,
        /// Established connections given up because their peer was not there.
        keepalive_timeouts,
    }
}
