//! What a connection counts and measures.

use core::ops::{Deref, DerefMut};
use core::time::Duration;

heddle_base::counters! {
    /// What happened on a connection.
    pub struct ConnCounters {
        /// Segments sent again, for whatever reason.
        retransmits,
        /// Losses found by SACK or duplicate ACKs: how often recovery began.
        fast_retransmits,
        /// Expiries of the retransmission timer, SYNs included.
        timeouts,
        /// Of those, expiries that turned out premature.
        spurious_timeouts,
        /// Segments sent again although the first had arrived, as far as the peer tells (D-SACK).
        spurious_retransmits,
        /// Reductions of the congestion window taken back because nothing had been lost.
        recoveries_undone,
        /// Tail probes: segments sent to find out whether the last ones were lost.
        tail_probes,
        /// SACKs that the peer took back.
        sacks_reneged,
        /// SACK blocks ignored: of bytes not outstanding, or of the very byte the same segment does
        /// not acknowledge.
        bad_sacks,
        /// Probes of a closed or too small window.
        probes,
        /// Times that several retransmissions in a row went unanswered. The connection went on.
        unresponsive,
        /// Times that the peer kept its window shut for half of what it may. The connection went on.
        window_stalls,
        /// Connections ended because the peer kept its window shut for too long.
        zero_window_timeouts,
        /// Orderly closes cut off because nothing moved for too long.
        close_stalls,
        /// Keepalives: probes of a silent peer.
        keepalives,
        /// Duplicate ACKs received.
        dup_acks,
        /// Segments received ahead of a gap.
        ooo_segments,
        /// Segments ahead of a gap not reported because there were too many gaps.
        ooo_refused,
        /// Segments received with nothing new in them.
        duplicate_segments,
        /// Segments dropped because their sequence number lay outside the window.
        out_of_window,
        /// Segments dropped because their timestamp was old.
        paws_drops,
        /// Segments dropped because they lacked the negotiated timestamp.
        missing_timestamps,
        /// Segments dropped because their acknowledgment number was impossible.
        bad_acks,
        /// Challenge ACKs sent.
        challenge_acks,
        /// Challenge ACKs, and SYN-ACKs for a SYN that came again, not sent because of the rate limit.
        challenge_acks_suppressed,
        /// FINs ignored because they contradict what was received before.
        bad_fins,
    }
}

/// The counters of a connection, which have memory from the first event on: all they count is out of
/// the ordinary, and many connections never see any of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally(Option<Box<ConnCounters>>);

impl Deref for Tally {
    type Target = ConnCounters;

    fn deref(&self) -> &ConnCounters {
        self.0.as_deref().unwrap_or(&ConnCounters::ZERO)
    }
}

impl DerefMut for Tally {
    #[cold]
    fn deref_mut(&mut self) -> &mut ConnCounters {
        self.0.get_or_insert_default()
    }
}

/// A snapshot of a connection's measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnStats {
    /// Smoothed round-trip time; `None` before the first measurement.
    pub srtt: Option<Duration>,
    /// Round-trip time variation.
    pub rttvar: Duration,
    /// Retransmission timeout, backoff included.
    pub rto: Duration,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes.
    pub ssthresh: u32,
    /// Bytes believed to be in the network: outstanding ones, without those that arrived out of
    /// order or are lost.
    pub in_flight: u64,
    /// The peer's window in bytes, scaled.
    pub snd_wnd: u32,
    /// What happened so far.
    pub counters: ConnCounters,
}
