use super::super::frame::{TxBody, TxFrame};
use super::super::template::{Common, HeaderTemplate, Offloads};
use super::*;
use crate::wire::{EtherType, EthernetHeader, Ipv4Header, Ipv6Header, MacAddr, Tag, TcpHeader};
use crate::{SackBlocks, TxSegment};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use proptest::prelude::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const V4: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];
const V6: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 2, 3, 4, 5)),
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 6, 7, 8, 9)),
];

/// Returns a frame from the second address to the first.
fn frame([us, peer]: [IpAddr; 2], seg: &TxSegment, payload: &[u8]) -> Vec<u8> {
    let common = Common { mac: MacAddr([4; 6]), ttl: 64, dscp: 3, tag: Tag(0) };
    let flow = FlowKey::new((peer, 7), (us, 9)).unwrap();
    let t = HeaderTemplate::new(common, &flow, 0x1_2345);
    let seg = TxSegment { len: u32::try_from(payload.len()).unwrap(), ..*seg };
    let (none, off) = (SackBlocks::default(), Offloads { tcp: false, ip: false });
    let mut f: TxFrame = t.frame(MacAddr(MAC), &seg, &none, TxBody::Owned(payload.to_vec()), off);
    f.finish_tcp_checksum(Sum::of(payload));
    [&f.header[..], payload].concat()
}

/// A key, a segment, and whether the checksums are right.
type Found = (FlowKey, Segment, bool);

/// Returns the result of the parsers of the single headers for a frame over IPv4.
fn field_by_field(f: &[u8]) -> Option<Found> {
    let e = EthernetHeader::parse(f).ok()?;
    let ip = Ipv4Header::parse(&f[IP..], f.len() - IP).ok()?;
    let len = ip.total_len - ip.header_len;
    let t = TcpHeader::parse(&f[IP + ip.header_len..], len).ok()?;
    let shape = e.dst.0 == MAC
        && e.ethertype == EtherType::IPV4
        && (ip.header_len, ip.fragment, ip.protocol) == (20, false, ipv4::PROTO_TCP)
        && (t.header_len, t.has_sack) == (TCP_LEN, false);
    let pseudo = ipv4::pseudo_header(ip.src, ip.dst, u16::try_from(len).unwrap());
    let right =
        ip.checksum_valid(&f[IP..]) && pseudo.plus(Sum::of(&f[TCP4..TCP4 + len])).is_valid();
    let segment = Segment { ecn: Codepoint::of(ip.traffic_class), ..t.segment };
    shape.then(|| (FlowKey::v4(ip.dst, t.dst_port, ip.src, t.src_port), segment, right))
}

/// The same over IPv6.
fn field_by_field6(f: &[u8]) -> Option<Found> {
    let e = EthernetHeader::parse(f).ok()?;
    let ip = Ipv6Header::parse(&f[IP..], f.len() - IP).ok()?;
    let len = ip.payload_len;
    let t = TcpHeader::parse(&f[TCP6..], len).ok()?;
    let shape = e.dst.0 == MAC
        && (e.ethertype, ip.next_header) == (EtherType::IPV6, ipv6::TCP)
        && (t.header_len, t.has_sack) == (TCP_LEN, false);
    let pseudo = ipv6::pseudo_header(ipv6::TCP, ip.src, ip.dst, u32::try_from(len).unwrap());
    let right = pseudo.plus(Sum::of(&f[TCP6..TCP6 + len])).is_valid();
    let flow = FlowKey::new((ip.dst.into(), t.dst_port), (ip.src.into(), t.src_port)).unwrap();
    shape.then_some((flow, Segment { ecn: Codepoint::of(ip.traffic_class), ..t.segment }, right))
}

fn quick<'a, P: Shape<'a>>(f: &'a [u8], segment: impl Fn(&P) -> Segment) -> Option<Found> {
    let p = P::of(f, f.len(), station(MAC))?;
    Some((p.flow(), segment(&p), p.checksums().are_right(&mut &*f)))
}

fn quick4(f: &[u8]) -> Option<Found> {
    quick::<Plain4<'_>>(f, |p| p.segment())
}

fn quick6(f: &[u8]) -> Option<Found> {
    quick::<Plain6<'_>>(f, |p| p.segment())
}

proptest! {
    /// Every frame that this module takes has the same fields in the other parsers; and it takes
    /// the usual frame.
    #[test]
    fn test_a_plain_frame_is_what_the_parsers_make_of_it(
        numbers: (u32, u32, u16, u32, u32), payload in proptest::collection::vec(any::<u8>(), 0..150),
        changes in proptest::collection::vec((0usize..LEN4, any::<u8>()), 0..3),
        padding in 0usize..8,
        cut in 0usize..80,
    ) {
        let (seq, ack, window, val, ecr) = numbers;
        let seg = TxSegment {
            seq: SeqNumber(seq), ack: SeqNumber(ack), window, flags: Flags::ACK,
            timestamps: Some(Timestamps { val, ecr }), ..TxSegment::default()
        };
        type Reader = fn(&[u8]) -> Option<Found>;
        let families: [([IpAddr; 2], Reader, Reader); 2] =
            [(V4, quick4, field_by_field), (V6, quick6, field_by_field6)];
        for (addrs, quick, slow) in families {
            let mut f = frame(addrs, &seg, &payload);
            f.extend(vec![0; padding]);
            prop_assert_eq!(quick(&f).map(|(.., right)| right), Some(true));
            for &(at, by) in &changes {
                f[at] ^= by;
            }
            f.truncate(f.len().saturating_sub(cut.saturating_sub(60)));
            if let Some(told) = quick(&f) {
                prop_assert_eq!(slow(&f), Some(told));
            }
        }
    }
}

/// Flipping one bit of each checked field makes a frame of another shape.
#[test]
fn test_frames_of_other_shapes_are_left_to_others() {
    let ts = Some(Timestamps { val: 1, ecr: 2 });
    let ack = TxSegment { flags: Flags::ACK, timestamps: ts, ..TxSegment::default() };
    let f = frame(V4, &ack, b"text");
    let taken = |f: &[u8]| quick4(f).is_some();
    assert!(taken(&f) && quick6(&f).is_none());
    // Station, EtherType, version, header length, More Fragments, fragment offset, protocol,
    // data offset, SYN, option.
    let bits = [(5, 1), (13, 1), (14, 0x10), (14, 1), (20, 0x20), (21, 1), (23, 2), (46, 0x10)];
    for (at, bit) in bits.into_iter().chain([(47, 2), (57, 1)]) {
        let mut other = f.clone();
        other[at] ^= bit;
        assert!(!taken(&other), "bit {bit:#x} of byte {at}");
    }
    // Fields that the check ignores: TTL, Don't Fragment, DSCP, PSH.
    for (at, bit) in [(22, 1), (20, 0x40), (15, 4), (47, 8)] {
        let mut same = f.clone();
        same[at] ^= bit;
        assert!(taken(&same), "bit {bit:#x} of byte {at}");
    }
    assert!(!taken(&f[..f.len() - 1]), "shorter than it says");
    assert!(!taken(&f[..LEN4 - 1]), "headers in two pieces, or cut");
}

/// The same over IPv6.
#[test]
fn test_ipv6_frames_of_other_shapes_are_left_to_others() {
    let ts = Some(Timestamps { val: 1, ecr: 2 });
    let ack = TxSegment { flags: Flags::ACK, timestamps: ts, ..TxSegment::default() };
    let f = frame(V6, &ack, b"text");
    let taken = |f: &[u8]| quick6(f).is_some();
    assert!(taken(&f) && quick4(&f).is_none());
    // Station, EtherType, version, next header, data offset, SYN, option.
    for (at, bit) in [(5, 1), (13, 1), (14, 0x10), (20, 1), (66, 0x10), (67, 2), (77, 1)] {
        let mut other = f.clone();
        other[at] ^= bit;
        assert!(!taken(&other), "bit {bit:#x} of byte {at}");
    }
    // Fields that the check ignores: traffic class, flow label, hop limit, PSH.
    for (at, bit) in [(14, 4), (15, 0x10), (16, 1), (21, 1), (67, 8)] {
        let mut same = f.clone();
        same[at] ^= bit;
        assert!(taken(&same), "bit {bit:#x} of byte {at}");
    }
    assert!(!taken(&f[..f.len() - 1]), "shorter than it says");
    assert!(!taken(&f[..LEN6 - 1]), "headers in two pieces, or cut");
}
