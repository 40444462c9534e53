//! smoltcp's TCP alone, for `scripts/bench --peers`: both hosts on one thread.
//!
//! ```text
//! smoltcp [--mode bw|lat] [--size N] [--mtu N] [--seconds S]
//!         [--buffer BYTES --link FRAMES --receive copy|in-place]
//! ```
//!
//! Mode `bw` measures throughput with writes of `--size` bytes, and first tries settings unless it is
//! given some; mode `lat` measures round trips. The program writes one JSON object: the figure, and
//! the settings that a later run can be given. Exit status: 0; 1 when smoltcp failed; 2 for wrong
//! usage.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::RangedI64ValueParser;
use clap::{Parser, ValueEnum};
use heddle_perf::baseline::smoltcp::{Bulk, PingPong, Receive, SmoltcpError};
use serde_json::{Value, json};

/// smoltcp's TCP on one thread
#[derive(Debug, Parser)]
struct Args {
    /// The figure to measure
    #[arg(long, value_enum, default_value_t = Mode::Bw)]
    mode: Mode,
    /// Bytes of a write or of a message
    #[arg(long, value_name = "N", default_value_t = 64 << 10, value_parser = up_to(8 << 20))]
    size: u32,
    /// Bytes of an IP packet
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = mtu())]
    mtu: u16,
    /// Seconds of the measurement
    #[arg(long, default_value_t = 1, value_parser = up_to(3600))]
    seconds: u32,
    /// Bytes of each socket buffer
    #[arg(long, value_name = "BYTES", requires = "link", value_parser = up_to(64 << 20))]
    buffer: Option<u32>,
    /// Frames that the link holds in one direction
    #[arg(long, value_name = "FRAMES", requires = "receive", value_parser = up_to(65536))]
    link: Option<u32>,
    /// How the program reads
    #[arg(long, value_enum, requires = "buffer")]
    receive: Option<How>,
}

fn up_to(most: u32) -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(1..=i64::from(most))
}

fn mtu() -> RangedI64ValueParser<u16> {
    RangedI64ValueParser::new().range(576..=9000)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Throughput
    Bw,
    /// Round trips
    Lat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum How {
    /// Copied out of the socket's buffer
    Copy,
    /// Where they lie in that buffer
    InPlace,
}

/// The duration of a trial of settings, of which there are 36.
const TRIAL: Duration = Duration::from_millis(40);

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(figures) => {
            // A reader that has closed the pipe is no error.
            let _ = writeln!(io::stdout(), "{figures}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            let _ = writeln!(io::stderr(), "{e}");
            ExitCode::from(1)
        }
    }
}

fn measure(args: &Args) -> Result<Value, SmoltcpError> {
    let (mtu, duration) = (usize::from(args.mtu), Duration::from_secs(args.seconds.into()));
    let size = args.size as usize;
    if args.mode == Mode::Lat {
        let latency = PingPong { mtu, size, duration }.run()?;
        let mean = duration.as_secs_f64() * 1e6 / latency.count as f64;
        return Ok(json!({"mean_us": mean, "p50_us": latency.p50 as f64 / 1e3}));
    }
    let found = match (args.buffer, args.link, args.receive) {
        (Some(buffer), Some(link), Some(how)) => {
            let receive = if how == How::Copy { Receive::Copy } else { Receive::InPlace };
            let of = Bulk::new(buffer as usize, receive, duration);
            Bulk { mtu, link: link as usize, message: size, ..of }
        }
        _ => Bulk { duration, ..Bulk::fastest(mtu, size, TRIAL)? },
    };
    let how = if found.receive == Receive::Copy { "copy" } else { "in-place" };
    Ok(json!({
        "gbit_per_s": found.run()?.gbit_per_s(),
        "buffer": found.buffer,
        "link": found.link,
        "receive": how,
    }))
}
