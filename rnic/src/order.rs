//! What a control plane and the owner of an [`Rnic`] say to each other, as plain data.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use heddle_base::Instant;
use heddle_tcp::{
    Addressing, ConnId, ConnectError, DatagramFilter, Keepalive, ListenError, RxDatagram,
    TxDatagram,
};

use crate::event::{Event, FpduMode};
use crate::frame::RnicFrame;
use crate::rnic::{Patience, Rnic, RnicError};

/// An order to an RNIC. Orders are carried out in the order in which they are given.
#[derive(Clone, Debug)]
pub enum Order {
    /// Accept TCP connections; [`Report::Listening`] answers.
    Listen {
        /// Names the order in the answer.
        token: u64,
        /// Our address; all of them when absent.
        addr: Option<IpAddr>,
        /// TCP port.
        port: u16,
        /// Connections that may be half-open at a time.
        backlog: usize,
    },
    /// Stop accepting what a [`Order::Listen`] with the same address and port began; connections go
    /// on.
    Unlisten {
        /// Our address; all of them when absent.
        addr: Option<IpAddr>,
        /// TCP port.
        port: u16,
    },
    /// Start a TCP connection; [`Report::Connecting`] answers.
    Connect {
        /// Names the order in the answer.
        token: u64,
        /// Our address; the one on the link to the peer when absent.
        local: Option<IpAddr>,
        /// The peer.
        remote: SocketAddr,
    },
    /// Send bytes of the start-up dialogue; [`Report::Refused`] when that cannot be.
    SendStartup {
        /// The connection.
        conn: ConnId,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// End the start-up and run a queue pair; [`Report::Entered`] answers, always.
    EnterFpduMode {
        /// The connection.
        conn: ConnId,
        /// How; its [`QpConfig`](heddle_iwarp::QpConfig) names the queue pair.
        mode: Box<FpduMode>,
    },
    /// Close in order.
    Disconnect {
        /// The connection.
        conn: ConnId,
    },
    /// Reset.
    Abort {
        /// The connection.
        conn: ConnId,
    },
    /// Forget a connection that is closed.
    Release {
        /// The connection.
        conn: ConnId,
    },
    /// Use other addresses and routes from now on ([`Rnic::set_addressing`]). Listeners of an
    /// address that goes end without a word, its connections with [`CloseReason::Withdrawn`](crate::CloseReason::Withdrawn).
    SetAddressing {
        /// All there are to be.
        net: Box<Addressing>,
    },
    /// Announce all addresses to the hosts of the links ([`Stack::announce`](heddle_tcp::Stack::announce)).
    Announce,
    /// Probe silent peers so from now on, those of connections that stand included
    /// ([`Stack::set_keepalive`](heddle_tcp::Stack::set_keepalive)).
    SetKeepalive {
        /// How; never when absent.
        keepalive: Option<Keepalive>,
    },
    /// Bear with peers for so long from now on, those of connections that stand included
    /// ([`Rnic::set_patience`]).
    SetPatience {
        /// How long.
        patience: Patience,
    },
    /// Take UDP datagrams to this port, and to no other; [`Report::Datagram`] brings each.
    BindUdp {
        /// UDP port.
        port: u16,
        /// Which of them are taken, and which are strangers'.
        filter: Arc<dyn DatagramFilter>,
    },
    /// Take UDP datagrams no more.
    UnbindUdp,
    /// Send a UDP datagram. There is no answer: one that cannot be sent is counted and dropped.
    SendDatagram(Box<TxDatagram>),
}

/// What the owner of an RNIC tells a control plane.
#[derive(Clone, Debug)]
pub enum Report {
    /// Something happened to a connection.
    Event(Event),
    /// Outcome of [`Order::Listen`].
    Listening {
        /// The order's name.
        token: u64,
        /// Whether the port is being listened on.
        result: Result<(), ListenError>,
    },
    /// Outcome of [`Order::Connect`]. It comes before any event of the connection.
    Connecting {
        /// The order's name.
        token: u64,
        /// The connection that is being made.
        result: Result<ConnId, ConnectError>,
    },
    /// Outcome of [`Order::EnterFpduMode`]. It comes before any event of the queue pair.
    Entered {
        /// The connection.
        conn: ConnId,
        /// Whether the queue pair runs; if not, it has not been touched.
        result: Result<(), RnicError>,
    },
    /// A UDP datagram came to the port of [`Order::BindUdp`]. Some are dropped, and counted, where
    /// many come at once.
    Datagram(Box<RxDatagram>),
    /// [`Order::SendStartup`] could not be carried out.
    Refused {
        /// The connection.
        conn: ConnId,
        /// Why.
        error: RnicError,
    },
}

impl<F: RnicFrame> Rnic<F> {
    /// Carries out an order, and answers where an answer is due at once.
    ///
    /// [`Order::EnterFpduMode`] is the one with a second half: when it succeeds there is no answer
    /// here. The owner posts the receives that wait, calls [`start`](Self::start), and then reports
    /// [`Report::Entered`] itself.
    pub fn handle_order(&mut self, now: Instant, order: Order) -> Option<Report> {
        match order {
            Order::Listen { token, addr, port, backlog } => {
                let result = self.listen(addr, port, backlog);
                Some(Report::Listening { token, result })
            }
            Order::Unlisten { addr, port } => {
                self.unlisten(now, addr, port);
                None
            }
            Order::Connect { token, local, remote } => {
                let result = self.connect_from(now, local, remote);
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
