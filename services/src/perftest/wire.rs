//! The messages that perftest's two sides exchange about parameters.
//!
//! The client begins with its version and with [`OTHERS`], and waits for an answer of the same length
//! after each.

use heddle_verbs::Stag;

/// The version of the exchange that perftest 4.5 and later speak, in 16 bytes.
pub const VERSION: [u8; 16] = *b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";

/// The other values that both sides have alike: bytes of a page and of a cache line, big-endian, and the
/// number of an MTU of 1024 as text. Servers over iWARP only compare them.
pub const OTHERS: [&[u8]; 3] = [&4096u32.to_be_bytes(), &64u32.to_be_bytes(), b"3\0"];

/// The kind of a message on the parameter connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Question {
    /// A value that both sides have alike: version, page size, cache line, MTU.
    Common,
    /// A queue pair and the place of its memory; empty if the sides only synchronize.
    Dest(Dest),
    /// A number of the results.
    Report(u64),
}

/// Bytes of the longest message.
pub(super) const MAX_LEN: usize = Dest::LEN;

/// A message whose length perftest does not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes among the parameters, which no perftest known here sends")]
pub(crate) struct Unknown(pub(super) usize);

impl Question {
    /// Decodes a message by its length, which identifies its kind.
    pub(super) fn decode(b: &[u8]) -> Result<Question, Unknown> {
        match b.len() {
            2 | 4 | 16 => Ok(Question::Common),
            8 => Ok(Question::Report(number(b))),
            Dest::LEN => Ok(Question::Dest(b.try_into().map(Dest::decode).unwrap_or_default())),
            n => Err(Unknown(n)),
        }
    }
}

/// A queue pair of a test, and the memory its peer may use.
///
/// On the wire, big-endian: LID (4 bytes, 0 on iWARP), outstanding RDMA Reads (4), QP number (4),
/// PSN (4), STag (4), 4 bytes without meaning, tagged offset (8), GID (16), SRQ number (4), GID
/// index (4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dest {
    /// The number of RDMA Reads that the queue pair may have outstanding.
    pub reads: u32,
    /// The queue pair's number at its sender.
    pub qpn: u32,
    /// The STag of the memory: the memory that is written or read, or that takes the credits of
    /// `ib_send_bw`.
    pub stag: u32,
    /// The tagged offset of the first byte of the memory.
    pub to: u64,
}

impl Dest {
    /// Bytes on the wire.
    pub const LEN: usize = 56;

    /// Encodes the Dest.
    pub fn encode(self) -> [u8; Dest::LEN] {
        let mut b = [0; Dest::LEN];
        b[4..8].copy_from_slice(&self.reads.to_be_bytes());
        b[8..12].copy_from_slice(&self.qpn.to_be_bytes());
        b[16..20].copy_from_slice(&self.stag.to_be_bytes());
        b[24..32].copy_from_slice(&self.to.to_be_bytes());
        b
    }

    /// Decodes a Dest; every content is valid.
    pub fn decode(b: &[u8; Dest::LEN]) -> Dest {
        let word = |at: usize| u32::try_from(number(&b[at..at + 4])).unwrap_or(0);
        Dest { reads: word(4), qpn: word(8), stag: word(16), to: number(&b[24..32]) }
    }

    /// Returns true if the Dest names no queue pair: then the sides only synchronize.
    pub fn is_empty(self) -> bool {
        self.qpn == 0
    }

    /// Returns the STag of the memory.
    pub fn stag(self) -> Stag {
        Stag(self.stag)
    }
}

/// Decodes at most 8 bytes, big-endian.
fn number(b: &[u8]) -> u64 {
    b.iter().fold(0, |v, &x| v << 8 | u64::from(x))
}

/// The results of a run, which the client reports number by number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Report {
    told: [u64; Report::NUMBERS],
    count: usize,
}

impl Report {
    const NUMBERS: usize = 5;

    /// Records the next number; returns all numbers when the report is complete.
    pub(super) fn next(&mut self, number: u64) -> Option<Outcome> {
        self.told[self.count] = number;
        self.count = (self.count + 1) % Report::NUMBERS;
        let [size, iterations, peak, average, rate] = self.told;
        (self.count == 0).then(|| Outcome {
            size,
            iterations,
            peak: f64::from_bits(peak),
            average: f64::from_bits(average),
            rate: f64::from_bits(rate),
        })
    }
}

/// A whole report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Outcome {
    /// Bytes of a message.
    pub(super) size: u64,
    /// The number of messages.
    pub(super) iterations: u64,
    /// Bandwidths, in the client's units: 2^20 bytes per second by default.
    pub(super) peak: f64,
    pub(super) average: f64,
    /// Millions of messages per second.
    pub(super) rate: f64,
}
