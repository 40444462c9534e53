//! MPA's start-up (RFC 5044 section 7.1, RFC 6581): its options and its errors.

use core::fmt;

/// A revision of MPA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Revision(pub u8);

impl Revision {
    /// MPA of RFC 5044.
    pub const V1: Revision = Revision(1);
    /// MPA of RFC 6581, which negotiates read depths and the first message.
    pub const V2: Revision = Revision(2);
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of RDMA Reads that may be outstanding, 14 bits on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u16"))]
pub struct Depth(u16);

impl Depth {
    /// All ones: the ends do not negotiate the depth, and the applications agree on it (RFC 6581
    /// section 9.1).
    pub const UNNEGOTIATED: Depth = Depth(0x3fff);
    /// The largest depth that an end can negotiate.
    pub const MAX: Depth = Depth(0x3ffe);

    /// Returns the depth `n`; `None` above [`MAX`](Self::MAX).
    pub const fn new(n: u16) -> Option<Depth> {
        if n <= Depth::MAX.0 { Some(Depth(n)) } else { None }
    }

    /// Returns the depth in the lower 14 bits of a word of a frame.
    pub const fn from_bits(word: u16) -> Depth {
        Depth(word & 0x3fff)
    }

    /// Returns the 14 bits that stand for the depth in a frame.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the number, unless it is [`UNNEGOTIATED`](Self::UNNEGOTIATED).
    pub const fn get(self) -> Option<u16> {
        if self.0 == Depth::UNNEGOTIATED.0 { None } else { Some(self.0) }
    }
}

#[cfg(feature = "serde")]
impl From<u16> for Depth {
    /// Reads a depth from a document, and drops the bits that do not belong to the number.
    fn from(word: u16) -> Depth {
        Depth::from_bits(word)
    }
}

/// A message an initiator can send first to say that it is ready to receive (RFC 6581 section 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Rtr {
    /// An RDMA Write of no bytes.
    Write,
    /// An RDMA Read of no bytes.
    Read,
    /// A Send of no bytes, which takes a receive buffer.
    Send,
}

/// A set of [`Rtr`] messages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u8"))]
pub struct RtrSet(u8);

#[cfg(feature = "serde")]
impl From<u8> for RtrSet {
    /// Reads a set from a document, and drops the bits that stand for no message.
    fn from(bits: u8) -> RtrSet {
        RtrSet(bits & RtrSet::ALL.0)
    }
}

impl RtrSet {
    /// The set without a message.
    pub const NONE: RtrSet = RtrSet(0);
    /// The set of every message.
    pub const ALL: RtrSet = RtrSet(7);

    /// Returns the set of one message.
    pub const fn of(rtr: Rtr) -> RtrSet {
        RtrSet(1 << rtr as u8)
    }

    /// Returns the messages that are in either set.
    #[must_use]
    pub const fn with(self, other: RtrSet) -> RtrSet {
        RtrSet(self.0 | other.0)
    }

    /// Returns the messages that are in both sets.
    #[must_use]
    pub const fn and(self, other: RtrSet) -> RtrSet {
        RtrSet(self.0 & other.0)
    }

    /// Returns the messages that are in this set but not in `other`.
    #[must_use]
    pub const fn without(self, other: RtrSet) -> RtrSet {
        RtrSet(self.0 & !other.0)
    }

    /// Returns true if `rtr` is in the set.
    pub const fn has(self, rtr: Rtr) -> bool {
        self.0 & RtrSet::of(rtr).0 != 0
    }

    /// Returns true if the set has no message.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the messages of the set in the order in which Heddle prefers them: a Write costs
    /// nothing at the receiver, a Read a slot of its read queue, a Send a buffer of the
    /// application.
    pub fn iter(self) -> impl Iterator<Item = Rtr> {
        [Rtr::Write, Rtr::Read, Rtr::Send].into_iter().filter(move |r| self.has(*r))
    }
}

impl fmt::Display for Rtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rtr::Write => "Write",
            Rtr::Read => "Read",
            Rtr::Send => "Send",
        })
    }
}

impl fmt::Display for RtrSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        for rtr in self.iter() {
            write!(f, "{before}{rtr}")?;
            before = ", ";
        }
        if before.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

impl fmt::Debug for RtrSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The message that precedes the messages of the applications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RtrConfig {
    /// No message: the client-server model.
    #[default]
    None,
    /// This end sends this message first.
    Send(Rtr),
    /// The peer's first message may be one of these. Any other good message also says that the peer
    /// is ready: the QP then handles it in the ordinary way, a Send with a receive buffer.
    Expect(RtrSet),
}

/// Whether this side asks for CRCs. Both sides use them if either asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CrcPolicy {
    /// This side asks for CRCs.
    #[default]
    Required,
    /// This side does not ask, but the peer may. Meant for paths that protect data as well as a CRC
    /// does.
    Off,
}

/// The party that makes sure that neither side has more RDMA Reads outstanding than the other
/// serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Depths {
    /// Revision 2 does: each side states its IRD and ORD, and obeys the other side's.
    #[default]
    Exchanged,
    /// The applications do. Revision 2 expresses this with all ones (RFC 6581 section 9.1), and
    /// both sides leave their depths as they are.
    LeftToApplications,
}

/// Options of MPA, for a listener or a connection.
///
/// ```
/// # use heddle_types::mpa::{MpaOptions, RtrSet};
/// let options = MpaOptions::new().markers(true).peer_to_peer(RtrSet::ALL);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MpaOptions {
    /// The revision of our request; the highest revision of our answer.
    pub revision: Revision,
    /// Connecting in revision 2: whether we ask a peer that knows only revision 1 again in revision
    /// 1, on another TCP connection (RFC 6581 section 10). The two sides then exchange no read
    /// depths. Without effect in the peer-to-peer model, which needs revision 2.
    pub fall_back: bool,
    /// Whether we ask for CRCs; both sides use CRCs when either asks.
    pub crc: CrcPolicy,
    /// The same on a connection of the RNIC with itself, over its inner port. Such a connection has
    /// no wire that could damage data, and without CRCs its payload goes from memory region to
    /// memory region by one copy (ADR 20).
    pub crc_inside: CrcPolicy,
    /// Whether we ask for markers in the data that the peer sends. Our data carry markers when the
    /// peer asks for them.
    pub markers: bool,
    /// Ready-to-receive messages of RFC 6581 section 9.2. Connecting: the messages we can begin
    /// with, in the peer-to-peer model; none for the client-server model. Listening: the messages a
    /// peer may begin with if it asks for the peer-to-peer model; an empty set allows all of them,
    /// because a peer has to begin with some message.
    pub rtr: RtrSet,
    /// Connecting: whether the two sides exchange the number of RDMA Reads that they can have
    /// outstanding.
    pub depths: Depths,
}

impl Default for MpaOptions {
    fn default() -> MpaOptions {
        MpaOptions::new()
    }
}

impl MpaOptions {
    /// Returns defaults: revision 2 without falling back, CRCs except inside the RNIC, no markers,
    /// client-server model, read depths exchanged.
    pub const fn new() -> MpaOptions {
        MpaOptions {
            revision: Revision::V2,
            fall_back: false,
            crc: CrcPolicy::Required,
            crc_inside: CrcPolicy::Off,
            markers: false,
            rtr: RtrSet::NONE,
            depths: Depths::Exchanged,
        }
    }

    /// Returns the options with another [revision](Self::revision).
    #[must_use]
    pub const fn revision(mut self, revision: Revision) -> MpaOptions {
        self.revision = revision;
        self
    }

    /// Returns the options with [falling back](Self::fall_back) to revision 1 on or off.
    #[must_use]
    pub const fn fall_back(mut self, fall_back: bool) -> MpaOptions {
        self.fall_back = fall_back;
        self
    }

    /// Returns the options with another policy for [CRCs](Self::crc).
    #[must_use]
    pub const fn crc(mut self, crc: CrcPolicy) -> MpaOptions {
        self.crc = crc;
        self
    }

    /// Returns the options with another policy for CRCs [inside the RNIC](Self::crc_inside).
    #[must_use]
    pub const fn crc_inside(mut self, crc: CrcPolicy) -> MpaOptions {
        self.crc_inside = crc;
        self
    }

    /// Returns the options with [markers](Self::markers) asked for, or not.
    #[must_use]
    pub const fn markers(mut self, markers: bool) -> MpaOptions {
        self.markers = markers;
        self
    }

    /// Returns the options for the peer-to-peer model, with these [first messages](Self::rtr).
    #[must_use]
    pub const fn peer_to_peer(mut self, rtr: RtrSet) -> MpaOptions {
        self.rtr = rtr;
        self
    }

    /// Returns the options with read depths [exchanged](Self::depths) or left alone.
    #[must_use]
    pub const fn depths(mut self, depths: Depths) -> MpaOptions {
        self.depths = depths;
        self
    }
}

/// The reasons for which bytes are not the expected frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FrameError {
    /// The peer's bytes are not MPA.
    #[error("not an MPA frame: key differs at byte {at}")]
    Key {
        /// First byte that differs.
        at: usize,
    },
    /// Both sides started as initiator, or both as responder.
    #[error("the peer plays the same MPA role as we do")]
    SameRole,
    /// A revision that Heddle does not have, or did not offer.
    #[error("MPA revision {got}, not 1..={max}")]
    Revision {
        /// The revision that the frame named.
        got: Revision,
        /// The highest revision acceptable here.
        max: Revision,
    },
    /// More private data than MPA allows.
    #[error("{len} bytes of MPA private data, more than 512")]
    PrivateDataTooLong {
        /// The length that the frame announced.
        len: usize,
    },
    /// The S bit is set, but the frame has no room for the words that the bit announces.
    #[error("enhanced MPA frame with {len} bytes of private data, less than 4")]
    EnhancedTooShort {
        /// The length that the frame announced.
        len: usize,
    },
}

/// The error for more private data than a frame can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes of private data, at most {max} fit")]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PrivateDataError {
    /// Bytes of the private data.
    pub len: usize,
    /// Bytes that fit.
    pub max: usize,
}

/// The reasons for which the start-up fails. The peer causes every variant but
/// [`Finished`](Self::Finished), or the two sides cannot agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum StartupError {
    /// The peer's bytes are not a frame of the kind that is due.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The peer sent bytes after a frame, which cannot be FPDUs yet: the private data length is
    /// wrong.
    #[error("bytes behind the MPA frame before its answer")]
    TrailingBytes,
    /// The Reply lacks the words of RFC 6581 that this side's Request had.
    #[error("unenhanced MPA Reply of revision {revision} to an enhanced Request")]
    NotEnhanced {
        /// Revision of the Reply.
        revision: Revision,
    },
    /// The responder will have more Reads outstanding than this side can serve.
    #[error("the responder's ORD of {needed} exceeds our limit of {max}")]
    InsufficientIrd {
        /// The responder's ORD.
        needed: u16,
        /// The most Reads that this side serves at a time.
        max: u16,
    },
    /// This side can send no first message that the responder accepts.
    #[error("no RTR message in common: ours {ours}, the responder's {theirs}")]
    NoMatchingRtr {
        /// The first messages that this side can send.
        ours: RtrSet,
        /// The first messages that the responder accepts.
        theirs: RtrSet,
    },
    /// The Reply is for the other of the two models (peer-to-peer, client-server).
    #[error("MPA Reply with flag A {got}, Request had {sent}")]
    Model {
        /// Flag A of this side's Request.
        sent: bool,
        /// Flag A of the Reply.
        got: bool,
    },
    /// The exchange was over: the caller made a mistake.
    #[error("MPA start-up is over")]
    Finished,
}

/// The reasons for which a frame cannot express the caller's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ConfigError {
    /// More private data than a frame can carry.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
    /// A read depth above 14 bits.
    #[error("read depth {depth} exceeds {}", Depth::MAX.get().unwrap_or(0))]
    Depth {
        /// The depth that the caller asked for.
        depth: u16,
    },
    /// A revision that does not exist.
    #[error("MPA revision {revision} is not 1 or 2")]
    Revision {
        /// The revision that the caller asked for.
        revision: Revision,
    },
    /// Revision 1 cannot negotiate the first message.
    #[error("RTR messages need MPA revision 2")]
    RtrNeedsRevision2,
    /// A responder of revision 2 has to accept at least one RTR message.
    #[error("a responder of MPA revision 2 must take some RTR message")]
    NoRtr,
    /// No Request waits for an answer.
    #[error("no MPA Request to answer")]
    NoRequest,
}
