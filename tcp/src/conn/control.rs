//! Segments that go before data: resets, keepalives, SYNs.

use super::ecn::Ace;
use super::sequence::seq_of;
use super::state::State;
use super::{Connection, NEVER, Pending, Timed};
use crate::{Flags, Timestamps, TxSegment};
use heddle_base::{Instant, StreamPos};

impl Connection {
    #[cold]
    pub(super) fn control(&mut self, now: Instant) -> TxSegment {
        if self.hot.pending.take(Pending::RESET_REPLY) {
            let (seq, val) = self.cold.reset_reply;
            // RFC 7323 section 5.2: the reset echoes the timestamp of the segment that it answers.
            let timestamps = val.map(|ecr| Timestamps { val: 0, ecr });
            return TxSegment { seq, flags: Flags::RST, timestamps, ..TxSegment::default() };
        }
        if self.hot.pending.take(Pending::RESET) {
            if !self.hot.ecn.is_accurate() {
                self.hot.echo = Ace::default();
            }
            return self.segment(now, self.ack_pos(), Flags::RST.with(Flags::ACK));
        }
        if self.hot.pending.take(Pending::KEEPALIVE) {
            // The keepalive has the number before the next, so that the peer has to answer (RFC
            // 9293 section 3.8.4).
            let mut tx = self.segment(now, self.hot.snd_max, Flags::ACK);
            tx.seq = tx.seq.advance(u32::MAX);
            return tx;
        }
        if self.hot.pending.take(Pending::SYN) {
            return self.syn(now);
        }
        self.user_timeout_ack(now)
    }

    #[cold]
    fn syn(&mut self, now: Instant) -> TxSegment {
        let answer = self.hot.state == State::SynReceived;
        let flags = if answer { Flags::SYN.with(Flags::ACK) } else { Flags::SYN };
        let flags = flags.with(self.ecn_setup());
        let counts = self.first_counts();
        // A path may drop a SYN for its options.
        let user_timeout = self.own_advice().filter(|_| !self.cold.syn_sent);
        // Before the peer's SYN arrives, our SYN has nothing to echo or acknowledge, and offers
        // everything. After it, our SYN offers only the options that the peer offered too.
        let scaling = if answer { self.cold.scaling } else { self.cold.set.window_scaling };
        let stamps = if answer { self.hot.ts_ok } else { self.cold.set.timestamps };
        let window = u16::try_from(self.hot.recv_window).unwrap_or(u16::MAX);
        self.hot.rcv_adv = self.hot.rcv_adv.max(StreamPos(u64::from(window)));
        let retransmit = self.cold.syn_sent;
        if retransmit {
            self.note_retransmit(now);
        } else {
            self.hot.timed = Timed { end: StreamPos::START, at: now };
            self.cold.syn_sent = true;
        }
        self.hot.pending.clear(Pending::ACK);
        if self.hot.rtx_at == NEVER {
            self.hot.rtx_at = now + self.rto.get();
        }
        TxSegment {
            seq: seq_of(self.hot.snd_base, StreamPos::START).advance(u32::MAX),
            ack: if answer { self.rcv_seq() } else { crate::SeqNumber(0) },
            flags,
            window,
            mss: Some(self.hot.mss),
            window_scale: scaling.then_some(self.hot.rcv_shift),
            sack_permitted: if answer { self.hot.sack_ok } else { self.cold.set.sack },
            sack: 0,
            counts,
            user_timeout,
            timestamps: stamps.then(|| Timestamps {
                val: self.ts_clock(now),
                ecr: if answer { self.hot.ts_recent } else { 0 },
            }),
            pos: StreamPos::START,
            len: 0,
            retransmit,
            ect: false,
        }
    }
}
