//! The frames to send and their order: control frames first, then the connections in turn.

use heddle_base::Instant;

use super::Stack;
use super::control::Control;
use super::frame::{Train, TxBody, TxFrame};
use super::slab::{Drained, NextHop, Owner};
use crate::{Flags, SendQueue};

/// Segments that a connection sends before the turn of the next connection: enough to keep its
/// state in the cache, and few enough that no connection waits long.
const TURN: u32 = 16;

impl<S: SendQueue + Default> Stack<S> {
    /// Returns the next frame to send. The worker that owns the stack calls this function until it
    /// returns `None`, or for as long as the port has room. A returned frame counts as sent.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<TxFrame> {
        let mut frame = TxFrame::default();
        (self.poll_transmit_into(now, Train::NONE, &mut frame) > 0).then_some(frame)
    }

    /// Does the same as [`Stack::poll_transmit`], for a caller that fills the same frame again and
    /// again, and can use trains. Returns the number of segments that the frame stands for: 0 when
    /// there is no frame, and `frame` then has no meaning.
    #[inline]
    pub fn poll_transmit_into(&mut self, now: Instant, train: Train, frame: &mut TxFrame) -> u32 {
        self.update_deferred();
        if self.has_answers() && self.transmit_answer(now, frame) {
            return 1;
        }
        while let Some(index) = self.ready.front() {
            // A train that the port cuts is one unit: it costs little more than a segment.
            let most = if train.by_port { train.segments } else { TURN - self.turn };
            let train = Train { segments: train.segments.min(most), ..train };
            let (sent, more) = self.transmit(now, index, train, frame);
            if sent > 0 && !more {
                (self.turn, self.answered) = (0, 0);
                self.ready.pop();
                return sent;
            }
            if sent > 0 {
                self.turn += sent;
                if self.turn >= TURN {
                    (self.turn, self.answered) = (0, 0);
                    self.ready.rotate();
                }
                return sent;
            }
            self.turn = 0;
            self.ready.pop();
            self.update_idle(index);
        }
        // No connection waits any more.
        u32::from(self.has_answers() && self.transmit_answer(now, frame))
    }

    /// Returns true if a frame waits that belongs to no connection.
    #[inline]
    pub(super) fn has_answers(&self) -> bool {
        !self.control.is_empty() || self.half_opens.has_due()
    }

    /// Fills `frame` with a frame that belongs to no connection. The frames of handshakes take turns
    /// with connections, as one connection more: a flood of SYNs does not keep connections waiting.
    /// Returns false when there is none, or when it is a connection's turn.
    #[inline(never)]
    fn transmit_answer(&mut self, now: Instant, frame: &mut TxFrame) -> bool {
        if let Some(control) = self.control.pop() {
            *frame = control;
            return true;
        }
        if self.answered >= TURN && !self.ready.is_empty() {
            return false;
        }
        self.answered += 1;
        if let Some(handshake) = self.control.pop_handshake() {
            *frame = handshake;
            return true;
        }
        self.transmit_half_open(now, frame)
    }

    /// Fills `frame` with the next segment of a connection, or with a train. Returns the number of
    /// segments, and whether the connection may have more to send, or something to tell.
    #[inline]
    fn transmit(
        &mut self,
        now: Instant,
        index: u32,
        train: Train,
        frame: &mut TxFrame,
    ) -> (u32, bool) {
        let id = self.conns.id(index);
        let none = (0, true);
        let Some(e) = self.conns.get_mut(index).filter(|e| !e.is_waiting()) else { return none };
        let mac = match e.next_hop {
            NextHop::Neighbor(n) => self.neighbors.mac(n),
            NextHop::Station(mac) => Some(mac),
        };
        let Some(mac) = mac else { return none };
        let mut seg = match e.owner {
            Owner::Released { end } => e.conn.poll_transmit(now, &Drained(end)),
            _ => e.conn.poll_transmit(now, &e.user),
        };
        let Some(seg) = &mut seg else { return none };
        let (mut segments, mut body) = (1, TxBody::None);
        if seg.len > 0 {
            let (pos, segment, retransmit) = (seg.pos, seg.len, seg.retransmit);
            let mut len = segment;
            let plain = seg.flags == Flags::ACK || e.conn.counts_in_train(seg, train);
            if train.segments > 1 && plain && matches!(e.owner, Owner::Held) {
                (segments, len) = e.conn.extend(&e.user, seg, train);
            }
            body = TxBody::Stream { conn: id, pos, len, segment, retransmit };
        }
        frame.body = body;
        e.template.fill(mac, seg, e.conn.sack_blocks(), self.offloads, frame);
        let more = e.conn.wants_transmit(e.end()) || e.has_changed();
        e.arm(&mut self.timers, index);
        self.counters.tx_segments += u64::from(segments);
        (segments, more)
    }

    /// Queues a frame that belongs to no connection. Returns false when too many frames of its kind
    /// wait.
    pub(super) fn push_control(&mut self, kind: Control, frame: TxFrame) -> bool {
        let fits = self.control.push(kind, frame);
        self.counters.tx_control_full += u64::from(!fits);
        fits
    }
}
