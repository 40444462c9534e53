//! State that the RNIC keeps for each connection, beside the TCP connection itself.

use heddle_base::StreamPos;
use heddle_iwarp::{QpConfig, QpContext, QpCounters, QpEvent, Side};
use heddle_mr::Memory;
use heddle_tcp::{Connection, SendQueue};
use heddle_types::{CloseReason, ConnId, TerminatePayload};

use crate::event::Event;
use crate::frame::RnicFrame;
use crate::held::{HeldBytes, HoldPool};
use crate::queue::FpduQueue;
use crate::receive::Sink;
use crate::shared::Shared;

/// The RNIC's state of one TCP connection. The fields that every segment touches are last: TCP's
/// follow them in memory.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ConnState<F> {
    pub(crate) queue: FpduQueue,
    /// The connection's place in `Running::list`, while it has a running queue
    /// pair.
    pub(crate) running_at: u32,
    /// The queue pair's progress when [`rest`](ConnState::rest) last looked at it, modulo 2^16.
    seen: u16,
    /// Start-up bytes that the RNIC has given to the control plane.
    pub(crate) startup_told: u16,
    /// The index of the other end, while the RNIC hands FPDUs over to it and does not send them;
    /// [`NO_PARTNER`] otherwise.
    pub(crate) partner: u32,
    /// An event about more start-up bytes waits.
    pub(crate) startup_event: bool,
    /// The connection is on the list of connections whose queue pair may have FPDUs to make.
    pub(crate) on_ready_list: bool,
    /// The connection is on the list of connections whose queue pair has completions.
    pub(crate) on_completed_list: bool,
    /// The stream is over, or drained, or the queue pair has queued a Terminate: the RNIC closes
    /// the TCP connection after the last FPDU has left the queue pair.
    pub(crate) closing: bool,
    /// The position after the last received byte that is in order.
    pub(crate) rx_next: StreamPos,
    pub(crate) held: HeldBytes<F>,
    pub(crate) mode: Mode,
}

/// No connection has this index.
pub(crate) const NO_PARTNER: u32 = u32::MAX;

/// How the RNIC interprets received bytes.
#[derive(Debug, Default)]
pub(crate) enum Mode {
    /// MPA start-up: the control plane gets the bytes.
    #[default]
    Startup,
    /// FPDUs: the queue pair gets the bytes.
    Fpdu(Box<QpContext>),
    /// The connection is over. The reason is set if the RNIC reset the connection for a reason to
    /// report.
    Dead(Option<CloseReason>),
}

impl<F> Default for ConnState<F> {
    fn default() -> Self {
        ConnState {
            queue: FpduQueue::default(),
            held: HeldBytes::default(),
            mode: Mode::Startup,
            rx_next: StreamPos::START,
            startup_told: 0,
            startup_event: false,
            on_ready_list: false,
            on_completed_list: false,
            closing: false,
            partner: NO_PARTNER,
            running_at: 0,
            seen: 0,
        }
    }
}

impl<F> ConnState<F> {
    pub(crate) fn qp(&mut self) -> Option<&mut QpContext> {
        match &mut self.mode {
            Mode::Fpdu(qp) => Some(qp),
            _ => None,
        }
    }
}

impl<F: RnicFrame> ConnState<F> {
    /// Makes the queue pair. The start-up has used `startup_len` bytes of the held bytes; in each
    /// direction, the stream of FPDUs begins after the bytes of the start-up.
    pub(crate) fn enter_fpdu(
        &mut self,
        startup_len: usize,
        mut config: QpConfig,
        pool: &mut HoldPool<F>,
    ) {
        let held = self.held.ready_len();
        self.held.consume(pool, startup_len);
        config.tx_start = self.queue.end();
        // `rx_next` is after all ready bytes: go back to the first byte after the start-up.
        config.rx_start = self.rx_next;
        config.rx_start.0 =
            config.rx_start.0.saturating_sub(held.saturating_sub(startup_len) as u64);
        self.mode = Mode::Fpdu(Box::new(QpContext::new(&config)));
    }

    /// Returns the start-up bytes that the control plane has not been given, when it asks for them.
    pub(crate) fn take_startup(&mut self) -> Option<Vec<u8>> {
        self.startup_event = false;
        // The start-up may have ended since the event was queued, in success or failure.
        let new = self.held.ready_len().saturating_sub(self.startup_told.into());
        if !matches!(self.mode, Mode::Startup) || new == 0 {
            return None;
        }
        // Start-up bytes are a few KiB at most (`STARTUP_HOLD`), so the count fits.
        let all = usize::from(self.startup_told) + new;
        self.startup_told = u16::try_from(all).unwrap_or(u16::MAX);
        Some(self.held.last_ready(new))
    }

    /// Puts the connection on the list of connections that may have FPDUs to make.
    #[inline]
    pub(crate) fn make_ready(&mut self, conn: ConnId, shared: &mut Shared<F>) {
        if !self.on_ready_list {
            self.on_ready_list = true;
            if self.partner == NO_PARTNER {
                shared.ready.push_back(conn);
            } else {
                shared.handed.ready.push_back(conn);
            }
        }
    }

    /// Takes events out of the queue pair, and puts the connection on the lists of connections with
    /// completions and of connections that may have FPDUs to make, as they apply. Returns true if
    /// the caller must close the TCP connection.
    #[inline(never)]
    #[must_use]
    pub(crate) fn drain(&mut self, conn: ConnId, tcp: &Connection, shared: &mut Shared<F>) -> bool {
        let close = self.has_news() && self.collect(conn, tcp, shared);
        let Mode::Fpdu(qp) = &mut self.mode else { return close };
        if qp.has_transmit() {
            self.make_ready(conn, shared);
        }
        close
    }

    /// Returns true if [`collect`](Self::collect) has something to do.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        let Mode::Fpdu(qp) = &self.mode else { return false };
        self.closing || qp.has_events() || qp.has_completions() && !self.on_completed_list
    }

    /// Takes events out of the queue pair, and queues the connection so that the owner takes its
    /// completions. Returns true if the caller must close the TCP connection: the stream is over
    /// and the queue pair has nothing left to send on it.
    #[must_use]
    pub(crate) fn collect(
        &mut self,
        conn: ConnId,
        tcp: &Connection,
        shared: &mut Shared<F>,
    ) -> bool {
        let Mode::Fpdu(qp) = &mut self.mode else { return false };
        while let Some(event) = qp.poll_event() {
            // `ended`: the stream ended by an error. `withdraw`: the peer needs no FPDU that TCP
            // has not begun to send.
            let (ended, withdraw) = match event {
                QpEvent::Terminated { by, .. } => (true, by == Side::Remote || qp.has_transmit()),
                QpEvent::Failed { .. } | QpEvent::Truncated(_) => (true, true),
                QpEvent::FirstFpdu | QpEvent::Drained => (false, false),
            };
            shared.counters.rx_truncated += u64::from(matches!(event, QpEvent::Truncated(_)));
            self.closing |= ended || event == QpEvent::Drained;
            if ended && shared.shares.are_several() {
                // The connection may wait for its share or a rate; a Terminate waits for neither.
                self.on_ready_list = true;
                shared.ready.push_back(conn);
            }
            if withdraw {
                // Our own Terminate replaces the withdrawn FPDUs. If the Terminate is queued
                // already, it is about a local request, and the peer still carries out the FPDUs
                // before it.
                let end = self.queue.withdraw(&mut shared.kept, tcp.snd_max());
                qp.handle_withdrawn(end);
            }
            if !matches!(event, QpEvent::Drained) {
                shared.events.push_back(Event::Qp { conn, event });
            }
            if matches!(event, QpEvent::Terminated { by: Side::Remote, .. })
                && let Some(terminate) = qp.received_terminate()
            {
                // Copy the Terminate now: the queue pair may no longer exist when the control plane
                // asks.
                let terminate = Box::new(TerminatePayload::from(terminate));
                shared.events.push_back(Event::PeerTerminate { conn, terminate });
            }
        }
        if qp.has_completions() && !self.on_completed_list {
            self.on_completed_list = true;
            shared.completed.push_back(conn);
        }
        shared.looks.wake_rounds();
        let close = self.closing && !qp.has_transmit();
        self.closing &= !close;
        close
    }

    /// Flushes the queue pair and drops the bytes that wait: TCP is over, or about to be. Returns
    /// the counters of the queue pair, if it ran until now.
    pub(crate) fn finish(
        &mut self,
        conn: ConnId,
        tcp: &Connection,
        shared: &mut Shared<F>,
    ) -> Option<QpCounters> {
        let counters = self.qp().map(|qp| {
            qp.abort();
            qp.counters()
        });
        self.held.clear(&mut shared.pool);
        let _over = self.drain(conn, tcp, shared);
        if let Some(left) = self.qp().map(QpContext::leave_completions)
            && !left.is_empty()
        {
            shared.left.push_back((conn, left));
        }
        self.mode = Mode::Dead(None);
        self.partner = NO_PARTNER;
        self.queue.clear(&mut shared.kept);
        counters
    }

    /// Feeds the queue pair the held bytes that have become ready. Returns true if there are
    /// start-up bytes to report.
    #[must_use]
    #[inline]
    pub(crate) fn advance<M: Memory>(
        &mut self,
        conn: ConnId,
        sink: Sink<'_, M>,
        shared: &mut Shared<F>,
    ) -> bool {
        while !self.held.is_empty() {
            if self.held.has_ahead() {
                let moved = self.held.close_gap(&mut shared.pool, self.rx_next);
                self.rx_next += moved as u64;
                shared.counters.rx_payload_bytes += moved as u64;
                if moved > 0 && matches!(self.mode, Mode::Startup) {
                    return true;
                }
            }
            let Mode::Fpdu(qp) = &mut self.mode else { return false };
            let env = sink.env(conn, &shared.mrs);
            if self.held.has_ready() {
                let used = qp.handle_stream(&env, &self.held.ready());
                self.held.consume(&mut shared.pool, used);
                if qp.waits_for_receive() {
                    self.note_rnr(conn, shared);
                    return false;
                }
            }
            // The held bytes may have stopped at an FPDU whose payload is already in its place.
            let Some((pos, fpdu)) = self.held.pop_placed(&mut shared.pool, self.rx_next) else {
                return false;
            };
            self.rx_next += u64::from(fpdu.len());
            shared.counters.rx_payload_bytes += u64::from(fpdu.len());
            qp.deliver(&env, pos, &fpdu);
        }
        false
    }

    /// Feeds the queue pair the held bytes that are ready.
    pub(crate) fn feed<M: Memory>(
        &mut self,
        conn: ConnId,
        sink: Sink<'_, M>,
        shared: &mut Shared<F>,
    ) {
        let Mode::Fpdu(qp) = &mut self.mode else { return };
        let env = sink.env(conn, &shared.mrs);
        let used = qp.handle_stream(&env, &self.held.ready());
        self.held.consume(&mut shared.pool, used);
        self.note_rnr(conn, shared);
    }

    /// Returns true if the queue pair has made progress since the last call. If it has made none,
    /// this function frees the memory that the queues of the connection do not need.
    pub(crate) fn rest(&mut self, tcp: &mut Connection, pool: &mut HoldPool<F>) -> bool {
        let Mode::Fpdu(qp) = &mut self.mode else { return false };
        let far = u16::try_from(qp.progress() & 0xffff).unwrap_or(0);
        if core::mem::replace(&mut self.seen, far) != far {
            return true;
        }
        qp.trim();
        self.queue.trim();
        self.held.trim(pool);
        tcp.trim();
        false
    }
}

impl<F> SendQueue for ConnState<F> {
    fn end(&self) -> StreamPos {
        self.queue.end()
    }

    #[inline]
    fn segment_len(&self, from: StreamPos, max: u32) -> u32 {
        self.queue.segment_len(from, max)
    }

    fn bytes_in_a_row(&self, from: StreamPos) -> u64 {
        self.queue.bytes_in_a_row(from)
    }

    #[inline]
    fn segments_alike(&self, from: StreamPos, len: u32, max: u32, most: u32) -> u32 {
        self.queue.segments_alike(from, len, max, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost of a connection without posted requests or bytes in flight, beside TCP's share:
    /// this struct and a fresh queue pair, neither of which points to more memory.
    #[test]
    fn test_idle_connection_is_small() {
        let bytes = size_of::<ConnState<Vec<u8>>>() + size_of::<QpContext>();
        assert!(bytes <= 640, "{bytes} bytes");
        assert_eq!(FpduQueue::default().room(), 0);
    }
}
