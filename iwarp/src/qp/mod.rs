//! A queue pair: RDMAP and DDP over one stream of FPDUs.
//!
//! # Calling order
//! ```text
//! post_send, post_recv                         at any time
//! hand_over(peer), instead of all below but the last, where both ends are of one owner
//! find_fpdu, place_early                       when it has bytes ahead of a gap, with markers
//! deliver                                      when the gap before such an FPDU is closed
//! handle_stream(env, bytes), handle_digested   when the peer's stream has new bytes in order
//! handle_acked(upto)                           when TCP has an acknowledgment
//! poll_transmit(env, mulpdu) until None        while TCP has room
//! poll_completion, poll_event until None       after any of these
//! ```
//! One thread (the worker that owns the connection) calls them. No call blocks, allocates on the
//! way of ordinary data, or panics whatever the peer sends.
//!
//! # What can be seen in memory
//! An FPDU touches memory only when all of it is there, its CRC is right (CRC on) and every check
//! of header, sequence, STag, bounds and rights has passed. So an FPDU that fails any check leaves
//! no trace. What can be seen before the completion that tells of it is what RFC 5041 allows an
//! honest peer too: the earlier segments of a message whose later ones fail or never come (in the
//! posted receive buffer, in a region with remote write access, or in the sink of an outstanding
//! Read). With markers and CRC on, that includes messages behind a gap
//! ([`QpContext::place_early`]). With CRC off, damage that TCP's checksum misses is placed as if it
//! were data, inside the same limits.
//!
//! # Strict and liberal
//! Untagged messages must come in order and without gaps (MSN and MO): TCP keeps the sender's
//! order, so anything else is an error. Reserved bits and pad bytes are not looked at. Segments of
//! tagged and untagged messages may interleave on receive; we send message by message, Read
//! Responses and the send queue in turn.
//!
//! # What it does not do
//! It does not own TCP, know of gaps, or keep FPDUs for retransmission: the owner does.

mod buffers;
mod complete;
mod config;
mod cq;
mod cqe;
mod early;
mod fifo;
mod fpdu;
mod handed;
mod local;
mod queues;
mod ranges;
mod reads;
mod rnr;
mod rtr;
mod rx;
mod shared;
mod short;
mod state;
mod stream;
mod tagged;
mod terminate;
#[cfg(test)]
mod tests;
mod tx;
mod untagged;
mod wr;

pub use crate::counters::QpCounters;
pub use buffers::Buffers;
pub use complete::Retired;
pub use config::{INLINE_PAYLOAD, QpConfig, QpEnv, Role};
pub use cq::Completions;
pub use cqe::{Cqe, CqeOp, CqeStatus, Cut, QpEvent, Queue, Side};
pub use early::PlacedFpdu;
pub use fpdu::{Fpdu, Piece};
pub use rnr::RnrMark;
pub use rtr::RtrConfig;
pub use shared::{PostedReceives, SharedBroken, SharedReceives, Untaken};
pub use state::QpState;
pub use wr::{
    Data, Limits, MAX_INLINE, MAX_MESSAGE, MAX_SGES, PostError, RecvWr, SendOp, SendWr, Sge,
    check_recv, check_send,
};

use crate::counters::Tally;
use crate::mpa::markers::INTERVAL;
use crate::{Msn, Pd, Qpn};
use arrayvec::ArrayVec;
use heddle_base::StreamPos;
use queues::{Rq, Sq};
use reads::Reads;
use rnr::Rnr;
use state::Transition;
use terminate::End;
use tx::Sending;

/// A queue pair in FPDU mode. See the [module](self) for the calling order.
#[derive(Debug)]
pub struct QpContext {
    // What every FPDU touches comes first.
    state: QpState,
    crc: bool,
    send_markers: bool,
    recv_markers: bool,
    /// Nothing of the application's may be sent yet: a responder before the first FPDU has come, an
    /// initiator before its ready-to-receive message.
    hold: bool,
    /// Where the peer's markers stand: its positions that are this modulo 512. And where ours do.
    rx_grid: u16,
    tx_grid: u16,
    /// Whose turn it is when both could start a message.
    responses_next: bool,
    seen_fpdu: bool,
    /// One FPDU was all that was shown last.
    rx_one_fpdu: bool,
    peer_closed: bool,
    drained: bool,
    /// Its FPDUs go to the peer's queue pair, and not into the stream.
    handing: bool,
    /// A Write of the peer's has begun and not ended; and a Send.
    in_write: bool,
    in_send: bool,
    rnr: Rnr,
    rtr: RtrConfig,
    qpn: Qpn,
    pd: Pd,
    /// The message under way.
    sending: Option<Sending>,
    /// Of the next Send, and of the next Read Request.
    send_msn: Msn,
    read_msn: Msn,
    /// One past the last byte of the last FPDU made.
    tx_pos: StreamPos,
    acked: StreamPos,
    /// The next byte of the peer's stream.
    rx_pos: StreamPos,
    counters: Tally,
    sq: Sq,
    rq: Rq,
    reads: Reads,
    cq: Completions,
    events: ArrayVec<QpEvent, 4>,
    /// How the stream ended, once it has.
    end: Option<Box<End>>,
}

impl QpContext {
    /// A QP on a connection whose MPA start-up is done. Its queues take memory as they are filled,
    /// up to their depths, and keep it until they are [trimmed](QpContext::trim).
    #[expect(clippy::cast_possible_truncation, reason = "less than 512")]
    pub fn new(config: &QpConfig) -> QpContext {
        QpContext {
            state: QpState::Rts,
            crc: config.crc,
            send_markers: config.send_markers,
            recv_markers: config.recv_markers,
            rx_grid: (config.rx_start.0 % INTERVAL as u64) as u16,
            tx_grid: (config.tx_start.0 % INTERVAL as u64) as u16,
            hold: config.role == Role::Responder || matches!(config.rtr, RtrConfig::Send(_)),
            responses_next: false,
            seen_fpdu: false,
            rx_one_fpdu: false,
            peer_closed: false,
            drained: false,
            handing: false,
            in_write: false,
            in_send: false,
            rnr: Rnr::new(config.rnr_wait),
            rtr: config.rtr,
            qpn: config.qpn,
            pd: config.pd,
            sending: None,
            send_msn: Msn(1),
            read_msn: Msn(1),
            tx_pos: config.tx_start,
            acked: StreamPos::START,
            rx_pos: config.rx_start,
            counters: Tally::default(),
            sq: Sq::new(config.sq_depth),
            rq: Rq::new(config.rq_depth),
            reads: Reads::new(config.ird, config.ord),
            cq: Completions::default(),
            events: ArrayVec::new(),
            end: None,
        }
    }

    /// Posts to the send queue, whoever wrote the request: nothing but a full queue is an error
    /// here.
    ///
    /// A request that breaks the rules of [`check_send`] completes in its turn as
    /// [`CqeStatus::LocalQpOperation`] and ends the stream, as does one whose SGEs turn out bad
    /// when the data is sent. One that is posted after [`close`](QpContext::close) completes so
    /// too, with [`PostError::Closing`], and ends nothing. Once the stream is over it is flushed.
    #[inline(always)]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.sq.is_full() {
            return Err(PostError::Full);
        }
        if self.state != QpState::Rts {
            return self.post_late(*wr);
        }
        self.sq.push(wr, wr::send_len(wr, &self.limits()));
        Ok(())
    }

    // By value: what is handed on by its address has to be in memory, also where this is not called.
    #[cold]
    fn post_late(&mut self, wr: SendWr<'_>) -> Result<(), PostError> {
        if self.state == QpState::Closing {
            self.sq.push(&wr, Err(PostError::Closing));
            self.pass_refused();
            self.complete_sends();
        } else {
            self.sq.push(&wr, wr::send_len(&wr, &self.limits()));
            self.flush_sends();
        }
        Ok(())
    }

    /// Posts a buffer for an incoming Send. Its SGEs are checked when data comes for them; one that
    /// breaks the rules of [`check_recv`] ends the stream when a message comes for it.
    ///
    /// On a QP that has failed, or whose peer has closed, it completes at once as
    /// [`CqeStatus::Flushed`]; one that breaks the rules says which instead
    /// ([`CqeStatus::LocalQpOperation`]).
    #[inline(always)]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.rq.is_full() {
            return Err(PostError::Full);
        }
        self.rq.push(wr, wr::recv_len(wr, &self.limits()));
        if self.peer_closed || !self.state.is_live() {
            self.flush_recvs();
        }
        Ok(())
    }

    /// The application is done: what was posted to the send queue is still sent and completed,
    /// then [`QpEvent::Drained`] is raised and the owner closes TCP. The receive queue stays open
    /// until the owner calls [`handle_peer_closed`](QpContext::handle_peer_closed) or
    /// [`abort`](QpContext::abort).
    pub fn close(&mut self) {
        if let Some(state) = self.state.next(Transition::Close) {
            self.state = state;
            if self.peer_closed && self.never_sends() {
                return self.truncated(Cut::Start);
            }
            self.check_drained();
        }
    }

    /// Returns true if requests wait for the peer's first FPDU (RFC 5044 section 7.1.2, rule 4). Once
    /// the peer has closed they wait for ever.
    fn never_sends(&self) -> bool {
        self.hold && !self.sq.is_empty() && !matches!(self.rtr, RtrConfig::Send(_))
    }

    /// The peer closed its direction of the stream, with or without a part of an FPDU left at its
    /// end: no more Sends will come, so the receive queue is flushed.
    ///
    /// Where it broke off something, the QP fails and [`QpEvent::Truncated`] says what; otherwise we
    /// may go on sending.
    pub fn handle_peer_closed(&mut self, in_fpdu: bool) {
        if !self.state.is_live() {
            return;
        }
        self.peer_closed = true;
        let cut = if in_fpdu {
            Cut::Fpdu
        } else if self.in_send || self.in_write {
            Cut::Message
        } else if !self.reads.outbound.is_empty() {
            Cut::Read
        } else if self.never_sends() {
            Cut::Start
        } else {
            return self.flush_recvs();
        };
        self.truncated(cut);
    }

    fn truncated(&mut self, cut: Cut) {
        self.end_stream(Transition::Abort, End::default());
        self.raise(QpEvent::Truncated(cut));
    }

    /// Ends the QP at once: TCP is gone and sends nothing any more, not even once more. All that is
    /// posted is flushed, whatever became of it; a pending Terminate is not sent.
    pub fn abort(&mut self) {
        self.end_stream(Transition::Abort, End::default());
        if let Some(end) = &mut self.end {
            end.terminate = None;
            end.gone = true;
        }
        self.state = QpState::Error;
        self.flush_sends();
    }

    /// After the end of the stream: the owner has taken back the FPDUs from `upto` on, of which
    /// TCP has not sent an octet. What is made from now on (a Terminate) follows at `upto`.
    pub fn handle_withdrawn(&mut self, upto: StreamPos) {
        if self.state.is_live() || upto >= self.tx_pos {
            return;
        }
        self.tx_pos = upto;
        self.sq.withdraw(upto);
        self.flush_sends();
    }

    const fn limits(&self) -> Limits {
        Limits { sges: MAX_SGES, inline: MAX_INLINE, ord: self.reads.ord() }
    }

    /// Gives back memory that its queues do not need for what is in them now. For a queue pair that
    /// has been quiet for a while: one at work would ask for it again.
    pub fn trim(&mut self) {
        self.sq.trim();
        self.rq.trim();
        self.reads.trim();
        self.cq.trim();
    }

    /// Where it is in its life.
    pub const fn state(&self) -> QpState {
        self.state
    }

    /// Its number.
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Whether its FPDUs carry markers, which makes them longer.
    pub const fn sends_markers(&self) -> bool {
        self.send_markers
    }

    /// Its protection domain.
    pub const fn pd(&self) -> Pd {
        self.pd
    }

    /// One past the last byte of the FPDUs made so far, in our stream.
    pub const fn tx_end(&self) -> StreamPos {
        self.tx_pos
    }

    /// The next byte of the peer's stream it waits for.
    pub const fn rx_next(&self) -> StreamPos {
        self.rx_pos
    }

    /// Moves on, modulo 2^64, with every FPDU that it makes or takes.
    pub fn progress(&self) -> u64 {
        let stream = self.tx_pos.0.wrapping_add(self.rx_pos.0);
        stream.wrapping_add(self.counters.tx_fpdus).wrapping_add(self.counters.rx_fpdus)
    }

    /// What it has counted.
    pub fn counters(&self) -> QpCounters {
        self.counters.all()
    }
}
