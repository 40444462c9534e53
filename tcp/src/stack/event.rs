//! The events and errors that a stack reports to its owner.

use core::net::SocketAddr;

use crate::ConnEvent;

/// An event of a connection; the owner takes it with
/// [`Stack::poll_event`](crate::Stack::poll_event).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackEvent {
    /// A peer's connection is established and now belongs to the owner.
    Accepted {
        /// Our end. Its port is the one listened on.
        local: SocketAddr,
        /// The peer's end.
        remote: SocketAddr,
    },
    /// The connection reported this event.
    Conn(ConnEvent),
    /// The next hop does not answer: the connection that was being opened, or whose route has
    /// changed, is over.
    Unreachable,
    /// The address of our end is ours no more, or there is no longer a route to the peer
    /// ([`Stack::set_addressing`](crate::Stack::set_addressing)). The stack sends the peer a reset.
    Withdrawn,
    /// The network reports that it does not get through to the peer. The connection continues (RFC
    /// 5461, RFC 9293 section 3.9.2.2).
    SoftError(IcmpError),
}

/// A kind of event. The stack reports waiting events in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    Accepted,
    Connected,
    Unresponsive,
    Stalled,
    SoftError,
    PeerClosed,
    Closed,
    Reset,
    TimedOut,
    WindowShut,
    Refused,
    Aborted,
    Unreachable,
    Withdrawn,
}

impl EventKind {
    const ALL: [EventKind; 14] = [
        EventKind::Accepted,
        EventKind::Connected,
        EventKind::Unresponsive,
        EventKind::Stalled,
        EventKind::SoftError,
        EventKind::PeerClosed,
        EventKind::Closed,
        EventKind::Reset,
        EventKind::TimedOut,
        EventKind::WindowShut,
        EventKind::Refused,
        EventKind::Aborted,
        EventKind::Unreachable,
        EventKind::Withdrawn,
    ];

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// Asserts that the bit of each kind equals its place in `ALL`.
const _: () = {
    let mut n = 0;
    while n < EventKind::ALL.len() {
        assert!(EventKind::ALL[n] as usize == n);
        n += 1;
    }
};

impl From<ConnEvent> for EventKind {
    fn from(event: ConnEvent) -> EventKind {
        match event {
            ConnEvent::Connected => EventKind::Connected,
            ConnEvent::Unresponsive => EventKind::Unresponsive,
            ConnEvent::Stalled => EventKind::Stalled,
            ConnEvent::PeerClosed => EventKind::PeerClosed,
            ConnEvent::Closed => EventKind::Closed,
            ConnEvent::Reset => EventKind::Reset,
            ConnEvent::TimedOut => EventKind::TimedOut,
            ConnEvent::WindowShut => EventKind::WindowShut,
            ConnEvent::Refused => EventKind::Refused,
            ConnEvent::Aborted => EventKind::Aborted,
        }
    }
}

/// Events that the owner has not taken yet. A set suffices, because each kind waits at most once.
/// The data of an event are read from the connection when the owner takes the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PendingEvents(u16);

impl PendingEvents {
    pub(super) fn insert(&mut self, kind: EventKind) {
        self.0 |= kind.bit();
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn pop(&mut self) -> Option<EventKind> {
        let kind = EventKind::ALL.get(self.0.trailing_zeros() as usize)?;
        self.0 &= !kind.bit();
        Some(*kind)
    }
}

/// An ICMP error about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IcmpError {
    /// Destination unreachable, with the code on the wire (RFC 792).
    Unreachable(u8),
    /// The TTL ran out on the way.
    TimeExceeded,
}
