//! Two hosts, a wire that loses, delays and doubles frames, and virtual time.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};

use heddle_base::{Chunks, Instant, Random, Seed, StreamPos, Sum};

use super::*;

/// An end of the wire.
pub(super) trait Station {
    fn handle(&mut self, now: Instant, frame: &[u8]);
    fn transmit(&mut self, now: Instant) -> Option<Vec<u8>>;
    fn next_timeout(&mut self, now: Instant) -> Option<Instant>;
    fn tick(&mut self, now: Instant);
}

/// A stack with an owner that takes all payload offered, and checks it on the way.
pub(super) struct Host {
    pub(super) stack: Stack<ByteQueue>,
    pub(super) events: Vec<(ConnId, StackEvent)>,
    pub(super) received: HashMap<ConnId, Vec<u8>>,
    pub(super) retransmitted: u64,
    frame: TxFrame,
}

impl Host {
    pub(super) fn new(cfg: StackConfig) -> Host {
        Host {
            stack: Stack::new(cfg),
            events: Vec::new(),
            received: HashMap::new(),
            retransmitted: 0,
            frame: TxFrame::default(),
        }
    }

    pub(super) fn send(&mut self, id: ConnId, bytes: &[u8]) {
        self.stack.user_mut(id).unwrap().push(bytes);
        self.stack.notify_send(id);
    }

    /// Returns the bytes that have come in order.
    pub(super) fn got(&self, id: ConnId) -> &[u8] {
        let upto = self.stack.conn(id).map_or(0, |c| c.rcv_nxt().since(StreamPos::START));
        let all = self.received.get(&id).map_or(&[][..], |v| v);
        &all[..usize::try_from(upto).unwrap().min(all.len())]
    }

    pub(super) fn has(&self, id: ConnId, event: StackEvent) -> bool {
        self.events.contains(&(id, event))
    }

    pub(super) fn says(&self, id: ConnId, event: ConnEvent) -> bool {
        self.has(id, StackEvent::Conn(event))
    }

    /// Returns the last connection accepted.
    pub(super) fn accepted(&self) -> Option<ConnId> {
        let accepted = |e: &&(ConnId, StackEvent)| matches!(e.1, StackEvent::Accepted { .. });
        self.events.iter().rev().find(accepted).map(|e| e.0)
    }

    fn take_events(&mut self) {
        check_timers(&self.stack);
        while let Some(e) = self.stack.poll_event() {
            self.events.push(e);
        }
    }
}

impl Station for Host {
    fn handle(&mut self, now: Instant, frame: &[u8]) {
        let mut frame = Received::of(frame);
        let outcome = self.stack.handle_frame(now, &mut frame);
        if let FrameOutcome::Conn { conn, acked, payload } = outcome {
            if let Some(upto) = acked {
                self.stack.user_mut(conn).unwrap().release(upto);
                self.stack.notify_send(conn);
            }
            if let Some(p) = payload {
                let at = usize::try_from(p.pos.since(StreamPos::START)).unwrap();
                let len = p.len as usize;
                let buf = self.received.entry(conn).or_default();
                buf.resize(buf.len().max(at + len), 0);
                buf[at..at + len].copy_from_slice(&frame.bytes[p.frame_off..p.frame_off + len]);
                self.stack.accept_payload(now, conn, p.pos, p.len);
            }
        }
        self.take_events();
    }

    fn transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        // Use one frame for all, as a worker does: the stack makes most segments from the one
        // before.
        if self.stack.poll_transmit_into(now, Train::NONE, &mut self.frame) == 0 {
            return None;
        }
        if let TxBody::Stream { retransmit: true, .. } = self.frame.body {
            self.retransmitted += 1;
        }
        Some(assemble(&self.stack, &mut self.frame))
    }

    fn next_timeout(&mut self, _: Instant) -> Option<Instant> {
        self.stack.poll_timeout()
    }

    fn tick(&mut self, now: Instant) {
        self.stack.handle_timeouts(now);
        self.take_events();
    }
}

/// Returns the bytes of a frame, with its checksum completed.
pub(super) fn assemble(stack: &Stack<ByteQueue>, frame: &mut TxFrame) -> Vec<u8> {
    let mut body = Vec::new();
    match &frame.body {
        TxBody::None => {}
        TxBody::Stream { conn, pos, len, .. } => {
            stack.user(*conn).unwrap().copy(*pos, *len, &mut body);
            assert_eq!(body.len(), *len as usize);
        }
        TxBody::Owned(b) => body.extend(b),
    }
    frame.finish_tcp_checksum(Sum::of(&body));
    [&frame.header[..], &body].concat()
}

/// The faults of the wire.
#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) loss: f64,
    pub(super) reorder: f64,
    pub(super) duplicate: f64,
}

/// Two stations, the wire between them, and virtual time.
pub(super) struct Net<X, Y> {
    pub(super) a: X,
    pub(super) b: Y,
    pub(super) now: Instant,
    pub(super) faults: Faults,
    /// Frames that both sides sent so far.
    pub(super) sent: u64,
    /// The largest datagram that a router between the hosts forwards to B. The router reports
    /// larger ones, unless it is `silent`.
    pub(super) path_mtu: Option<u16>,
    pub(super) silent: bool,
    pub(super) latency: Duration,
    random: Random,
    flying: BTreeMap<(Instant, u64), (bool, Vec<u8>)>,
}

impl<X: Station, Y: Station> Net<X, Y> {
    pub(super) fn new(a: X, b: Y, seed: u64) -> Net<X, Y> {
        Net {
            a,
            b,
            now: Instant::ZERO,
            faults: Faults::default(),
            sent: 0,
            path_mtu: None,
            silent: false,
            latency: Duration::from_micros(50),
            random: Random::new(&Seed::from_u64(seed)),
            flying: BTreeMap::new(),
        }
    }

    fn fly(&mut self, to_b: bool, frame: Vec<u8>) {
        if let Some(mtu) = self.path_mtu.filter(|&m| to_b && frame.len() > 14 + usize::from(m)) {
            self.sent += 1;
            if self.silent {
                return;
            }
            let told = path_mtu::fragmentation_needed(&frame, mtu);
            self.flying.insert((self.now + self.latency, self.sent), (false, told));
            return;
        }
        let copies = 1 + u64::from(self.random.chance(self.faults.duplicate));
        for _ in 0..copies {
            self.sent += 1;
            if self.random.chance(self.faults.loss) {
                continue;
            }
            let mut at = self.now + self.latency;
            if self.random.chance(self.faults.reorder) {
                at = at + Duration::from_micros(self.random.below(500));
            }
            self.flying.insert((at, self.sent), (to_b, frame.clone()));
        }
    }

    /// Sends all waiting frames, then advances to the instant of the next event. Returns false when
    /// there will be none.
    pub(super) fn step(&mut self) -> bool {
        while let Some(f) = self.a.transmit(self.now) {
            self.fly(true, f);
        }
        while let Some(f) = self.b.transmit(self.now) {
            self.fly(false, f);
        }
        let next = [
            self.flying.keys().next().map(|k| k.0),
            self.a.next_timeout(self.now),
            self.b.next_timeout(self.now),
        ];
        let Some(next) = next.into_iter().flatten().min() else { return false };
        self.now = self.now.max(next);
        while let Some(e) = self.flying.first_entry().filter(|e| e.key().0 <= self.now) {
            let (to_b, frame) = e.remove();
            if to_b {
                self.b.handle(self.now, &frame);
            } else {
                self.a.handle(self.now, &frame);
            }
        }
        self.a.tick(self.now);
        self.b.tick(self.now);
        true
    }

    /// Steps until `done`, for at most `limit` of virtual time.
    #[track_caller]
    pub(super) fn run(&mut self, what: &str, limit: Duration, done: impl Fn(&mut Self) -> bool) {
        let end = self.now + limit;
        let mut idle = 0;
        while !done(self) {
            let before = self.now;
            assert!(self.step(), "{what}: nothing left to do at {:?}", self.now);
            assert!(self.now <= end, "{what}: not done by {end:?}");
            idle = if self.now == before { idle + 1 } else { 0 };
            assert!(idle < 1000, "{what}: time stands still at {:?}", self.now);
        }
    }
}

/// A frame as a port brings it: with a VLAN's tag in it, or taken out.
#[derive(Clone)]
pub(super) struct Received {
    pub(super) bytes: Vec<u8>,
    pub(super) tag: Option<Tag>,
}

impl Received {
    pub(super) fn of(bytes: &[u8]) -> Received {
        Received { bytes: bytes.to_vec(), tag: None }
    }
}

impl Chunks for Received {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        self.bytes.get(off..).unwrap_or_default()
    }
}

impl RxFrame for Received {
    fn tag(&self) -> Option<Tag> {
        self.tag
    }

    fn take_tag(&mut self) -> bool {
        let Some(tag) = Tag::of(&self.bytes) else { return false };
        self.bytes.drain(12..16);
        self.tag = Some(tag);
        true
    }
}

/// A frame in pieces, with the port's findings about its checksums.
pub(super) struct Pieces(pub(super) Vec<Vec<u8>>, pub(super) RxChecksum);

impl Chunks for Pieces {
    fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    fn chunk_at(&self, mut off: usize) -> &[u8] {
        for p in &self.0 {
            if off < p.len() {
                return &p[off..];
            }
            off -= p.len();
        }
        &[]
    }
}

impl RxFrame for Pieces {
    fn checksum(&self) -> RxChecksum {
        self.1
    }
}
