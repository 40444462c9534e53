//! How connections begin that peers open: SYNs, half-open connections, cookies, and the segments that
//! complete handshakes (RFC 9293 section 3.10.7.2 and, for SYN-RECEIVED, 3.10.7.4).
//!
//! A SYN costs an entry among the half-open connections (`half_open`), and where there is no room,
//! nothing (`cookie`). The connection begins with the segment that completes the handshake, whatever
//! this segment brings besides: data, a FIN, or the second segment of data because the first was
//! lost.
//!
//! A SYN proves nothing. So its answer, and each repetition, is charged to the address that it goes
//! to; a handshake that completes gives the charge of the first answer back. The answer goes where
//! the table of neighbors says, and for an unknown host of the link to the station that the SYN came
//! from; see `open`.

use heddle_base::{Instant, StreamPos};
use heddle_types::TcpTerms;

use super::Stack;
use super::addressing::Hop;
use super::config::SynCookies;
use super::control::Control;
use super::cookie::{Kept, stamp};
use super::counters::DropReason;
use super::flow::{FlowKey, Hashed};
use super::frame::{FrameOutcome, TxBody, TxFrame};
use super::half_open::{HalfOpen, Stage};
use super::ids::Marks;
use super::input::Arrival;
use super::limit::Rate;
use super::listen::Found;
use super::neighbor::LinkAddr;
use super::open::Opening;
use super::slab::NextHop;
use super::template::{Common, HeaderTemplate};
use crate::conn::{Answered, SynAcks, Wish, first_window, syn_ack};
use crate::wire::MacAddr;
use crate::{Connection, Flags, SackBlocks, Segment, SendQueue, SeqNumber, State, TxSegment};

/// Half-open connections whose time is over that a turn handles.
pub(super) const HALF_OPENS_A_TURN: u32 = 32;

/// The way of an answer to a peer.
enum Way {
    /// The station is known.
    Station(MacAddr),
    /// Through this neighbor, whose address is not known or contested. The answer counts as its
    /// user.
    Waits(u32),
}

/// A handshake that a segment completes.
struct Begun {
    listener: u32,
    kept: Kept,
    answered: Answered,
    tcp: TcpTerms,
}

impl<S: SendQueue + Default> Stack<S> {
    /// Takes a SYN at the listener `found`. If it takes the place of a connection in TIME-WAIT, our
    /// sequence numbers begin beyond `beyond`.
    pub(super) fn answer_syn(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        found: &Found,
        beyond: Option<SeqNumber>,
    ) -> Result<(), DropReason> {
        let (src, vid) = (arrival.src, arrival.ethernet.vid);
        let Found { id, port, tcp, backlog, half_open, oldest } = *found;
        if backlog == 0 {
            return Err(DropReason::ListenOverflow);
        }
        let hop = self.cfg.net.route_on(vid, src);
        let site = match hop {
            // A host of the link counts by its address.
            Some(hop) if hop.next == src => LinkAddr::new(vid, src),
            _ => self.site_of(&arrival.flow),
        };
        let free = self.free_conns();
        let crowded = half_open >= backlog;
        let oldest = oldest.filter(|_| crowded);
        let (mut cookie, may) = match (beyond, self.cfg.syn_cookies) {
            (Some(_), _) | (None, SynCookies::Off) => (false, false),
            (None, SynCookies::Auto) => (crowded || self.half_opens.is_full(), true),
            (None, SynCookies::Always) => (true, true),
        };
        if !self.peers.has_room(site, free) {
            self.refuse(now, arrival);
            return Err(DropReason::PeerConnsLimited);
        }
        if !cookie && !self.peers.may_open(id, backlog, site) {
            if !may {
                return Err(DropReason::PeerHalfOpenLimited);
            }
            cookie = true;
        }
        if free == 0 {
            return Err(DropReason::ConnsFull);
        }
        if cookie {
            return self.answer_with_cookie(now, arrival, hop, (site, tcp));
        }
        if hop.is_none() {
            return Err(DropReason::SynNoNeighbor);
        }
        if !self.may_answer_first(now, site) {
            return Err(DropReason::SynAcksLimited);
        }
        let full = self.half_opens.is_full().then(|| self.half_opens.oldest()).flatten();
        if let Some(oldest) = oldest.or(full)
            && let Some(h) = self.drop_half_open(oldest)
        {
            self.count_gone(&h);
            self.counters.half_open_evicted += 1;
        }
        let iss = self.first_number(now, arrival.hashed(), beyond);
        let syn = &arrival.tcp.segment;
        let entry = HalfOpen::new(arrival.hashed(), syn, iss, (id, tcp), arrival.ethernet.src);
        let index = self.half_opens.insert(entry).ok_or(DropReason::ListenOverflow)?;
        self.counters.half_opened += 1;
        self.peers.opened(id, site);
        if let Some(l) = self.listeners.by_id(id, port) {
            l.half_open.push(&mut self.half_opens.table, index);
        }
        Ok(())
    }

    /// Answers a SYN of which the stack keeps nothing.
    fn answer_with_cookie(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        hop: Option<Hop>,
        (site, tcp): (LinkAddr, TcpTerms),
    ) -> Result<(), DropReason> {
        let (flow, syn) = (&arrival.flow, &arrival.tcp.segment);
        let hop = hop.ok_or(DropReason::SynNoNeighbor)?;
        let direct = (hop.next == arrival.src).then_some(arrival.ethernet.src);
        let way = self.way_by(now, hop, direct);
        let station = self.station_of(way).ok_or(DropReason::SynNoNeighbor)?;
        if !self.may_answer_first(now, site) {
            return Err(DropReason::SynAcksLimited);
        }
        let cfg = &self.cfg.settings(flow, tcp);
        let Kept { syn: kept, iss } = self.cookies.make(now, cfg, arrival.hashed(), syn);
        let marks = self.ids.marks(arrival.hashed());
        let clock = stamp(cfg, syn, clock_of(now, marks, &kept));
        let seg = syn_ack(cfg, &kept, iss, clock, SynAcks::default());
        if self.push_handshake(flow, marks, station, &seg) {
            self.counters.syn_cookies_sent += 1;
            self.counters.tx_syn_acks += 1;
        }
        Ok(())
    }

    /// Returns true if a first SYN-ACK may go to `site`, and charges it. Inside the host no address is
    /// forged, and thousands of connections may begin in one turn.
    fn may_answer_first(&mut self, now: Instant, site: LinkAddr) -> bool {
        self.first_answers.allow(now, site) || self.cfg.net.is_inside()
    }

    /// Takes a segment with an ACK and without SYN, for a listener, of no connection: perhaps it
    /// completes the handshake of a cookie. Returns `None` when the caller has to refuse it.
    pub(super) fn take_cookie(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        &Found { id: listener, tcp, .. }: &Found,
        out: &mut FrameOutcome,
    ) -> Option<Result<(), DropReason>> {
        if !self.cookies.are_out(now) {
            return None;
        }
        let seg = &arrival.tcp.segment;
        let cfg = self.cfg.settings(&arrival.flow, tcp);
        let Some(kept) = self.cookies.check(now, &cfg, arrival.hashed(), seg) else {
            // Where the ACK of a handshake and the first data were lost, later data come alone. They
            // prove nothing, but the first data, sent again, will.
            if seg.len > 0 {
                return Some(Err(DropReason::SynCookiesFailed));
            }
            self.counters.syn_cookies_failed += 1;
            return None;
        };
        let site = self.site_of(&arrival.flow);
        if !self.peers.has_room(site, self.free_conns()) {
            self.refuse(now, arrival);
            return Some(Err(DropReason::PeerConnsLimited));
        }
        self.peers.opened(listener, site);
        self.peers.established(listener, site);
        let answered = Answered { at: None, once: false, retries: 0, bare: false };
        let taken = self.complete(now, arrival, &Begun { listener, kept, answered, tcp }, out);
        self.counters.syn_cookies_accepted += u64::from(taken.is_ok());
        Some(taken)
    }

    /// Takes a segment for the half-open connection `index`.
    #[inline(never)]
    pub(super) fn take_half_open(
        &mut self,
        now: Instant,
        index: u32,
        arrival: &Arrival,
        out: &mut FrameOutcome,
    ) -> Result<(), DropReason> {
        let seg = &arrival.tcp.segment;
        // Neither timestamps nor the window depend on the choices of a listener, or on the version
        // of IP.
        let timestamps = self.cfg.conn.timestamps;
        let window = i32::from(first_window(&self.cfg.conn));
        let Some(h) = self.half_opens.get_mut(index) else { return Ok(()) };
        self.counters.rx_segments += 1;
        let at = seg.seq.distance(h.syn.seq.advance(1));
        if seg.flags.has(Flags::RST) {
            // Only the exact number counts (RFC 5961 section 3.2). A host that has sent no SYN
            // answers our SYN-ACK with it.
            match at {
                0 => self.fail_half_open(index),
                _ if at > 0 && at < window => self.challenge_half_open(now, index),
                _ => return Err(DropReason::RxRstUnknown),
            }
            return Ok(());
        }
        let acks = seg.flags.has(Flags::ACK) && seg.ack == h.iss.advance(1);
        if seg.flags.has(Flags::SYN) {
            match seg.flags.has(Flags::ACK) {
                true if acks && at == -1 => {
                    return self.complete_half_open(now, index, arrival, out);
                }
                false if at == -1 => self.repeat_syn_ack(now, index, seg),
                // Back to LISTEN, which means to forget the attempt.
                _ if at >= 0 && at < window => self.fail_half_open(index),
                _ => self.challenge_half_open(now, index),
            }
            return Ok(());
        }
        if timestamps && let Some(first) = h.syn.timestamps {
            match seg.timestamps {
                None => return Err(DropReason::RxBadFlags),
                Some(ts) if ts.val.wrapping_sub(first.val).cast_signed() < 0 => {
                    self.challenge_half_open(now, index);
                    return Ok(());
                }
                Some(_) => {}
            }
        }
        let len = i64::from(seg.len) + i64::from(seg.flags.has(Flags::FIN));
        let (at, window) = (i64::from(at), i64::from(window));
        let touches = match len {
            0 => at >= 0 && at <= window,
            _ => at == 0 || at < window && at + len > 0,
        };
        if !touches {
            self.challenge_half_open(now, index);
            return Ok(());
        }
        if !seg.flags.has(Flags::ACK) {
            return Err(DropReason::RxBadFlags);
        }
        if !acks {
            self.refuse(now, arrival);
            return Err(DropReason::RxNoConnection);
        }
        self.complete_half_open(now, index, arrival, out)
    }

    /// Returns true if a half-open connection has these addresses and ports.
    pub(super) fn has_half_open(&self, flow: Hashed<'_>) -> bool {
        self.half_opens.len() > 0 && self.half_opens.find(flow).is_some()
    }

    fn complete_half_open(
        &mut self,
        now: Instant,
        index: u32,
        arrival: &Arrival,
        out: &mut FrameOutcome,
    ) -> Result<(), DropReason> {
        let Some(h) = self.drop_half_open(index) else { return Ok(()) };
        let HalfOpen { syn, iss, listener, tcp, retries, repeated, bare, sent_at, .. } = h;
        self.peers.established(listener, self.site_of(&arrival.flow));
        let once = retries == 0 && !repeated;
        let bare = bare || Wish::of(&syn) == Wish::Accurate && Wish::is_bare(retries);
        let answered = Answered { at: sent_at, once, retries, bare };
        let begun = Begun { listener, kept: Kept { syn, iss }, answered, tcp };
        self.complete(now, arrival, &begun, out)
    }

    /// Makes the connection of a completed handshake, which its peer's count includes, and lets it
    /// take the segment that completed the handshake.
    fn complete(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        begun: &Begun,
        out: &mut FrameOutcome,
    ) -> Result<(), DropReason> {
        let Begun { listener, kept: Kept { ref syn, iss }, answered, tcp } = *begun;
        let (src, flow) = (arrival.src, arrival.flow);
        let site = self.site_of(&flow);
        if self.conns.is_full() && !self.make_room() {
            self.peers.gone(listener, site, false);
            self.refuse(now, arrival);
            return Err(DropReason::ConnsFull);
        }
        let hop = self.cfg.net.route_on(flow.vid(), src);
        let next_hop = match hop {
            None => None,
            Some(hop) if hop.next == src && !self.cfg.net.is_inside() => {
                let known = self
                    .neighbors
                    .acquire_known(LinkAddr::new(flow.vid(), src))
                    .map(NextHop::Neighbor);
                known.or(Some(NextHop::Station(arrival.ethernet.src)))
            }
            Some(hop) => self.next_hop(now, hop),
        };
        let Some(next_hop) = next_hop else {
            self.peers.gone(listener, site, false);
            return Err(DropReason::SynNoNeighbor);
        };
        self.first_answers.give_back(site);
        let cfg = self.cfg.settings(&flow, tcp);
        let flow = arrival.hashed();
        let marks = self.ids.marks(flow);
        let conn = Connection::accept_answered(&cfg, now, iss, marks.ts_offset, syn, answered);
        let opening = Opening { flow, marks, next_hop, iss, listener: Some(listener) };
        let Some(id) = self.open(now, conn, opening) else {
            self.peers.gone(listener, site, false);
            return Err(DropReason::ConnsFull);
        };
        let Some(e) = self.conns.get_mut(id.slot()) else { return Ok(()) };
        let seg = &arrival.tcp.segment;
        let outcome = match &arrival.options {
            None => e.conn.handle_segment(now, seg),
            Some(options) => e.conn.handle_with_options(now, seg, None, options),
        };
        debug_assert_ne!(e.conn.state(), State::SynReceived, "the segment completes the handshake");
        self.after_segment(now, id.slot(), outcome, arrival.payload_at, out);
        Ok(())
    }

    /// Answers a repeated SYN. The timer keeps running: it alone decides when the stack gives up.
    fn repeat_syn_ack(&mut self, now: Instant, index: u32, syn: &Segment) {
        let Some(h) = self.half_opens.get(index) else { return };
        let ecn = self.cfg.settings(&h.flow, h.tcp).ecn;
        let (first, wish) = (Wish::of(&h.syn).granted(ecn), Wish::of(syn).granted(ecn));
        let Some(h) = self.half_opens.get_mut(index) else { return };
        h.syn.ecn = syn.ecn;
        match (first, wish) {
            // A peer that no longer asks for ECN does not use it (RFC 3168 section 6.1.1.1).
            (Wish::Classic, Wish::None) => {
                h.syn.flags = Flags(h.syn.flags.0 & !Flags::ACE.0);
            }
            // The peer may use accurate ECN or none, depending on the answer that reaches it (RFC 9768
            // section 3.1.5).
            (Wish::Accurate, Wish::None) => h.bare = true,
            // Both ends could come to mean different feedback.
            (Wish::Accurate, Wish::Classic) | (Wish::Classic, Wish::Accurate) => {
                return self.end_half_open(index);
            }
            _ => {}
        }
        // The answer to an earlier SYN has yet to go.
        if !matches!(h.stage(), Stage::Sent(_)) || !self.may_answer(now, index) {
            return;
        }
        let Some(h) = self.half_opens.get_mut(index) else { return };
        (h.repeated, h.sent_at) = (true, Some(now));
        let h = h.clone();
        let marks = self.ids.marks(h.hashed());
        let seg = self.syn_ack_of(now, &h, marks);
        if let Some(station) = self.station_now(now, &h.flow, h.station)
            && self.push_handshake(&h.flow, marks, station, &seg)
        {
            self.counters.tx_syn_acks += 1;
        }
    }

    /// Asks the peer of a half-open connection to prove itself (RFC 5961 section 7).
    fn challenge_half_open(&mut self, now: Instant, index: u32) {
        if !self.may_answer(now, index) {
            return;
        }
        let Some(h) = self.half_opens.get(index).cloned() else { return };
        let marks = self.ids.marks(h.hashed());
        let seg = self.after_syn_ack(now, &h, marks, Flags::ACK);
        if let Some(station) = self.station_now(now, &h.flow, h.station) {
            self.push_handshake(&h.flow, marks, station, &seg);
        }
    }

    /// Returns true if the limit of a half-open connection allows an answer to a segment that anyone
    /// may have sent, and charges the answer.
    fn may_answer(&mut self, now: Instant, index: u32) -> bool {
        let most = self.cfg.conn.challenge_acks;
        let Some(h) = self.half_opens.get_mut(index) else { return false };
        most > 0 && Rate::per_second(most, most).allow(&mut h.answers, now)
    }

    /// Takes a half-open connection out of all lists, but not out of its peer's counts.
    fn drop_half_open(&mut self, index: u32) -> Option<HalfOpen> {
        self.detach_half_open(index);
        self.half_opens.remove(index)
    }

    /// Takes a half-open connection out of the lists of its next hop and its listener.
    fn detach_half_open(&mut self, index: u32) {
        let Some(h) = self.half_opens.get(index) else { return };
        let (stage, id, port) = (h.stage(), h.listener, h.flow.local().port());
        let table = &mut self.half_opens.table;
        if let Stage::Waiting(n) = stage {
            self.neighbors.stop_half_open(n, table, index);
            self.neighbors.release(n);
        }
        // A listener that has ended has no list any more.
        if let Some(l) = self.listeners.by_id(id, port) {
            l.half_open.remove(table, index);
        }
    }

    fn count_gone(&mut self, h: &HalfOpen) {
        self.peers.gone(h.listener, self.site_of(&h.flow), true);
    }

    /// Removes a half-open connection silently: its handshake has failed.
    fn fail_half_open(&mut self, index: u32) {
        if let Some(h) = self.drop_half_open(index) {
            self.count_gone(&h);
            self.counters.half_open_failed += 1;
        }
    }

    /// Ends a half-open connection, because nothing accepts it any more, and tells its peer if the
    /// peer has heard of it.
    pub(super) fn end_half_open(&mut self, index: u32) {
        let Some(h) = self.half_opens.get(index).cloned() else { return };
        if h.sent_at.is_none() {
            return self.fail_half_open(index);
        }
        self.detach_half_open(index);
        self.half_opens.end(index);
        self.count_gone(&h);
        self.counters.half_open_failed += 1;
    }

    /// Ends the half-open connections of addresses that are ours no more, counts all others for
    /// their peers, and lets those that wait look for their next hop again.
    pub(super) fn readdress_half_opens(&mut self) {
        let all: Vec<_> = self.half_opens.iter().map(|(i, h)| (i, h.flow, h.stage())).collect();
        for (index, flow, stage) in all {
            let Some(h) = self.half_opens.get(index) else { continue };
            self.peers.opened(h.listener, self.site_of(&flow));
            if !self.cfg.net.on(flow.vid()).is_ours(flow.local().ip()) {
                self.end_half_open(index);
            } else if let Stage::Waiting(n) = stage {
                self.neighbors.stop_half_open(n, &mut self.half_opens.table, index);
                self.neighbors.release(n);
                self.half_opens.resume(index);
            }
        }
    }

    /// Handles half-open connections whose time is over: a turn's worth.
    pub(super) fn handle_half_open_timeouts(&mut self, now: Instant) {
        for _ in 0..HALF_OPENS_A_TURN {
            let Some((index, more)) = self.half_opens.expired(now) else { return };
            if !more {
                self.fail_half_open(index);
                continue;
            }
            let site = self.half_opens.get(index).map(|h| self.site_of(&h.flow));
            if site.is_some_and(|site| !self.syn_acks.allow(now, site)) {
                // As if the network had lost it.
                self.half_opens.sent(now, index);
                self.counters.syn_acks_limited += 1;
            }
        }
    }

    /// Fills `frame` with the next frame of a half-open connection. Returns false when there is none.
    pub(super) fn transmit_half_open(&mut self, now: Instant, frame: &mut TxFrame) -> bool {
        while let Some(index) = self.half_opens.first_due() {
            let Some(h) = self.half_opens.get(index).cloned() else { return false };
            let way = self.way_to(now, &h.flow, h.station);
            let ending = h.stage() == Stage::Ending;
            let station = match way {
                Some(Way::Station(station)) => station,
                Some(Way::Waits(n)) if !ending => {
                    self.half_opens.wait(index, n);
                    self.neighbors.wait_half_open(n, &mut self.half_opens.table, index);
                    continue;
                }
                None if !ending => {
                    self.fail_half_open(index);
                    continue;
                }
                Some(Way::Waits(n)) => {
                    self.neighbors.release(n);
                    h.station
                }
                // The route is gone with our address.
                None => h.station,
            };
            let marks = self.ids.marks(h.hashed());
            let seg = if ending {
                self.half_opens.remove(index);
                self.after_syn_ack(now, &h, marks, Flags::RST.with(Flags::ACK))
            } else {
                self.half_opens.sent(now, index);
                if let Some(h) = self.half_opens.get_mut(index) {
                    h.sent_at = Some(now);
                }
                self.counters.tx_syn_acks += 1;
                self.counters.tx_segments += 1;
                self.syn_ack_of(now, &h, marks)
            };
            let template = self.template_of(&h.flow, marks);
            let none = SackBlocks::default();
            frame.body = TxBody::None;
            template.fill(station, &seg, &none, self.offloads, frame);
            return true;
        }
        false
    }

    /// Makes the half-open connections that waited for neighbor `neighbor` due.
    pub(super) fn resume_half_opens(&mut self, neighbor: u32) {
        while let Some(index) = self.neighbors.next_half_open(neighbor, &mut self.half_opens.table)
        {
            self.half_opens.resume(index);
            self.neighbors.release(neighbor);
        }
    }

    /// Gives up the half-open connections that waited for neighbor `neighbor`, which does not answer.
    pub(super) fn fail_half_opens(&mut self, neighbor: u32) {
        while let Some(index) = self.neighbors.next_half_open(neighbor, &mut self.half_opens.table)
        {
            self.fail_half_open(index);
        }
    }

    fn syn_ack_of(&self, now: Instant, h: &HalfOpen, marks: Marks) -> TxSegment {
        let cfg = self.cfg.settings(&h.flow, h.tcp);
        let before = SynAcks { expired: h.retries, repeated: h.repeated };
        syn_ack(&cfg, &h.syn, h.iss, clock_of(now, marks, &h.syn), before)
    }

    /// Returns a segment with `flags` that comes after the SYN-ACK.
    fn after_syn_ack(&self, now: Instant, h: &HalfOpen, marks: Marks, flags: Flags) -> TxSegment {
        let answer = self.syn_ack_of(now, h, marks);
        let window = self.cfg.conn.recv_window >> answer.window_scale.unwrap_or(0);
        let wish = Wish::of(&h.syn).granted(self.cfg.settings(&h.flow, h.tcp).ecn);
        TxSegment {
            seq: answer.seq.advance(1),
            ack: answer.ack,
            flags: flags.with(wish.first_bits()),
            window: u16::try_from(window).unwrap_or(u16::MAX),
            timestamps: answer.timestamps,
            pos: StreamPos::START,
            ..TxSegment::default()
        }
    }

    pub(super) fn template_of(&self, flow: &FlowKey, marks: Marks) -> HeaderTemplate {
        HeaderTemplate::new(Common::of(&self.cfg, flow.vid()), flow, marks.label)
    }

    /// Queues a segment of a handshake. Returns false when too many wait.
    fn push_handshake(
        &mut self,
        flow: &FlowKey,
        marks: Marks,
        to: MacAddr,
        seg: &TxSegment,
    ) -> bool {
        let template = self.template_of(flow, marks);
        let none = SackBlocks::default();
        let frame = template.frame(to, seg, &none, TxBody::None, self.offloads);
        let fits = self.push_control(Control::Handshake, frame);
        self.counters.tx_segments += u64::from(fits);
        fits
    }

    /// Returns the station through which an answer reaches the peer of `flow`, whose segment came
    /// from `station`, if it is known now. If not, the stack has asked for it.
    fn station_now(&mut self, now: Instant, flow: &FlowKey, station: MacAddr) -> Option<MacAddr> {
        let way = self.way_to(now, flow, station);
        self.station_of(way)
    }

    fn station_of(&mut self, way: Option<Way>) -> Option<MacAddr> {
        match way? {
            Way::Station(station) => Some(station),
            Way::Waits(n) => {
                self.neighbors.release(n);
                None
            }
        }
    }

    fn way_to(&mut self, now: Instant, flow: &FlowKey, station: MacAddr) -> Option<Way> {
        let (src, vid) = (flow.remote().ip(), flow.vid());
        let hop = self.cfg.net.route_on(vid, src)?;
        self.way_by(now, hop, (hop.next == src).then_some(station))
    }

    /// Returns the way over `hop` for an answer to `station`, if that is a station of the link.
    fn way_by(&mut self, now: Instant, hop: Hop, station: Option<MacAddr>) -> Option<Way> {
        let n = if let Some(station) = station.filter(|_| !self.cfg.net.is_inside()) {
            match self.neighbors.acquire_known(LinkAddr::new(hop.vid, hop.next)) {
                Some(n) => n,
                None => return Some(Way::Station(station)),
            }
        } else {
            match self.next_hop(now, hop)? {
                NextHop::Station(station) => return Some(Way::Station(station)),
                NextHop::Neighbor(n) => n,
            }
        };
        let Some(station) = self.neighbors.settled(n) else { return Some(Way::Waits(n)) };
        self.neighbors.release(n);
        Some(Way::Station(station))
    }

    /// Returns the number of connections for which there is room: those in TIME-WAIT end when others
    /// need their places.
    fn free_conns(&self) -> usize {
        self.cfg.max_conns.saturating_sub(self.conns.len().saturating_sub(self.time_wait.len()))
    }
}

/// Returns our timestamp clock for a flow of these marks; 0 if its SYN has no timestamp.
fn clock_of(now: Instant, marks: Marks, syn: &Segment) -> u32 {
    if syn.timestamps.is_none() {
        return 0;
    }
    // The clock of the connection, which wraps around.
    let [a, b, c, d, ..] = now.as_millis().to_le_bytes();
    marks.ts_offset.wrapping_add(u32::from_le_bytes([a, b, c, d]))
}
