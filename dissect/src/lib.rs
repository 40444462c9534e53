//! Decodes captures of iWARP connections, up to RPC-over-RDMA of both versions and the headers of
//! the RPC messages in it; without IO.
//!
//! ```text
//!   Ethernet frames ─▶ TCP streams ─▶ MPA start-up, FPDUs ─▶ RDMAP messages ─▶ transport messages
//!                                                                              and their chunks
//! ```
//!
//! [`Decoder::frame`] takes the frames of a capture in their order and returns [`Item`]s in the
//! order in which they became complete; [`line()`] shows one, and [`Item`] can be serialized. The
//! decoder reads formats by the crates that implement them, so it reads exactly what Heddle reads.
//! The decoder also judges: a [`Verdict`] follows each message that breaks a rule. The decoder
//! gives no verdict where frames that are not in the capture could clear the accused end.
//!
//! Captures are hostile. The decoder bounds what it keeps of a connection, and the number of
//! connections ([`CONNECTIONS_MAX`]); it reports what it forgets for that.
//!
//! The decoder does not put IP fragments together, does not check checksums of IP and TCP (captures
//! are full of those that a NIC was to fill in), and does not follow connections whose start-up is
//! not in the capture.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test has to fail loudly"))]

mod connection;
mod exchange;
mod frame;
mod item;
mod memory;
mod messages;
mod names;
mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod text;

use core::net::SocketAddr;
use std::collections::BTreeMap;

pub use item::*;
pub use text::line;

use connection::{Connection, Now, Out};
use frame::Segment;
use heddle_iwarp::mpa::frame::{Frame, HEADER_LEN, Kind};
use heddle_tcp::{Flags, SeqNumber};
use heddle_types::mpa::Revision;
use serde::Serialize;

/// Most connections that the decoder follows at a time. To make room for another, it forgets a
/// connection that is not of MPA, or else the connection whose last frame is oldest.
pub const CONNECTIONS_MAX: usize = 128;

/// The port of NFS over RDMA (RFC 8267 section 7). The decoder reads its traffic as RPC-over-RDMA,
/// whatever it looks like.
pub const NFS_RDMA_PORT: u16 = 20049;

/// Totals over the frames of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Frames of the capture.
    pub frames: u64,
    /// Frames that were TCP segments of connections asked for.
    pub segments: u64,
    /// Segments of connections whose beginning is not in the capture, or that are not of MPA.
    pub not_followed: u64,
    /// MPA connections.
    pub connections: u64,
    /// Connections that the decoder forgot to make room for others.
    pub forgotten: u64,
    /// Verdicts among the items.
    pub verdicts: u64,
}

/// Decodes the frames of one capture.
#[derive(Debug, Default)]
pub struct Decoder {
    port: Option<u16>,
    /// Connections by their two addresses, the lower one first.
    connections: BTreeMap<[SocketAddr; 2], Connection>,
    now: Now,
    summary: Summary,
}

impl Decoder {
    /// Makes a decoder that reads all MPA connections. With a `port`, the decoder reads all
    /// connections of that port, as RPC-over-RDMA.
    pub fn new(port: Option<u16>) -> Decoder {
        Decoder { port, ..Decoder::default() }
    }

    /// Returns the totals over the frames so far.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Decodes the next frame of the capture: Ethernet, from its destination address on, without
    /// FCS. `time` is in nanoseconds since 1970. Appends the items found to `items`.
    pub fn frame(&mut self, time: u64, bytes: &[u8], items: &mut Vec<Item>) {
        self.now = Now { time, frame: self.now.frame + 1 };
        self.summary.frames += 1;
        let before = items.len();
        // A frame that is cut off is missing in its connection, which then has a gap.
        if let Ok(Some(segment)) = frame::segment(bytes)
            && self.is_asked_for(&segment)
        {
            self.summary.segments += 1;
            self.segment(&segment, items);
        }
        self.count(items, before);
    }

    /// Ends the capture: appends the items that waited for further frames.
    pub fn finish(&mut self, items: &mut Vec<Item>) {
        let before = items.len();
        let mut out = Out { now: self.now, items };
        for connection in self.connections.values_mut() {
            connection.finish(&mut out);
        }
        self.connections.clear();
        self.count(items, before);
    }

    fn count(&mut self, items: &[Item], before: usize) {
        for item in items.iter().skip(before) {
            match &item.what {
                What::Verdict(_) => self.summary.verdicts += 1,
                What::Mpa(mpa) if !mpa.reply => self.summary.connections += 1,
                _ => {}
            }
        }
    }

    fn is_asked_for(&self, segment: &Segment<'_>) -> bool {
        self.port.is_none_or(|port| has_port(segment, port))
    }

    fn segment(&mut self, segment: &Segment<'_>, items: &mut Vec<Item>) {
        let key = key(segment);
        let mut out = Out { now: self.now, items };
        let syn = segment.flags.has(Flags::SYN);
        if let Some(old) = self.connections.get_mut(&key) {
            let side = old.side(segment.from);
            let same = old.began_with(side, segment.seq);
            match (syn, segment.flags.has(Flags::ACK)) {
                (true, true) if side == 1 => return old.answered(segment.seq),
                (true, false) if same && side == 0 => return,
                // A new connection uses the same addresses.
                (true, false) => {
                    old.finish(&mut out);
                    self.connections.remove(&key);
                }
                _ => {
                    old.segment(side, segment, &mut out);
                    if old.is_dead() {
                        self.summary.not_followed += u64::from(!old.is_mpa());
                        old.finish(&mut out);
                        self.connections.remove(&key);
                    }
                    return;
                }
            }
        }
        let Some((ends, first, second)) = beginning(segment) else {
            self.summary.not_followed += 1;
            return;
        };
        self.make_room(&mut out);
        let forced = self.port.is_some() || has_port(segment, NFS_RDMA_PORT);
        let mut new = Connection::new(ends, first, second, forced);
        new.last = self.now.frame;
        if !syn {
            new.segment(0, segment, &mut out);
        }
        self.connections.insert(key, new);
    }

    fn make_room(&mut self, out: &mut Out<'_>) {
        if self.connections.len() < CONNECTIONS_MAX {
            return;
        }
        let oldest = self.connections.iter().min_by_key(|(_, c)| (c.is_mpa(), c.last));
        if let Some(&key) = oldest.map(|(key, _)| key)
            && let Some(mut gone) = self.connections.remove(&key)
        {
            gone.finish(out);
            self.summary.forgotten += 1;
        }
    }
}

fn has_port(segment: &Segment<'_>, port: u16) -> bool {
    segment.from.port() == port || segment.to.port() == port
}

fn key(segment: &Segment<'_>) -> [SocketAddr; 2] {
    let (a, b) = (segment.from, segment.to);
    if a < b { [a, b] } else { [b, a] }
}

/// Returns the ends of a connection that begins with `segment`, its initiator first, and the
/// numbers of their first bytes. The segment is a SYN, or, if the capture begins later, an MPA
/// Request.
fn beginning(segment: &Segment<'_>) -> Option<([SocketAddr; 2], SeqNumber, SeqNumber)> {
    let Segment { from, to, seq, ack, flags, payload } = *segment;
    if flags.has(Flags::SYN) {
        return Some(if flags.has(Flags::ACK) {
            ([to, from], ack, seq.advance(1))
        } else {
            // The responder's number comes with its SYN.
            ([from, to], seq.advance(1), SeqNumber(0))
        });
    }
    let request =
        payload.len() >= HEADER_LEN && Frame::parse(Kind::Request, Revision::V2, payload).is_ok();
    request.then_some(([from, to], seq, ack))
}
