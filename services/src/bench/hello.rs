//! The private data of a benchmark's connections. All numbers are big-endian.
//!
//! ```text
//! Hello     magic(4) version(1) op(1) mode(1) flags(1)  size(4) depth(4)  seed(8)
//!           stag(4) zero(4)  to(8)  len(8)                                         48 bytes
//! Welcome   magic(4) version(1) zero(3)  stag(4) window(4)  to(8)  len(8)          32 bytes
//! Refusal   magic(4) version(1) reason(1) zero(2)                                   8 bytes
//! ```
//!
//! A Welcome without window and region ([`Welcome::ASK`]) grants nothing yet. The client then asks
//! for the grant with an empty Send, and the grant, or a Refusal, comes as a Send.
//!
//! `stag`, `to`, `len` name the sender's region for the peer; all are zero when there is none. The
//! flags are 1, compare every message, and 2, operations in both directions. The receiver refuses
//! everything that is not exactly of this form.

use core::fmt;
use heddle_verbs::Stag;

use super::{MAX_DEPTH, MAX_SIZE, Mode, Op};

const MAGIC: [u8; 4] = *b"HPRF";

/// The version of these formats and of the traffic that follows.
pub const VERSION: u8 = 2;

const FLAG_VERIFY: u8 = 1;
const FLAG_BIDIRECTIONAL: u8 = 2;

/// Memory of one side that the other may access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The STag of the region.
    pub stag: Stag,
    /// The tagged offset of the region's first byte.
    pub to: u64,
    /// The region's length in bytes.
    pub len: u64,
}

/// The run that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The operation to measure.
    pub op: Op,
    /// The quantity to measure.
    pub mode: Mode,
    /// True if the server has to compare every message.
    pub verify: bool,
    /// True if the server carries out operations as well, on the client's region.
    pub bidirectional: bool,
    /// Bytes of a message: at most [`MAX_SIZE`].
    pub size: u32,
    /// Operations outstanding: 1 to [`MAX_DEPTH`].
    pub depth: u32,
    /// The seed that determines the bytes of messages.
    pub seed: u64,
    /// The region of the server's operations: that to which a ping-pong's Writes return, with `size`
    /// bytes or more, or that of a run in both directions, with `size * depth` bytes or more.
    pub region: Region,
}

/// Why private data is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The data belongs to another program.
    #[error("the peer's private data is not that of a benchmark")]
    NotOurs,
    /// The data is of another version of this program.
    #[error("the peer speaks version {0} of the benchmark protocol, this is version {VERSION}")]
    Version(u8),
    /// The data breaks the format, or asks for impossible values.
    #[error("the peer's private data is malformed: {0}")]
    Malformed(&'static str),
}

/// The reason of a refusal. Unknown codes are kept as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u8);

impl Reason {
    /// The private data is not a [`Hello`].
    pub const NOT_OURS: Reason = Reason(1);
    /// The Hello is of another version.
    pub const VERSION: Reason = Reason(2);
    /// The Hello is malformed.
    pub const MALFORMED: Reason = Reason(3);
    /// The server has not enough registered memory.
    pub const NO_MEMORY: Reason = Reason(4);
    /// The server has too many connections.
    pub const BUSY: Reason = Reason(5);
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::NOT_OURS => f.write_str("it does not take us for a benchmark"),
            Reason::VERSION => f.write_str("it speaks another version"),
            Reason::MALFORMED => f.write_str("it finds the request malformed"),
            Reason::NO_MEMORY => f.write_str("it has not enough registered memory"),
            Reason::BUSY => f.write_str("it has too many connections"),
            Reason(n) => write!(f, "reason {n}"),
        }
    }
}

impl From<HelloError> for Reason {
    fn from(e: HelloError) -> Reason {
        match e {
            HelloError::NotOurs => Reason::NOT_OURS,
            HelloError::Version(_) => Reason::VERSION,
            HelloError::Malformed(_) => Reason::MALFORMED,
        }
    }
}

impl Hello {
    /// Bytes on the wire.
    pub const LEN: usize = 48;

    /// Encodes the Hello as private data.
    pub fn encode(&self) -> Vec<u8> {
        let op = match self.op {
            Op::Write => 0,
            Op::Read => 1,
            Op::Send => 2,
            Op::WriteImm => 3,
            Op::SendImm => 4,
            Op::FetchAdd => 5,
            Op::CmpSwap => 6,
        };
        let mode = match self.mode {
            Mode::Bw => 0,
            Mode::Lat => 1,
            Mode::Rate => 2,
        };
        let mut b = Vec::with_capacity(Self::LEN);
        b.extend(MAGIC);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let both = flag(self.bidirectional, FLAG_BIDIRECTIONAL);
        b.extend([VERSION, op, mode, flag(self.verify, FLAG_VERIFY) | both]);
        b.extend(self.size.to_be_bytes());
        b.extend(self.depth.to_be_bytes());
        b.extend(self.seed.to_be_bytes());
        b.extend(self.region.stag.0.to_be_bytes());
        b.extend([0; 4]);
        b.extend(self.region.to.to_be_bytes());
        b.extend(self.region.len.to_be_bytes());
        b
    }

    /// Decodes and checks a client's private data.
    pub fn decode(b: &[u8]) -> Result<Hello, HelloError> {
        let mut r = Reader::of(b, Self::LEN)?;
        let [op, mode, flags] = [r.u8(), r.u8(), r.u8()];
        let op = match op {
            0 => Op::Write,
            1 => Op::Read,
            2 => Op::Send,
            3 => Op::WriteImm,
            4 => Op::SendImm,
            5 => Op::FetchAdd,
            6 => Op::CmpSwap,
            _ => return Err(HelloError::Malformed("unknown operation")),
        };
        let mode = match mode {
            0 => Mode::Bw,
            1 => Mode::Lat,
            2 => Mode::Rate,
            _ => return Err(HelloError::Malformed("unknown mode")),
        };
        if flags & !(FLAG_VERIFY | FLAG_BIDIRECTIONAL) != 0 {
            return Err(HelloError::Malformed("unknown flag"));
        }
        let (size, depth, seed) = (r.u32(), r.u32(), r.u64());
        let stag = Stag(r.u32());
        r.zero(4)?;
        let region = Region { stag, to: r.u64(), len: r.u64() };
        if size > MAX_SIZE || depth == 0 || depth > MAX_DEPTH {
            return Err(HelloError::Malformed("size or depth out of range"));
        }
        if mode == Mode::Lat && depth != 1 {
            return Err(HelloError::Malformed("latency with a depth other than 1"));
        }
        if op.fixed_size().is_some_and(|fixed| size != fixed.0) {
            return Err(HelloError::Malformed("a size that the operation does not have"));
        }
        let nowhere = match op {
            Op::Write => size == 0 || region.len < size.into(),
            Op::WriteImm => region.len < size.into(),
            _ => false,
        };
        if mode == Mode::Lat && nowhere {
            return Err(HelloError::Malformed("no room for the answers of a ping-pong"));
        }
        let (verify, bidirectional) = (flags & FLAG_VERIFY != 0, flags & FLAG_BIDIRECTIONAL != 0);
        if bidirectional {
            if !op.is_bidirectional() || mode == Mode::Lat || verify || size == 0 {
                return Err(HelloError::Malformed("a run that has no second direction"));
            }
            if region.len < u64::from(size) * u64::from(depth) {
                return Err(HelloError::Malformed("no room for the server's operations"));
            }
        }
        if region.to.checked_add(region.len).is_none() {
            return Err(HelloError::Malformed("a region past the end of all offsets"));
        }
        Ok(Hello { op, mode, verify, bidirectional, size, depth, seed, region })
    }
}

/// The grant of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The number of receive buffers for Sends.
    pub window: u32,
    /// The region to which Writes go and from which Reads come.
    pub region: Region,
}

impl Welcome {
    /// A Welcome that makes the client ask for its grant.
    pub const ASK: Welcome = Welcome { window: 0, region: Region { stag: Stag(0), to: 0, len: 0 } };

    /// Bytes on the wire.
    pub const LEN: usize = 32;

    /// Encodes the Welcome as private data.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(Self::LEN);
        b.extend(MAGIC);
        b.extend([VERSION, 0, 0, 0]);
        b.extend(self.region.stag.0.to_be_bytes());
        b.extend(self.window.to_be_bytes());
        b.extend(self.region.to.to_be_bytes());
        b.extend(self.region.len.to_be_bytes());
        b
    }

    /// Decodes and checks a server's private data. The caller checks that the region is large
    /// enough.
    pub fn decode(b: &[u8]) -> Result<Welcome, HelloError> {
        let mut r = Reader::of(b, Self::LEN)?;
        r.zero(3)?;
        let (stag, window) = (Stag(r.u32()), r.u32());
        Ok(Welcome { window, region: Region { stag, to: r.u64(), len: r.u64() } })
    }
}

/// A server's rejection, with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub Reason);

impl Refusal {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Encodes the refusal as private data.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = MAGIC.to_vec();
        b.extend([VERSION, self.0.0, 0, 0]);
        b
    }

    /// Decodes and checks a server's private data.
    pub fn decode(b: &[u8]) -> Result<Refusal, HelloError> {
        let mut r = Reader::of(b, Self::LEN)?;
        let reason = Reason(r.u8());
        r.zero(2)?;
        Ok(Refusal(reason))
    }
}

/// Reads fields from bytes whose number has been checked.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Makes a reader after magic and version, and checks that there are exactly `len` bytes in
    /// all.
    fn of(b: &'a [u8], len: usize) -> Result<Reader<'a>, HelloError> {
        let rest = b.strip_prefix(&MAGIC).ok_or(HelloError::NotOurs)?;
        let (&version, rest) = rest.split_first().ok_or(HelloError::NotOurs)?;
        if version != VERSION {
            return Err(HelloError::Version(version));
        }
        if b.len() != len {
            return Err(HelloError::Malformed("wrong length"));
        }
        Ok(Reader(rest))
    }

    /// Returns the next `N` bytes; zeros beyond the end, which no reader of a checked length
    /// reaches.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((head, rest)) = self.0.split_first_chunk::<N>() else { return [0; N] };
        self.0 = rest;
        *head
    }

    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }

    fn zero(&mut self, n: usize) -> Result<(), HelloError> {
        if (0..n).all(|_| self.u8() == 0) {
            Ok(())
        } else {
            Err(HelloError::Malformed("a reserved byte is not zero"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        Hello {
            op: Op::Write,
            mode: Mode::Lat,
            verify: true,
            bidirectional: false,
            size: 8,
            depth: 1,
            seed: 0x0102_0304_0506_0708,
            region: Region { stag: Stag(0xa1b2_c3d4), to: 0x1122_3344_5566_7788, len: 8 },
        }
    }

    #[test]
    fn test_hello_bytes_match_reference() {
        let want = b"HPRF\x02\x00\x01\x01\0\0\0\x08\0\0\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\
            \xa1\xb2\xc3\xd4\0\0\0\0\x11\x22\x33\x44\x55\x66\x77\x88\0\0\0\0\0\0\0\x08";
        assert_eq!(hello().encode(), want);
        assert_eq!(Hello::decode(want), Ok(hello()));
    }

    #[test]
    fn test_hello_refuses_each_fault() {
        let with = |at: usize, v: u8| {
            let mut b = hello().encode();
            b[at] = v;
            Hello::decode(&b)
        };
        assert_eq!(Hello::decode(b""), Err(HelloError::NotOurs));
        assert_eq!(with(0, b'h'), Err(HelloError::NotOurs));
        assert_eq!(with(4, 1), Err(HelloError::Version(1)));
        // Operation, mode, flags, size, depth twice, reserved, the answers' length.
        for (at, v) in
            [(5, 7), (6, 3), (7, 2), (7, 4), (8, 0xff), (15, 0), (15, 2), (31, 1), (47, 7)]
        {
            assert!(matches!(with(at, v), Err(HelloError::Malformed(_))), "byte {at} = {v}");
        }
        let wraps = Region { to: u64::MAX - 6, ..hello().region };
        let b = Hello { region: wraps, ..hello() }.encode();
        assert!(matches!(Hello::decode(&b), Err(HelloError::Malformed(_))));
        let b = hello().encode();
        assert!(Hello::decode(&b[..47]).is_err());
        assert!(Hello::decode(&[&b[..], &[0]].concat()).is_err());
    }

    #[test]
    fn test_hello_takes_both_directions_of_writes_and_reads_only() {
        let both = Hello {
            mode: Mode::Bw,
            verify: false,
            bidirectional: true,
            depth: 4,
            region: Region { len: 32, ..hello().region },
            ..hello()
        };
        for good in [both, Hello { op: Op::Read, mode: Mode::Rate, ..both }] {
            assert_eq!(Hello::decode(&good.encode()), Ok(good));
        }
        let short = Region { len: 31, ..both.region };
        for wrong in [
            Hello { op: Op::Send, ..both },
            Hello { op: Op::FetchAdd, ..both },
            Hello { mode: Mode::Lat, depth: 1, ..both },
            Hello { verify: true, ..both },
            Hello { size: 0, ..both },
            Hello { region: short, ..both },
        ] {
            let decoded = Hello::decode(&wrong.encode());
            assert!(matches!(decoded, Err(HelloError::Malformed(_))), "{wrong:?}");
        }
    }

    #[test]
    fn test_welcome_and_refusal_round_trip() {
        let w = Welcome { window: 32, region: hello().region };
        assert_eq!(Welcome::decode(&w.encode()), Ok(w));
        assert_eq!(w.encode().len(), Welcome::LEN);
        for reason in [Reason::NO_MEMORY, Reason(77)] {
            assert_eq!(Refusal::decode(&Refusal(reason).encode()), Ok(Refusal(reason)));
        }
        assert_eq!(Refusal(Reason(1)).encode().len(), Refusal::LEN);
        assert_eq!(Welcome::decode(b"some other text"), Err(HelloError::NotOurs));
    }

    proptest! {
        #[test]
        fn test_decoders_never_panic_and_accept_only_encodable_messages(
            b in proptest::collection::vec(any::<u8>(), 0..64), ours in any::<bool>(),
        ) {
            let mut b = b;
            if ours && b.len() > 5 {
                b[..5].copy_from_slice(b"HPRF\x02");
            }
            if let Ok(h) = Hello::decode(&b) {
                prop_assert_eq!(h.encode(), b.clone());
            }
            if let Ok(w) = Welcome::decode(&b) {
                prop_assert_eq!(w.encode(), b.clone());
            }
            if let Ok(r) = Refusal::decode(&b) {
                prop_assert_eq!(r.encode(), b);
            }
        }
    }
}
