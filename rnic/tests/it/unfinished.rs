//! FPDUs that peers begin and do not finish: how much they may take and for how long, and the
//! progress of other connections beside them.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "small numbers of a test")]

use std::time::Duration;

use crate::sim::{LinkConfig, PD, PORT, Pair, TO_BASE, pattern};
use heddle_base::{Instant, StreamPos};
use heddle_iwarp::QpConfig;
use heddle_rnic::{Event, FpduMode, Order, Patience};
use heddle_tcp::{ConnConfig, PeerLimit};
use heddle_types::{Access, CloseReason, ConnId, CqeStatus, SendWr, Sge};

const BUDGET: usize = 1 << 20;
const STALL: Duration = Duration::from_secs(10);
/// The longest ULPDU, and the bytes of its FPDU.
const ULPDU: u16 = 64_768;
const FPDU: usize = 64_776;

/// Connects side 1, which has a small budget, to its peer, side 0.
fn pair(loss: f64) -> Pair {
    let link = LinkConfig { loss: 0.0, ..LinkConfig::default() };
    let mut p = Pair::with_config(7, link, 1 << 20, |c| {
        (c.max_unfinished_bytes, c.fpdu_stall) = (BUDGET, STALL);
        c.stack.peer_conns = PeerLimit::Unlimited;
    });
    p.link.loss = loss;
    p
}

/// Opens a connection whose side 0 is in its start-up, so that the test writes its stream, and
/// whose side 1 runs a queue pair.
fn open(p: &mut Pair, port: u16) -> [ConnId; 2] {
    let [a, b] = p.establish(port);
    let h = &mut p.hosts[1];
    let qp = QpConfig { pd: PD, ..QpConfig::default() };
    h.rnic.enter_fpdu_mode(b, FpduMode { startup_len: 0, reply: Vec::new(), qp }).unwrap();
    h.rnic.start(&h.mem, b);
    [a, b]
}

fn send(p: &mut Pair, a: ConnId, bytes: &[u8]) {
    p.hosts[0].rnic.send_startup(a, bytes).unwrap();
}

/// Returns the first `len` bytes of the longest FPDU.
fn begin(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..2].copy_from_slice(&ULPDU.to_be_bytes());
    bytes
}

fn end_of(p: &Pair, conn: ConnId) -> Option<CloseReason> {
    p.hosts[1].events.iter().find_map(|e| match e {
        Event::Closed { conn: c, reason } if *c == conn => Some(*reason),
        _ => None,
    })
}

/// Returns the bytes of side 1's stream that side 1 has taken.
fn taken(p: &Pair, b: ConnId) -> u64 {
    p.hosts[1].rnic.connection(b).unwrap().rcv_nxt().since(StreamPos::START)
}

/// Carries out an honest Write of `len` bytes over `conns`, and returns its duration.
fn write(p: &mut Pair, [a, _]: [ConnId; 2], len: usize) -> Duration {
    let stags = [Access::LOCAL_WRITE, Access::REMOTE_WRITE];
    let stags = [0, 1].map(|host| p.register(host, 0, len, stags[host]).stag);
    let data = pattern(p.now.as_nanos(), len);
    p.hosts[0].mem.write(0, &data);
    let sges = [Sge { stag: stags[0], to: TO_BASE, len: len as u32 }];
    let start = p.now;
    p.hosts[0].rnic.post_send(a, &SendWr::write(1, &sges, stags[1], TO_BASE)).unwrap();
    p.run(Duration::from_secs(60), |p| !p.hosts[0].completions.is_empty());
    let done = p.hosts[0].completions.drain(..).next().unwrap();
    assert_eq!(done.1.status, CqeStatus::Success);
    assert!(p.hosts[1].mem.read(0, len) == data);
    for (host, stag) in stags.into_iter().enumerate() {
        let _ = p.hosts[host].mrs.deregister(stag);
    }
    p.now - start
}

/// More connections than the budget has room for begin the longest FPDU. Side 1 keeps within its
/// budget, an honest connection of the same address loses nothing, and each FPDU that is in the
/// budget becomes whole when its peer goes on.
#[test]
fn test_unfinished_fpdus_stay_within_budget_and_others_proceed() {
    let mut p = pair(0.0);
    let honest = p.connect(&QpConfig { pd: PD, ..QpConfig::default() });
    let alone = write(&mut p, honest, 200_000);
    let greedy: Vec<_> = (0..40).map(|n| open(&mut p, PORT + 1 + n)).collect();
    for &[a, _] in &greedy {
        send(&mut p, a, &begin(3000));
    }
    p.pass(Duration::from_millis(500));
    let rnic = &p.hosts[1].rnic;
    // A single address gets half of the budget, in whole FPDUs.
    assert_eq!(rnic.unfinished_bytes(), BUDGET / 2 / FPDU * FPDU);
    assert!(rnic.counters().rx_unfinished_refused >= 32);
    let kept = greedy.iter().filter(|[_, b]| taken(&p, *b) == 3000).count();
    assert_eq!(kept, BUDGET / 2 / FPDU);
    // The RNIC keeps nothing of the others, and acknowledges nothing.
    assert_eq!(greedy.iter().filter(|[_, b]| taken(&p, *b) == 0).count(), greedy.len() - kept);
    let beside = write(&mut p, honest, 200_000);
    assert!(beside <= alone + Duration::from_millis(1), "{beside:?} beside them, {alone:?} alone");
    // The peers of the connections in the budget go on, to the last byte but one: no other byte
    // blocks them.
    for &[a, b] in &greedy {
        if taken(&p, b) == 3000 {
            send(&mut p, a, &vec![0; FPDU - 3001]);
        }
    }
    p.pass(Duration::from_secs(1));
    let full = greedy.iter().filter(|[_, b]| taken(&p, *b) == FPDU as u64 - 1).count();
    assert_eq!((full, p.hosts[1].rnic.unfinished_bytes()), (kept, kept * FPDU));
}

/// Connections for which there is no room wait, and have their turn when the time of the others is
/// over.
#[test]
fn test_refused_fpdus_get_room_when_other_connections_end() {
    let mut p = pair(0.0);
    let all: Vec<_> = (0..12).map(|n| open(&mut p, PORT + 1 + n)).collect();
    for &[a, _] in &all {
        send(&mut p, a, &begin(3000));
    }
    let waits = |p: &Pair| all.iter().filter(|[_, b]| end_of(p, *b).is_none()).count();
    p.pass(Duration::from_secs(1));
    assert_eq!((waits(&p), p.hosts[1].rnic.unfinished_bytes()), (12, 8 * FPDU));
    p.pass(STALL / 8 + Duration::from_secs(3));
    // Others wait for their room, so these may keep it for a part of the time only.
    assert!((4..12).contains(&waits(&p)), "{}", waits(&p));
    p.pass(STALL);
    assert!((1..=4).contains(&waits(&p)), "those that waited have their own time: {}", waits(&p));
    // TCP of their peers retransmits.
    p.pass(Duration::from_secs(60));
    assert_eq!((waits(&p), p.hosts[1].rnic.unfinished_bytes()), (0, 0));
    assert_eq!(p.hosts[1].rnic.counters().unfinished_timeouts, 12);
    assert_eq!(p.hosts[1].rnic.held_frames(), 0);
}

/// Connections of one address leave FPDUs unfinished until the address may have no more. An honest
/// connection of the same address waits a part of their time, and a slow connection that makes
/// progress keeps its room.
#[test]
fn test_honest_connection_gets_room_of_stalled_ones_of_its_address() {
    let mut p = pair(0.0);
    let slow: Vec<_> = (0..8).map(|n| open(&mut p, PORT + 1 + n)).collect();
    for &[a, _] in &slow {
        send(&mut p, a, &begin(3000));
    }
    p.pass(Duration::from_secs(3));
    assert_eq!(p.hosts[1].rnic.unfinished_bytes(), 8 * FPDU);
    let [a, b] = open(&mut p, PORT + 20);
    send(&mut p, a, &begin(3000));
    let [moves, _] = slow[0];
    let start = p.now;
    while taken(&p, b) == 0 {
        assert!(p.now - start < STALL / 2, "it waits for {:?}", p.now - start);
        p.pass(STALL / 20);
        send(&mut p, moves, &[0; 4096]);
    }
    let ended =
        slow.iter().filter(|[_, b]| end_of(&p, *b) == Some(CloseReason::Unfinished)).count();
    assert_eq!((ended, end_of(&p, slow[0][1])), (1, None), "no more than have to");
    assert_eq!(end_of(&p, b), None);
}

/// The time runs from the last progress; a trickle of bytes is no progress. The twin sends just in
/// time.
#[test]
fn test_fpdu_left_unfinished_ends_the_connection_at_the_limit_and_not_before() {
    let mut p = pair(0.0);
    let [a, b] = open(&mut p, PORT + 1);
    let [twin_a, twin_b] = open(&mut p, PORT + 2);
    for a in [a, twin_a] {
        send(&mut p, a, &begin(100));
    }
    for n in 1..=4 {
        p.pass(STALL * 9 / 10);
        assert_eq!(end_of(&p, twin_b), None, "after {n} pieces");
        assert_eq!(end_of(&p, b).is_some(), n > 1, "after {n} pieces");
        if n == 1 {
            send(&mut p, a, &[0; 100]);
        }
        send(&mut p, twin_a, &[0; 4096]);
    }
    assert_eq!(end_of(&p, b), Some(CloseReason::Unfinished));
    assert_eq!(p.hosts[1].rnic.counters().unfinished_timeouts, 1);
    p.pass(STALL + Duration::from_secs(3));
    assert_eq!(end_of(&p, twin_b), Some(CloseReason::Unfinished));
    assert_eq!((p.hosts[1].rnic.unfinished_bytes(), p.hosts[1].rnic.held_frames()), (0, 0));
    // The peers were reset, and side 1 rests.
    let reset = |e: &&Event| matches!(e, Event::Closed { reason: CloseReason::Reset, .. });
    assert_eq!(p.hosts[0].events.iter().filter(reset).count(), 2);
    p.pass(Duration::from_secs(3));
    let next = p.hosts[1].rnic.poll_timeout();
    assert!(next.is_none_or(|at| at > p.now + STALL / 2), "{next:?} at {:?}", p.now);
}

/// A gap that is never closed holds buffers as an FPDU does.
#[test]
fn test_gap_left_open_ends_the_connection_at_the_limit() {
    let mut p = pair(0.0);
    let [a, b] = open(&mut p, PORT + 1);
    p.lose_first.push(PORT + 1);
    send(&mut p, a, &begin(1000));
    p.step();
    send(&mut p, a, &[0; 1400]);
    p.step();
    // The first copy is on its way; the link loses retransmissions.
    p.cut[0] = true;
    p.pass(Duration::from_millis(1));
    assert!(p.hosts[1].rnic.held_frames() > 0 && taken(&p, b) == 0);
    p.pass(STALL - Duration::from_secs(1));
    assert_eq!(end_of(&p, b), None);
    p.pass(Duration::from_secs(4));
    assert_eq!((end_of(&p, b), p.hosts[1].rnic.held_frames()), (Some(CloseReason::Unfinished), 0));
}

/// A program sends FPDUs in short segments, with loss: however TCP cuts them, nothing stays charged
/// after them.
#[test]
fn test_whole_fpdus_leave_nothing_in_the_budget() {
    let mut p = pair(0.02);
    let stag = p.register(1, 0, 1 << 16, Access::REMOTE_WRITE).stag;
    let all: Vec<_> = (0..6).map(|n| open(&mut p, PORT + 1 + n)).collect();
    let data = pattern(3, 60_000);
    let mut ulpdu = vec![0xc1, 0x40];
    ulpdu.extend(stag.0.to_be_bytes());
    ulpdu.extend(TO_BASE.to_be_bytes());
    ulpdu.extend(&data);
    let mut fpdu = Vec::new();
    heddle_iwarp::mpa::fpdu::append(&ulpdu, true, &mut fpdu).unwrap();
    for round in 0..4 {
        for (n, &[a, _]) in all.iter().enumerate() {
            for piece in fpdu.chunks(97 + 331 * n + round) {
                send(&mut p, a, piece);
                p.step();
            }
        }
    }
    let want = 4 * fpdu.len() as u64;
    p.run(Duration::from_secs(120), |p| all.iter().all(|[_, b]| taken(p, *b) == want));
    assert!(p.hosts[1].mem.read(0, data.len()) == data);
    let rnic = &p.hosts[1].rnic;
    assert_eq!((rnic.unfinished_bytes(), rnic.held_frames()), (0, 0));
    assert_eq!(rnic.qp_counters().rx_fpdus, 24);
}

/// A limit that an operator changes holds for the FPDUs that exist.
#[test]
fn test_changed_fpdu_stall_limit_applies_to_existing_connections() {
    let mut p = pair(0.0);
    let [a, b] = open(&mut p, PORT + 1);
    send(&mut p, a, &begin(100));
    p.pass(Duration::from_secs(2));
    let patience = Patience { tcp: ConnConfig::default().patience(), fpdu_stall: STALL / 5 };
    p.hosts[1].rnic.handle_order(Instant::ZERO, Order::SetPatience { patience });
    p.pass(STALL / 5 + Duration::from_secs(2));
    assert_eq!(end_of(&p, b), Some(CloseReason::Unfinished));
}
