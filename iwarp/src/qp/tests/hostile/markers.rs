//! Markers of the peer, right and wrong ones.

use super::*;
use crate::fault::Fault;
use crate::mpa::markers;
use proptest::prelude::*;

/// Position of the peer's first FPDU in its stream: markers are counted from there.
const START: u64 = (1 << 40) + 11;

fn config(crc: bool) -> QpConfig {
    let rx_start = StreamPos(START);
    QpConfig { ird: 2, ord: 2, crc, recv_markers: true, rx_start, ..QpConfig::default() }
}

fn target(crc: bool) -> Target {
    Target::with(config(crc))
}

/// Returns the FPDUs of `segments` from the start of the stream on, with their markers, and where
/// each begins.
fn marked(segments: &[Vec<u8>], crc: bool) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut starts) = (Vec::new(), Vec::new());
    for s in segments {
        starts.push(bytes.len());
        let offset = bytes.len() as u64;
        markers::insert(&framed(s, crc), offset, crc, &mut bytes);
    }
    (bytes, starts)
}

/// Computes the CRC of the FPDU at the end of `bytes`, from `start` on, anew.
fn seal(bytes: &mut [u8], start: usize) {
    let field = bytes.len() - 4;
    let crc = fpdu::crc(0, &bytes[start..field]);
    bytes[field..].copy_from_slice(&fpdu::crc_to_wire(crc));
}

/// Returns Writes of distinct payloads, each to a place of its own.
fn writes(all: Stag, sizes: &[usize]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let (mut segments, mut want) = (Vec::new(), Vec::new());
    for (i, n) in sizes.iter().enumerate() {
        let payload = random_bytes(*n, 77 + i as u64);
        let to = TO + want.len() as u64;
        segments.push(cat(&tagged(Opcode::WRITE, true, all, to), &payload));
        want.extend(payload);
    }
    (segments, want)
}

/// Markers inside the header of an FPDU, before its CRC, between FPDUs, and several in one FPDU,
/// with a first FPDU of every length.
#[test]
fn test_receiver_removes_markers_anywhere_in_an_fpdu() {
    for crc in [false, true] {
        for first in (0..530).step_by(4) {
            let mut t = target(crc);
            let (segments, want) = writes(t.all, &[first, 1, 60]);
            let (bytes, _) = marked(&segments, crc);
            assert_eq!(t.feed_raw(&bytes), bytes.len());
            assert_eq!(t.qp.rx_next(), StreamPos(START + bytes.len() as u64));
            assert_eq!(t.mem.read(1000, want.len()), want);
            assert_eq!((t.qp.counters().rx_fpdus, t.qp.state()), (3, ConnectedState::Rts));
        }
    }
}

#[test]
fn test_receiver_places_nothing_of_incomplete_fpdu_with_markers() {
    for crc in [true, false] {
        let mut t = target(crc);
        let (segments, want) = writes(t.all, &[900]);
        let (bytes, _) = marked(&segments, crc);
        let memory = t.mem.snapshot();
        for n in 0..bytes.len() {
            assert_eq!(t.feed_raw(&bytes[..n]), 0);
            assert_eq!(t.mem.snapshot(), memory);
        }
        // The marker after it belongs to the next FPDU.
        let mut more = bytes.clone();
        more.extend([0; 3]);
        assert_eq!(t.feed_raw(&more), bytes.len());
        assert_eq!(t.mem.read(1000, want.len()), want);
    }
}

/// RFC 5044 section 8, code 3: the Terminate has this code, memory shows no trace, and the QP takes
/// no FPDU after it.
#[test]
fn test_receiver_refuses_marker_not_pointing_to_start_of_its_fpdu() {
    for crc in [true, false] {
        // The marker before the first FPDU, the second marker of an FPDU, the first of an FPDU
        // without a marker before it, and one between two FPDUs.
        for (sizes, marker, wrong) in [
            (&[900usize][..], 0usize, 4u16),
            (&[900], 512, 504),
            (&[900], 512, 0),
            (&[900], 512, 0xfffc),
            (&[100, 900], 512, 508),
            (&[488, 8], 512, 4),
        ] {
            let mut t = target(crc);
            let all = t.all;
            let (segments, _) = writes(all, sizes);
            let (mut bytes, starts) = marked(&segments, crc);
            let last = *starts.last().unwrap();
            assert_eq!(t.feed_raw(&bytes[..last]), last);
            bytes.drain(..last);
            bytes[marker - last + 2..marker - last + 4].copy_from_slice(&wrong.to_be_bytes());
            if crc {
                seal(&mut bytes, 0);
            }
            let memory = t.mem.snapshot();
            bytes.extend([0x5a; 40]);
            assert_eq!(t.feed_raw(&bytes), bytes.len());
            assert_eq!(t.mem.snapshot(), memory, "{sizes:?} {marker}");
            let c = t.qp.counters();
            assert_eq!((c.err_marker, c.err_crc), (1, 0));
            // Layer 2 (LLP), type 0 (MPA), code 3.
            let code = TermCode::new(2, 0, 3);
            let local = QpEvent::Terminated { by: Side::Local, code };
            assert_eq!(events(&mut t.qp).last(), Some(&local));
            let sent = t.transmit();
            // After length (2) and header (18): the code, and no repeated header.
            assert_eq!((sent.len(), &sent[0][20..24]), (1, &[0x20, 3, 0, 0][..]));
        }
    }
}

/// The CRC covers the markers among the bytes. So in an FPDU of any length, with a marker at any
/// place in it or just before its CRC, the field holds the CRC of all bytes but the last four. A
/// marker after the FPDU belongs to the next one, and then the field does not hold that CRC.
#[test]
fn test_precomputed_crc_of_an_fpdu_covers_its_markers() {
    for len in (0..900).step_by(4) {
        let mut t = target(true);
        let (segments, want) = writes(t.all, &[len, 8]);
        let (bytes, starts) = marked(&segments, true);
        let env = QpEnv { mem: &t.mem, mrs: &t.mrs, snapshots_full: false, posted: None };
        let first = &bytes[..starts[1]];
        let known = fpdu::crc(0, &first[..first.len() - 4]);
        assert_eq!(t.qp.handle_digested(&env, first, Some(known)), first.len());
        assert!(t.qp.wants_crc());
        let rest = &bytes[starts[1]..];
        let known = fpdu::crc(0, &rest[..rest.len() - 4]);
        assert_eq!(t.qp.handle_digested(&env, rest, Some(known)), rest.len());
        assert_eq!(t.mem.read(1000, want.len()), want);
        let c = t.qp.counters();
        assert_eq!((c.rx_fpdus, c.err_crc, t.qp.wants_crc()), (2, 0, true));
    }
    // With 488 bytes of payload the FPDU ends where the next marker begins; the stream shows none,
    // a part, or all of that marker.
    for more in [0, 2, 4] {
        let mut t = target(true);
        let (segments, _) = writes(t.all, &[488, 8]);
        let (bytes, starts) = marked(&segments, true);
        assert_eq!(starts[1], 512);
        let known = fpdu::crc(0, &bytes[..508]);
        let env = QpEnv { mem: &t.mem, mrs: &t.mrs, snapshots_full: false, posted: None };
        let crc = if more == 0 { known } else { !known };
        assert_eq!(t.qp.handle_digested(&env, &bytes[..512 + more], Some(crc)), 512);
        assert_eq!((t.qp.counters().err_crc, t.qp.wants_crc()), (0, more == 0));
    }
}

#[test]
fn test_receiver_reports_wrong_crc_before_wrong_marker() {
    let mut t = target(true);
    let (mut bytes, _) = marked(&writes(t.all, &[900]).0, true);
    bytes[515] ^= 4;
    t.feed_raw(&bytes);
    let c = t.qp.counters();
    assert_eq!((c.err_crc, c.err_marker), (1, 0));
}

/// Erratum 1427: only the CRC depends on the reserved half and the two low bits of the pointer.
#[test]
fn test_receiver_counts_reserved_marker_bits_only_in_the_crc() {
    for (reserved, low) in [(0, 1), (0, 2), (0, 3), (1, 0), (0xffff, 3)] {
        let mut t = target(true);
        let (segments, want) = writes(t.all, &[900]);
        let (mut bytes, _) = marked(&segments, true);
        for marker in [0, 512] {
            bytes[marker..marker + 2].copy_from_slice(&u16::to_be_bytes(reserved));
            bytes[marker + 3] |= low;
        }
        // The CRC of a marker without these bits is wrong here.
        let mut other = target(true);
        other.feed_raw(&bytes);
        assert_eq!(other.qp.counters().err_crc, 1);
        seal(&mut bytes, 0);
        t.feed_raw(&bytes);
        assert_eq!((t.qp.state(), t.qp.counters().rx_fpdus), (ConnectedState::Rts, 1));
        assert_eq!(t.mem.read(1000, want.len()), want);
    }
}

/// The FPDU is too long for its last markers to point back to its beginning in 16 bits.
#[test]
fn test_receiver_refuses_fpdu_too_long_for_its_markers_to_point_back() {
    let mut t = target(false);
    let mut segment = write(t.all, TO, 65535 - 14);
    segment.truncate(65535);
    let mut plain = 65535u16.to_be_bytes().to_vec();
    plain.extend(&segment);
    plain.resize(fpdu::fpdu_len(u16::MAX), 0);
    let mut bytes = Vec::new();
    markers::insert(&plain, 0, false, &mut bytes);
    assert_eq!(t.feed_raw(&bytes), bytes.len());
    assert_eq!(t.qp.counters().err_marker, 1);
}

proptest! {
    /// The queue pair and `markers::remove` find the same FPDUs in a stream, in pieces of any size,
    /// or the same fault, wherever a bit is flipped.
    #[test]
    fn test_receiver_reads_markers_as_markers_remove_does(
        sizes in proptest::collection::vec(0usize..700, 1..5),
        crc: bool,
        piece in 1usize..900,
        flip in proptest::option::of((any::<prop::sample::Index>(), 0..8u8)),
        seed: u64,
    ) {
        let mut t = target(crc);
        let mut segments = Vec::new();
        for (i, n) in sizes.iter().enumerate() {
            let payload = random_bytes(*n, i as u64);
            segments.push(cat(&tagged(Opcode::WRITE, true, t.all, TO), &payload));
        }
        let (mut bytes, _) = marked(&segments, crc);
        if let Some((at, bit)) = flip {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        let framing = crate::mpa::decode::Framing { crc, markers: true };
        let mut want = 0;
        let mut fault = None;
        for d in crate::mpa::decode::decode(&bytes, framing) {
            match d.headers() {
                Ok(_) => want += 1,
                Err(e) => {
                    fault = Some(e.fault());
                    break;
                }
            }
        }
        let mut rng = Random::new(&Seed::from_u64(seed));
        let env = QpEnv { mem: &t.mem, mrs: &t.mrs, snapshots_full: false, posted: None };
        let mut at = 0;
        for end in (0..bytes.len()).step_by(piece).chain([bytes.len()]) {
            if end > at {
                at += t.qp.handle_stream(&env, &Pieces::cut(&bytes[at..end], piece, &mut rng));
            }
        }
        let c = t.qp.counters();
        match fault {
            Some(Fault::Crc) => prop_assert_eq!((c.rx_fpdus, c.err_crc), (want, 1)),
            Some(Fault::Marker) => prop_assert_eq!((c.rx_fpdus, c.err_marker), (want, 1)),
            // A header changed without a CRC to detect it may be wrong in other ways too.
            _ if flip.is_some() => prop_assert!(c.rx_fpdus <= want && c.err_crc + c.err_marker == 0),
            _ => prop_assert_eq!((c.rx_fpdus, t.qp.state()), (sizes.len() as u64, ConnectedState::Rts)),
        }
    }
}
