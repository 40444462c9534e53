//! The course of a seed: who opens, what the SYN offers, and the steps that follow.

use core::fmt;

use heddle_base::{Random, Seed};
use heddle_testkit::frames::{ACK, FIN, PSH, RST, SYN};

use crate::parse::{FLAGS, URG};

/// A place in the peer's stream, relative to a number that both hosts have said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// From the number that the host acknowledged last.
    Next(i64),
    /// From the right edge of the window that the host offered last.
    Edge(i64),
    /// From the initial sequence number.
    Start(i64),
}

/// An acknowledgment number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acked {
    /// From the highest number that the host has sent.
    Sent(i64),
    /// From the host's initial sequence number.
    Start(i64),
}

/// The timestamp of a segment, where the ends have agreed on timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    Now,
    /// Older than any before.
    Old,
    Missing,
}

/// A segment of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    pub flags: u8,
    pub at: Place,
    pub len: u32,
    pub ack: Acked,
    pub win: u32,
    pub clock: Clock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Segment(Spec),
    /// The application sends so many bytes.
    Write(u32),
    /// The application ends its direction.
    Close,
    /// The application ends the connection at once.
    Abort,
}

/// A seed's steps.
#[derive(Clone, Debug)]
pub struct Plan {
    pub ipv6: bool,
    /// True if the peer connects to the host, false if the host connects to the peer.
    pub accepted: bool,
    /// True if the steps begin with a whole handshake, false if they begin after the first SYN.
    pub handshake: bool,
    pub sack: bool,
    pub stamps: bool,
    pub steps: Vec<Step>,
}

/// The window that the peer offers as a rule.
pub const WINDOW: u32 = 60_000;

impl Plan {
    /// Makes the plan of a seed.
    pub fn of(seed: u64) -> Plan {
        let mut r = Random::new(&Seed::from_u64(seed));
        let ipv6 = r.chance(0.5);
        let accepted = r.chance(0.6);
        let handshake = r.chance(0.8);
        let (sack, stamps) = (r.chance(0.5), r.chance(0.5));
        let count = 1 + r.below(12);
        let mut plan = Plan { ipv6, accepted, handshake, sack, stamps, steps: Vec::new() };
        for _ in 0..count {
            let step = plan.step(&mut r);
            plan.steps.push(step);
        }
        plan
    }

    /// Returns all steps, the handshake included.
    pub fn all(&self) -> Vec<Step> {
        let segment = |flags, at, ack| {
            let (len, win, clock) = (0, WINDOW, Clock::Now);
            Step::Segment(Spec { flags, at, len, ack, win, clock })
        };
        let mut all = Vec::new();
        if self.accepted {
            all.push(segment(SYN, Place::Start(0), Acked::Start(0)));
            if self.handshake {
                all.push(segment(ACK, Place::Start(1), Acked::Start(1)));
            }
        } else if self.handshake {
            all.push(segment(SYN | ACK, Place::Start(0), Acked::Start(1)));
        }
        all.extend(self.steps.iter().copied());
        all
    }

    fn step(&self, r: &mut Random) -> Step {
        match r.below(100) {
            0..12 => Step::Write(*pick(r, &[1, 10, 100, 500])),
            12..20 => Step::Close,
            20..22 => Step::Abort,
            _ => Step::Segment(self.segment(r)),
        }
    }

    fn segment(&self, r: &mut Random) -> Spec {
        const BITS: [u8; 24] = [
            ACK,
            ACK,
            ACK,
            ACK,
            ACK,
            ACK,
            PSH | ACK,
            PSH | ACK,
            PSH | ACK,
            FIN | ACK,
            FIN | ACK,
            FIN | PSH | ACK,
            RST,
            RST | ACK,
            SYN,
            SYN | ACK,
            SYN | FIN,
            SYN | RST,
            0,
            PSH,
            FIN,
            URG | ACK,
            URG | PSH | ACK,
            FIN | SYN | RST | PSH | ACK | URG,
        ];
        let flags = *pick(r, &BITS);
        let at = match r.below(20) {
            0..11 => Place::Next(0),
            11 => Place::Next(1),
            12 => Place::Next(-1),
            13 => Place::Next(*pick(r, &[2, 50, 100, 1000, 3000])),
            14 => Place::Next(-*pick(r, &[2, 50, 100, 1000])),
            15 => Place::Edge(*pick(r, &[-1000, -100, -1])),
            16 => Place::Edge(*pick(r, &[0, 1, 100])),
            17 => Place::Start(*pick(r, &[0, 1, 2])),
            18 => Place::Next(*pick(r, &[100_000, -100_000])),
            _ => Place::Next(i64::from(r.next_u32().cast_signed())),
        };
        let ack = match r.below(20) {
            0..14 => Acked::Sent(0),
            14 => Acked::Sent(1),
            15 => Acked::Sent(-1),
            16 => Acked::Sent(*pick(r, &[100, -100, -10])),
            17 => Acked::Start(*pick(r, &[0, 1])),
            18 => Acked::Sent(*pick(r, &[100_000, -100_000])),
            _ => Acked::Sent(i64::from(r.next_u32().cast_signed())),
        };
        let len = match r.below(8) {
            0..4 => 0,
            _ => *pick(r, &[1, 10, 100, 1000]),
        };
        let clock = match r.below(20) {
            0 => Clock::Old,
            1 => Clock::Missing,
            _ => Clock::Now,
        };
        // A window that only one of the hosts takes would show much later.
        let expected = at == Place::Next(0) && ack == Acked::Sent(0) && clock == Clock::Now;
        let win = if expected && r.chance(0.1) { 0 } else { WINDOW };
        Spec { flags, at, len, ack, win, clock }
    }
}

fn pick<'a, T>(r: &mut Random, all: &'a [T]) -> &'a T {
    let at = r.below(all.len() as u64);
    &all[usize::try_from(at).unwrap_or(0)]
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step::Segment(s) = self else { return write!(f, "{self:?}") };
        let bits = FLAGS.iter().filter(|(_, bit)| s.flags & bit != 0).map(|(name, _)| *name);
        let bits = bits.collect::<Vec<_>>().join(" ");
        let (at, len, ack, clock) = (s.at, s.len, s.ack, s.clock);
        write!(f, "[{bits}] {at:?} len {len} ack {ack:?} win {} clock {clock:?}", s.win)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.ipv6 { "IPv6" } else { "IPv4" };
        let who = if self.accepted { "accepts" } else { "connects" };
        let (sack, stamps) = (self.sack, self.stamps);
        write!(f, "the host {who} over {family}, SACK {sack}, timestamps {stamps}")?;
        self.all().iter().try_for_each(|step| write!(f, "\n  {step}"))
    }
}
