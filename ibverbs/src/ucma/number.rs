//! Numbers of the ABI, version 4: commands, events, options (`<rdma/rdma_user_cm.h>`,
//! `<rdma/rdma_cma.h>`).

/// Commands that a program writes.
pub mod command {
    /// Makes an id.
    pub const CREATE_ID: u32 = 0;
    /// Destroys an id and reports the number of its events that the program has taken.
    pub const DESTROY_ID: u32 = 1;
    /// Binds to an IPv4 or IPv6 address.
    pub const BIND_IP: u32 = 2;
    /// Resolves an IPv4 or IPv6 address.
    pub const RESOLVE_IP: u32 = 3;
    /// Resolves the route.
    pub const RESOLVE_ROUTE: u32 = 4;
    /// Asks for addresses, device and route.
    pub const QUERY_ROUTE: u32 = 5;
    /// Starts a connection to the resolved address.
    pub const CONNECT: u32 = 6;
    /// Starts to listen on the bound address.
    pub const LISTEN: u32 = 7;
    /// Accepts a connect request.
    pub const ACCEPT: u32 = 8;
    /// Rejects a connect request.
    pub const REJECT: u32 = 9;
    /// Ends a connection.
    pub const DISCONNECT: u32 = 10;
    /// Asks how to modify a queue pair.
    pub const INIT_QP_ATTR: u32 = 11;
    /// Takes an event from the channel.
    pub const GET_EVENT: u32 = 12;
    /// A number that has no command.
    pub const GET_OPTION: u32 = 13;
    /// Sets an option of an id.
    pub const SET_OPTION: u32 = 14;
    /// Reports an event of the queue pair.
    pub const NOTIFY: u32 = 15;
    /// Joins a multicast group by an IP address.
    pub const JOIN_IP_MCAST: u32 = 16;
    /// Leaves a multicast group.
    pub const LEAVE_MCAST: u32 = 17;
    /// Moves an id to another channel.
    pub const MIGRATE_ID: u32 = 18;
    /// Asks for addresses, path records or GIDs.
    pub const QUERY: u32 = 19;
    /// Binds to an address of any family.
    pub const BIND: u32 = 20;
    /// Resolves an address of any family.
    pub const RESOLVE_ADDR: u32 = 21;
    /// Joins a multicast group.
    pub const JOIN_MCAST: u32 = 22;
    /// The number after the last command.
    pub const COUNT: u32 = 23;
}

/// Port spaces.
pub mod port_space {
    /// Datagrams over IPoIB.
    pub const IPOIB: u16 = 0x0002;
    /// Connections, like TCP's.
    pub const TCP: u16 = 0x0106;
    /// Datagrams, like UDP's.
    pub const UDP: u16 = 0x0111;
    /// InfiniBand's own, where the program names the type of queue pair.
    pub const IB: u16 = 0x013f;
}

/// Types of queue pair.
pub mod qp_type {
    /// Reliable connection.
    pub const RC: u8 = 2;
    /// Unreliable datagram.
    pub const UD: u8 = 4;
    /// XRC initiator, for which an acknowledgment time-out can be set.
    pub const XRC_INI: u8 = 9;
}

/// Levels and names of options.
pub mod option {
    /// Options of the id.
    pub const LEVEL_ID: u32 = 0;
    /// Options of InfiniBand.
    pub const LEVEL_IB: u32 = 1;
    /// Type of service: one byte.
    pub const TOS: u32 = 0;
    /// True if other ids may bind to the same address: an `int`.
    pub const REUSEADDR: u32 = 1;
    /// True if an IPv6 wildcard excludes IPv4: an `int`.
    pub const AFONLY: u32 = 2;
    /// Acknowledgment time-out: one byte.
    pub const ACK_TIMEOUT: u32 = 3;
    /// Path records.
    pub const PATH: u32 = 1;
}

/// Questions of [`command::QUERY`].
pub mod query {
    /// Addresses.
    pub const ADDR: u32 = 0;
    /// Path records.
    pub const PATH: u32 = 1;
    /// GIDs of both ends.
    pub const GID: u32 = 2;
}

/// Kinds of events; librdmacm uses the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventKind {
    /// A device of ours reaches the peer's address.
    AddrResolved = 0,
    /// No device of ours reaches the peer's address.
    AddrError = 1,
    /// The route is known.
    RouteResolved = 2,
    /// A peer wants to connect.
    ConnectRequest = 4,
    /// The connection failed.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer rejects or refuses.
    Rejected = 8,
    /// The connection is established.
    Established = 9,
    /// The connection is over.
    Disconnected = 10,
    /// The RNIC is gone.
    DeviceRemoval = 11,
}

/// Reasons that a program may reject with; an iWARP peer does not see them.
pub mod reject {
    /// An option of the vendor is not supported.
    pub const VENDOR_OPTION: u8 = 35;
    /// The program's own reason.
    pub const CONSUMER: u8 = 28;
}
