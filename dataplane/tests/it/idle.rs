//! Threads that poll queues, at rest.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::{Duration, Instant};

use crate::common::*;
use heddle_dataplane::*;

fn open_with(vdev: &str, config: &PortConfig) -> (Port, RxQueue, TxQueue) {
    let mut port = Port::open(&eal(), &PortSource::Vdev(vdev.parse().unwrap()), config).unwrap();
    let (rx, tx) = port.take_queues().pop().unwrap();
    (port, rx, tx)
}

/// Returns naps of up to `longest`, the first of which begins soon.
fn naps(longest: Duration) -> Naps {
    Naps { after: Duration::from_micros(50), first: Duration::from_micros(50), longest }
}

/// Takes turns of a thread that looks only at `rx`, until a frame has come or for `limit`. Returns
/// how long that took.
fn until_a_frame(parker: &mut Parker, rx: &mut RxQueue, limit: Duration) -> Option<Duration> {
    let start = Instant::now();
    let mut got = Burst::new();
    while start.elapsed() < limit {
        let busy = rx.burst(&mut got) > 0;
        parker.turn(busy, || None, || rx.counters().rx_frames);
        if got.drain(..).any(|f| content(&f)[12..14] == [0x88, 0xb5]) {
            return Some(start.elapsed());
        }
    }
    None
}

/// Returns a frame of a protocol that no host uses.
fn local(pool: Mempool) -> Mbuf {
    let mut f = vec![0xff; 6];
    f.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    f.resize(64, 7);
    frame(pool, &f)
}

#[test]
fn test_backoff_mostly_sleeps_and_notices_frame_within_a_nap() {
    let pool = pool(1023);
    let config = PortConfig::new(pool);
    let (mut a, mut b) = Port::ring_pair(&eal(), "idle", 64, &config, &config).unwrap();
    let (_, mut tx) = a.take_queues().pop().unwrap();
    let (mut rx, _) = b.take_queues().pop().unwrap();
    let longest = Duration::from_millis(5);
    // Rings have no interrupts, so only naps remain.
    let policy = IdlePolicy::Interrupt(naps(longest));
    let mut parker = Parker::new(policy, Clock::new(&eal()), &[&rx], None);
    assert_eq!(parker.interrupts(), 0);
    assert_eq!(until_a_frame(&mut parker, &mut rx, Duration::from_millis(300)), None);
    let slept = Duration::from_micros(parker.counters().rest_slept_us);
    assert!(slept > Duration::from_millis(250), "slept {slept:?} of 300 ms");
    let mut burst = Burst::new();
    burst.push(local(pool));
    assert_eq!(tx.burst(&mut burst), 1);
    // The limit is generous, because the machine may have other things to do.
    let took = until_a_frame(&mut parker, &mut rx, Duration::from_secs(5)).unwrap();
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn test_spinning_never_sleeps() {
    let pool = pool(255);
    let config = PortConfig::new(pool);
    let (_a, mut b) = Port::ring_pair(&eal(), "spin", 64, &config, &config).unwrap();
    let (mut rx, _) = b.take_queues().pop().unwrap();
    let mut parker = Parker::new(IdlePolicy::Spin, Clock::new(&eal()), &[&rx], None);
    until_a_frame(&mut parker, &mut rx, Duration::from_millis(20));
    assert_eq!(parker.counters().rest_sleeps, 0);
}

/// Checks that the queue wakes the receiver, which otherwise naps for seconds.
fn is_woken(rx: &mut RxQueue, tx: &mut TxQueue, pool: Mempool) {
    // `net_tap` reads nothing until a signal has come, which any thread may get, and late: if the
    // signal comes later than the receiver goes to sleep again, nothing wakes the receiver.
    let (long, after) = (Duration::from_secs(4), Duration::from_millis(250));
    let asleep = Duration::from_millis(60);
    let policy = IdlePolicy::Interrupt(Naps { after, first: long, longest: long });
    let mut parker = Parker::new(policy, Clock::new(&eal()), &[rx], None);
    assert_eq!(parker.interrupts(), 1);
    for round in 0..5 {
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(after + asleep);
                let mut burst = Burst::new();
                burst.push(local(pool));
                assert_eq!(tx.burst(&mut burst), 1);
            });
            let took = until_a_frame(&mut parker, rx, Duration::from_secs(20)).unwrap();
            let bounds = after + asleep / 2..Duration::from_secs(2);
            assert!(bounds.contains(&took), "round {round}: {took:?}, {:?}", parker.counters());
        });
    }
    let c = parker.counters();
    assert!(c.rest_interrupts >= 5 && c.rest_slept_us > 150_000, "{c:?}");
}

#[test]
#[ignore = "needs root: makes a tap interface"]
fn test_tap_interrupt_wakes_thread() {
    let pool = pool(2047);
    let config = PortConfig { rx_interrupt: true, ..PortConfig::new(pool) };
    let (_a, mut rx, _) = open_with("net_tap50,iface=hdlit", &config);
    up_and_quiet("hdlit");
    let (_b, _, mut tx) = open_with("net_af_packet50,iface=hdlit", &PortConfig::new(pool));
    is_woken(&mut rx, &mut tx, pool);
}
