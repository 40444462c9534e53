//! The path MTU: probes for larger segments, and black holes (RFC 4821, RFC 8899).
//!
//! A router that cannot forward a segment reports so, and the stack lowers the segment size
//! ([`Connection::limit_emss`]). Two things are left to the connection, by what its segments tell:
//!
//! - **Black holes.** Where no report arrives, segments of full size vanish. After three expiries of the
//!   retransmission timer in a row the connection falls back to segments that nearly every path carries,
//!   and after three more to those that every path must carry. It does so as well when the peer is merely
//!   unreachable for a while; the search that follows makes good for that within a few round trips.
//! - **The search.** A probe is a segment of new data that is larger than the others. If the peer
//!   acknowledges it, all segments may be as large. If it alone is lost, the connection sends its bytes
//!   again in smaller segments, and the congestion window stays: loss by size is no congestion (RFC 4821
//!   section 7.6.2). Then a time passes in which congestion control would have met a loss of its own. Three
//!   lost probes of a size mean that the path does not carry it.
//!
//! ```text
//!        emss           (probe)            high        ceiling
//!   ------|----------------|-----------------|------------|---> bytes of a segment
//!    known to get   may get through    known not to,   the largest
//!      through                         beyond here    of both ends
//! ```
//!
//! The search ends when `emss` and `high` are close, and begins again after ten minutes: paths change. A
//! burst of new data starts a probe that is due, so the search needs no timer and rests with the
//! connection. Only RACK says which bytes are lost, so a peer without SACK gets no probes.
//!
//! A connection without a search has nothing of this but a flag. With
//! [`PathMtu::BlackHole`], a search begins where the size fell; with [`PathMtu::On`] each connection
//! begins with a small size and searches at once.

use super::config::{MIN_MSS, PathMtu};
use super::rack::Phase;
use super::ranges::Range;
use super::state::State;
use super::{Cold, Connection, NEVER, Pending};
use crate::{SendQueue, TxSegment};
use core::time::Duration;
use heddle_base::Instant;

/// MAX_PROBES of RFC 8899: lost probes of a size that mean that the path does not carry it.
const MAX_PROBES: u8 = 3;
/// PMTU_RAISE_TIMER of RFC 8899.
pub(crate) const RAISE_AFTER: Duration = Duration::from_secs(600);
/// The search ends when it could gain fewer bytes than this.
const CLOSE: u32 = 16;
/// The MSS to which a connection falls back at first, unless the version of IP has a larger one.
const BASE_MSS: u32 = 1024;
/// Expiries of the retransmission timer in a row that mean a black hole.
const BLACK_HOLE_AFTER: u32 = 3;
/// Segments of the usual size that follow a probe, or are outstanding before it: their
/// acknowledgments show whether the probe was lost.
const FOLLOWERS: u64 = 4;
/// MTUs that links and tunnels have, for a guess.
const COMMON_MTUS: [u32; 10] = [1280, 1400, 1420, 1450, 1476, 1480, 1492, 1500, 4352, 9000];

/// The search for the largest segment size. Sizes are in bytes of payload, like `emss`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// The size that the ends allow.
    ceiling: u32,
    /// No larger size is tried.
    high: u32,
    /// When the next probe may go.
    at: Instant,
    /// Lost probes of the current size.
    lost: u8,
    /// True if the next probe has the size `high` itself: it is likely to be right.
    try_high: bool,
    /// True if the size fell because of timeouts, and the peer has acknowledged nothing since.
    suspected: bool,
    /// When the connection found out something that the stack does not know yet; [`NEVER`] if it
    /// knows all.
    news: Instant,
    probe: Option<Probe>,
}

/// A probe whose bytes the peer has not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Probe {
    range: Range,
    /// The probe was lost, and its bytes are to be sent again.
    lost: bool,
    /// A router reported that the probe was too large.
    told: bool,
}

/// The findings of a connection about its path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathNews {
    /// The largest segment, options included; `None` if the path carries all that the ends allow.
    pub(crate) mss: Option<u32>,
    /// When the connection found out.
    pub(crate) found: Instant,
    /// When to look for a larger size.
    pub(crate) probe_at: Instant,
}

/// The outcome of an attempt to send a probe.
enum Attempt {
    Sent(TxSegment),
    /// The windows will have room soon: hold back other new data.
    Wait,
    /// Not now.
    No,
}

impl Search {
    fn new(ceiling: u32, high: u32, at: Instant) -> Search {
        Search {
            ceiling,
            high,
            at,
            lost: 0,
            try_high: false,
            suspected: false,
            news: NEVER,
            probe: None,
        }
    }

    fn is_over(&self, emss: u32) -> bool {
        self.high.saturating_sub(emss) < CLOSE
    }

    /// Tries again from the largest size on.
    fn restart(&mut self) {
        (self.high, self.try_high) = (self.ceiling, true);
        // The size was too large before, or a tunnel's: a single loss is enough.
        self.lost = MAX_PROBES - 1;
    }

    /// Goes on at `at`, or ends until the path may have changed.
    fn go_on(&mut self, now: Instant, at: Instant, emss: u32) {
        self.at = at;
        if self.is_over(emss) {
            self.at = if emss >= self.ceiling { NEVER } else { now + RAISE_AFTER };
        }
    }

    /// Returns the size of the next probe; `headers` are the bytes of a datagram beside the payload.
    fn next_size(&self, emss: u32, headers: u32) -> u32 {
        if self.try_high {
            return self.high;
        }
        let span = self.high - emss;
        let middle = emss + span.div_ceil(2);
        let common = COMMON_MTUS.into_iter().map(|m| m.saturating_sub(headers));
        common
            .filter(|&m| m > emss && m <= self.high && m.abs_diff(middle) <= span / 4)
            .min_by_key(|m| m.abs_diff(middle))
            .unwrap_or(middle)
    }
}

impl Cold {
    fn search_mut(&mut self) -> Option<&mut Search> {
        self.rare.as_mut()?.search.as_mut()
    }
}

impl Connection {
    fn search(&self) -> Option<&Search> {
        self.cold.rare.as_ref()?.search.as_ref()
    }

    /// Tells a new connection the MSS of its path, as others have found out, and when to look for a
    /// larger one. The caller calls this function before the connection sends data.
    pub(crate) fn know_path(&mut self, mss: u32, at: Instant) {
        self.rare().search = Some(Search::new(0, mss, at));
        if self.hot.state != State::SynSent {
            self.start_path();
        }
    }

    /// Chooses the first segment size, once the peer's MSS is known.
    pub(super) fn start_path(&mut self) {
        let (ceiling, options) = (self.hot.emss, u32::from(self.options_len()));
        let known = self.cold.rare.as_mut().and_then(|r| r.search.take()).map(|s| (s.high, s.at));
        let base = self.base_mss();
        let (mss, at) = match (known, self.cold.set.path_mtu) {
            (Some(known), _) => known,
            (None, PathMtu::On) => (base, Instant::ZERO),
            (None, _) => return,
        };
        let size = mss.max(MIN_MSS.into()) - options;
        if size >= ceiling {
            return;
        }
        self.hot.emss = size;
        self.hot.cc = self.hot.cc.restarted(size);
        let fresh = known.is_none();
        let search = Search { try_high: fresh, ..Search::new(ceiling, size, at) };
        let high = if fresh { ceiling } else { size };
        self.set_search(Search { high, ..search });
    }

    /// Begins a search, unless the connection may not probe.
    fn set_search(&mut self, search: Search) {
        let may = self.cold.set.path_mtu != PathMtu::Off && self.hot.sack_ok;
        self.rare().search = may.then_some(search);
        self.cold.searches = may;
        self.free_rare();
    }

    /// Returns the MSS to which a connection falls back at first.
    fn base_mss(&self) -> u32 {
        BASE_MSS.max(self.cold.set.default_peer_mss.into())
    }

    /// Returns the bytes of a datagram beside its payload. Peers of IPv6 have another default MSS.
    fn headers(&self) -> u32 {
        let ip = if u32::from(self.cold.set.default_peer_mss) > BASE_MSS { 60 } else { 40 };
        ip + u32::from(self.options_len())
    }

    /// Adapts to a path that carries at most `bytes` of payload in a segment (RFC 1191): lowers
    /// [`emss`](Connection::emss), never raises it, and sends the outstanding bytes again in pieces
    /// that fit. Absurdly small values count as 64 less options, like an MSS option. After a while
    /// the connection looks whether the path carries more, if it may.
    pub fn limit_emss(&mut self, now: Instant, bytes: u32) {
        let options = u32::from(self.options_len());
        let bytes = bytes.max(u32::from(MIN_MSS) - options);
        let before = self.hot.emss;
        if bytes >= before {
            return;
        }
        self.hot.emss = bytes;
        self.hot.cc.set_mss(bytes);
        if self.hot.state.sends() {
            let ceiling = self.search().map_or(before, |s| s.ceiling);
            self.rewind();
            self.hot.timed = super::Timed::NONE;
            self.set_search(Search::new(ceiling, bytes, now + RAISE_AFTER));
        }
    }

    /// Adapts to a link of ours that carries at most `bytes` of payload in a segment from now on, as
    /// [`limit_emss`](Connection::limit_emss) does, and looks for no larger size later.
    pub(crate) fn limit_link(&mut self, now: Instant, bytes: u32) {
        self.limit_emss(now, bytes);
        let emss = self.hot.emss;
        let Some(search) = self.cold.search_mut() else { return };
        // The search ends above the sizes that are known to get through.
        let most = bytes.max(emss);
        (search.ceiling, search.high) = (search.ceiling.min(most), search.high.min(most));
        if search.probe.is_some_and(|p| p.range.len() > u64::from(most)) {
            // The acknowledgment of a probe that was under way must not raise the size again.
            search.probe = None;
        }
    }

    /// Takes a router's report that a datagram was too large which had `sent` bytes of payload: a
    /// datagram may have `bytes`. Returns true if the datagram was the outstanding probe, and the
    /// segments in use are not too large.
    pub(crate) fn probe_too_large(&mut self, sent: u32, bytes: u32) -> bool {
        let emss = self.hot.emss;
        let Some(search) = self.cold.search_mut() else { return false };
        let Some(probe) = search.probe.as_mut().filter(|p| p.range.len() == u64::from(sent)) else {
            return false;
        };
        if bytes < emss || bytes >= sent || probe.told {
            return false;
        }
        probe.told = true;
        (search.high, search.try_high, search.lost) = (bytes, true, 0);
        true
    }

    /// Returns the bytes of payload of the outstanding probe, 0 if there is none.
    #[cfg(test)]
    pub(crate) fn probe_len(&self) -> u32 {
        let probe = self.search().and_then(|s| s.probe);
        probe.map_or(0, |p| u32::try_from(p.range.len()).unwrap_or(u32::MAX))
    }

    /// Returns the bytes of the largest segment that may be outstanding, probes included.
    pub(super) fn largest(&self) -> u32 {
        let search = if self.cold.searches { self.search() } else { None };
        search.map_or(self.hot.emss, |s| s.ceiling.max(self.hot.emss))
    }

    /// Returns true if a probe is outstanding, or its bytes are to be sent again.
    pub(super) fn has_probe(&self) -> bool {
        self.cold.searches && self.search().is_some_and(|s| s.probe.is_some())
    }

    /// Lets the next segment be a probe, if one is due. New data go out `now`.
    #[cold]
    pub(super) fn look_for_probe(&mut self, now: Instant) {
        let emss = self.hot.emss;
        let Some(search) = self.cold.search_mut().filter(|s| s.at <= now) else { return };
        if search.probe.is_some() {
            return;
        }
        if search.is_over(emss) {
            search.restart();
        }
        if search.is_over(emss) {
            search.at = NEVER;
        } else {
            self.hot.pending.set(Pending::MTU);
        }
    }

    /// Tries to send a probe that is due. Returns `None` if other data go first, and otherwise the
    /// probe, or the ACK that waits while new data do.
    #[cold]
    #[inline(never)]
    pub(super) fn probe_first<Q: SendQueue + ?Sized>(
        &mut self,
        now: Instant,
        q: &Q,
    ) -> Option<Option<TxSegment>> {
        match self.mtu_probe(now, q) {
            Attempt::Sent(tx) => Some(Some(tx)),
            Attempt::Wait => Some(self.hot.pending.any(Pending::ACK).then(|| self.bare_ack(now))),
            Attempt::No => None,
        }
    }

    /// Sends a probe, if nothing is out of the ordinary and there are enough data. The segments
    /// around it must show whether it was lost (RFC 4821 section 7.4).
    fn mtu_probe<Q: SendQueue + ?Sized>(&mut self, now: Instant, q: &Q) -> Attempt {
        let (headers, emss) = (self.headers(), self.hot.emss);
        let Some(size) = self.search().map(|s| s.next_size(emss, headers)) else {
            return self.give_up_probe();
        };
        let hot = &self.hot;
        let (una, from) = (hot.snd_una, hot.snd_next);
        let end = q.end().min(hot.snd_fin);
        let calm = matches!(hot.state, State::Established | State::CloseWait)
            && !hot.disorder
            && self.cold.rack.phase == Phase::Open
            && hot.cc.is_open()
            && from == hot.snd_max;
        let left = end.since(from).min(q.bytes_in_a_row(from));
        let room = self.right_edge().since(from);
        let (flight, wide, usual) = (from - una, u64::from(size), u64::from(emss));
        if !calm || size <= emss || left == 0 {
            return self.give_up_probe();
        }
        if left >= wide && room >= wide {
            let followed = left - wide >= FOLLOWERS * usual || flight >= FOLLOWERS * usual;
            if !followed {
                return self.give_up_probe();
            }
        } else {
            // A queue that is cut just in time ends where the windows do.
            let windows = u64::from(hot.cc.cwnd().min(hot.snd_wnd));
            let grows = flight > 0 && room < wide && windows >= 2 * wide;
            return if grows && left >= room { Attempt::Wait } else { self.give_up_probe() };
        }
        if self.is_paced() && !self.keep_pace(now, size) {
            return Attempt::Wait;
        }
        self.hot.pending.clear(Pending::MTU);
        if let Some(search) = self.cold.search_mut() {
            search.probe =
                Some(Probe { range: Range::new(from, from + wide), lost: false, told: false });
        }
        self.cold.counters.mtu_probes += 1;
        let mut tx = self.emit(now, from, size, end, false);
        if self.hot.ecn.is_on() {
            self.hot.ecn.mark(&mut tx);
        }
        self.hot.disorder = true;
        Attempt::Sent(tx)
    }

    fn give_up_probe(&mut self) -> Attempt {
        self.hot.pending.clear(Pending::MTU);
        Attempt::No
    }

    /// Forgets the outstanding probe, because all outstanding bytes are sent anew.
    pub(super) fn drop_probe(&mut self) {
        if let Some(search) = self.cold.search_mut() {
            search.probe = None;
        }
    }

    /// Takes the news of an acknowledgment that advanced `snd_una`: the peer may have the probe, or
    /// the first bytes after a black hole.
    #[cold]
    pub(super) fn check_probe(&mut self, now: Instant) {
        let una = self.hot.snd_una;
        let Some(search) = self.cold.search_mut() else { return };
        if core::mem::take(&mut search.suspected) {
            (search.news, search.at) = (now, now);
            self.hot.events.note();
        }
        let Some(probe) = search.probe.filter(|p| una >= p.range.end) else { return };
        search.probe = None;
        if probe.lost {
            return;
        }
        let size = u32::try_from(probe.range.len()).unwrap_or(u32::MAX);
        (search.lost, search.try_high) = (0, false);
        search.high = search.high.max(size);
        search.go_on(now, now, size);
        search.news = now;
        self.hot.events.note();
        self.cold.counters.mtu_raises += 1;
        self.hot.emss = size;
        self.hot.cc.raise_mss(size);
    }

    /// Returns true if nothing is lost but a probe: then the loss is no sign of congestion.
    pub(super) fn excuses_loss(&mut self, now: Instant) -> bool {
        if !self.has_probe() {
            return false;
        }
        let (una, emss) = (self.hot.snd_una, self.hot.emss);
        let Some(probe) = self.search().and_then(|s| s.probe) else { return false };
        if !self.cold.board.lost_only(una, probe.range) {
            return false;
        }
        if probe.lost {
            return true;
        }
        self.cold.counters.mtu_probes_lost += 1;
        let pause = self.between_losses();
        let Some(search) = self.cold.search_mut() else { return false };
        search.probe = Some(Probe { lost: true, ..probe });
        if !probe.told {
            search.lost += 1;
            if search.lost >= MAX_PROBES {
                let size = u32::try_from(probe.range.len()).unwrap_or(u32::MAX);
                (search.high, search.try_high, search.lost) = (size - 1, false, 0);
            }
        }
        search.go_on(now, now + pause, emss);
        search.news = now;
        self.hot.events.note();
        true
    }

    /// Returns the time between two losses that congestion control would cause: a round trip for
    /// each segment of the window (RFC 4821 section 4).
    fn between_losses(&self) -> Duration {
        let srtt = self.rto.srtt().unwrap_or(Duration::from_secs(1));
        let segments = self.hot.cc.cwnd() / self.hot.emss.max(1);
        srtt.saturating_mul(segments.max(1)).min(RAISE_AFTER)
    }

    /// Gives up the outstanding probe without a result, because other bytes are sent again: the size
    /// is tried once more. After a timeout, the next attempt takes longer (RFC 4821 sections 7.6.3
    /// and 7.6.4).
    #[cold]
    pub(super) fn forget_probe(&mut self, now: Instant, timeout: bool) {
        let pause = match timeout {
            true => self.between_losses().saturating_mul(5).min(RAISE_AFTER),
            false => self.rto.srtt().unwrap_or_default(),
        };
        let Some(search) = self.cold.search_mut() else { return };
        if search.probe.is_some_and(|p| !p.lost || timeout) {
            search.probe = None;
            search.at = now + pause;
        }
    }

    /// Handles another expiry of the retransmission timer in a row: perhaps a black hole, in which
    /// segments of this size vanish.
    pub(super) fn suspect_black_hole(&mut self, now: Instant) {
        let timeouts = self.hot.timeouts;
        if self.cold.set.path_mtu == PathMtu::Off || !timeouts.is_multiple_of(BLACK_HOLE_AFTER) {
            return;
        }
        let options = u32::from(self.options_len());
        let steps = [self.base_mss(), self.cold.set.default_peer_mss.into()];
        let steps = steps.map(|mss| mss.max(MIN_MSS.into()) - options);
        let outstanding = self.hot.snd_max - self.hot.snd_una;
        let before = self.hot.emss;
        // Bytes that would be lost as well in small segments say nothing.
        let smaller = steps.into_iter().find(|&s| s < before && outstanding > u64::from(s));
        let Some(size) = smaller else { return };
        self.cold.counters.mtu_black_holes += 1;
        self.hot.emss = size;
        self.hot.cc.set_mss(size);
        let ceiling = self.search().map_or(before, |s| s.ceiling);
        let mut search = Search::new(ceiling, ceiling, now);
        search.restart();
        search.suspected = true;
        self.set_search(search);
    }

    /// Returns what the connection has found out about the path since the last call.
    pub(crate) fn path_news(&mut self) -> Option<PathNews> {
        let options = u32::from(self.options_len());
        let emss = self.hot.emss;
        let search = self.cold.search_mut().filter(|s| s.news != NEVER)?;
        let whole = emss >= search.ceiling;
        let mss = (!whole).then_some(emss + options);
        let news = PathNews { mss, found: search.news, probe_at: search.at };
        search.news = NEVER;
        if whole && search.probe.is_none() {
            self.cold.searches = false;
            if let Some(rare) = &mut self.cold.rare {
                rare.search = None;
            }
            self.free_rare();
        }
        Some(news)
    }
}
