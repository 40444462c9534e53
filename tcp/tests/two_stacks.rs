//! Drives two stacks as an owner outside the crate does: in the order of calls of the crate's
//! documentation. The test passes frames in memory, and time passes only where a test says so.
#![allow(clippy::unwrap_used, reason = "tests")]

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use heddle_base::{Instant, Seed, Sum};
use heddle_tcp::wire::TcpHeader;
use heddle_tcp::{
    ByteQueue, Cidr, ConnConfig, ConnEvent, Flags, FrameOutcome, Keepalive, Segment, Stack,
    StackConfig, StackEvent, State, TcpChecksum, TxBody,
};
use heddle_types::ConnId;

const PORT: u16 = 4420;

fn ip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

/// Stacks at 10.0.0.1 and 10.0.0.2; the second listens.
struct Two {
    now: Instant,
    stacks: [Stack<ByteQueue>; 2],
    /// TCP segments that each side sent, in order.
    sent: [Vec<Segment>; 2],
    events: [Vec<(ConnId, StackEvent)>; 2],
    /// True once no frame arrives any more.
    cut: bool,
}

impl Two {
    fn new(mtus: [u16; 2], conn: ConnConfig) -> Two {
        let stack = |n: u8, mtu| {
            let cidr = Cidr::new(ip(n).into(), 24).unwrap();
            let mut cfg = StackConfig::new([2, 0, 0, 0, 0, n], cidr, Seed::from_u64(u64::from(n)));
            (cfg.mtu, cfg.conn) = (mtu, conn);
            Stack::new(cfg)
        };
        let mut stacks = [stack(1, mtus[0]), stack(2, mtus[1])];
        stacks[1].listen(None, PORT, 4).unwrap();
        Two {
            now: Instant::from_millis(1),
            stacks,
            sent: Default::default(),
            events: Default::default(),
            cut: false,
        }
    }

    /// Returns the next frame that `side` sends, with its whole body.
    fn frame(&mut self, side: usize) -> Option<Vec<u8>> {
        let stack = &mut self.stacks[side];
        let mut f = stack.poll_transmit(self.now)?;
        let mut body = Vec::new();
        match &f.body {
            TxBody::None => {}
            TxBody::Stream { conn, pos, len, .. } => {
                stack.user(*conn).unwrap().copy(*pos, *len, &mut body);
            }
            TxBody::Owned(b) => body.extend(b),
        }
        if f.tcp_checksum == TcpChecksum::NeedsPayloadSum {
            f.finish_tcp_checksum(Sum::of(&body));
        }
        let frame = [&f.header[..], &body].concat();
        if f.l4_len > 0 {
            let tcp = &frame[usize::from(f.l2_len) + usize::from(f.l3_len)..];
            self.sent[side].push(TcpHeader::parse(tcp, tcp.len()).unwrap().segment);
        }
        Some(frame)
    }

    /// Passes a frame to `side`, whose owner takes the payload and then asks for events.
    fn take(&mut self, side: usize, frame: &[u8]) {
        let stack = &mut self.stacks[side];
        if let FrameOutcome::Conn { conn, acked, payload } = stack.handle_frame(self.now, frame)
            && let Some((c, q)) = stack.get_mut(conn)
        {
            if let Some(upto) = acked {
                q.release(upto);
            }
            if let Some(p) = payload {
                c.accept_payload(self.now, p.pos, p.len);
            }
            stack.notify_send(conn);
        }
        while let Some(e) = stack.poll_event() {
            self.events[side].push(e);
        }
    }

    /// Passes frames to and fro until no side has any.
    fn run(&mut self) {
        loop {
            let mut idle = true;
            for side in 0..2 {
                while let Some(f) = self.frame(side) {
                    idle = false;
                    if !self.cut {
                        self.take(1 - side, &f);
                    }
                }
            }
            if idle {
                return;
            }
        }
    }

    /// Runs the next timer of either side and its consequences. Returns false when no timer runs.
    fn step(&mut self) -> bool {
        let next = self.stacks.iter().filter_map(Stack::poll_timeout).min();
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        for side in 0..2 {
            self.stacks[side].handle_timeouts(self.now);
            while let Some(e) = self.stacks[side].poll_event() {
                self.events[side].push(e);
            }
        }
        self.run();
        true
    }

    fn connect(&mut self) -> (ConnId, ConnId) {
        let a = self.stacks[0].connect(self.now, SocketAddr::from((ip(2), PORT)), None).unwrap();
        self.run();
        assert!(self.events[0].contains(&(a, StackEvent::Conn(ConnEvent::Connected))));
        let accepted = |e: &&(ConnId, StackEvent)| matches!(e.1, StackEvent::Accepted { .. });
        (a, self.events[1].iter().find(accepted).unwrap().0)
    }

    fn send(&mut self, side: usize, id: ConnId, len: usize) {
        self.stacks[side].user_mut(id).unwrap().push(&vec![7; len]);
        self.stacks[side].notify_send(id);
    }

    fn says(&self, side: usize, id: ConnId, event: ConnEvent) -> bool {
        self.events[side].contains(&(id, StackEvent::Conn(event)))
    }
}

/// The owner that took the last bytes gets the event of the FIN after them at once, not after the
/// next frame, timer or transmission.
#[test]
fn test_fin_on_the_last_data_segment_is_told_with_it() {
    let mut n = Two::new([1500; 2], ConnConfig::default());
    let (a, b) = n.connect();
    n.send(0, a, 100);
    n.stacks[0].close(a);
    let f = n.frame(0).unwrap();
    assert_eq!(n.sent[0].last().map(|s| s.len), Some(100), "data and FIN in one");
    n.take(1, &f);
    assert!(n.says(1, b, ConnEvent::PeerClosed));
}

/// The segment size follows the MTU of the configuration, and the smaller MTU of both ends (RFC
/// 9293 section 3.7.1). Each side announces its MTU less 40 bytes, and sends segments of that size
/// less the options that every segment has.
#[test]
fn test_segments_are_as_large_as_both_mtus_allow() {
    for (mtus, timestamps, mss, len) in [
        ([1500, 1500], true, [1460, 1460], 1448),
        ([9000, 9000], true, [8960, 8960], 8948),
        ([9000, 9000], false, [8960, 8960], 8960),
        ([9000, 1500], true, [8960, 1460], 1448),
        ([1500, 9000], true, [1460, 8960], 1448),
        ([576, 9000], true, [536, 8960], 524),
    ] {
        let mut n = Two::new(mtus, ConnConfig { timestamps, ..ConnConfig::default() });
        let (a, b) = n.connect();
        for (sent, mss) in n.sent.iter().zip(mss) {
            assert_eq!(sent[0].mss, Some(mss), "{mtus:?}");
        }
        n.send(0, a, 100_000);
        n.send(1, b, 100_000);
        n.run();
        for sent in &n.sent {
            let largest = sent.iter().map(|s| s.len).max();
            assert_eq!(largest, Some(len), "{mtus:?} {timestamps}");
        }
    }
    // An owner may want smaller segments than its MTU allows.
    let mut n = Two::new([9000; 2], ConnConfig { mss: 4000, ..ConnConfig::default() });
    n.connect();
    assert_eq!(n.sent[0][0].mss, Some(4000));
}

/// The configuration includes keepalives: idle peers that are alive stay connected, and the stack
/// reports a vanished peer as timed out.
#[test]
fn test_vanished_idle_peer_times_out_when_keepalives_are_configured() {
    let seconds = Duration::from_secs;
    let keepalive = Some(Keepalive { idle: seconds(60), interval: seconds(5), count: 3 });
    let mut n = Two::new([1500; 2], ConnConfig { keepalive, ..ConnConfig::default() });
    let (a, b) = n.connect();
    let start = n.now;
    while n.now - start < seconds(600) {
        assert!(n.step());
    }
    assert!(!n.says(0, a, ConnEvent::TimedOut) && !n.says(1, b, ConnEvent::TimedOut));
    n.cut = true;
    let start = n.now;
    while n.now - start < seconds(60 + 3 * 5) {
        assert!(n.step());
    }
    assert!(n.says(0, a, ConnEvent::TimedOut) && n.says(1, b, ConnEvent::TimedOut));
    // Without keepalives the stack sends no probe.
    let mut n = Two::new([1500; 2], ConnConfig::default());
    let (a, _) = n.connect();
    n.cut = true;
    let start = n.now;
    while n.now - start < seconds(600) && n.step() {}
    assert!(!n.says(0, a, ConnEvent::TimedOut));
}

/// After both sides have closed and the last ACK has come, the side that closed second keeps
/// nothing of the connection. A segment that a network or a peer then repeats belongs to no
/// connection, and the stack answers it with RST (RFC 9293 section 3.10.7.1), whether the owner has
/// released the connection or not. Neither owner gets an event. A RST with the number of the last
/// ACK cuts the peer's TIME-WAIT short; a RST with an older number does not.
#[test]
fn test_segment_repeated_after_both_closed_is_answered_with_rst() {
    for (again, released) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut n = Two::new([1500; 2], ConnConfig::default());
        let (a, b) = n.connect();
        n.send(0, a, 100);
        n.send(1, b, 100);
        n.run();
        n.stacks[0].close(a);
        let fin = n.frame(0).unwrap();
        n.take(1, &fin);
        n.stacks[1].close(b);
        while let Some(f) = n.frame(1) {
            n.take(0, &f);
        }
        let last_ack = n.frame(0).unwrap();
        n.take(1, &last_ack);
        assert!(n.says(0, a, ConnEvent::Closed) && n.says(1, b, ConnEvent::Closed));
        n.run();
        let resets = |n: &Two| n.sent[1].iter().filter(|s| s.flags.has(Flags::RST)).count();
        assert_eq!(resets(&n), 0, "an orderly end needs none");
        if released {
            n.stacks[1].release(b);
        }
        let (events, sent) = (n.events.clone(), n.sent[1].len());
        let (segment, frame) = match again {
            0 => (n.sent[0][n.sent[0].len() - 1], last_ack),
            _ => (n.sent[0][n.sent[0].len() - 2], fin),
        };
        assert_eq!(segment.flags.has(Flags::FIN), again == 1);
        n.take(1, &frame);
        n.run();
        let [rst] = n.sent[1][sent..] else { panic!("{:?}", &n.sent[1][sent..]) };
        assert!(rst.flags.has(Flags::RST) && !rst.flags.has(Flags::ACK));
        assert_eq!(rst.seq, segment.ack);
        assert_eq!(n.events, events, "nobody is told");
        let state = n.stacks[0].conn(a).map(|c| c.state());
        assert_eq!(state == Some(State::TimeWait), again == 1, "{state:?}");
    }
}

/// An end in any order of the last segments takes no RST, and no more ACKs than FINs.
#[test]
fn test_orderly_close_has_one_ack_per_fin_and_no_rst() {
    for first in 0..2 {
        for together in [false, true] {
            let mut n = Two::new([1500; 2], ConnConfig::default());
            let (a, b) = n.connect();
            let ids = [a, b];
            n.send(0, a, 5000);
            n.send(1, b, 5000);
            n.run();
            let before = n.sent.each_ref().map(Vec::len);
            n.stacks[first].close(ids[first]);
            if !together {
                n.run();
            }
            n.stacks[1 - first].close(ids[1 - first]);
            n.run();
            while n.now < Instant::from_millis(500) && n.step() {}
            assert!(n.says(0, a, ConnEvent::Closed) && n.says(1, b, ConnEvent::Closed));
            let ends = [&n.sent[0][before[0]..], &n.sent[1][before[1]..]];
            for end in ends {
                assert!(end.iter().all(|s| !s.flags.has(Flags::RST)), "{ends:?}");
                assert_eq!(end.iter().filter(|s| s.flags.has(Flags::FIN)).count(), 1, "{ends:?}");
                assert!(end.len() <= 2, "{ends:?}");
            }
        }
    }
}
