//! Orders from a control plane to the owner of an [`Rnic`], and the owner's reports, as plain data.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use heddle_base::Instant;
use heddle_tcp::{Addressing, DatagramFilter, Keepalive, LinkNews, RxDatagram, TxDatagram, Vid};
use heddle_types::{ConnId, ConnectError, ListenAt, ListenError, RnicError, TcpTerms};

use crate::event::{Event, FpduMode};
use crate::frame::RnicFrame;
use crate::rnic::{Patience, Rnic};

/// An order to an RNIC. The RNIC carries orders out in the order in which the control plane gives
/// them.
#[derive(Clone, Debug)]
pub enum Order {
    /// Accept TCP connections; [`Report::Listening`] answers.
    Listen {
        /// A name for the order, which the answer repeats.
        token: u64,
        /// Our addresses at which to listen.
        at: ListenAt,
        /// TCP port, in host byte order.
        port: u16,
        /// Connections that may be half-open at a time.
        backlog: usize,
        /// Settings of TCP for the listener's connections.
        tcp: TcpTerms,
    },
    /// Stop the listener that an [`Order::Listen`] with the same addresses and port started;
    /// established connections go on.
    Unlisten {
        /// The listener's addresses.
        at: ListenAt,
        /// TCP port of the listener.
        port: u16,
    },
    /// Start a TCP connection; [`Report::Connecting`] answers.
    Connect {
        /// A name for the order, which the answer repeats.
        token: u64,
        /// Our address; the address on the link to the peer if `None`.
        local: Option<IpAddr>,
        /// The peer's address and port.
        remote: SocketAddr,
        /// Settings of TCP for the connection.
        tcp: TcpTerms,
    },
    /// Send bytes of the start-up dialogue; [`Report::Refused`] answers if the RNIC cannot.
    SendStartup {
        /// The connection, which must be in the start-up phase.
        conn: ConnId,
        /// The bytes, appended to those of earlier orders.
        bytes: Vec<u8>,
    },
    /// End the start-up and run a queue pair; [`Report::Entered`] always answers.
    EnterFpduMode {
        /// The connection, which must be in the start-up phase.
        conn: ConnId,
        /// The mode to enter; its [`QpConfig`](heddle_iwarp::QpConfig) names the queue pair.
        mode: Box<FpduMode>,
    },
    /// Close a connection in order.
    Disconnect {
        /// The connection to close.
        conn: ConnId,
    },
    /// Reset a connection.
    Abort {
        /// The connection to reset.
        conn: ConnId,
    },
    /// Free a connection that is closed.
    Release {
        /// The connection to free.
        conn: ConnId,
    },
    /// Use other addresses and routes from now on ([`Rnic::set_addressing`]). Listeners on an
    /// address that is no longer there end without a report; its connections end with
    /// [`CloseReason::Withdrawn`](heddle_types::CloseReason::Withdrawn).
    SetAddressing {
        /// All addresses and routes to use from now on.
        net: Box<Addressing>,
    },
    /// Announce all addresses to the hosts on the links
    /// ([`Stack::announce`](heddle_tcp::Stack::announce)).
    Announce,
    /// Ask the routers of a link to tell about themselves
    /// ([`Stack::solicit_routers`](heddle_tcp::Stack::solicit_routers)).
    SolicitRouters {
        /// The VLAN of the link.
        vid: Vid,
    },
    /// Change how TCP probes silent peers from now on, for established connections as well
    /// ([`Stack::set_keepalive`](heddle_tcp::Stack::set_keepalive)).
    SetKeepalive {
        /// The intervals of the probes; TCP never probes if `None`.
        keepalive: Option<Keepalive>,
    },
    /// Change how long the RNIC bears with peers from now on, for established connections as well
    /// ([`Rnic::set_patience`]).
    SetPatience {
        /// The new limits.
        patience: Patience,
    },
    /// Take UDP datagrams to this port, and to no other; a [`Report::Datagram`] brings each
    /// datagram.
    BindUdp {
        /// UDP port, in host byte order.
        port: u16,
        /// Decides which of the datagrams the RNIC takes, and which come from strangers.
        filter: Arc<dyn DatagramFilter>,
    },
    /// Stop taking UDP datagrams.
    UnbindUdp,
    /// Send a UDP datagram. No report answers: the stack counts and drops a datagram that it cannot
    /// send.
    SendDatagram(Box<TxDatagram>),
}

/// A report from the owner of an RNIC to a control plane.
#[derive(Clone, Debug)]
pub enum Report {
    /// A connection has an event.
    Event(Event),
    /// Outcome of [`Order::Listen`].
    Listening {
        /// The token of the order.
        token: u64,
        /// Whether the RNIC listens on the port.
        result: Result<(), ListenError>,
    },
    /// Outcome of [`Order::Connect`]. This report comes before any event of the connection.
    Connecting {
        /// The token of the order.
        token: u64,
        /// The connection that the RNIC has begun to make.
        result: Result<ConnId, ConnectError>,
    },
    /// Outcome of [`Order::EnterFpduMode`]. This report comes before any event of the queue pair.
    Entered {
        /// The connection that the order named.
        conn: ConnId,
        /// Whether the queue pair runs; if not, the order has changed nothing.
        result: Result<(), RnicError>,
    },
    /// A UDP datagram came to the port of [`Order::BindUdp`]. If many come at once, the stack drops
    /// and counts some of them.
    Datagram(Box<RxDatagram>),
    /// The stack has heard something about its links that the owner decides.
    Link(Box<LinkNews>),
    /// The RNIC could not carry out an [`Order::SendStartup`].
    Refused {
        /// The connection that the order named.
        conn: ConnId,
        /// The reason of the refusal.
        error: RnicError,
    },
}

/// A message for the control plane that no connection received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the worker's ring holds datagrams without a box")]
pub enum Arrival {
    /// A UDP datagram.
    Datagram(RxDatagram),
    /// News that the stack has heard about its links.
    News(LinkNews),
}

impl Order {
    /// Returns the order to accept TCP connections with the settings of the RNIC.
    pub fn listen(token: u64, at: ListenAt, port: u16, backlog: usize) -> Order {
        Order::Listen { token, at, port, backlog, tcp: TcpTerms::default() }
    }

    /// Returns the order to start a TCP connection from the address on the link to the peer, with the
    /// settings of the RNIC.
    pub fn connect(token: u64, remote: SocketAddr) -> Order {
        Order::Connect { token, local: None, remote, tcp: TcpTerms::default() }
    }
}

impl<F: RnicFrame> Rnic<F> {
    /// Carries out an order, and returns a report if the order gets an answer at once.
    ///
    /// [`Order::EnterFpduMode`] is the only order with a second half: if the order succeeds, this
    /// function returns no report. The owner posts the receives that wait, calls
    /// [`start`](Self::start), and then reports [`Report::Entered`] itself.
    pub fn handle_order(&mut self, now: Instant, order: Order) -> Option<Report> {
        tracing::trace!(?order, "order");
        match order {
            Order::Listen { token, at, port, backlog, tcp } => {
                let result = self.listen_with(at, port, backlog, tcp);
                Some(Report::Listening { token, result })
            }
            Order::Unlisten { at, port } => {
                self.unlisten(now, at, port);
                None
            }
            Order::Connect { token, local, remote, tcp } => {
                let result = self.connect_with(now, local, remote, tcp);
                Some(Report::Connecting { token, result })
            }
            Order::SendStartup { conn, bytes } => {
                let error = self.send_startup(conn, &bytes).err()?;
                Some(Report::Refused { conn, error })
            }
            Order::EnterFpduMode { conn, mode } => {
                let error = self.enter_fpdu_mode(conn, *mode).err()?;
                Some(Report::Entered { conn, result: Err(error) })
            }
            Order::Disconnect { conn } => {
                self.disconnect(now, conn);
                None
            }
            Order::Abort { conn } => {
                self.abort(conn);
                None
            }
            Order::Release { conn } => {
                self.release(conn);
                None
            }
            Order::SetAddressing { net } => {
                self.set_addressing(now, *net);
                None
            }
            Order::Announce => {
                self.stack.announce();
                None
            }
            Order::SolicitRouters { vid } => {
                self.stack.solicit_routers(vid);
                None
            }
            Order::SetKeepalive { keepalive } => {
                self.stack.set_keepalive(now, keepalive);
                None
            }
            Order::SetPatience { patience } => {
                self.set_patience(patience);
                None
            }
            Order::BindUdp { port, filter } => {
                self.stack.bind_udp(port, filter);
                None
            }
            Order::UnbindUdp => {
                self.stack.unbind_udp();
                None
            }
            Order::SendDatagram(datagram) => {
                self.stack.send_datagram(now, &datagram);
                None
            }
        }
    }
}
