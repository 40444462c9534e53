//! Peers that make the server store what they send: bytes ahead of a gap, in the most expensive
//! form.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use heddle_testkit::mpa;

use crate::linux::Rping;
use crate::net::{LINUX, Lab};
use crate::server::{SINK, Server};
use crate::tcp::{Conn, Host, Offer, address};

/// Bytes by which the server's memory may grow: as much as all the frames of its pool take.
const GROWTH: u64 = 48 << 20;

/// Touches the frames of the server's pool, so that they do not count as growth later.
fn touch_the_pool(host: &mut Host) {
    for n in 0..40_000 {
        host.ask();
        if n % BATCH == 0 {
            host.sync();
        }
    }
}

/// Frames sent at a time: as many as the device has room for.
const BATCH: u32 = 256;

/// Makes a connection to the sink, past its start-up or before it.
fn connection(host: &mut Host, port: u16, established: bool) -> Conn {
    let mut c = Conn::connect(host, address(1), port, SINK, Offer::default());
    if established {
        assert!(!c.start(host, &mpa::request(b"")).rejected);
        c.idle(host, Duration::from_millis(20));
    }
    c
}

/// Sends single bytes, each just before the one sent last, down to `low` bytes ahead of the stream.
fn descend(host: &mut Host, c: &Conn, low: u32, count: u32) {
    for n in (low..low + count).rev() {
        c.send_ahead(host, n, &[0]);
        if n % BATCH == 0 {
            host.sync();
        }
    }
    host.sync();
}

fn assert_growth(server: &Server, before: u64, what: &str) {
    let grown = server.resident().saturating_sub(before);
    assert!(grown < GROWTH, "{what}: the server has grown by {} MiB", grown >> 20);
}

#[test]
fn test_single_bytes_in_descending_order_take_no_memory() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut host = Host::new(&lab, [address(1)]);
    touch_the_pool(&mut host);
    let c = connection(&mut host, 4000, true);
    let before = server.resident();
    descend(&mut host, &c, 1, 60_000);
    assert_growth(&server, before, "60,000 segments on one connection");
    c.reset(&mut host);
    server.assert_alive();
}

#[test]
fn test_single_bytes_before_the_startup_take_no_memory() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut host = Host::new(&lab, [address(1)]);
    touch_the_pool(&mut host);
    let conns: Vec<_> = (0..14).map(|n| connection(&mut host, 4000 + n, false)).collect();
    let before = server.resident();
    for c in &conns {
        descend(&mut host, c, 1, 4000);
    }
    assert_growth(&server, before, "4,000 segments on each of 14 connections without a Request");
    server.assert_alive();
}

/// The work for a segment is bounded too: a peer with many held segments makes no other peer wait.
#[test]
fn test_single_bytes_between_held_ones_do_not_slow_another_connection() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut host = Host::new(&lab, [address(1)]);
    let mut rping = Rping::connect(&lab, LINUX[0], 1000).expect("a connection");
    rping.ping().expect("an honest client is served");
    let c = connection(&mut host, 4000, true);
    // Two ranges of held bytes, with room between them for 16,000 more.
    descend(&mut host, &c, 76_000, 60_000);
    descend(&mut host, &c, 1, 60_000);
    let mut next = 75_999;
    assert_not_slower(|| {
        let (sends, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|s| {
            let pings = s.spawn(|| {
                let mut pings = [Vec::new(), Vec::new()];
                for turn in 0..TURNS {
                    sends.store(turn % 2 == 1, Ordering::Relaxed);
                    pings[turn % 2].extend(rping.measure(TURN));
                }
                stop.store(true, Ordering::Relaxed);
                pings
            });
            while !stop.load(Ordering::Relaxed) && !pings.is_finished() {
                for _ in 0..20 {
                    if sends.load(Ordering::Relaxed) && next > 60_100 {
                        c.send_ahead(&host, next, &[0]);
                        next -= 1;
                    }
                }
                host.poll(Duration::ZERO);
                thread::sleep(Duration::from_millis(10));
            }
            pings.join().expect("the honest client is served")
        })
    });
    c.reset(&mut host);
    server.assert_alive();
}

/// Number of turns of an honest client, alternately without the thing that may make it wait and
/// with it. The turns alternate because the scheduler gives the server and its peers now more and
/// now less of the processors.
pub const TURNS: usize = 12;
/// The duration of each turn.
pub const TURN: Duration = Duration::from_millis(400);

/// Measures pings without and with the thing that may make them wait. The second kind must not be
/// much rarer, and none may be very long.
///
/// The function measures up to three times. Other programs on the machine may take the processors
/// during the turns of one kind, but not each time; the thing under test slows pings each time.
pub fn assert_not_slower(mut measure: impl FnMut() -> [Vec<Duration>; 2]) {
    let slower: Result<Vec<String>, ()> = (0..3)
        .map(|_| {
            let [without, with] = measure();
            compare(without, with).err().ok_or(())
        })
        .collect();
    if let Ok(told) = slower {
        panic!("{}", told.join("; "));
    }
}

/// Compares the durations of consecutive pings of the two kinds.
///
/// On a shared processor a ping takes as long as the server waits for its turn there, tens of
/// milliseconds, which has nothing to do with the thing under test. So this compares the pings per
/// second, and the longest ping, with those without that thing. The rate is that of the second best
/// turn: the thing under test slows the best turns too, while other programs on the machine do not.
fn compare(mut without: Vec<Duration>, mut with: Vec<Duration>) -> Result<(), String> {
    let rates = [&without, &with].map(|pings| second_best_rate(pings));
    for pings in [&mut without, &mut with] {
        pings.sort();
    }
    let middle = |pings: &[Duration]| pings[pings.len() / 2];
    let longest = |pings: &[Duration]| pings[pings.len() - 1];
    let tell = |pings: &[Duration], rate: f64| {
        let (middle, longest) = (middle(pings), longest(pings));
        format!("{rate:.0} a second, {middle:?} in the middle, {longest:?} at most")
    };
    let what = format!("without: {}; with: {}", tell(&without, rates[0]), tell(&with, rates[1]));
    eprintln!("{what}");
    let long = Duration::from_millis(700).max(longest(&without) * 3);
    if rates[1] > rates[0] / 3.0 && longest(&with) < long { Ok(()) } else { Err(what) }
}

/// Returns the pings per second in the second best of the turns of [`TURN`].
fn second_best_rate(pings: &[Duration]) -> f64 {
    let (mut rates, mut count, mut took) = (Vec::new(), 0.0, Duration::ZERO);
    for ping in pings {
        (count, took) = (count + 1.0, took + *ping);
        if took >= TURN {
            rates.push(count / took.as_secs_f64());
            (count, took) = (0.0, Duration::ZERO);
        }
    }
    if rates.is_empty() {
        rates.push(count / took.as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    rates.iter().rev().nth(1).or(rates.first()).copied().unwrap_or(0.0)
}

const FAST: Duration = Duration::from_millis(1);
const SLOW: Duration = Duration::from_millis(5);

#[test]
fn test_speed_check_accepts_pings_that_are_slow_now_and_then() {
    let mut times = 0;
    assert_not_slower(|| {
        times += 1;
        [vec![FAST; 2400], vec![if times < 3 { SLOW } else { FAST }; 480]]
    });
    assert_eq!(times, 3);
}

#[test]
#[should_panic(expected = "with: 200 a second")]
fn test_speed_check_fails_when_pings_are_slow_each_time() {
    assert_not_slower(|| [vec![FAST; 2400], vec![SLOW; 480]]);
}

/// The server shares its frame buffers fairly: peers that leave gaps do not take them from a peer
/// that has lost a segment.
#[test]
fn test_peers_with_gaps_leave_room_for_segments_of_another() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut host = Host::new(&lab, [address(1)]);
    let greedy: Vec<_> = (0..24).map(|n| connection(&mut host, 4000 + n, true)).collect();
    let honest = |host: &mut Host, port| {
        let mut c = connection(host, port, true);
        // The peer writes the first bytes of the region again and again, in whole FPDUs of 1,400
        // bytes.
        let segment = mpa::send(1, &[0; 1370]);
        assert_eq!(segment.len(), 1396);
        for n in 1..73 {
            c.send_ahead(host, n * 1396, &mpa::send(n + 1, &[0; 1370]));
            if n % 8 == 0 {
                c.idle(host, Duration::from_millis(2));
            }
        }
        c.idle(host, Duration::from_millis(100));
        // This uses some 50 of 64 buffers; the server accepts everything after the gap as soon as
        // the gap closes.
        let base = c.snd_nxt;
        c.put(host, &c.segment(heddle_testkit::frames::ACK, base, &segment));
        c.wait(host, Duration::from_secs(2), |c| {
            (c.acked == base.wrapping_add(73 * 1396)).then_some(())
        });
        c.acked.wrapping_sub(base)
    };
    let alone = honest(&mut host, 5000);
    assert!(alone > 50_000, "alone it gets {alone} bytes acknowledged when its gap closes");
    for round in 0..700 {
        for c in &greedy {
            c.send_ahead(&host, 10 + 600 * round, &[0; 600]);
        }
        host.sync();
    }
    let among = honest(&mut host, 5001);
    assert!(among > 50_000, "of 101,908 bytes {among} were kept behind the gap, alone {alone}");
    server.assert_alive();
}
