//! Segments that repeat the header of the one before: they are those that would be made without, and
//! memory that has changed in between is checked as closely.

use super::pair::{BASE, Node};
use super::*;
use crate::qp::alike::LEAST;
use heddle_types::{CqeStatus, SendOp, Sge};

const MULPDU: u16 = 1442;
const LONG: usize = 9000;

/// Long pieces of the stream, so that many segments lie in one.
fn config() -> PairConfig {
    PairConfig { mulpdu: MULPDU, size: 1 << 15, piece: 1 << 16, ..PairConfig::default() }
}

/// Returns the bytes of all FPDUs that a node makes, and how many of them repeat a header. With
/// `alike` it makes as many as it can in that way.
fn made(node: &mut Node, alike: bool) -> (Vec<u8>, usize) {
    let Node { qp, mem, mrs, .. } = node;
    let env = QpEnv { mem: &*mem, mrs: &*mrs, snapshots_full: false, posted: None };
    let (mut bytes, mut repeated) = (Vec::new(), 0);
    let mut put = |mut fpdu: Fpdu| {
        fpdu.seal(env.mem);
        let at = bytes.len();
        bytes.resize(at + fpdu.len() as usize, 0);
        fpdu.copy_to(env.mem, 0, &mut bytes[at..]);
    };
    let mut buffers = Buffers::default();
    loop {
        let mut out = Fpdu::default();
        if !qp.poll_transmit_into(&env, MULPDU, &mut buffers, &mut out) {
            return (bytes, repeated);
        }
        put(out);
        if !alike {
            continue;
        }
        if let Some(mut next) = qp.segments_alike(&env, MULPDU) {
            let mut out = Fpdu::default();
            while qp.next_alike(&env, &mut next, &mut out) {
                put(std::mem::take(&mut out));
                repeated += 1;
            }
        }
    }
}

/// Posts messages of every kind, with one SGE and with several.
fn post(p: &mut Pair) {
    let stag = p.nodes[1].stag;
    let one = [p.nodes[0].sge(5, LONG)];
    let two = [p.nodes[0].sge(0, 4000), p.nodes[0].sge(4096, 5000)];
    let write = SendOp::Write { stag, to: BASE + 3 };
    let invalidating = SendOp::Send { solicited: true, invalidate: Some(stag) };
    for sges in [&one[..], &two[..]] {
        p.send(0, 1, write, sges);
        p.send(0, 2, SendOp::Send { solicited: false, invalidate: None }, sges);
        let wr = SendWr::write_immediate(3, sges, stag, BASE, 7);
        p.nodes[0].qp.post_send(&wr).unwrap();
    }
    p.send(0, 4, invalidating, one);
    // A message of two full segments: the second one is the last.
    p.send(0, 5, write, [p.nodes[0].sge(0, 2 * 1428)]);
}

#[test]
fn test_repeated_headers_make_same_stream_as_single_segments() {
    for crc in [true, false] {
        let mut c = config();
        c.qp.crc = crc;
        let streams = [false, true].map(|alike| {
            let mut p = Pair::open(c.clone());
            let data = random_bytes(1 << 14, 9);
            p.a().write(0, &data);
            post(&mut p);
            made(p.a(), alike)
        });
        assert!(streams[0].0 == streams[1].0, "with crc {crc}");
        // The first and the last of 7 segments are made singly; four messages have one SGE.
        assert_eq!((streams[0].1, streams[1].1), (0, 4 * 5));
    }
}

/// The sender checks its memory once, and then looks for each segment whether it is as it was.
#[test]
fn test_memory_unregistered_within_message_is_not_sent() {
    let mut p = Pair::open(config());
    let a = &p.nodes[0];
    let own = a.mrs.register(a.qp.pd(), 4096, BASE, LONG as u64, Access::NONE).unwrap().stag;
    let (stag, sge) = (p.nodes[1].stag, Sge { stag: own, to: BASE, len: len32(LONG) });
    p.send(0, 1, SendOp::Write { stag, to: BASE }, [sge]);
    let node = p.a();
    let (mut buffers, mut out) = (Buffers::default(), Fpdu::default());
    let Node { qp, mem, mrs, .. } = node;
    let env = QpEnv { mem: &*mem, mrs: &*mrs, snapshots_full: false, posted: None };
    assert!(qp.poll_transmit_into(&env, MULPDU, &mut buffers, &mut out));
    let mut next = qp.segments_alike(&env, MULPDU).expect("six more");
    assert!(qp.next_alike(&env, &mut next, &mut out));
    mrs.deregister(own).unwrap();
    assert!(!qp.next_alike(&env, &mut next, &mut out));
    // Another region in the same place, with the same contents, has another STag.
    mrs.register(qp.pd(), 4096, BASE, LONG as u64, Access::NONE).unwrap();
    assert!(!qp.next_alike(&env, &mut next, &mut out));
    // The segment that is checked closely fails, and a Terminate takes its place.
    assert!(qp.poll_transmit_into(&env, MULPDU, &mut buffers, &mut out));
    assert_eq!(qp.state(), ConnectedState::Terminate);
    qp.abort();
    let all = completions(qp);
    assert_eq!((all[0].wr_id, all[0].status), (1, CqeStatus::LocalProtection), "{all:?}");
}

/// The same of the receiver: the segments of a Write after the first.
#[test]
fn test_write_into_memory_unregistered_within_message_ends_stream() {
    for register_again in [false, true] {
        let mut p = Pair::open(config());
        let b = &p.nodes[1];
        let open = || b.mrs.register(b.qp.pd(), 4096, BASE, LONG as u64, Access::REMOTE_WRITE);
        let target = open().unwrap().stag;
        p.a().write(0, &random_bytes(LONG, 3));
        let sge = p.nodes[0].sge(0, LONG);
        p.send(0, 1, SendOp::Write { stag: target, to: BASE }, [sge]);
        let n = p.transmit(0, 7);
        assert_eq!(p.deliver(1, n / 2 - n / 2 % 1448), n / 2 - n / 2 % 1448, "whole FPDUs");
        let before = p.nodes[1].mem.snapshot();
        p.nodes[1].mrs.deregister(target).unwrap();
        if register_again {
            let b = &p.nodes[1];
            b.mrs.register(b.qp.pd(), 4096, BASE, LONG as u64, Access::REMOTE_WRITE).unwrap();
        }
        p.deliver(1, n);
        assert!(!p.nodes[1].qp.state().is_live());
        assert!(p.nodes[1].mem.snapshot() == before, "nothing is placed afterwards");
    }
}

/// A Write that begins where the one before was interrupted, and other messages between its segments.
#[test]
fn test_expected_segment_of_write_is_only_a_hint() {
    let mut p = Pair::open(config());
    let data = random_bytes(1 << 14, 5);
    p.a().write(0, &data);
    let stag = p.nodes[1].stag;
    for round in 0..3u64 {
        // The lengths are those of full segments, so each Write ends where another may go on.
        for (at, len) in [(0, 2 * 1428), (2 * 1428, 3 * 1428), (1428, 1428), (0, 5 * 1428)] {
            let sge = p.nodes[0].sge(at, len);
            p.send(0, round, SendOp::Write { stag, to: BASE + at as u64 }, [sge]);
            let bytes = data[at..at + len].to_vec();
            p.b().expect(at, &bytes);
        }
        p.recv(1, 9, [p.nodes[1].sge(1 << 14, LEAST as usize)]);
        p.b().expect(1 << 14, &data[..LEAST as usize]);
        let sge = p.nodes[0].sge(0, LEAST as usize);
        p.send(0, 8, SendOp::Send { solicited: false, invalidate: None }, [sge]);
        p.run();
        p.check_healthy();
    }
}
