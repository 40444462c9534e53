use super::*;
use heddle_base::Sum;
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::time::Duration;
use smoltcp::wire::{
    Icmpv6Repr, NdiscPrefixInformation, NdiscRepr, NdiscRouterFlags, RawHardwareAddress,
};

const US: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const PEER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn raw(mac: MacAddr) -> RawHardwareAddress {
    RawHardwareAddress::from_bytes(&mac.0)
}

/// Returns the bytes that smoltcp writes for a message from the peer to us.
fn written(repr: &Icmpv6Repr<'_>) -> Vec<u8> {
    let mut b = vec![0; repr.buffer_len()];
    let mut packet = Icmpv6Packet::new_unchecked(&mut b[..]);
    repr.emit(&PEER, &US, &mut packet, &ChecksumCapabilities::default());
    b
}

fn parse(bytes: &[u8]) -> Option<Message<'_>> {
    Message::parse(bytes, PEER, US)
}

/// Gives `b` the checksum of a message from the peer to us.
fn reseal(b: &mut [u8]) {
    b[2..4].fill(0);
    let len = u32::try_from(b.len()).unwrap();
    let sum = ipv6::pseudo_header(ipv6::ICMP, PEER, US, len).plus(Sum::of(b)).complement();
    b[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// Returns an error of type `kind` about a segment of ours of 1,400 bytes of payload.
fn error(kind: u8, code: u8, word: u32) -> Vec<u8> {
    let mut b = vec![kind, code, 0, 0];
    b.extend(word.to_be_bytes());
    b.extend([0x60, 0, 0, 0, 0x05, 0x78, ipv6::TCP, 64]);
    b.extend(US.octets());
    b.extend(PEER.octets());
    b.extend(b"\x10\x00\x00\x50\x00\x00\x00\x07");
    reseal(&mut b);
    b
}

#[test]
fn test_echo_request_and_reply() {
    let request = written(&Icmpv6Repr::EchoRequest { ident: 0x1234, seq_no: 2, data: b"ping!" });
    let want = Message::EchoRequest { ident: 0x1234, seq: 2, data: b"ping!" };
    assert_eq!(parse(&request), Some(want));
    let reply = echo_reply(US, PEER, 0x1234, 2, b"ping!");
    let packet = Icmpv6Packet::new_checked(&reply[..]).unwrap();
    assert!(packet.verify_checksum(&US, &PEER));
    assert_eq!((reply[0], &reply[4..]), (129, &request[4..]));
}

#[test]
fn test_errors_quote_the_segment() {
    let quote = Some(Quoted {
        src: US.into(),
        dst: PEER.into(),
        src_port: 4096,
        dst_port: 80,
        seq: SeqNumber(7),
        total_len: 1440,
    });
    let unreachable = Message::Unreachable { code: 1, quoted: quote };
    assert_eq!(parse(&error(1, 1, 0)), Some(unreachable));
    assert_eq!(parse(&error(2, 0, 1300)), Some(Message::TooBig { mtu: 1300, quoted: quote }));
    assert_eq!(parse(&error(3, 0, 0)), Some(Message::TimeExceeded { quoted: quote }));
    let mut b = error(2, 0, 1300);
    b[2] ^= 1;
    assert_eq!(quoted(&b), quote, "the function does not verify the checksum");
    assert_eq!(parse(&b), None);
    for (kind, len) in [(128, b.len()), (135, b.len()), (1, b.len() - 1), (1, 7), (1, 0)] {
        b[0] = kind;
        assert_eq!(quoted(&b[..len]), None, "type {kind}, {len} bytes");
    }
    let mut b = error(1, 0, 0);
    b[8 + 6] = ipv6::FRAGMENT;
    reseal(&mut b);
    assert_eq!(parse(&b), Some(Message::Unreachable { code: 0, quoted: None }));
}

#[test]
fn test_neighbor_messages_read_and_write_as_smoltcp_does() {
    let solicit = NdiscRepr::NeighborSolicit { target_addr: US, lladdr: Some(raw(PEER_MAC)) };
    let b = written(&Icmpv6Repr::Ndisc(solicit));
    assert_eq!(b, neighbor_solicit(PEER, US, US, PEER_MAC));
    let want = Message::NeighborSolicit { target: US, source: Some(PEER_MAC) };
    assert_eq!(parse(&b), Some(want));

    let advert = NdiscRepr::NeighborAdvert {
        flags: NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE,
        target_addr: PEER,
        lladdr: Some(raw(PEER_MAC)),
    };
    let b = written(&Icmpv6Repr::Ndisc(advert));
    assert_eq!(b, neighbor_advert(PEER, US, PEER, PEER_MAC, true));
    let want = Message::NeighborAdvert {
        target: PEER,
        station: Some(PEER_MAC),
        router: false,
        solicited: true,
        overrides: true,
    };
    assert_eq!(parse(&b), Some(want));

    let nowhere = Ipv6Addr::UNSPECIFIED;
    let probe = neighbor_solicit(nowhere, ipv6::solicited_node(US), US, MAC);
    let got = Message::parse(&probe, nowhere, ipv6::solicited_node(US));
    assert_eq!(got, Some(Message::NeighborSolicit { target: US, source: None }));

    let b = router_solicit(PEER, US, PEER_MAC);
    assert_eq!(
        b,
        written(&Icmpv6Repr::Ndisc(NdiscRepr::RouterSolicit { lladdr: Some(raw(PEER_MAC)) }))
    );
}

#[test]
fn test_router_advert_has_its_options() {
    let prefix = NdiscPrefixInformation {
        prefix_len: 64,
        flags: NdiscPrefixInfoFlags::ON_LINK | NdiscPrefixInfoFlags::ADDRCONF,
        valid_lifetime: Duration::from_secs(2_592_000),
        preferred_lifetime: Duration::from_secs(604_800),
        prefix: Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 0, 0, 0, 0),
    };
    let b = written(&Icmpv6Repr::Ndisc(NdiscRepr::RouterAdvert {
        hop_limit: 64,
        flags: NdiscRouterFlags::empty(),
        router_lifetime: Duration::from_secs(1800),
        reachable_time: Duration::ZERO,
        retrans_time: Duration::ZERO,
        lladdr: Some(raw(PEER_MAC)),
        mtu: Some(1400),
        prefix_info: Some(prefix),
    }));
    let Some(Message::RouterAdvert(got)) = parse(&b) else { panic!("{b:?}") };
    assert_eq!((got.hop_limit, got.lifetime, got.mtu), (64, 1800, Some(1400)));
    assert_eq!(got.station, Some(PEER_MAC));
    let want = Prefix {
        addr: prefix.prefix,
        len: 64,
        on_link: true,
        autonomous: true,
        valid: 2_592_000,
        preferred: 604_800,
    };
    assert_eq!(got.prefixes[..], [want]);

    // The message has more prefixes than the list has room for.
    let at = b.len() - 32;
    let mut many = b.clone();
    (0..MAX_PREFIXES + 2).for_each(|_| many.extend_from_slice(&b[at..]));
    reseal(&mut many);
    let Some(Message::RouterAdvert(got)) = parse(&many) else { panic!("{many:?}") };
    assert_eq!(got.prefixes.len(), MAX_PREFIXES);
}

/// Options: an unknown one, an MTU, a prefix, a redirected header, and one for each station.
fn all_options() -> [Vec<u8>; 6] {
    let of = |kind: u8, body: &[u8]| {
        let mut o = vec![kind, 0];
        o.extend(body);
        o.resize(o.len().next_multiple_of(8), 0);
        o[1] = u8::try_from(o.len() / 8).unwrap();
        o
    };
    let prefix = [&[64, 0xc0, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 0][..], &[0xfd; 16]].concat();
    [
        of(200, &[1; 14]),
        of(5, &[0, 0, 0, 0, 0x05, 0x78]),
        of(3, &prefix),
        of(4, &[0; 46]),
        of(1, &PEER_MAC.0),
        of(2, &MAC.0),
    ]
}

/// RFC 4861 section 9: a message has options in any order, unknown ones and such as belong to other
/// messages among them.
#[test]
fn test_unknown_and_foreign_options_are_passed_over() {
    let all = all_options();
    for turn in 0..all.len() {
        let options = [&all[turn..], &all[..turn]].concat().concat();
        let message = |head: &[u8]| {
            let mut b = [head, &options].concat();
            reseal(&mut b);
            b
        };
        let target = PEER.octets();
        let question = message(&[&[135, 0, 0, 0, 0, 0, 0, 0][..], &target].concat());
        let want = Message::NeighborSolicit { target: PEER, source: Some(PEER_MAC) };
        assert_eq!(parse(&question), Some(want));
        let answer = message(&[&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &target].concat());
        let Some(Message::NeighborAdvert { station, .. }) = parse(&answer) else { panic!() };
        assert_eq!(station, Some(MAC));
        let advert = message(&[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
        let Some(Message::RouterAdvert(got)) = parse(&advert) else { panic!() };
        assert_eq!((got.station, got.mtu), (Some(PEER_MAC), Some(1400)));
        assert_eq!(got.prefixes.len(), 1);
    }
}

/// RFC 4861 sections 4.2 to 4.6: reserved fields are zero in what we send, and do not count in what we
/// receive.
#[test]
fn test_reserved_fields_do_not_count() {
    let reserved = |mut b: Vec<u8>, places: &[(usize, usize)]| {
        for &(from, to) in places {
            assert!(b[from..to].iter().all(|n| *n == 0), "{from}..{to}");
            b[from..to].fill(0xff);
        }
        reseal(&mut b);
        b
    };
    let question = neighbor_solicit(PEER, US, US, PEER_MAC);
    let odd = reserved(question.clone(), &[(4, 8)]);
    assert_eq!(parse(&odd), parse(&question));
    let answer = neighbor_advert(PEER, US, PEER, PEER_MAC, true);
    let odd = reserved(answer.clone(), &[(5, 8)]);
    assert_eq!(parse(&odd), parse(&answer));
    let [_, mtu, prefix, ..] = all_options();
    let head = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut advert = [&head[..], &mtu, &prefix].concat();
    reseal(&mut advert);
    // The reserved fields of the MTU and of the prefix.
    let mut odd = reserved(advert.clone(), &[(18, 20), (36, 40)]);
    // The reserved flags of the message and of the prefix.
    odd[5] |= 0x3f;
    odd[27] |= 0x3f;
    reseal(&mut odd);
    assert!(matches!(parse(&odd), Some(Message::RouterAdvert(_))));
    assert_eq!(parse(&odd), parse(&advert));
}

#[test]
fn test_malformed_options_make_a_discovery_message_void() {
    for len in [0, 2, 255] {
        let mut b = neighbor_solicit(PEER, US, US, PEER_MAC);
        b[NEIGHBOR_LEN + 1] = len;
        reseal(&mut b);
        assert_eq!(parse(&b), None, "an option of {len} times 8 bytes");
    }
    let b = neighbor_solicit(PEER, US, US, PEER_MAC);
    for n in 0..b.len() {
        let mut b = b[..n].to_vec();
        if n >= 4 {
            reseal(&mut b);
        }
        let want =
            (n == NEIGHBOR_LEN).then_some(Message::NeighborSolicit { target: US, source: None });
        assert_eq!(parse(&b), want, "{n} bytes");
    }
    let mut b = neighbor_solicit(PEER, US, US, MacAddr([1, 0, 0, 0, 0, 0]));
    reseal(&mut b);
    let want = Message::NeighborSolicit { target: US, source: None };
    assert_eq!(parse(&b), Some(want), "a group is no station");
}

proptest! {
    #[test]
    fn test_any_bytes_do_not_panic(
        mut b in proptest::collection::vec(any::<u8>(), 0..120), kind in 128u8..140, seal: bool,
    ) {
        if seal && b.len() >= 4 {
            b[0] = kind;
            reseal(&mut b);
        }
        let _ = parse(&b);
        let _ = quoted(&b);
    }
}
