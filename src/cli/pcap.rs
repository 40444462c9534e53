//! `heddle pcap`

use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle::perf::report::align;
use heddle::perf::service::{ServiceSpec, Services};
use heddle::{Cidr, Clock, Endpoint, EndpointConfig, ListenParams, PortSource, Seed, VdevArg};

use super::log::LogArgs;
use super::net::{cidr, start_eal};
use super::{Failure, say};

/// Frames of one capture file come in, what is answered goes into another. Time is virtual and all
/// randomness follows from --seed, so that the same input gives the same output.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Capture file with the frames to receive
    #[arg(long, value_name = "FILE")]
    rx: PathBuf,
    /// Capture file for the frames that are sent
    #[arg(long, value_name = "FILE")]
    tx: PathBuf,
    /// Our address with its prefix; may be given several times
    #[arg(long = "ip", value_name = "CIDR", value_parser = cidr, required = true)]
    ips: Vec<Cidr>,
    /// A service and where it listens (10.0.0.1:7174=rping); may be given several times
    #[arg(long = "listen", value_name = "ADDR:PORT=SERVICE")]
    listen: Vec<ServiceSpec>,
    /// From which everything random follows
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    log: LogArgs,
}

/// Virtual time of one poll.
const TICK: Duration = Duration::from_micros(10);

/// Virtual time without a frame after which the run is over: delayed acknowledgements and first
/// retransmissions have gone out by then.
const QUIET: Duration = Duration::from_secs(3);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    for path in [&args.rx, &args.tx] {
        // DPDK takes a comma for the start of the next argument.
        if path.as_os_str().to_str().is_none_or(|p| p.contains(',')) {
            return Err(Failure::usage(format!(
                "{}: a file name with a comma, or not in UTF-8",
                path.display()
            )));
        }
    }
    std::fs::File::open(&args.rx)
        .map_err(|e| Failure::failed(format!("cannot read {}: {e}", args.rx.display())))?;
    args.log.start();
    let (clock, hand) = Clock::manual();
    let config = EndpointConfig {
        clock: Some(clock),
        ..EndpointConfig::new(args.ips.clone(), Seed::from_u64(args.seed))
    };
    let eal = start_eal(&config, 1, Vec::new())?;
    let device = PortSource::Vdev(vdev(&args.rx, &args.tx)?);
    let mut endpoint = Endpoint::open(&eal, &device, &config)?;
    let mut services =
        Services::start(endpoint.device(), &args.listen, &ListenParams::default(), None)?;
    let mut quiet = Duration::ZERO;
    while quiet < QUIET {
        let busy = endpoint.poll();
        let busy = services.step() || busy;
        hand.advance(TICK);
        quiet = if busy { Duration::ZERO } else { quiet + TICK };
    }
    drop(services);
    let s = endpoint.snapshot();
    let mut rows = Vec::new();
    s.worker.for_each(|group, name, _, value| {
        if value > 0 {
            rows.push(vec![group.to_string(), name.to_string(), value.to_string()]);
        }
    });
    // How often it looked in vain says nothing.
    rows.retain(|r| r[1] != "polls" && r[1] != "busy_polls");
    say(&align(&["part", "counter", "value"], rows, 2));
    Ok(())
}

fn vdev(rx: &Path, tx: &Path) -> Result<VdevArg, Failure> {
    let arg = format!("net_pcap0,rx_pcap={},tx_pcap={}", rx.display(), tx.display());
    arg.parse().map_err(Failure::usage)
}
