//! Measures what frames of attackers cost a stack, and a connection beside them.
//!
//! All times are those that the processor spends on the thread, so that other work of a shared machine
//! takes none of them. First the time for each kind of hostile frame. Then ten million SYNs from random
//! addresses, as fast as the stack takes them. Then a connection that sends as fast as it can, alone and
//! beside so many SYNs a second, in turns, so that both see the same load of the machine. The time of
//! the processor is then the stack's clock as well.
//!
//! ```sh
//! cargo run --release -p heddle-perf --example hostile_frames -- 10000000
//! ```
//!
//! The arguments are the number of SYNs, of rounds (9), and the milliseconds of a turn (200).

#![allow(clippy::print_stdout, reason = "what it is for")]

use std::error::Error;
use std::time::Duration;

use heddle_perf::hostile::{BURST, Hostile, Victim};
use nix::time::{ClockId, clock_gettime};

type Fault = Box<dyn Error + Send + Sync>;

/// Frames made at a time, which the measured time leaves out.
const BATCH: usize = 64 * BURST;

/// SYNs a second beside the connection.
const FLOODS: [u32; 4] = [10_000, 100_000, 300_000, 1_000_000];

/// Returns the time that the processor has spent on this thread: on a shared machine, others take none of
/// it.
fn processor_time() -> Duration {
    // The call fails only for a clock that the kernel does not have.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Returns the nanoseconds for each of `n` frames.
fn cost(victim: &mut Victim, kind: Hostile, n: usize) -> f64 {
    let (mut took, mut done) = (Duration::ZERO, 0);
    while done < n {
        let frames = victim.frames(kind, BATCH.min(n - done));
        let begin = processor_time();
        victim.take(&frames);
        took += processor_time().saturating_sub(begin);
        done += frames.len();
    }
    took.as_secs_f64() * 1e9 / done as f64
}

/// Sends for `turn` beside `rate` SYNs a second, with work for the connection in every turn. Returns
/// Gbit/s.
fn goodput(victim: &mut Victim, rate: u32, turn: Duration) -> f64 {
    victim.set_busy(true);
    let pool = victim.frames(Hostile::Syn, BATCH);
    let mut floods = pool.chunks(BURST).cycle();
    let (begin, mut bytes, mut sent) = (processor_time(), 0, 0.0);
    loop {
        let now = processor_time();
        victim.set_clock(now);
        let elapsed = now.saturating_sub(begin);
        if elapsed >= turn {
            return bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9;
        }
        if elapsed.as_secs_f64() * f64::from(rate) >= sent + BURST as f64 {
            if let Some(burst) = floods.next() {
                victim.take(burst);
            }
            sent += BURST as f64;
        }
        bytes += victim.exchange();
    }
}

fn main() -> Result<(), Fault> {
    let mut args = std::env::args().skip(1);
    let mut next = |default: usize| args.next().map_or(Ok(default), |arg| arg.parse());
    let (syns, rounds) = (next(10_000_000)?, next(9)?.max(1));
    let turn = Duration::from_millis(next(200)?.try_into()?);
    let open = |is_ipv6| Victim::new(is_ipv6).ok_or("the handshake of the connection failed");
    for (name, is_ipv6) in [("IPv4", false), ("IPv6", true)] {
        for kind in Hostile::ALL {
            let mut victim = open(is_ipv6)?;
            cost(&mut victim, Hostile::Syn, BATCH);
            let all = (0..5).map(|_| cost(&mut victim, kind, 16 * BATCH)).collect();
            println!("{name} {kind:<10} {:6.0} ns", median(all));
        }
    }
    let mut victim = open(false)?;
    let each = cost(&mut victim, Hostile::Syn, syns);
    let c = victim.counters();
    println!(
        "{syns} SYNs: {each:.0} ns each, {:.2} million a second; {} cookies, {} half-open \
         connections, {} of them now",
        1e3 / each,
        c.syn_cookies_sent,
        c.half_opened,
        victim.connections() - 1,
    );
    if !victim.still_works() {
        return Err("the connection has ended".into());
    }
    for rate in FLOODS {
        let mut victims = [open(false)?, open(false)?];
        let (mut rates, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        for round in 0..rounds {
            let mut now = [0.0; 2];
            // Each is first in every other round.
            for i in [round % 2, 1 - round % 2] {
                now[i] = goodput(&mut victims[i], if i == 0 { 0 } else { rate }, turn);
                rates[i].push(now[i]);
            }
            ratios.push(now[1] / now[0]);
        }
        let [alone, beside] = rates.map(median);
        println!(
            "alone {alone:.2} Gb/s, beside {rate} SYNs a second {beside:.2} Gb/s, ratio {:.3}",
            median(ratios)
        );
    }
    Ok(())
}
