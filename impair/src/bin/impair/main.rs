//! Joins two tap devices by a wire that loses, delays and changes frames.
//!
//! ```text
//! impair --tap-a NAME --tap-b NAME [--both SETTINGS] [--a-to-b SETTINGS] [--b-to-a SETTINGS]
//! ```
//!
//! The program makes both interfaces, reports on stderr that it is ready, and bridges until SIGTERM
//! or SIGINT. Then, and on SIGUSR1, it prints its counters on stdout, as a line of JSON. Exit
//! status: 0; 1 when a device failed; 2 for wrong usage.

mod tap;

use std::error::Error;
use std::io::{self, Write as _};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use heddle_base::units::Span;
use heddle_base::{Instant, Seed};
use heddle_impair::{Link, Settings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

use tap::Tap;

/// A bridge between two tap devices that impairs the frames of each direction.
///
/// SETTINGS are separated by commas: loss=1%, burst=ENTER:LEAVE or ENTER:LEAVE:LOSS
/// (Gilbert-Elliott), delay=5ms, jitter=1ms, unordered (jitter may change the order), reorder=1% or
/// 1%:1ms, dup=1%, corrupt=1%, rate=1Gbit/s, queue=64K (drop-tail, bytes), mark=30K (ECN above so
/// many bytes in the queue), ce=1% (marks at random), syn-ecn=not-ect, ect0, ect1 or ce (the ECN field
/// of SYNs), drop-ecn-syn (drops SYNs that ask for ECN), clear-ace (clears AE, CWR and ECE but in SYNs),
/// bleach (clears the ECN field), mtu=1400, silent (no ICMP error about longer packets).
#[derive(Debug, Parser)]
struct Args {
    /// The interface of the first host
    #[arg(long, value_name = "NAME")]
    tap_a: String,
    /// The interface of the second host
    #[arg(long, value_name = "NAME")]
    tap_b: String,
    /// The impairments of each direction that has none of its own
    #[arg(long, value_name = "SETTINGS", default_value = "")]
    both: Settings,
    /// The impairments from the first host to the second
    #[arg(long, value_name = "SETTINGS")]
    a_to_b: Option<Settings>,
    /// The impairments from the second host to the first
    #[arg(long, value_name = "SETTINGS")]
    b_to_a: Option<Settings>,
    /// The seed of all that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Poll instead of sleeping when a frame is due within this time
    #[arg(long, value_name = "T", default_value = "0us")]
    spin: Span,
}

/// Frames taken from a device, and frames delivered, before others have their turn. A frame's time
/// begins when the bridge takes it, and each frame costs the kernel some microseconds: with long
/// turns, frames would seem to arrive in bursts that the sender did not send.
const BURST: usize = 8;
/// The longest frame of a device: an IP packet of 64 KiB behind an Ethernet header.
const LONGEST: usize = (64 << 10) + 64;
/// The longest sleep: a signal that comes right before it is seen after this time.
const NAP: Duration = Duration::from_millis(50);
/// A frame delivered later than this is counted as late.
const LATE: Duration = Duration::from_micros(200);

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(io::stderr(), "impair: {e}");
            ExitCode::FAILURE
        }
    }
}

/// How punctual the bridge itself was.
#[derive(Default)]
struct Lateness {
    late: u64,
    most: Duration,
    sum: Duration,
}

/// A direction of the wire: its link, and what became of the frames at the device they go to.
struct Direction {
    link: Link,
    refused: u64,
    lateness: Lateness,
}

impl Direction {
    fn new(settings: &Settings, seed: &Seed) -> Direction {
        let link = Link::new(settings.clone(), seed);
        Direction { link, refused: 0, lateness: Lateness::default() }
    }

    /// Hands the frames that are due to the device. Returns true if there may be more.
    fn deliver(&mut self, now: impl Fn() -> Instant, to: &mut Tap) -> bool {
        for _ in 0..BURST {
            let now = now();
            let Some((due, frame)) = self.link.pop(now) else { return false };
            let late = now.since(due);
            self.lateness.sum += late;
            self.lateness.most = self.lateness.most.max(late);
            self.lateness.late += u64::from(late > LATE);
            self.refused += u64::from(!to.write(&frame));
            self.link.recycle(frame);
        }
        true
    }

    fn to_json(&self) -> Value {
        let mut all = Map::new();
        self.link.counters().for_each(|name, _, value| {
            all.insert(name.to_owned(), value.into());
        });
        all.insert("refused".into(), self.refused.into());
        all.insert("late".into(), self.lateness.late.into());
        let micros = |t: Duration| t.as_secs_f64() * 1e6;
        all.insert("most_late_us".into(), micros(self.lateness.most).into());
        all.insert("sum_late_us".into(), micros(self.lateness.sum).into());
        Value::Object(all)
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let flags = [SIGTERM, SIGINT, SIGUSR1].map(|signal| (signal, Arc::new(AtomicBool::new(false))));
    for (signal, flag) in &flags {
        signal_hook::flag::register(*signal, flag.clone())?;
    }
    let [stop, interrupted, asked] = flags.map(|(_, flag)| flag);
    let open =
        |name: &str| Tap::new(name).map_err(|e| format!("cannot make the tap device {name}: {e}"));
    let mut taps = [open(&args.tap_a)?, open(&args.tap_b)?];
    let seed = Seed::from_u64(args.seed);
    let mut ways = [(&args.a_to_b, 1), (&args.b_to_a, 2)]
        .map(|(own, n)| Direction::new(own.as_ref().unwrap_or(&args.both), &seed.derive(n)));
    // By default the kernel wakes a sleeper up to 50 us late to save a wake-up.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let start = std::time::Instant::now();
    let now = || Instant::from_nanos(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    writeln!(io::stderr(), "impair: ready: {} and {}", args.tap_a, args.tap_b)?;

    let mut buf = vec![0; LONGEST];
    while !stop.load(Ordering::Relaxed) && !interrupted.load(Ordering::Relaxed) {
        if asked.swap(false, Ordering::Relaxed) {
            say(&ways)?;
        }
        let ([a, b], [there, back]) = (&mut taps, &mut ways);
        let more = [pass(there, a, b, &mut buf, now)?, pass(back, b, a, &mut buf, now)?];
        let next = ways.iter().filter_map(|way| way.link.next()).min();
        let sleep = next.map_or(NAP, |due| due.since(now()).min(NAP));
        if more == [false, false] && sleep > args.spin.0 {
            wait(&taps, sleep)?;
        }
    }
    say(&ways)?;
    Ok(())
}

/// Takes frames that a host has sent, and delivers those of its direction that are due. Returns true
/// if there may be more of either.
fn pass(
    way: &mut Direction,
    from: &mut Tap,
    to: &mut Tap,
    buf: &mut [u8],
    now: impl Fn() -> Instant,
) -> io::Result<bool> {
    let mut taken = 0;
    while taken < BURST
        && let Some(frame) = from.read(buf)?
    {
        taken += 1;
        if let Some(answer) = way.link.push(now(), frame) {
            way.refused += u64::from(!from.write(&answer));
        }
    }
    Ok(way.deliver(now, to) || taken == BURST)
}

/// Sleeps until a host has sent a frame, or for this time.
fn wait(taps: &[Tap; 2], time: Duration) -> io::Result<()> {
    let mut fds = [0, 1].map(|n| PollFd::new(&taps[n], PollFlags::IN));
    let time = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(0),
        tv_nsec: time.subsec_nanos().into(),
    };
    match poll(&mut fds, Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn say(ways: &[Direction; 2]) -> io::Result<()> {
    let all = json!({ "a_to_b": ways[0].to_json(), "b_to_a": ways[1].to_json() });
    let mut out = io::stdout().lock();
    writeln!(out, "{all}")?;
    out.flush()
}
