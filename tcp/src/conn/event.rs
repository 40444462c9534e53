//! The events that a connection reports to its owner.

/// A change that the owner must know; the owner takes it with
/// [`Connection::poll_event`](crate::Connection::poll_event).
///
/// A connection reports at most one of [`Closed`](ConnEvent::Closed), [`Reset`](ConnEvent::Reset),
/// [`TimedOut`](ConnEvent::TimedOut), [`WindowShut`](ConnEvent::WindowShut),
/// [`Refused`](ConnEvent::Refused) and [`Aborted`](ConnEvent::Aborted), and nothing after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnEvent {
    /// The handshake is done: data can flow both ways.
    Connected,
    /// The peer left several retransmissions in a row unanswered (R1 of RFC 9293 section 3.8.3).
    /// The connection continues. This event may come more than once.
    Unresponsive,
    /// The peer's window has been shut for half of the time that
    /// [`ConnConfig::zero_window`](crate::ConnConfig::zero_window) allows, and bytes wait for the
    /// window. The connection continues, and reports this event once for each such stall.
    Stalled,
    /// The connection reached the peer's FIN: the owner accepted every byte before it, and none
    /// will follow.
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
    /// The owner ended the connection: [`Connection::abort`](crate::Connection::abort), or a
    /// [`close`](crate::Connection::close) before there was a connection.
    Aborted,
}

impl ConnEvent {
    /// All events, in the order in which `poll_event` returns them when several wait.
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

/// Asserts that the bit of each event equals its place in `ALL`.
const _: () = {
    let mut n = 0;
    while n < ConnEvent::ALL.len() {
        assert!(ConnEvent::ALL[n] as usize == n);
        n += 1;
    }
};

/// The bit of a note for the stack; no event has it.
const NOTE: u16 = 1 << 15;
const _: () = assert!(ConnEvent::ALL.len() < 15);

/// Events that the owner has not yet taken. A set suffices, because each kind waits at most once
/// and the order is fixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Events(u16);

impl Events {
    pub(super) fn push(&mut self, e: ConnEvent) {
        self.0 |= e.bit();
    }

    /// Makes a note for the stack, which takes it with [`Events::take_note`]: no event of the owner.
    pub(super) fn note(&mut self) {
        self.0 |= NOTE;
    }

    /// Returns true if there was a note, and takes it.
    pub(super) fn take_note(&mut self) -> bool {
        let noted = self.0 & NOTE != 0;
        self.0 &= !NOTE;
        noted
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
