use super::super::command::OptionValue;
use super::super::number::{option, reject};
use super::super::{address, address::Address, reply};
use super::*;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

mod addresses;
mod connections;
mod lifetimes;

pub(super) const DEVICE: Identity = Identity { guid: *b"\x02heddle0", index: 7 };
pub(super) const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(super) const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// A call that the state machine has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Listen(Place, u32),
    Unlisten(ListenerId),
    Connect(Dial),
    Accept(CmId, ConnParam),
    Reject(CmId, Vec<u8>),
    Disconnect(CmId),
}

/// A fake RNIC with an address of each kind, in the scope 3, which reaches its own networks.
#[derive(Debug, Default)]
pub(super) struct Fake {
    pub(super) asked: Vec<Asked>,
    pub(super) absent: bool,
    pub(super) refuse: Option<Errno>,
    pub(super) channels: Vec<ChannelId>,
    next: u64,
    random: u16,
    /// The ports that it chooses, in turn; `None` means that it reserves no address.
    pub(super) reserves: Option<VecDeque<u16>>,
    /// Ports that other programs have.
    pub(super) taken: Vec<u16>,
    /// Number of addresses that it has reserved.
    pub(super) kept: Arc<AtomicUsize>,
    /// True if the last listener used a reserved address.
    pub(super) listened_at_kept: bool,
}

struct Kept(Arc<AtomicUsize>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Fake {
    fn name(&mut self) -> Result<u64, Errno> {
        self.next += 1;
        self.refuse.map_or(Ok(self.next), Err)
    }

    pub(super) fn take(&mut self) -> Vec<Asked> {
        std::mem::take(&mut self.asked)
    }
}

impl Outside for Fake {
    fn identity(&mut self) -> Option<Identity> {
        (!self.absent).then_some(DEVICE)
    }

    fn has_address(&mut self, at: SocketAddr) -> bool {
        let same = |ours: &str| SocketAddr::new(at.ip(), 0) == addr(ours);
        match at.ip() {
            ip if address::is_link_local(ip) => same("[fe80::1]:0") && address::scope(at) == 3,
            ip => ip == OURS || same("[fd00::1]:0") || ip.is_loopback(),
        }
    }

    fn source_for(&mut self, dst: SocketAddr) -> Result<SocketAddr, Errno> {
        let text = dst.ip().to_string();
        match (&text[..text.len().min(5)], address::scope(dst)) {
            ("10.0.", _) => Ok(SocketAddr::new(OURS, 0)),
            ("127.0", _) => Ok(addr("127.0.0.1:0")),
            ("::1", _) => Ok(addr("[::1]:0")),
            ("fd00:", _) => Ok(addr("[fd00::1]:0")),
            ("fe80:", 0 | 3) => Ok(addr("[fe80::1%3]:0")),
            _ => Err(Errno::NETUNREACH),
        }
    }

    fn random(&mut self) -> u16 {
        self.random
    }

    fn reserve(&mut self, place: Place) -> Result<(Reserved, u16), Errno> {
        let Some(next) = self.reserves.as_mut() else { return Err(Errno::NODEV) };
        let port = match place.addr.port() {
            0 => next.pop_front().ok_or(Errno::ADDRNOTAVAIL)?,
            port if self.taken.contains(&port) => return Err(Errno::ADDRINUSE),
            port => port,
        };
        self.kept.fetch_add(1, Relaxed);
        Ok((Reserved::new(Kept(self.kept.clone())), port))
    }

    fn listen(
        &mut self,
        place: Place,
        reserved: Option<&Reserved>,
        backlog: u32,
    ) -> Result<ListenerId, Errno> {
        let id = self.name().map(ListenerId)?;
        self.listened_at_kept = reserved.and_then(Reserved::held::<Kept>).is_some();
        self.asked.push(Asked::Listen(place, backlog));
        Ok(id)
    }

    fn unlisten(&mut self, id: ListenerId) {
        self.asked.push(Asked::Unlisten(id));
    }

    fn connect(&mut self, dial: Dial) -> Result<CmId, Errno> {
        let id = self.name().map(CmId)?;
        self.asked.push(Asked::Connect(dial));
        Ok(id)
    }

    fn accept(&mut self, id: CmId, param: ConnParam) -> Result<(), Errno> {
        self.name()?;
        self.asked.push(Asked::Accept(id, param));
        Ok(())
    }

    fn reject(&mut self, id: CmId, private_data: Vec<u8>) {
        self.asked.push(Asked::Reject(id, private_data));
    }

    fn disconnect(&mut self, id: CmId) {
        self.asked.push(Asked::Disconnect(id));
    }

    fn channel_of(&mut self, fd: Descriptor) -> Result<ChannelId, Errno> {
        let n = usize::try_from(fd.0).map_err(|_| Errno::NOENT)?;
        self.channels.get(n).copied().ok_or(Errno::INVAL)
    }
}

/// A fake process with one channel.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) state: State,
    pub(super) rnic: Fake,
    pub(super) channel: ChannelId,
}

pub(super) fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub(super) fn place(text: &str, v6_only: bool) -> Place {
    Place { addr: addr(text), v6_only }
}

pub(super) fn param(text: &str) -> ConnParam {
    let private_data = text.as_bytes().to_vec();
    ConnParam { qp_num: 5, private_data, responder_resources: 3, initiator_depth: 4 }
}

impl Process {
    pub(super) fn new() -> Process {
        let mut state = State::default();
        let channel = state.open();
        let rnic = Fake { channels: vec![channel], ..Fake::default() };
        Process { state, rnic, channel }
    }

    pub(super) fn try_do(&mut self, command: Command) -> Result<Outcome, Errno> {
        self.state.handle(self.channel, command, &mut self.rnic)
    }

    /// Carries out a command that has no answer.
    pub(super) fn run(&mut self, command: Command) -> Result<(), Errno> {
        assert_eq!(self.try_do(command)?, Outcome::Done(Reply::None));
        Ok(())
    }

    pub(super) fn create(&mut self, uid: u64) -> u32 {
        let space = port_space::TCP;
        match self.try_do(Command::CreateId { uid, port_space: space, qp_type: 0 }) {
            Ok(Outcome::Done(Reply::Id(id))) => id,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn destroy(&mut self, id: u32) -> u32 {
        match self.try_do(Command::DestroyId { id }) {
            Ok(Outcome::Done(Reply::EventsReported(n))) => n,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn bind(&mut self, id: u32, at: &str) -> Result<(), Errno> {
        self.run(Command::Bind { id, addr: Address::Ip(addr(at)) })
    }

    pub(super) fn resolve(&mut self, id: u32, to: &str) -> Result<(), Errno> {
        let dst = Address::Ip(addr(to));
        self.run(Command::ResolveAddr { id, src: Address::None, dst })
    }

    /// Makes `id` listen, and has the RNIC answer.
    pub(super) fn listen(&mut self, id: u32, backlog: i32) -> Result<ListenerId, Errno> {
        assert_eq!(self.try_do(Command::Listen { id, backlog })?, Outcome::Listening(id));
        assert_eq!(self.state.listened(id), None);
        let listener = ListenerId(self.rnic.next);
        self.happen(Happening::Listening { id: listener });
        self.state.listened(id).unwrap().map(|()| listener)
    }

    pub(super) fn happen(&mut self, happening: Happening) {
        self.state.handle_event(happening, &mut self.rnic);
    }

    /// Takes the next event, if there is one.
    pub(super) fn event(&mut self) -> Option<Event> {
        match self.try_do(Command::GetEvent) {
            Ok(Outcome::Done(Reply::Event(event))) => {
                self.state.delivered(self.channel);
                Some(event)
            }
            Err(Errno::AGAIN) => None,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn kind(&mut self) -> Option<(u32, EventKind, i32)> {
        self.event().map(|e| (e.id, e.kind, e.status))
    }

    pub(super) fn ends(&mut self, id: u32) -> Ends {
        match self.try_do(Command::QueryRoute { id }) {
            Ok(Outcome::Done(Reply::Route(ends))) => ends,
            other => panic!("{other:?}"),
        }
    }

    /// Makes an id that connects, and returns it with its connection.
    pub(super) fn connecting(&mut self) -> (u32, CmId) {
        let id = self.create(100);
        self.resolve(id, "10.0.0.2:7174").unwrap();
        self.run(Command::ResolveRoute { id }).unwrap();
        assert_eq!(self.kind(), Some((id, EventKind::AddrResolved, 0)));
        assert_eq!(self.kind(), Some((id, EventKind::RouteResolved, 0)));
        self.run(Command::Connect { id, param: param("hello") }).unwrap();
        (id, CmId(self.rnic.next))
    }

    /// Reports a connect request of connection 1,000, and takes the event.
    pub(super) fn request(&mut self, listener: ListenerId) -> u32 {
        self.happen(request(listener, 1000));
        self.event().unwrap().id
    }
}

pub(super) fn request(listener: ListenerId, conn: u64) -> Happening {
    Happening::Request {
        conn: CmId(conn),
        listener,
        local: SocketAddr::new(OURS, 7174),
        remote: SocketAddr::new(PEER, 40_000),
        param: param("may I?"),
    }
}

pub(super) const fn established(conn: CmId) -> Happening {
    let param = ConnParam {
        qp_num: 0,
        private_data: Vec::new(),
        responder_resources: 1,
        initiator_depth: 2,
    };
    Happening::Established { conn, local: SocketAddr::new(OURS, 45_678), param }
}
