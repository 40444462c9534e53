//! The conditions on a frame that reaches its connection.

use super::net::Pieces;
use super::*;
use crate::Timestamps;

type Count = fn(&StackCounters) -> u64;

/// Returns B with a connection of A, and a frame of 101 bytes that continues the connection.
fn ready() -> (Stack<ByteQueue>, ConnId, Vec<u8>) {
    let mut b = listening_b(4);
    let (id, mine, next) = established(&mut b, ms(1));
    let data: Vec<u8> = (0..101).collect();
    let seg = segment(mine, next, Flags::ACK.with(Flags::PSH));
    (b, id, tcp_frame((A, 1000), (B, PORT), &seg, &data))
}

fn payload(out: FrameOutcome) -> Option<(usize, u32, bool)> {
    match out {
        FrameOutcome::Conn { payload: Some(p), .. } => Some((p.frame_off, p.len, p.in_order)),
        _ => None,
    }
}

/// Checks that B drops the frame, and that only this counter counts it.
#[track_caller]
fn dropped(frame: &[u8], count: Count) {
    let (mut b, id, _) = ready();
    let before = b.conn(id).unwrap().rcv_nxt();
    assert_eq!(b.handle_frame(ms(2), frame), FrameOutcome::Done);
    assert_eq!(count(b.counters()), 1);
    assert_eq!(b.conn(id).unwrap().rcv_nxt(), before);
}

#[test]
fn test_payload_is_reported_by_its_offset_in_the_frame() {
    let (mut b, id, f) = ready();
    let out = b.handle_frame(ms(2), &f[..]);
    assert_eq!(payload(out), Some((54, 101, true)));
    let FrameOutcome::Conn { conn, .. } = out else { unreachable!() };
    assert_eq!(conn, id);
    assert_eq!(f[54..], (0..101).collect::<Vec<u8>>());
    b.accept_payload(ms(2), id, StreamPos::START, 101);
    assert_eq!(b.conn(id).unwrap().rcv_nxt(), StreamPos(101));
    // The same frame again has nothing new.
    assert_eq!(payload(b.handle_frame(ms(2), &f[..])), None);
}

#[test]
fn test_payload_not_accepted_is_offered_again() {
    let (mut b, _, f) = ready();
    assert!(payload(b.handle_frame(ms(2), &f[..])).is_some());
    assert_eq!(payload(b.handle_frame(ms(3), &f[..])), Some((54, 101, true)));
}

#[test]
fn test_payload_received_in_part_is_pointed_at_behind_that_part() {
    let (mut b, id, f) = ready();
    b.handle_frame(ms(2), &f[..]);
    b.accept_payload(ms(2), id, StreamPos::START, 101);
    let (_, seg) = read_tcp(&f);
    let overlap = segment(seg.seq.0.wrapping_add(50), seg.ack.0, Flags::ACK);
    let f = tcp_frame((A, 1000), (B, PORT), &overlap, &f[54..]);
    assert_eq!(payload(b.handle_frame(ms(3), &f[..])), Some((54 + 51, 50, true)));
}

#[test]
fn test_payload_ahead_of_a_gap_is_pointed_at() {
    let (mut b, id, f) = ready();
    let (_, seg) = read_tcp(&f);
    let ahead = segment(seg.seq.0.wrapping_add(101), seg.ack.0, Flags::ACK);
    let g = tcp_frame((A, 1000), (B, PORT), &ahead, &[9; 20]);
    let out = b.handle_frame(ms(2), &g[..]);
    assert_eq!(payload(out), Some((54, 20, false)));
    b.accept_payload(ms(2), id, StreamPos(101), 20);
    assert_eq!(b.conn(id).unwrap().rcv_nxt(), StreamPos::START);
    b.handle_frame(ms(2), &f[..]);
    b.accept_payload(ms(2), id, StreamPos::START, 101);
    assert_eq!(b.conn(id).unwrap().rcv_nxt(), StreamPos(121));
}

#[test]
fn test_payload_is_found_in_pieces_of_any_length() {
    for cuts in [[54, 60, 155], [54, 55, 56], [54, 155, 155], [80, 91, 102]] {
        let (mut b, _, f) = ready();
        let mut pieces = Vec::new();
        let mut from = 0;
        for c in cuts.into_iter().chain([f.len()]) {
            pieces.push(f[from..c].to_vec());
            from = c;
        }
        pieces.retain(|p| !p.is_empty());
        let mut frame = Pieces(pieces, RxChecksum::Unknown);
        assert_eq!(payload(b.handle_frame(ms(2), &frame)), Some((54, 101, true)), "{cuts:?}");
        let last = frame.0.last_mut().unwrap().last_mut().unwrap();
        *last ^= 1;
        assert_eq!(payload(b.handle_frame(ms(2), &frame)), None);
        assert_eq!(b.counters().rx_bad_tcp_checksum, 1);
    }
}

#[test]
fn test_headers_in_pieces_are_dropped() {
    let (.., f) = ready();
    for cut in 1..54 {
        let (mut b, _, _) = ready();
        let frame = Pieces(vec![f[..cut].to_vec(), f[cut..].to_vec()], RxChecksum::Unknown);
        assert_eq!(b.handle_frame(ms(2), &frame), FrameOutcome::Done, "{cut}");
        assert_eq!(b.counters().rx_split_header, 1, "{cut}");
    }
}

#[test]
fn test_checksum_is_verified_unless_the_port_did() {
    for (at, count) in [
        (24, (|c| c.rx_bad_ip_checksum) as Count),
        (50, |c| c.rx_bad_tcp_checksum),
        (100, |c| c.rx_bad_tcp_checksum),
    ] {
        let (mut b, _, mut f) = ready();
        f[at] ^= 0x40;
        dropped(&f, count);
        let good = Pieces(vec![f.clone()], RxChecksum::Good);
        assert!(payload(b.handle_frame(ms(2), &good)).is_some(), "{at}");
    }
    let (mut b, _, f) = ready();
    assert_eq!(b.handle_frame(ms(2), &Pieces(vec![f], RxChecksum::Bad)), FrameOutcome::Done);
    assert_eq!(b.counters().rx_bad_port_checksum, 1);
}

#[test]
fn test_padding_behind_the_datagram_is_not_payload() {
    let (mut b, _, mut f) = ready();
    f.extend([0xee; 30]);
    assert_eq!(payload(b.handle_frame(ms(2), &f[..])), Some((54, 101, true)));
}

#[test]
fn test_frame_truncated_at_any_length_is_dropped() {
    let (.., f) = ready();
    for n in 0..f.len() {
        dropped(&f[..n], |c| c.rx_truncated);
    }
}

/// Returns a frame of [`ready`] with one change and a corrected IPv4 checksum.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let (.., mut f) = ready();
    change(&mut f);
    f[24..26].fill(0);
    let n = 14 + usize::from(f[14] & 0xf) * 4;
    let sum = Sum::of(&f[14..n.min(f.len())]).complement();
    f[24..26].copy_from_slice(&sum.to_be_bytes());
    f
}

#[test]
fn test_every_dropped_frame_is_counted_by_its_reason() {
    dropped(&changed(|f| f[0] = 4), |c| c.rx_other_station);
    dropped(&changed(|f| f[13] = 0xdd), |c| c.rx_unknown_ethertype);
    dropped(&changed(|f| f[14] = 0x65), |c| c.rx_bad_ip_header);
    dropped(&changed(|f| f[20] = 0x20), |c| c.rx_fragments);
    dropped(&changed(|f| f[21] = 1), |c| c.rx_fragments);
    dropped(&changed(|f| f[23] = 17), |c| c.rx_unknown_protocol);
    dropped(&changed(|f| f[46] = 0x40), |c| c.rx_bad_tcp_header);
    dropped(&changed(|f| f[..6].fill(0xff)), |c| c.rx_tcp_group);
}

/// The datagram has reached its destination, so its TTL no longer matters.
#[test]
fn test_datagram_is_accepted_with_any_ttl() {
    for ttl in [0, 1, 255] {
        let (mut b, ..) = ready();
        assert!(payload(b.handle_frame(ms(2), &changed(|f| f[22] = ttl)[..])).is_some(), "{ttl}");
    }
}

#[test]
fn test_ip_options_are_skipped() {
    let (mut b, _, mut f) = ready();
    f.splice(34..34, [7, 4, 4, 0, 1, 1, 1, 0]);
    f[14] = 0x47;
    f[16..18].copy_from_slice(&(20u16 + 8 + 20 + 101).to_be_bytes());
    f[24..26].fill(0);
    let sum = Sum::of(&f[14..42]).complement();
    f[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(payload(b.handle_frame(ms(2), &f[..])), Some((62, 101, true)));
}

/// B answers a SYN that came by a source route without a source route, to the host that the header
/// names (RFC 7126 sections 4.3 and 4.4; this departs from RFC 9293 MUST-53).
#[test]
fn test_answer_takes_no_source_route_back() {
    for kind in [131, 137] {
        let mut b = listening_b(4);
        let mut f = tcp_frame((A, 1000), (B, PORT), &syn(100), b"");
        // The route is completed: its pointer lies beyond its one address.
        f.splice(34..34, [kind, 7, 8, 192, 0, 2, 9, 0]);
        f[14] = 0x47;
        let total = u16::try_from(f.len() - 14).unwrap();
        f[16..18].copy_from_slice(&total.to_be_bytes());
        f[24..26].fill(0);
        let sum = Sum::of(&f[14..42]).complement();
        f[24..26].copy_from_slice(&sum.to_be_bytes());
        b.handle_frame(ms(1), &f[..]);
        let answer = frames(&mut b, ms(1));
        let ip = Ipv4Header::parse(&answer[0][14..], answer[0].len() - 14).unwrap();
        assert_eq!((answer.len(), ip.header_len, ip.dst), (1, 20, A));
        assert_eq!(read_tcp(&answer[0]).1.flags, Flags::SYN.with(Flags::ACK));
    }
}

#[test]
fn test_impossible_tcp_options_are_dropped_and_the_connection_goes_on() {
    let (mut b, id, f) = ready();
    let seg = TxSegment {
        timestamps: Some(Timestamps { val: 1, ecr: 1 }),
        ..segment(101, 0, Flags::ACK)
    };
    let mut bad = tcp_frame((A, 1000), (B, PORT), &seg, b"");
    bad[14 + 20 + 20 + 3] = 1; // the length of the timestamps option
    b.handle_frame(ms(2), &Pieces(vec![bad], RxChecksum::Good));
    assert_eq!(b.counters().rx_bad_tcp_options, 1);
    assert_eq!(b.conn(id).unwrap().state(), State::Established);
    assert!(payload(b.handle_frame(ms(2), &f[..])).is_some());
}
