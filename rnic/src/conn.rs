//! What the RNIC keeps for each connection, beside the TCP connection itself.

use heddle_base::StreamPos;
use heddle_iwarp::{Memory, QpConfig, QpContext, QpCounters, QpEvent, Side};
use heddle_tcp::{ConnId, Connection, SendQueue};

use crate::event::{CloseReason, Event};
use crate::frame::RnicFrame;
use crate::held::{HeldBytes, HoldPool};
use crate::queue::FpduQueue;
use crate::receive::Sink;
use crate::shared::Shared;

/// The owner's side of one TCP connection.
#[derive(Debug)]
pub(crate) struct ConnState<F> {
    pub(crate) queue: FpduQueue,
    pub(crate) held: HeldBytes<F>,
    pub(crate) mode: Mode,
    /// One past the last received byte that is in order.
    pub(crate) rx_next: StreamPos,
    /// Start-up bytes the control plane has been given.
    pub(crate) startup_told: u16,
    /// An event about more of them waits.
    pub(crate) startup_event: bool,
    /// On the list of connections whose queue pair may have FPDUs to make.
    pub(crate) on_ready_list: bool,
    /// On the list of those whose queue pair has completions.
    pub(crate) on_completed_list: bool,
    /// The stream is over, or drained, or a Terminate is queued: close the TCP connection once it
    /// is out.
    pub(crate) closing: bool,
    /// The index of the other end, while FPDUs are handed over to it and not sent; [`NO_PARTNER`] otherwise.
    pub(crate) partner: u32,
    /// Its place among the connections with a running queue pair, while it has one.
    pub(crate) running_at: u32,
    /// How far its queue pair was when it was last looked at, modulo 2^16.
    seen: u16,
}

/// No connection has this index.
pub(crate) const NO_PARTNER: u32 = u32::MAX;

/// How received bytes are understood.
#[derive(Debug, Default)]
pub(crate) enum Mode {
    /// MPA start-up: bytes go to the control plane.
    #[default]
    Startup,
    /// FPDUs: bytes go to the queue pair.
    Fpdu(Box<QpContext>),
    /// The connection is over; why we have reset it, where there is a reason to tell.
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
    /// Makes the queue pair. The start-up has used `startup_len` octets of what is held; both streams
    /// of FPDUs begin behind theirs.
    pub(crate) fn enter_fpdu(
        &mut self,
        startup_len: usize,
        mut config: QpConfig,
        pool: &mut HoldPool<F>,
    ) {
        let held = self.held.ready_len();
        self.held.consume(pool, startup_len);
        config.tx_start = self.queue.end();
        config.rx_start = self.rx_next;
        config.rx_start.0 =
            config.rx_start.0.saturating_sub(held.saturating_sub(startup_len) as u64);
        self.mode = Mode::Fpdu(Box::new(QpContext::new(&config)));
    }

    /// The start-up bytes the control plane has not been given, when it asks for them.
    pub(crate) fn take_startup(&mut self) -> Option<Vec<u8>> {
        self.startup_event = false;
        // The start-up may be over by now, one way or the other.
        let new = self.held.ready_len().saturating_sub(self.startup_told.into());
        if !matches!(self.mode, Mode::Startup) || new == 0 {
            return None;
        }
        // It is a few KiB at most.
        let all = usize::from(self.startup_told) + new;
        self.startup_told = u16::try_from(all).unwrap_or(u16::MAX);
        Some(self.held.last_ready(new))
    }

    /// Puts the connection on the list of those that may have FPDUs to make.
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

    /// Takes events out of the queue pair, and puts the connection on the lists it belongs on: of those
    /// with completions, and of those that may have FPDUs to make. True when the TCP connection is to
    /// be closed.
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

    /// Whether [`collect`](Self::collect) has something to do.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        let Mode::Fpdu(qp) = &self.mode else { return false };
        self.closing || qp.has_events() || qp.has_completions() && !self.on_completed_list
    }

    /// Takes events out of the queue pair, and sees to it that its completions are taken. True when the
    /// TCP connection is to be closed: the stream is over and nothing is left to be made of it.
    #[must_use]
    pub(crate) fn collect(
        &mut self,
        conn: ConnId,
        tcp: &Connection,
        shared: &mut Shared<F>,
    ) -> bool {
        let Mode::Fpdu(qp) = &mut self.mode else { return false };
        while let Some(event) = qp.poll_event() {
            // By an error; and nobody needs what TCP has not begun to send.
            let (ended, withdraw) = match event {
                QpEvent::Terminated { by, .. } => (true, by == Side::Remote || qp.has_transmit()),
                QpEvent::Failed { .. } | QpEvent::Truncated(_) => (true, true),
                QpEvent::FirstFpdu | QpEvent::Drained => (false, false),
            };
            shared.counters.rx_truncated += u64::from(matches!(event, QpEvent::Truncated(_)));
            self.closing |= ended || event == QpEvent::Drained;
            if withdraw {
                // A Terminate of ours goes in its place. If that is queued already, it is about a
                // local request, and those before it are still carried out.
                let end = self.queue.withdraw(&mut shared.kept, tcp.snd_max());
                qp.handle_withdrawn(end);
            }
            if !matches!(event, QpEvent::Drained) {
                shared.events.push_back(Event::Qp { conn, event });
            }
            if matches!(event, QpEvent::Terminated { by: Side::Remote, .. })
                && let Some(terminate) = qp.received_terminate()
            {
                // Now: the queue pair may be gone before the control plane could ask.
                let terminate = Box::new(*terminate);
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

    /// Flushes the queue pair and drops what waits: TCP is over, or about to be. What the queue pair
    /// has counted, if it ran until now.
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

    /// Feeds the queue pair what has become ready among the held bytes. True when there are start-up
    /// bytes to tell of.
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
            // What stopped the bytes may be an FPDU whose payload is in its place.
            let Some((pos, fpdu)) = self.held.pop_placed(&mut shared.pool, self.rx_next) else {
                return false;
            };
            self.rx_next += u64::from(fpdu.len());
            shared.counters.rx_payload_bytes += u64::from(fpdu.len());
            qp.deliver(&env, pos, &fpdu);
        }
        false
    }

    /// Feeds the queue pair what is ready among the held bytes.
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

    /// Whether its queue pair has got on since this was last asked. If it has not, what its queues
    /// have in memory and do not need is given back.
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

    fn segment_len(&self, from: StreamPos, max: u32) -> u32 {
        self.queue.segment_len(from, max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a connection without posted requests or bytes under way costs here, beside TCP's share:
    /// this and a fresh queue pair, neither of which points to more.
    #[test]
    fn test_idle_connection_is_small() {
        let octets = size_of::<ConnState<Vec<u8>>>() + size_of::<QpContext>();
        assert!(octets <= 640, "{octets} octets");
        assert_eq!(FpduQueue::default().room(), 0);
    }
}
