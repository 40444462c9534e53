//! The counters of a stack: every frame that the stack drops has a reason here.

/// Defines the reasons for drops, each with its counter.
macro_rules! drop_reasons {
    ($($reason:ident => $counter:ident,)+) => {
        /// Why the stack drops a frame or a datagram.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum DropReason {
            $(
                #[doc = concat!("See [`StackCounters::", stringify!($counter), "`].")]
                $reason,
            )+
        }

        impl StackCounters {
            /// Adds one to the counter of this reason.
            #[cold]
            pub(super) fn count_drop(&mut self, reason: DropReason) {
                let counter = match reason {
                    $(DropReason::$reason => &mut self.$counter,)+
                };
                *counter += 1;
            }
        }
    };
}

drop_reasons! {
    ArpConflicts => arp_conflicts,
    ArpIgnored => arp_ignored,
    ArpMalformed => arp_malformed,
    ConnsFull => conns_full,
    IcmpEchoLimited => icmp_echo_limited,
    IcmpErrorsLimited => icmp_errors_limited,
    IcmpFragNeededIgnored => icmp_frag_needed_ignored,
    IcmpIgnored => icmp_ignored,
    IcmpMalformed => icmp_malformed,
    IcmpOverShare => icmp_over_share,
    IcmpUnmatched => icmp_unmatched,
    ListenOverflow => listen_overflow,
    ListenerAwaited => listener_awaited,
    NdConflicts => nd_conflicts,
    NdIgnored => nd_ignored,
    NdMalformed => nd_malformed,
    PeerConnsLimited => peer_conns_limited,
    PeerHalfOpenLimited => peer_half_open_limited,
    RxBadFlags => rx_bad_flags,
    RxBadIpChecksum => rx_bad_ip_checksum,
    RxBadIpHeader => rx_bad_ip_header,
    RxBadPortChecksum => rx_bad_port_checksum,
    RxBadSource => rx_bad_source,
    RxBadTcpChecksum => rx_bad_tcp_checksum,
    RxBadTcpHeader => rx_bad_tcp_header,
    RxBadTcpOptions => rx_bad_tcp_options,
    RxExtensionHeader => rx_extension_header,
    RxFragments => rx_fragments,
    RxNoConnection => rx_no_connection,
    RxOtherHost => rx_other_host,
    RxOtherStation => rx_other_station,
    RxRstUnknown => rx_rst_unknown,
    RxSplitHeader => rx_split_header,
    RxStackedTags => rx_stacked_tags,
    RxTcpGroup => rx_tcp_group,
    RxTruncated => rx_truncated,
    RxUnknownEthertype => rx_unknown_ethertype,
    RxUnknownProtocol => rx_unknown_protocol,
    RxUnknownVlan => rx_unknown_vlan,
    SegmentsOverShare => segments_over_share,
    SynAcksLimited => syn_acks_limited,
    SynCookiesFailed => syn_cookies_failed,
    SynNoNeighbor => syn_no_neighbor,
    SynsOverShare => syns_over_share,
    TxDatagramsFull => tx_datagrams_full,
    TxDatagramsRefused => tx_datagrams_refused,
    UdpBadCrc => udp_bad_crc,
    UdpBadEndpoint => udp_bad_endpoint,
    UdpBadMessage => udp_bad_message,
    UdpBadPacket => udp_bad_packet,
    UdpConnLimited => udp_conn_limited,
    UdpFull => udp_full,
    UdpLimited => udp_limited,
    UdpMalformed => udp_malformed,
    UdpOverShare => udp_over_share,
    UdpSourceLimited => udp_source_limited,
}

heddle_base::counters! {
    /// Counters of the actions of a stack, and of its reasons for dropping frames.
    pub struct StackCounters {
        /// Frames handed to the stack.
        rx_frames,
        /// TCP segments that found their connection.
        rx_segments,
        /// Segments among `rx_segments` that came in a burst with the segment before them, and that
        /// their connection handled together with it.
        rx_merged,
        /// Frames dropped: shorter than their headers say.
        rx_truncated,
        /// Frames dropped: headers not in the first piece of the frame.
        rx_split_header,
        /// Frames dropped: addressed to another station.
        rx_other_station,
        /// Frames dropped: neither IPv4, IPv6 nor ARP.
        rx_unknown_ethertype,
        /// Frames dropped: of a VLAN that the port does not have.
        rx_unknown_vlan,
        /// Frames dropped: with a second tag, or the tag of a provider's bridge.
        rx_stacked_tags,
        /// Datagrams dropped: impossible IP header.
        rx_bad_ip_header,
        /// Datagrams dropped: wrong IPv4 header checksum.
        rx_bad_ip_checksum,
        /// Datagrams dropped: fragments.
        rx_fragments,
        /// IPv6 packets dropped: a header between IPv6's and TCP's.
        rx_extension_header,
        /// Datagrams dropped: addressed to another host.
        rx_other_host,
        /// Datagrams dropped: from an address that no single other host has.
        rx_bad_source,
        /// Datagrams dropped: neither TCP, ICMP nor UDP to the port that is open.
        rx_unknown_protocol,
        /// TCP segments dropped: sent to a broadcast or multicast address.
        rx_tcp_group,
        /// TCP segments dropped: wrong checksum.
        rx_bad_tcp_checksum,
        /// Frames dropped: the port found a wrong checksum.
        rx_bad_port_checksum,
        /// TCP segments dropped: impossible header.
        rx_bad_tcp_header,
        /// TCP segments dropped: impossible option length.
        rx_bad_tcp_options,
        /// TCP segments dropped: RST for no connection.
        rx_rst_unknown,
        /// TCP segments dropped: control bits or options that open no connection, for a listener.
        rx_bad_flags,
        /// TCP segments for no connection, answered with RST or not.
        rx_no_connection,
        /// RSTs sent for segments of no connection.
        tx_resets,
        /// RSTs not sent because of the rate limit.
        tx_resets_limited,
        /// Connections that we opened.
        opened,
        /// Connections that peers opened and that reached the owner.
        accepted,
        /// SYNs that made a half-open connection.
        half_opened,
        /// Half-open connections that were never established.
        half_open_failed,
        /// SYN-ACKs sent, with a cookie or without.
        tx_syn_acks,
        /// SYN-ACKs not sent, or not sent again, because of the rate limit of their destination.
        syn_acks_limited,
        /// SYN-ACKs sent with a cookie: the stack has kept nothing of the SYN.
        syn_cookies_sent,
        /// Connections established by a cookie.
        syn_cookies_accepted,
        /// TCP segments for a listener, while cookies were out, that belong to no connection and
        /// prove no handshake. Data among them are dropped, and other segments refused.
        syn_cookies_failed,
        /// Half-open connections evicted to make room for newer ones, because there are no cookies.
        half_open_evicted,
        /// SYNs dropped: the port has no listener, but an application may be about to listen there.
        listener_awaited,
        /// SYNs dropped: the listener may have no half-open connections.
        listen_overflow,
        /// SYNs dropped: the peer has reached its limit of half-open connections.
        peer_half_open_limited,
        /// SYNs refused: the peer has reached its limit of connections at all listeners.
        peer_conns_limited,
        /// SYNs dropped, and ends of handshakes refused: as many connections as configured, none of
        /// which can be evicted.
        conns_full,
        /// SYNs dropped: no route back, or no room for the neighbor.
        syn_no_neighbor,
        /// SYNs dropped: strangers have had their share of a busy worker's time.
        syns_over_share,
        /// Other TCP segments of no connection dropped for the same reason.
        segments_over_share,
        /// TIME-WAIT connections replaced by a new one of the same addresses and ports, the peer's
        /// or ours.
        time_wait_reused,
        /// TIME-WAIT connections evicted to make room for new ones.
        time_wait_evicted,
        /// ARP packets dropped: malformed or impossible addresses.
        arp_malformed,
        /// ARP packets dropped: no information about a neighbor that we have or need.
        arp_ignored,
        /// ARP packets from another station that uses one of our addresses.
        arp_conflicts,
        /// Messages of neighbor discovery dropped: malformed, from beyond the link, or impossible
        /// addresses.
        nd_malformed,
        /// Messages of neighbor discovery dropped: no information about a neighbor that we have or
        /// need.
        nd_ignored,
        /// Messages of neighbor discovery from another station that uses one of our addresses.
        nd_conflicts,
        /// Claims that a neighbor has another hardware address, refused because the neighbor
        /// answers at the known address.
        arp_change_refused,
        /// Changes of a neighbor's hardware address, and entries removed because of a claim of a
        /// change.
        neighbor_changes,
        /// Neighbors evicted to make room.
        neighbor_evictions,
        /// Neighbors in use that no longer answer.
        neighbor_unconfirmed,
        /// Neighbors that never answered.
        neighbor_failed,
        /// ARP requests sent.
        tx_arp_requests,
        /// ARP replies sent.
        tx_arp_replies,
        /// Questions for our addresses without an answer: beyond the budget of the host that asks, of
        /// all strangers of its link, or of the turn.
        questions_limited,
        /// Announcements of an address of ours sent (RFC 5227).
        tx_arp_announcements,
        /// Neighbor solicitations sent: questions about neighbors, and about addresses of ours.
        tx_neighbor_solicits,
        /// Neighbor advertisements sent: answers, and announcements of an address of ours.
        tx_neighbor_adverts,
        /// Advertisements of routers passed to the owner.
        rx_router_adverts,
        /// Questions for routers sent.
        tx_router_solicits,
        /// Questions of switches and routers for the multicast groups that we hear.
        rx_mld_queries,
        /// Reports sent of multicast groups that we hear.
        tx_mld_reports,
        /// ICMP messages dropped: malformed or wrong checksum.
        icmp_malformed,
        /// ICMP messages dropped: of a kind we do not act on.
        icmp_ignored,
        /// ICMP errors dropped: no quoted segment that a connection has in flight.
        icmp_unmatched,
        /// ICMP errors recorded for a connection.
        icmp_soft_errors,
        /// ICMP errors that reported a smaller path MTU, and lowered a connection's segment size.
        icmp_frag_needed,
        /// ICMP errors about the path MTU ignored: the quoted datagram fits this MTU or is too
        /// large to be ours, or our segments already fit.
        icmp_frag_needed_ignored,
        /// ICMP errors dropped without reading them: rate limit.
        icmp_errors_limited,
        /// ICMP messages dropped: strangers have had their share of a busy worker's time.
        icmp_over_share,
        /// Echo replies sent.
        tx_echo_replies,
        /// Echo requests dropped: rate limit, or too large.
        icmp_echo_limited,
        /// Control frames dropped: too many of their kind (ARP and neighbor
        /// discovery, RST, echo, UDP) wait to be sent.
        tx_control_full,
        /// UDP datagrams taken.
        rx_datagrams,
        /// UDP datagrams dropped: impossible length or wrong checksum.
        udp_malformed,
        /// UDP datagrams dropped: strangers have had their share of a busy worker's time.
        udp_over_share,
        /// UDP datagrams dropped: headers or length that the service does not have.
        udp_bad_packet,
        /// UDP datagrams dropped: the invariant CRC is wrong.
        udp_bad_crc,
        /// UDP datagrams dropped: for another queue pair than that of general services, its key or
        /// its partition.
        udp_bad_endpoint,
        /// UDP datagrams dropped: no message of the communication management class.
        udp_bad_message,
        /// UDP datagrams dropped: about a connection, and beyond the rate limit of that connection.
        udp_conn_limited,
        /// UDP datagrams dropped: about no connection, and beyond the rate limit of their source
        /// address.
        udp_source_limited,
        /// UDP datagrams dropped: about no connection, and beyond the rate limit of all such
        /// datagrams.
        udp_limited,
        /// UDP datagrams dropped: too many wait for the control plane's turn.
        udp_full,
        /// UDP datagrams sent.
        tx_datagrams,
        /// UDP datagrams not sent: no address of ours as source, no possible destination, or too
        /// long.
        tx_datagrams_refused,
        /// UDP datagrams not sent: the next hop does not answer.
        tx_datagrams_unreachable,
        /// UDP datagrams not sent: too many wait for the port or for the address of their next hop.
        tx_datagrams_full,
        /// Times that a receive window grew because the path needed more.
        windows_grown,
        /// Times that a receive window grew less than its path needed, because the budget for all
        /// windows has no more for its peer.
        windows_limited,
        /// TCP segments sent.
        tx_segments,
    }
}
