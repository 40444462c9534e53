//! Bytes that a queue pair sends, as literals. No test here computes them with the crate's own
//! codes, headers or framing, so a constant that is wrong on both sides of a pair shows.

use super::pair::BASE;
use super::*;
use heddle_types::SendOp;

const SEND: SendOp = SendOp::Send { solicited: false, invalidate: None };

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

fn pair(crc: bool, markers: bool) -> Pair {
    let mut c = PairConfig::default();
    (c.qp.crc, c.qp.send_markers) = (crc, markers);
    Pair::new(c)
}

/// Returns the bytes that side `i` sends now, FPDU by FPDU.
fn sent(p: &mut Pair, i: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let at = p.nodes[i].sent.len();
        if p.transmit(i, 1) == 0 {
            return all;
        }
        all.push(p.nodes[i].sent[at..].to_vec());
    }
}

/// Compares the whole first FPDU of a stream with markers, and the differing parts of the second
/// (RFC 5044 section 4.4, figures 5 and 6).
#[test]
fn test_first_two_fpdus_with_markers_match_dumps_of_rfc_5044() {
    let mut p = pair(true, true);
    p.a().write(0, &[0; 24]);
    let zeros = [p.nodes[0].sge(0, 24)];
    p.send(0, 1, SEND, zeros);
    let want = "00000000 002a 4143 00000000 00000000 00000001 00000000";
    let want = [bytes_of(want), vec![0; 24], bytes_of("52239983")].concat();
    assert_eq!(sent(&mut p, 0), [want]);
    // A first FPDU of 492 bytes, with its marker: 4 + 2 + 18 + 464 + 4.
    let mut p = pair(true, true);
    p.a().write(0, &[0; 464]);
    let (first, second) = ([p.nodes[0].sge(0, 464)], [p.nodes[0].sge(0, 24)]);
    p.send(0, 1, SEND, first);
    p.send(0, 2, SEND, second);
    let fpdus = sent(&mut p, 0);
    assert_eq!(fpdus[0].len(), 492);
    // The marker is at byte 512 of the stream: 20 bytes after the length field.
    let head = bytes_of("002a 4143 00000000 00000000 00000002 00000000 00000014");
    assert_eq!(fpdus[1], [head, vec![0; 24], bytes_of("84925898")].concat());
}

/// Compares every kind of message in one segment, byte by byte; another implementation computed the
/// CRC.
#[test]
fn test_every_kind_of_message_matches_expected_bytes() {
    let mut p = pair(true, false);
    p.a().write(0, b"hello");
    p.b().write(40, b"world");
    let (src, sink) = ([p.nodes[0].sge(0, 5)], [p.nodes[0].sge(16, 5)]);
    let (own, stag) = (p.nodes[0].stag, p.nodes[1].stag);
    let inv = Some(Stag(0x0506_0708));
    let hello = "68656c6c6f";
    let mut want = Vec::new();
    for (op, data, segment) in [
        (SEND, src, format!("4143 00000000 00000000 00000001 00000000 {hello}")),
        (
            SendOp::Send { solicited: false, invalidate: inv },
            src,
            format!("4144 05060708 00000000 00000002 00000000 {hello}"),
        ),
        (
            SendOp::Send { solicited: true, invalidate: None },
            src,
            format!("4145 00000000 00000000 00000003 00000000 {hello}"),
        ),
        (
            SendOp::Send { solicited: true, invalidate: inv },
            src,
            format!("4146 05060708 00000000 00000004 00000000 {hello}"),
        ),
        (
            SendOp::Write { stag, to: 0x0102_0304_0506_0708 },
            src,
            format!("c140 {:08x} 0102030405060708 {hello}", stag.0),
        ),
        (
            SendOp::Read { stag, to: BASE + 40 },
            sink,
            format!(
                "4141 00000000 00000001 00000001 00000000 \
                 {:08x} {:016x} 00000005 {:08x} {:016x}",
                own.0,
                BASE + 16,
                stag.0,
                BASE + 40
            ),
        ),
    ] {
        p.send(0, 1, op, data);
        want.push(framed(&bytes_of(&segment)));
    }
    assert_eq!(sent(&mut p, 0), want);
    // The answer to the Read, from the other side.
    let before: usize = want[..5].iter().map(Vec::len).sum();
    p.nodes[1].inbox.drain(..before);
    p.deliver(1, usize::MAX);
    let answer = format!("c142 {:08x} {:016x} 776f726c64", own.0, BASE + 16);
    assert_eq!(sent(&mut p, 1), [framed(&bytes_of(&answer))]);
}

/// Returns length, ULPDU, pad of zeros to a whole word, CRC-32C with its least significant byte
/// first.
fn framed(ulpdu: &[u8]) -> Vec<u8> {
    let mut v = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    v.extend(ulpdu);
    while v.len() % 4 != 0 {
        v.push(0);
    }
    let crc = crc32c::crc32c(&v);
    v.extend(crc.to_le_bytes());
    v
}

/// Without CRCs the FPDU still has the field, after a pad of zeros.
#[test]
fn test_fpdu_keeps_crc_field_when_crc_is_off() {
    for len in 0..5 {
        let mut p = pair(false, false);
        p.a().write(0, b"hello");
        let src = [p.nodes[0].sge(0, len)];
        p.send(0, 1, SEND, src);
        let fpdu = sent(&mut p, 0).remove(0);
        let ulpdu = 18 + len;
        let pad = [0, 3, 2, 1, 0][len];
        assert_eq!((2 + ulpdu + pad) % 4, 0);
        assert_eq!(fpdu.len(), 2 + ulpdu + pad + 4, "{len}");
        assert_eq!(usize::from(fpdu[1]), ulpdu);
        assert!(fpdu[2 + ulpdu..2 + ulpdu + pad].iter().all(|b| *b == 0));
    }
}

/// No ULPDU is larger than 64768 bytes, whatever a segment would hold, nor than the MULPDU.
#[test]
fn test_sender_keeps_every_ulpdu_within_its_limits() {
    for (mulpdu, most) in [(u16::MAX, 64_768), (64_769, 64_768), (64_768, 64_768), (1442, 1442)] {
        for op in [SEND, SendOp::Write { stag: Stag(1), to: 0 }] {
            let mut p = Pair::new(PairConfig { mulpdu, size: 1 << 18, ..PairConfig::default() });
            let src = [p.nodes[0].sge(0, 200_000)];
            p.send(0, 1, op, src);
            let fpdus = sent(&mut p, 0);
            let len = |f: &[u8]| usize::from(u16::from_be_bytes([f[0], f[1]]));
            assert!(fpdus.len() > 3);
            assert!(fpdus[..fpdus.len() - 1].iter().all(|f| len(f) == most), "{mulpdu}");
            assert!(len(&fpdus[fpdus.len() - 1]) <= most);
        }
    }
}

/// With CRC off the FPDU keeps the field, and the sender leaves it zero, whatever form the FPDU
/// has: in its head, bytes of its own, memory of the application, a snapshot for a Read.
#[test]
fn test_sender_zeroes_crc_field_when_crc_is_off() {
    let mut p = pair(false, false);
    let (few, many, stag) = ([p.nodes[0].sge(0, 8)], [p.nodes[0].sge(0, 100)], p.nodes[1].stag);
    p.recv(1, 1, [p.nodes[1].sge(0, 100)]);
    p.recv(1, 2, [p.nodes[1].sge(0, 100)]);
    p.a().write(0, &[0x5a; 100]);
    p.b().write(1000, &[0x5a; 100]);
    p.send(0, 1, SEND, few);
    p.nodes[0].qp.post_send(&SendWr::send_inline(2, &[0x5a; 64])).unwrap();
    p.send(0, 3, SendOp::Write { stag, to: BASE + 2000 }, many);
    p.send(0, 4, SendOp::Read { stag, to: BASE + 1000 }, many);
    let mut all = sent(&mut p, 0);
    p.deliver(1, usize::MAX);
    all.extend(sent(&mut p, 1));
    // Length and header, payload, pad.
    let lens =
        [20 + 8, 20 + 64, 16 + 100, 20 + 28, 16 + 100].map(|n: usize| n.next_multiple_of(4) + 4);
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), lens);
    for f in &all {
        assert_eq!(f[f.len() - 4..], [0; 4], "{f:02x?}");
    }
}
