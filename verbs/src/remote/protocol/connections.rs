//! Listeners and connections.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use heddle_cm::{ListenParams, Protocol};
use serde::{Deserialize, Serialize};

use crate::device::ReserveError;

documents! {
    /// A listener to be.
    Listen {
        /// Where.
        addr: SocketAddr,
        /// How.
        params: ListenParams,
        /// The reservation of that address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bound: Option<u64>,
    }

    /// An address to reserve, or with port 0 to choose a port for.
    ReserveAddr {
        /// It.
        addr: SocketAddr,
    }

    /// What became of it.
    ReservedAddr {
        /// The name of the reservation; 0 when there is none.
        id: u64,
        /// The address, with the port that was chosen.
        addr: SocketAddr,
        /// Why there is none.
        refused: Option<ReserveError>,
    }

    /// A listener.
    Listening {
        /// Its name.
        listener: u64,
    }

    /// A connection to make.
    Connect {
        /// The peer.
        remote: SocketAddr,
        /// The address of ours to connect from; absent: the one on the way.
        local: Option<IpAddr>,
        /// The queue pair's number.
        qp: u32,
        /// The start-up dialogue.
        protocol: Protocol,
        /// Reads we take.
        ird: u16,
        /// Reads we want.
        ord: u16,
        /// For the peer's application.
        private_data: Vec<u8>,
        /// How long it may take.
        timeout: Duration,
    }

    /// A connection.
    Connecting {
        /// Its name.
        conn: u64,
    }

    /// An answer to a connection request.
    Accept {
        /// The connection's name.
        conn: u64,
        /// The queue pair's number.
        qp: u32,
        /// Reads we take.
        ird: u16,
        /// Reads we want.
        ord: u16,
        /// For the peer's application.
        private_data: Vec<u8>,
    }

    /// The other answer.
    Reject {
        /// The connection's name.
        conn: u64,
        /// For the peer's application.
        private_data: Vec<u8>,
        /// Reads we need to have outstanding.
        needs_ord: Option<u16>,
    }

    /// A number of events.
    Count {
        /// How many.
        count: u32,
    }
}
