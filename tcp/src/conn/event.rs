//! What a connection tells its owner.

/// A change the owner must know of; taken with
/// [`Connection::poll_event`](crate::Connection::poll_event).
///
/// At most one of [`Closed`](ConnEvent::Closed), [`Reset`](ConnEvent::Reset),
/// [`TimedOut`](ConnEvent::TimedOut), [`WindowShut`](ConnEvent::WindowShut),
/// [`Refused`](ConnEvent::Refused) and [`Aborted`](ConnEvent::Aborted) comes, and nothing comes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnEvent {
    /// The handshake is done: data can flow both ways.
    Connected,
    /// Several retransmissions in a row went unanswered (R1 of RFC 9293 section 3.8.3); the
    /// connection goes on. It may come more than once.
    Unresponsive,
    /// The peer's window has been shut for half of what
    /// [`ConnConfig::zero_window`](crate::ConnConfig::zero_window) allows, and something waits for
    /// it; the connection goes on. Once for each such time.
    Stalled,
    /// The peer's FIN has been reached: every byte before it was accepted, none will follow.
    PeerClosed,
    /// The orderly end: both FINs are sent and acknowledged. TIME-WAIT may still run.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// The peer did not answer for too long, never sent its FIN, or let an orderly close stand
    /// still.
    TimedOut,
    /// The peer answered, and kept its window shut for longer than
    /// [`ConnConfig::zero_window`](crate::ConnConfig::zero_window).
    WindowShut,
    /// The peer answered our SYN with a reset.
    Refused,
    /// The owner ended it: [`Connection::abort`](crate::Connection::abort), or a
    /// [`close`](crate::Connection::close) before there was a connection.
    Aborted,
}

impl ConnEvent {
    /// In the order they are given out when several wait.
    const ALL: [ConnEvent; 10] = [
        ConnEvent::Connected,
        ConnEvent::Unresponsive,
        ConnEvent::Stalled,
        ConnEvent::PeerClosed,
        ConnEvent::Closed,
        ConnEvent::Reset,
        ConnEvent::TimedOut,
        ConnEvent::WindowShut,
        ConnEvent::Refused,
        ConnEvent::Aborted,
    ];

    const fn bit(self) -> u16 {
        1 << self as u8
    }
}

/// The bit of each event is that of its place.
const _: () = {
    let mut n = 0;
    while n < ConnEvent::ALL.len() {
        assert!(ConnEvent::ALL[n] as usize == n);
        n += 1;
    }
};

/// Events not yet taken: a set, since each kind waits at most once and their order is fixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Events(u16);

impl Events {
    pub(super) fn push(&mut self, e: ConnEvent) {
        self.0 |= e.bit();
    }

    #[inline]
    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<ConnEvent> {
        if self.is_empty() {
            return None;
        }
        let e = ConnEvent::ALL.get(self.0.trailing_zeros() as usize)?;
        self.0 &= !e.bit();
        Some(*e)
    }
}
