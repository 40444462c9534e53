//! A host, and the peer's knowledge of it: a plan's places become numbers, and frames become what
//! both hosts have to have in common.

use core::fmt;
use core::time::Duration;
use std::io;

use heddle_testkit::frames::{ACK, FIN, RST, SYN, Segment};
use heddle_testkit::ip::{self, Ip};

use crate::flow::{Ends, Flow};
use crate::host_under_test::{App, HostUnderTest};
use crate::parse::{Mss, Seg, Stamps};
use crate::plan::{Acked, Clock, Place, Plan, Spec, Step};
use crate::{MAC, PEER_MAC, address};

/// The peer's initial sequence number.
const ISN: u32 = 0x7000_0000;

/// The right edge of the window, whatever it is.
pub const EDGE: i64 = 10_000_000;

/// The actions of a host up to a step, as far as timers, window sizes, and the cutting of data into
/// segments do not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Resets: their numbers, and what they acknowledge.
    pub resets: Vec<(i64, Option<i64>)>,
    /// A SYN or SYN-ACK, and what it acknowledges.
    pub syn: Option<Option<i64>>,
    /// The acknowledgment number of the last other segment; `None` if the host was silent.
    pub ack: Option<i64>,
    /// The number after the last byte, or FIN, sent so far.
    pub sent: i64,
    pub fin: bool,
    /// The first block of the last ACK; `None` if the host has sent data too.
    pub sack: Option<(i64, i64)>,
    pub app: App,
}

/// A host and the numbers of its connection.
pub struct Side<H> {
    host: H,
    flow: Flow,
    ends: Ends,
    /// The number that the host acknowledged last, its right edge, and the highest that it has sent.
    acked: i64,
    edge: i64,
    /// The right edge before the last step.
    edge_before: i64,
    sent: i64,
    fin: bool,
    closed: bool,
    steps: u32,
    /// Where the last segment began, from the number that the host expected.
    pub at: i64,
}

impl<H: HostUnderTest> Side<H> {
    pub fn new(host: H) -> Side<H> {
        let ends = Ends { ours: (MAC, address(false, 1)), peer: (PEER_MAC, address(false, 2)) };
        let flow = Flow::new(0, ISN);
        Side {
            host,
            flow,
            ends,
            acked: 0,
            edge: 0,
            edge_before: 0,
            sent: 0,
            fin: false,
            closed: false,
            steps: 0,
            at: 0,
        }
    }

    /// Begins a plan.
    pub fn begin(&mut self, plan: &Plan, port: u16) -> io::Result<Seen> {
        let at = |n| address(plan.ipv6, n);
        self.ends = Ends { ours: (MAC, at(1)), peer: (PEER_MAC, at(2)) };
        self.flow = Flow::new(port, ISN);
        (self.acked, self.edge, self.sent, self.fin, self.steps) = (0, 0, 0, false, 0);
        (self.closed, self.at) = (false, 0);
        let frames = self.host.begin(plan.ipv6, plan.accepted, port)?;
        self.look(&frames)
    }

    /// Ends a plan.
    pub fn end(&mut self) -> io::Result<()> {
        self.host.end()
    }

    /// Runs a step.
    pub fn step(&mut self, plan: &Plan, step: &Step) -> io::Result<Seen> {
        self.steps += 1;
        self.edge_before = self.edge;
        let open = self.host.app()?.open;
        let mut syn = None;
        let frames = match step {
            Step::Segment(spec) => {
                let seg = self.segment(plan, spec);
                self.at = seg.seq - self.acked;
                syn = (seg.flags & SYN != 0).then_some(seg.seq);
                let since = Duration::from_millis(u64::from(self.steps));
                let frame = self.flow.build(&seg, &self.ends, since).map_err(io::Error::other)?;
                self.host.receive(&frame)?
            }
            // An application acts once it has a connection.
            _ if !open || self.closed => Vec::new(),
            Step::Write(len) => self.host.write(*len)?,
            Step::Close | Step::Abort => {
                self.closed = true;
                if *step == Step::Close { self.host.close()? } else { self.host.abort()? }
            }
        };
        let seen = self.look(&frames)?;
        if let Some(at) = syn
            && (seen.syn == Some(Some(self.at_any_edge(at + 1))) || !open && seen.app.open)
        {
            // The connection begins with this SYN.
            let [a, b, c, d, ..] = at.to_le_bytes();
            self.flow.peers = self.flow.peers.wrapping_add(u32::from_le_bytes([a, b, c, d]));
            self.acked -= at;
            self.edge -= at;
        }
        Ok(seen)
    }

    fn segment(&self, plan: &Plan, spec: &Spec) -> Seg {
        let seq = match spec.at {
            Place::Next(n) => self.acked + n,
            Place::Edge(n) => self.edge + n,
            Place::Start(n) => n,
        };
        let ack = match spec.ack {
            Acked::Sent(n) => self.sent + n,
            Acked::Start(n) => n,
        };
        let syn = spec.flags & SYN != 0;
        let stamps = match spec.clock {
            _ if syn && plan.stamps => Stamps::With(None, None),
            _ if syn => Stamps::Without,
            Clock::Now => Stamps::Agreed,
            Clock::Old if plan.stamps => Stamps::With(Some(1), None),
            Clock::Old => Stamps::Agreed,
            Clock::Missing => Stamps::Without,
        };
        Seg {
            flags: spec.flags,
            seq,
            len: spec.len,
            ack: (spec.flags & ACK != 0).then_some(ack),
            win: Some(spec.win),
            mss: syn.then_some(Mss::Is(1000)),
            sack_permitted: syn && plan.sack,
            stamps,
            ..Seg::default()
        }
    }

    /// Returns a number near the right edge in a form that does not depend on the size of the window.
    fn at_any_edge(&self, n: i64) -> i64 {
        const NEAR: i64 = 5000;
        let edge = self.edge_before;
        if (n - edge).abs() < NEAR { EDGE + n - edge } else { n }
    }

    /// Reads what a host has sent.
    fn look(&mut self, frames: &[Vec<u8>]) -> io::Result<Seen> {
        let mut seen = Seen { app: self.host.app()?, ..Seen::default() };
        let mut text = false;
        for frame in frames {
            let Some((header, ip::TCP, body)) = Ip::parse(frame) else { continue };
            let tcp = Segment::parse(body).ok_or_else(|| io::Error::other("a malformed header"))?;
            if tcp.dest != self.flow.peer_port {
                continue;
            }
            let syn = tcp.flags & SYN != 0;
            if syn && self.flow.ours.is_some_and(|ours| ours != tcp.seq) {
                // Another connection.
                self.flow.begin_anew();
                (self.sent, self.fin) = (0, false);
            }
            let seg = self.flow.read(&header, &tcp).map_err(io::Error::other)?;
            if seg.flags & RST != 0 {
                // A reset for a segment without ACK has the number 0.
                let seq = if tcp.seq == 0 { 0 } else { seg.seq };
                seen.resets.push((seq, seg.ack.map(|ack| self.at_any_edge(ack))));
                continue;
            }
            if let Some(ack) = seg.ack {
                self.acked = ack;
                self.edge = self.edge.max(ack + i64::from(seg.win.unwrap_or(0)));
            }
            let fin = seg.flags & FIN != 0;
            let end = seg.seq + i64::from(seg.len) + i64::from(syn) + i64::from(fin);
            self.sent = self.sent.max(end);
            self.fin |= fin;
            if syn {
                seen.syn = Some(seg.ack.map(|ack| self.at_any_edge(ack)));
            } else {
                seen.ack = seg.ack;
                let first = seg.sack.first().copied();
                seen.sack = first.map(|(from, to)| (self.at_any_edge(from), self.at_any_edge(to)));
                text |= seg.len > 0 || fin;
            }
        }
        if text {
            // Heddle has no blocks on segments with data, Linux has.
            seen.sack = None;
        }
        (seen.sent, seen.fin) = (self.sent, self.fin);
        Ok(seen)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (seq, ack) in &self.resets {
            write!(f, "RST {seq} ack {ack:?}; ")?;
        }
        if let Some(ack) = self.syn {
            write!(f, "SYN ack {ack:?}; ")?;
        }
        if let Some(ack) = self.ack {
            write!(f, "ack {ack}; ")?;
        }
        if let Some((from, to)) = self.sack {
            write!(f, "sack {from}:{to}; ")?;
        }
        let App { open, delivered, ended, failed, state } = self.app;
        write!(f, "sent to {}", self.sent)?;
        write!(f, "{}", if self.fin { " with FIN" } else { "" })?;
        write!(f, "; app {state} open {open} delivered {delivered} ended {ended} failed {failed}")
    }
}
