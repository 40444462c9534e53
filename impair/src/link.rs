//! A direction of the wire.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

use heddle_base::{Instant, Random, Seed};

use crate::answer;
use crate::frame::{self, Codepoint, ETHERNET};
use crate::loss::Loss;
use crate::settings::Settings;

/// The most bytes that the delay line holds. Beyond, frames are dropped and counted, so that no
/// sender takes all memory of the machine.
const HELD: u64 = 512 << 20;
/// The number of buffers that wait to be used again.
const SPARE: usize = 4096;

heddle_base::counters! {
    /// Counts of the frames of a link.
    pub struct Counters {
        /// Frames pushed.
        frames,
        /// Bytes of frames pushed.
        bytes,
        /// Frames popped, copies included.
        delivered,
        /// Bytes of frames popped.
        delivered_bytes,
        /// Frames that the wire lost, as the settings ask.
        lost,
        /// Frames that found no room in the queue of the rate.
        queue_dropped,
        /// Frames that found no room in the delay line: the delay is too long for the rate.
        line_dropped,
        /// IP packets longer than the MTU, dropped.
        too_big,
        /// ICMP errors about these.
        answered,
        /// Frames that got a congestion mark.
        marked,
        /// SYNs that asked for ECN, dropped.
        ecn_syns_dropped,
        /// SYNs and SYN-ACKs whose ECN field the link changed.
        syns_changed,
        /// Segments whose flags of ECN the link cleared.
        ace_cleared,
        /// Packets whose ECN field the link cleared.
        bleached,
        /// Frames delivered twice.
        duplicated,
        /// Frames with a wrong bit.
        corrupted,
        /// Frames held back for later frames to overtake.
        reordered,
        /// The most bytes that waited for the rate.
        peak_queue,
        /// The bytes that waited for the rate, added up over all frames that arrived: divide by
        /// `frames` for the average.
        queue_sum,
    }
}

/// A frame on its way, ordered by the time at which it is due; by its number where times are equal.
#[derive(Debug)]
struct Held {
    due: Instant,
    number: u64,
    frame: Vec<u8>,
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> core::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// The bottleneck: when the last frame of the queue will have left.
#[derive(Debug, Default)]
struct Bottleneck {
    free_at: Instant,
    /// Billionths of a byte that the last frame took beyond `free_at`.
    carry: u128,
}

const SECOND: u128 = 1_000_000_000;

impl Bottleneck {
    /// Returns the bytes that wait at `now`.
    fn backlog(&self, now: Instant, rate: u64) -> u64 {
        let waits = self.free_at.since(now).as_nanos();
        u64::try_from(waits * u128::from(rate) / SECOND).unwrap_or(u64::MAX)
    }

    /// Adds a frame to the queue, and returns the time at which its last byte will have left.
    fn take(&mut self, now: Instant, len: u64, rate: u64) -> Instant {
        if self.free_at <= now {
            *self = Bottleneck { free_at: now, carry: 0 };
        }
        let work = u128::from(len) * SECOND + self.carry;
        self.carry = work % u128::from(rate);
        let ns = u64::try_from(work / u128::from(rate)).unwrap_or(u64::MAX);
        self.free_at = self.free_at + Duration::from_nanos(ns);
        self.free_at
    }
}

/// A direction of a wire, with its impairments.
#[derive(Debug)]
pub struct Link {
    settings: Settings,
    random: Random,
    loss: Loss,
    bottleneck: Bottleneck,
    line: BinaryHeap<Reverse<Held>>,
    held: u64,
    number: u64,
    /// The latest time at which a frame is due that keeps its order.
    last_due: Instant,
    spare: Vec<Vec<u8>>,
    counters: Counters,
}

impl Link {
    /// Makes a link without frames. Equal seeds, settings and frames have equal fates.
    pub fn new(settings: Settings, seed: &Seed) -> Link {
        Link {
            settings,
            random: Random::new(seed),
            loss: Loss::default(),
            bottleneck: Bottleneck::default(),
            line: BinaryHeap::new(),
            held: 0,
            number: 0,
            last_due: Instant::ZERO,
            spare: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes a frame that arrives at `now`. Times must not decrease from call to call. Returns the
    /// frame that answers the sender, if there is one.
    pub fn push(&mut self, now: Instant, bytes: &[u8]) -> Option<Vec<u8>> {
        let len = bytes.len() as u64;
        self.counters.frames += 1;
        self.counters.bytes += len;
        if let Some(mtu) = self.settings.mtu
            && frame::packet_len(bytes).is_some_and(|len| len > mtu)
        {
            self.counters.too_big += 1;
            let answer = (!self.settings.silent).then(|| answer::too_big(bytes, mtu)).flatten();
            self.counters.answered += u64::from(answer.is_some());
            return answer;
        }
        if self.settings.drop_ecn_syn && frame::asks_for_ecn(bytes) {
            self.counters.ecn_syns_dropped += 1;
            return None;
        }
        let (left, marks) = self.queue(now, len)?;
        if self.loss.takes(&self.settings, &mut self.random) {
            self.counters.lost += 1;
            return None;
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.extend_from_slice(bytes);
        self.change_ecn(&mut frame, marks);
        if self.random.chance(self.settings.corrupt) {
            self.flip(&mut frame);
        }
        let due = self.due(left);
        if self.random.chance(self.settings.dup) {
            self.counters.duplicated += 1;
            self.hold(due, frame.clone());
        }
        self.hold(due, frame);
        None
    }

    /// Changes the bits of ECN as the settings ask. The queue `marks` the frame, or not.
    fn change_ecn(&mut self, frame: &mut [u8], marks: bool) {
        let Settings { ce, syn_ecn, clear_ace, bleach, .. } = self.settings;
        if let Some(codepoint) = syn_ecn
            && frame::is_syn(frame)
        {
            self.counters.syns_changed += u64::from(frame::set_codepoint(frame, codepoint));
        }
        // Links without this setting draw as many numbers as before.
        let marks = marks | (ce > 0.0 && self.random.chance(ce));
        if marks && frame::mark(frame) {
            self.counters.marked += 1;
        }
        if clear_ace {
            self.counters.ace_cleared += u64::from(frame::clear_flags_of_ecn(frame));
        }
        if bleach {
            self.counters.bleached += u64::from(frame::set_codepoint(frame, Codepoint::NotEct));
        }
    }

    /// Returns the time at which the next frame is due.
    pub fn next(&self) -> Option<Instant> {
        self.line.peek().map(|Reverse(held)| held.due)
    }

    /// Removes the next frame that is due at `now`, and returns it with the time at which it was
    /// due. [`recycle`](Link::recycle) takes the buffer back.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, Vec<u8>)> {
        if self.next()? > now {
            return None;
        }
        let Reverse(Held { due, frame, .. }) = self.line.pop()?;
        let len = frame.len() as u64;
        self.held -= len;
        self.counters.delivered += 1;
        self.counters.delivered_bytes += len;
        Some((due, frame))
    }

    /// Takes back the buffer of a frame that has been delivered.
    pub fn recycle(&mut self, mut frame: Vec<u8>) {
        if self.spare.len() < SPARE {
            frame.clear();
            self.spare.push(frame);
        }
    }

    /// Sends a frame through the queue of the rate. Returns the time at which it leaves the queue
    /// and true if the queue marks it, or `None` if the queue has no room.
    fn queue(&mut self, now: Instant, len: u64) -> Option<(Instant, bool)> {
        let Some(rate) = self.settings.rate else { return Some((now, false)) };
        let backlog = self.bottleneck.backlog(now, rate);
        self.counters.queue_sum += backlog;
        if self.settings.queue.is_some_and(|limit| backlog + len > limit) {
            self.counters.queue_dropped += 1;
            return None;
        }
        self.counters.peak_queue = self.counters.peak_queue.max(backlog + len);
        let marks = self.settings.mark.is_some_and(|threshold| backlog >= threshold);
        Some((self.bottleneck.take(now, len, rate), marks))
    }

    /// Chooses the time at which a frame arrives that left the queue at `left`.
    fn due(&mut self, left: Instant) -> Instant {
        let Settings { delay, jitter, unordered, reorder, .. } = self.settings;
        let most = u64::try_from(jitter.as_nanos()).unwrap_or(u64::MAX);
        let extra = if most == 0 { 0 } else { self.random.below(most.saturating_add(1)) };
        let due = left + delay + Duration::from_nanos(extra);
        if let Some(reorder) = reorder
            && self.random.chance(reorder.share)
        {
            self.counters.reordered += 1;
            return due + reorder.by;
        }
        if unordered {
            return due;
        }
        self.last_due = self.last_due.max(due);
        self.last_due
    }

    /// Inverts one bit behind the Ethernet header.
    fn flip(&mut self, frame: &mut [u8]) {
        let bits = 8 * frame.len().saturating_sub(ETHERNET) as u64;
        let bit = self.random.below(bits);
        let at = ETHERNET + usize::try_from(bit / 8).unwrap_or(usize::MAX - ETHERNET);
        if let Some(byte) = frame.get_mut(at) {
            *byte ^= 1 << (bit % 8);
            self.counters.corrupted += 1;
        }
    }

    fn hold(&mut self, due: Instant, frame: Vec<u8>) {
        let len = frame.len() as u64;
        if self.held + len > HELD {
            self.counters.line_dropped += 1;
            return;
        }
        self.held += len;
        self.number += 1;
        self.line.push(Reverse(Held { due, number: self.number, frame }));
    }
}

#[cfg(test)]
mod tests;
