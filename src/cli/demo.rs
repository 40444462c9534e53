//! `heddle demo`

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::{env, fs};

use heddle::rnic::random_seed;
use heddle::tcp::Cidr;
use heddle::units::{Size, Span};
use heddle::{EalConfig, Endpoint, EndpointConfig};
use heddle_perf::report::align;
use heddle_perf::transfer::{CHUNK, Hash, Moved, Mover, WINDOW};
use heddle_services::bench::Op;

use super::log::LogArgs;
use super::net::start_eal;
use super::progress::Line;
use super::{Failure, say};

/// Two RNICs in this process, joined by rings, move a file from one to the other.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to move, at most 256 MiB [default: this program]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Repeat the move in each direction for at least this time (10s, 500ms)
    #[arg(long, value_name = "T", default_value = "1s")]
    duration: Span,
    #[command(flatten)]
    log: LogArgs,
}

const MAX_FILE: u64 = 256 << 20;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let path = match &args.file {
        Some(path) => path.clone(),
        None => env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot tell where this program is: {e}")))?,
    };
    let (name, file) = (path.display(), read(&path)?);
    args.log.start();
    let seed = random_seed();
    let config = |ip: Ipv4Addr| EndpointConfig {
        memory: file.len() + (1 << 20),
        ..EndpointConfig::with_seed(
            Cidr::new(ip.into(), 24).into_iter().collect(),
            seed.derive(ip.octets()[3].into()),
        )
    };
    let (a, b) = (config(CLIENT), config(SERVER));
    let eal = start_eal(&a, 2, EalConfig::default())?;
    let (client, server) = Endpoint::ring_pair(&eal, "demo", &a, &b)?;
    let addr = SocketAddr::new(IpAddr::V4(SERVER), 7471);
    let len = file.len();
    let mut mover = Mover::new(client, server, addr, file)?;
    let mut moved = Vec::new();
    for op in [Op::Send, Op::Write, Op::WriteImm, Op::Read, Op::FetchAdd, Op::CmpSwap] {
        let _line = Line::start(op.to_string(), mover.progress.clone(), args.log.quiet);
        moved.push(mover.run(op, args.duration.0)?);
    }
    let chunk = Size(u32::try_from(CHUNK).unwrap_or(u32::MAX));
    say(&format!(
        "{name}: {len} bytes, SHA-256 {hash}\n\
         from one RNIC to another, rings between them, MTU {mtu}, CRC-32C; \
         operations of {chunk}, {WINDOW} outstanding\n\
         fetch-add and cmp-swap: 8 bytes each, all of them count in the same 64 bits of the peer's memory\n\
         p50 to max: microseconds from posting an operation to its completion\n\n",
        hash = hex(&mover.hash()),
        mtu = a.mtu,
    ));
    say(&table(&moved));
    let wrong: Vec<_> = moved.iter().filter(|m| m.wrong > 0).map(|m| m.op.to_string()).collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(Failure::failed(format!(
            "{name} arrived changed, or a count is wrong, by {}",
            wrong.join(" and ")
        )))
    }
}

fn table(moved: &[Moved]) -> String {
    let head =
        ["op", "passes", "ops", "bytes", "Gb/s", "p50", "p90", "p99", "p99.9", "max", "result"];
    let rows = moved.iter().map(|m| {
        let l = &m.latency;
        let mut row = vec![
            m.op.to_string(),
            m.passes.to_string(),
            m.ops.to_string(),
            m.bytes.to_string(),
            format!("{:.2}", m.bytes as f64 * 8e-9 / m.elapsed.as_secs_f64().max(1e-9)),
        ];
        row.extend(
            [l.p50, l.p90, l.p99, l.p999, l.max].map(|ns| format!("{:.1}", ns as f64 / 1e3)),
        );
        row.push(
            match (m.wrong, m.op.is_atomic()) {
                (0, false) => "same",
                (0, true) => "exact",
                (_, false) => "DIFFERENT",
                (_, true) => "MISCOUNTED",
            }
            .into(),
        );
        row
    });
    align(&head, rows, 1)
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display();
    let failed = |e: std::io::Error| Failure::failed(format!("cannot read {name}: {e}"));
    let about = fs::metadata(path).map_err(failed)?;
    if !about.is_file() {
        return Err(Failure::failed(format!("{name} is no regular file")));
    }
    if about.len() > MAX_FILE {
        return Err(Failure::failed(format!("{name} is larger than {} MiB", MAX_FILE >> 20)));
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    // A file that grows can yield more bytes than its metadata announced.
    if bytes.is_empty() || bytes.len() as u64 > MAX_FILE {
        return Err(Failure::failed(format!(
            "{name} is empty, or larger than {} MiB",
            MAX_FILE >> 20
        )));
    }
    Ok(bytes)
}

fn hex(hash: &Hash) -> String {
    hash.iter().map(|b| format!("{b:02x}")).collect()
}
