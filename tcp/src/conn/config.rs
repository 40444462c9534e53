//! What a connection is set up with.

use core::time::Duration;

/// The largest IPv4 datagram less the fixed IPv4 and TCP headers.
const MAX_MSS: u16 = u16::MAX - 40;

/// Settings of a connection; they do not change while it lives, except where a method says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnConfig {
    /// Our receive MSS in bytes, sent in the MSS option: the MTU less the fixed IP and TCP headers.
    /// It also bounds what we send (RFC 9293 section 3.7.1). A stack lowers it to what its MTU
    /// allows and never raises it, so the default is no limit: the largest that IPv4 can carry.
    pub mss: u16,
    /// The send MSS to assume when the peer's SYN has no MSS option: 536 over IPv4, 1220 over IPv6.
    pub default_peer_mss: u16,
    /// Bytes of receive window to offer. See
    /// [`Connection::set_recv_window`](crate::Connection::set_recv_window).
    pub recv_window: u32,
    /// Offer (and accept) the timestamps option.
    pub timestamps: bool,
    /// Offer (and accept) window scaling. Without it the window is at most 65,535 bytes.
    pub window_scaling: bool,
    /// Offer (and accept) selective acknowledgment (RFC 2018), and with it RACK-TLP (RFC 8985).
    pub sack: bool,
    /// The longest an ACK is held back; values above 500 ms are cut to it. Zero: never hold back.
    pub delayed_ack: Duration,
    /// How long the peer may hold back an ACK, at first: the longest tail of silence that is no
    /// reason for a tail probe. It grows where a peer turns out to take longer.
    pub peer_ack_delay: Duration,
    /// Lower bound of the retransmission timeout, at least 1 ms; with a peer that has no SACK at
    /// least 200 ms.
    pub rto_min: Duration,
    /// Upper bound of the retransmission timeout and of the interval between window probes.
    pub rto_max: Duration,
    /// Retransmission timeout until a round trip has been measured.
    pub rto_initial: Duration,
    /// How many times a SYN or SYN-ACK is sent again before the connection is given up.
    pub syn_retries: u32,
    /// How long data may stay unacknowledged, or a closed window unanswered, before the connection
    /// is given up: R2 of RFC 9293 section 3.8.3.
    pub user_timeout: Duration,
    /// How long the peer may send no bytes in FIN-WAIT-2 before the connection is reset: more than
    /// two of its window probes may be apart. RFC 9293 sets no limit there; without one a peer that
    /// never sends its FIN holds a connection for ever.
    pub fin_wait_2: Duration,
    /// Time spent in TIME-WAIT: twice the maximum segment lifetime.
    pub time_wait: Duration,
    /// Challenge ACKs sent per second at most (RFC 5961 section 7).
    pub challenge_acks: u32,
}

impl Default for ConnConfig {
    fn default() -> ConnConfig {
        ConnConfig {
            mss: MAX_MSS,
            default_peer_mss: 536,
            recv_window: 1 << 20,
            timestamps: true,
            window_scaling: true,
            sack: true,
            // Round trips in a machine room take tens of microseconds. An ACK that is held back
            // must not look like a loss to a peer set up like us: our delay is half of what is
            // allowed for, and that is well below the timeout.
            delayed_ack: Duration::from_micros(500),
            peer_ack_delay: Duration::from_millis(1),
            rto_min: Duration::from_millis(2),
            rto_max: Duration::from_secs(60),
            rto_initial: Duration::from_secs(1),
            // 1 + 2 + 4 + 8 + 16 + 32 + 60 + 60 = 183 s, the three minutes of RFC 9293 3.8.3.
            syn_retries: 7,
            user_timeout: Duration::from_secs(120),
            fin_wait_2: Duration::from_secs(150),
            time_wait: Duration::from_secs(60),
            challenge_acks: 10,
        }
    }
}
