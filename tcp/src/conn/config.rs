//! The settings that a connection is created with.

use core::time::Duration;

use heddle_types::TcpTerms;
pub use heddle_types::{Congestion, Ecn, Pacing};

use super::user_timeout::UserTimeoutOption;
use crate::UserTimeout;

/// The largest IPv4 datagram less the fixed IPv4 and TCP headers.
const MAX_MSS: u16 = u16::MAX - 40;

/// Settings of a connection. The settings do not change during its lifetime, except where a method
/// says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnConfig {
    /// Our receive MSS in bytes, sent in the MSS option: the MTU less the fixed IP and TCP headers.
    /// This value also bounds the segments that we send (RFC 9293 section 3.7.1). A stack lowers it
    /// to the size that its MTU allows and never raises it, so the default is no limit: the largest
    /// MSS that IPv4 can carry.
    pub mss: u16,
    /// The send MSS to assume when the peer's SYN has no MSS option: 536 over IPv4, 1220 over IPv6.
    pub default_peer_mss: u16,
    /// Bytes of receive window to offer from the start on. See
    /// [`Connection::set_recv_window`](crate::Connection::set_recv_window).
    pub recv_window: u32,
    /// The most bytes to which the receive window grows, where the path needs more than
    /// `recv_window`; rounded down to 65,535 times a power of two. A value not above
    /// `recv_window` keeps the window as it is. A connection outside of a [`Stack`](crate::Stack),
    /// which has a budget for all windows, does not grow its window.
    pub recv_window_max: u32,
    /// True to offer (and accept) the timestamps option.
    pub timestamps: bool,
    /// True to offer (and accept) window scaling. Without scaling the window is at most 65,535
    /// bytes.
    pub window_scaling: bool,
    /// True to offer (and accept) selective acknowledgment (RFC 2018), and with it RACK-TLP (RFC
    /// 8985).
    pub sack: bool,
    /// The algorithm that sizes the congestion window.
    pub congestion: Congestion,
    /// Whether the connection uses Explicit Congestion Notification. DCTCP requests it unless it is
    /// off.
    pub ecn: Ecn,
    /// Whether the connection spreads new data over the round trip.
    pub pacing: Pacing,
    /// Whether the connection finds out the path MTU by probes.
    pub path_mtu: PathMtu,
    /// The longest time for which the connection holds an ACK back; values above 500 ms count as
    /// 500 ms. Zero: never hold an ACK back. Where two ACKs in a row have waited in vain for data to
    /// go with, the connection holds back none until data go out within this time again.
    pub delayed_ack: Duration,
    /// How long the peer may hold back the ACK of a lone segment, until the connection has learned
    /// the peer's delay: TLP.max_ack_delay of RFC 8985, on top of two round trips. At most 200 ms.
    /// After some dozens of lone segments the connection allows less to peers that answer faster,
    /// and it allows more to peers that take longer.
    pub peer_ack_delay: Duration,
    /// Lower bound of the retransmission timeout, at least 1 ms; towards a peer without SACK at
    /// least 200 ms.
    pub rto_min: Duration,
    /// Upper bound of the retransmission timeout and of the interval between window probes.
    pub rto_max: Duration,
    /// Retransmission timeout until a round trip has been measured.
    pub rto_initial: Duration,
    /// How long a connection may send nothing before it restarts with the initial window, if the
    /// retransmission timeout is shorter (RFC 5681 section 4.1). The RFC uses the timeout, which in
    /// the RFC is at least a second. A timeout of a few milliseconds is the time between two
    /// requests, and no reason to forget the path.
    pub idle_restart: Duration,
    /// How many times the connection sends a SYN again before it gives up; at most 255.
    pub syn_retries: u32,
    /// How many times the connection sends a SYN-ACK again because the timer expired; at most 255.
    /// Anyone can forge the SYN that a SYN-ACK answers, so a host that sent no SYN must not receive
    /// many. A client that lost a segment of its handshake sends its SYN again, and each of these
    /// SYNs draws an answer, so the retransmissions only shorten the client's wait.
    pub syn_ack_retries: u32,
    /// How long data may stay unacknowledged, or a closed window unanswered, before the connection
    /// gives up: R2 of RFC 9293 section 3.8.3.
    pub user_timeout: Duration,
    /// Whether the connection tells this timeout to the peer, and takes the peer's (RFC 5482).
    pub user_timeout_option: UserTimeoutOption,
    /// The longest timeout that a connection takes from its peer: U_LIMIT of RFC 5482 section 3.1.
    pub user_timeout_limit: Duration,
    /// How long the peer may keep its window shut while bytes wait for the window, although the
    /// peer answers the probes. Within this time the peer must take a segment's worth, or the
    /// connection ends with [`ConnEvent::WindowShut`](crate::ConnEvent::WindowShut) (RFC 9293
    /// section 3.8.6.1, RFC 6429).
    pub zero_window: Duration,
    /// How long a close that [`Connection::bound_close`](crate::Connection::bound_close) bounds may
    /// go without a byte moving either way.
    pub close_stall: Duration,
    /// How long the peer may send no bytes in FIN-WAIT-2 before the connection resets: longer than
    /// the interval between two of the peer's window probes. RFC 9293 sets no limit there; without
    /// a limit a peer that never sends its FIN holds a connection for ever.
    pub fin_wait_2: Duration,
    /// Time spent in TIME-WAIT: twice the maximum segment lifetime.
    pub time_wait: Duration,
    /// Probes of a silent peer; `None`, the default, sends none and waits for ever (RFC 1122
    /// section 4.2.3.6). [`Connection::set_keepalive`](crate::Connection::set_keepalive) changes
    /// this setting for a connection.
    pub keepalive: Option<Keepalive>,
    /// The most answers per second to segments that anyone may have sent: challenge ACKs (RFC 5961
    /// section 7), including the challenge ACKs for old timestamps, and SYN-ACKs for a repeated
    /// SYN.
    pub challenge_acks: u32,
}

/// Whether a connection finds out by probes how large its segments may be (RFC 4821, RFC 8899). Reports
/// of routers count in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMtu {
    /// Never.
    Off,
    /// After the segment size has fallen: because timeouts show that segments of full size vanish
    /// where no router says so, or long after a router's report.
    #[default]
    BlackHole,
    /// From the start on: the connection begins with small segments.
    On,
}

impl PathMtu {
    /// The names in settings.
    pub const NAMES: [(&str, PathMtu); 3] =
        [("off", PathMtu::Off), ("black-hole", PathMtu::BlackHole), ("on", PathMtu::On)];
}

/// Limits on how long a peer may keep a connection from making progress. The fields of
/// [`ConnConfig`] with the same names describe each limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// See [`ConnConfig::user_timeout`].
    pub user_timeout: Duration,
    /// See [`ConnConfig::zero_window`].
    pub zero_window: Duration,
    /// See [`ConnConfig::close_stall`].
    pub close_stall: Duration,
}

impl ConnConfig {
    /// Returns the limits on how long a peer may keep a connection from making progress.
    pub const fn patience(&self) -> Patience {
        let ConnConfig { user_timeout, zero_window, close_stall, .. } = *self;
        Patience { user_timeout, zero_window, close_stall }
    }

    /// Returns the same settings with a receive window of `bytes` that does not grow.
    #[must_use]
    pub const fn with_fixed_window(self, bytes: u32) -> ConnConfig {
        ConnConfig { recv_window: bytes, recv_window_max: 0, ..self }
    }

    /// Returns the same settings with those that `terms` names.
    #[must_use]
    pub const fn with_terms(self, terms: TcpTerms) -> ConnConfig {
        let congestion = match terms.congestion {
            Some(congestion) => congestion,
            None => self.congestion,
        };
        let ecn = match terms.ecn {
            Some(ecn) => ecn,
            None => self.ecn,
        };
        let pacing = match terms.pacing {
            Some(pacing) => pacing,
            None => self.pacing,
        };
        ConnConfig { congestion, ecn, pacing, ..self }
    }

    /// Returns the same settings with the limits of `p`.
    #[must_use]
    pub const fn with_patience(self, p: Patience) -> ConnConfig {
        let Patience { user_timeout, zero_window, close_stall } = p;
        ConnConfig { user_timeout, zero_window, close_stall, ..self }
    }
}

/// How a connection probes a silent peer, so that a peer that has vanished does not hold a
/// connection for ever.
///
/// A probe is a segment without data, numbered one before the next number (RFC 9293 section 3.8.4),
/// which any TCP answers with an ACK. Any acceptable segment counts as a sign of life. The
/// connection sends no probe while data or a FIN of ours is outstanding or waits for the peer's
/// window: the timers of retransmission and window probes then detect a dead peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence after which the first probe is sent.
    pub idle: Duration,
    /// Time between probes, and from the last probe to the end. At least 1 ms.
    pub interval: Duration,
    /// Probes that may go unanswered before the connection sends a reset and reports
    /// [`ConnEvent::TimedOut`](crate::ConnEvent::TimedOut). At least 1.
    pub count: u32,
}

impl Default for Keepalive {
    /// Two hours, the least that RFC 1122 section 4.2.3.6 has for a default; 9 probes, 75 s apart.
    fn default() -> Keepalive {
        Keepalive {
            idle: Duration::from_secs(2 * 3600),
            interval: Duration::from_secs(75),
            count: 9,
        }
    }
}

impl Default for ConnConfig {
    fn default() -> ConnConfig {
        ConnConfig {
            mss: MAX_MSS,
            default_peer_mss: 536,
            // Enough for a machine room: 40 Gb/s with round trips of 200 microseconds.
            recv_window: 1 << 20,
            // The most that a window field of 16 bits expresses in units of 512 bytes.
            recv_window_max: 0xffff << 9,
            timestamps: true,
            window_scaling: true,
            sack: true,
            congestion: Congestion::Cubic,
            ecn: Ecn::Accept,
            pacing: Pacing::Auto,
            path_mtu: PathMtu::BlackHole,
            // Round trips in a machine room take tens of microseconds. An ACK that we hold back
            // must not look like a loss to a peer with our own settings: our delay is half of the
            // least delay that a connection ever allows a peer, and well below the timeout.
            delayed_ack: Duration::from_micros(500),
            // Linux delays an ACK for at least 40 ms.
            peer_ack_delay: Duration::from_millis(80),
            rto_min: Duration::from_millis(2),
            rto_max: Duration::from_secs(60),
            rto_initial: Duration::from_secs(1),
            idle_restart: Duration::from_millis(200),
            // 1 + 2 + 4 + 8 + 16 + 32 + 60 + 60 = 183 s, the three minutes of RFC 9293 3.8.3.
            syn_retries: 7,
            // Retransmissions at 1, 3 and 7 s; the connection gives up at 15 s. Where one frame in
            // ten is lost, all four exchanges of SYN-ACK and ACK fail once in 800 times. The
            // client's own SYNs, at the same times, add to these exchanges.
            syn_ack_retries: 3,
            user_timeout: Duration::from_secs(120),
            user_timeout_option: UserTimeoutOption::Off,
            // Time for a switch to restart.
            user_timeout_limit: Duration::from_secs(600),
            // Time for an operator to look at a program that was stopped, and to let it continue.
            zero_window: Duration::from_secs(600),
            close_stall: Duration::from_secs(20),
            fin_wait_2: Duration::from_secs(150),
            time_wait: Duration::from_secs(60),
            keepalive: None,
            challenge_acks: 10,
        }
    }
}

/// The settings that a connection still needs after it is open, in less space: the idle time in
/// microseconds, long times in milliseconds, rounded up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) default_peer_mss: u16,
    pub(super) timestamps: bool,
    pub(super) window_scaling: bool,
    pub(super) sack: bool,
    pub(super) ecn: Ecn,
    pub(super) pacing: Pacing,
    pub(super) path_mtu: PathMtu,
    /// How many times the connection sends its SYN again, or its SYN-ACK.
    pub(super) syn_retries: u8,
    /// 0: the connection sends no keepalives.
    pub(super) keepalive_count: u8,
    pub(super) challenge_acks: u16,
    pub(super) user_timeout_option: UserTimeoutOption,
    /// The timeout that the connection has taken from the peer.
    pub(super) advice: Option<UserTimeout>,
    idle_restart_us: u32,
    user_timeout_ms: u32,
    user_timeout_limit_ms: u32,
    zero_window_ms: u32,
    close_stall_ms: u32,
    fin_wait_2_ms: u32,
    time_wait_ms: u32,
    keepalive_idle_ms: u32,
    keepalive_interval_ms: u32,
}

/// The smallest MSS that a connection accepts: tiny segments would only make work.
pub(super) const MIN_MSS: u16 = 64;

impl Settings {
    pub(super) fn new(cfg: &ConnConfig, active: bool) -> Settings {
        let syn_retries = if active { cfg.syn_retries } else { cfg.syn_ack_retries };
        let mut s = Settings {
            default_peer_mss: cfg.default_peer_mss,
            timestamps: cfg.timestamps,
            window_scaling: cfg.window_scaling,
            sack: cfg.sack,
            pacing: cfg.pacing,
            path_mtu: cfg.path_mtu,
            ecn: match (cfg.congestion, cfg.ecn) {
                (Congestion::Dctcp, Ecn::Accept) => Ecn::Request,
                (_, ecn) => ecn,
            },
            syn_retries: u8::try_from(syn_retries).unwrap_or(u8::MAX),
            challenge_acks: u16::try_from(cfg.challenge_acks).unwrap_or(u16::MAX),
            user_timeout_option: cfg.user_timeout_option,
            advice: None,
            idle_restart_us: micros(cfg.idle_restart),
            user_timeout_ms: 0,
            user_timeout_limit_ms: millis(cfg.user_timeout_limit),
            zero_window_ms: 0,
            close_stall_ms: 0,
            fin_wait_2_ms: millis(cfg.fin_wait_2),
            time_wait_ms: millis(cfg.time_wait),
            keepalive_idle_ms: 0,
            keepalive_interval_ms: 0,
            keepalive_count: 0,
        };
        s.set_keepalive(cfg.keepalive);
        s.set_patience(cfg.patience());
        s
    }

    pub(super) fn set_patience(&mut self, p: Patience) {
        self.user_timeout_ms = millis(p.user_timeout);
        self.zero_window_ms = millis(p.zero_window);
        self.close_stall_ms = millis(p.close_stall);
    }

    pub(super) fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        let Some(k) = keepalive else {
            self.keepalive_count = 0;
            return;
        };
        self.keepalive_idle_ms = millis(k.idle.max(MIN_KEEPALIVE_INTERVAL));
        self.keepalive_interval_ms = millis(k.interval.max(MIN_KEEPALIVE_INTERVAL));
        self.keepalive_count = u8::try_from(k.count.max(1)).unwrap_or(u8::MAX);
    }

    pub(super) fn idle_restart(&self) -> Duration {
        Duration::from_micros(self.idle_restart_us.into())
    }

    /// Returns the timeout that the owner has set.
    pub(super) fn own_user_timeout(&self) -> Duration {
        Duration::from_millis(self.user_timeout_ms.into())
    }

    /// Returns the timeout that counts while the retransmission timeout is `rto` (RFC 5482 section 3.1).
    pub(super) fn user_timeout(&self, rto: Duration) -> Duration {
        let own = self.own_user_timeout();
        let Some(advice) = self.advice else { return own };
        let limit = Duration::from_millis(self.user_timeout_limit_ms.into());
        let longer = own.max(advice.time()).max(LEAST_ADVICE).max(rto + MILLISECOND);
        longer.min(limit)
    }

    pub(super) fn zero_window(&self) -> Duration {
        Duration::from_millis(self.zero_window_ms.into())
    }

    pub(super) fn close_stall(&self) -> Duration {
        Duration::from_millis(self.close_stall_ms.into())
    }

    pub(super) fn fin_wait_2(&self) -> Duration {
        Duration::from_millis(self.fin_wait_2_ms.into())
    }

    pub(super) fn time_wait(&self) -> Duration {
        Duration::from_millis(self.time_wait_ms.into())
    }

    /// Returns the silence after which the first keepalive is sent. An end that has told or taken a user
    /// timeout keeps a connection for longer than that (RFC 5482 section 4.2).
    pub(super) fn keepalive_idle(&self) -> Duration {
        let idle = Duration::from_millis(self.keepalive_idle_ms.into());
        if self.user_timeout_option == UserTimeoutOption::Off {
            return idle;
        }
        idle.max(self.user_timeout(Duration::ZERO) + MILLISECOND)
    }

    pub(super) fn keepalive_interval(&self) -> Duration {
        Duration::from_millis(self.keepalive_interval_ms.into())
    }
}

pub(super) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn micros(d: Duration) -> u32 {
    units(d, 1_000_000)
}

fn millis(d: Duration) -> u32 {
    units(d, 1000)
}

/// Converts a time to a unit of which a second has `a_second`, rounded up. The function avoids the
/// 128 bits that the nanoseconds of `d` may need, because each new connection calls it several
/// times.
#[inline]
fn units(d: Duration, a_second: u64) -> u32 {
    let part = u64::from(d.subsec_nanos()).div_ceil(1_000_000_000 / a_second);
    let all = d.as_secs().saturating_mul(a_second).saturating_add(part);
    u32::try_from(all).unwrap_or(u32::MAX)
}

/// The longest that we hold back an ACK (RFC 9293 section 3.8.6.3). Must stay below a second.
pub(super) const MAX_DELAYED_ACK: Duration = Duration::from_millis(500);
const MIN_KEEPALIVE_INTERVAL: Duration = MILLISECOND;
const MILLISECOND: Duration = Duration::from_millis(1);
/// The shortest timeout that a connection takes from its peer: R2 of RFC 9293 section 3.8.3, as RFC 5482
/// section 3.1 recommends.
const LEAST_ADVICE: Duration = Duration::from_secs(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_durations_are_rounded_up_and_capped() {
        let ns = Duration::from_nanos;
        for (nanos, ms, us) in [
            (0, 0, 0),
            (1, 1, 1),
            (1000, 1, 1),
            (1001, 1, 2),
            (1_000_000, 1, 1000),
            (1_000_001, 2, 1001),
            (999_999_999, 1000, 1_000_000),
            (2_000_000_001, 2001, 2_000_001),
        ] {
            assert_eq!((millis(ns(nanos)), micros(ns(nanos))), (ms, us), "{nanos}");
        }
        let most = Duration::from_millis(u32::MAX.into());
        assert_eq!((millis(most), micros(most)), (u32::MAX, u32::MAX));
        assert_eq!((millis(most + ns(1)), millis(Duration::MAX)), (u32::MAX, u32::MAX));
    }
}
