//! Connections of an RNIC with itself: FPDUs go from one queue pair to the other without a frame.
//!
//! Both ends of such a connection are here. TCP sets the connection up, keeps it alive and ends it, by frames
//! that come back; the MPA start-up goes through its stream. Behind that nothing needs a stream
//! (`iwarp`'s [`hand_over`](heddle_iwarp::QpContext::hand_over)): what one queue pair has to send, the other takes at once,
//! by one copy from registered memory to registered memory.
//!
//! # When
//! The two queue pairs are joined as the second of them starts, if neither has an FPDU under way and they
//! have agreed on neither CRC nor markers. An initiator starts once it has the responder's start-up frame, and
//! a responder sends no FPDU before one of the initiator's, so there is nothing under way then. They part
//! when either fails or is gone. What is left of the connection, as a rule the two FINs, goes by frames,
//! whose positions no FPDU that was handed over has moved.
//!
//! # Turns
//! A connection hands over [`TURN`] FPDUs or [`TURN_BYTES`], in pieces of [`PIECE`], before the next has its
//! turn; all together [`FPDUS`] or [`BYTES`] before frames and timers have theirs.

use std::collections::VecDeque;

use heddle_base::Instant;
use heddle_iwarp::{Fpdu, Memory, QpEnv, Untaken};
use heddle_tcp::{ConnId, Connection, SendQueue};

use crate::conn::{ConnState, Mode, NO_PARTNER};
use crate::frame::RnicFrame;
use crate::receive::Sink;
use crate::rnic::Rnic;

/// FPDUs, and bytes of them, that a connection hands over in one go.
const TURN: u32 = 32;
const TURN_BYTES: u32 = 128 << 10;

/// As much of all connections: what a burst of large frames takes.
const FPDUS: u32 = 256;
const BYTES: u32 = 512 << 10;

/// Longest ULPDU: with a tagged header 32 KiB of payload, so that the pieces of a long message are as
/// aligned as the message is.
const PIECE: u16 = (32 << 10) + 14;

/// What is kept for connections of an RNIC with itself.
#[derive(Debug)]
pub(crate) struct Handed {
    /// Whether queue pairs are joined at all.
    enabled: bool,
    /// Connections whose queue pair may have FPDUs to hand over.
    pub(crate) ready: VecDeque<ConnId>,
    /// Where they are made.
    fpdu: Fpdu,
}

impl Handed {
    pub(crate) fn new(enabled: bool) -> Handed {
        Handed { enabled, ready: VecDeque::new(), fpdu: Fpdu::default() }
    }
}

/// What a turn may still hand over.
struct Budget {
    fpdus: u32,
    bytes: u32,
}

impl<F: RnicFrame> Rnic<F> {
    /// Returns true if [`hand_over`](Self::hand_over) has something to do.
    #[inline]
    pub fn has_handed(&self) -> bool {
        // In one comparison: every turn asks.
        self.shared.handed.ready.len() | self.shared.rnr.retries() != 0
    }

    /// As [`hand_over_with`](Self::hand_over_with), by an owner that has taken all receives that are posted.
    pub fn hand_over<M: Memory>(&mut self, now: Instant, mem: &M) {
        self.hand_all(now, Sink { mem, posted: None });
    }

    /// Hands a turn's FPDUs of connections with the RNIC itself over to their other ends, in the order in which
    /// these connections had something to do. Call it behind posts and received frames, and before
    /// completions are taken. `posted` is as for [`handle_frame_with`](Self::handle_frame_with).
    pub fn hand_over_with<M: Memory>(&mut self, now: Instant, mem: &M, posted: &Untaken<'_>) {
        self.hand_all(now, Sink { mem, posted: Some(posted) });
    }

    fn hand_all<M: Memory>(&mut self, now: Instant, sink: Sink<'_, M>) {
        self.retry_waiting(now, sink);
        let mut left = Budget { fpdus: FPDUS, bytes: BYTES };
        while left.fpdus > 0
            && left.bytes > 0
            && let Some(conn) = self.shared.handed.ready.pop_front()
        {
            self.hand_from(now, sink, conn, &mut left);
        }
    }

    /// Hands over what one connection has, as far as its turn goes.
    fn hand_from<M: Memory>(
        &mut self,
        now: Instant,
        sink: Sink<'_, M>,
        conn: ConnId,
        left: &mut Budget,
    ) {
        let Some((_, state)) = self.stack.get_mut(conn) else { return };
        state.on_ready_list = false;
        // One that has parted since goes on by frames.
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
        // Otherwise another connection has the place of the peer. One that has joined this one since has
        // told it so.
        if other.partner != index(conn) {
            return self.part(conn);
        }
        let shared = &mut self.shared;
        let env = QpEnv { mem: sink.mem, mrs: &shared.mrs, snapshots_full: false, posted: None };
        let peer_env = sink.env(peer, &shared.mrs);
        let (mut made, mut bytes, mut more) = (0, 0, true);
        while made < TURN.min(left.fpdus) && bytes < TURN_BYTES.min(left.bytes) {
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
        // Each has something to hand over then, and its turn comes when the other has a receive.
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
            // A close that TCP bounds gets on, though TCP sees nothing of it.
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

    /// The other end is gone: this one goes on by frames, which find that out.
    #[cold]
    fn part(&mut self, conn: ConnId) {
        if let Some((_, state)) = self.stack.get_mut(conn) {
            state.part();
            state.make_ready(conn, &mut self.shared);
        }
    }

    /// Joins the queue pair of a connection that has just started to that of its other end, where both are
    /// here and nothing stands against it.
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

    /// Whether FPDUs of a connection are handed over to its other end.
    pub fn is_handing(&self, conn: ConnId) -> bool {
        self.stack.user(conn).is_some_and(|state| state.partner != NO_PARTNER)
    }
}

impl<F: RnicFrame> ConnState<F> {
    /// Whether it has taken every byte that `other` has sent, and `other` keeps none but of the start-up.
    fn has_all_of(&self, other: &ConnState<F>) -> bool {
        self.held.is_empty() && self.rx_next == other.queue.end() && other.queue.has_no_fpdus()
    }

    /// Has it go on by frames.
    pub(crate) fn part(&mut self) {
        self.partner = NO_PARTNER;
        if let Some(qp) = self.qp() {
            qp.end_handing();
        }
    }
}

/// There are fewer connections than this can tell apart.
fn index(conn: ConnId) -> u32 {
    u32::try_from(conn.index()).unwrap_or(NO_PARTNER)
}
