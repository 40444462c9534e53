//! Copies of payload: none or one on send, one on receive, each counted where it happens.
//!
//! Three counts are independent of each other, and have to agree with the requested operations:
//! - the queue pairs': payload bytes put into FPDUs, the copied bytes among them, and payload bytes
//!   received;
//! - the frame builder's: bytes copied into frames, and bytes referred to;
//! - the registered memory's: bytes copied in and out, by any party.
//!
//! With CRC on, all payload that is sent for the first time is copied once, in the pass that
//! computes its CRC. Without CRC, short payloads are copied by design, because a reference needs
//! two more buffers and so costs more than the copy. The payload of a Read Response is copied too,
//! because other parties may write the memory before the response has arrived. The tests tell these
//! cases apart by length and kind, not by the code's own account of them.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::counting::traffic::{Kind, SIZES, TAGGED, Traffic, UNTAGGED};
use crate::counting::{Net, Setup};
use heddle_dataplane::{FaultConfig, WorkerSnapshot};

/// The least length of a payload that a frame refers to.
const SHORT: u64 = 256;

/// Number of operations of each kind and size.
const OPS: u64 = 200;

/// Returns the payload length of the largest segment.
fn largest(kind: Kind) -> usize {
    if matches!(kind, Kind::Send | Kind::SendSolicited) { UNTAGGED } else { TAGGED }
}

/// Returns the bytes of a message of `size` bytes that are copied, and the bytes that are referred
/// to. Short segments are copied, and the others referred to. With CRC on all bytes are copied. All
/// bytes of a Read Response are copied too, so that the response stays as it was when it was cut
/// into segments.
fn segments(kind: Kind, size: u64, crc: bool) -> (u64, u64) {
    if crc || kind == Kind::Read {
        return (size, 0);
    }
    let last = size % largest(kind) as u64;
    if last < SHORT { (last, size - last) } else { (0, size) }
}

/// Differences of one side's counts between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Copies {
    /// Payload bytes put into FPDUs.
    sent: u64,
    /// Payload bytes sent by reference.
    referenced: u64,
    /// Payload bytes copied on their way out: into FPDUs and into frames.
    copied_out: u64,
    /// Bytes copied out of registered memory.
    gathered: u64,
    /// Frames copied into one piece for the port.
    linearized: u64,
    /// Payload bytes received.
    received: u64,
    /// Bytes copied into registered memory.
    placed: u64,
    /// Bytes copied because they had to wait.
    held: u64,
}

fn copies(s: &WorkerSnapshot) -> Copies {
    Copies {
        sent: s.engine.qps.tx_bytes,
        referenced: s.sink.tx_external_bytes,
        copied_out: s.engine.qps.tx_inlined_bytes
            + s.engine.qps.tx_snapshot_bytes
            + s.engine.rnic.tx_digested_bytes
            + s.sink.tx_copied_bytes,
        gathered: s.memory.mem_gathered_bytes,
        linearized: s.tx.tx_linearized_bytes,
        received: s.engine.qps.rx_bytes,
        placed: s.memory.mem_placed_bytes,
        held: s.engine.rnic.held_copied_bytes,
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

/// Runs [`OPS`] operations, and returns the counts of the side that sends the payload and of the
/// side that receives it.
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

/// All kinds whose payload goes one way.
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
            assert_eq!(from, sender, "sender of {kind:?}, {size} bytes");
            let receiver = Copies { received: all, placed: all, ..Copies::default() };
            assert_eq!(to, receiver, "receiver of {kind:?}, {size} bytes");
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

/// Loss costs retransmissions, which refer to the memory, and a second copy of segments that are
/// too short for the sender to keep their buffers. But a byte that is copied out, with its CRC or
/// for a Read Response, is copied once, and a byte that is placed is placed once.
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
            // A retransmission sends the kept copy of a Read Response.
            assert!(kind != Kind::Read || from.referenced == 0, "{size}: {from:?}");
            again += from.referenced;
        }
    }
    assert!(again > 0, "nothing was sent again");
}
