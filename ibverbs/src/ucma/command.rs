//! Reads commands from the bytes that a program writes.
//!
//! Every command is a header (number, bytes of the command, bytes of room for the answer) and a
//! structure. Most structures name the address in the program's memory for the answer. Integers are
//! in the byte order of the host, ports and addresses in network order.

use super::address::{Address, IN6_LEN, STORAGE_LEN};
use super::errno::Errno;
use super::number::{command as number, option, query};
use super::reply;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Bytes of the longest command, its header included.
pub const MAX_LEN: usize = HEADER_LEN + 296;
/// Bytes of a private data field.
pub const PRIVATE_DATA: usize = 256;
/// Bytes of the longest option that this module uses.
const MAX_OPTION: usize = 4;
/// The longest option, in bytes, that the kernel copies.
const OPTION_LIMIT: u32 = 1 << 22;

/// The channel that a program names by a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor(pub i32);

/// The program's parameters of a connection: the fields of `struct rdma_ucm_conn_param` that iWARP
/// has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnParam {
    /// Number of the queue pair.
    pub qp_num: u32,
    /// Bytes for the peer's program: at most 255.
    pub private_data: Vec<u8>,
    /// RDMA Reads of the peer that this side serves at a time.
    pub responder_resources: u8,
    /// RDMA Reads that this side wants to have outstanding.
    pub initiator_depth: u8,
}

/// A command, with all fields that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the command of that name")]
pub enum Command {
    CreateId { uid: u64, port_space: u16, qp_type: u8 },
    DestroyId { id: u32 },
    Bind { id: u32, addr: Address },
    ResolveAddr { id: u32, src: Address, dst: Address },
    ResolveRoute { id: u32 },
    QueryRoute { id: u32 },
    QueryAddr { id: u32 },
    QueryPath { id: u32 },
    QueryGid { id: u32 },
    Connect { id: u32, param: ConnParam },
    Listen { id: u32, backlog: i32 },
    Accept { id: u32, uid: u64, param: Option<ConnParam> },
    Reject { id: u32, reason: u8, private_data: Vec<u8> },
    Disconnect { id: u32 },
    InitQpAttr { id: u32, qp_state: u32 },
    GetEvent,
    SetOption { id: u32, level: u32, name: u32, value: OptionValue },
    Notify { id: u32 },
    JoinMcast { id: u32 },
    LeaveMcast,
    MigrateId { id: u32, from: Descriptor },
}

/// The bytes that a program sets an option to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionValue {
    len: u32,
    bytes: [u8; MAX_OPTION],
}

impl OptionValue {
    /// Stores the value; no option of this module has more than four bytes.
    pub fn new(value: &[u8]) -> OptionValue {
        let mut bytes = [0; MAX_OPTION];
        let most = value.len().min(MAX_OPTION);
        bytes[..most].copy_from_slice(&value[..most]);
        OptionValue { len: u32::try_from(value.len()).unwrap_or(u32::MAX), bytes }
    }

    /// Returns the value of a one-byte option.
    pub(super) fn byte(&self) -> Result<u8, Errno> {
        if self.len == 1 { Ok(self.bytes[0]) } else { Err(Errno::INVAL) }
    }

    /// Returns the value of an `int` option.
    pub(super) fn int(&self) -> Result<i32, Errno> {
        if self.len == 4 { Ok(i32::from_ne_bytes(self.bytes)) } else { Err(Errno::INVAL) }
    }
}

/// A command as the program wrote it: the command itself, and the place for the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The decoded command.
    pub command: Command,
    /// The address in the program's memory for the answer; 0 for a command without one.
    pub response: u64,
    /// Bytes of room at that address.
    pub room: usize,
}

/// Reads fields of a structure by their offset.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// Returns the bytes from `at` on, with zeros after the end of the structure. `decode` has
    /// checked that no caller reads past the end.
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0.get(at + i).copied().unwrap_or(0))
    }

    fn byte(&self, at: usize) -> u8 {
        self.array::<1>(at)[0]
    }

    fn half(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.array(at))
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    fn long(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }

    fn slice(&self, at: usize, len: usize) -> &[u8] {
        &self.0[at.min(self.0.len())..(at + len).min(self.0.len())]
    }

    /// Returns the parameters at `at`; `None` if the program marks them as invalid.
    fn conn_param(&self, at: usize) -> Option<ConnParam> {
        let len = self.byte(at + 264);
        (self.byte(at + 271) != 0).then(|| ConnParam {
            qp_num: self.word(at),
            private_data: self.slice(at + 8, len.into()).to_vec(),
            responder_resources: self.byte(at + 266),
            initiator_depth: self.byte(at + 267),
        })
    }
}

/// Returns the fewest bytes that a structure can have. `CONNECT` and `ACCEPT` grew a field (ECE)
/// that old programs do not write.
fn least(number: u32) -> usize {
    match number {
        number::CREATE_ID | number::SET_OPTION => 24,
        number::BIND_IP => 40,
        number::BIND => 136,
        number::RESOLVE_IP => 64,
        number::RESOLVE_ADDR => 272,
        number::RESOLVE_ROUTE | number::LISTEN | number::NOTIFY | number::GET_EVENT => 8,
        number::CONNECT => 280,
        number::ACCEPT => 288,
        number::REJECT => 264,
        number::DISCONNECT => 4,
        number::JOIN_IP_MCAST => 48,
        number::JOIN_MCAST => 152,
        _ => 16,
    }
}

/// Reads one command. `read` copies a few bytes of the program's memory, for the value of an
/// option.
///
/// The checks and error numbers are those of the kernel, as far as they need no id. This function
/// is stricter in one case: the kernel reads a structure past the end of the written bytes.
///
/// # Errors
/// Returns [`Errno::INVAL`] for a senseless header or field, [`Errno::FAULT`] for an incomplete
/// structure, [`Errno::NOSPC`] for an answer without room, [`Errno::NOSYS`] for a number without a
/// command.
pub fn decode(
    bytes: &[u8],
    read: &mut dyn FnMut(u64, usize) -> Result<Vec<u8>, Errno>,
) -> Result<Written, Errno> {
    if bytes.len() < HEADER_LEN {
        return Err(Errno::INVAL);
    }
    let (header, rest) = (Fields(bytes), &bytes[HEADER_LEN..]);
    let (number, len, room) = (header.word(0), header.half(4), header.half(6));
    let (len, room) = (usize::from(len), usize::from(room));
    if number >= number::COUNT || len > rest.len() {
        return Err(Errno::INVAL);
    }
    if number == number::GET_OPTION {
        return Err(Errno::NOSYS);
    }
    let short = match number {
        number::CONNECT | number::ACCEPT => len < least(number),
        _ => false,
    };
    if short {
        return Err(Errno::INVAL);
    }
    if room < reply::least(number) {
        return Err(Errno::NOSPC);
    }
    if rest.len() < least(number) {
        return Err(Errno::FAULT);
    }
    let fields = Fields(rest);
    let (command, response) = structure(number, &fields, room, read)?;
    Ok(Written { command, response, room })
}

fn structure(
    number: u32,
    f: &Fields<'_>,
    room: usize,
    read: &mut dyn FnMut(u64, usize) -> Result<Vec<u8>, Errno>,
) -> Result<(Command, u64), Errno> {
    let command = match number {
        number::CREATE_ID => {
            let (uid, port_space, qp_type) = (f.long(0), f.half(16), f.byte(18));
            return Ok((Command::CreateId { uid, port_space, qp_type }, f.long(8)));
        }
        number::DESTROY_ID => Command::DestroyId { id: f.word(8) },
        number::BIND_IP => {
            let addr = Address::read(f.slice(8, IN6_LEN))?;
            return Ok((Command::Bind { id: f.word(36), addr: given(addr)? }, 0));
        }
        number::BIND => {
            let addr = Address::read_sized(f.slice(8, STORAGE_LEN), f.half(4))?;
            if f.half(6) != 0 {
                return Err(Errno::INVAL);
            }
            return Ok((Command::Bind { id: f.word(0), addr: given(addr)? }, 0));
        }
        number::RESOLVE_IP => {
            let src = Address::read(f.slice(0, IN6_LEN))?;
            let dst = given(Address::read(f.slice(28, IN6_LEN))?)?;
            return Ok((Command::ResolveAddr { id: f.word(56), src, dst }, 0));
        }
        number::RESOLVE_ADDR => {
            let src = match f.half(8) {
                0 => Address::None,
                size => Address::read_sized(f.slice(16, STORAGE_LEN), size)?,
            };
            let dst = Address::read_sized(f.slice(144, STORAGE_LEN), f.half(10))?;
            if f.word(12) != 0 {
                return Err(Errno::INVAL);
            }
            return Ok((Command::ResolveAddr { id: f.word(0), src, dst: given(dst)? }, 0));
        }
        number::RESOLVE_ROUTE => return Ok((Command::ResolveRoute { id: f.word(0) }, 0)),
        number::QUERY_ROUTE => Command::QueryRoute { id: f.word(8) },
        number::QUERY => {
            let (id, option) = (f.word(8), f.word(12));
            let command = match option {
                query::ADDR => Command::QueryAddr { id },
                query::PATH => Command::QueryPath { id },
                query::GID => Command::QueryGid { id },
                _ => return Err(Errno::NOSYS),
            };
            if room < reply::least_of_query(option) {
                return Err(Errno::NOSPC);
            }
            command
        }
        number::CONNECT => {
            let param = f.conn_param(0).ok_or(Errno::INVAL)?;
            return Ok((Command::Connect { id: f.word(272), param }, 0));
        }
        number::LISTEN => {
            let backlog = f.word(4).cast_signed();
            return Ok((Command::Listen { id: f.word(0), backlog }, 0));
        }
        number::ACCEPT => {
            let (uid, param) = (f.long(0), f.conn_param(8));
            return Ok((Command::Accept { id: f.word(280), uid, param }, 0));
        }
        number::REJECT => {
            let private_data = f.slice(8, f.byte(4).into()).to_vec();
            return Ok((Command::Reject { id: f.word(0), reason: f.byte(5), private_data }, 0));
        }
        number::DISCONNECT => return Ok((Command::Disconnect { id: f.word(0) }, 0)),
        number::INIT_QP_ATTR => Command::InitQpAttr { id: f.word(8), qp_state: f.word(12) },
        number::GET_EVENT => Command::GetEvent,
        number::SET_OPTION => return set_option(f, read),
        number::NOTIFY => return Ok((Command::Notify { id: f.word(0) }, 0)),
        number::JOIN_IP_MCAST => {
            given(Address::read(f.slice(16, IN6_LEN))?)?;
            Command::JoinMcast { id: f.word(44) }
        }
        number::JOIN_MCAST => {
            given(Address::read_sized(f.slice(24, STORAGE_LEN), f.half(20))?)?;
            Command::JoinMcast { id: f.word(16) }
        }
        number::LEAVE_MCAST => Command::LeaveMcast,
        number::MIGRATE_ID => {
            let from = Descriptor(f.word(12).cast_signed());
            Command::MigrateId { id: f.word(8), from }
        }
        _ => return Err(Errno::NOSYS),
    };
    Ok((command, f.long(0)))
}

/// Refuses a missing address.
fn given(addr: Address) -> Result<Address, Errno> {
    if addr == Address::None { Err(Errno::INVAL) } else { Ok(addr) }
}

fn set_option(
    f: &Fields<'_>,
    read: &mut dyn FnMut(u64, usize) -> Result<Vec<u8>, Errno>,
) -> Result<(Command, u64), Errno> {
    let (at, id, level, name, len) = (f.long(0), f.word(8), f.word(12), f.word(16), f.word(20));
    if len > OPTION_LIMIT {
        return Err(Errno::INVAL);
    }
    let taken = if level == option::LEVEL_ID { len.min(4) } else { 0 };
    // A value of no bytes needs no memory, so its address may be anything.
    let bytes = if taken == 0 { Vec::new() } else { read(at, taken as usize)? };
    let mut value = OptionValue::new(&bytes);
    value.len = len;
    Ok((Command::SetOption { id, level, name, value }, 0))
}
