//! The harness of handshakes that peers begin: a stack B that listens, and hosts whose segments a test
//! makes one by one.

use core::time::Duration;

use super::*;
use crate::Timestamps;

/// A host of the link that B does not know.
pub(super) const C: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);

/// A host, and its port.
pub(super) type Source = (Ipv4Addr, u16);

/// Returns a stack with the changed settings of B, which listens and knows A.
pub(super) fn listening(backlog: usize, change: impl FnOnce(&mut StackConfig)) -> Stack<ByteQueue> {
    let mut cfg = config_b();
    change(&mut cfg);
    let mut b = Stack::new(cfg);
    b.listen(None, PORT, backlog).unwrap();
    introduce_a(&mut b, Instant::ZERO);
    b
}

/// Gives B a segment.
pub(super) fn put(
    b: &mut Stack<ByteQueue>,
    now: Instant,
    src: Source,
    seg: &TxSegment,
    data: &[u8],
) -> FrameOutcome {
    b.handle_frame(now, &tcp_frame(src, (B, PORT), seg, data)[..])
}

/// Gives B a segment. Returns the sole answer, if there is one.
pub(super) fn answer(
    b: &mut Stack<ByteQueue>,
    now: Instant,
    src: Source,
    seg: &TxSegment,
    data: &[u8],
) -> Option<Segment> {
    put(b, now, src, seg, data);
    let out = frames(b, now);
    assert!(out.len() <= 1);
    out.first().map(|f| read_tcp(f).1)
}

/// Gives B a SYN. Returns its SYN-ACK.
pub(super) fn ask(b: &mut Stack<ByteQueue>, now: Instant, src: Source, syn: &TxSegment) -> Segment {
    put(b, now, src, syn, b"");
    let out = frames(b, now);
    let (h, s) = read_tcp(out.last().expect("an answer"));
    assert_eq!((h.dst_port, s.flags.has(Flags::SYN.with(Flags::ACK))), (src.1, true));
    s
}

/// Returns the segment that completes the handshake of a SYN-ACK.
pub(super) fn ack_of(s: &Segment) -> TxSegment {
    let timestamps = s.timestamps.map(|ts| Timestamps { val: ts.ecr + 1, ecr: ts.val });
    let ack = s.seq.0.wrapping_add(1);
    TxSegment { timestamps, ..segment(s.ack.0, ack, Flags::ACK) }
}

/// Returns a SYN with every option, which asks for ECN.
pub(super) fn full_syn(seq: u32) -> TxSegment {
    TxSegment {
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { val: 5000, ecr: 0 }),
        flags: Flags::SYN.with(Flags::ECE).with(Flags::CWR),
        ..syn(seq)
    }
}

/// Returns the connection that B has accepted, which is its only news.
pub(super) fn accepted(b: &mut Stack<ByteQueue>) -> ConnId {
    let [(id, StackEvent::Accepted { .. })] = events(b)[..] else { panic!("accepted") };
    id
}

/// Opens a connection of `src` to a port of B, which the owner holds. Returns `None` if B refuses it.
pub(super) fn open(
    b: &mut Stack<ByteQueue>,
    now: Instant,
    src: Source,
    port: u16,
) -> Option<ConnId> {
    b.handle_frame(now, &tcp_frame(src, (B, port), &syn(100), b"")[..]);
    let out = frames(b, now);
    let (_, s) = read_tcp(out.first()?);
    if s.flags.has(Flags::RST) {
        return None;
    }
    b.handle_frame(now, &tcp_frame(src, (B, port), &ack_of(&s), b"")[..]);
    events(b).first().map(|e| e.0)
}

/// Ends a connection as an owner does who has no use for it.
pub(super) fn end(b: &mut Stack<ByteQueue>, id: ConnId) {
    b.abort(id);
    b.release(id);
}

/// Hosts that connect one after another in a flood, each as far from B as the others.
pub(super) struct Clients {
    round_trip: Duration,
    waiting: Option<(Source, TxSegment, Instant)>,
    /// The number of hosts that B has served.
    pub(super) served: u64,
}

impl Clients {
    pub(super) fn new(round_trip: Duration) -> Clients {
        Clients { round_trip, waiting: None, served: 0 }
    }

    /// Lets a host send its SYN, to which B must answer at once.
    pub(super) fn knock(&mut self, b: &mut Stack<ByteQueue>, now: Instant, host: Ipv4Addr) {
        let src = (host, 1000);
        let s = ask(b, now, src, &syn(100));
        self.waiting = Some((src, ack_of(&s), now + self.round_trip));
    }

    /// Completes the handshake that is under way when its time has come: B must accept it.
    pub(super) fn go_on(&mut self, b: &mut Stack<ByteQueue>, now: Instant) {
        let Some((src, ack, _)) = self.waiting.take_if(|(.., at)| *at <= now) else { return };
        put(b, now, src, &ack, b"");
        let id = accepted(b);
        end(b, id);
        self.served += 1;
    }
}
