//! Segments that repeat the header of the one before: they are those that would be made without, and
//! memory that has changed in between is checked as closely.

use super::pair::{BASE, Node};
use super::*;
use crate::qp::alike::LEAST;
use heddle_mr::{Kind, MrTable};
use heddle_types::{Bind, CqeStatus, SendOp, Sge};

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
            while qp.next_alike(&env, &mut next, &mut buffers, &mut out) {
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
    assert!(qp.next_alike(&env, &mut next, &mut buffers, &mut out));
    mrs.deregister(own).unwrap();
    assert!(!qp.next_alike(&env, &mut next, &mut buffers, &mut out));
    // Another region in the same place, with the same contents, has another STag.
    mrs.register(qp.pd(), 4096, BASE, LONG as u64, Access::NONE).unwrap();
    assert!(!qp.next_alike(&env, &mut next, &mut buffers, &mut out));
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

/// The same with a part of a region that a request has registered: either may end.
#[test]
fn test_write_into_fast_registration_that_ends_within_message_ends_stream() {
    for (end_region, again) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut p = Pair::open(config());
        let Node { qp, mrs, .. } = &p.nodes[1];
        let us = (qp.pd(), qp.qpn());
        let rights = Access::LOCAL_WRITE.with(Access::BIND);
        let open = |mrs: &MrTable| mrs.register(us.0, 4096, 0, LONG as u64, rights).unwrap().stag;
        let fast = mrs.allocate(us.0, Some(us.1), LONG as u64).unwrap();
        let bind = |mrs: &MrTable, key: u8, region| {
            let bind = Bind { stag: fast.with_key(key), to: BASE, access: Access::REMOTE_WRITE };
            mrs.bind(us, Kind::Fast, &bind, [(region, 0, len32(LONG))]).unwrap();
            bind.stag
        };
        let mut region = open(mrs);
        let target = bind(mrs, 1, region);
        p.nodes[0].write(0, &random_bytes(LONG, 3));
        let sge = p.nodes[0].sge(0, LONG);
        p.send(0, 1, SendOp::Write { stag: target, to: BASE }, [sge]);
        let n = p.transmit(0, 7);
        assert_eq!(p.deliver(1, n / 2 - n / 2 % 1448), n / 2 - n / 2 % 1448, "whole FPDUs");
        let before = p.nodes[1].mem.snapshot();
        let Node { mrs, .. } = &p.nodes[1];
        if end_region {
            mrs.deregister(region).unwrap();
            region = open(mrs);
        } else {
            mrs.invalidate_local(us, target).unwrap();
        }
        if again {
            bind(mrs, 2, region);
        }
        p.deliver(1, n);
        assert!(!p.nodes[1].qp.state().is_live());
        assert!(p.nodes[1].mem.snapshot() == before, "nothing is placed afterwards");
    }
}

/// The source of the peer's Read is checked once as well: nothing is read of it after its end.
#[test]
fn test_read_of_memory_that_ends_within_response_is_not_answered() {
    for fast in [false, true] {
        let mut p = Pair::open(config());
        let Node { qp, mrs, .. } = &p.nodes[1];
        let us = (qp.pd(), qp.qpn());
        let (base, rights) = (if fast { 0 } else { BASE }, Access::REMOTE_READ.with(Access::BIND));
        let region = mrs.register(us.0, 4096, base, LONG as u64, rights).unwrap().stag;
        let source = if fast {
            let stag = mrs.allocate(us.0, Some(us.1), LONG as u64).unwrap().with_key(1);
            let bind = Bind { stag, to: BASE, access: Access::REMOTE_READ };
            mrs.bind(us, Kind::Fast, &bind, [(region, 0, len32(LONG))]).unwrap();
            stag
        } else {
            region
        };
        let sge = p.nodes[0].sge(0, LONG);
        p.send(0, 1, SendOp::Read { stag: source, to: BASE }, [sge]);
        let n = p.transmit(0, 1);
        p.deliver(1, n);
        let node = p.b();
        let (mut buffers, mut out) = (Buffers::default(), Fpdu::default());
        let Node { qp, mem, mrs, .. } = node;
        let env = QpEnv { mem: &*mem, mrs: &*mrs, snapshots_full: false, posted: None };
        for _ in 0..3 {
            assert!(qp.poll_transmit_into(&env, MULPDU, &mut buffers, &mut out));
            assert!(qp.state().is_live());
        }
        let ended = if fast { mrs.invalidate_local(us, source).is_ok() } else { false };
        assert!(ended || mrs.deregister(region).is_ok());
        assert!(qp.poll_transmit_into(&env, MULPDU, &mut buffers, &mut out));
        assert_eq!(qp.state(), ConnectedState::Terminate, "{fast}");
        qp.abort();
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

/// Returns a pair in which side 0 has received a Read of `LONG` bytes, and its data.
fn asked(crc: bool) -> (Pair, Vec<u8>) {
    let mut c = config();
    c.qp.crc = crc;
    let mut p = Pair::open(c);
    let data = random_bytes(LONG, 7);
    p.a().write(11, &data);
    let (src, sink) = (p.nodes[0].stag, p.nodes[1].sge(3, LONG));
    p.send(1, 1, SendOp::Read { stag: src, to: BASE + 11 }, [sink]);
    p.transmit(1, 1);
    p.deliver(0, usize::MAX);
    (p, data)
}

/// Makes the segments of an answer after the first: in passing, if their frames have no checksum.
fn answer(node: &mut Node, sums: bool, full: bool) -> (Vec<Fpdu>, Buffers) {
    let Node { qp, mem, mrs, .. } = node;
    let mut env = QpEnv { mem: &*mem, mrs: &*mrs, snapshots_full: false, posted: None };
    let (mut buffers, mut all) = (Buffers::new(sums), vec![Fpdu::default()]);
    assert!(qp.poll_transmit_into(&env, MULPDU, &mut buffers, &mut all[0]));
    let mut next = qp.segments_alike(&env, MULPDU).expect("six more");
    assert!(next.keep_snapshots());
    env.snapshots_full = full;
    loop {
        let mut out = Fpdu::default();
        if !qp.next_alike(&env, &mut next, &mut buffers, &mut out) {
            return (all, buffers);
        }
        all.push(out);
    }
}

#[test]
fn test_segments_of_read_response_are_those_made_singly() {
    for (crc, sums) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut p, _) = asked(crc);
        let single = made(p.a(), false).0;
        let (mut p, data) = asked(crc);
        let (all, mut buffers) = answer(p.a(), sums, false);
        assert_eq!(all.len(), 6);
        let mut stream = Vec::new();
        for mut f in all {
            assert!(f.snapshot_len() == f.len() && f.payload().is_none());
            assert_eq!(f.owes_snapshot(), crc && !sums && !stream.is_empty());
            let mut frame = vec![0; f.len() as usize];
            f.fill(&p.nodes[0].mem, &mut frame, sums);
            stream.extend(frame);
            f.clear(&mut buffers);
        }
        stream.extend(made(p.a(), false).0);
        assert!(stream == single, "crc {crc}, sums {sums}");
        // The Read asked for exactly these bytes.
        p.nodes[1].inbox.extend(&stream);
        p.b().expect(3, &data);
        p.deliver(1, usize::MAX);
        p.check_healthy();
        let done = completions(&mut p.nodes[1].qp);
        assert_eq!((done.len(), done[0].wr_id, done[0].status), (1, 1, CqeStatus::Success));
    }
}

/// The memory changes before the frame is made, and again before it is repeated.
#[test]
fn test_snapshot_owed_is_taken_by_first_use_and_stays() {
    for seal in [false, true] {
        let (mut p, _) = asked(true);
        let (mut all, _) = answer(p.a(), false, false);
        let f = &mut all[1];
        assert!(f.owes_snapshot());
        p.nodes[0].mem.write(GUARD_OF_SOURCE, &vec![1; LONG]);
        let mut first = vec![0; f.len() as usize];
        if seal {
            f.seal(&p.nodes[0].mem);
        } else {
            f.fill(&p.nodes[0].mem, &mut first, false);
        }
        p.nodes[0].mem.write(GUARD_OF_SOURCE, &vec![2; LONG]);
        let mut again = vec![0; f.len() as usize];
        assert_eq!(f.copy_to(&p.nodes[0].mem, 0, &mut again), again.len());
        assert!(!f.owes_snapshot() && f.payload().is_none());
        assert!(seal || first == again, "a retransmission has the same bytes");
        let (body, crc) = again.split_last_chunk().unwrap();
        assert_eq!(crate::mpa::fpdu::crc_from_wire(*crc), crate::mpa::fpdu::crc(0, body));
        assert!(body[16..16 + 1428].iter().all(|b| *b == 1), "from when it was taken");
    }
}

/// Where the source of the Read lies in memory.
const GUARD_OF_SOURCE: usize = super::pair::GUARD + 11;

/// A frame may need a checksum after all; its maker then computes it.
#[test]
fn test_snapshot_owed_fills_frame_that_needs_checksum() {
    let (mut p, _) = asked(true);
    let (mut all, _) = answer(p.a(), false, false);
    let mut frame = vec![0; all[1].len() as usize];
    assert_eq!(all[1].fill(&p.nodes[0].mem, &mut frame, true), None);
    let mut again = vec![0; frame.len()];
    all[1].copy_to(&p.nodes[0].mem, 0, &mut again);
    assert!(again == frame && !all[1].owes_snapshot());
}

#[test]
fn test_segment_of_read_response_waits_for_room_for_snapshot() {
    let (mut p, _) = asked(true);
    assert_eq!(answer(p.a(), false, true).0.len(), 1);
    // The rest goes on where it stopped.
    let (mut q, _) = asked(true);
    assert!(made(q.a(), false).0.ends_with(&made(p.a(), false).0));
}

#[test]
fn test_source_unregistered_within_answer_is_not_read() {
    let mut p = Pair::open(config());
    let a = &p.nodes[0];
    let own = a.mrs.register(a.qp.pd(), 4096, BASE, LONG as u64, Access::REMOTE_READ).unwrap().stag;
    let sink = p.nodes[1].sge(3, LONG);
    p.send(1, 1, SendOp::Read { stag: own, to: BASE }, [sink]);
    p.transmit(1, 1);
    p.deliver(0, usize::MAX);
    let Node { qp, mem, mrs, .. } = p.a();
    let env = QpEnv { mem: &*mem, mrs: &*mrs, snapshots_full: false, posted: None };
    let (mut buffers, mut out) = (Buffers::default(), Fpdu::default());
    assert!(qp.poll_transmit_into(&env, MULPDU, &mut buffers, &mut out));
    let mut next = qp.segments_alike(&env, MULPDU).expect("six more");
    assert!(qp.next_alike(&env, &mut next, &mut buffers, &mut out));
    mrs.deregister(own).unwrap();
    mrs.register(qp.pd(), 4096, BASE, LONG as u64, Access::REMOTE_READ).unwrap();
    assert!(!qp.next_alike(&env, &mut next, &mut buffers, &mut out));
    assert!(qp.poll_transmit_into(&env, MULPDU, &mut buffers, &mut out));
    assert_eq!(qp.state(), ConnectedState::Terminate);
}

/// Posts a Send of `LONG` bytes into `at` of side 1, and delivers its first three segments.
fn half_sent(p: &mut Pair, to: Sge) {
    p.a().write(0, &random_bytes(LONG, 3));
    p.recv(1, 1, [to]);
    let from = p.nodes[0].sge(0, LONG);
    p.send(0, 1, SendOp::Send { solicited: false, invalidate: None }, [from]);
    p.transmit(0, 7);
    let three = 3 * 1448;
    assert_eq!(p.deliver(1, three), three);
    assert_eq!(p.nodes[1].qp.rq.received, 3 * 1424);
}

/// As for Writes: the segments of a Send after the first.
#[test]
fn test_send_into_memory_unregistered_within_message_ends_stream() {
    for register_again in [false, true] {
        let mut p = Pair::open(config());
        let b = &p.nodes[1];
        let open = || b.mrs.register(b.qp.pd(), 4096, BASE, LONG as u64, Access::LOCAL_WRITE);
        let stag = open().unwrap().stag;
        half_sent(&mut p, Sge { stag, to: BASE, len: len32(LONG) });
        let before = p.nodes[1].mem.snapshot();
        p.nodes[1].mrs.deregister(stag).unwrap();
        if register_again {
            let b = &p.nodes[1];
            b.mrs.register(b.qp.pd(), 4096, BASE, LONG as u64, Access::LOCAL_WRITE).unwrap();
        }
        p.deliver(1, usize::MAX);
        assert!(!p.nodes[1].qp.state().is_live());
        assert!(p.nodes[1].mem.snapshot() == before, "nothing is placed afterwards");
    }
}

/// The buffer's SGE is shorter than its region, and the peer sends as many full segments as it likes.
#[test]
fn test_send_longer_than_its_buffer_writes_nothing_beyond() {
    for len in [2 * 1424, 2 * 1424 + 700, 3 * 1424 - 1] {
        let mut p = Pair::open(config());
        let data = random_bytes(LONG, 4);
        p.a().write(0, &data);
        let (from, to) = (p.nodes[0].sge(0, LONG), p.nodes[1].sge(100, len));
        p.recv(1, 1, [to]);
        p.send(0, 1, SendOp::Send { solicited: false, invalidate: None }, [from]);
        p.transmit(0, 7);
        p.deliver(1, usize::MAX);
        assert!(!p.nodes[1].qp.state().is_live());
        p.b().expect(100, &data[..2 * 1424]);
        p.nodes[1].check_memory();
        p.nodes[1].qp.abort();
        let all = completions(&mut p.nodes[1].qp);
        assert_eq!((all[0].wr_id, all[0].status), (1, CqeStatus::LocalLength), "{len}");
    }
}

/// A buffer of two SGEs: segments that lie in the first, across both, and in the second.
#[test]
fn test_long_send_fills_buffer_of_several_pieces() {
    let mut p = Pair::open(config());
    let data = random_bytes(LONG, 4);
    p.a().write(0, &data);
    let to = [p.nodes[1].sge(5, 4000), p.nodes[1].sge(6000, 5000)];
    p.recv(1, 1, to);
    let from = p.nodes[0].sge(0, LONG);
    p.send(0, 1, SendOp::Send { solicited: false, invalidate: None }, [from]);
    p.b().expect(5, &data[..4000]);
    p.b().expect(6000, &data[4000..]);
    p.run();
    p.check_healthy();
}

/// An expected segment names a buffer. When this buffer has left the queue, a segment that
/// looks the same goes to the buffer that is there, even when the number of messages has wrapped.
#[test]
fn test_segment_expected_for_completed_buffer_goes_to_next_buffer() {
    let mut p = Pair::open(config());
    // The second segment is the last but one.
    let len = 2 * 1424 + 100;
    let data = random_bytes(len, 8);
    p.a().write(0, &data);
    for at in [1000, 9000] {
        p.a().qp.send_msn = Msn(1);
        p.b().qp.rq.msn = Msn(1);
        // Longer than the message, so that what is expected would have a place.
        let to = p.nodes[1].sge(at, len + 2 * 1424);
        p.recv(1, at as u64, [to]);
        p.b().expect(at, &data);
        let sge = p.nodes[0].sge(0, len);
        p.send(0, 1, SendOp::Send { solicited: false, invalidate: None }, [sge]);
        p.transmit(0, 7);
        p.deliver(1, usize::MAX);
        p.nodes[1].check_memory();
        assert_eq!(completions(&mut p.nodes[1].qp)[0].wr_id, at as u64);
    }
}

/// Bytes of the expected segment's length that name no segment at all.
#[test]
fn test_zeros_of_expected_length_are_no_segment() {
    for write in [false, true] {
        let mut p = Pair::open(config());
        p.b().qp.crc = false;
        if write {
            p.a().write(0, &random_bytes(LONG, 3));
            let (stag, sge) = (p.nodes[1].stag, p.nodes[0].sge(0, LONG));
            p.send(0, 1, SendOp::Write { stag, to: BASE }, [sge]);
            p.transmit(0, 2);
            p.deliver(1, usize::MAX);
        } else {
            let to = p.nodes[1].sge(0, LONG);
            half_sent(&mut p, to);
            // Nothing is expected after the end of the buffer.
            p.deliver(1, usize::MAX);
            assert_eq!(completions(&mut p.nodes[1].qp).len(), 1);
        }
        let before = (p.nodes[1].mem.snapshot(), p.nodes[1].qp.counters().rx_bytes);
        p.nodes[1].inbox.extend([0; 1448]);
        p.deliver(1, usize::MAX);
        assert!(!p.nodes[1].qp.state().is_live());
        assert!(p.nodes[1].mem.snapshot() == before.0);
        assert_eq!(p.nodes[1].qp.counters().rx_bytes, before.1);
    }
}

/// A segment of a Send that repeats, leaves out or passes over another is no expected one.
#[test]
fn test_segment_of_send_at_wrong_offset_is_refused() {
    for offset in [0, 1424, 2 * 1424, 4 * 1424, u32::MAX - 100] {
        let mut p = Pair::open(config());
        let to = p.nodes[1].sge(0, LONG);
        half_sent(&mut p, to);
        // The fourth segment has come to the inbox; make it another one.
        let inbox = &mut p.nodes[1].inbox;
        inbox[16..20].copy_from_slice(&offset.to_be_bytes());
        let crc = crate::mpa::fpdu::crc(0, &inbox[..1444]);
        inbox[1444..1448].copy_from_slice(&crate::mpa::fpdu::crc_to_wire(crc));
        let before = p.nodes[1].mem.snapshot();
        p.deliver(1, usize::MAX);
        assert!(!p.nodes[1].qp.state().is_live(), "{offset}");
        assert!(p.nodes[1].mem.snapshot() == before, "{offset}");
    }
}

/// The sender cuts a segment short where an SGE of its own ends. The segment after it is as long as
/// the one before, and lies where the short one ended.
#[test]
fn test_short_segment_within_long_send_moves_what_is_expected() {
    for short in [1, 474, 511, 512, 600] {
        let mut p = Pair::open(config());
        let len = 4 * 1424;
        let data = random_bytes(len, 4);
        p.a().write(0, &data);
        let from =
            [p.nodes[0].sge(0, 1424 + short), p.nodes[0].sge(1424 + short, len - 1424 - short)];
        let to = p.nodes[1].sge(5, LONG);
        p.recv(1, 1, [to]);
        p.send(0, 1, SendOp::Send { solicited: false, invalidate: None }, from);
        p.b().expect(5, &data);
        while p.transmit(0, 1) > 0 {
            p.deliver(1, usize::MAX);
        }
        p.check_healthy();
    }
}
