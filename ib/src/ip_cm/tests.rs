use super::*;

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn v4_header() -> [u8; 92] {
    let mut b = [0; 92];
    b[..4].copy_from_slice(&[0x00, 0x40, 0x9c, 0x41]);
    b[16..20].copy_from_slice(&[10, 0, 0, 2]);
    b[32..36].copy_from_slice(&[10, 0, 0, 1]);
    b[36..41].copy_from_slice(b"hello");
    b
}

#[test]
fn test_service_ids_match_examples_of_the_annex() {
    let nfs = Service { protocol: 132, port: 2049 };
    assert_eq!((nfs.id().0, Service::of(nfs.id())), (0x0000_0000_0184_0801, Some(nfs)));
    assert_eq!(Service::tcp(3260).id().0, 0x0000_0000_0106_0cbc);
    for outside in [0, 0x0006_0cbc, 0x0000_0000_0206_0cbc, 0x0100_0000_0106_0cbc, u64::MAX] {
        assert_eq!(Service::of(ServiceId(outside)), None, "{outside:#x}");
    }
    let all = ServiceId(0x0000_0000_01ff_ffff);
    assert_eq!(Service::of(all), Some(Service { protocol: 255, port: 65535 }));
}

#[test]
fn test_ipv4_header_matches_bytes_of_table_1() {
    let header = Header { src: addr("10.0.0.2"), src_port: 40001, dst: addr("10.0.0.1") };
    assert_eq!(header.emit(b"hello"), Some(v4_header()));
    assert_eq!(Header::parse(&v4_header(), IpVersions::V4), Ok(header));
    assert_eq!(&consumer(&v4_header())[..6], b"hello\0");
    assert_eq!(CONSUMER_LEN, 56);
}

#[test]
fn test_ipv6_header_carries_whole_addresses() {
    let header = Header { src: addr("fe80::2"), src_port: 1, dst: addr("2001:db8::1") };
    let b = header.emit(&[7; 56]).unwrap();
    assert_eq!(b[..6], [0x00, 0x60, 0, 1, 0xfe, 0x80]);
    assert_eq!((b[19], b[20], b[35], b[36], b[91]), (2, 0x20, 1, 7, 7));
    assert_eq!(Header::parse(&b, IpVersions::BOTH), Ok(header));
}

#[test]
fn test_header_is_not_emitted_if_data_or_addresses_do_not_fit() {
    let (v4, v6) = (addr("10.0.0.1"), addr("::1"));
    let header = Header { src: v4, src_port: 1, dst: v4 };
    assert!(header.emit(&[0; 56]).is_some());
    assert_eq!(header.emit(&[0; 57]), None);
    assert_eq!(Header { dst: v6, ..header }.emit(b""), None);
}

#[test]
fn test_parser_checks_major_then_minor_version_before_all_else() {
    let mut b = [0xff; 92];
    assert_eq!(Header::parse(&b, IpVersions::BOTH), Err(Fault::Major));
    b[0] = 0x10;
    assert_eq!(Header::parse(&b, IpVersions::BOTH), Err(Fault::Major));
    b[0] = 0x0f;
    assert_eq!(Header::parse(&b, IpVersions::BOTH), Err(Fault::Minor));
    b[0] = 0x01;
    assert_eq!(Header::parse(&b, IpVersions::BOTH), Err(Fault::Minor));
    b[0] = 0;
    let taken = IpVersions::BOTH;
    assert_eq!(Header::parse(&b, taken), Err(Fault::IpVersion { taken }));
}

#[test]
fn test_parser_refuses_ip_version_that_is_not_accepted() {
    for version in 0..16 {
        let mut b = v4_header();
        b[1] = version << 4;
        let of = |taken| Header::parse(&b, taken).map(|_| ());
        let taken = IpVersions::V4;
        let want = if version == 4 { Ok(()) } else { Err(Fault::IpVersion { taken }) };
        assert_eq!(of(taken), want, "{version}");
        assert_eq!(of(IpVersions::BOTH).is_ok(), matches!(version, 4 | 6), "{version}");
        let taken = IpVersions { v4: false, v6: true };
        assert_eq!(of(taken).is_ok(), version == 6, "{version}");
    }
}

#[test]
fn test_reserved_bits_are_not_looked_at() {
    let mut b = v4_header();
    b[1] |= 0x0f;
    assert_eq!(Header::parse(&b, IpVersions::V4), Header::parse(&v4_header(), IpVersions::V4));
}

#[test]
fn test_parser_refuses_nonzero_byte_before_an_ipv4_address() {
    for at in 4..16 {
        let mut b = v4_header();
        b[at] = 1;
        assert_eq!(Header::parse(&b, IpVersions::V4), Err(Fault::Source), "byte {at}");
        // The parser checks the source before the destination.
        b[at + 16] = 1;
        assert_eq!(Header::parse(&b, IpVersions::V4), Err(Fault::Source), "byte {at}");
        b[at] = 0;
        assert_eq!(Header::parse(&b, IpVersions::V4), Err(Fault::Destination), "byte {at}");
    }
}

#[test]
fn test_parser_refuses_ipv4_mapped_address_in_ipv6_header() {
    let good = Header { src: addr("fe80::2"), src_port: 1, dst: addr("fe80::1") };
    let mapped = addr("::ffff:10.0.0.1");
    let of = |h: Header| Header::parse(&h.emit(b"").unwrap(), IpVersions::BOTH);
    assert_eq!(of(good), Ok(good));
    assert_eq!(of(Header { src: mapped, ..good }), Err(Fault::Source));
    assert_eq!(of(Header { dst: mapped, ..good }), Err(Fault::Destination));
}

/// Table 4 and table 5, byte by byte.
#[test]
fn test_ari_has_layer_code_length_and_suggested_value() {
    let taken = IpVersions::BOTH;
    let v6 = IpVersions { v4: false, v6: true };
    let table: [(Fault, &[u8]); 9] = [
        (Fault::Unspecified, &[0, 0, 0, 0]),
        (Fault::Major, &[0, 1, 1, 0, 0]),
        (Fault::Minor, &[0, 2, 1, 0, 0]),
        (Fault::IpVersion { taken }, &[0, 3, 1, 0, 4]),
        (Fault::IpVersion { taken: v6 }, &[0, 3, 1, 0, 6]),
        (Fault::Source, &[0, 4, 0, 0]),
        (Fault::Destination, &[0, 5, 0, 0]),
        (Fault::UnknownAddress { ours: addr("10.0.0.1") }, &[0, 6, 4, 0, 10, 0, 0, 1]),
        (
            Fault::UnknownAddress { ours: addr("::1") },
            &[0, 6, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        ),
    ];
    for (fault, want) in table {
        let (ari, len) = fault.ari();
        assert_eq!(&ari[..usize::from(len)], want, "{fault}");
        assert!(ari[usize::from(len)..].iter().all(|b| *b == 0), "{fault}");
        let suggested = (want.len() > 4).then(|| &want[4..]);
        assert_eq!(Ari::parse(want), Ari::Service { code: fault.code(), suggested }, "{fault}");
    }
}

#[test]
fn test_ari_of_other_senders_is_parsed_at_any_length() {
    assert_eq!(Ari::parse(&[]), Ari::Absent);
    let (ari, len) = ulp_ari();
    assert_eq!(Ari::parse(&ari[..usize::from(len)]), Ari::Ulp(&[]));
    assert_eq!(Ari::parse(&[1, 2, 3]), Ari::Ulp(&[2, 3]));
    assert_eq!(Ari::parse(&[2, 3]), Ari::Other(&[2, 3]));
    let unspecified = Ari::Service { code: AriCode::UNSPECIFIED, suggested: None };
    assert_eq!(Ari::parse(&[0]), unspecified);
    let minor = Ari::Service { code: AriCode::MINOR, suggested: None };
    for short in [&[0, 2][..], &[0, 2, 1], &[0, 2, 1, 0], &[0, 2, 9, 0, 1, 2], &[0, 2, 255, 0]] {
        assert_eq!(Ari::parse(short), minor, "{short:?}");
    }
}
