//! Messages that find no receive ("receiver not ready").
//!
//! By RFC 5041 (section 7.1), a message without a buffer ends the stream, and applications must
//! post buffers in time. Programs that were written for InfiniBand, which tries again, post a
//! buffer a moment late. So a message may wait for a receive, for
//! [`RnicConfig::rnr_wait`](crate::RnicConfig::rnr_wait) and no longer. DDP sees the message when
//! it gets a receive; until then, the stream behaves as if TCP had not delivered the message, and
//! later messages do not overtake it.
//!
//! On a stream of frames, the RNIC holds the FPDU that waits, with the rest of its segment, and
//! does not acknowledge them: the RNIC has delivered every byte that it acknowledges. The RNIC
//! refuses segments in order that come after the FPDU; for TCP, the network might have lost them.
//! The RNIC holds segments beyond the resulting gap like all such segments. If FPDUs are handed
//! over instead, the sender makes no FPDU before there is a receive.
//!
//! When the application posts a receive, the RNIC retries the message in the same turn. A receive
//! of a shared queue belongs to no connection, so the RNIC looks now and then at the connections
//! that wait for one, as it does for the end of their time.

use std::collections::VecDeque;

use core::time::Duration;

use heddle_base::{Instant, StreamPos};
use heddle_iwarp::{Msn, RnrMark};
use heddle_mr::Memory;
use heddle_tcp::Connection;
use heddle_types::ConnId;

use crate::conn::{ConnState, Mode, NO_PARTNER};
use crate::frame::RnicFrame;
use crate::receive::Sink;
use crate::rnic::Rnic;
use crate::shared::Shared;

/// Connections that the RNIC looks at before frames have their turn again, and the pause until the
/// next ones.
const LOOKS: usize = 64;
const PAUSE: Duration = Duration::from_millis(1);

/// A connection with a message that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    conn: ConnId,
    /// The number of the message, and the end of its time; not known before the first look.
    message: Option<(Msn, Instant)>,
}

/// The connections with messages that wait.
#[derive(Debug)]
pub(crate) struct Rnr {
    /// See [`RnicConfig::rnr_wait`](crate::RnicConfig::rnr_wait).
    pub(crate) wait: Duration,
    /// Each connection once; the RNIC looks at the first of them next.
    waiting: VecDeque<Waiting>,
    /// Connections whose message the RNIC retries in the next turn, each once.
    retries: VecDeque<ConnId>,
}

impl Rnr {
    pub(crate) fn new(wait: Duration) -> Rnr {
        Rnr { wait, waiting: VecDeque::new(), retries: VecDeque::new() }
    }

    /// Returns the number of messages to retry.
    #[inline]
    pub(crate) fn retries(&self) -> usize {
        self.retries.len()
    }
}

impl<F> ConnState<F> {
    /// Puts the connection on the list of those that wait, if its queue pair has a message that
    /// waits.
    pub(crate) fn note_rnr(&mut self, conn: ConnId, shared: &mut Shared<F>) {
        let Mode::Fpdu(qp) = &mut self.mode else { return };
        if qp.waits_for_receive() && !qp.set_mark(RnrMark::Listed, true) {
            shared.counters.rnr_waits += 1;
            shared.rnr.waiting.push_back(Waiting { conn, message: None });
            shared.looks.set_rnr(Some(Instant::ZERO));
        }
    }

    /// Queues a retry of the message that waits for a receive, if any, because there may be a
    /// receive now.
    #[inline]
    pub(crate) fn retry_rnr(&mut self, conn: ConnId, shared: &mut Shared<F>) {
        if let Mode::Fpdu(qp) = &mut self.mode
            && qp.has_mark(RnrMark::Listed)
            && !qp.set_mark(RnrMark::Retried, true)
        {
            shared.rnr.retries.push_back(conn);
        }
    }
}

impl<F: RnicFrame> ConnState<F> {
    /// Returns true if the stream stands still at a message that waits.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(&self.mode, Mode::Fpdu(qp) if qp.waits_for_receive()) && self.held.has_ready()
    }

    /// Returns how many of `len` bytes in order, from `pos` on, TCP may acknowledge: none of a
    /// message that waits. If these bytes close a gap, TCP would acknowledge up to the end of the
    /// bytes that it has accepted beyond the gap, which lie after the message; then the gap stays
    /// until the message has been taken.
    pub(crate) fn acceptable(&self, tcp: &Connection, pos: StreamPos, len: u32) -> u32 {
        if !self.is_stopped() {
            return len;
        }
        if tcp.has_gaps() {
            return 0;
        }
        let stop = self.rx_next.0.saturating_sub(self.held.ready_len() as u64);
        u32::try_from(stop.saturating_sub(pos.0)).unwrap_or(len).min(len)
    }
}

impl<F: RnicFrame> Rnic<F> {
    /// Looks at some of the connections that wait, if it is time.
    pub(crate) fn look_at_rnr(&mut self, now: Instant) {
        if !self.shared.looks.is_rnr_due(now) {
            return;
        }
        for _ in 0..LOOKS.min(self.shared.rnr.waiting.len()) {
            let Some(mut w) = self.shared.rnr.waiting.pop_front() else { break };
            let Some((_, state)) = self.stack.get_mut(w.conn) else { continue };
            let handed = state.partner != NO_PARTNER;
            let held = handed || state.held.has_ready();
            let Mode::Fpdu(qp) = &mut state.mode else { continue };
            // The peer retransmits a message that is not held any more.
            if !qp.waits_for_receive() || !held {
                qp.end_rnr_wait();
                qp.set_mark(RnrMark::Listed, false);
                continue;
            }
            let msn = qp.receive_msn();
            let (_, end) = *match &mut w.message {
                Some(same) if same.0 == msn => same,
                other => other.insert((msn, now + self.shared.rnr.wait)),
            };
            if end <= now {
                qp.refuse_rnr();
            }
            // Each retry reads the held bytes for their CRC, so the RNIC retries only when there is
            // a receive.
            let found = qp.shares_receives() && (handed || qp.take_shared_receive());
            if end <= now || found {
                state.retry_rnr(w.conn, &mut self.shared);
            }
            self.shared.rnr.waiting.push_back(w);
        }
        let none = self.shared.rnr.waiting.is_empty();
        self.shared.looks.set_rnr((!none).then(|| now + PAUSE));
    }

    /// Retries messages that may have a receive now.
    #[inline]
    pub(crate) fn retry_waiting<M: Memory>(&mut self, now: Instant, sink: Sink<'_, M>) {
        while let Some(conn) = self.shared.rnr.retries.pop_front() {
            self.retry(now, sink, conn);
        }
    }

    #[cold]
    fn retry<M: Memory>(&mut self, now: Instant, sink: Sink<'_, M>, conn: ConnId) {
        let Some((_, state)) = self.stack.get_mut(conn) else { return };
        let partner = state.partner;
        let Mode::Fpdu(qp) = &mut state.mode else { return };
        qp.set_mark(RnrMark::Retried, false);
        qp.end_rnr_wait();
        if partner != NO_PARTNER {
            if let Some(peer) = self.stack.id_at(partner)
                && let Some((_, sender)) = self.stack.get_mut(peer)
            {
                sender.make_ready(peer, &mut self.shared);
            }
            return;
        }
        self.advance_held(sink, conn);
        let Some((_, state)) = self.stack.get_mut(conn) else { return };
        if state.held.has_ready() || state.held.has_share() {
            self.charge_advanced(conn);
        }
        let Some((tcp, state)) = self.stack.get_mut(conn) else { return };
        let from = tcp.rcv_nxt();
        let len = u32::try_from(state.rx_next.0.saturating_sub(from.0)).unwrap_or(u32::MAX);
        let len = state.acceptable(tcp, from, len);
        self.stack.accept_payload(now, conn, from, len);
        self.drain_qp(conn);
        self.stack.notify_send(conn);
    }
}
