//! FPDUs ahead of a gap: which of them the QP finds and places, and what it does with them later.

use super::*;
use crate::PlacedFpdu;
use crate::mpa::markers;
use heddle_types::{CqeStatus, SendOp, Sge};

const CONFIG: fn() -> QpConfig =
    || QpConfig { ird: 2, ord: 2, recv_markers: true, ..QpConfig::default() };

/// Returns the peer's stream, FPDUs of `segments` with markers, and where each begins and the last
/// ends.
fn stream(segments: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut at) = (Vec::new(), vec![0]);
    for s in segments {
        let offset = bytes.len() as u64;
        markers::insert(&framed(s, true), offset, true, &mut bytes);
        at.push(bytes.len());
    }
    (bytes, at)
}

impl Target {
    fn find(&self, bytes: &[u8], at: usize) -> Option<usize> {
        self.qp.find_fpdu(StreamPos(at as u64), &bytes)
    }

    fn place(&self, bytes: &[u8], at: usize) -> Option<PlacedFpdu> {
        let env = QpEnv { mem: &self.mem, mrs: &self.mrs, snapshots_full: false, posted: None };
        self.qp.place_early(&env, StreamPos(at as u64), &bytes, None)
    }

    fn deliver(&mut self, at: usize, fpdu: &PlacedFpdu) {
        let env = QpEnv { mem: &self.mem, mrs: &self.mrs, snapshots_full: false, posted: None };
        self.qp.deliver(&env, StreamPos(at as u64), fpdu);
    }
}

/// Returns bytes of the application's memory, from `at` on.
fn memory(t: &Target, at: usize, len: usize) -> Vec<u8> {
    t.mem.read(1000 + at, len)
}

#[test]
fn test_early_send_is_placed_at_once_but_completes_in_its_turn() {
    let mut t = Target::with(CONFIG());
    let (bytes, at) = stream(&[send(1, 0, true, 40), send(2, 0, false, 40), send(2, 40, true, 8)]);
    // Both buffers are the same memory here: only the second message writes the bytes from 40 on.
    let last = t.place(&bytes[at[2]..], at[2]).unwrap();
    assert_eq!(last.len() as usize, at[3] - at[2]);
    assert_eq!(
        (memory(&t, 0, 40), memory(&t, 40, 9)),
        (vec![FILL; 40], [&[0x5a; 8][..], &[FILL]].concat())
    );
    assert!(completions(&mut t.qp).is_empty() && events(&mut t.qp).is_empty());
    assert_eq!((t.qp.counters().rx_fpdus, t.qp.rx_next()), (0, StreamPos(0)));
    assert_eq!(t.feed_raw(&bytes[..at[2]]), at[2]);
    let placed = t.mem.placed();
    t.deliver(at[2], &last);
    assert_eq!(t.mem.placed(), placed, "not placed again");
    let got: Vec<_> = completions(&mut t.qp).iter().map(|c| (c.wr_id, c.len, c.status)).collect();
    assert_eq!(got, [(100, 40, CqeStatus::Success), (101, 48, CqeStatus::Success)]);
    assert_eq!((t.qp.counters().rx_fpdus, t.qp.rx_next()), (3, StreamPos(at[3] as u64)));
    assert_eq!(events(&mut t.qp), [QpEvent::FirstFpdu]);
}

/// A segment that the QP does not place early leaves no trace; if it is wrong, the QP reports that
/// in its turn.
#[test]
fn test_segment_that_may_not_be_placed_early_leaves_no_trace() {
    let mut t = Target::with(CONFIG());
    let read_only = t.region(Access::REMOTE_READ);
    let local = t.region(Access::LOCAL_WRITE);
    t.post(1, SendOp::Read { stag: Stag(77), to: 0 });
    let sink = [Sge { stag: t.all, to: TO + 400, len: 8 }];
    t.qp.post_send(&SendWr::fetch_add(2, &sink, Stag(77), 0, 1)).unwrap();
    t.transmit();
    let all = t.all;
    let refused = [
        // Messages for the queue pair itself.
        read_request(1, all, TO, 8),
        cat(&untagged(Opcode::TERMINATE, true, 2, 1, 0), &[0; 4]),
        cat(&untagged(Opcode::IMMEDIATE, true, 0, 1, 0), &[0; 8]),
        cat(&untagged(Opcode::ATOMIC_REQUEST, true, 1, 1, 0), &[0; 52]),
        cat(&untagged(Opcode::ATOMIC_RESPONSE, true, 3, 1, 0), &[0; 12]),
        // Segments that fail a check of the buffer.
        write(Stag(1), TO, 8),
        write(read_only, TO, 8),
        write(all, TO + 993, 8),
        write(all, u64::MAX - 3, 8),
        send(3, 0, true, 8),
        send(0, 0, true, 8),
        send(1, 0, true, 65),
        send(2, 60, true, 5),
        send(2, u32::MAX, true, 5),
        // Responses that lie outside the sink of the Read, which has 200 bytes.
        response(all, TO + 193, true, 8),
        response(all, TO - 1, true, 8),
        response(read_only, TO, true, 8),
        // Responses to memory that a Read could have as a sink, and to the sink of an Atomic
        // Operation.
        response(local, TO, true, 8),
        response(all, TO + 400, true, 8),
        response(all, u64::MAX - 3, true, 8),
        // Segments with bad headers.
        cat(&tagged(Opcode(12), true, all, TO), &[0; 8]),
        write(all, TO, 8)[..13].to_vec(),
        vec![],
    ];
    let before = t.mem.snapshot();
    for s in &refused {
        // Put another FPDU before it, so that there is a gap.
        let (bytes, at) = stream(&[write(all, TO, 100), s.clone()]);
        assert_eq!(t.place(&bytes[at[1]..], at[1]), None, "{s:02x?}");
    }
    // An incomplete FPDU, one with a wrong CRC, one with a wrong marker and a right CRC.
    let (bytes, at) = stream(&[write(all, TO, 100), write(all, TO, 600)]);
    for n in at[1]..at[2] {
        assert_eq!(t.place(&bytes[at[1]..n], at[1]), None);
    }
    for i in at[1]..at[2] {
        let mut bad = bytes.clone();
        bad[i] ^= 0x20;
        assert_eq!(t.place(&bad[at[1]..], at[1]), None);
    }
    let mut bad = bytes.clone();
    bad[515] ^= 4;
    let crc = fpdu::crc_to_wire(fpdu::crc(0, &bad[at[1]..at[2] - 4]));
    bad[at[2] - 4..].copy_from_slice(&crc);
    assert_eq!(t.place(&bad[at[1]..], at[1]), None);
    assert_eq!(t.mem.snapshot(), before);
    assert_eq!((t.qp.state(), t.qp.counters().rx_fpdus), (ConnectedState::Rts, 0));
    // The QP places the segments just within these limits.
    for s in [
        write(all, TO + 992, 8),
        write(Stag(1), 0, 0),
        response(Stag(1), 0, true, 0),
        send(1, 0, true, 64),
        send(2, 60, true, 4),
        response(all, TO + 192, true, 8),
        response(all, TO, false, 200),
    ] {
        let (bytes, at) = stream(&[write(all, TO, 100), s.clone()]);
        assert!(t.place(&bytes[at[1]..], at[1]).is_some(), "{s:02x?}");
    }
}

/// RFC 5040 section 5.5: the QP answers a Read Request that came ahead of a gap in its turn, also
/// one of no bytes, and the answer contains the data of a Write in the gap.
#[test]
fn test_read_request_ahead_of_a_gap_is_answered_in_its_turn() {
    for len in [0u8, 8] {
        let mut t = Target::with(CONFIG());
        let request = read_request(1, t.all, TO, len.into());
        let (bytes, at) = stream(&[write(t.all, TO, 8), request]);
        assert_eq!(t.place(&bytes[at[1]..], at[1]), None);
        assert!(t.transmit().is_empty(), "the Write is missing");
        assert_eq!(t.feed_raw(&bytes[..at[1]]), at[1]);
        assert!(t.transmit().is_empty(), "the Read Request has not been delivered");
        let written = memory(&t, 0, len.into());
        assert_eq!(written, vec![0x5a; len.into()]);
        assert_eq!(t.feed_raw(&bytes[at[1]..]), at[2] - at[1]);
        let sent = t.transmit();
        assert_eq!(sent.len(), 1);
        // The payload follows the length and the header of a tagged segment.
        assert_eq!(sent[0][16..16 + usize::from(len)], written);
    }
}

/// RFC 5044 section 4.3: a marker and the header it points to may lie on either side of the place
/// where sequence numbers wrap. Offsets in the stream have 64 bits and do not wrap; the QP finds
/// FPDUs there as anywhere else.
#[test]
fn test_receiver_finds_fpdus_where_sequence_numbers_wrap() {
    let t = Target::with(CONFIG());
    let segments = [write(t.all, TO, 300), write(t.all, TO, 500), write(t.all, TO, 700)];
    let found = |base: u64| {
        let mut bytes = Vec::new();
        for s in &segments {
            let offset = base + bytes.len() as u64;
            markers::insert(&framed(s, true), offset, true, &mut bytes);
        }
        let find = |from: usize| {
            let rest = &bytes[from..];
            t.qp.find_fpdu(StreamPos(base + from as u64), &rest)
        };
        (bytes.clone(), (0..bytes.len()).map(find).collect::<Vec<_>>())
    };
    for before in [4, 12, 100, 400, 508, 512, 900] {
        let wrapped = found((1 << 32) - before);
        assert_eq!(wrapped, found((1 << 20) - before), "{before}");
        assert!(wrapped.1.iter().any(Option::is_some));
    }
}

/// In a message under way, the QP does not write the bytes that have come again, and may write the
/// bytes still to come.
#[test]
fn test_early_send_does_not_overwrite_bytes_already_received() {
    let mut t = Target::with(CONFIG());
    let segments =
        [send(1, 0, false, 40), send(1, 0, false, 8), send(1, 39, false, 1), send(1, 48, true, 8)];
    let (bytes, at) = stream(&segments);
    assert_eq!(t.feed_raw(&bytes[..at[1]]), at[1]);
    t.mem.write(1000, &[7; 40]);
    for i in [1, 2] {
        assert_eq!(t.place(&bytes[at[i]..], at[i]), None);
    }
    assert_eq!(memory(&t, 0, 41), [&[7; 40][..], &[FILL]].concat());
    assert!(t.place(&bytes[at[3]..], at[3]).is_some());
    assert_eq!(memory(&t, 48, 8), [0x5a; 8]);
}

/// A buffer that a message has used belongs to the application, although the queue pair may
/// remember it.
#[test]
fn test_early_send_never_takes_a_used_buffer() {
    for used in 2..=17 {
        let mut t = Target::with(CONFIG());
        for wr_id in 2..used {
            let sges = [Sge { stag: t.all, to: TO, len: BUFFER }];
            t.qp.post_recv(&RecvWr::new(wr_id, &sges)).unwrap();
        }
        let sends = (1..=u32::try_from(used).unwrap() + 2).map(|msn| send(msn, 0, true, 8));
        let (bytes, at) = stream(&sends.collect::<Vec<_>>());
        let used = usize::try_from(used).unwrap();
        assert_eq!(t.feed_raw(&bytes[..at[used]]), at[used]);
        let placed = t.mem.placed();
        for i in [used, used + 1] {
            assert_eq!(t.place(&bytes[at[i]..], at[i]), None, "{used}");
        }
        assert_eq!(t.mem.placed(), placed);
    }
}

#[test]
fn test_receiver_places_nothing_early_without_markers_and_crc() {
    for config in
        [QpConfig { crc: false, ..CONFIG() }, QpConfig { recv_markers: false, ..CONFIG() }]
    {
        let t = Target::with(config);
        let (bytes, at) = stream(&[write(t.all, TO, 100), write(t.all, TO, 600)]);
        assert!(!t.qp.places_early());
        assert_eq!(t.place(&bytes[at[1]..], at[1]), None);
    }
}

/// A marker points to the FPDU around it, or to the FPDU after it; bytes in a payload point to
/// none.
#[test]
fn test_receiver_finds_fpdus_by_markers_alone() {
    let t = Target::with(CONFIG());
    // The payload of the second is full of forged FPDUs with right CRCs.
    let forged = framed(&write(t.all, TO, 24), true);
    let payload = forged.repeat(18);
    let evil = cat(&tagged(Opcode::WRITE, true, t.all, TO), &payload);
    let mixed = [write(t.all, TO, 300), evil, write(t.all, TO, 500), write(t.all, TO, 700)];
    check_found(&t, &mixed);
    // 4 + 2 + 14 + 488 + 4 bytes: the second begins with a marker, and does not begin after the
    // marker.
    let whole = [write(t.all, TO, 488), write(t.all, TO, 900), write(t.all, TO, 500)];
    check_found(&t, &whole);
}

fn check_found(t: &Target, segments: &[Vec<u8>]) {
    let (bytes, at) = stream(segments);
    let end = *at.last().unwrap();
    for from in 1..end {
        for upto in [from + 40, from + 400, from + 1200, end].into_iter().filter(|n| *n <= end) {
            // The first FPDU that has a marker in the segment and begins there.
            let want =
                (from.next_multiple_of(512)..upto.saturating_sub(3)).step_by(512).find_map(|m| {
                    let start = at.iter().copied().rfind(|s| *s <= m)?;
                    (start >= from && start < end).then(|| start - from)
                });
            assert_eq!(t.find(&bytes[from..upto], from), want, "[{from}, {upto})");
        }
    }
}

/// The peer lies: its marker points into a payload, to the forged beginning of an FPDU.
#[test]
fn test_marker_pointing_into_another_fpdu_ends_the_stream_in_its_turn() {
    let mut t = Target::with(CONFIG());
    let all = t.all;
    // From byte 472 on there is a forged FPDU of a Write, with the marker at 512 inside.
    let (mut bytes, _) = stream(&[write(all, TO, 800)]);
    let mut inner = Vec::new();
    markers::insert(&framed(&write(all, TO + 900, 60), true), 472, true, &mut inner);
    bytes[472..472 + inner.len()].copy_from_slice(&inner);
    let end = bytes.len();
    let crc = fpdu::crc_to_wire(fpdu::crc(0, &bytes[..end - 4]));
    bytes[end - 4..].copy_from_slice(&crc);
    assert_eq!(t.find(&bytes[472..], 472), Some(0));
    let fpdu = t.place(&bytes[472..], 472).expect("nothing in it is wrong by itself");
    assert_eq!(memory(&t, 900, 60), [0x5a; 60], "the peer may write there");
    // The bytes before it are the beginning of a longer FPDU.
    assert_eq!(t.feed_raw(&bytes[..472]), 0);
    t.deliver(472, &fpdu);
    let c = t.qp.counters();
    assert_eq!((c.err_marker, c.rx_fpdus, t.qp.state()), (1, 0, ConnectedState::Terminate));
    let sent = t.transmit();
    assert_eq!((sent.len(), &sent[0][20..24]), (1, &[0x20, 3, 0, 0][..]));
    assert_eq!(memory(&t, 0, 100), [FILL; 100], "nothing of the longer one");
}

/// The STag becomes invalid between the two steps: the bytes are placed, and the message is an
/// error in its turn.
#[test]
fn test_early_write_fails_in_its_turn_if_its_stag_was_invalidated() {
    let mut t = Target::with(CONFIG());
    let right = Access::REMOTE_WRITE.with(Access::REMOTE_INVALIDATE);
    let stag = t.mrs.register_for_qp(PD, QPN, ADDR, TO, LEN.into(), right).unwrap().stag;
    let mut gone = send(1, 0, true, 4);
    gone[1] = 0x40 | Opcode::SEND_INV.0;
    gone[2..6].copy_from_slice(&stag.0.to_be_bytes());
    let (bytes, at) = stream(&[gone, write(stag, TO + 500, 8)]);
    let fpdu = t.place(&bytes[at[1]..], at[1]).unwrap();
    assert_eq!(memory(&t, 500, 8), [0x5a; 8]);
    assert_eq!(t.feed_raw(&bytes[..at[1]]), at[1]);
    assert_eq!(completions(&mut t.qp)[0].invalidated, Some(stag));
    t.deliver(at[1], &fpdu);
    let c = t.qp.counters();
    assert_eq!((c.err_stag, c.rx_fpdus, t.qp.state()), (1, 1, ConnectedState::Terminate));
    // After the STag became invalid the QP places nothing more through it.
    assert_eq!(t.place(&bytes[at[1]..], at[1]), None);
}

/// A queue pair that ends between the two steps flushes its receives, and the placed bytes have no
/// meaning.
#[test]
fn test_queue_pair_that_ends_before_early_send_flushes_its_receives() {
    let mut t = Target::with(CONFIG());
    let (bytes, at) = stream(&[send(1, 0, true, 8), send(2, 10, true, 8)]);
    let fpdu = t.place(&bytes[at[1]..], at[1]).unwrap();
    assert_eq!(memory(&t, 10, 8), [0x5a; 8]);
    t.qp.abort();
    let got: Vec<_> = completions(&mut t.qp).iter().map(|c| (c.wr_id, c.len, c.status)).collect();
    assert_eq!(got, [(100, 0, CqeStatus::Flushed), (101, 0, CqeStatus::Flushed)]);
    let before = t.mem.snapshot();
    t.deliver(at[1], &fpdu);
    assert_eq!(t.place(&bytes[at[1]..], at[1]), None);
    assert_eq!(t.mem.snapshot(), before);
    let c = t.qp.counters();
    assert_eq!((c.rx_sends, c.rx_dropped_bytes), (0, u64::from(fpdu.len())));
    assert!(completions(&mut t.qp).is_empty());
}

/// Two messages of one number: the application receives the one that came in order, and the second
/// is an error.
#[test]
fn test_early_send_with_duplicate_number_is_refused_in_its_turn() {
    let mut t = Target::with(CONFIG());
    let (bytes, at) = stream(&[send(1, 0, true, 8), send(1, 0, true, 16)]);
    let fpdu = t.place(&bytes[at[1]..], at[1]).unwrap();
    t.feed_raw(&bytes[..at[1]]);
    assert_eq!(completions(&mut t.qp)[0].len, 8);
    t.deliver(at[1], &fpdu);
    assert_eq!((t.qp.counters().err_msn, t.qp.state()), (1, ConnectedState::Terminate));
    // After delivery the buffer belongs to the application.
    assert_eq!(t.place(&bytes[at[1]..], at[1]), None);
}

/// Responses to two Reads, of which the second comes early: the Reads complete in order.
#[test]
fn test_early_response_of_a_later_read_waits_for_its_turn() {
    let mut t = Target::with(CONFIG());
    t.post(1, SendOp::Read { stag: Stag(77), to: 0 });
    let sges = [Sge { stag: t.all, to: TO + 300, len: 100 }];
    t.qp.post_send(&SendWr {
        op: SendOp::Read { stag: Stag(77), to: 0 },
        ..SendWr::send(2, &sges)
    })
    .unwrap();
    t.transmit();
    let (bytes, at) =
        stream(&[response(t.all, TO, true, 200), response(t.all, TO + 300, true, 100)]);
    let fpdu = t.place(&bytes[at[1]..], at[1]).unwrap();
    assert_eq!(memory(&t, 300, 100), [0x5a; 100]);
    assert!(completions(&mut t.qp).is_empty());
    t.feed_raw(&bytes[..at[1]]);
    t.deliver(at[1], &fpdu);
    let got: Vec<_> = completions(&mut t.qp).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(got, [(1, CqeStatus::Success), (2, CqeStatus::Success)]);
}
