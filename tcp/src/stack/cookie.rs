//! SYN cookies (RFC 4987 section 3.6): a SYN-ACK that carries all that its SYN would have cost.
//!
//! Where a SYN finds no room among the half-open connections, the stack keeps nothing of it. Our
//! initial sequence number is a cookie, by which the ACK that completes the handshake proves that
//! its sender received the SYN-ACK, and says what the SYN said. The low bits of our timestamp, which
//! the peer echoes, hold the options that find no room in the number; where the peer has no
//! timestamps, the connection does without these options.
//!
//! ```text
//!    31     30..28   27..0                  timestamp   31..6   5     4      3..0
//!   +------+--------+---------------------+            +-------+-----+------+---------------+
//!   | slot | MSS    | tag                 |            | clock | ECN | SACK | window scale  |
//!   +------+--------+---------------------+            +-------+-----+------+---------------+
//! ```
//!
//! The tag is a keyed hash of the addresses and ports, the VLAN, the peer's initial number and all of
//! these options. For addresses and ports, the tag takes their own keyed hash of 64 bits, which the
//! stack has at hand. The key of the tag changes with each slot of time, and the low bit of the slot's
//! number tells which of two keys it was: a cookie is good for one slot at least and two at most. A
//! host that has not seen the SYN-ACK guesses right once in 2^28 segments. All workers of a port derive
//! the same keys. Only the tag says whether ECN is accurate: where the SYN asked for ECN, the stack
//! tries both, and a guess is right once in 2^27 segments.

use core::time::Duration;

use heddle_base::Instant;

use super::flow::{FlowKey, Hashed, keyed};
use crate::conn::Wish;
use crate::{ConnConfig, Flags, Segment, SeqNumber, Timestamps};

/// The time for which a key makes cookies: a client repeats the last segment of a handshake, or its
/// first data, for about as long.
const SLOT: Duration = Duration::from_secs(64);

/// The MSS that a cookie can say; the stack rounds down to one. The first is the least that a
/// connection accepts, and the others are those of common links, with and without tunnels.
const MSS_V4: [u16; 8] = [64, 536, 1300, 1400, 1440, 1460, 4056, 8960];
const MSS_V6: [u16; 8] = [64, 536, 1220, 1380, 1420, 1440, 4036, 8940];

const MSS_SHIFT: u32 = 28;
const TAG: u32 = (1 << MSS_SHIFT) - 1;

/// The bits of a timestamp that say what the SYN said.
const OPTIONS: u32 = 0x3f;
const SHIFT: u32 = 0xf;
const SACK: u32 = 0x10;
const ECN: u32 = 0x20;
/// The value of `SHIFT` for a SYN without the option.
const UNSCALED: u32 = SHIFT;
/// The options of a handshake with timestamps, for the tag.
const STAMPED: u32 = 0x40;
/// With `ECN`, for the tag: the SYN asks for accurate feedback.
const ACCURATE: u32 = 0x80;

/// The bits of a SYN that ask for ECN, and with the third bit for accurate feedback.
const ASKS: Flags = Flags::ECE.with(Flags::CWR);

/// A SYN as a cookie keeps it, and the numbers of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) syn: Segment,
    /// Our initial sequence number: the cookie.
    pub(super) iss: SeqNumber,
}

/// The keys of the slots, and the time of the last cookie.
pub(super) struct Cookies {
    master: [u8; 16],
    /// The number of the present slot, from 1 on; 0 before the first cookie.
    slot: u64,
    /// The keys of the present slot and of the slot before, by the low bit of their numbers.
    keys: [[u8; 16]; 2],
    last: Option<Instant>,
}

impl Cookies {
    pub(super) fn new(master: [u8; 16]) -> Cookies {
        Cookies { master, slot: 0, keys: [[0; 16]; 2], last: None }
    }

    /// Returns true if a cookie may be out that is still good.
    pub(super) fn are_out(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now - last < 2 * SLOT)
    }

    /// Returns the cookie for `syn`, a SYN of `flow`. The SYN-ACK is that of [`Kept::syn`], and its
    /// timestamp is the one that [`stamp`] returns.
    pub(super) fn make(
        &mut self,
        now: Instant,
        cfg: &ConnConfig,
        flow: Hashed<'_>,
        syn: &Segment,
    ) -> Kept {
        self.turn_to(now);
        self.last = Some(now);
        let options = options_of(cfg, syn);
        let mss = syn.mss.unwrap_or(cfg.default_peer_mss);
        let n = table(flow.key).iter().rposition(|&m| m <= mss).unwrap_or(0);
        // The tables have eight entries.
        let n = u32::try_from(n).unwrap_or(0);
        let parity = low32(self.slot & 1);
        let tag = self.tag(self.slot, flow, syn.seq, n, options);
        let iss = SeqNumber(parity << 31 | n << MSS_SHIFT | tag);
        let timestamps = syn.timestamps.filter(|_| options & STAMPED != 0);
        // The SYN-ACK reports how the SYN has arrived.
        let kept = Segment { ecn: syn.ecn, ..kept_syn(flow.key, syn.seq, n, options, timestamps) };
        Kept { syn: kept, iss }
    }

    /// Returns the SYN whose handshake `seg`, a segment of `flow` with an ACK, completes; `None` if
    /// it proves none.
    pub(super) fn check(
        &mut self,
        now: Instant,
        cfg: &ConnConfig,
        flow: Hashed<'_>,
        seg: &Segment,
    ) -> Option<Kept> {
        self.turn_to(now);
        let iss = seg.ack.advance(u32::MAX);
        let seq = seg.seq.advance(u32::MAX);
        let slot = if iss.0 >> 31 == low32(self.slot & 1) { self.slot } else { self.slot - 1 };
        let n = iss.0 >> MSS_SHIFT & 7;
        let timestamps = seg.timestamps.filter(|_| cfg.timestamps);
        let options = timestamps.map_or(UNSCALED, |ts| ts.ecr & OPTIONS | STAMPED);
        let more = if options & ECN != 0 { ACCURATE } else { 0 };
        let mut both = [options, options | more].into_iter();
        let options = both.find(|&o| self.tag(slot, flow, seq, n, o) == iss.0 & TAG)?;
        // The next segments of the peer are no older than this one.
        let timestamps = timestamps.map(|ts| Timestamps { val: ts.val, ecr: 0 });
        Some(Kept { syn: kept_syn(flow.key, seq, n, options, timestamps), iss })
    }

    fn turn_to(&mut self, now: Instant) {
        let slot = now.as_millis() / (SLOT.as_secs() * 1000) + 1;
        if slot != self.slot {
            self.slot = slot;
            for slot in [slot - 1, slot] {
                self.keys[usize::from(slot & 1 == 1)] = self.key(slot);
            }
        }
    }

    fn key(&self, slot: u64) -> [u8; 16] {
        let half = |n: u64| keyed(&self.master, [slot, n]).to_le_bytes();
        let mut key = [0; 16];
        key[..8].copy_from_slice(&half(0));
        key[8..].copy_from_slice(&half(1));
        key
    }

    fn tag(&self, slot: u64, flow: Hashed<'_>, seq: SeqNumber, mss: u32, options: u32) -> u32 {
        // A cookie is good on the link of its SYN alone: hosts of two VLANs may have the same
        // link-local addresses.
        let vid = u32::from(flow.key.vid().get());
        let said = u64::from(vid << 16 | mss << 8 | options) << 32 | u64::from(seq.0);
        low32(keyed(&self.keys[usize::from(slot & 1 == 1)], [flow.hash, said])) & TAG
    }
}

/// Returns the timestamp of a SYN-ACK with a cookie: our clock, or the last time before it that has
/// the options of `syn` in its low bits, so that the connection's clock does not run back.
pub(super) fn stamp(cfg: &ConnConfig, syn: &Segment, clock: u32) -> u32 {
    let at = clock & !OPTIONS | options_of(cfg, syn) & OPTIONS;
    if at & OPTIONS > clock & OPTIONS { at.wrapping_sub(OPTIONS + 1) } else { at }
}

/// Returns the options of `syn` that both ends want, as a timestamp carries them.
fn options_of(cfg: &ConnConfig, syn: &Segment) -> u32 {
    if !cfg.timestamps || syn.timestamps.is_none() {
        return UNSCALED;
    }
    let scale = syn.window_scale.filter(|_| cfg.window_scaling);
    let shift = scale.map_or(UNSCALED, |shift| u32::from(shift.min(14)));
    let sack = if cfg.sack && syn.sack_permitted { SACK } else { 0 };
    let ecn = match Wish::of(syn).granted(cfg.ecn) {
        Wish::None => 0,
        Wish::Classic => ECN,
        Wish::Accurate => ECN | ACCURATE,
    };
    STAMPED | shift | sack | ecn
}

fn kept_syn(
    flow: &FlowKey,
    seq: SeqNumber,
    mss: u32,
    options: u32,
    timestamps: Option<Timestamps>,
) -> Segment {
    let shift = options & SHIFT;
    let asks = match options & (ECN | ACCURATE) {
        0 => Flags(0),
        ECN => ASKS,
        _ => ASKS.with(Flags::AE),
    };
    Segment {
        seq,
        flags: Flags::SYN.with(asks),
        mss: table(flow).get(mss as usize).copied(),
        window_scale: u8::try_from(shift).ok().filter(|_| shift != UNSCALED),
        sack_permitted: options & SACK != 0,
        timestamps,
        ..Segment::default()
    }
}

fn table(flow: &FlowKey) -> &'static [u16; 8] {
    if flow.is_ipv6() { &MSS_V6 } else { &MSS_V4 }
}

fn low32(v: u64) -> u32 {
    let [a, b, c, d, ..] = v.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests;
