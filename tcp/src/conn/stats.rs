//! Counters and measurements of a connection.

use core::ops::{Deref, DerefMut};
use core::time::Duration;

heddle_base::counters! {
    /// Events counted on a connection.
    pub struct ConnCounters {
        /// Segments sent again, for any reason.
        retransmits,
        /// Losses found by SACK or duplicate ACKs: the number of recoveries that began.
        fast_retransmits,
        /// Expiries of the retransmission timer, SYNs included.
        timeouts,
        /// Expiries of the retransmission timer that turned out premature; the counter of timeouts
        /// includes them.
        spurious_timeouts,
        /// Segments sent again although the peer reports that the first transmission had arrived
        /// (D-SACK).
        spurious_retransmits,
        /// Reductions of the congestion window that the connection took back because nothing had
        /// been lost.
        recoveries_undone,
        /// Segments received with the mark of congestion, CE.
        ce_segments,
        /// Acknowledgments received that report such marks on our segments.
        ece_acks,
        /// With accurate ECN: marks on our packets that the peer has reported.
        ce_reported,
        /// With accurate ECN: halves of connections whose bits of ECN the path or the peer was found
        /// to change. The connection sends without ECT since.
        ecn_mangled,
        /// Reductions of the congestion window because of such reports.
        ecn_reductions,
        /// Tail probes: segments sent to find out whether the last segments before them were lost.
        tail_probes,
        /// Times that the peer took back a SACK.
        sacks_reneged,
        /// SACK blocks ignored because they report bytes that are not outstanding, or the byte at
        /// the acknowledgment number of the same segment.
        bad_sacks,
        /// Segments sent that were larger than the others, to find out whether the path carries them.
        mtu_probes,
        /// Such segments that the path lost.
        mtu_probes_lost,
        /// Times that the segment size rose because such a segment arrived.
        mtu_raises,
        /// Times that the segment size fell because timeouts in a row may mean that the path carries
        /// less and no router says so.
        mtu_black_holes,
        /// Probes of a closed or too small window.
        probes,
        /// Times that the peer left several retransmissions in a row unanswered. The connection
        /// continued.
        unresponsive,
        /// Times that the peer kept its window shut for half of the allowed time. The connection
        /// continued.
        window_stalls,
        /// Connections ended because the peer kept its window shut for too long.
        zero_window_timeouts,
        /// Orderly closes cut off because no byte moved for too long.
        close_stalls,
        /// Keepalives: probes of a silent peer.
        keepalives,
        /// Duplicate ACKs received.
        dup_acks,
        /// Segments received ahead of a gap.
        ooo_segments,
        /// Segments ahead of a gap not offered to the owner because there were too many gaps.
        ooo_refused,
        /// Segments received without new bytes.
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
        /// Challenge ACKs, and SYN-ACKs for a repeated SYN, not sent because of the rate limit.
        challenge_acks_suppressed,
        /// FINs ignored because they contradict earlier segments.
        bad_fins,
    }
}

/// The counters of a connection. The tally allocates memory at the first event: it counts only
/// unusual events, and many connections never see any.
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
    /// Bytes believed to be in the network: outstanding bytes, without those that are lost or
    /// arrived out of order.
    pub in_flight: u64,
    /// The peer's window in bytes, scaled.
    pub snd_wnd: u32,
    /// Events counted so far.
    pub counters: ConnCounters,
}
