//! What a stack tells its owner, and what it refuses.

use core::net::SocketAddr;

use crate::ConnEvent;

/// Something happened to a connection; taken with
/// [`Stack::poll_event`](crate::Stack::poll_event).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackEvent {
    /// A peer's connection is established and now belongs to the owner.
    Accepted {
        /// Our end, whose port is the one listened on.
        local: SocketAddr,
        /// The peer's end.
        remote: SocketAddr,
    },
    /// The connection says so.
    Conn(ConnEvent),
    /// The next hop does not answer: the connection that was being opened, or whose route has
    /// changed, is over.
    Unreachable,
    /// Our end's address is ours no more, or there is no route to the peer any more
    /// ([`Stack::set_addressing`](crate::Stack::set_addressing)): the peer is sent a reset.
    Withdrawn,
    /// The network says that it does not get through to the peer. The connection goes on
    /// (RFC 5461, RFC 9293 section 3.9.2.2).
    SoftError(IcmpError),
}

/// A kind of event, in the order in which several that wait are told.
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

/// The bit of each kind is that of its place.
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

/// Events not taken yet: a set, for each kind waits at most once. What is told with an event is
/// what the connection shows when it is taken.
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

/// Why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ConnectError {
    /// The remote address or port is not one a single other host has.
    #[error("not the address of a peer")]
    InvalidRemote,
    /// The address family is not served.
    #[error("address family not supported")]
    Family,
    /// On no link of ours, and no route leads there.
    #[error("no route to the peer")]
    NoRoute,
    /// The address to connect from is not one of ours.
    #[error("the local address is not ours")]
    NotOurs,
    /// The local port has a connection to this peer already; or, of a port to be chosen, none of
    /// those looked at is free: 256 at a time, further ones each time it is tried again.
    #[error("no local port free")]
    PortInUse,
    /// The peer's answers to the local port would reach another worker of the port; or, of a port
    /// to be chosen, those to any would.
    #[error("the peer's answers would reach another worker")]
    Elsewhere,
    /// There are as many connections as configured.
    #[error("too many connections")]
    TooManyConnections,
    /// There are as many neighbors in use as configured.
    #[error("too many neighbors")]
    TooManyNeighbors,
}
