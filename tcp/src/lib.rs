//! Sans-IO TCP/IP: Ethernet, ARP, IPv4, IPv6 with neighbor discovery, ICMP echo and errors, TCP, and
//! UDP on one port.
//!
//! This crate sends no packet and reads no clock. A [`Stack`] takes frames and the time, and gives
//! frames, events and the instant of its next timer. The owner of the stack calls:
//!
//! 1. [`Stack::handle_frame`] for every received frame. When the frame carries new stream bytes,
//!    the answer says where they lie; after the owner has taken the bytes it calls
//!    [`Stack::accept_payload`]. The stack treats bytes that the owner does not accept as if they
//!    had not arrived. A receiver that is out of buffers can therefore drop bytes, and the peer
//!    sends them again. Before the frames of a turn, the owner calls [`Stack::rest`] if its turn
//!    before found no work: frames of strangers then have more than their share of a busy owner.
//! 2. [`Stack::handle_timeouts`] once [`Stack::poll_timeout`] has passed.
//! 3. [`Stack::poll_event`] until it is empty.
//! 4. [`Stack::poll_transmit`] until it is empty, or the port is full.
//!
//! **No payload passes through this crate.** The bytes to send lie in the owner's [`SendQueue`] as
//! records (FPDUs). TCP knows these bytes by [`StreamPos`](heddle_base::StreamPos) alone and cuts
//! segments at record boundaries where it can (RFC 5044 section 5). The owner places arriving bytes
//! straight from the received frame.
#![forbid(unsafe_code)]

pub mod autoconf;
mod conn;
pub mod fuzz;
mod queue;
mod segment;
mod spread;
mod stack;
pub mod wire;

pub use conn::{
    Congestion, ConnConfig, ConnCounters, ConnEvent, ConnStats, Connection, Ecn, Hindrance,
    Keepalive, Pacing, PathMtu, Patience, State, UserTimeoutOption,
};
pub use queue::{ByteQueue, SendQueue};
pub use segment::{
    ByteCounts, Codepoint, Flags, Payload, RareOptions, SackBlock, SackBlocks, Segment,
    SegmentOutcome, SeqNumber, Timestamps, TxSegment, UserTimeout,
};
pub use spread::{MIN_RSS_KEY, Rss, Spread, SpreadError, Steer};
pub use stack::{
    AddrError, Addressing, Cidr, CidrError, DatagramClass, DatagramFault, DatagramFilter,
    FrameOutcome, FramePayload, Hop, IcmpError, LinkNews, MAX_ADDRS, MAX_DATAGRAM, MAX_HEADER_LEN,
    MAX_ROUTES, MAX_VLANS, PeerLimit, RECV_WINDOW_BUDGET, Route, Run, RxChecksum, RxDatagram,
    RxFrame, SCOPE_PORT_BITS, Stack, StackConfig, StackCounters, StackEvent, SynCookies,
    TcpChecksum, Train, TxBody, TxDatagram, TxFrame, Vlan, check_addrs,
};
pub use wire::{Priority, Tag, Vid};
