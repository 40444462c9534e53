//! A client of the control socket that sends anything, in any order, with any descriptors: the
//! session answers each request once or refuses it, leaves another client's resources as they are,
//! and gives everything back in the end.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use heddle_base::Seed;
use heddle_hub::memory::{RegionTable, Registry};
use heddle_hub::{ControlPlane, ControlRequest, Hub, Policy, Session};
use heddle_mr::MrTable;
use heddle_shm::account::{Account, Descriptors};
use heddle_socket::document::{Answer, Call, VERSION, to_line};
use heddle_socket::wire::{Inbox, receive, send};
use heddle_types::{Request as CmRequest, TcpTerms};
use heddle_verbs::remote::protocol::{self, Request};
use heddle_verbs::{
    CmEvent, CmId, ConnectFailure, DeviceError, DeviceLimits, ListenParams, Protocol, QpFate,
    Region, Sleeper, TakenEvents,
};

use crate::Seeds;

/// The highest number of requests in one input.
const MOST: usize = 64;

/// A control plane that listens, and connects to no peer.
#[derive(Debug)]
struct Plane;

impl ControlPlane for Plane {
    fn request(&self, request: ControlRequest) -> Result<(), DeviceError> {
        if let ControlRequest::Cm { request, qp, events: Some(events), .. } = request {
            match request {
                CmRequest::Listen { id, .. } => {
                    events.push(CmEvent::Listening { id }, &TakenEvents::default());
                }
                CmRequest::Connect { id, .. } => {
                    let fate = qp.map_or(QpFate::NoQp, |qp| {
                        qp.unclaim();
                        QpFate::Free(qp.qpn())
                    });
                    told(&events, id, fate);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn told(events: &heddle_verbs::EventQueue, id: CmId, qp: QpFate) {
    let error = ConnectFailure::PeerClosed;
    events.push(CmEvent::ConnectError { id, error, qp }, &TakenEvents::default());
}

fn hub() -> Arc<Hub> {
    let seed = Seed::from_u64(1);
    let mrs = Arc::new(MrTable::new(&seed, 32));
    let registry = Arc::new(Registry::new(mrs, Arc::new(RegionTable::new(8, None))));
    Hub::new(registry, Box::new(Plane), 1, &seed)
}

fn policy() -> Policy {
    Policy {
        memory: 1 << 17,
        queues: 1 << 17,
        limits: DeviceLimits { max_mrs: 16, max_pds: 8, ..DeviceLimits::default() },
        ..Policy::default()
    }
}

/// The bytes of the input, and zeros after them.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Returns a number that is mostly small, and now and then any number.
    fn number(&mut self) -> u64 {
        match self.next() {
            255 => u64::MAX - u64::from(self.next()),
            n @ 240..=254 => 1u64 << (4 * (n - 240)) | u64::from(self.next()),
            n => u64::from(n),
        }
    }

    fn small(&mut self) -> u32 {
        u32::try_from(self.number()).unwrap_or(u32::MAX)
    }

    fn size(&mut self) -> usize {
        usize::try_from(self.number()).unwrap_or(usize::MAX)
    }

    fn short(&mut self) -> u16 {
        u16::try_from(self.number()).unwrap_or(u16::MAX)
    }

    fn maybe(&mut self) -> Option<u32> {
        if self.next() & 1 == 1 { Some(self.small()) } else { None }
    }
}

/// The latest answer of each sort, so that requests name existing objects as well.
#[derive(Default)]
struct Known {
    pd: u32,
    cq: usize,
    qp: u32,
    id: u64,
}

impl Known {
    fn learn(&mut self, answer: &Answer) {
        let Some(ok) = &answer.ok else { return };
        let get = |key: &str| ok.get(key).and_then(serde_json::Value::as_u64);
        if let Some(pd) = get("pd") {
            self.pd = u32::try_from(pd).unwrap_or(0);
        }
        match (get("qp"), get("off")) {
            (Some(qp), _) => self.qp = u32::try_from(qp).unwrap_or(0),
            (None, Some(off)) if get("words").is_some() => {
                self.cq = usize::try_from(off).unwrap_or(0);
            }
            _ => {}
        }
        if let Some(id) = get("id") {
            self.id = id;
        }
    }
}

/// Makes a request of the next bytes.
fn request(o: &mut Bytes<'_>, known: &Known) -> Request {
    let op = o.next();
    // The names of existing objects, or any.
    let named = o.next() & 7 != 0;
    let pd = if named { known.pd } else { o.small() };
    let cq = if named { known.cq } else { o.size() };
    let qp = if named { known.qp } else { o.small() };
    let id = if named { known.id } else { o.number() };
    let on = if o.next() & 1 == 1 { Some(qp) } else { None };
    let waker = (o.next() & 1 == 1).then(|| u64::from(o.next() & 3));
    match op {
        250 => return Request::Ports,
        251 => return Request::Watch,
        252 => return Request::FailQp(protocol::QpName { qp }),
        253 => {
            return Request::ReserveAddr(protocol::ReserveAddr {
                addr: ([10, 0, 0, 1], if on.is_some() { 0 } else { o.short() }).into(),
                v6_only: false,
            });
        }
        254 => return Request::DestroyReservedAddr(protocol::Id { id }),
        255 => {
            return Request::Listen(protocol::Listen {
                addr: ([10, 0, 0, 1], o.short()).into(),
                params: ListenParams::default(),
                bound: Some(id),
            });
        }
        _ => {}
    }
    match op % 33 {
        0 if on.is_some() => Request::DeallocPd(protocol::PdName { pd }),
        0 => Request::CreatePd,
        1 => Request::CreateCq(protocol::CreateCq { depth: o.small(), waker }),
        2 => Request::ResizeCq(protocol::ResizeCq { cq, depth: o.small() }),
        3 => Request::CreateSrq(protocol::CreateSrq {
            pd,
            depth: o.small(),
            max_sge: o.short(),
            waker,
        }),
        4 | 5 => Request::CreateQp(protocol::CreateQp {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: if o.next() & 7 == 7 { Some(cq) } else { None },
            sq_depth: o.small(),
            rq_depth: o.small(),
            max_send_sge: o.short() % 32,
            max_recv_sge: o.short() % 32,
            max_inline: o.short(),
        }),
        6 => Request::ResetQp(protocol::QpName { qp }),
        7 => Request::DestroyCq(protocol::Block { off: cq, words: o.size() }),
        8 => Request::DestroySrq(protocol::Block { off: cq, words: o.size() }),
        9 => Request::DestroyQp(protocol::QpName { qp }),
        10 | 11 => Request::AllocMr(protocol::AllocMr {
            pd,
            len: o.size(),
            access: o.next(),
            to: o.maybe().map(u64::from),
            qp: on,
        }),
        12 => Request::Reserve(protocol::Len { len: o.size() }),
        13 => Request::RegisterReserved(protocol::RegisterReserved { id, pd, access: o.next() }),
        14 => Request::DestroyReserved(protocol::Id { id }),
        15 => {
            let (len, how) = (o.size(), o.next());
            let (sparse, unsealed) = (how & 1 == 1, how & 2 == 2);
            Request::AddRegion(protocol::AddRegion { len, sparse, unsealed })
        }
        16 => Request::RegisterMr(protocol::RegisterMr {
            pd,
            region: id,
            off: o.size(),
            len: o.size(),
            access: o.next(),
            to: o.number(),
            qp: on,
        }),
        17 => Request::DestroyRegion(protocol::Id { id }),
        18 => Request::DeregisterMr(protocol::Id { id }),
        19 => Request::DestroyMr(protocol::Id { id }),
        20 => Request::AllocFast(protocol::AllocFast { pd, qp: on, len: o.number() }),
        21 => Request::AllocWindow(protocol::AllocWindow { pd, qp: on, any_qp: o.next() & 1 != 0 }),
        22 => Request::BindWindow(protocol::BindWindow {
            id,
            mr: o.small(),
            at: o.number(),
            len: o.small(),
            to: o.number(),
            access: o.next(),
        }),
        23 => Request::UnbindWindow(protocol::Id { id }),
        24 => Request::DestroyStag(protocol::Id { id }),
        25 => Request::Usage(protocol::OfPd { pd: on.map(|_| pd) }),
        26 => Request::Listen(protocol::Listen {
            addr: ([10, 0, 0, 1], o.short()).into(),
            params: ListenParams { backlog: o.size(), ..ListenParams::default() },
            bound: None,
        }),
        27 => Request::Unlisten(protocol::Listening { listener: o.number() }),
        28 => Request::Connect(protocol::Connect {
            remote: ([10, 0, 0, 2], o.short()).into(),
            local: None,
            qp,
            protocol: Protocol::default(),
            ird: o.short(),
            ord: o.short(),
            private_data: vec![1; o.size() % 600],
            timeout: Duration::from_secs(o.number()),
            tcp: TcpTerms::default(),
        }),
        29 => Request::Accept(protocol::Accept {
            conn: o.number(),
            qp,
            ird: o.short(),
            ord: o.short(),
            private_data: Vec::new(),
        }),
        30 => Request::Disconnect(protocol::Connecting { conn: o.number() }),
        31 => Request::Taken(protocol::Count { count: o.small() }),
        _ => Request::Reject(protocol::Reject {
            conn: o.number(),
            private_data: Vec::new(),
            needs_ord: None,
        }),
    }
}

/// Opens a session with a device.
fn opened(hub: &Arc<Hub>) -> (Session, Inbox) {
    let policy = policy();
    let account = Account::new(&policy, Descriptors::new(policy.descriptors.into()));
    let mut session = Session::new(hub, policy, account, Sleeper::new().waker());
    let mut inbox = Inbox::new(1 << 16);
    let open = protocol::Open { memory: 1 << 16, queues: 1 << 16, name: String::new() };
    let (near, far) = UnixStream::pair().expect("descriptors");
    let files = [0, 1].map(|_| Region::shared(1 << 16).expect("memory"));
    let fds = [0, 1].map(|n: usize| files[n].fd().expect("a file"));
    send(&near, b"\n", &fds).expect("room");
    receive(&far, &mut inbox).expect("two");
    let answer = ask(&mut session, &mut inbox, 1, &Request::DeviceOpen(open));
    assert!(answer.error.is_none(), "{answer:?}");
    (session, inbox)
}

/// Sends a request and returns its single answer.
fn ask(session: &mut Session, inbox: &mut Inbox, id: u64, request: &Request) -> Answer {
    session.handle(&to_line(&Call { v: VERSION, id, request }), inbox);
    answers(session, id).expect("an answer")
}

fn answers(session: &mut Session, id: u64) -> Option<Answer> {
    while session.is_preparing() || session.has_work() {
        session.work();
        std::thread::yield_now();
    }
    let mut found = None;
    while let Some(out) = session.poll_transmit() {
        assert_eq!(out.bytes.last(), Some(&b'\n'));
        let line: serde_json::Value = serde_json::from_slice(&out.bytes).expect("a document");
        if line.get("event").is_none() && line.get("device").is_none() {
            let answer: Answer = serde_json::from_value(line).expect("an answer");
            assert_eq!(answer.id, id, "{answer:?}");
            assert_eq!(answer.fds as usize, out.fds.len());
            assert!(found.replace(answer).is_none(), "two answers");
        }
    }
    found
}

/// Tries one input. Returns true if the session carried out a request of it.
pub fn run(data: &[u8]) -> bool {
    let hub = hub();
    let (mut other, mut quiet) = opened(&hub);
    let pd = ask(&mut other, &mut quiet, 2, &Request::CreatePd);
    let theirs = pd.ok.as_ref().and_then(|ok| ok["pd"].as_u64()).expect("a domain");
    let theirs = u32::try_from(theirs).expect("a small number");
    let access = protocol::AllocMr { pd: theirs, len: 64, access: 6, to: None, qp: None };
    let mr = ask(&mut other, &mut quiet, 3, &Request::AllocMr(access));
    let mr = mr.ok.as_ref().and_then(|ok| ok["id"].as_u64()).expect("a region");

    let (mut session, mut inbox) = opened(&hub);
    let (near, far) = UnixStream::pair().expect("descriptors");
    let region = Region::shared(4096).expect("a page");
    let sleeper = Sleeper::pair().expect("descriptors");
    let (mut o, mut known, mut done) = (Bytes(data), Known::default(), false);
    for id in 2..MOST as u64 {
        if o.0.is_empty() {
            break;
        }
        // Now and then a descriptor comes, of the right sort or not.
        let fd = match o.next() {
            0..=2 => region.fd(),
            3..=5 => sleeper.fd(),
            6 => Some(near.as_fd()),
            _ => None,
        };
        if let Some(fd) = fd {
            send(&near, b"\n", &[fd]).expect("room");
            if receive(&far, &mut inbox).is_err() {
                // Too many descriptors came without a message: the session closes the connection.
                break;
            }
        }
        if o.next() == 255 {
            let len = usize::from(o.next()).min(o.0.len());
            let (line, rest) = o.0.split_at(len);
            session.handle(line, &mut inbox);
            o.0 = rest;
            while session.poll_transmit().is_some() {}
            continue;
        }
        let answer = ask(&mut session, &mut inbox, id, &request(&mut o, &known));
        assert!(answer.ok.is_none() || answer.error.is_none(), "{answer:?}");
        done |= answer.error.is_none();
        known.learn(&answer);
    }
    // The other client's resources are unchanged, and it can give them back once.
    let name = protocol::Id { id: mr };
    let given = ask(&mut other, &mut quiet, 4, &Request::DestroyMr(name.clone()));
    assert!(given.error.is_none(), "{given:?}");
    let again = ask(&mut other, &mut quiet, 5, &Request::DestroyMr(name));
    assert!(again.error.is_some());
    for session in [&mut session, &mut other] {
        let rounds = (0..1000).find(|_| session.close());
        assert!(rounds.is_some(), "it does not end");
    }
    let registry = hub.registry();
    for _ in 0..4 {
        registry.reclaim();
    }
    assert_eq!((registry.mrs().len(), registry.draining()), (0, 0));
    assert_eq!(registry.regions().reap(), 0);
    done
}

/// Makes sequences that get somewhere: queues, regions and windows, connections.
pub fn seeds() -> Seeds {
    // The bytes of each request: no descriptor, no plain line, the operation, and existing names.
    let plain = |op: u8, rest: &[u8]| [&[9, 0, op, 1, 0, 0][..], rest].concat();
    let queues = [
        plain(0, &[]),
        plain(1, &[8]),
        plain(4, &[0, 4, 4, 1, 1, 0]),
        plain(6, &[]),
        plain(2, &[16]),
        plain(9, &[]),
        plain(7, &[1]),
    ];
    let memory = [
        plain(0, &[]),
        plain(10, &[64, 6, 0]),
        plain(18, &[]),
        plain(12, &[100]),
        plain(13, &[1]),
        plain(19, &[]),
        // A request with a page.
        [&[0, 0, 15, 1, 0, 0, 243, 0][..], &[]].concat(),
        plain(16, &[0, 64, 1, 0]),
        plain(21, &[]),
        plain(22, &[1, 0, 1, 0, 2]),
        plain(24, &[]),
        plain(25, &[]),
    ];
    let connections = [
        plain(0, &[]),
        [&[3, 0, 1, 1, 0, 1, 8][..], &[]].concat(),
        plain(4, &[0, 4, 4, 1, 1, 0]),
        plain(28, &[9, 1, 1, 0, 5]),
        plain(26, &[9, 4]),
        plain(31, &[2]),
        plain(30, &[1]),
        plain(29, &[1, 1, 1]),
    ];
    let names = [
        plain(250, &[]),
        plain(251, &[]),
        plain(251, &[]),
        plain(253, &[7]),
        [&[9, 0, 253, 1, 1, 0][..], &[]].concat(),
        plain(255, &[7]),
        plain(254, &[]),
        plain(0, &[]),
        plain(1, &[8]),
        plain(4, &[0, 4, 4, 1, 1, 0]),
        plain(252, &[]),
        plain(6, &[]),
    ];
    vec![
        ("names".to_owned(), names.concat()),
        ("queues".to_owned(), queues.concat()),
        ("memory".to_owned(), memory.concat()),
        ("connections".to_owned(), connections.concat()),
    ]
}
