//! What the RNIC keeps for each connection, beside the TCP connection itself.

use heddle_base::StreamPos;
use heddle_iwarp::QpContext;
use heddle_tcp::{Connection, SendQueue};

use crate::frame::RnicFrame;
use crate::held::HeldBytes;
use crate::queue::FpduQueue;

/// The owner's side of one TCP connection.
#[derive(Debug)]
pub(crate) struct ConnState<F> {
    pub(crate) queue: FpduQueue,
    pub(crate) held: HeldBytes<F>,
    pub(crate) mode: Mode,
    /// One past the last received byte that is in order.
    pub(crate) rx_next: StreamPos,
    /// Start-up bytes the control plane has been given.
    pub(crate) startup_told: u32,
    /// An event about more of them waits.
    pub(crate) startup_event: bool,
    /// On the list of connections whose queue pair may have FPDUs to make.
    pub(crate) on_ready_list: bool,
    /// The stream is over, or drained, or a Terminate is queued: close the TCP connection once it is out.
    pub(crate) closing: bool,
    /// Its place among the connections with a running queue pair, while it has one.
    pub(crate) running_at: u32,
    /// How far its streams were when it was last looked at, modulo 2^32.
    seen: u32,
}

/// How received bytes are understood.
#[derive(Debug, Default)]
pub(crate) enum Mode {
    /// MPA start-up: bytes go to the control plane.
    #[default]
    Startup,
    /// FPDUs: bytes go to the queue pair.
    Fpdu(Box<QpContext>),
    /// The connection is over.
    Dead,
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
            closing: false,
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
    /// Whether its streams have moved since this was last asked. If they have not, what its queues
    /// have in memory and do not need is given back.
    pub(crate) fn rest(&mut self, tcp: &mut Connection) -> bool {
        let Mode::Fpdu(qp) = &mut self.mode else { return false };
        let far = qp.tx_end().0.wrapping_add(qp.rx_next().0);
        let far = u32::try_from(far & 0xffff_ffff).unwrap_or(0);
        if core::mem::replace(&mut self.seen, far) != far {
            return true;
        }
        qp.trim();
        self.queue.trim();
        self.held.trim();
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
