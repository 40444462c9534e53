//! Tests of a connection: one connection against a script (this bench), and two against each other
//! (`pair`).
//!
//! The bench's sequence numbers start just before 2^32, so that every test crosses the wrap.

mod accurate;
mod accurate_runs;
mod bottleneck;
mod closing;
mod ecn;
mod invariants;
mod keepalive;
mod loss;
mod matrix;
mod opening;
mod pacing;
mod pair;
mod pair_acks;
mod pair_runs;
mod probing;
mod progress;
mod rack;
mod random;
mod receiving;
mod recovery;
mod resets;
mod scoreboard;
mod selective;
mod sending;
mod timestamps;
mod user_timeout;
mod windows;

use super::ranges;
use crate::wire::tcp;
use crate::{
    ByteCounts, ByteQueue, Codepoint, Congestion, ConnConfig, ConnEvent, Connection, Ecn, Flags,
    Pacing, PathMtu, Payload, RareOptions, SackBlock, SackBlocks, Segment, SegmentOutcome,
    SendQueue, SeqNumber, State, Timestamps, TxSegment, UserTimeoutOption,
};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

const MS: Duration = Duration::from_millis(1);
const ISS: SeqNumber = SeqNumber(0xffff_ff00);
const IRS: SeqNumber = SeqNumber(0xffff_fff0);

const ACK: Flags = Flags::ACK;
const FIN: Flags = Flags::FIN.with(Flags::ACK);
const RST: Flags = Flags::RST;
const SYN: Flags = Flags::SYN;
const SYN_ACK: Flags = Flags::SYN.with(Flags::ACK);

/// Returns the defaults for an MTU of 1500.
fn ethernet() -> ConnConfig {
    ConnConfig { mss: 1460, ..ConnConfig::default().with_fixed_window(1 << 20) }
}

/// Returns settings with small numbers and no options, which most scripts want.
fn plain() -> ConnConfig {
    ConnConfig {
        mss: 1000,
        recv_window: 10_000,
        timestamps: false,
        window_scaling: false,
        sack: false,
        delayed_ack: 40 * MS,
        fin_wait_2: 150_000 * MS,
        time_wait: 1000 * MS,
        // The scripts follow the numbers of RFC 5681.
        congestion: Congestion::NewReno,
        path_mtu: PathMtu::Off,
        ..ethernet()
    }
}

/// A connection, its queue and its clock; the test plays the peer.
struct Bench {
    c: Connection,
    q: ByteQueue,
    now: Instant,
    /// The window field of the segments made by [`Bench::seg`].
    window: u16,
    /// The timestamps option of these segments.
    ts: Option<Timestamps>,
}

impl Bench {
    fn new(c: Connection, now: Instant) -> Bench {
        Bench { c, q: ByteQueue::default(), now, window: 65_535, ts: None }
    }

    /// Returns a bench in SYN-SENT that has sent nothing yet.
    fn connecting(cfg: &ConnConfig) -> Bench {
        let now = Instant::from_millis(1_000_000);
        Bench::new(Connection::connect(cfg, now, ISS, 0), now)
    }

    /// Returns a bench in SYN-RECEIVED after a plain SYN that has sent nothing yet.
    fn accepting(cfg: &ConnConfig) -> Bench {
        let now = Instant::from_millis(1_000_000);
        let syn =
            Segment { mss: Some(cfg.mss), sack_permitted: cfg.sack, ..raw(IRS, SeqNumber(0), SYN) };
        Bench::new(Connection::accept(cfg, now, ISS, 0, &syn), now)
    }

    /// Returns a bench established by an active open, with nothing to send and no event waiting.
    fn established_with(cfg: &ConnConfig) -> Bench {
        let mut b = Bench::connecting(cfg);
        assert!(b.tx().is_some());
        let syn_ack =
            Segment { mss: Some(cfg.mss), sack_permitted: cfg.sack, ..b.seg(-1, 0).with(SYN_ACK) };
        b.recv(&syn_ack);
        assert_eq!(b.sent(), [". 0 ack 0"]);
        assert_eq!(b.events(), [ConnEvent::Connected]);
        b
    }

    fn established() -> Bench {
        Bench::established_with(&plain())
    }

    /// Returns a bench in `state`, reached by ordinary segments, with nothing to send and no event
    /// waiting.
    fn in_state(state: State) -> Bench {
        Bench::in_state_with(&plain(), state)
    }

    fn in_state_with(cfg: &ConnConfig, state: State) -> Bench {
        let cfg = &ConnConfig { timestamps: false, ..*cfg };
        let mut b = match state {
            State::SynSent => Bench::connecting(cfg),
            State::SynReceived => Bench::accepting(cfg),
            _ => Bench::established_with(cfg),
        };
        let fin = |b: &mut Bench, ack| {
            let s = b.seg(0, ack).with(FIN);
            b.recv(&s);
        };
        match state {
            State::SynSent | State::SynReceived | State::Established => {}
            State::FinWait1 => b.c.close(),
            State::FinWait2 => {
                b.c.close();
                b.sent();
                let s = b.seg(0, 1);
                b.recv(&s);
            }
            State::CloseWait => fin(&mut b, 0),
            State::Closing => {
                b.c.close();
                b.sent();
                fin(&mut b, 0);
            }
            State::LastAck => {
                fin(&mut b, 0);
                b.c.close();
            }
            State::TimeWait => {
                b.c.close();
                b.sent();
                fin(&mut b, 1);
            }
            State::Closed => b.c.abort(),
        }
        b.sent();
        b.events();
        assert_eq!(b.c.state(), state);
        b
    }

    /// Returns a bare ACK from the peer: `seq` and `ack` are stream positions (-1 is the SYN).
    fn seg(&self, seq: i32, ack: i32) -> Segment {
        let at = |base: SeqNumber, n: i32| base.advance(1).advance(n.cast_unsigned());
        Segment { window: self.window, timestamps: self.ts, ..raw(at(IRS, seq), at(ISS, ack), ACK) }
    }

    fn recv(&mut self, seg: &Segment) -> SegmentOutcome {
        let out = self.c.handle_segment(self.now, seg);
        if let Some(upto) = out.acked {
            self.q.release(upto);
        }
        out
    }

    /// Receives a segment with a SACK option, if there are blocks.
    fn recv_selective(&mut self, seg: &Segment, sack: &SackBlocks) -> SegmentOutcome {
        if sack.is_empty() {
            return self.recv(seg);
        }
        let out = self.c.handle_selective(self.now, seg, sack);
        if let Some(upto) = out.acked {
            self.q.release(upto);
        }
        out
    }

    /// Receives a segment with an AccECN option.
    fn recv_counted(&mut self, seg: &Segment, counts: Option<ByteCounts>) -> SegmentOutcome {
        let out = handle(&mut self.c, self.now, seg, &SackBlocks::NONE, counting(counts));
        if let Some(upto) = out.acked {
            self.q.release(upto);
        }
        out
    }

    /// Receives a segment of `len` bytes at `seq`, and does not accept its payload.
    fn offer(&mut self, seq: i32, len: u32) -> Option<Payload> {
        let una = self.c.snd_una();
        let s = Segment { len, ..self.seg(seq, i32::try_from(una.0).unwrap()) };
        self.recv(&s).payload
    }

    /// Receives a segment of `len` bytes at `seq`, and accepts its payload.
    fn data(&mut self, seq: i32, len: u32) -> Option<Payload> {
        let p = self.offer(seq, len)?;
        self.c.accept_payload(self.now, p.pos, p.len);
        Some(p)
    }

    /// Receives a bare ACK of our stream; the peer is at `rcv_nxt`.
    fn ack(&mut self, ack: i32) -> SegmentOutcome {
        let s = self.seg(i32::try_from(self.c.rcv_nxt().0).unwrap(), ack);
        self.recv(&s)
    }

    fn queue(&mut self, len: usize) {
        self.q.push(&vec![7; len]);
    }

    fn tx(&mut self) -> Option<TxSegment> {
        self.c.poll_transmit(self.now, &self.q)
    }

    /// Sends all waiting segments and returns them as text.
    fn sent(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while self.c.wants_transmit(self.q.end()) {
            let Some(tx) = self.tx() else { break };
            let mut text = show(&tx);
            if tx.sack > 0 {
                text += &show_sack(self.c.sack_blocks());
            }
            all.push(text);
            assert!(all.len() < 2 * ranges::MAX_RANGES, "endless output");
        }
        assert_eq!(self.tx(), None, "wants_transmit missed it");
        self.c.check_invariants(self.q.end());
        all
    }

    fn events(&mut self) -> Vec<ConnEvent> {
        core::iter::from_fn(|| self.c.poll_event()).collect()
    }

    /// Lets time pass, and runs timers. Returns the segments sent meanwhile, each with its time.
    fn wait(&mut self, time: Duration) -> Vec<(u128, String)> {
        let (start, end) = (self.now, self.now + time);
        let mut all = Vec::new();
        while let Some(at) = self.c.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.c.handle_timeout(self.now);
            let after = (self.now - start).as_millis();
            all.extend(self.sent().into_iter().map(|s| (after, s)));
        }
        self.now = end;
        all
    }
}

/// Lets a connection handle a segment with these options, as a stack does.
fn handle(
    c: &mut Connection,
    now: Instant,
    seg: &Segment,
    sack: &SackBlocks,
    options: RareOptions,
) -> SegmentOutcome {
    match (sack.is_empty(), options == RareOptions::default()) {
        (true, true) => c.handle_segment(now, seg),
        (false, true) => c.handle_selective(now, seg, sack),
        (empty, false) => c.handle_with_options(now, seg, (!empty).then_some(sack), &options),
    }
}

/// Returns the options that a stack reads in a segment, which fits into a header.
fn options_of(tx: &TxSegment) -> RareOptions {
    assert!(tcp::options_len(tx) <= tcp::MAX_OPTIONS_LEN, "{tx:?}");
    let first = tx.flags.has(SYN) && !tx.flags.has(Flags::ACK);
    RareOptions { counts: tx.counts, user_timeout: tx.user_timeout.filter(|_| !first) }
}

/// Returns the options of a segment with these counts.
fn counting(counts: Option<ByteCounts>) -> RareOptions {
    RareOptions { counts, ..RareOptions::default() }
}

impl Segment {
    fn with(self, flags: Flags) -> Segment {
        Segment { flags, ..self }
    }
}

fn raw(seq: SeqNumber, ack: SeqNumber, flags: Flags) -> Segment {
    Segment { seq, ack, flags, window: 65_535, ..Segment::default() }
}

/// Formats a segment like tcpdump: flags, first position and length, acknowledged position.
fn show(tx: &TxSegment) -> String {
    let flags: String = [
        (Flags::SYN, 'S'),
        (Flags::FIN, 'F'),
        (Flags::RST, 'R'),
        (Flags::PSH, 'P'),
        (Flags::ACK, '.'),
        (Flags::ECE, 'E'),
        (Flags::CWR, 'W'),
        (Flags::AE, 'A'),
    ]
    .iter()
    .filter(|(f, _)| tx.flags.has(*f))
    .map(|(_, c)| *c)
    .collect();
    let seq = tx.seq.distance(ISS.advance(1));
    let mut s = format!("{flags} {seq}");
    if tx.len > 0 {
        assert_eq!(tx.pos, StreamPos(u64::from(seq.unsigned_abs())), "position and number differ");
        s += &format!("+{}", tx.len);
    }
    if tx.flags.has(Flags::ACK) {
        s += &format!(" ack {}", tx.ack.distance(IRS.advance(1)));
    }
    if tx.retransmit {
        s += " again";
    }
    if tx.ect {
        s += " ect";
    }
    if let Some(ByteCounts { reversed, fields, len }) = tx.counts {
        let fields: Vec<_> = fields.iter().take(len.into()).map(u32::to_string).collect();
        s += &format!(" counts{} {}", u8::from(reversed), fields.join(","));
    }
    s
}

fn show_sack(sack: &SackBlocks) -> String {
    let at = |n: SeqNumber| n.distance(IRS.advance(1));
    let one = |b: &SackBlock| format!("{}-{}", at(b.start), at(b.end));
    format!(" sack {}", sack.as_slice().iter().map(one).collect::<Vec<_>>().join(","))
}

fn strings(s: &[&str]) -> Vec<String> {
    s.iter().map(ToString::to_string).collect()
}
