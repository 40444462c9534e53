//! Measures the cost of a thread that polls while it has nothing to do, and the time that a frame
//! or a doorbell then waits for the thread, under each policy of `heddle_dataplane::idle`.
//!
//! A pair of rings joins two threads. The first sends a frame, spins until the frame is back, and
//! waits for a while that the table names; the second sends back each frame, and rests in between
//! by the policy. For doorbells, the first thread rings instead, and spins until the second has
//! heard the bell; once with a thread that the bell wakes, and once with a thread that hears the
//! bell only at the end of its nap.
//!
//! ```sh
//! cargo run -p heddle-dataplane --example idle
//! ```

#![allow(clippy::print_stdout, reason = "what it is for")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use heddle_dataplane::{
    Clock, Eal, EalConfig, Hugepages, IdlePolicy, LcoreWorker, Mbuf, Mempool, MempoolConfig, Naps,
    Parker, Port, PortConfig, RxQueue, Stop, TxQueue,
};
use heddle_rings::wakeup::{WorkerSleeper, WorkerWakers};
use heddle_rings::{Area, Bells};

type Fault = Box<dyn Error + Send + Sync>;

/// How long the thread has nothing to do.
const IDLE: Duration = Duration::from_secs(2);

/// The pause between two frames or doorbells, in which the thread should fall asleep.
const PAUSE: Duration = Duration::from_millis(5);

/// Frames that follow each other, and round trips with a pause before each.
const STREAM: usize = 50_000;
const SINGLE: usize = 400;

/// Returns the time that the calling thread was on a processor.
fn on_processor() -> Result<Duration, Fault> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(Duration::from_nanos(text.split_whitespace().next().unwrap_or("0").parse()?))
}

/// A row of the table: a way to rest.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    policy: IdlePolicy,
    /// The thread polls a queue, which does not wake it.
    queue: bool,
}

/// The thread that rests.
struct Rests {
    row: Row,
    ends: (RxQueue, TxQueue),
    bells: Bells,
    heard: Arc<AtomicU64>,
    sleeper: Option<WorkerSleeper>,
    clock: Clock,
}

impl Rests {
    /// Sends back each frame until `stop` is set. Returns the share of a processor that the thread
    /// took.
    fn run(self, stop: &Stop) -> Option<f64> {
        let Rests { row, ends: (mut rx, mut tx), bells, heard, sleeper, clock } = self;
        let queues: &[&RxQueue] = if row.queue { &[&rx] } else { &[] };
        let mut parker = Parker::new(row.policy, clock, queues, sleeper);
        let (start, used) = (Instant::now(), on_processor().ok()?);
        let mut frames: ArrayVec<Mbuf, 32> = ArrayVec::new();
        while !stop.is_set() {
            let mut busy = row.queue && rx.burst(&mut frames) > 0;
            tx.burst(&mut frames);
            for _ in bells.take(0) {
                heard.fetch_add(1, Ordering::Release);
                busy = true;
            }
            parker.turn(busy, || None, || rx.counters().rx_frames);
        }
        let used = on_processor().ok()?.saturating_sub(used);
        Some(used.as_secs_f64() / start.elapsed().as_secs_f64())
    }
}

/// Returns the median and the 99th percentile of the durations of `once`, with a pause before each
/// call.
fn times(rounds: usize, pause: Duration, mut once: impl FnMut() -> Option<()>) -> Option<[f64; 2]> {
    let mut took = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let start = Instant::now();
        once()?;
        took.push(start.elapsed().as_secs_f64() * 1e6);
    }
    took.sort_by(f64::total_cmp);
    Some([*took.get(rounds / 2)?, *took.get(rounds * 99 / 100)?])
}

/// Sends a frame and waits until it is back.
fn exchange(ends: &mut (RxQueue, TxQueue), pool: Mempool) -> Option<()> {
    let mut frames: ArrayVec<Mbuf, 1> = ArrayVec::new();
    let mut frame = pool.alloc()?;
    frame.append(64)?.fill(1);
    frames.push(frame);
    ends.1.burst(&mut frames);
    while ends.0.burst(&mut frames) == 0 {
        std::hint::spin_loop();
    }
    Some(())
}

/// The thing to measure.
#[derive(Clone, Copy, PartialEq)]
enum What {
    /// A thread with nothing to do.
    Idle,
    Frames(usize, Duration),
    Bells {
        woken: bool,
    },
}

struct Harness {
    eal: Eal,
    cpus: [usize; 2],
    runs: usize,
}

impl Harness {
    /// Returns the share of a processor, and the times.
    fn run(&mut self, row: Row, what: What) -> Result<(f64, [f64; 2]), Fault> {
        self.runs += 1;
        let pool = Mempool::new(&self.eal, &MempoolConfig::for_mtu(1023, 1500))?;
        let config = PortConfig::new(pool);
        let name = format!("i{}", self.runs);
        let (mut a, mut b) = Port::ring_pair(&self.eal, &name, 64, &config, &config)?;
        let (Some(mut ours), Some(ends)) = (a.take_queues().pop(), b.take_queues().pop()) else {
            return Err("no queues".into());
        };
        let wakers = WorkerWakers::new(1)?;
        let woken = what != What::Bells { woken: false } && row.policy != IdlePolicy::Spin;
        let sleeper = if woken { Some(wakers.sleeper(&[0])?) } else { None };
        let bells = Bells::new(&Area::new(Bells::bytes(1))?, 1)?.waking(Some(wakers.clone()));
        let (heard, clock) = (Arc::new(AtomicU64::new(0)), Clock::new(&self.eal));
        let rests = Rests { row, ends, bells: bells.clone(), heard: heard.clone(), sleeper, clock };
        let thread =
            LcoreWorker::spawn(&self.eal, self.cpus[1], "rests", move |stop| rests.run(stop))?;
        let other = LcoreWorker::spawn(&self.eal, self.cpus[0], "asks", move |_| match what {
            What::Idle => {
                std::thread::sleep(IDLE);
                Some([0.0; 2])
            }
            What::Frames(rounds, pause) => times(rounds, pause, || exchange(&mut ours, pool)),
            What::Bells { .. } => times(SINGLE, PAUSE, || {
                let n = heard.load(Ordering::Acquire);
                bells.ring(0, 7);
                while heard.load(Ordering::Acquire) == n {
                    std::hint::spin_loop();
                }
                Some(())
            }),
        })?;
        let times = other.join()?.ok_or("no buffers")?;
        thread.stop();
        wakers.wake_all();
        Ok((thread.join()?.ok_or("no times of threads")?, times))
    }
}

fn main() -> Result<(), Fault> {
    let eal = Eal::init(&EalConfig { hugepages: Hugepages::Never, ..EalConfig::default() })?;
    let cpus = heddle_dataplane::eal::allowed_cpus();
    let near = cpus.first().copied().unwrap_or(0);
    let mut harness = Harness { eal, cpus: [near, cpus.get(1).copied().unwrap_or(near)], runs: 0 };
    let naps = |longest| {
        let longest = Duration::from_micros(longest);
        IdlePolicy::Backoff(Naps { longest, ..Naps::default() })
    };
    println!(
        "                   idle   frames, us       5 ms before, us    doorbell, 5 ms before, us"
    );
    println!(
        "policy             CPU %  p50      p99     p50      p99       woken p50 p99     not p50 p99"
    );
    for (name, policy, queue) in [
        ("spin", IdlePolicy::Spin, true),
        ("back-off  50 us", naps(50), true),
        ("back-off 500 us", naps(500), true),
        ("back-off   5 ms", naps(5000), true),
        ("no queue", naps(500), false),
    ] {
        let row = Row { name, policy, queue };
        let (idle, _) = harness.run(row, What::Idle)?;
        let frames = |harness: &mut Harness, rounds, pause| match queue {
            true => harness.run(row, What::Frames(rounds, pause)).map(|r| r.1),
            false => Ok([f64::NAN; 2]),
        };
        let [a, b] = frames(&mut harness, STREAM, Duration::ZERO)?;
        let [c, d] = frames(&mut harness, SINGLE, PAUSE)?;
        let (_, [e, f]) = harness.run(row, What::Bells { woken: true })?;
        let (_, [g, h]) = harness.run(row, What::Bells { woken: false })?;
        println!(
            "{:<17} {:>6.2} {a:>6.1} {b:>8.1} {c:>8.1} {d:>8.1} {e:>10.1} {f:>8.1} {g:>8.1} {h:>8.1}",
            row.name,
            idle * 100.0
        );
    }
    Ok(())
}
