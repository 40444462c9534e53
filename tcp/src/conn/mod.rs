//! One TCP connection.

mod config;
mod event;
mod state;
mod stats;

pub use config::ConnConfig;
pub use event::ConnEvent;
pub use state::State;
pub use stats::{ConnCounters, ConnStats};

use crate::{Segment, SegmentOutcome, SendQueue, SeqNumber, TxSegment};
use heddle_base::{Instant, StreamPos};

/// A TCP connection.
#[derive(Clone, Debug)]
pub struct Connection {
    state: State,
}

#[allow(unused_variables, missing_docs)]
impl Connection {
    /// Active open: a connection that sends a SYN with the initial sequence number `iss`.
    /// `ts_offset` is added to the timestamp clock (RFC 7323 section 7.1).
    pub fn connect(cfg: &ConnConfig, now: Instant, iss: SeqNumber, ts_offset: u32) -> Connection {
        Connection { state: State::SynSent }
    }

    /// Passive open: a connection in SYN-RECEIVED that answers `syn`.
    pub fn accept(
        cfg: &ConnConfig,
        now: Instant,
        iss: SeqNumber,
        ts_offset: u32,
        syn: &Segment,
    ) -> Connection {
        Connection { state: State::SynReceived }
    }

    pub fn handle_segment(&mut self, now: Instant, seg: &Segment) -> SegmentOutcome {
        SegmentOutcome::default()
    }

    pub fn accept_payload(&mut self, now: Instant, pos: StreamPos, len: u32) {}

    pub fn poll_transmit<Q: SendQueue + ?Sized>(
        &mut self,
        now: Instant,
        q: &Q,
    ) -> Option<TxSegment> {
        None
    }

    pub fn wants_transmit(&self, end: StreamPos) -> bool {
        false
    }

    pub fn poll_event(&mut self) -> Option<ConnEvent> {
        None
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    pub fn handle_timeout(&mut self, now: Instant) {}

    pub fn close(&mut self) {}

    pub fn abort(&mut self) {}

    /// Changes the receive window offered from now on. The right edge already advertised stays.
    pub fn set_recv_window(&mut self, bytes: u32) {}

    /// Whether a SYN for the same addresses may replace this connection, which is in TIME-WAIT
    /// (RFC 9293 section 3.6.1, RFC 6191).
    pub fn may_be_replaced_by(&self, syn: &Segment) -> bool {
        false
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn emss(&self) -> u32 {
        536
    }

    pub fn snd_una(&self) -> StreamPos {
        StreamPos::START
    }

    pub fn snd_nxt(&self) -> StreamPos {
        StreamPos::START
    }

    pub fn rcv_nxt(&self) -> StreamPos {
        StreamPos::START
    }

    pub fn send_room(&self, end: StreamPos) -> u64 {
        0
    }

    pub fn stats(&self) -> ConnStats {
        ConnStats::default()
    }
}
