//! `heddle pcap`

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle::connection::ListenParams;
use heddle::dpdk::{Clock, PortSource, VdevArg};
use heddle::tcp::{Cidr, check_addrs};
use heddle::{EalConfig, Endpoint, EndpointConfig, Instant, Seed};
use heddle_services::{ServiceSpec, Services};

use super::log::LogArgs;
use super::mpa::MpaArgs;
use super::net::{cidr, mtu, start_eal};
use super::{Failure, capture, counters, say};

/// The RNIC receives the frames of one capture file, one per 10 us of virtual time, and writes its
/// answers into another. All randomness follows from --seed, so that the same input gives the same
/// output.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Capture file with the frames to receive
    #[arg(long, value_name = "FILE")]
    rx: PathBuf,
    /// Capture file for the sent frames
    #[arg(long, value_name = "FILE")]
    tx: PathBuf,
    /// Our address with its prefix; may be given several times
    #[arg(long = "ip", value_name = "CIDR", value_parser = cidr, required = true)]
    ips: Vec<Cidr>,
    /// A service and where it listens (10.0.0.1:7174=rping); may be given several times
    #[arg(long = "listen", value_name = "ADDR:PORT=SERVICE")]
    listen: Vec<ServiceSpec>,
    /// Bytes of an IP packet
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = mtu)]
    mtu: u16,
    #[command(flatten)]
    mpa: MpaArgs,
    /// The seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    log: LogArgs,
}

/// Virtual time of one poll.
const TICK: Duration = Duration::from_micros(10);

/// Virtual time without a frame after which the run ends: the RNIC has sent delayed
/// acknowledgements and first retransmissions by then.
const QUIET: Duration = Duration::from_secs(3);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    check_addrs(&args.ips, None).map_err(Failure::usage)?;
    let params = ListenParams::default().mpa(args.mpa.server()?);
    for path in [&args.rx, &args.tx] {
        // DPDK takes a comma as the start of its next argument.
        if path.as_os_str().to_str().is_none_or(|p| p.contains(',')) {
            return Err(Failure::usage(format!(
                "{}: a file name with a comma, or not in UTF-8",
                path.display()
            )));
        }
    }
    capture::check(&args.rx)
        .map_err(|e| Failure::failed(format!("cannot read {}: {e}", args.rx.display())))?;
    if is_same_file(&args.rx, &args.tx) {
        return Err(Failure::usage(format!(
            "--tx {} is the file of --rx: it would be written over",
            args.tx.display()
        )));
    }
    args.log.start();
    let (clock, hand) = Clock::manual();
    let config = EndpointConfig {
        clock: Some(clock),
        rx_burst: 1,
        mtu: args.mtu,
        ..EndpointConfig::with_seed(args.ips.clone(), Seed::from_u64(args.seed))
    };
    let eal = start_eal(&config, 1, EalConfig::default())?;
    let device = PortSource::Vdev(vdev(&args.rx, &args.tx)?);
    let mut endpoint = Endpoint::open(&eal, &device, &config)?;
    let mut services = Services::start(endpoint.device(), &args.listen, &params, None)?;
    let mut quiet = Duration::ZERO;
    let mut sent = Vec::new();
    while quiet < QUIET {
        let busy = endpoint.poll();
        if busy {
            let frames = usize::try_from(endpoint.snapshot().worker.tx.tx_frames);
            sent.resize(frames.unwrap_or(usize::MAX), hand.now());
        }
        let busy = services.step() || busy;
        hand.advance(TICK);
        quiet = if busy { Duration::ZERO } else { quiet + TICK };
    }
    drop(services);
    let s = endpoint.snapshot();
    drop(endpoint);
    stamp(&args.tx, &sent)
        .map_err(|e| Failure::failed(format!("cannot put times in {}: {e}", args.tx.display())))?;
    say(&counters::of_worker(&s.worker));
    Ok(())
}

/// Returns true if both names are of one file, however they are spelt or linked.
fn is_same_file(a: &Path, b: &Path) -> bool {
    let identity = |p: &Path| fs::metadata(p).ok().map(|m| (m.dev(), m.ino()));
    identity(a).is_some_and(|a| identity(b) == Some(a))
}

/// Replaces each frame's timestamp, which the device takes from the time of day, with the virtual
/// time at which the RNIC sent the frame.
fn stamp(path: &Path, sent: &[Instant]) -> io::Result<()> {
    const NANOSECONDS: u32 = 0xa1b2_3c4d;
    let file = File::options().read(true).write(true).open(path)?;
    let len = file.metadata()?.len();
    let word = |at: u64| {
        let mut b = [0; 4];
        file.read_exact_at(&mut b, at).map(|()| u32::from_ne_bytes(b))
    };
    // Without a frame the device may not even write a file header.
    if sent.is_empty() && len == 0 {
        return Ok(());
    }
    let unit = if word(0)? == NANOSECONDS { 1 } else { 1000 };
    let mut at = 24;
    for t in sent {
        let (s, ns) = (t.as_nanos() / 1_000_000_000, t.as_nanos() % 1_000_000_000);
        let parts = [s, ns / unit].map(|v| u32::try_from(v).unwrap_or(u32::MAX));
        file.write_all_at(&parts.map(u32::to_ne_bytes).concat(), at)?;
        at += 16 + u64::from(word(at + 8)?);
    }
    if at == len { Ok(()) } else { Err(io::Error::other("there are more frames than were sent")) }
}

fn vdev(rx: &Path, tx: &Path) -> Result<VdevArg, Failure> {
    let arg = format!("net_pcap0,rx_pcap={},tx_pcap={}", rx.display(), tx.display());
    arg.parse().map_err(Failure::usage)
}
