//! The content of a program, and how a seed becomes a program.

use std::time::Duration;

use heddle_base::{Random, Seed};

use heddle_engine::POST_TURN;
use heddle_tcp::{Congestion, Ecn};
use heddle_types::mpa::Rtr;

use crate::sim::Pace;

/// A program. Each operation has its own source of random numbers, so that it stays the same if
/// others are left out.
#[derive(Clone, Debug)]
pub struct Program {
    pub seed: u64,
    pub plan: Plan,
    pub ops: Vec<Op>,
}

/// The fixed conditions of a program.
#[derive(Clone, Debug)]
pub struct Plan {
    pub mtu: u16,
    /// The most segments of a train that the ports cut; 1 if they cut none.
    pub cuts: u32,
    /// Whether the hosts speak IPv6.
    pub ipv6: bool,
    /// How connections treat marks of switches, and how often the link marks a packet.
    pub ecn: (Congestion, Ecn),
    pub mark: f64,
    pub delay: Duration,
    pub loss: f64,
    pub reorder: f64,
    pub duplicate: f64,
    /// How often the link flips a bit that a checksum covers.
    pub corrupt: f64,
    /// How often the link flips a bit of the payload and mends the checksum.
    pub damage: f64,
    /// How often a port has no buffer for a whole frame.
    pub no_buffer: f64,
    /// Whether messages wait for receives, and applications post them at any time.
    pub late: bool,
    /// Bytes of Read Responses that the RNIC may keep.
    pub snapshots: usize,
    pub crc: bool,
    pub place: Place,
    /// How the owner of each RNIC takes its turns.
    pub pace: [Pace; 2],
    pub streams: Vec<StreamPlan>,
}

/// The place of the two ends of each stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// Each end at an RNIC of its own.
    Apart,
    /// Both ends at one RNIC, which sends frames to itself.
    Looped,
    /// Both ends at one RNIC, which hands FPDUs over from one queue pair to the other.
    Handed,
}

/// The conditions of one stream, by side.
#[derive(Clone, Copy, Debug)]
pub struct StreamPlan {
    pub depth: [u32; 2],
    pub ird: [u16; 2],
    pub ord: [u16; 2],
    /// Whether the end takes its receive buffers from a queue that it shares with others of its
    /// host.
    pub shared: [bool; 2],
    /// Whether the end wants markers in the stream it receives: with a CRC, the RNIC then places
    /// FPDUs beyond gaps.
    pub markers: [bool; 2],
    /// Whether the end grants its peer receives by the dozen: all messages to it are short then.
    pub grants: [bool; 2],
    /// The message that says ready to receive, if there is one, and whether any form of it will do.
    pub rtr: Option<(Rtr, bool)>,
    /// The link loses the first frame with an FPDU of the initiator.
    pub rough: bool,
    /// Whether anything may go wrong on the stream except for the faults of the link.
    pub sick: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub stream: usize,
    pub side: usize,
    pub kind: Kind,
    pub random: u64,
    /// Steps of the link and the timers after the operation.
    pub pause: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Send,
    Write,
    Read,
    Atomic,
    Immediate,
    WriteImmediate,
    /// Invalidates a region that others may be using.
    SendInvalidate,
    /// Binds a window of type 2 or makes a fast registration, or ends one.
    Bind,
    /// Binds a window of type 1.
    BindWindow,
    /// Makes a fast registration for one request of its own.
    UseOnce,
    /// A Write or Read of zero bytes, of memory that does not exist: not an error.
    EmptyNowhere,
    /// Posts receives by the dozen, and reports them in a message; the peer uses all of them.
    Grant,
    /// The application writes memory that peers use.
    Store,
    Wrong(Wrong),
}

/// An operation that ends a stream, or may end it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wrong {
    WriteStag,
    WriteBounds,
    WriteAccess,
    ReadStag,
    ReadBounds,
    ReadAccess,
    AtomicAccess,
    AtomicMisaligned,
    AtomicBounds,
    LocalStag,
    LocalAccess,
    LocalBounds,
    ReadSges,
    TooLong,
    NoReceive,
    Invalidate,
    /// An invalidation that does not wait for Reads of the region.
    InvalidateUnfenced,
    /// The application unregisters memory that the peer uses.
    DeregisterTarget,
    /// The application unregisters memory that its own requests use.
    DeregisterLocal,
    Disconnect,
    Abort,
    /// A request to bind, register or invalidate that the RNIC must refuse.
    Bind,
    /// A use of a window or fast registration that it does not allow.
    Misuse,
    /// A window as memory of its owner's requests, or a fast registration without the right.
    LocalMisuse,
    /// An invalidation of an STag that the peer is using.
    InvalidateInUse,
    /// The application unregisters the region that its windows and fast registrations derive from.
    DeregisterParent,
    /// The link loses every later frame of this stream.
    Cut,
}

const WRONG: [Wrong; 33] = [
    Wrong::WriteStag,
    Wrong::WriteBounds,
    Wrong::WriteAccess,
    Wrong::ReadStag,
    Wrong::ReadBounds,
    Wrong::ReadAccess,
    Wrong::AtomicAccess,
    Wrong::AtomicMisaligned,
    Wrong::AtomicBounds,
    Wrong::LocalStag,
    Wrong::LocalAccess,
    Wrong::LocalBounds,
    Wrong::ReadSges,
    Wrong::TooLong,
    Wrong::NoReceive,
    Wrong::Invalidate,
    Wrong::InvalidateUnfenced,
    Wrong::DeregisterTarget,
    Wrong::DeregisterLocal,
    Wrong::Disconnect,
    Wrong::Abort,
    Wrong::Cut,
    // Each of these has many cases.
    Wrong::Bind,
    Wrong::Bind,
    Wrong::Bind,
    Wrong::Misuse,
    Wrong::Misuse,
    Wrong::Misuse,
    Wrong::Misuse,
    Wrong::LocalMisuse,
    Wrong::InvalidateInUse,
    Wrong::InvalidateInUse,
    Wrong::DeregisterParent,
];

pub fn pick<T: Copy>(r: &mut Random, from: &[T]) -> T {
    from[r.below(from.len() as u64) as usize]
}

impl Program {
    pub fn new(seed: u64) -> Program {
        let mut r = Random::new(&Seed::from_u64(seed ^ 0x9a12_55e1));
        let r = &mut r;
        let crc = !r.chance(0.3);
        let often = |r: &mut Random, p: f64| if r.chance(0.5) { p } else { 0.0 };
        let any = 600 + r.below(8000) as u16;
        // Every second program; a draw would change all the others.
        let ipv6 = seed / 4 % 2 == 1;
        let mtu = pick(r, &[576, 1280, 1500, 1500, any, 9000]);
        let plan = Plan {
            // A link of IPv6 carries at least 1,280 bytes (RFC 8200 section 5).
            mtu: if ipv6 { mtu.max(1280) } else { mtu },
            // Every second program; a draw would change all the others.
            cuts: [1, 8, 1, 32][(seed % 4) as usize],
            ipv6,
            ecn: [
                (Congestion::Cubic, Ecn::Accept),
                (Congestion::Cubic, Ecn::Request),
                (Congestion::Dctcp, Ecn::Accept),
            ][(seed / 8 % 3) as usize],
            mark: [0.0, 0.02, 0.3][(seed / 24 % 3) as usize],
            delay: pick(r, &[20_000, 20_000, 500_000, 5_000_000]).nanos(),
            loss: often(r, 0.05),
            reorder: often(r, 0.1),
            duplicate: often(r, 0.03),
            corrupt: often(r, 0.02),
            damage: if crc && r.chance(0.15) { 0.004 } else { 0.0 },
            no_buffer: often(r, 0.5),
            late: seed.is_multiple_of(3),
            snapshots: pick(r, &[1, 5000, 1 << 20]),
            crc,
            place: Place::Apart,
            pace: [0, 1].map(|_| pace(r)),
            streams: (0..1 + r.below(3)).map(|_| StreamPlan::new(r)).collect(),
        };
        let ops = (0..10 + r.below(70)).map(|_| Op::new(r, &plan)).collect();
        Program { seed, plan, ops }
    }

    /// Returns the same program for two applications of one RNIC, without CRC and markers, because
    /// with either the RNIC hands nothing over; the link still loses frames, those of TCP itself.
    pub fn inside(seed: u64, place: Place) -> Program {
        let mut program = Program::new(seed);
        let plan = &mut program.plan;
        (plan.place, plan.crc, plan.damage) = (place, false, 0.0);
        plan.streams.iter_mut().for_each(|s| s.markers = [false; 2]);
        program
    }
}

/// Returns the pace of a worker, or a slower one. Some owners take few posts in a turn: the peer's
/// messages come while most of the receives that a program has posted for them are not taken.
fn pace(r: &mut Random) -> Pace {
    if r.chance(0.4) {
        return Pace::default();
    }
    let turn = pick(r, &[0, 1_000, 20_000, 200_000, 1_000_000]).nanos();
    let (posts, frames) = (pick(r, &[1, 5, POST_TURN, POST_TURN]), pick(r, &[1, 8, 64, 64]));
    // Some of those with long bursts look ahead at them.
    Pace { turn, posts, frames, looks: frames > 1 && posts > 1 }
}

trait Nanos {
    fn nanos(self) -> Duration;
}

impl Nanos for u64 {
    fn nanos(self) -> Duration {
        Duration::from_nanos(self)
    }
}

impl StreamPlan {
    fn new(r: &mut Random) -> StreamPlan {
        let ird = [0, 1].map(|_| r.below(5) as u16);
        let ord = [0, 1].map(|me: usize| r.below(u64::from(ird[1 - me]) + 1) as u16);
        let shared = [0, 1].map(|_| r.chance(0.4));
        let markers = [0, 1].map(|_| r.chance(0.3));
        let grants = shared.map(|shared| !shared && r.chance(0.3));
        // A peer that gets receives by the dozen has room to use them at once.
        let depth =
            [0, 1].map(|me: usize| if grants[1 - me] { 512 } else { pick(r, &[4, 16, 64]) });
        let rtr = pick(r, &[None, Some(Rtr::Send), Some(Rtr::Write), Some(Rtr::Read)]);
        let rtr = rtr.map(|form| (form, r.chance(0.3)));
        let (rough, sick) = (r.chance(0.3), r.chance(0.5));
        StreamPlan { depth, ird, ord, shared, markers, grants, rtr, rough, sick }
    }
}

impl Op {
    fn new(r: &mut Random, plan: &Plan) -> Op {
        let stream = r.below(plan.streams.len() as u64) as usize;
        let wrong = plan.streams[stream].sick && r.chance(0.06);
        let kind = match r.below(40) {
            _ if wrong => Kind::Wrong(pick(r, &WRONG)),
            0..=6 => Kind::Send,
            7..=13 => Kind::Write,
            14..=18 => Kind::Read,
            19..=23 => Kind::Atomic,
            24..=25 => Kind::Immediate,
            26..=27 => Kind::WriteImmediate,
            28 => Kind::SendInvalidate,
            29 => Kind::EmptyNowhere,
            30..=34 => Kind::Bind,
            35 => Kind::BindWindow,
            36 => Kind::UseOnce,
            37..=38 if plan.streams[stream].grants != [false; 2] => Kind::Grant,
            37 => Kind::SendInvalidate,
            _ => Kind::Store,
        };
        let pause = match r.below(8) {
            0..=3 => 0,
            4..=6 => r.below(6),
            _ => r.below(60),
        };
        Op { stream, side: r.below(2) as usize, kind, random: r.next_u64(), pause }
    }
}
