use super::*;
use proptest::prelude::*;

fn plain(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut out = Vec::new();
    fpdu::append(ulpdu, crc, &mut out).unwrap();
    out
}

fn marked(ulpdu: &[u8], offset: u64) -> Vec<u8> {
    let mut out = Vec::new();
    insert(&plain(ulpdu, true), offset, true, &mut out);
    out
}

/// The DDP segment of both annotated dumps of RFC 5044: a Send of 24 zeros.
fn send(msn: u8) -> Vec<u8> {
    let mut u = vec![0; 42];
    (u[0], u[1], u[13]) = (0x41, 0x43, msn);
    u
}

#[test]
fn test_first_fpdu_with_marker_matches_dump_of_figure_5() {
    let b = marked(&send(1), 0);
    assert_eq!(b.len(), 0x34);
    assert_eq!(b[..8], [0, 0, 0, 0, 0x00, 0x2a, 0x41, 0x43]);
    assert_eq!(b[0x10..0x14], [0, 0, 0, 1]);
    assert_eq!(b[0x30..], [0x52, 0x23, 0x99, 0x83]);
}

#[test]
fn test_second_fpdu_with_inner_marker_matches_dump_of_figure_6() {
    // The first FPDU takes 492 bytes with its marker, so the second starts at 0x1ec.
    let b = marked(&send(2), 0x1ec);
    assert_eq!(b.len(), 0x220 - 0x1ec);
    assert_eq!(b[..4], [0x00, 0x2a, 0x41, 0x43]);
    assert_eq!(b[0x200 - 0x1ec..0x204 - 0x1ec], [0, 0, 0, 0x14]);
    assert_eq!(b[0x21c - 0x1ec..], [0x84, 0x92, 0x58, 0x98]);
}

#[test]
fn test_marker_of_figure_4_points_back_over_length_and_ten_bytes() {
    let ulpdu: Vec<u8> = (0..16).collect();
    let b = marked(&ulpdu, 500);
    assert_eq!(b[..2], [0x00, 0x10]);
    assert_eq!(b[2..12], ulpdu[..10]);
    assert_eq!(b[12..16], [0, 0, 0, 0x0c]);
    assert_eq!(b[16..22], ulpdu[10..]);
    assert_eq!(b[22..24], [0, 0]);
    assert_eq!(b.len(), 28);
}

#[test]
fn test_marker_between_fpdus_is_zero_and_in_the_crc_of_the_next() {
    let b = marked(&send(1), 512);
    assert_eq!(b, marked(&send(1), 0), "any multiple of 512 is like the start");
    assert_eq!(b[..4], [0; 4]);
    assert_eq!(fpdu::crc_to_wire(fpdu::crc(0, &b[..b.len() - 4])), b[b.len() - 4..]);
}

#[test]
fn test_marker_right_behind_the_pad_is_in_the_crc_of_this_fpdu() {
    // 48 bytes before the CRC field: length 2, ULPDU 42, pad 0, so the marker falls before the CRC.
    let offset = 512 - 44;
    let b = marked(&send(1), offset);
    assert_eq!(b.len(), 44 + 4 + 4);
    assert_eq!(b[44..48], [0, 0, 0, 44]);
    assert_eq!(fpdu::crc_to_wire(fpdu::crc(0, &b[..48])), b[48..]);
    // If the FPDU begins a word earlier, the marker falls just after the CRC and belongs to the
    // next FPDU.
    let b = marked(&send(1), offset - 4);
    assert_eq!(b, plain(&send(1), true));
}

#[test]
fn test_markers_of_a_long_fpdu_all_point_to_its_header() {
    let ulpdu = vec![7; 2000];
    let b = marked(&ulpdu, 0);
    let at = |n: usize| u16::from_be_bytes([b[512 * n + 2], b[512 * n + 3]]);
    assert_eq!([at(0), at(1), at(2), at(3)], [0, 508, 1020, 1532]);
    for n in 0..4 {
        assert_eq!(b[512 * n..512 * n + 2], [0, 0], "reserved");
    }
}

#[test]
fn test_markers_of_longest_fpdu_point_back_within_16_bits() {
    let ulpdu = vec![7; usize::from(fpdu::MAX_MULPDU)];
    for offset in [0, 4, 256, 508] {
        let b = marked(&ulpdu, offset);
        let u = remove(&b, offset).unwrap();
        assert_eq!(u.marker, Ok(()));
        assert!(b.len() < 65536);
    }
}

#[test]
fn test_wrong_marker_is_reported_with_its_place() {
    let mut b = marked(&[7; 2000], 0);
    b[512 + 3] ^= 4;
    let u = remove(&b, 0).unwrap();
    let e = MarkerError { at: 512, got: 508 ^ 4, want: 508 };
    assert_eq!(u.marker, Err(e));
}

/// Markers begin at 100, 612 and 1124. An FPDU may begin after the first of them, but none begins
/// at it, whatever the second says: then the third marker shows where an FPDU begins.
#[test]
fn test_marker_that_points_at_another_marker_yields_no_fpdu_start() {
    for (second, want) in [(508, 100), (512, 1084), (516, 96)] {
        let mut b = vec![0; 1200];
        for (at, back) in [(100, 200), (612, second), (1124, 40)] {
            b[at..at + MARKER_LEN].copy_from_slice(&marker(back));
        }
        let found = Marked::new(&b[..], 512 - 100).first_start();
        assert_eq!(found, Some(want), "{second} back");
    }
}

#[test]
fn test_reserved_marker_bits_affect_only_the_crc() {
    let good = marked(&[7; 2000], 0);
    let mut b = good.clone();
    (b[512], b[513], b[515]) = (0xff, 0xff, b[515] | 3);
    let (u, v) = (remove(&b, 0).unwrap(), remove(&good, 0).unwrap());
    assert_eq!((u.marker, u.fpdu), (Ok(()), v.fpdu));
    assert_ne!(u.crc, v.crc);
}

#[test]
fn test_marker_removal_returns_none_for_incomplete_fpdu() {
    let b = marked(&send(2), 0x1ec);
    for n in 0..b.len() {
        assert_eq!(remove(&b[..n], 0x1ec), None);
    }
    assert!(remove(&b, 0x1ec).is_some());
}

proptest! {
    #[test]
    fn test_marker_removal_restores_fpdus_that_insert_marked(
        ulpdus in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..1700), 1..6),
        start in 0u64..300,
        crc: bool,
    ) {
        let start = start * 4;
        let (mut stream, mut cuts) = (Vec::new(), vec![0]);
        for u in &ulpdus {
            let before = stream.len();
            insert(&plain(u, crc), start + before as u64, crc, &mut stream);
            let len = fpdu::fpdu_len(u16::try_from(u.len()).unwrap());
            prop_assert_eq!(stream.len() - before, marked_len(len, start + before as u64));
            cuts.push(stream.len());
        }
        // The stream has a marker at every multiple of 512 and nowhere else.
        let mut at = 0;
        for (i, u) in ulpdus.iter().enumerate() {
            prop_assert_eq!(at, cuts[i]);
            let got = remove(&stream[at..], start + at as u64).unwrap();
            prop_assert_eq!(got.marker, Ok(()));
            let want = plain(u, false);
            let body = want.len() - 4;
            prop_assert_eq!(&got.fpdu[..body], &want[..body]);
            if crc {
                prop_assert_eq!(&got.fpdu[body..], &fpdu::crc_to_wire(got.crc));
            }
            at += got.consumed;
        }
        prop_assert_eq!(at, stream.len());
        let first = (512 - start % 512) % 512;
        for m in (first..stream.len() as u64).step_by(512) {
            let m = usize::try_from(m).unwrap();
            let back = usize::from(u16::from_be_bytes([stream[m + 2], stream[m + 3]]));
            let begin = *cuts.iter().rev().find(|c| **c <= m).unwrap();
            if begin == m {
                prop_assert_eq!(&stream[m..m + 4], &[0; 4]);
            } else {
                let leading = (start + begin as u64).is_multiple_of(512);
                prop_assert_eq!(m - back, begin + if leading { 4 } else { 0 });
            }
        }
    }

    #[test]
    fn test_marker_removal_returns_for_any_bytes(
        b in proptest::collection::vec(any::<u8>(), 0..3000),
        offset in 0u64..5000,
    ) {
        if let Some(u) = remove(&b, offset) {
            prop_assert!(u.consumed <= b.len());
        }
    }

    #[test]
    fn test_marked_fpdu_of_the_mulpdu_fits_the_segment(emss in 256u32..65000, offset in 0u64..128) {
        let m = fpdu::mulpdu(emss, true);
        prop_assert!(marked_len(fpdu::fpdu_len(m), offset * 4) <= emss as usize);
    }
}
