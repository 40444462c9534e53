//! Budgets of turns and of sources: timers, answers to strangers, repeated SYN-ACKs, ICMP.

use core::cell::Cell;
use core::time::Duration;
use heddle_base::Chunks;

use super::net::Faults;
use super::*;

const C: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);

fn at_us(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

/// Returns a stack with `n` half-open connections of A whose SYN-ACK is sent.
fn half_open(n: u16) -> Stack<ByteQueue> {
    let mut cfg = config_b();
    cfg.max_conns = 4096;
    let mut b = Stack::new(cfg);
    b.listen(None, PORT, 4096).unwrap();
    introduce_a(&mut b, Instant::ZERO);
    for port in 1..=n {
        b.handle_frame(ms(1), &tcp_frame((A, port), (B, PORT), &syn(1), b"")[..]);
    }
    assert_eq!(frames(&mut b, ms(1)).len(), usize::from(n));
    b
}

/// Returns a stack with `n` connections of ours whose SYN is sent.
fn opening(n: u16) -> Stack<ByteQueue> {
    let mut cfg = config_b();
    cfg.max_conns = 4096;
    let mut b = Stack::new(cfg);
    introduce_a(&mut b, Instant::ZERO);
    for port in 1..=n {
        b.connect(ms(1), (A, 81).into(), Some(port)).unwrap();
    }
    assert_eq!(frames(&mut b, ms(1)).len(), usize::from(n));
    b
}

#[test]
fn test_timers_that_fall_due_together_take_several_turns_the_oldest_first() {
    let mut b = opening(1000);
    let (mut turns, mut now) = (0, ms(1002));
    let a_turn = u64::from(TIMERS_A_TURN / EXPIRY);
    while b.is_due(now) {
        let before = b.conn_counters().timeouts;
        b.handle_timeouts(now);
        let ran = b.conn_counters().timeouts - before;
        assert!(ran <= a_turn, "{ran} in a turn");
        assert!(ran == a_turn || !b.is_due(now), "no turn is wasted");
        turns += 1;
        assert!(turns <= 1000 / a_turn + 1);
        now = now + Duration::from_micros(50);
    }
    assert_eq!((turns, b.conn_counters().timeouts), (16, 1000), "each once");
}

#[test]
fn test_syn_acks_that_fall_due_together_take_several_turns() {
    let mut b = half_open(1000);
    let a_turn = usize::try_from(accept::HALF_OPENS_A_TURN).unwrap();
    let (mut turns, mut now) = (0, ms(1001));
    while b.is_due(now) {
        b.handle_timeouts(now);
        assert!(frames(&mut b, now).len() <= a_turn);
        turns += 1;
        assert!(turns <= 1000 / a_turn + 1);
        now = now + Duration::from_micros(50);
    }
    assert_eq!(turns, 1000usize.div_ceil(a_turn));
    assert!(turns > 10, "{turns} turns");
    assert_eq!(b.poll_timeout(), Some(ms(3001)), "all have had their turn");
}

/// Timers that fall due again and again do not keep an older timer waiting.
#[test]
fn test_no_timer_starves_behind_those_that_come_again() {
    let mut b = opening(2000);
    // The connection's timer is due in 2000 ms, when 2000 others have long been due and no turn has
    // caught up.
    let id = b.connect(ms(1001), (A, 80).into(), Some(7)).unwrap();
    frames(&mut b, ms(1001));
    let (mut now, mut turns) = (ms(2100), 0);
    while b.conn(id).unwrap().counters().timeouts == 0 {
        b.handle_timeouts(now);
        now = now + Duration::from_millis(1);
        turns += 1;
        assert!(turns <= 2001 * EXPIRY / TIMERS_A_TURN + 1, "{turns} turns");
    }
}

/// Returns the number of RSTs that answer `ports` segments of no connection, a turn each.
fn resets(b: &mut Stack<ByteQueue>, src: Ipv4Addr, ports: u16, from: u64) -> usize {
    let answer = |i| {
        let now = at_us(from + u64::from(i));
        b.handle_frame(now, &tcp_frame((src, 1 + i), (B, 9), &syn(1), b"")[..]);
        frames(b, now).len()
    };
    (0..ports).map(answer).sum()
}

#[test]
fn test_source_that_takes_its_resets_leaves_others_theirs() {
    let mut b = listening_b(4);
    assert_eq!(resets(&mut b, A, 1000, 1000), 200);
    assert_eq!(resets(&mut b, C, 150, 3000), 150, "another host gets its own");
    assert_eq!(b.counters().tx_resets_limited, 800);
}

#[test]
fn test_turn_answers_with_so_many_resets_and_echoes_and_no_more() {
    let mut b = listening_b(4);
    for port in 1..100 {
        b.handle_frame(ms(1), &tcp_frame((A, port), (B, 9), &syn(1), b"")[..]);
    }
    assert_eq!(frames(&mut b, ms(1)).len(), 32);
    assert_eq!((b.counters().tx_resets, b.counters().tx_resets_limited), (32, 67));
}

/// A single forged SYN draws at most four SYN-ACKs.
#[test]
fn test_forged_syn_draws_four_syn_acks() {
    let mut b = listening_b(4);
    b.handle_frame(ms(1), &tcp_frame((A, 1), (B, PORT), &syn(1), b"")[..]);
    let (mut now, mut at) = (ms(1), Vec::new());
    while b.connections() > 0 {
        at.extend(frames(&mut b, now).iter().map(|_| now.as_millis()));
        now = b.poll_timeout().unwrap().max(now);
        b.handle_timeouts(now);
    }
    assert_eq!((at, now), (vec![1, 1001, 3001, 7001], ms(15_001)));
}

#[test]
fn test_syn_acks_are_sent_again_within_a_budget_of_their_destination() {
    let mut b = half_open(2000);
    b.handle_frame(ms(500), &tcp_frame((C, 1), (B, PORT), &syn(1), b"")[..]);
    assert_eq!(frames(&mut b, ms(500)).len(), 1);
    let (mut now, mut to_a, mut to_c) = (ms(1001), 0, 0);
    while now < ms(1900) {
        b.handle_timeouts(now);
        for f in frames(&mut b, now) {
            let to = Ipv4Addr::new(f[30], f[31], f[32], f[33]);
            assert!(read_tcp(&f).1.flags.has(Flags::SYN));
            if to == C { to_c += 1 } else { to_a += 1 }
        }
        now = now + Duration::from_millis(1);
    }
    assert_eq!(to_c, 1, "another host gets its own");
    assert!((400..1000).contains(&to_a), "{to_a} of 2000 forged");
    assert_eq!(b.counters().syn_acks_limited + to_a, 2000);
}

/// The wire loses three of ten frames, and 40 hosts get their connections within a few seconds
/// each.
#[test]
fn test_honest_handshakes_get_through_heavy_loss() {
    let mut slowest = Duration::ZERO;
    for seed in 1..=40 {
        let mut n = super::transfer::pair(seed, Faults { loss: 0.3, ..Faults::default() });
        let a = n.a.stack.connect(n.now, b_addr(), None).unwrap();
        n.run("handshake", Duration::from_secs(120), |n| {
            n.a.says(a, ConnEvent::Connected)
                || n.a.has(a, StackEvent::Unreachable)
                || n.a.says(a, ConnEvent::TimedOut)
        });
        if n.a.has(a, StackEvent::Unreachable) {
            continue; // The wire lost all questions for the address.
        }
        assert!(n.a.says(a, ConnEvent::Connected), "seed {seed}");
        slowest = slowest.max(n.now - Instant::ZERO);
        n.a.send(a, b"hello");
        n.run("accept", Duration::from_secs(60), |n| {
            n.b.accepted().is_some_and(|b| n.b.got(b) == b"hello")
        });
    }
    assert!(slowest < Duration::from_secs(64), "{slowest:?}");
}

/// A frame that counts how often bytes are copied out of it.
struct Counted<'a>(Vec<u8>, &'a Cell<u32>);

impl Chunks for Counted<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        self.0.get(off..).unwrap_or_default()
    }

    fn copy_at(&self, off: usize, dst: &mut [u8]) -> usize {
        self.1.set(self.1.get() + 1);
        dst.copy_from_slice(&self.0[off..off + dst.len()]);
        dst.len()
    }
}

impl RxFrame for Counted<'_> {}

#[test]
fn test_icmp_beyond_its_limit_or_about_nothing_in_flight_is_not_copied() {
    let mut b = listening_b(1);
    let (id, _, next) = established(&mut b, ms(1));
    b.user_mut(id).unwrap().push(&[0; 1000]);
    b.notify_send(id);
    frames(&mut b, ms(1));
    let copies = Cell::new(0);
    let mut put = |now, frame: Vec<u8>| {
        let before = copies.get();
        // The worker has nothing else to do, so that its share for strangers bounds nothing.
        b.rest();
        b.handle_frame(now, Counted(frame, &copies));
        frames(&mut b, now);
        copies.get() - before
    };
    let echo = || ip_frame(A, B, 1, &super::icmp::echo());
    let echoes: u32 = (0..500).map(|i| put(at_us(2000 + i), echo())).sum();
    assert_eq!(echoes, 100, "what one source may have");
    let error = |seq| super::icmp::error(3, 1, PORT, 1000, seq);
    let forged: u32 = (0..500).map(|i| put(at_us(3000 + i), error(next.wrapping_sub(1)))).sum();
    assert_eq!(forged, 0);
    let right: u32 = (0..5000).map(|i| put(at_us(4000 + i), error(next))).sum();
    assert!((500..=502).contains(&right), "{right}");
    assert_eq!(put(ms(20), super::icmp::error(5, 1, PORT, 1000, next)), 0, "a kind we ignore");
    let c = b.counters();
    assert_eq!((c.icmp_echo_limited, c.icmp_unmatched), (400, 500));
    assert_eq!(c.icmp_errors_limited, 5000 - u64::from(right));
    assert_eq!(events(&mut b).len(), 1, "one event");
}
