//! Encodes answers as the structures that a program reads.

use std::net::SocketAddr;

use super::address::{self, gid};
use super::command::{ConnParam, PRIVATE_DATA};
use super::number::{EventKind, command as number, query};

/// The device of an id, as librdmacm finds it among libibverbs's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node GUID, in network order.
    pub guid: [u8; 8],
    /// The number that `ibv_get_device_index` returns.
    pub index: u32,
}

/// Both ends of an id, and its device if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// This side's address.
    pub src: Option<SocketAddr>,
    /// The peer's address.
    pub dst: Option<SocketAddr>,
    /// The device of the id, if it has one.
    pub device: Option<Identity>,
}

/// An event, as `GET_EVENT` returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The program's own name of the id that the event is about; for a connect request, of the
    /// listener.
    pub uid: u64,
    /// The id of the event; for a connect request, the new id.
    pub id: u32,
    /// The kind of event.
    pub kind: EventKind,
    /// 0, or a negative error number.
    pub status: i32,
    /// The parameters that the peer has sent.
    pub param: ConnParam,
}

/// An answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The command has no answer.
    None,
    /// The number of a new id.
    Id(u32),
    /// Number of events of the id that the program has taken.
    EventsReported(u32),
    /// The answer to `QUERY_ROUTE`.
    Route(Ends),
    /// The answer to `QUERY` for addresses.
    Addr(Ends),
    /// The answer to `QUERY` for path records, of which iWARP has none.
    Path,
    /// The answer to `QUERY` for GIDs.
    Gid(Ends),
    /// The answer to `INIT_QP_ATTR`.
    QpAttr {
        /// The state that the program asked for.
        state: u32,
        /// Mask of the attributes to set.
        mask: u32,
        /// Access rights, `IBV_ACCESS_*`.
        access: u32,
    },
    /// The answer to `GET_EVENT`.
    Event(Event),
}

const ROUTE_LEN: usize = 208;
const ROUTE_LEAST: usize = 200;
const ADDR_LEN: usize = 280;
const ADDR_LEAST: usize = 272;
const PATH_LEN: usize = 8;
const QP_ATTR_LEN: usize = 144;
const EVENT_LEN: usize = 336;
/// Bytes of an event without the fields that later versions added.
const EVENT_LEAST: usize = 324;

/// Returns the fewest bytes of room that an answer needs. The service truncates answers that grew
/// to the room that old programs give.
pub(super) fn least(number: u32) -> usize {
    match number {
        number::CREATE_ID
        | number::DESTROY_ID
        | number::MIGRATE_ID
        | number::JOIN_IP_MCAST
        | number::JOIN_MCAST
        | number::LEAVE_MCAST => 4,
        number::QUERY_ROUTE => ROUTE_LEAST,
        number::INIT_QP_ATTR => QP_ATTR_LEN,
        number::GET_EVENT => EVENT_LEAST,
        _ => 0,
    }
}

/// Returns the same as [`least`] for an option of `QUERY`.
pub(super) fn least_of_query(option: u32) -> usize {
    match option {
        query::PATH => PATH_LEN,
        _ => ADDR_LEAST,
    }
}

/// A zeroed structure to put fields into.
struct Structure(Vec<u8>);

impl Structure {
    fn new(len: usize) -> Structure {
        Structure(vec![0; len])
    }

    fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> &mut Structure {
        self.0[at..at + N].copy_from_slice(&bytes);
        self
    }

    fn word(&mut self, at: usize, value: u32) -> &mut Structure {
        self.put(at, value.to_ne_bytes())
    }

    fn addr(&mut self, at: usize, addr: Option<SocketAddr>) -> u16 {
        addr.map_or(0, |addr| address::write(&mut self.0[at..], addr))
    }
}

impl Reply {
    /// Returns the bytes of the answer.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Reply::None => Vec::new(),
            Reply::Id(n) | Reply::EventsReported(n) => n.to_ne_bytes().to_vec(),
            Reply::Route(ends) => route(ends),
            Reply::Addr(ends) => addresses(ends),
            Reply::Path => vec![0; PATH_LEN],
            Reply::Gid(ends) => gids(ends),
            Reply::QpAttr { state, mask, access } => {
                let mut s = Structure::new(QP_ATTR_LEN);
                s.word(0, *mask).word(4, *state).word(36, *access).put(133, [PORT]);
                s.0
            }
            Reply::Event(event) => event.encode(),
        }
    }
}

/// The device has one port.
const PORT: u8 = 1;
/// The default partition: `ib_addr_get_pkey` of an address without one.
const PKEY: u16 = 0xffff;

fn route(ends: &Ends) -> Vec<u8> {
    let mut s = Structure::new(ROUTE_LEN);
    s.addr(136, ends.src);
    s.addr(164, ends.dst);
    if let Some(device) = ends.device {
        s.put(0, device.guid).put(196, [PORT]).word(200, device.index);
        // iWARP has no path records: the GIDs stand in the place of the first one, and the number
        // of paths is 0.
        for (at, end) in [(8, ends.dst), (24, ends.src)] {
            if let Some(addr) = end {
                s.put(at, gid(addr.ip()));
            }
        }
    }
    s.0
}

fn addresses(ends: &Ends) -> Vec<u8> {
    let mut s = Structure::new(ADDR_LEN);
    let sizes = [s.addr(16, ends.src), s.addr(144, ends.dst)];
    s.put(12, sizes[0].to_ne_bytes()).put(14, sizes[1].to_ne_bytes());
    device(&mut s, ends);
    s.0
}

fn device(s: &mut Structure, ends: &Ends) {
    if let Some(device) = ends.device {
        s.put(0, device.guid).put(8, [PORT]).put(10, PKEY.to_be_bytes()).word(272, device.index);
    }
}

/// Encodes both ends as `struct sockaddr_ib`: family, partition, flow label, GID, service id, and a
/// mask and a scope, which stay 0.
fn gids(ends: &Ends) -> Vec<u8> {
    const LEN: u16 = 48;
    /// The service id for port 0: the port space in the upper half; the port belongs in the lowest
    /// two bytes.
    const SERVICE: u64 = (super::number::port_space::TCP as u64) << 16;
    let mut s = Structure::new(ADDR_LEN);
    for (at, size, end) in [(16, 12, ends.src), (144, 14, ends.dst)] {
        s.put(size, LEN.to_ne_bytes()).put(at, address::family::IB.to_ne_bytes());
        s.put(at + 2, PKEY.to_be_bytes());
        if let Some(addr) = end {
            let service = SERVICE | u64::from(addr.port());
            s.put(at + 8, gid(addr.ip())).put(at + 24, service.to_be_bytes());
        }
    }
    device(&mut s, ends);
    s.0
}

impl Event {
    fn encode(&self) -> Vec<u8> {
        let mut s = Structure::new(EVENT_LEN);
        s.put(0, self.uid.to_ne_bytes()).word(8, self.id).word(12, self.kind as u32);
        s.word(16, self.status.cast_unsigned());
        let (p, at) = (&self.param, 20);
        // A single byte holds the length of the private data, so a program can see at most 255
        // bytes.
        let len = p.private_data.len().min(PRIVATE_DATA - 1);
        s.0[at + 8..at + 8 + len].copy_from_slice(&p.private_data[..len]);
        #[expect(clippy::cast_possible_truncation, reason = "at most 255")]
        s.word(at, p.qp_num).put(at + 264, [len as u8]);
        s.put(at + 266, [p.responder_resources, p.initiator_depth]);
        s.0
    }
}
