//! The frames to send and their order: control frames first, then the connections in turn.

use heddle_base::Instant;

use super::Stack;
use super::control::Control;
use super::frame::{TxBody, TxFrame};
use super::slab::{Drained, NextHop, Owner};
use super::template::HeaderTemplate;
use crate::{SendQueue, TxSegment};
use heddle_types::ConnId;

/// The segment sent last.
#[derive(Debug)]
pub(super) struct Last {
    conn: ConnId,
    seg: TxSegment,
    /// Its checksum field before the payload's sum was added.
    field: u16,
}

impl Default for Last {
    fn default() -> Last {
        Last { conn: ConnId::NONE, seg: TxSegment::default(), field: 0 }
    }
}

/// Segments that a connection sends before the turn of the next connection: enough to keep its
/// state in the cache, and few enough that no connection waits long.
const TURN: u32 = 16;

impl<S: SendQueue + Default> Stack<S> {
    /// Returns the next frame to send. The worker that owns the stack calls this function until it
    /// returns `None`, or for as long as the port has room. A returned frame counts as sent.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<TxFrame> {
        let mut frame = TxFrame::default();
        self.poll_transmit_into(now, &mut frame).then_some(frame)
    }

    /// Does the same as [`Stack::poll_transmit`], for a caller that fills the same frame again and
    /// again. Returns false when there is no frame; `frame` then has no meaning.
    #[inline]
    pub fn poll_transmit_into(&mut self, now: Instant, frame: &mut TxFrame) -> bool {
        self.update_deferred();
        if self.follow(now, frame) {
            return true;
        }
        if let Some(control) = self.control.pop() {
            *frame = control;
            return true;
        }
        while let Some(index) = self.ready.front() {
            if self.transmit(now, index, frame) {
                self.turn += 1;
                if self.turn >= TURN {
                    self.turn = 0;
                    self.ready.rotate();
                }
                return true;
            }
            self.turn = 0;
            self.ready.pop();
            self.update_idle(index);
        }
        false
    }

    /// Turns the frame that was returned last into the next frame, when the two differ only in
    /// their place in the stream: the segments of a long message, except the first of a turn and
    /// the last.
    #[inline]
    fn follow(&mut self, now: Instant, frame: &mut TxFrame) -> bool {
        let TxBody::Stream { conn, pos, .. } = frame.body else { return false };
        let Last { conn: last_conn, seg, field } = &mut self.last;
        if conn != *last_conn
            || pos != seg.pos
            || self.turn == 0
            || self.turn + 1 >= TURN
            || !self.control.is_empty()
        {
            return false;
        }
        let Some(e) = self.conns.held_mut(conn).filter(|e| !e.is_waiting()) else { return false };
        if !e.conn.follow(now, &e.user, seg) {
            return false;
        }
        let seq = seg.seq.advance(seg.len);
        *field = HeaderTemplate::advance(seg, seq, *field, frame);
        seg.seq = seq;
        seg.pos += u64::from(seg.len);
        if let TxBody::Stream { pos, .. } = &mut frame.body {
            *pos = seg.pos;
        }
        self.turn += 1;
        self.counters.tx_segments += 1;
        true
    }

    /// Fills `frame` with the next segment of a connection.
    #[inline]
    fn transmit(&mut self, now: Instant, index: u32, frame: &mut TxFrame) -> bool {
        let id = self.conns.id(index);
        let Some(e) = self.conns.get_mut(index).filter(|e| !e.is_waiting()) else { return false };
        let mac = match e.next_hop {
            NextHop::Neighbor(n) => self.neighbors.mac(n),
            NextHop::Station(mac) => Some(mac),
        };
        let Some(mac) = mac else { return false };
        let seg = match e.owner {
            Owner::Released { end } => e.conn.poll_transmit(now, &Drained(end)),
            _ => e.conn.poll_transmit(now, &e.user),
        };
        let Some(seg) = seg else { return false };
        let body = match seg.len {
            0 => TxBody::None,
            len => TxBody::Stream { conn: id, pos: seg.pos, len, retransmit: seg.retransmit },
        };
        let field = e.template.fill(mac, &seg, e.conn.sack_blocks(), body, self.offloads, frame);
        self.last = Last { conn: id, seg, field };
        if let Some(at) = e.conn.poll_timeout() {
            self.timers.arm(index, at);
        }
        self.counters.tx_segments += 1;
        true
    }

    /// Queues a frame that belongs to no connection. Returns false when too many frames of its kind
    /// wait.
    pub(super) fn push_control(&mut self, kind: Control, frame: TxFrame) -> bool {
        let fits = self.control.push(kind, frame);
        self.counters.tx_control_full += u64::from(!fits);
        fits
    }
}
