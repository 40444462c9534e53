//! Congestion control: Reno (RFC 5681, RFC 6928). Duplicate ACKs detect and repair loss (NewReno,
//! RFC 6582, RFC 3042). With SACK, `rack` does so, and the window follows proportional rate
//! reduction (RFC 6937).
//!
//! The connection reports acknowledgments, timeouts and sends to this module, in bytes and stream
//! positions, and obeys two answers: how many bytes may be outstanding, and whether to send the
//! oldest unacknowledged segment again. This module knows no segments and no timers, so another
//! algorithm can replace it.

use core::mem::offset_of;

use heddle_base::StreamPos;

/// A window this large is never the bottleneck: the largest window TCP can advertise.
const CWND_MAX: u32 = 1 << 30;
/// Duplicate ACKs that mean a loss.
const DUP_THRESHOLD: u32 = 3;
/// Segments by which one acknowledgment may open the window in slow start: L of RFC 3465.
///
/// The RFC recommends 2, for receivers that acknowledge every other segment. Receivers that handle
/// segments in bursts, as ours does, acknowledge once for up to 64 segments. With a limit of two
/// per ACK the window would need tens of round trips where doubling needs six. A limit of 64 keeps
/// the window doubling, and bounds the burst that a stretch of lost ACKs can release at once.
const ABC_LIMIT: u32 = 64;

/// NewReno's variables. Windows are in bytes. The first are those of a connection without loss.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct NewReno {
    /// Duplicate ACKs in a row. The connection does not count them while they do not prove a loss.
    dup_acks: u32,
    cwnd: u32,
    ssthresh: u32,
    mss: u32,
    /// Bytes acknowledged since cwnd last grew in congestion avoidance (RFC 5681 3.1).
    acked: u32,
    /// Bytes sent beyond cwnd by limited transmit since the first of the duplicate ACKs.
    limited: u32,
    recovering: bool,
    /// For a recovery with SACK: prr_delivered, prr_out and RecoverFS of RFC 6937.
    prr_delivered: u64,
    prr_out: u64,
    prr_flight: u64,
    /// The position that the peer must acknowledge before recovery ends, and before duplicate ACKs
    /// count again.
    recover: StreamPos,
}

impl NewReno {
    /// Bytes, from the first on, that a segment without an acknowledgment touches.
    pub(super) const OPEN: usize = offset_of!(NewReno, ssthresh);

    pub(super) fn new(mss: u32) -> NewReno {
        let mss = mss.max(1);
        NewReno {
            cwnd: initial_window(mss),
            ssthresh: u32::MAX,
            mss,
            acked: 0,
            dup_acks: 0,
            limited: 0,
            recovering: false,
            prr_delivered: 0,
            prr_out: 0,
            prr_flight: 1,
            recover: StreamPos::START,
        }
    }

    pub(super) fn cwnd(&self) -> u32 {
        self.cwnd
    }

    pub(super) fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// Returns true if neither a loss nor a duplicate ACK needs attention: the fast path's
    /// condition.
    pub(super) fn is_open(&self) -> bool {
        self.dup_acks == 0
    }

    /// Returns the bytes that may be outstanding when the next byte to send is new: cwnd, and one
    /// segment more for each of the first and the second duplicate ACK (RFC 3042).
    pub(super) fn allowance(&self) -> u32 {
        if self.dup_acks == 0 || self.recovering {
            self.cwnd
        } else {
            self.cwnd.saturating_add(self.dup_acks.min(2).saturating_mul(self.mss))
        }
    }

    /// Sets a smaller segment size. The window shrinks in proportion, so that as many segments are
    /// outstanding (RFC 5681 3.1).
    pub(super) fn set_mss(&mut self, mss: u32) {
        let mss = mss.max(1);
        let scaled = u64::from(self.cwnd) * u64::from(mss) / u64::from(self.mss);
        self.cwnd = clamp(scaled).clamp(mss, CWND_MAX);
        self.mss = mss;
    }

    /// Records that the handshake lost a SYN: the connection begins with one segment (RFC 5681
    /// 3.1).
    pub(super) fn syn_lost(&mut self) {
        self.cwnd = self.mss;
    }

    /// Records that `len` bytes of new data were sent; `flight` bytes are outstanding now.
    pub(super) fn on_sent(&mut self, len: u32, flight: u64) {
        if self.recovering {
            self.prr_out += u64::from(len);
        } else if self.dup_acks != 0 && flight > u64::from(self.cwnd) {
            self.limited = self.limited.saturating_add(len);
        }
    }

    /// Records that the peer acknowledged the oldest `acked` of `flight` outstanding bytes, up to
    /// `una`. Returns true if the segment at `una` is lost too and the connection must send it
    /// again (a partial acknowledgment).
    pub(super) fn on_ack(&mut self, una: StreamPos, acked: u64, flight: u64) -> bool {
        let left = flight.saturating_sub(acked);
        if self.recovering {
            if una < self.recover {
                let acked = clamp(acked);
                self.cwnd = self.cwnd.saturating_sub(acked).max(self.mss);
                if acked >= self.mss {
                    self.grow(self.mss);
                }
                return true;
            }
            self.recovering = false;
            self.dup_acks = 0;
            // RFC 6582 3.2 step 3, option 1: no burst when little is left outstanding.
            self.cwnd = self.ssthresh.min(clamp(left).max(self.mss).saturating_add(self.mss));
            self.acked = 0;
            return false;
        }
        self.dup_acks = 0;
        self.limited = 0;
        // A window that the sender did not use says nothing about the path (RFC 7661 in spirit).
        if flight.saturating_mul(2) < u64::from(self.cwnd) {
            return false;
        }
        if self.cwnd < self.ssthresh {
            // After a timeout an acknowledgment may cover bytes that had arrived before, and says
            // little about the bytes that left the network since: L = 1 there (RFC 3465 section
            // 2.3).
            let limit = if una < self.recover { 1 } else { ABC_LIMIT };
            self.grow(clamp(acked).min(self.mss.saturating_mul(limit)));
        } else {
            self.acked = self.acked.saturating_add(clamp(acked));
            if self.acked >= self.cwnd {
                self.acked -= self.cwnd;
                self.grow(self.mss);
            }
        }
        false
    }

    /// Handles a duplicate ACK of `una` while `[una, max)` is outstanding. Returns true if this ACK
    /// shows that the segment at `una` is lost.
    pub(super) fn on_dup_ack(&mut self, una: StreamPos, max: StreamPos) -> bool {
        if self.recovering {
            // A segment that left the network makes room for another, but never for more segments
            // than are outstanding, whatever the peer claims (RFC 5681 3.2 step 4).
            if u64::from(self.cwnd) < u64::from(self.ssthresh).saturating_add(max - una) {
                self.grow(self.mss);
            }
            return false;
        }
        if una < self.recover {
            return false;
        }
        self.dup_acks = self.dup_acks.saturating_add(1);
        if self.dup_acks < DUP_THRESHOLD {
            return false;
        }
        let flight = (max - una).saturating_sub(u64::from(self.limited));
        self.reduce(flight);
        self.cwnd = self.ssthresh.saturating_add(self.mss.saturating_mul(3)).min(CWND_MAX);
        self.recovering = true;
        self.recover = max;
        self.limited = 0;
        true
    }

    /// Handles expiry of the retransmission timer with `[una, max)` outstanding. `first` is false
    /// if the timer already made the connection send the oldest segment again.
    pub(super) fn on_timeout(&mut self, una: StreamPos, max: StreamPos, first: bool) {
        if first {
            self.reduce(max - una);
        }
        self.cwnd = self.mss;
        self.acked = 0;
        self.dup_acks = 0;
        self.limited = 0;
        self.recovering = false;
        // The connection now sends everything again, so duplicate ACKs of `max` itself may be
        // echoes of these retransmissions. Only beyond `max` do duplicate ACKs mean a loss.
        self.recover = max + 1;
    }

    /// Starts a recovery: SACK shows a loss while `flight` bytes are outstanding. The connection
    /// spreads the reduction over the next round trip.
    pub(super) fn start_recovery(&mut self, flight: u64) {
        // Limited transmit sent the bytes beyond cwnd, and they do not count in ssthresh (RFC 5681
        // section 3.2, step 2).
        self.reduce(flight.min(u64::from(self.cwnd)));
        self.recovering = true;
        self.prr_delivered = 0;
        self.prr_out = 0;
        self.prr_flight = flight.max(1);
    }

    /// Sets the window in a recovery with SACK after `delivered` bytes arrived and while `pipe`
    /// bytes are left in the network: RFC 6937 section 3, with the slow start reduction bound.
    pub(super) fn on_delivered(&mut self, delivered: u64, pipe: u64) {
        self.prr_delivered += delivered;
        let (ssthresh, mss) = (u64::from(self.ssthresh), u64::from(self.mss));
        let mut send = if pipe > ssthresh {
            let due = u128::from(self.prr_delivered) * u128::from(ssthresh);
            let due = due.div_ceil(u128::from(self.prr_flight));
            u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(self.prr_out)
        } else {
            let limit = self.prr_delivered.saturating_sub(self.prr_out).max(delivered) + mss;
            (ssthresh - pipe).min(limit)
        };
        if self.prr_out == 0 {
            // The connection sends the first retransmission however much is outstanding.
            send = send.max(mss);
        }
        self.cwnd = clamp(pipe + send).clamp(self.mss, CWND_MAX);
    }

    /// Records that `len` bytes were sent again in a recovery with SACK.
    pub(super) fn on_retransmit(&mut self, len: u32) {
        self.prr_out += u64::from(len);
    }

    /// Ends a recovery with SACK.
    pub(super) fn end_recovery(&mut self) {
        self.recovering = false;
        self.cwnd = self.ssthresh.max(self.mss);
        self.acked = 0;
    }

    /// Reduces the window for a loss that was repaired before the connection noticed it.
    pub(super) fn reduce_once(&mut self) {
        self.reduce(u64::from(self.cwnd));
        self.cwnd = self.ssthresh.min(self.cwnd);
        self.acked = 0;
    }

    /// Undoes a reduction from `cwnd` and `ssthresh` that was a mistake.
    pub(super) fn undo(&mut self, cwnd: u32, ssthresh: u32) {
        self.recovering = false;
        self.cwnd = self.cwnd.max(cwnd);
        self.ssthresh = self.ssthresh.max(ssthresh);
        self.recover = StreamPos::START;
    }

    /// Restarts with the initial window: the connection sent nothing for so long that the window
    /// says nothing about the path any more (RFC 5681 4.1).
    pub(super) fn on_idle(&mut self) {
        self.cwnd = self.cwnd.min(initial_window(self.mss));
        self.acked = 0;
    }

    /// Sets ssthresh by equation (4) of RFC 5681.
    fn reduce(&mut self, flight: u64) {
        self.ssthresh = clamp(flight / 2).max(self.mss.saturating_mul(2));
    }

    fn grow(&mut self, by: u32) {
        self.cwnd = self.cwnd.saturating_add(by).min(CWND_MAX);
    }
}

/// Returns the initial window of RFC 6928: ten segments, or about 14,600 bytes where segments are
/// large.
fn initial_window(mss: u32) -> u32 {
    mss.saturating_mul(10).min(mss.saturating_mul(2).max(14_600))
}

fn clamp(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
