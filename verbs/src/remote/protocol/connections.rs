//! Listeners and connections.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use heddle_types::{ListenParams, Protocol, TcpTerms};
use serde::{Deserialize, Serialize};

use crate::device::ReserveError;

documents! {
    /// A listener to start.
    Listen {
        /// The address at which to listen.
        addr: SocketAddr,
        /// Parameters of the listener.
        params: ListenParams,
        /// The reservation of the address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bound: Option<u64>,
    }

    /// An address to reserve; with port 0 the server chooses a port.
    ReserveAddr {
        /// The address, or an address with port 0.
        addr: SocketAddr,
        /// Whether `::` leaves IPv4 alone.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        v6_only: bool,
    }

    /// The result of a reservation.
    ReservedAddr {
        /// Name of the reservation; 0 when there is none.
        id: u64,
        /// The address, with the port that the server has chosen.
        addr: SocketAddr,
        /// Why there is no reservation.
        refused: Option<ReserveError>,
    }

    /// The name of a listener.
    Listening {
        /// Name of the listener in this session.
        listener: u64,
    }

    /// A connection to make.
    Connect {
        /// Address of the peer.
        remote: SocketAddr,
        /// The address of ours to connect from; when absent, the route selects it.
        local: Option<IpAddr>,
        /// Number of the queue pair.
        qp: u32,
        /// The start-up dialogue.
        protocol: Protocol,
        /// Reads that we take from the peer.
        ird: u16,
        /// Reads that we want to have outstanding.
        ord: u16,
        /// Private data for the peer's application.
        private_data: Vec<u8>,
        /// Time limit for the start-up.
        timeout: Duration,
        /// Settings of TCP for the connection.
        #[serde(default, skip_serializing_if = "TcpTerms::is_usual")]
        tcp: TcpTerms,
    }

    /// The name of a connection.
    Connecting {
        /// Name of the connection in this session.
        conn: u64,
    }

    /// Accepts a connection request.
    Accept {
        /// Name of the connection.
        conn: u64,
        /// Number of the queue pair.
        qp: u32,
        /// Reads that we take from the peer.
        ird: u16,
        /// Reads that we want to have outstanding.
        ord: u16,
        /// Private data for the peer's application.
        private_data: Vec<u8>,
    }

    /// Rejects a connection request.
    Reject {
        /// Name of the connection.
        conn: u64,
        /// Private data for the peer's application.
        private_data: Vec<u8>,
        /// Reads that we need to have outstanding.
        needs_ord: Option<u16>,
    }

    /// A number of events.
    Count {
        /// Number of events.
        count: u32,
    }
}
