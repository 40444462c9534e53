use core::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::types::{Psn, Qpn};

/// Returns the CRC-32, computed bit by bit from the polynomial, over bytes that the test assembles
/// by hand.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for b in bytes {
        crc ^= u32::from(*b);
        for _ in 0..8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|c| !c.is_ascii_whitespace()).collect();
    let byte = |d: &[u8]| u8::from_str_radix(core::str::from_utf8(d).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// Checks a packet whose last four bytes are its CRC.
fn assert_icrc(packet: &[u8]) {
    let (body, crc) = packet.split_last_chunk::<4>().unwrap();
    assert_eq!(icrc(body), Some(*crc));
}

/// A congestion notification of a ConnectX-4 Lx, from the tests of scapy's RoCE layer.
#[test]
fn test_icrc_matches_packet_of_an_adapter() {
    assert_icrc(&hex(include_str!("../../tests/data/cnp-connectx4.hex")));
}

/// A message on an unreliable connection, from the same tests, with a UDP checksum.
#[test]
fn test_icrc_covers_payload_but_not_variant_fields() {
    let mut packet = hex(include_str!("../../tests/data/uc-send-only.hex"));
    assert_icrc(&packet);
    let last = packet.len() - 1;
    for (at, invariant) in [
        (1, false),
        (2, true),
        (4, true),
        (6, true),
        (8, false),
        (9, true),
        (10, false),
        (11, false),
        (12, true),
        (19, true),
        (20, true),
        (26, false),
        (27, false),
        (28, true),
        (32, false),
        (33, true),
        (40, true),
        (last - 4, true),
        (last, true),
    ] {
        let bit = 0x20;
        packet[at] ^= bit;
        let (body, crc) = packet.split_last_chunk::<4>().unwrap();
        assert_eq!(icrc(body) != Some(*crc), invariant, "byte {at}");
        packet[at] ^= bit;
    }
}

#[test]
fn test_icrc_is_the_crc_over_ones_and_masked_headers() {
    let v4 = UdRepr::gsi("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap(), 0xc123);
    let p = v4.emit(&[5; 256]).unwrap();
    let mut masked = vec![0xff; 8];
    masked.extend(&p[..p.len() - 4]);
    for at in [1, 8, 10, 11, 26, 27, 32] {
        masked[8 + at] = 0xff;
    }
    assert_eq!(p[p.len() - 4..], crc32(&masked).to_le_bytes());

    let v6 = UdRepr::gsi("fe80::2".parse().unwrap(), "fe80::1".parse().unwrap(), 0xc123);
    let p = v6.emit(&[5; 256]).unwrap();
    let mut masked = vec![0xff; 8];
    masked.extend(&p[..p.len() - 4]);
    masked[8] = 0x6f;
    for at in [1, 2, 3, 7, 46, 47, 52] {
        masked[8 + at] = 0xff;
    }
    assert_eq!(p[p.len() - 4..], crc32(&masked).to_le_bytes());
}

#[test]
fn test_icrc_is_none_for_short_or_malformed_packets() {
    let p = UdRepr::gsi("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap(), 1).emit(b"");
    let p = p.unwrap();
    for len in 0..40 {
        assert_eq!(icrc(&p[..len]), None, "{len}");
    }
    assert!(icrc(&p[..40]).is_some());
    for first in [0x46, 0x35, 0x00] {
        let mut p = p.clone();
        p[0] = first;
        assert_eq!(icrc(&p), None);
    }
}

#[test]
fn test_ipv4_packet_matches_expected_bytes() {
    let repr = UdRepr {
        psn: Psn::new(0x01_0203),
        ..UdRepr::gsi("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap(), 0xc001)
    };
    let p = repr.emit(b"mad").unwrap();
    let want = "45000038 00004000 4011 26b3 0a000002 0a000001
                c001 12b7 0024 0000
                64 10 ffff 00 000001 00 010203
                80010000 00 000001
                6d616400";
    assert_eq!(p[..p.len() - 4], hex(want));
    assert_eq!(UdPacket::parse_gsi(&p), Ok(UdPacket { repr, payload: b"mad" }));
}

fn gsi(text: [&str; 2]) -> Vec<u8> {
    let [src, dst] = text.map(|t| t.parse::<IpAddr>().unwrap());
    UdRepr::gsi(src, dst, 0xc000).emit(&[9; 256]).unwrap()
}

const V4: [&str; 2] = ["10.0.0.2", "10.0.0.1"];
const V6: [&str; 2] = ["fe80::2", "fe80::1"];

/// Returns the packet after `change`, with a new CRC.
fn changed(mut packet: Vec<u8>, change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    packet.truncate(packet.len() - 4);
    change(&mut packet);
    let crc = icrc(&packet).unwrap_or_default();
    packet.extend(crc);
    packet
}

#[test]
fn test_packet_parser_checks_every_header() {
    type Change = fn(&mut Vec<u8>);
    let table: [(Change, PacketError); 14] = [
        (|p| p[0] = 0x46, PacketError::Ip),
        (|p| p[0] = 0x55, PacketError::Ip),
        (|p| p[6] = 0x20, PacketError::Ip),
        (|p| p[7] = 0x01, PacketError::Ip),
        (|p| p[9] = 6, PacketError::Port),
        (|p| p[23] = 0xb8, PacketError::Port),
        (|p| p[25] -= 4, PacketError::Length),
        (|p| p[2..4].copy_from_slice(&[0, 20]), PacketError::Short),
        (|p| p[29] = 1, PacketError::Version(1)),
        (|p| p[28] = 0x65, PacketError::Opcode(0x65)),
        (|p| p[28] = 0x04, PacketError::Opcode(0x04)),
        (|p| p[35] = 2, PacketError::DestQp(Qpn::new(2))),
        (|p| p[31] = 0xfe, PacketError::PKey(0xfffe)),
        (|p| p[41] = 2, PacketError::QKey(0x8002_0000)),
    ];
    for (change, want) in table {
        assert_eq!(UdPacket::parse_gsi(&changed(gsi(V4), change)), Err(want));
    }
    let limited = changed(gsi(V4), |p| p[30] = 0x7f);
    assert!(UdPacket::parse_gsi(&limited).is_ok(), "we are a full member");
    assert!(!p_keys_match(0x7fff, 0x7fff));
    let other = changed(gsi(V6), |p| p[6] = 0);
    assert_eq!(UdPacket::parse(&other), Err(PacketError::Ip), "an extension header");
}

#[test]
fn test_packet_parser_detects_any_flipped_bit_by_icrc() {
    for packet in [gsi(V4), gsi(V6)] {
        for at in packet.len() - 264..packet.len() {
            for bit in 0..8 {
                let mut p = packet.clone();
                p[at] ^= 1 << bit;
                assert_eq!(UdPacket::parse(&p), Err(PacketError::Icrc), "byte {at}");
            }
        }
    }
}

#[test]
fn test_packet_parser_ignores_frame_padding_and_refuses_truncated_packets() {
    for packet in [gsi(V4), gsi(V6)] {
        let mut longer = packet.clone();
        longer.extend([0xee; 6]);
        assert_eq!(UdPacket::parse(&longer), UdPacket::parse(&packet));
        for len in 0..packet.len() {
            assert_eq!(UdPacket::parse(&packet[..len]), Err(PacketError::Short), "{len}");
        }
    }
}

#[test]
fn test_packet_parser_refuses_more_padding_than_payload() {
    let src = UdRepr::gsi("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap(), 1);
    let padded = changed(src.emit(b"").unwrap(), |p| p[29] = 0x10);
    assert_eq!(UdPacket::parse(&padded), Err(PacketError::Length));
}

#[test]
fn test_packet_is_not_emitted_for_mixed_ip_versions_or_oversized_payload() {
    let (v4, v6) = ("10.0.0.1".parse().unwrap(), "::1".parse().unwrap());
    assert_eq!(UdRepr::gsi(v4, v6, 1).emit(b""), None);
    assert_eq!(UdRepr::gsi(v4, v4, 1).emit(&[0; 65536]), None);
}

fn any_ip() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (a.into(), b.into())),
        any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (a.into(), b.into())),
    ]
}

proptest! {
    #[test]
    fn test_packet_parses_back_as_it_was_emitted(
        (src, dst) in any_ip(),
        (src_port, p_key, dest, from, q_key, psn) in any::<(u16, u16, u32, u32, u32, u32)>(),
        solicited in any::<bool>(),
        payload in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let (dest_qp, src_qp, psn) = (Qpn::new(dest), Qpn::new(from), Psn::new(psn));
        let repr = UdRepr { src, dst, src_port, p_key, dest_qp, src_qp, q_key, psn, solicited };
        let p = repr.emit(&payload).unwrap();
        prop_assert_eq!(UdPacket::parse(&p), Ok(UdPacket { repr, payload: &payload }));
    }

    #[test]
    fn test_parser_returns_for_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = UdPacket::parse_gsi(&bytes);
    }

    #[test]
    fn test_headers_parse_back_as_they_were_emitted(bth: [u8; 12], deth: [u8; 8]) {
        let read = Bth::parse(&bth);
        prop_assert_eq!(Bth::parse(&read.emit()), read);
        let mut known = bth;
        known[4] &= 0xc0;
        known[8] &= 0x80;
        prop_assert_eq!(read.emit(), known);
        let read = Deth::parse(&deth);
        let mut known = deth;
        known[4] = 0;
        prop_assert_eq!(read.emit(), known);
    }
}
