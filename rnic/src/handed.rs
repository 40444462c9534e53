//! Connections of an RNIC with itself: FPDUs go from one queue pair to the other without a frame.
//!
//! Both ends of such a connection belong to this RNIC. TCP sets the connection up, keeps it alive
//! and ends it, by frames that come back; the MPA start-up goes through TCP's stream. After the
//! start-up, no data needs the stream (`iwarp`'s
//! [`hand_over`](heddle_iwarp::QpContext::hand_over)): the other queue pair takes each FPDU at
//! once, by one copy from registered memory to registered memory.
//!
//! # When
//! The RNIC joins the two queue pairs when the second of them starts, if neither has an FPDU in
//! flight and they have agreed on neither CRC nor markers. An initiator starts after it has the
//! responder's start-up frame, and a responder sends no FPDU before the initiator's first, so
//! nothing is in flight then. The RNIC parts the queue pairs when either fails or ends. The rest of
//! the connection, as a rule the two FINs, goes by frames; the FPDUs that were handed over have not
//! moved the positions of these frames.
//!
//! # Turns
//! A connection hands over [`TURN`] FPDUs or [`TURN_BYTES`], in pieces of [`PIECE`], before the
//! next connection has its turn. All connections together hand over [`FPDUS`] or [`BYTES`] before
//! frames and timers have their turn.

use std::collections::VecDeque;

use heddle_base::Instant;
use heddle_engine::Untaken;
use heddle_iwarp::{Fpdu, QpContext, QpEnv};
use heddle_mr::Memory;
use heddle_tcp::{Connection, SendQueue};
use heddle_types::ConnId;

use crate::conn::{ConnState, Mode, NO_PARTNER};
use crate::frame::RnicFrame;
use crate::receive::Sink;
use crate::rnic::Rnic;

/// FPDUs, and bytes of FPDUs, that a connection hands over in one turn.
const TURN: u32 = 32;
const TURN_BYTES: u32 = 128 << 10;

/// The same limits for all connections together: as much as a burst of large frames takes.
const FPDUS: u32 = 256;
const BYTES: u32 = 512 << 10;

/// The longest ULPDU: with a tagged header (14 bytes) 32 KiB of payload, so that the pieces of a
/// long message are as aligned as the message is.
const PIECE: u16 = (32 << 10) + 14;

/// State of an RNIC for connections with itself.
#[derive(Debug)]
pub(crate) struct Handed {
    /// Whether the RNIC joins queue pairs at all.
    enabled: bool,
    /// Connections whose queue pair may have FPDUs to hand over.
    pub(crate) ready: VecDeque<ConnId>,
    /// The FPDU that is being handed over, reused for each.
    fpdu: Fpdu,
}

impl Handed {
    pub(crate) fn new(enabled: bool) -> Handed {
        Handed { enabled, ready: VecDeque::new(), fpdu: Fpdu::default() }
    }
}

/// FPDUs and bytes that a turn may still hand over.
pub(crate) struct Budget {
    fpdus: u32,
    bytes: u32,
}

impl Budget {
    /// The budget of a turn.
    pub(crate) const TURN: Budget = Budget { fpdus: FPDUS, bytes: BYTES };

    pub(crate) fn is_some(&self) -> bool {
        self.fpdus > 0 && self.bytes > 0
    }
}

impl<F: RnicFrame> Rnic<F> {
    /// Returns true if [`hand_over`](Self::hand_over) has something to do.
    #[inline]
    pub fn has_handed(&self) -> bool {
        // `|` makes this one comparison, because every turn of a worker asks.
        self.shared.handed.ready.len() | self.shared.rnr.retries() != 0
    }

    /// Like [`hand_over_with`](Self::hand_over_with), for an owner that has taken all posted
    /// receives.
    pub fn hand_over<M: Memory>(&mut self, now: Instant, mem: &M) {
        self.hand_all(now, Sink { mem, posted: None });
    }

    /// Hands a turn's FPDUs of connections with the RNIC itself over to their other ends, in the
    /// order in which these connections became ready. The owner calls this function after it has
    /// taken posts and received frames, and before it takes completions. `posted` is as for
    /// [`handle_frames`](Self::handle_frames).
    pub fn hand_over_with<M: Memory>(
        &mut self,
        now: Instant,
        mem: &M,
        posted: &Untaken<'_, QpContext>,
    ) {
        self.hand_all(now, Sink { mem, posted: Some(posted) });
    }

    fn hand_all<M: Memory>(&mut self, now: Instant, sink: Sink<'_, M>) {
        self.retry_waiting(now, sink);
        if self.shared.shares.are_several() {
            return self.hand_fairly(now, sink);
        }
        let mut left = Budget::TURN;
        while left.is_some()
            && let Some(conn) = self.shared.handed.ready.pop_front()
        {
            self.hand_from(now, sink, (conn, u64::MAX), &mut left);
        }
    }

    /// Hands over the FPDUs of one connection, within the limits of its turn, and none that begins
    /// after the first `credit` bytes.
    pub(crate) fn hand_from<M: Memory>(
        &mut self,
        now: Instant,
        sink: Sink<'_, M>,
        (conn, credit): (ConnId, u64),
        left: &mut Budget,
    ) {
        let Some((_, state)) = self.stack.get_mut(conn) else { return };
        state.on_ready_list = false;
        // The connection has parted since it became ready, and goes on by frames.
        if state.partner == NO_PARTNER {
            return state.make_ready(conn, &mut self.shared);
        }
        let partner = state.partner;
        let Some(peer) = self.stack.id_at(partner) else { return self.part(conn) };
        let both = self.stack.get_both_mut([conn, peer]);
        let Some([(tcp, state), (peer_tcp, other)]) = both else { return self.part(conn) };
        let (Mode::Fpdu(qp), Mode::Fpdu(to)) = (&mut state.mode, &mut other.mode) else {
            return self.part(conn);
        };
        // If the index is another, a new connection has the slot of the peer: a peer that has
        // joined this connection has set its `partner` to this index.
        if other.partner != index(conn) {
            return self.part(conn);
        }
        let shared = &mut self.shared;
        let env = QpEnv { mem: sink.mem, mrs: &shared.mrs, snapshots_full: false, posted: None };
        let peer_env = sink.env(peer, &shared.mrs);
        let (mut made, mut bytes, mut more) = (0, 0, true);
        let most = TURN_BYTES.min(u32::try_from(credit).unwrap_or(u32::MAX)).min(left.bytes);
        while made < TURN.min(left.fpdus) && bytes < most {
            let place = (&mut shared.kept.buffers, &mut shared.handed.fpdu);
            let Some(len) = qp.hand_over(to, [&env, &peer_env], PIECE, place) else {
                more = qp.has_local();
                break;
            };
            made += 1;
            bytes += len;
        }
        left.fpdus -= made;
        left.bytes = left.bytes.saturating_sub(bytes);
        let apart = !qp.is_handing() || !to.is_handing();
        // If one waits, its other end has an FPDU to hand over, and has its turn when the one that
        // waits has a receive.
        let waits = [to.waits_for_receive(), qp.waits_for_receive()];
        other.note_rnr(peer, shared);
        shared.counters.handed_fpdus += u64::from(made);
        shared.counters.handed_bytes += u64::from(bytes);
        if apart {
            state.part();
            other.part();
        }
        if more {
            state.make_ready(conn, shared);
        }
        if made > 0 {
            shared.looks.wake_rounds();
            // TCP sees none of the handed FPDUs: report progress, so that a close that TCP bounds
            // does not time out.
            tcp.note_progress(now);
            peer_tcp.note_progress(now);
        }
        let mut drain = |id, state: &mut ConnState<F>, tcp: &Connection, waits| {
            if waits && !state.qp().is_some_and(|qp| qp.may_respond()) {
                return state.has_news() && state.collect(id, tcp, shared);
            }
            state.drain(id, tcp, shared)
        };
        let close = drain(conn, state, tcp, waits[0]);
        let peer_close = drain(peer, other, peer_tcp, waits[1]);
        for (id, close) in [(conn, close), (peer, peer_close)] {
            if close {
                self.stack.close(id);
            }
        }
    }

    /// Lets a connection whose other end no longer exists go on by frames, by which TCP finds that
    /// out.
    #[cold]
    fn part(&mut self, conn: ConnId) {
        if let Some((_, state)) = self.stack.get_mut(conn) {
            state.part();
            state.make_ready(conn, &mut self.shared);
        }
    }

    /// Joins the queue pair of a connection that has just started to the queue pair of its other
    /// end, if both belong to this RNIC and may hand FPDUs over.
    pub(crate) fn join(&mut self, conn: ConnId) {
        if !self.shared.handed.enabled {
            return;
        }
        let Some(peer) = self.stack.other_end(conn) else { return };
        let Some([(_, a), (_, b)]) = self.stack.get_both_mut([conn, peer]) else { return };
        if !a.has_all_of(b) || !b.has_all_of(a) {
            return;
        }
        let (Mode::Fpdu(qp), Mode::Fpdu(other)) = (&mut a.mode, &mut b.mode) else { return };
        if !qp.can_hand_over() || !other.can_hand_over() {
            return;
        }
        qp.begin_handing();
        other.begin_handing();
        (a.partner, b.partner) = (index(peer), index(conn));
        self.shared.counters.handed_connections += 1;
    }

    /// Returns true if the FPDUs of a connection are handed over to its other end.
    pub fn is_handing(&self, conn: ConnId) -> bool {
        self.stack.user(conn).is_some_and(|state| state.partner != NO_PARTNER)
    }
}

impl<F: RnicFrame> ConnState<F> {
    /// Returns true if this connection has taken every byte that `other` has sent, and `other`
    /// keeps no bytes but those of the start-up.
    fn has_all_of(&self, other: &ConnState<F>) -> bool {
        self.held.is_empty() && self.rx_next == other.queue.end() && other.queue.has_no_fpdus()
    }

    /// Makes the connection go on by frames.
    pub(crate) fn part(&mut self) {
        self.partner = NO_PARTNER;
        if let Some(qp) = self.qp() {
            qp.end_handing();
        }
    }
}

/// Returns the index of a connection; there are far fewer connections than indices.
fn index(conn: ConnId) -> u32 {
    u32::try_from(conn.index()).unwrap_or(NO_PARTNER)
}
