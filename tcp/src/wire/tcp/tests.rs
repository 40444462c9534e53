use core::net::Ipv4Addr;
use core::time::Duration;

use heddle_base::{StreamPos, Sum};
use proptest::prelude::*;
use smoltcp::wire::TcpTimestampRepr;
use smoltcp::wire::{IpAddress, TcpControl, TcpOption, TcpPacket, TcpRepr, TcpSeqNumber};

use super::*;
use crate::wire::ipv4::pseudo_header;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Returns header and `payload` as one segment from A to B with its checksum.
fn build(src: u16, dst: u16, seg: &TxSegment, sack: &SackBlocks, payload: &[u8]) -> Vec<u8> {
    let mut out = ArrayVec::<u8, 128>::new();
    out.try_extend_from_slice(&[0; HEADER_LEN]).unwrap();
    emit_options(seg, sack, &mut out);
    let len = out.len();
    let fixed = out.first_chunk_mut().unwrap();
    emit_ports(src, dst, fixed);
    emit_fixed(seg, len, 0, fixed);
    let mut out = out.to_vec();
    out.extend(payload);
    let sum = pseudo_header(A, B, u16::try_from(out.len()).unwrap()).plus(Sum::of(&out));
    out[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.complement().to_be_bytes());
    out
}

fn blocks(pairs: &[(u32, u32)]) -> SackBlocks {
    let mut blocks = SackBlocks::default();
    for &(start, end) in pairs {
        blocks.push(SackBlock { start: SeqNumber(start), end: SeqNumber(end) });
    }
    blocks
}

fn any_tx() -> impl Strategy<Value = (TxSegment, SackBlocks)> {
    let options = (
        any::<Option<u16>>(),
        any::<Option<u8>>(),
        any::<Option<(u32, u32)>>(),
        any::<(u32, u32, u16, u8)>(),
        any::<bool>(),
        any::<u16>(),
        proptest::collection::vec(any::<(u32, u32)>(), 0..=4),
    );
    options.prop_map(
        |(mss, window_scale, ts, (seq, ack, window, flags), permitted, told, mut pairs)| {
            let syn = flags & 2 != 0;
            pairs.truncate(if syn { 0 } else { 4 - usize::from(ts.is_some()) });
            let sack = blocks(&pairs);
            let seg = TxSegment {
                seq: SeqNumber(seq),
                ack: SeqNumber(ack),
                flags: Flags(flags.into()),
                window,
                mss: mss.filter(|_| syn),
                window_scale: window_scale.filter(|_| syn),
                sack_permitted: permitted && syn,
                timestamps: ts.map(|(val, ecr)| Timestamps { val, ecr }),
                sack: sack.count(),
                counts: None,
                // Without blocks there is room.
                user_timeout: UserTimeout::from_bits(told).filter(|_| sack.is_empty()),
                pos: StreamPos::START,
                len: 0,
                retransmit: false,
                ect: false,
            };
            (seg, sack)
        },
    )
}

proptest! {
    #[test]
    fn test_roundtrip_and_smoltcp_reads_it(
        (seg, sack) in any_tx(), src: u16, dst: u16,
        payload in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let b = build(src, dst, &seg, &sack, &payload);
        let h = TcpHeader::parse(&b, b.len()).unwrap();
        prop_assert_eq!((h.src_port, h.dst_port), (src, dst));
        prop_assert_eq!(h.header_len, HEADER_LEN + options_len(&seg));
        prop_assert_eq!(h.segment, Segment {
            seq: seg.seq, ack: seg.ack, flags: seg.flags, window: seg.window,
            len: u32::try_from(payload.len()).unwrap(),
            mss: seg.mss, window_scale: seg.window_scale, sack_permitted: seg.sack_permitted,
            timestamps: seg.timestamps, ecn: Codepoint::NOT_ECT,
        });
        prop_assert_eq!(h.has_sack, !sack.is_empty());
        prop_assert_eq!(sack_blocks(&b), sack);
        let p = TcpPacket::new_unchecked(&b[..]);
        prop_assert!(p.verify_checksum(&IpAddress::Ipv4(A), &IpAddress::Ipv4(B)));
        prop_assert!(p.check_len().is_ok());
        prop_assert_eq!((p.src_port(), p.dst_port()), (src, dst));
        prop_assert_eq!(p.seq_number(), TcpSeqNumber(seg.seq.0.cast_signed()));
        prop_assert_eq!(p.window_len(), seg.window);
        prop_assert_eq!(p.payload(), &payload[..]);
        let mut options = p.options();
        let mut seen = (None, None, None, false);
        let mut read = [None; 3];
        while !options.is_empty() {
            let (rest, o) = TcpOption::parse(options).unwrap();
            match o {
                TcpOption::MaxSegmentSize(v) => seen.0 = Some(v),
                TcpOption::WindowScale(v) => seen.1 = Some(v),
                TcpOption::TimeStamp { tsval, tsecr } => {
                    seen.2 = Some(Timestamps { val: tsval, ecr: tsecr });
                }
                TcpOption::SackPermitted => seen.3 = true,
                TcpOption::SackRange(ranges) => read = ranges,
                _ => {}
            }
            options = rest;
        }
        prop_assert_eq!(seen, (seg.mss, seg.window_scale, seg.timestamps, seg.sack_permitted));
        // smoltcp reads the first three blocks.
        let sent = sack.as_slice().iter().map(|b| (b.start.0, b.end.0));
        prop_assert!(read.into_iter().flatten().eq(sent.take(3)));
    }

    #[test]
    fn test_reads_what_smoltcp_writes(
        seq: i32, ack: Option<i32>, window: u16, mss: Option<u16>, ws in proptest::option::of(0u8..15),
        sack: bool, ts: Option<(u32, u32)>, syn: bool, n in 0usize..64,
    ) {
        let payload = vec![7; n];
        let repr = TcpRepr {
            src_port: 1, dst_port: 2,
            control: if syn { TcpControl::Syn } else { TcpControl::Psh },
            seq_number: TcpSeqNumber(seq), ack_number: ack.map(TcpSeqNumber),
            window_len: window, window_scale: ws.filter(|_| syn), max_seg_size: mss.filter(|_| syn),
            sack_permitted: sack && syn, sack_ranges: [None; 3],
            timestamp: ts.map(|(v, e)| TcpTimestampRepr::new(v, e)),
            payload: &payload,
        };
        let mut b = vec![0; repr.buffer_len()];
        repr.emit(&mut TcpPacket::new_unchecked(&mut b[..]), &A.into(), &B.into(), &Default::default());
        let sum = pseudo_header(A, B, u16::try_from(b.len()).unwrap()).plus(Sum::of(&b));
        prop_assert!(sum.is_valid());
        let h = TcpHeader::parse(&b, b.len()).unwrap();
        prop_assert_eq!(h.segment.seq.0.cast_signed(), seq);
        prop_assert_eq!(h.segment.mss, repr.max_seg_size);
        prop_assert_eq!(h.segment.window_scale, repr.window_scale);
        prop_assert_eq!(h.segment.sack_permitted, repr.sack_permitted);
        prop_assert_eq!(h.segment.timestamps, ts.map(|(val, ecr)| Timestamps { val, ecr }));
        prop_assert_eq!(h.segment.len as usize, n);
        prop_assert_eq!(h.segment.flags.has(Flags::ACK), ack.is_some());
    }

    #[test]
    fn test_any_bytes_do_not_panic(b in proptest::collection::vec(any::<u8>(), 0..80), more in 0usize..80) {
        if let Ok(h) = TcpHeader::parse(&b, b.len() + more) {
            prop_assert!(h.header_len <= b.len());
            prop_assert!(h.has_sack || sack_blocks(&b).is_empty() || h.segment.flags.has(Flags::SYN));
            prop_assert_eq!(h.header_len + h.segment.len as usize, b.len() + more);
        }
    }
}

/// Returns a header with these options (padded to words) and flags.
fn with_options(flags: Flags, options: &[u8]) -> Vec<u8> {
    let mut b = vec![0; HEADER_LEN];
    b.extend(options);
    b.resize(HEADER_LEN + options.len().next_multiple_of(4), 0);
    let words = u16::try_from(b.len() / 4).unwrap();
    b[12..14].copy_from_slice(&(words << 12 | flags.0).to_be_bytes());
    b
}

fn parse(flags: Flags, options: &[u8]) -> Result<Segment, Malformed> {
    let b = with_options(flags, options);
    TcpHeader::parse(&b, b.len()).map(|h| h.segment)
}

#[test]
fn test_tcp_syn_bytes_match_reference() {
    let seg = TxSegment {
        seq: SeqNumber(0x0102_0304),
        flags: Flags::SYN,
        window: 0xfff0,
        mss: Some(1460),
        window_scale: Some(7),
        timestamps: Some(Timestamps { val: 0x0a0b_0c0d, ecr: 0 }),
        ..TxSegment::default()
    };
    assert_eq!(
        build(0x1234, 4791, &seg, &SackBlocks::default(), b"")[..],
        *b"\x12\x34\x12\xb7\x01\x02\x03\x04\x00\x00\x00\x00\xa0\x02\xff\xf0\xf8\x04\x00\x00\
           \x02\x04\x05\xb4\x01\x03\x03\x07\x01\x01\x08\x0a\x0a\x0b\x0c\x0d\x00\x00\x00\x00"
    );
}

/// The form that nearly every stack sends has SACK-permitted in place of the padding of the
/// timestamps.
#[test]
fn test_tcp_sack_option_bytes_match_reference() {
    let ts = Some(Timestamps { val: 1, ecr: 2 });
    let sack = blocks(&[(5, 0x0102_0304)]);
    let options = |seg: &TxSegment| build(1, 2, seg, &sack, b"")[HEADER_LEN..].to_vec();
    let syn = TxSegment { flags: Flags::SYN, sack_permitted: true, ..TxSegment::default() };
    assert_eq!(options(&syn), [1, 1, 4, 2]);
    let syn = TxSegment { timestamps: ts, ..syn };
    assert_eq!(options(&syn), [4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    let ack = TxSegment { flags: Flags::ACK, timestamps: ts, sack: 1, ..TxSegment::default() };
    assert_eq!(
        options(&ack),
        [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 5, 10, 0, 0, 0, 5, 1, 2, 3, 4]
    );
}

/// RFC 9768 section 3.2.3, figure 4 and table 5.
#[test]
fn test_accecn_option_bytes_match_reference() {
    let ts = Some(Timestamps { val: 1, ecr: 2 });
    let option = |reversed, len| {
        let fields = [0x01_0203, 0x04_0506, 0x07_0809];
        let counts = Some(ByteCounts { reversed, fields, len });
        let seg = TxSegment { flags: Flags::ACK, timestamps: ts, counts, ..TxSegment::default() };
        let b = build(1, 2, &seg, &SackBlocks::NONE, b"");
        assert!(TcpHeader::parse(&b, b.len()).unwrap().has_rare);
        assert_eq!(rare_options(&b).counts.map(|c| (c.reversed, c.len)), Some((reversed, len)));
        assert_eq!(b[..HEADER_LEN + 12].len() + options_len(&seg) - 12, b.len());
        b[HEADER_LEN + 12..].to_vec()
    };
    assert_eq!(option(false, 3), [1, 172, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(option(true, 3), [1, 174, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(option(false, 2), [172, 8, 1, 2, 3, 4, 5, 6]);
    assert_eq!(option(true, 1), [1, 1, 1, 174, 5, 1, 2, 3]);
    assert_eq!(option(false, 0), [1, 1, 172, 2]);
}

#[test]
fn test_accecn_option_of_any_length_has_its_whole_fields() {
    for len in 2..=40u8 {
        let mut option = vec![174, len];
        option.extend(1..=len - 2);
        let b = with_options(Flags::ACK, &option);
        assert!(TcpHeader::parse(&b, b.len()).unwrap().has_rare);
        let counts = rare_options(&b).counts.unwrap();
        assert_eq!((counts.reversed, counts.len), (true, ((len - 2) / 3).min(3)), "{len}");
        assert_eq!(counts.ect_1(), (len >= 5).then_some(0x01_0203));
        assert_eq!(counts.ce(), (len >= 8).then_some(0x04_0506));
        assert_eq!(counts.ect_0(), (len >= 11).then_some(0x07_0809));
    }
}

#[test]
fn test_accecn_option_on_a_syn_is_ignored() {
    for (flags, counts) in [(Flags::SYN, false), (Flags::SYN.with(Flags::ACK), true)] {
        let b = with_options(flags, &[172, 5, 0, 0, 1]);
        assert_eq!(TcpHeader::parse(&b, b.len()).unwrap().has_rare, counts);
    }
}

/// All nine control bits lie where the header has them, and the reserved bits do not count.
#[test]
fn test_control_bits_of_both_bytes() {
    let mut b = with_options(Flags(0x155), &[]);
    assert_eq!(b[12..14], [0x51, 0x55]);
    b[12] |= 0x0e;
    assert_eq!(TcpHeader::parse(&b, b.len()).unwrap().segment.flags, Flags(0x155));
}

#[test]
fn test_sack_counts_in_whole_blocks_and_not_on_a_syn() {
    let one = [5, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    let read = |options: &[u8]| sack_blocks(&with_options(Flags::ACK, options));
    assert_eq!(read(&one), blocks(&[(1, 2)]));
    let has_sack = |flags| {
        let b = with_options(flags, &one);
        TcpHeader::parse(&b, b.len()).unwrap().has_sack
    };
    assert!(has_sack(Flags::ACK) && !has_sack(Flags::SYN));
    for len in [3, 9, 11] {
        let mut bad = one.to_vec();
        bad.push(0);
        bad[1] = len;
        bad.truncate(usize::from(len));
        assert!(read(&bad).is_empty(), "{len}");
    }
}

#[test]
fn test_unknown_tcp_options_are_skipped() {
    let s = parse(Flags::SYN, &[254, 4, 1, 2, 30, 2, 2, 4, 5, 0xb4]).unwrap();
    assert_eq!(s.mss, Some(1460));
}

#[test]
fn test_options_off_word_boundaries_and_on_any_segment() {
    let ts = [1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    for flags in [Flags::ACK, Flags::SYN, Flags::RST, Flags::FIN.with(Flags::ACK)] {
        assert_eq!(parse(flags, &ts).unwrap().timestamps, Some(Timestamps { val: 1, ecr: 2 }));
    }
}

proptest! {
    /// RFC 9293 MUST-69: we send no end-of-list option, and no byte of the header lies beyond the
    /// options. Padding consists of no-operations in front of the options.
    #[test]
    fn test_options_fill_their_words((seg, sack) in any_tx()) {
        let b = build(1, 2, &seg, &sack, b"");
        prop_assert_eq!(b.len() % 4, 0);
        let mut options = &b[HEADER_LEN..];
        while let [first, rest @ ..] = options {
            prop_assert!(*first != kind::END, "{:02x?}", b);
            options = match first {
                &kind::NOP => rest,
                _ => options.get(usize::from(rest[0])..).expect("an option goes beyond the header"),
            };
        }
    }
}

#[test]
fn test_end_of_list_option_ends_the_options() {
    assert_eq!(parse(Flags::SYN, &[0, 2, 4, 5, 0xb4]).unwrap().mss, None);
    assert!(parse(Flags::SYN, &[0, 9, 0, 0]).is_ok());
}

#[test]
fn test_impossible_option_lengths_are_malformed() {
    for bad in [&[2, 0, 0, 0][..], &[2, 1, 0, 0], &[2, 5, 0, 0], &[1, 1, 1, 8], &[8, 255, 0, 0]] {
        assert_eq!(parse(Flags::SYN, bad), Err(Malformed::Options), "{bad:?}");
    }
}

#[test]
fn test_known_options_with_a_wrong_length_are_ignored() {
    let s = parse(Flags::SYN, &[2, 3, 5, 3, 4, 1, 1, 4, 3, 0, 8, 4, 0, 0]).unwrap();
    assert_eq!(s, Segment { flags: Flags::SYN, ..Segment::default() });
}

#[test]
fn test_syn_options_count_on_a_syn_only() {
    let s = parse(Flags::ACK, &[2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2, 1, 1]).unwrap();
    assert_eq!((s.mss, s.window_scale, s.sack_permitted), (None, None, false));
}

#[test]
fn test_data_offset_at_its_bounds() {
    let mut b = [0; 24];
    for (words, want) in
        [(4, Err(Malformed::Header)), (5, Ok(4)), (6, Ok(0)), (7, Err(Malformed::Header))]
    {
        b[12] = words << 4;
        assert_eq!(TcpHeader::parse(&b, 24).map(|h| h.segment.len), want);
    }
    b[12] = 6 << 4;
    assert_eq!(TcpHeader::parse(&b[..20], 24), Err(Malformed::Split));
    assert_eq!(TcpHeader::parse(&b[..19], 19), Err(Malformed::Truncated));
}

/// RFC 5482 section 3.3, figure 1.
#[test]
fn test_user_timeout_option_bytes_match_reference() {
    for (seconds, bytes) in [
        (0, [28, 4, 0, 1]),
        (120, [28, 4, 0, 120]),
        (32_767, [28, 4, 0x7f, 0xff]),
        // 546 minutes and 8 seconds.
        (32_768, [28, 4, 0x82, 0x23]),
        (32_767 * 60, [28, 4, 0xff, 0xff]),
        (u64::MAX, [28, 4, 0xff, 0xff]),
    ] {
        let time = Duration::from_secs(seconds);
        let told = UserTimeout::of(time);
        let user_timeout = Some(told);
        let seg = TxSegment { flags: Flags::ACK, user_timeout, ..TxSegment::default() };
        let b = build(1, 2, &seg, &SackBlocks::NONE, b"");
        assert_eq!(b[HEADER_LEN..], bytes, "{seconds} s");
        assert!(TcpHeader::parse(&b, b.len()).unwrap().has_rare);
        assert_eq!(rare_options(&b), RareOptions { user_timeout, counts: None });
        assert!(told.time() >= time.min(Duration::from_secs(32_767 * 60)), "{told:?}");
    }
    let part = Duration::from_millis(1001);
    assert_eq!(UserTimeout::of(part).time(), Duration::from_secs(2));
}

#[test]
fn test_user_timeout_option_with_a_reserved_value_or_a_wrong_length_is_ignored() {
    for option in [
        &[28, 4, 0, 0][..],
        &[28, 4, 0x80, 0],
        &[28, 3, 1, 1],
        &[28, 2, 1, 1],
        &[28, 6, 0, 1, 0, 1, 1, 1],
        &[28, 4, 0, 0, 28, 5, 0, 1, 1, 1, 1, 1],
    ] {
        let b = with_options(Flags::ACK, option);
        TcpHeader::parse(&b, b.len()).unwrap();
        assert_eq!(rare_options(&b), RareOptions::default(), "{option:?}");
    }
    // The first that counts, beside another.
    let b = with_options(
        Flags::ACK,
        &[28, 4, 0, 0, 172, 5, 0, 0, 1, 28, 4, 0, 7, 28, 4, 0, 8, 1, 1, 1],
    );
    let RareOptions { counts, user_timeout } = rare_options(&b);
    assert_eq!((counts.unwrap().len, user_timeout.unwrap().bits()), (1, 7));
}

#[test]
fn test_user_timeout_option_on_a_syn_is_ignored() {
    for (flags, has_rare) in [(Flags::SYN, false), (Flags::SYN.with(Flags::ACK), true)] {
        let b = with_options(flags, &[28, 4, 0, 1]);
        assert_eq!(TcpHeader::parse(&b, b.len()).unwrap().has_rare, has_rare);
    }
}
