//! An end with a model of its driver and queue pair. The model carries out work in order, except
//! RDMA Reads, which take time; completions come in order, and late. The model checks every access
//! of the peer, and all memory when the connection reports that the memory is safe.

use std::collections::{HashMap, VecDeque};

use heddle_base::Instant;
use heddle_rpcrdma::conn::{
    Access, BufferId, Config, Connection, Event, Memory, NotRegistered, Purpose, Region, Sge, Work,
    WorkId,
};
use heddle_rpcrdma::reduce::Piece;
use heddle_rpcrdma::{Handle, Segment};

/// The memory of an end.
#[derive(Debug, Default)]
pub(crate) struct Mem {
    pub(crate) buffers: HashMap<u64, Vec<u8>>,
    next: u64,
    /// Buffers that the connection owns.
    pub(crate) lent: HashMap<u64, Purpose>,
    /// Number of allocations to refuse from now on.
    pub(crate) refuse: u32,
    /// Number of bytes that calls may take at a time; `None` for no limit.
    pub(crate) room: Option<u32>,
}

impl Mem {
    pub(crate) fn new_buffer(&mut self, bytes: Vec<u8>) -> BufferId {
        self.next += 1;
        self.buffers.insert(self.next, bytes);
        BufferId(self.next)
    }

    /// Creates a buffer, and returns all of the buffer as one piece.
    pub(crate) fn sge(&mut self, bytes: Vec<u8>) -> Sge {
        let length = u32::try_from(bytes.len()).unwrap();
        Sge { buffer: self.new_buffer(bytes), offset: 0, length }
    }

    pub(crate) fn at(&self, sge: Sge) -> &[u8] {
        let from = usize::try_from(sge.offset).unwrap();
        &self.buffers[&sge.buffer.0][from..from + sge.length as usize]
    }

    fn at_mut(&mut self, sge: Sge) -> &mut [u8] {
        let from = usize::try_from(sge.offset).unwrap();
        let buffer = self.buffers.get_mut(&sge.buffer.0).expect("the buffer is there");
        &mut buffer[from..from + sge.length as usize]
    }

    pub(crate) fn gather(&self, sges: &[Sge]) -> Vec<u8> {
        let mut bytes = Vec::new();
        sges.iter().for_each(|sge| bytes.extend_from_slice(self.at(*sge)));
        bytes
    }

    /// Returns the number of bytes of calls that the connection owns.
    fn calls(&self) -> usize {
        let calls = self.lent.iter().filter(|(_, purpose)| may_wait(**purpose));
        calls.map(|(buffer, _)| self.buffers[buffer].len()).sum()
    }

    /// Takes a buffer that came up in an event.
    pub(crate) fn taken(&mut self, buffer: BufferId, length: u32) -> Vec<u8> {
        assert!(self.lent.remove(&buffer.0).is_some(), "it was the connection's");
        let mut bytes = self.buffers.remove(&buffer.0).unwrap();
        bytes.truncate(length as usize);
        bytes
    }
}

/// Returns true if a call waits when there is no buffer for this purpose.
fn may_wait(purpose: Purpose) -> bool {
    matches!(purpose, Purpose::Call | Purpose::Inline)
}

impl Memory for Mem {
    fn allocate(&mut self, purpose: Purpose, bytes: u32) -> Option<BufferId> {
        assert!(bytes > 0);
        if self.refuse > 0 {
            self.refuse -= 1;
            return None;
        }
        let taken = |bytes: usize| self.calls() + bytes <= self.call_max() as usize;
        if may_wait(purpose) && !taken(bytes as usize) {
            return None;
        }
        let buffer = self.new_buffer(vec![0xaa; bytes as usize]);
        self.lent.insert(buffer.0, purpose);
        Some(buffer)
    }

    fn call_max(&self) -> u32 {
        self.room.unwrap_or(u32::MAX)
    }

    fn write(&mut self, buffer: BufferId, offset: u32, bytes: &[u8]) {
        assert!(self.lent.contains_key(&buffer.0));
        let length = u32::try_from(bytes.len()).unwrap();
        self.at_mut(Sge { buffer, offset: offset.into(), length }).copy_from_slice(bytes);
    }

    fn copy(&mut self, from: (BufferId, Piece), to: (BufferId, u32)) {
        let (buffer, Piece { offset, length }) = from;
        let bytes = self.at(Sge { buffer, offset: offset.into(), length }).to_vec();
        self.write(to.0, to.1, &bytes);
    }

    fn free(&mut self, buffer: BufferId) {
        assert!(self.lent.remove(&buffer.0).is_some(), "it was the connection's");
        self.buffers.remove(&buffer.0).unwrap();
    }
}

#[derive(Debug)]
enum Op {
    Send { header: Vec<u8>, payload: Vec<Sge>, invalidate: Option<Handle> },
    Read { to: Sge, from: Segment },
    Write { from: Vec<Sge>, to: Segment },
    Invalidate { handle: Handle },
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Posted,
    Running,
    Done,
}

#[derive(Debug)]
struct Entry {
    id: WorkId,
    op: Op,
    state: State,
}

/// The reason why the queue pairs ended the connection: an end did something to the other that is
/// not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The receiver has no Receive, or a Receive that is too short.
    Receive,
    /// An access to memory, or invalidation of memory, that is out of reach.
    Access(Handle),
}

/// An end of the connection.
pub(crate) struct End {
    pub(crate) conn: Connection,
    pub(crate) mem: Mem,
    regions: HashMap<u32, Region>,
    next_handle: u32,
    sq: VecDeque<Entry>,
    pub(crate) inbox: VecDeque<(Vec<u8>, Option<Handle>)>,
    /// Number of handles that can be registered at a time.
    pub(crate) pool: usize,
    /// Number of registrations that fail for good from now on.
    pub(crate) fail: u32,
    pub(crate) events: VecDeque<Event>,
    /// Number of posted work requests of each kind: Send, Read, Write, Invalidate.
    pub(crate) posted: [usize; 4],
    /// All messages that the end has sent.
    pub(crate) sent: Vec<Vec<u8>>,
}

const HANDLE_BASE: u64 = 0x1000_0000_0000;

impl End {
    pub(crate) fn new(config: Config) -> End {
        End {
            conn: Connection::new(config, Instant::ZERO).unwrap(),
            mem: Mem::default(),
            regions: HashMap::new(),
            next_handle: 1,
            sq: VecDeque::new(),
            inbox: VecDeque::new(),
            pool: 1000,
            fail: 0,
            events: VecDeque::new(),
            posted: [0; 4],
            sent: Vec::new(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.sq.is_empty() && self.inbox.is_empty()
    }

    /// Posts work as long as there is any and the send queue has room.
    pub(crate) fn pump(&mut self, room: usize) {
        let mut header = vec![0; self.conn.config().header_size() as usize];
        while self.sq.len() < room
            && let Some(work) = self.conn.poll_work(&mut header)
        {
            let (kind, id, op) = match work {
                Work::Register { call, regions } => {
                    let (call, regions) = (call, regions.to_vec());
                    self.register(call, &regions);
                    continue;
                }
                Work::Send { id, header: len, payload, invalidate } => {
                    let header = header[..len].to_vec();
                    (0, id, Op::Send { header, payload: payload.to_vec(), invalidate })
                }
                Work::Read { id, to, from } => {
                    let sink = self.mem.lent.get(&to.buffer.0);
                    assert!(matches!(sink, Some(Purpose::Call | Purpose::Parts)), "{sink:?}");
                    (1, id, Op::Read { to, from })
                }
                Work::Write { id, from, to } => (2, id, Op::Write { from: from.to_vec(), to }),
                Work::Invalidate { id, handle } => (3, id, Op::Invalidate { handle }),
            };
            self.posted[kind] += 1;
            self.sq.push_back(Entry { id, op, state: State::Posted });
        }
        self.take_events();
    }

    pub(crate) fn take_events(&mut self) {
        while let Some(event) = self.conn.poll_event() {
            self.events.push_back(event);
        }
    }

    fn register(&mut self, call: heddle_rpcrdma::conn::CallId, regions: &[Region]) {
        if self.fail > 0 {
            self.fail -= 1;
            self.conn.not_registered(call, NotRegistered::Never);
            return;
        }
        if self.regions.len() + regions.len() > self.pool {
            assert!(regions.len() <= self.pool, "the model's pool is too small for the call");
            self.conn.not_registered(call, NotRegistered::Later);
            return;
        }
        let mut segments = Vec::new();
        for region in regions {
            let _ = self.mem.at(region.memory);
            assert!(region.memory.length <= self.conn.config().registration_max);
            let handle = self.next_handle;
            self.next_handle += 1;
            self.regions.insert(handle, *region);
            let offset = HANDLE_BASE * u64::from(handle % 1000);
            segments.push(Segment { handle: Handle(handle), length: region.memory.length, offset });
        }
        self.conn.registered(call, &segments);
    }

    /// Returns the memory that an access of the peer reaches.
    fn reach(&self, segment: Segment, access: Access) -> Result<Sge, Refused> {
        let within = || {
            let region = self.regions.get(&segment.handle.0).filter(|r| r.access == access)?;
            let base = HANDLE_BASE * u64::from(segment.handle.0 % 1000);
            let at = segment.offset.checked_sub(base)?;
            let end = at.checked_add(segment.length.into())?;
            let offset = region.memory.offset + at;
            let inside = end <= region.memory.length.into();
            inside.then_some(Sge { offset, length: segment.length, ..region.memory })
        };
        within().ok_or(Refused::Access(segment.handle))
    }

    /// Returns the peer's memory that posted work accesses.
    pub(crate) fn accesses(&self) -> impl Iterator<Item = (Access, Segment)> {
        self.sq.iter().filter_map(|entry| match &entry.op {
            Op::Read { from, .. } => Some((Access::RemoteRead, *from)),
            Op::Write { to, .. } => Some((Access::RemoteWrite, *to)),
            Op::Send { .. } | Op::Invalidate { .. } => None,
        })
    }

    /// Returns true if the peer can reach no memory of this end.
    pub(crate) fn has_no_registrations(&self) -> bool {
        self.regions.is_empty()
    }

    /// Asserts that neither the peer nor work under way uses any of these buffers.
    pub(crate) fn assert_safe(&self, buffers: &[BufferId]) {
        let uses = |sges: &[Sge]| sges.iter().any(|sge| buffers.contains(&sge.buffer));
        assert!(!self.regions.values().any(|r| uses(&[r.memory])), "the peer can reach it");
        for entry in &self.sq {
            let busy = match &entry.op {
                Op::Send { payload, .. } => uses(payload),
                Op::Write { from, .. } => uses(from),
                Op::Read { .. } | Op::Invalidate { .. } => false,
            };
            assert!(!busy, "{entry:?} is under way");
        }
    }

    pub(crate) fn receive(&mut self, now: Instant) -> bool {
        self.try_receive(now).expect("the handle was in reach")
    }

    /// Receives a message of a peer that may do anything.
    pub(crate) fn try_receive(&mut self, now: Instant) -> Result<bool, Refused> {
        let Some((bytes, invalidate)) = self.inbox.pop_front() else { return Ok(false) };
        if let Some(handle) = invalidate {
            self.regions.remove(&handle.0).ok_or(Refused::Access(handle))?;
        }
        self.conn.handle_receive(now, &bytes, invalidate, &mut self.mem);
        Ok(true)
    }

    /// Completes the first work request, if it is done.
    pub(crate) fn complete(&mut self) -> bool {
        if self.sq.front().is_none_or(|entry| entry.state != State::Done) {
            return false;
        }
        let entry = self.sq.pop_front().unwrap();
        self.conn.handle_completion(WorkId::from_bits(entry.id.to_bits()), true);
        true
    }

    /// Fails the first work request; all work requests after it will fail, too.
    pub(crate) fn fail_first(&mut self) {
        let entry = self.sq.pop_front().expect("work that is posted");
        self.conn.handle_completion(entry.id, false);
    }

    /// Marks all posted work as done, without a peer.
    pub(crate) fn absorb(&mut self) {
        for entry in &mut self.sq {
            if let (State::Posted, Op::Send { header, payload, .. }) = (&entry.state, &entry.op) {
                self.sent.push([&header[..], &self.mem.gather(payload)].concat());
            }
            entry.state = State::Done;
            if let Op::Invalidate { handle } = entry.op {
                self.regions.remove(&handle.0);
            }
        }
        while self.complete() {}
    }

    /// Returns some handle that the peer can use.
    pub(crate) fn any_handle(&self) -> Option<Handle> {
        self.regions.keys().min().copied().map(Handle)
    }

    /// Invalidates a handle as the peer does.
    pub(crate) fn invalidate(&mut self, handle: Handle) {
        self.regions.remove(&handle.0);
    }

    /// Ends the queue pair.
    pub(crate) fn disconnect(&mut self) {
        self.sq.clear();
        self.regions.clear();
        self.inbox.clear();
        self.conn.handle_disconnected(&mut self.mem);
        self.pump(0);
    }
}

/// Carries out the next work request of `from`.
pub(crate) fn execute(from: &mut End, to: &mut End) -> bool {
    try_execute(from, to).expect("it is allowed")
}

/// Carries out the next work request of `from`, for ends that may violate each other's limits.
pub(crate) fn try_execute(from: &mut End, to: &mut End) -> Result<bool, Refused> {
    let Some(entry) = from.sq.iter_mut().find(|entry| entry.state == State::Posted) else {
        return Ok(false);
    };
    entry.state = State::Done;
    match &entry.op {
        Op::Send { header, payload, invalidate } => {
            let mut bytes = header.clone();
            bytes.extend(from.mem.gather(payload));
            let config = to.conn.config();
            assert!(bytes.len() <= from.conn.config().header_size() as usize);
            let is_posted = to.inbox.len() < config.receives() as usize;
            if !is_posted || bytes.len() > config.receive_size() as usize {
                return Err(Refused::Receive);
            }
            from.sent.push(bytes.clone());
            to.inbox.push_back((bytes, *invalidate));
        }
        Op::Read { .. } => entry.state = State::Running,
        Op::Write { from: sges, to: segment } => {
            let bytes = from.mem.gather(sges);
            assert_eq!(bytes.len(), segment.length as usize);
            let sink = to.reach(*segment, Access::RemoteWrite)?;
            to.mem.at_mut(sink).copy_from_slice(&bytes);
        }
        Op::Invalidate { handle } => {
            // The peer may have invalidated the handle in the meantime.
            from.regions.remove(&handle.0).ok_or(Refused::Access(*handle))?;
        }
    }
    Ok(true)
}

/// Answers the oldest RDMA Read of `from`.
pub(crate) fn read(from: &mut End, to: &mut End) -> bool {
    try_read(from, to).expect("it is allowed")
}

/// Answers the oldest RDMA Read of `from`, for ends that may violate each other's limits.
pub(crate) fn try_read(from: &mut End, to: &mut End) -> Result<bool, Refused> {
    let running = from.sq.iter().filter(|entry| entry.state == State::Running);
    let bytes: u32 =
        running.clone().map(|e| if let Op::Read { to, .. } = e.op { to.length } else { 0 }).sum();
    let count = running.count();
    let config = from.conn.config();
    assert!(count <= 1 || (count <= config.ord.into() && bytes <= config.read_max));
    let Some(entry) = from.sq.iter_mut().find(|entry| entry.state == State::Running) else {
        return Ok(false);
    };
    entry.state = State::Done;
    if let Op::Read { to: sink, from: segment } = entry.op {
        let source = to.reach(segment, Access::RemoteRead)?;
        let bytes = to.mem.at(source).to_vec();
        from.mem.at_mut(sink).copy_from_slice(&bytes);
    }
    Ok(true)
}

/// Does all pending work of both ends until both are quiet.
pub(crate) fn settle(a: &mut End, b: &mut End, now: Instant) {
    for _ in 0..100_000 {
        a.pump(64);
        b.pump(64);
        let moved = [
            execute(a, b),
            execute(b, a),
            read(a, b),
            read(b, a),
            a.complete(),
            b.complete(),
            a.receive(now),
            b.receive(now),
        ];
        if moved == [false; 8] {
            return;
        }
    }
    panic!("they never fall silent");
}
