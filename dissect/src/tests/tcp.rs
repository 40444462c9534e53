//! Segments that come again, out of order, or not at all.

use heddle_rpcrdma::v1::{self, Chunks};
use heddle_tcp::Flags;

use super::*;
use crate::testing::{Wire, call, decode, reply};

/// Makes `n` calls, each with a Write and its reply: frames from the fourth on, three for each.
fn calls(n: u32, crc: bool, markers: bool) -> Wire {
    let mut w = Wire::new(crc, markers);
    for xid in 1..=n {
        with_chunks([0, 5, 0], 4, |c| w.v1(0, xid, 1, v1::Body::Msg(c), &call(xid, 6)));
        w.write(1, 5, at(5), &[1; 900]);
        returned(5, 900, |writes| {
            let chunks = Chunks { writes, ..Chunks::NONE };
            w.v1(1, xid, 1, v1::Body::Msg(chunks), &reply(xid, 0));
        });
    }
    w
}

fn without_tcp(items: &[Item]) -> Vec<String> {
    lines(items).into_iter().filter(|l| !l[2..].starts_with("TCP")).collect()
}

#[test]
fn test_decoder_reorders_tcp_segments_and_reports_their_order() {
    let w = calls(3, true, false);
    let plain = lines(&w.decode().0);
    let mut frames = w.frames.clone();
    // The Write comes after its reply, and another Write comes twice.
    frames.swap(5, 6);
    let again = frames[8].clone();
    frames.insert(9, again);
    let (items, summary) = decode(&frames);
    assert_eq!((without_tcp(&items), summary.verdicts), (plain, 0));
    let tcp: Vec<_> = lines(&items).into_iter().filter(|l| l[2..].starts_with("TCP")).collect();
    let write = frames[6].len() - 54;
    assert_eq!(
        tcp,
        [format!("< TCP ahead of {write} bytes"), format!("< TCP {write} bytes again")]
    );
}

#[test]
fn test_decoder_reports_lost_segment_as_gap_without_verdict() {
    for (crc, markers) in [(true, false), (false, false), (true, true), (false, true)] {
        let w = calls(20, crc, markers);
        for lost in 4..w.frames.len() - 1 {
            let mut frames = w.frames.clone();
            let gone = frames.remove(lost).len() - 54;
            let (items, summary) = decode(&frames);
            let shown = lines(&items);
            assert_eq!(summary.verdicts, 0, "frame {lost}: {shown:#?}");
            let said = format!("TCP {gone} bytes are not in the capture");
            assert_eq!(shown.iter().filter(|l| l.contains(&said)).count(), 1, "{shown:#?}");
            // The decoder finds all messages but the lost one; after it, FPDUs begin where segments
            // begin.
            let from = |f: &[u8]| f[26..30].to_vec();
            let behind = frames[lost..].iter().any(|f| from(f) == from(&w.frames[lost]));
            let found = shown.iter().filter(|l| l.contains("FPDUs found again")).count();
            assert_eq!(found, usize::from(behind), "frame {lost}: {shown:#?}");
            assert_eq!(without_tcp(&items).len(), 2 + 60 - 1 + found, "frame {lost}: {shown:#?}");
        }
    }
}

#[test]
fn test_decoder_follows_connection_from_mpa_startup_without_syn() {
    let w = calls(2, true, false);
    let plain = lines(&w.decode().0);
    assert_eq!(lines(&decode(&w.frames[2..]).0), plain);
    assert_eq!(lines(&decode(&w.frames[1..]).0), plain);
    let (items, summary) = decode(&w.frames[4..]);
    assert_eq!((items.len(), summary.not_followed), (0, 6));
    let (items, summary) = decode(&w.frames[3..]);
    assert_eq!((items.len(), summary.not_followed), (0, 7));
}

#[test]
fn test_decoder_reports_truncated_frame_as_gap() {
    let w = calls(10, true, false);
    let mut frames = w.frames.clone();
    frames[5].truncate(96);
    let (items, summary) = decode(&frames);
    assert_eq!(summary.verdicts, 0);
    assert!(lines(&items).iter().any(|l| l.contains("are not in the capture")));
}

#[test]
fn test_decoder_detects_damaged_fpdu_by_crc_and_damaged_marker() {
    let mut w = calls(2, true, false);
    let last = w.frames[5].len() - 1;
    w.frames[5][last] ^= 1;
    assert_eq!(verdicts(&w.decode().0), [Rule::Fpdu]);
    let mut w = calls(2, false, true);
    let marker = 14 + 20 + 20;
    // The first marker of a direction precedes its first FPDU.
    w.frames[4][marker + 3] ^= 4;
    assert_eq!(verdicts(&w.decode().0), [Rule::Fpdu]);
}

#[test]
fn test_decoder_skips_vlan_tags() {
    let w = calls(1, true, false);
    let tagged: Vec<_> =
        w.frames.iter().map(|f| [&f[..12], &[0x81, 0, 0, 5], &f[12..]].concat()).collect();
    assert_eq!(lines(&decode(&tagged).0), lines(&w.decode().0));
}

#[test]
fn test_decoder_starts_new_connection_when_addresses_are_reused() {
    let mut w = calls(1, true, false);
    w.segment(0, Flags::FIN.with(Flags::ACK), &[]);
    w.segment(1, Flags::RST, &[]);
    let again = calls(1, true, false);
    w.frames.extend(again.frames.clone());
    let (items, summary) = w.decode();
    let shown = lines(&items);
    let first = lines(&calls(1, true, false).decode().0);
    // The second connection has the same numbers as the first, but is still another connection.
    assert_eq!(shown[first.len()..first.len() + 2], ["> TCP end", "< TCP reset"]);
    assert_eq!(summary.connections, 2, "{shown:#?}");
}
