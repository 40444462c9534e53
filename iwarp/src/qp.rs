//! A queue pair: RDMAP and DDP over one stream of FPDUs.
//!
//! # Calling order
//! ```text
//! post_send, post_recv                         at any time
//! hand_over(peer)                              instead of all below but the last, if one owner has
//!                                              both ends
//! find_fpdu, place_early                       when there are bytes ahead of a gap, with markers
//! deliver                                      when the gap before such an FPDU is closed
//! handle_stream(env, bytes), handle_digested   when the peer's stream has new bytes in order
//! handle_acked(upto)                           when TCP has an acknowledgment
//! poll_transmit(env, mulpdu) until None        while TCP has room
//! poll_completion, poll_event until None       after any of these
//! ```
//! The thread of the worker that owns the connection makes these calls. No call blocks or panics,
//! whatever the peer sends, and none allocates for ordinary data.
//!
//! # Visible changes of memory
//! An FPDU touches memory only when all of it has come, its CRC is right (CRC on) and every check
//! of header, sequence, STag, bounds and rights has passed. So an FPDU that fails any check leaves
//! no trace. Before the completion of a message, an application can see in memory only what RFC
//! 5041 also allows an honest peer to write: the earlier segments of a message whose later ones
//! fail or never come (in the posted receive buffer, in a region with remote write access, or in
//! the sink of an outstanding Read). With markers and CRC on, these can be segments of messages
//! after a gap ([`QpContext::place_early`]). With CRC off, the QP places damage that TCP's checksum
//! misses as if it were data, inside the same limits.
//!
//! # Strict and liberal
//! Untagged messages must come in order and without gaps (MSN and MO): TCP keeps the sender's
//! order, so any other sequence is an error. The receiver ignores reserved bits and pad bytes. The
//! peer may interleave the segments of tagged and untagged messages. The sender of this module
//! sends message by message, Read Responses and the send queue in turn.
//!
//! # Outside this module
//! The owner runs TCP, knows of gaps, and keeps FPDUs for retransmission; the QP does none of
//! these.

mod alike;
mod buffers;
mod complete;
mod config;
mod early;
mod event;
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
mod verbs;

pub use crate::counters::QpCounters;
pub use alike::SegmentsAlike;
pub use buffers::Buffers;
pub use config::{INLINE_PAYLOAD, QpConfig, QpEnv, Role};
pub use early::PlacedFpdu;
pub use event::{QpEvent, Side};
pub use fpdu::{Fpdu, Piece};
pub use rnr::RnrMark;

use core::mem::offset_of;
use core::ops::Range;

use crate::Msn;
use crate::counters::Tally;
use crate::mpa::markers::INTERVAL;
use alike::ExpectedSegment;
use arrayvec::ArrayVec;
use heddle_base::StreamPos;
use heddle_engine::Completions;
use heddle_types::{
    ConnectedState, Cut, Limits, Pd, PostError, Qpn, RecvWr, SendWr,
    mpa::RtrConfig,
    wr::{MAX_INLINE, MAX_SGES, recv_len, send_len},
};
use queues::{Rq, Sq};
use reads::Reads;
use rnr::Rnr;
use state::Transition;
use terminate::End;
use tx::Sending;

/// A queue pair in FPDU mode. See the [module](self) for the calling order.
///
/// The fields are in the order of use: with many queue pairs, each line of memory comes from afar.
/// The counters come first because those that every FPDU counts are their last.
#[derive(Debug)]
#[repr(C)]
pub struct QpContext {
    counters: Tally,
    state: ConnectedState,
    crc: bool,
    /// The QP may not send messages of the application yet: a responder before the first FPDU has
    /// come, an initiator before its ready-to-receive message.
    hold: bool,
    seen_fpdu: bool,
    send_markers: bool,
    recv_markers: bool,
    /// The last call of `handle_stream` saw exactly one FPDU.
    rx_one_fpdu: bool,
    /// A Write of the peer has begun and not ended.
    in_write: bool,
    /// A Send of the peer has begun and not ended.
    in_send: bool,
    peer_closed: bool,
    drained: bool,
    /// FPDUs go directly to the peer's queue pair, and not into the stream.
    handing: bool,
    /// True if a Read Response goes next when both a response and a request could start.
    responses_next: bool,
    rnr: Rnr,
    /// The place of the peer's markers: the positions in its stream that are this modulo 512.
    rx_grid: u16,
    /// The place of this end's markers, likewise.
    tx_grid: u16,
    rtr: RtrConfig,
    qpn: Qpn,
    pd: Pd,
    /// MSN of the next Send.
    send_msn: Msn,
    /// MSN of the next Read Request.
    read_msn: Msn,
    /// The next byte of the peer's stream.
    rx_pos: StreamPos,
    /// The position after the last byte of the last FPDU made.
    tx_pos: StreamPos,
    acked: StreamPos,
    /// The next segment of the peer's message, once a long one has begun.
    expected: Option<Box<ExpectedSegment>>,
    cq: Completions,
    sq: Sq,
    /// The message whose segments are being sent.
    sending: Option<Sending>,
    reads: Reads,
    events: ArrayVec<QpEvent, 4>,
    rq: Rq,
    /// How the stream ended, once it has ended.
    end: Option<Box<End>>,
}

/// The bytes of a queue pair that an FPDU of a Write or Send touches, at either end.
const HOT: Range<usize> = Tally::HOT..offset_of!(QpContext, reads) + Reads::HOT;

/// Bytes of a cache line.
const LINE: usize = 64;

// A received FPDU of a Write touches the fields before the send queue, and what shows that there is
// nothing to send.
const _: () = assert!(offset_of!(QpContext, sq) - HOT.start <= 5 * LINE / 2);
const _: () = assert!(HOT.end - HOT.start <= 5 * LINE);

impl QpContext {
    /// Makes a QP on a connection whose MPA start-up is done. Its queues allocate memory as they
    /// fill, up to their depths, and keep it until the owner [trims](QpContext::trim) them.
    #[expect(clippy::cast_possible_truncation, reason = "less than 512")]
    pub fn new(config: &QpConfig) -> QpContext {
        QpContext {
            state: ConnectedState::Rts,
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
            expected: None,
            end: None,
        }
    }

    /// Posts a request to the send queue, from any source. Only a full queue is an error here.
    ///
    /// A request that breaks the rules of [`check_send`] completes in its turn as
    /// [`CqeStatus::LocalQpOperation`] and ends the stream, as does a request whose SGEs turn out
    /// bad when the QP sends the data. A request posted after [`close`](QpContext::close) also
    /// completes so, with [`PostError::Closing`], but does not end the stream. After the end of the
    /// stream the QP flushes each new request.
    ///
    /// [`check_send`]: heddle_types::check_send
    /// [`CqeStatus::LocalQpOperation`]: heddle_types::CqeStatus::LocalQpOperation
    #[inline(always)]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.sq.is_full() {
            return Err(PostError::Full);
        }
        if self.state != ConnectedState::Rts {
            return self.post_late(*wr);
        }
        self.sq.push(wr, send_len(wr, &self.limits()));
        Ok(())
    }

    // By value: an argument passed by address must be in memory, even on the path that skips this
    // call.
    #[cold]
    fn post_late(&mut self, wr: SendWr<'_>) -> Result<(), PostError> {
        if self.state == ConnectedState::Closing {
            self.sq.push(&wr, Err(PostError::Closing));
            self.pass_refused();
            self.complete_sends();
        } else {
            self.sq.push(&wr, send_len(&wr, &self.limits()));
            self.flush_sends();
        }
        Ok(())
    }

    /// Posts a buffer for an incoming Send. The QP checks its SGEs when data comes for them; a
    /// buffer that breaks the rules of [`check_recv`] ends the stream when a message comes for it.
    ///
    /// On a QP that has failed, or whose peer has closed, the buffer completes at once as
    /// [`CqeStatus::Flushed`], or as [`CqeStatus::LocalQpOperation`] if it breaks a rule, with the
    /// rule that it breaks.
    ///
    /// [`check_recv`]: heddle_types::check_recv
    /// [`CqeStatus::Flushed`]: heddle_types::CqeStatus::Flushed
    /// [`CqeStatus::LocalQpOperation`]: heddle_types::CqeStatus::LocalQpOperation
    #[inline(always)]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.rq.is_full() {
            return Err(PostError::Full);
        }
        self.rq.push(wr, recv_len(wr, &self.limits()));
        if self.peer_closed || !self.state.is_live() {
            self.flush_recvs();
        }
        Ok(())
    }

    /// Closes the sending side for the application. The QP still sends and completes the requests
    /// posted to the send queue, then raises [`QpEvent::Drained`], and the owner closes TCP. The
    /// receive queue stays open until the owner calls
    /// [`handle_peer_closed`](QpContext::handle_peer_closed) or [`abort`](QpContext::abort).
    pub fn close(&mut self) {
        if let Some(state) = state::next(self.state, Transition::Close) {
            self.state = state;
            if self.peer_closed && self.never_sends() {
                return self.truncated(Cut::Start);
            }
            self.check_drained();
        }
    }

    /// Returns true if requests wait for the peer's first FPDU (RFC 5044 section 7.1.2, rule 4). If
    /// the peer has closed, that FPDU never comes.
    fn never_sends(&self) -> bool {
        self.hold && !self.sq.is_empty() && !matches!(self.rtr, RtrConfig::Send(_))
    }

    /// Handles that the peer closed its direction of the stream, with or without a part of an FPDU
    /// left at its end. No more Sends will come, so the QP flushes the receive queue.
    ///
    /// If the peer's stream ended in the middle of something, the QP fails and
    /// [`QpEvent::Truncated`] says in what; otherwise the QP may go on sending.
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

    /// Ends the QP at once, because TCP has ended and will send nothing more. The QP flushes every
    /// posted request, whatever the peer has received of it, and does not send a pending Terminate.
    pub fn abort(&mut self) {
        self.end_stream(Transition::Abort, End::default());
        if let Some(end) = &mut self.end {
            end.terminate = None;
            end.gone = true;
        }
        self.state = ConnectedState::Error;
        self.flush_sends();
    }

    /// Handles, after the end of the stream, that the owner has withdrawn the FPDUs from `upto` on,
    /// of which TCP has sent no byte. Any later FPDU (a Terminate) follows at `upto`.
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

    /// Frees memory that the queues do not need for their present contents. Meant for a queue pair
    /// that has been quiet for a while: a busy one would soon allocate it again.
    pub fn trim(&mut self) {
        self.expected = None;
        self.sq.trim();
        self.rq.trim();
        self.reads.trim();
        self.cq.trim();
    }

    /// Returns the state of the queue pair.
    pub const fn state(&self) -> ConnectedState {
        self.state
    }

    /// Returns the number of the queue pair.
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns true if the FPDUs of this side carry markers, which makes them longer.
    pub const fn sends_markers(&self) -> bool {
        self.send_markers
    }

    /// Returns the protection domain of the queue pair.
    pub const fn pd(&self) -> Pd {
        self.pd
    }

    /// Returns the position in this end's stream after the last byte of the FPDUs made so far.
    pub const fn tx_end(&self) -> StreamPos {
        self.tx_pos
    }

    /// Returns the position of the next byte of the peer's stream that the QP waits for.
    pub const fn rx_next(&self) -> StreamPos {
        self.rx_pos
    }

    /// Returns a number that increases, modulo 2^64, with every FPDU that the QP makes or takes.
    pub fn progress(&self) -> u64 {
        let stream = self.tx_pos.0.wrapping_add(self.rx_pos.0);
        stream.wrapping_add(self.counters.tx_fpdus).wrapping_add(self.counters.rx_fpdus)
    }

    /// Returns the counters of the queue pair.
    pub fn counters(&self) -> QpCounters {
        self.counters.all()
    }
}
