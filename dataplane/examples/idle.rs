//! What a thread that polls costs while it has nothing to do, and what a frame waits for it then, under
//! each policy of `heddle_dataplane::idle`.
//!
//! Two threads are joined by a pair of rings. One sends a frame, spins until it is back, and waits for
//! a while that the table names; the other sends back what comes, and rests in between by the policy.
//!
//! ```sh
//! cargo run --release -p heddle-dataplane --example idle
//! ```

#![allow(clippy::print_stdout, reason = "what it is for")]

use std::error::Error;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use heddle_dataplane::{
    Clock, Eal, EalConfig, Hugepages, IdlePolicy, LcoreWorker, Mbuf, Mempool, MempoolConfig, Naps,
    Port, PortConfig, Rester, RxQueue, Stop, TxQueue,
};

/// How long the thread has nothing to do.
const IDLE: Duration = Duration::from_secs(2);

/// Times the calling thread was on a processor.
fn on_processor() -> Result<Duration, Box<dyn Error + Send + Sync>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(Duration::from_nanos(text.split_whitespace().next().unwrap_or("0").parse()?))
}

type Ends = (RxQueue, TxQueue);

/// Sends back what comes until it is told to stop. The share of a processor that it took.
fn echo(stop: &Stop, ends: Ends, clock: Clock, policy: IdlePolicy) -> Option<f64> {
    let (mut rx, mut tx) = ends;
    let mut rester = Rester::new(policy, clock, &[&rx]);
    let (start, used) = (Instant::now(), on_processor().ok()?);
    let mut frames: ArrayVec<Mbuf, 32> = ArrayVec::new();
    while !stop.is_set() {
        let busy = rx.burst(&mut frames) > 0;
        tx.burst(&mut frames);
        rester.turn(busy, || None);
    }
    let used = on_processor().ok()?.saturating_sub(used);
    Some(used.as_secs_f64() / start.elapsed().as_secs_f64())
}

/// Round trips with a pause before each: the median and the 99th percentile.
fn ping(ends: &mut Ends, pool: Mempool, rounds: usize, pause: Duration) -> Option<[Duration; 2]> {
    let mut took = Vec::with_capacity(rounds);
    let mut frames: ArrayVec<Mbuf, 1> = ArrayVec::new();
    for _ in 0..rounds {
        let mut frame = pool.alloc()?;
        frame.append(64)?.fill(1);
        frames.push(frame);
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let start = Instant::now();
        ends.1.burst(&mut frames);
        while ends.0.burst(&mut frames) == 0 {
            std::hint::spin_loop();
        }
        took.push(start.elapsed());
        frames.clear();
    }
    took.sort();
    Some([*took.get(rounds / 2)?, *took.get(rounds * 99 / 100)?])
}

fn main() -> Result<(), Box<dyn Error>> {
    let eal = Eal::init(&EalConfig { hugepages: Hugepages::Never, ..EalConfig::default() })?;
    let cpus = heddle_dataplane::eal::allowed_cpus();
    let (near, far) = (cpus.first().copied().unwrap_or(0), cpus.get(1).copied().unwrap_or(0));
    let naps = |longest| {
        let longest = Duration::from_micros(longest);
        IdlePolicy::Backoff(Naps { longest, ..Naps::default() })
    };
    println!("policy           idle    no pause, us     pause 5 ms, us");
    println!("                 CPU %   p50      p99     p50      p99");
    let policies = [
        ("spin", IdlePolicy::Spin),
        ("back-off  50 us", naps(50)),
        ("back-off 500 us", naps(500)),
        ("back-off   5 ms", naps(5000)),
    ];
    for (i, (name, policy)) in policies.into_iter().enumerate() {
        let pool = Mempool::new(&eal, &MempoolConfig::for_mtu(1023, 1500))?;
        let config = PortConfig::new(pool);
        let run = |label: &str, rounds: usize, pause: Duration| -> Result<_, Box<dyn Error>> {
            let pair = format!("i{i}{label}");
            let (mut a, mut b) = Port::ring_pair(&eal, &pair, 64, &config, &config)?;
            let (Some(mut ours), Some(theirs)) = (a.take_queues().pop(), b.take_queues().pop())
            else {
                return Err("no queues".into());
            };
            let clock = Clock::new(&eal);
            let thread = LcoreWorker::spawn(&eal, far, "echo", move |stop| {
                echo(stop, theirs, clock, policy)
            })?;
            let pinger = LcoreWorker::spawn(&eal, near, "ping", move |_| {
                if rounds == 0 {
                    std::thread::sleep(IDLE);
                    return Some([Duration::ZERO; 2]);
                }
                ping(&mut ours, pool, rounds, pause)
            })?;
            let times = pinger.join()?.ok_or("no buffers")?;
            let share = thread.join()?.ok_or("no times of threads")?;
            Ok((share, times.map(|t| t.as_secs_f64() * 1e6)))
        };
        let (idle, _) = run("idle", 0, Duration::ZERO)?;
        let (_, fast) = run("fast", 50_000, Duration::ZERO)?;
        let (_, slow) = run("slow", 400, Duration::from_millis(5))?;
        let ([a, b], [c, d]) = (fast, slow);
        println!("{name:<15} {:>6.1} {a:>6.1} {b:>8.1} {c:>8.1} {d:>8.1}", idle * 100.0);
    }
    Ok(())
}
