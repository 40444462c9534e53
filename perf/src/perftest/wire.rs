//! What perftest's two sides tell each other.

use heddle_verbs::Stag;

/// What a message on the parameter connection is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Question {
    /// Something that both sides have alike: version, page size, cache line, MTU.
    Common,
    /// A queue pair and where its memory is; empty where the sides only come in step.
    Dest(Dest),
    /// One of the numbers that came out.
    Report(u64),
}

/// Octets of the longest message.
pub(super) const MAX_LEN: usize = Dest::LEN;

/// A message of a length that perftest has none of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} octets among the parameters, which no perftest known here sends")]
pub(crate) struct Unknown(pub(super) usize);

impl Question {
    /// By its length, which tells them apart.
    pub(super) fn decode(b: &[u8]) -> Result<Question, Unknown> {
        match b.len() {
            2 | 4 | 16 => Ok(Question::Common),
            8 => Ok(Question::Report(number(b))),
            Dest::LEN => Ok(Question::Dest(Dest::decode(b))),
            n => Err(Unknown(n)),
        }
    }
}

/// A queue pair of a test, and the memory its peer may use.
///
/// On the wire, big-endian: LID (4 octets, 0 on iWARP), RDMA Reads it has outstanding (4), QP
/// number (4), PSN (4), STag (4), 4 of no meaning, tagged offset (8), GID (16), SRQ number (4), GID
/// index (4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dest {
    /// RDMA Reads it has outstanding.
    pub(super) reads: u32,
    /// Its number with its sender.
    pub(super) qpn: u32,
    /// Of the memory: what is written or read, or where credits of `ib_send_bw` go.
    pub(super) stag: u32,
    /// Of its first octet.
    pub(super) to: u64,
}

impl Dest {
    /// Octets on the wire.
    pub(super) const LEN: usize = 56;

    pub(super) fn encode(self) -> [u8; Dest::LEN] {
        let mut b = [0; Dest::LEN];
        b[4..8].copy_from_slice(&self.reads.to_be_bytes());
        b[8..12].copy_from_slice(&self.qpn.to_be_bytes());
        b[16..20].copy_from_slice(&self.stag.to_be_bytes());
        b[24..32].copy_from_slice(&self.to.to_be_bytes());
        b
    }

    /// Of [`LEN`](Self::LEN) octets; every content is one.
    fn decode(b: &[u8]) -> Dest {
        let word = |at: usize| u32::try_from(number(&b[at..at + 4])).unwrap_or(0);
        Dest { reads: word(4), qpn: word(8), stag: word(16), to: number(&b[24..32]) }
    }

    /// It names no queue pair: the sides only come in step.
    pub(super) fn is_empty(self) -> bool {
        self.qpn == 0
    }

    pub(super) fn stag(self) -> Stag {
        Stag(self.stag)
    }
}

/// At most 8 octets, big-endian.
fn number(b: &[u8]) -> u64 {
    b.iter().fold(0, |v, &x| v << 8 | u64::from(x))
}

/// What came out of a run, as the client tells it number by number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Report {
    told: [u64; Report::NUMBERS],
    count: usize,
}

impl Report {
    const NUMBERS: usize = 5;

    /// The next number; all of them once there are as many as a report has.
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
    /// Octets of a message.
    pub(super) size: u64,
    /// Messages.
    pub(super) iterations: u64,
    /// Bandwidths, in the units of the client's choice: 2^20 octets per second unless told
    /// otherwise.
    pub(super) peak: f64,
    pub(super) average: f64,
    /// Millions of messages per second.
    pub(super) rate: f64,
}
