//! FPDUs in TCP segments: their sizes, and the rule that both begin at the same byte (RFC 5044
//! sections 3, 4.5 and 5.1). The numbers are those of the frames that the RNIC sends.

#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "small numbers of a test")]

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::sim::{LinkConfig, PD, Pair, TO_BASE};
use heddle_iwarp::QpConfig;
use heddle_types::{Access, SendWr, Sge, Stag};

const MEMORY: usize = 1 << 18;

/// A TCP segment with payload, and the most payload that such a segment can have.
struct Segment {
    emss: usize,
    payload: Vec<u8>,
}

fn segment(mtu: usize, frame: &[u8]) -> Option<Segment> {
    let (ip, total) = (usize::from(frame[14] & 0x0f) * 4, usize::from(be16(&frame[16..])));
    let tcp = usize::from(frame[14 + ip + 12] >> 4) * 4;
    let payload = frame[14 + ip + tcp..14 + total].to_vec();
    (!payload.is_empty()).then_some(Segment { emss: mtu - ip - tcp, payload })
}

fn be16(b: &[u8]) -> u16 {
    u16::from_be_bytes([b[0], b[1]])
}

/// Returns the bytes of an FPDU without markers whose ULPDU has `len` bytes.
fn fpdu_len(len: usize) -> usize {
    (2 + len).next_multiple_of(4) + 4
}

/// Returns, in order, the segments of host 0's Writes of `sizes`; with `markers` none of the Writes
/// arrives.
fn written(mtu: u16, markers: bool, sizes: &[usize]) -> Vec<Segment> {
    let mut p = Pair::new(1, LinkConfig { mtu, ..LinkConfig::default() }, MEMORY);
    let qp = QpConfig { pd: PD, send_markers: markers, ..QpConfig::default() };
    let conns = p.connect(&qp);
    let rights = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);
    let stags = [0, 1].map(|host| p.register(host, 0, MEMORY, rights).stag);
    p.hosts[0].mem.write(0, &crate::sim::pattern(7, MEMORY));
    let seen = Rc::new(RefCell::new(Vec::new()));
    let tapped = seen.clone();
    p.tap = Some(Box::new(move |side, frame| {
        if side == 0
            && let Some(s) = segment(usize::from(mtu), frame)
        {
            tapped.borrow_mut().push(s);
        }
    }));
    p.cut[0] = markers;
    for (i, len) in sizes.iter().enumerate() {
        let sges = [Sge { stag: stags[0], to: TO_BASE, len: *len as u32 }];
        let wr = SendWr::write(i as u64, &sges, stags[1], TO_BASE);
        p.hosts[0].rnic.post_send(conns[0], &wr).unwrap();
    }
    if markers {
        p.step();
    } else {
        p.run(Duration::from_secs(10), |p| p.hosts[0].completions.len() == sizes.len());
        assert_eq!(p.hosts[0].rnic.counters().tx_retransmits, 0);
        let errors = &p.hosts[1].rnic.qp_counters();
        assert_eq!((errors.err_crc, errors.err_short), (0, 0));
    }
    drop(p);
    Rc::into_inner(seen).unwrap().into_inner()
}

/// A large Write: each segment is one FPDU, as large as the segment allows with a length that is
/// a multiple of 4 bytes: the ULPDU has EMSS - 6 - EMSS mod 4 bytes.
#[test]
fn test_each_segment_of_bulk_data_is_one_full_fpdu() {
    for mtu in [576, 1280, 1499, 1500, 1501, 9000] {
        let len = 100_000;
        let segments = written(mtu, false, &[len]);
        let mulpdu = |s: &Segment| s.emss - 6 - s.emss % 4;
        for (i, s) in segments.iter().enumerate() {
            let ulpdu = usize::from(be16(&s.payload));
            assert_eq!(s.payload.len(), fpdu_len(ulpdu), "one FPDU and nothing else");
            assert_eq!(s.payload[2] & 0x40 != 0, i == segments.len() - 1, "the last flag");
            if i < segments.len() - 1 {
                assert_eq!(ulpdu, mulpdu(s), "MTU {mtu}");
                assert!(s.payload.len() <= s.emss && s.payload.len() > s.emss - 4);
            }
        }
        let payload: usize = segments.iter().map(|s| usize::from(be16(&s.payload)) - 14).sum();
        assert_eq!(payload, len);
        assert_eq!(segments.len(), len.div_ceil(mulpdu(&segments[0]) - 14));
    }
}

/// With markers, a ULPDU has 4 bytes less for each begun 512 bytes of the segment. Markers stand at
/// every 512th byte from the first FPDU on, including its first byte.
#[test]
fn test_each_segment_of_bulk_data_with_markers_is_one_full_fpdu() {
    for mtu in [576, 1280, 1500, 1501, 9000] {
        let segments = written(mtu, true, &[100_000]);
        assert!(segments.len() > 1);
        let mut at = 0;
        for s in &segments {
            let (mut plain, mut found) = (Vec::new(), 0);
            for byte in &s.payload {
                if at % 512 >= 4 {
                    plain.push(*byte);
                } else {
                    found += 1;
                }
                at += 1;
            }
            let ulpdu = usize::from(be16(&plain));
            assert_eq!(plain.len(), fpdu_len(ulpdu), "one FPDU and nothing else");
            assert_eq!(ulpdu, s.emss - 6 - 4 * s.emss.div_ceil(512) - s.emss % 4, "MTU {mtu}");
            assert!(s.payload.len() <= s.emss);
            assert_eq!(found % 4, 0, "no marker is cut in two");
        }
        assert_eq!(segments[0].payload[..4], [0; 4], "a marker before anything else");
    }
}

/// Small FPDUs share segments, and each is whole.
#[test]
fn test_small_fpdus_share_segments_and_are_not_cut() {
    let segments = written(1500, false, &[100; 100]);
    let mut counts = Vec::new();
    for s in &segments {
        let (mut at, mut n) = (0, 0);
        while at < s.payload.len() {
            at += fpdu_len(usize::from(be16(&s.payload[at..])));
            n += 1;
        }
        assert_eq!(at, s.payload.len(), "ends with an FPDU");
        counts.push(n);
    }
    assert_eq!(counts.iter().sum::<usize>(), 100);
    assert_eq!(counts.iter().max(), Some(&12), "as many as fit, {counts:?}");
}

/// If segments are tiny, FPDUs are not: a ULPDU of 128 bytes leaves in pieces.
#[test]
fn test_ulpdus_are_no_shorter_than_128_however_small_the_segments() {
    let segments = written(128, false, &[5000]);
    assert!(segments.iter().all(|s| s.payload.len() <= s.emss && s.emss < 100));
    let stream: Vec<u8> = segments.into_iter().flat_map(|s| s.payload).collect();
    let (mut at, mut ulpdus) = (0, Vec::new());
    while at < stream.len() {
        ulpdus.push(usize::from(be16(&stream[at..])));
        at += fpdu_len(ulpdus[ulpdus.len() - 1]);
    }
    assert_eq!(at, stream.len());
    assert!(ulpdus[..ulpdus.len() - 1].iter().all(|n| *n == 128), "{ulpdus:?}");
}

/// The window that a receiver offers from the start holds many segments.
#[test]
fn test_receive_window_holds_many_segments() {
    let mut p = Pair::new(1, LinkConfig::default(), MEMORY);
    let seen = Rc::new(RefCell::new(([None; 2], [0; 2])));
    let tapped = seen.clone();
    p.tap = Some(Box::new(move |side, frame| {
        let ip = usize::from(frame[14] & 0x0f) * 4;
        if frame[12..14] != [8, 0] || frame[14 + 9] != 6 {
            return;
        }
        let (tcp, mut seen) = (&frame[14 + ip..], tapped.borrow_mut());
        let window = usize::from(be16(&tcp[14..]));
        if tcp[13] & 0x02 == 0 {
            seen.1[side] = window << seen.0[side].unwrap_or(0);
        } else {
            // Window scale option: kind 3, length 3, shift.
            let options = &tcp[20..usize::from(tcp[12] >> 4) * 4];
            seen.0[side] = options.windows(3).find(|w| w[..2] == [3, 3]).map(|w| w[2]);
        }
    }));
    let conns = p.connect(&QpConfig { pd: PD, ..QpConfig::default() });
    // Send one message each way, so that both hosts have offered their windows.
    for (host, conn) in conns.into_iter().enumerate() {
        p.hosts[host].rnic.post_send(conn, &SendWr::write(1, &[], Stag(1), 0)).unwrap();
    }
    p.run(Duration::from_secs(1), |p| p.hosts.iter().all(|h| h.completions.len() == 1));
    let (scales, windows) = *seen.borrow();
    assert!(scales.iter().all(Option::is_some), "{scales:?}");
    assert!(windows.iter().all(|w| *w >= 256 * 1460), "{windows:?}");
}
