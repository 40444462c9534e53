//! ICMP as the wire sees it.

use super::*;

fn sealed(mut b: Vec<u8>) -> Vec<u8> {
    let sum = Sum::of(&b).complement();
    b[2..4].copy_from_slice(&sum.to_be_bytes());
    b
}

pub(super) fn echo() -> Vec<u8> {
    sealed(b"\x08\x00\x00\x00\x12\x34\x00\x02odd".to_vec())
}

/// Returns an ICMP error that quotes the segment `seq` of the connection from B:`src` to A:`dst`.
pub(super) fn error(kind: u8, code: u8, src: u16, dst: u16, seq: u32) -> Vec<u8> {
    let quoted = tcp_frame((B, src), (A, dst), &segment(seq, 0, Flags::ACK), b"");
    let mut m = vec![kind, code, 0, 0, 0, 0, 0, 0];
    m.extend(&quoted[14..42]);
    ip_frame(A, B, 1, &sealed(m))
}

#[test]
fn test_echo_is_answered() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    b.handle_frame(Instant::ZERO, &ip_frame(A, B, 1, &echo())[..]);
    let out = frames(&mut b, Instant::ZERO);
    assert_eq!((out.len(), &out[0][..6]), (1, &MAC_A[..]));
    let ip = Ipv4Header::parse(&out[0][14..], out[0].len() - 14).unwrap();
    assert!(ip.checksum_valid(&out[0][14..]) && Sum::of(&out[0][34..]).is_valid());
    assert_eq!((ip.src, ip.dst, out[0][34]), (B, A, 0));
    assert_eq!(out[0][38..], echo()[4..]);
}

#[test]
fn test_echo_to_or_from_multicast_or_broadcast_is_not_answered() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    let all = Ipv4Addr::new(10, 0, 0, 255);
    for (src, dst) in [(A, all), (A, Ipv4Addr::BROADCAST), (all, B), (B, B), (A, A)] {
        b.handle_frame(Instant::ZERO, &ip_frame(src, dst, 1, &echo())[..]);
    }
    let mut f = ip_frame(A, B, 1, &echo());
    f[..6].fill(0xff);
    b.handle_frame(Instant::ZERO, &f[..]);
    assert_eq!(frames(&mut b, Instant::ZERO).len(), 0);
    assert_eq!(b.counters().rx_other_host + b.counters().rx_bad_source, 6);
}

#[test]
fn test_echo_is_rate_limited() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    let mut answers = 0;
    for i in 0..1000 {
        let now = Instant::from_nanos(1_000_000 + i);
        b.handle_frame(now, &ip_frame(A, B, 1, &echo())[..]);
        answers += frames(&mut b, now).len();
    }
    assert_eq!((answers, b.counters().icmp_echo_limited), (100, 900));
}

#[test]
fn test_unreachable_about_a_syn_is_reported_without_abort() {
    let mut b = listening_b(1);
    let id = b.connect(ms(1), (A, 80).into(), Some(7)).unwrap();
    let (_, syn) = read_tcp(&frames(&mut b, ms(1))[0]);
    for code in [0, 1, 2, 3, 13] {
        b.handle_frame(ms(2), &error(3, code, 7, 80, syn.seq.0)[..]);
        b.handle_frame(ms(2), &error(3, code, 7, 80, syn.seq.0)[..]);
        let want = IcmpError::Unreachable(code);
        assert_eq!(events(&mut b), [(id, StackEvent::SoftError(want))]);
        assert_eq!(b.soft_error(id), Some(want));
    }
    assert_eq!(b.conn(id).unwrap().state(), State::SynSent);
    b.handle_frame(ms(2), &error(11, 0, 7, 80, syn.seq.0)[..]);
    assert_eq!(b.soft_error(id), Some(IcmpError::TimeExceeded));
}

#[test]
fn test_icmp_errors_about_data_not_in_flight_are_dropped() {
    let mut b = listening_b(1);
    let id = b.connect(ms(1), (A, 80).into(), Some(7)).unwrap();
    let (_, syn) = read_tcp(&frames(&mut b, ms(1))[0]);
    let seq = syn.seq.0;
    b.handle_frame(ms(2), &error(3, 3, 7, 80, seq.wrapping_add(1))[..]);
    b.handle_frame(ms(2), &error(3, 3, 7, 80, seq.wrapping_sub(1))[..]);
    b.handle_frame(ms(2), &error(3, 3, 8, 80, seq)[..]);
    b.handle_frame(ms(2), &error(3, 3, 7, 81, seq)[..]);
    assert_eq!((b.counters().icmp_unmatched, b.soft_error(id)), (4, None));
    assert_eq!(events(&mut b), []);
}

#[test]
fn test_icmp_errors_about_data_in_flight_are_reported() {
    let mut b = listening_b(1);
    let (id, _, next) = established(&mut b, ms(1));
    b.user_mut(id).unwrap().push(&[0; 1000]);
    b.notify_send(id);
    assert_eq!(frames(&mut b, ms(1)).len(), 1);
    b.handle_frame(ms(2), &error(3, 1, PORT, 1000, next.wrapping_sub(1))[..]);
    b.handle_frame(ms(2), &error(3, 1, PORT, 1000, next.wrapping_add(1001))[..]);
    assert_eq!(b.counters().icmp_unmatched, 2);
    b.handle_frame(ms(2), &error(3, 1, PORT, 1000, next)[..]);
    assert_eq!(events(&mut b), [(id, StackEvent::SoftError(IcmpError::Unreachable(1)))]);
    assert_eq!(b.conn(id).unwrap().state(), State::Established);
}

#[test]
fn test_source_quench_and_others_are_dropped_silently() {
    let mut b = listening_b(1);
    let (id, _, next) = established(&mut b, ms(1));
    let before = b.conn(id).unwrap().stats();
    b.handle_frame(ms(2), &error(4, 0, PORT, 1000, next)[..]);
    b.handle_frame(ms(2), &error(12, 0, PORT, 1000, next)[..]);
    b.handle_frame(ms(2), &error(3, 4, PORT, 1000, next)[..]);
    assert_eq!((b.counters().icmp_ignored, b.counters().icmp_frag_needed_ignored), (2, 1));
    assert_eq!((events(&mut b), frames(&mut b, ms(2))), (vec![], vec![]));
    assert_eq!(format!("{before:?}"), format!("{:?}", b.conn(id).unwrap().stats()));
}

#[test]
fn test_wrong_icmp_checksum_is_dropped() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    let mut m = echo();
    m[9] ^= 1;
    b.handle_frame(Instant::ZERO, &ip_frame(A, B, 1, &m)[..]);
    assert_eq!((b.counters().icmp_malformed, frames(&mut b, Instant::ZERO).len()), (1, 0));
}
