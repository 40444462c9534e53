//! A program that writes any commands to its channels of rdma_cm while an RNIC reports anything: no
//! ID leaks, no report names an ID that is gone, and in the end the RNIC has everything back that
//! it gave.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use heddle_ibverbs::ucma::command::{ConnParam, Descriptor, Written, decode};
use heddle_ibverbs::ucma::errno::Errno;
use heddle_ibverbs::ucma::number::{EventKind, command as number};
use heddle_ibverbs::ucma::reply::{Identity, Reply};
use heddle_ibverbs::ucma::state::{
    ChannelId, Dial, Happening, Outcome, Outside, Place, Reserved, State,
};
use heddle_verbs::{CmId, ListenerId};

use crate::Seeds;

/// The highest number of steps of one input.
const MOST: usize = 256;
/// The number of the program's channels.
const CHANNELS: usize = 3;
const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const OURS6: &str = "fd00::1";

/// An RNIC that keeps account of everything that it has given.
#[derive(Default)]
struct Rnic {
    listeners: HashSet<ListenerId>,
    conns: HashSet<CmId>,
    next: u64,
    refuses: bool,
    channels: Vec<ChannelId>,
    /// The number of addresses that programs hold reserved.
    kept: Arc<AtomicUsize>,
}

struct Kept(Arc<AtomicUsize>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Rnic {
    fn name(&mut self) -> Result<u64, Errno> {
        self.next += 1;
        if self.refuses { Err(Errno::NOMEM) } else { Ok(self.next) }
    }
}

impl Outside for Rnic {
    fn identity(&mut self) -> Option<Identity> {
        (!self.refuses).then_some(Identity { guid: [1; 8], index: 0 })
    }

    fn has_address(&mut self, at: SocketAddr) -> bool {
        assert!(!is_mapped(at), "IPv4 in IPv6's form");
        at.ip() == OURS || at.ip().to_string() == OURS6
    }

    fn source_for(&mut self, dst: SocketAddr) -> Result<SocketAddr, Errno> {
        assert!(!is_mapped(dst) && !dst.ip().is_unspecified());
        match dst.ip() {
            IpAddr::V4(ip) if ip.octets()[0] == 10 => Ok(SocketAddr::new(OURS, 0)),
            IpAddr::V6(ip) if ip.octets()[0] == 0xfd => {
                OURS6.parse().map(|ip| SocketAddr::new(ip, 0)).map_err(|_| Errno::INVAL)
            }
            _ => Err(Errno::NETUNREACH),
        }
    }

    fn random(&mut self) -> u16 {
        0
    }

    fn reserve(&mut self, Place { addr, v6_only }: Place) -> Result<(Reserved, u16), Errno> {
        assert!(!v6_only || addr.is_ipv6() && addr.ip().is_unspecified());
        let name = self.name()?;
        let chosen = 49_152 + u16::try_from(name % 1000).unwrap_or(0);
        let port = if addr.port() == 0 { chosen } else { addr.port() };
        self.kept.fetch_add(1, Relaxed);
        Ok((Reserved::new(Kept(self.kept.clone())), port))
    }

    fn listen(
        &mut self,
        place: Place,
        _: Option<&Reserved>,
        backlog: u32,
    ) -> Result<ListenerId, Errno> {
        assert!((1..=1024).contains(&backlog));
        assert!(!is_mapped(place.addr));
        let id = ListenerId(self.name()?);
        self.listeners.insert(id);
        Ok(id)
    }

    fn unlisten(&mut self, id: ListenerId) {
        assert!(self.listeners.remove(&id), "no such listener");
    }

    fn connect(&mut self, dial: Dial) -> Result<CmId, Errno> {
        assert!(dial.param.private_data.len() < 256);
        assert_eq!(dial.local.is_ipv4(), dial.remote.is_ipv4());
        let id = CmId(self.name()?);
        self.conns.insert(id);
        Ok(id)
    }

    fn accept(&mut self, id: CmId, _: ConnParam) -> Result<(), Errno> {
        assert!(self.conns.contains(&id), "no such request");
        self.name().map(|_| ())
    }

    fn reject(&mut self, id: CmId, _: Vec<u8>) {
        assert!(self.conns.remove(&id), "no such request");
    }

    fn disconnect(&mut self, id: CmId) {
        assert!(self.conns.contains(&id), "no such connection");
    }

    fn channel_of(&mut self, fd: Descriptor) -> Result<ChannelId, Errno> {
        let n = usize::try_from(fd.0).map_err(|_| Errno::NOENT)?;
        self.channels.get(n).copied().ok_or(Errno::INVAL)
    }
}

/// Returns true for an IPv4-mapped address.
fn is_mapped(addr: SocketAddr) -> bool {
    addr.ip().to_canonical() != addr.ip()
}

/// The bytes of an input, and zeros after them.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn take(&mut self, len: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Returns a command with its header; each of `fields` fills in four bytes.
fn written(number: u32, len: u16, fields: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = number.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&len.to_ne_bytes());
    bytes.extend_from_slice(&512u16.to_ne_bytes());
    bytes.resize(8 + usize::from(len), 0);
    for &(at, value) in fields {
        bytes[8 + at..12 + at].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// Returns a `struct sockaddr_in` in two words: family and port, address.
fn addr(port: u8, host: u8) -> [u32; 2] {
    [u32::from_ne_bytes([2, 0, 0x1c, port]), u32::from_ne_bytes([10, 0, 0, host])]
}

/// Returns a command that makes sense more often than not.
fn sensible(op: u8, id: u32, port: u8) -> Vec<u8> {
    let (us, peer) = (addr(port, 1), addr(port, 2));
    match op % 16 {
        0 | 1 => written(number::CREATE_ID, 24, &[(0, u32::from(port)), (16, 0x106)]),
        2 => written(number::DESTROY_ID, 16, &[(8, id)]),
        3 => written(number::BIND_IP, 40, &[(8, us[0]), (12, us[1]), (36, id)]),
        4 | 5 => written(number::RESOLVE_IP, 64, &[(28, peer[0]), (32, peer[1]), (56, id)]),
        6 => written(number::RESOLVE_ROUTE, 8, &[(0, id)]),
        // The last byte of the parameters marks them as valid.
        7 => written(number::CONNECT, 288, &[(268, u32::from_ne_bytes([0, 0, 0, 1])), (272, id)]),
        8 | 9 => written(number::LISTEN, 8, &[(0, id), (4, u32::from(port & 3))]),
        10 => {
            let valid = (276, u32::from_ne_bytes([0, 0, 0, 1]));
            written(number::ACCEPT, 296, &[(0, u32::from(port)), valid, (280, id)])
        }
        11 => written(number::REJECT, 264, &[(0, id)]),
        12 => written(number::DISCONNECT, 4, &[(0, id)]),
        13 => written(number::MIGRATE_ID, 16, &[(8, id), (12, u32::from(port % 4))]),
        14 => written(number::QUERY_ROUTE, 16, &[(8, id)]),
        _ => written(number::GET_EVENT, 8, &[]),
    }
}

/// The program's knowledge of its IDs, from answers alone.
struct Program {
    state: State,
    rnic: Rnic,
    alive: HashSet<u32>,
    done: bool,
}

impl Program {
    fn write(&mut self, channel: ChannelId, bytes: &[u8]) {
        let mut read = |_, len| if len > 0 { Ok(vec![1; len]) } else { Ok(Vec::new()) };
        let Ok(Written { command, .. }) = decode(bytes, &mut read) else { return };
        let before = self.state.waiting(channel);
        let named = format!("{command:?}");
        match self.state.handle(channel, command, &mut self.rnic) {
            Ok(Outcome::Done(reply)) => {
                self.done = true;
                self.answered(channel, &reply, &named, before);
            }
            // The calling thread waits; another report lets it go on.
            Ok(Outcome::Listening(_) | Outcome::Busy) | Err(_) => {}
        }
    }

    fn answered(&mut self, channel: ChannelId, reply: &Reply, command: &str, before: usize) {
        assert!(reply.encode().len() <= 512);
        match reply {
            Reply::Id(id) => assert!(self.alive.insert(*id), "{id} is there already"),
            Reply::Event(event) => {
                if event.kind == EventKind::ConnectRequest {
                    assert!(self.alive.insert(event.id), "the request's id was known");
                } else {
                    assert!(self.alive.contains(&event.id), "{event:?} is about nothing");
                }
                self.state.delivered(channel);
                assert_eq!(self.state.waiting(channel), before - 1);
            }
            Reply::EventsReported(_) if command.starts_with("DestroyId") => {
                let id: String = command.chars().filter(char::is_ascii_digit).collect();
                let id: u32 = id.parse().expect("a number");
                assert!(self.alive.remove(&id), "{id} was not there");
            }
            _ => {}
        }
    }

    fn report(&mut self, op: u8, number: u8) {
        let (conn, listener) = (CmId(number.into()), ListenerId(number.into()));
        let (known, listens) =
            (self.rnic.conns.contains(&conn), self.rnic.listeners.contains(&listener));
        let end = SocketAddr::new(OURS, u16::from(op));
        let param = ConnParam::default();
        let happening = match op % 7 {
            0 | 1 if listens => Happening::Listening { id: listener },
            2 if listens => {
                self.rnic.listeners.remove(&listener);
                Happening::ListenFailed { id: listener, errno: Errno::ADDRINUSE }
            }
            3 => {
                self.rnic.next += 1;
                let conn = CmId(self.rnic.next);
                self.rnic.conns.insert(conn);
                Happening::Request { conn, listener, local: end, remote: end, param }
            }
            4 if known => Happening::Established { conn, local: end, param },
            5 if known => {
                self.rnic.conns.remove(&conn);
                let (kind, errno) = (EventKind::Rejected, Errno::CONNRESET);
                Happening::Failed { conn, kind, errno, param }
            }
            6 if known => {
                self.rnic.conns.remove(&conn);
                Happening::Disconnected { conn }
            }
            _ => return,
        };
        self.state.handle_event(happening, &mut self.rnic);
        for id in 0..16 {
            // A thread of the program may have asked for this listener.
            let _ = self.state.listened(id);
        }
    }
}

/// Tries one input. Returns true if a command of it was carried out.
pub fn run(data: &[u8]) -> bool {
    let mut p = Program {
        state: State::default(),
        rnic: Rnic::default(),
        alive: HashSet::new(),
        done: false,
    };
    let channels: Vec<_> = (0..CHANNELS).map(|_| p.state.open()).collect();
    p.rnic.channels.clone_from(&channels);
    let mut o = Bytes(data);
    for _ in 0..MOST {
        if o.0.is_empty() {
            break;
        }
        let (how, op, number, port) = (o.next(), o.next(), o.next(), o.next());
        let channel = channels[usize::from(how >> 4) % CHANNELS];
        match how % 16 {
            0..=8 => p.write(channel, &sensible(op, u32::from(number % 16), port % 8)),
            9..=12 => p.report(op, number),
            13 => p.rnic.refuses = op & 1 == 1,
            14 => {
                let bytes = o.take(usize::from(op) + 64).to_vec();
                p.write(channel, &bytes);
            }
            _ => {
                // Like the command above, with a header that matches its length.
                let fields = o.take(usize::from(op)).to_vec();
                let mut bytes = written(u32::from(number % 23), 296, &[]);
                let len = fields.len().min(296);
                bytes[8..8 + len].copy_from_slice(&fields[..len]);
                p.write(channel, &bytes);
            }
        }
    }
    for channel in channels {
        p.state.close(channel, &mut p.rnic);
        assert_eq!(p.state.waiting(channel), 0);
    }
    assert_eq!(p.state.ids(), 0, "ids are left");
    assert!(p.rnic.listeners.is_empty(), "listeners are left");
    assert_eq!(p.rnic.kept.load(Relaxed), 0, "addresses are left");
    p.done
}

/// Returns the fields of a `struct sockaddr_in6` that begins at `at` of a structure.
fn addr6(at: usize, port: u8, ip: [u8; 16], scope: u32) -> Vec<(usize, u32)> {
    let word = |i: usize| u32::from_ne_bytes([ip[i], ip[i + 1], ip[i + 2], ip[i + 3]]);
    let ip = (0..16).step_by(4).map(|i| (at + 8 + i, word(i)));
    let head = (at, u32::from_ne_bytes([10, 0, 0x1c, port]));
    // A flow label, which changes nothing.
    let flow = (at + 4, 0xffff_ffff);
    [head, flow, (at + 24, scope)].into_iter().chain(ip).collect()
}

/// Makes a step of an input that writes these bytes.
fn raw(mut command: Vec<u8>) -> Vec<u8> {
    command.resize(command.len().max(64), 0);
    let more = u8::try_from(command.len() - 64).expect("a short command");
    [vec![14, more, 0, 0], command].concat()
}

/// Makes a program over IPv6: its addresses are single, of a link, of all hosts and IPv4-mapped.
fn over_ipv6() -> Vec<u8> {
    let ip = |first: [u8; 2], last: u8| {
        let mut ip = [0; 16];
        ip[..2].copy_from_slice(&first);
        ip[15] = last;
        ip
    };
    let (us, peer, link) = (ip([0xfd, 0], 1), ip([0xfd, 0], 2), ip([0xfe, 0x80], 1));
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    let create = vec![0, 0, 0, 1];
    let bind = |id, port, ip, scope| {
        let fields = [addr6(8, port, ip, scope), vec![(36, id)]].concat();
        raw(written(number::BIND_IP, 40, &fields))
    };
    let resolve = |id, ip, scope| {
        let fields = [addr6(28, 9, ip, scope), vec![(56, id)]].concat();
        raw(written(number::RESOLVE_IP, 64, &fields))
    };
    // Level 0, option 2, of four bytes: `RDMA_OPTION_ID_AFONLY`.
    let only = |id| raw(written(number::SET_OPTION, 24, &[(8, id), (12, 0), (16, 2), (20, 4)]));
    let steps = [
        create.clone(),
        bind(0, 1, us, 7),
        vec![0, 8, 0, 3],
        create.clone(),
        only(1),
        bind(1, 2, [0; 16], 0),
        vec![0, 8, 1, 3],
        create.clone(),
        bind(2, 3, link, 0),
        bind(2, 3, link, 3),
        resolve(2, link, 3),
        resolve(2, peer, 0),
        vec![0, 6, 2, 0],
        vec![0, 7, 2, 0],
        create,
        bind(3, 3, mapped, 0),
        resolve(3, peer, 0),
        resolve(3, mapped, 0),
        vec![0, 6, 3, 0],
        vec![0, 7, 3, 0],
    ];
    steps.concat()
}

/// Makes a client and a server from their first command to their last, an ID that moves between
/// channels, and a program over IPv6.
pub fn seeds() -> Seeds {
    let client: &[&[u8]] = &[
        &[0, 0, 0, 1],
        &[0, 4, 0, 1],
        &[0, 15, 0, 0],
        &[0, 6, 0, 0],
        &[0, 15, 0, 0],
        &[0, 7, 0, 0],
        &[9, 4, 1, 0],
        &[0, 15, 0, 0],
        &[0, 12, 0, 0],
        &[9, 6, 1, 0],
        &[0, 15, 0, 0],
        &[0, 2, 0, 0],
    ];
    let server: &[&[u8]] = &[
        &[0, 0, 0, 1],
        &[0, 3, 0, 1],
        &[0, 8, 0, 3],
        &[9, 0, 1, 0],
        &[9, 3, 1, 0],
        &[0, 15, 0, 0],
        &[0, 10, 1, 7],
        &[9, 4, 2, 0],
        &[0, 15, 0, 0],
        &[9, 3, 1, 0],
        &[0, 2, 0, 0],
        &[0, 2, 1, 0],
    ];
    let moved: &[&[u8]] = &[
        &[0, 0, 0, 1],
        &[0, 4, 0, 1],
        &[16, 13, 0, 0],
        &[16, 15, 0, 0],
        &[0, 2, 0, 0],
        &[16, 2, 0, 0],
    ];
    vec![
        ("client".to_owned(), client.concat()),
        ("server".to_owned(), server.concat()),
        ("moved".to_owned(), moved.concat()),
        ("ipv6".to_owned(), over_ipv6()),
    ]
}
