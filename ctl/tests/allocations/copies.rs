//! Copies of payload: none or one on send, one on receive, each counted where it happens.
//!
//! Three counts that do not know each other have to agree with what was asked for:
//! - the queue pairs': payload octets put into FPDUs, of those copied, and payload octets received;
//! - the frame builder's: octets copied into frames, octets referred to;
//! - the registered memory's: octets copied in and out, by whomever.
//!
//! With CRC on, all payload that is sent for the first time is copied, once, in the pass that
//! computes its CRC. Without it, short payloads are copied by design, because a reference costs
//! more than the copy: it would take two more buffers; and so is what answers a Read, because
//! others may write it before it has arrived. They are told apart here by their length and kind,
//! not by what the code says of them.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::counting::traffic::{Kind, SIZES, TAGGED, Traffic, UNTAGGED};
use crate::counting::{Net, Setup};
use heddle_dataplane::{FaultConfig, WorkerSnapshot};

/// No reference is made to a payload shorter than this.
const SHORT: u64 = 256;

/// Operations of each kind and size.
const OPS: u64 = 200;

/// Payload of the largest segment.
fn largest(kind: Kind) -> usize {
    if matches!(kind, Kind::Send | Kind::SendSolicited) { UNTAGGED } else { TAGGED }
}

/// Octets that are copied, and that are referred to, of a message of `size` octets: those of short
/// segments, and of the others. With CRC on all are copied, and so is all that answers a Read,
/// which is kept as it was when it was cut.
fn segments(kind: Kind, size: u64, crc: bool) -> (u64, u64) {
    if crc || kind == Kind::Read {
        return (size, 0);
    }
    let last = size % largest(kind) as u64;
    if last < SHORT { (last, size - last) } else { (0, size) }
}

/// What one side did between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Copies {
    /// Payload octets put into FPDUs.
    sent: u64,
    /// Payload octets that left by reference.
    referenced: u64,
    /// Payload octets copied on their way out: into FPDUs and into frames.
    copied_out: u64,
    /// Octets copied out of registered memory.
    gathered: u64,
    /// Frames made one piece for the port, by copying.
    linearized: u64,
    /// Payload octets received.
    received: u64,
    /// Octets copied into registered memory.
    placed: u64,
    /// Octets copied because they had to wait.
    held: u64,
}

fn copies(s: &WorkerSnapshot) -> Copies {
    Copies {
        sent: s.qps.tx_bytes,
        referenced: s.sink.tx_external_bytes,
        copied_out: s.qps.tx_inlined_bytes
            + s.qps.tx_snapshot_bytes
            + s.rnic.tx_digested_bytes
            + s.sink.tx_copied_bytes,
        gathered: s.memory.mem_gathered_bytes,
        linearized: s.tx.tx_linearized_bytes,
        received: s.qps.rx_bytes,
        placed: s.memory.mem_placed_bytes,
        held: s.rnic.held_copied_bytes,
    }
}

impl Copies {
    fn since(self, e: Copies) -> Copies {
        Copies {
            sent: self.sent - e.sent,
            referenced: self.referenced - e.referenced,
            copied_out: self.copied_out - e.copied_out,
            gathered: self.gathered - e.gathered,
            linearized: self.linearized - e.linearized,
            received: self.received - e.received,
            placed: self.placed - e.placed,
            held: self.held - e.held,
        }
    }
}

fn both(net: &Net) -> [Copies; 2] {
    [&net.a, &net.b].map(|e| copies(&e.snapshot().worker))
}

/// What the side that sends the payload and the side that receives it did for [`OPS`] operations.
fn run(net: &mut Net, kind: Kind, size: usize) -> (Copies, Copies) {
    let [client, server] = net.connected(|net, conns| {
        let before = both(net);
        let sizes = [size];
        Traffic::new(conns, kind, &sizes).run(OPS, || net.poll());
        let after = both(net);
        [after[0].since(before[0]), after[1].since(before[1])]
    });
    if kind == Kind::Read { (server, client) } else { (client, server) }
}

/// Every kind whose payload goes one way.
const ONE_WAY: [Kind; 4] = [Kind::Send, Kind::SendSolicited, Kind::Write, Kind::Read];

fn assert_copies(crc: bool) {
    let mut net = Net::new(Setup { crc, ..Setup::default() });
    let mut referenced = 0;
    for kind in ONE_WAY {
        for size in SIZES {
            let (from, to) = run(&mut net, kind, size);
            let (short, long) = segments(kind, size as u64, crc);
            let all = OPS * size as u64;
            let sender = Copies {
                sent: all,
                referenced: OPS * long,
                copied_out: OPS * short,
                gathered: OPS * short,
                ..Copies::default()
            };
            assert_eq!(from, sender, "sender of {kind:?}, {size} octets");
            let receiver = Copies { received: all, placed: all, ..Copies::default() };
            assert_eq!(to, receiver, "receiver of {kind:?}, {size} octets");
            referenced += long;
        }
    }
    assert_eq!(referenced > 200_000, !crc);
    assert_eq!(referenced == 0, crc);
}

#[test]
fn test_payload_with_crc_is_copied_once_on_send_and_once_on_receive() {
    assert_copies(true);
}

#[test]
fn test_payload_is_not_copied_on_send_and_copied_once_on_receive_without_crc() {
    assert_copies(false);
}

/// Loss costs retransmissions, which refer to the memory, and a second copy of segments too short
/// to keep their buffers for; but what is copied out is copied once, with its CRC or for a Read
/// Response, and what is placed is placed once.
#[test]
fn test_loss_and_reordering_add_no_copy_of_full_segments() {
    let fault = FaultConfig {
        drop: 0.005,
        duplicate: 0.005,
        reorder: 0.02,
        hold_time: Duration::from_micros(100),
        ..FaultConfig::default()
    };
    let mut net = Net::new(Setup { fault, ..Setup::default() });
    let mut again = 0;
    for kind in ONE_WAY {
        for size in [1000, largest(kind), 40 * largest(kind)] {
            let (from, to) = run(&mut net, kind, size);
            let all = OPS * size as u64;
            assert_eq!((from.sent, to.received, to.placed), (all, all, all), "{kind:?} {size}");
            let copied = [from.copied_out, from.gathered, from.linearized, to.held];
            assert_eq!(copied, [all, all, 0, 0], "{kind:?} {size}: {from:?} {to:?}");
            // The kept copy of a Read Response is what is sent again.
            assert!(kind != Kind::Read || from.referenced == 0, "{size}: {from:?}");
            again += from.referenced;
        }
    }
    assert!(again > 0, "nothing was sent again");
}
