//! `heddle demo`

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use heddle::perf::report::align;
use heddle::perf::spec::Op;
use heddle::perf::transfer::{Hash, Mover, hash};
use heddle::perf::workload::pattern;
use heddle::{Cidr, Endpoint, EndpointConfig};

use super::log::LogArgs;
use super::net::{random_seed, start_eal};
use super::{Failure, say};

/// Two RNICs in this process, joined by rings, move a file from one to the other.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to move, at most 256 MiB [default: 16 MiB of random octets]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    #[command(flatten)]
    log: LogArgs,
}

const MAX_FILE: u64 = 256 << 20;
const DEFAULT_LEN: usize = 16 << 20;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (name, bytes) = read(args)?;
    args.log.start();
    let seed = random_seed()?;
    let config = |ip: Ipv4Addr| EndpointConfig {
        memory: bytes.len() + (1 << 20),
        ..EndpointConfig::new(
            Cidr::new(ip.into(), 24).into_iter().collect(),
            seed.derive(ip.octets()[3].into()),
        )
    };
    let (a, b) = (config(CLIENT), config(SERVER));
    let eal = start_eal(&a, 2, Vec::new())?;
    let (client, server) = Endpoint::ring_pair(&eal, "demo", &a, &b)?;
    let addr = SocketAddr::new(IpAddr::V4(SERVER), 7471);
    let mut mover = Mover::new(client, server, addr, bytes.len())?;
    let want = hash(&bytes);
    let mut rows = Vec::new();
    let mut wrong = Vec::new();
    for op in [Op::Send, Op::Write, Op::Read] {
        let moved = mover.run(op, &bytes)?;
        let seconds = moved.elapsed.as_secs_f64();
        if moved.hash != want {
            wrong.push(op.to_string());
        }
        rows.push(vec![
            op.to_string(),
            moved.ops.to_string(),
            moved.bytes.to_string(),
            format!("{:.3}", seconds * 1e3),
            format!("{:.2}", moved.bytes as f64 * 8e-9 / seconds.max(1e-9)),
            hex(&moved.hash),
            if moved.hash == want { "same" } else { "DIFFERENT" }.into(),
        ]);
    }
    say(&format!("{name}: {} bytes, SHA-256 {}\n", bytes.len(), hex(&want)));
    say(&align(&["op", "ops", "bytes", "ms", "Gb/s", "SHA-256 of what arrived", ""], rows, 1));
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(Failure::failed(format!("{name} arrived changed by {}", wrong.join(" and "))))
    }
}

fn read(args: &Args) -> Result<(String, Vec<u8>), Failure> {
    let Some(path) = &args.file else {
        let mut bytes = vec![0; DEFAULT_LEN];
        pattern::fill(&mut bytes, u64::from(std::process::id()), 0);
        return Ok(("random octets".into(), bytes));
    };
    let name = path.display().to_string();
    let failed = |e: std::io::Error| Failure::failed(format!("cannot read {name}: {e}"));
    let len = fs::metadata(path).map_err(failed)?.len();
    if len > MAX_FILE {
        return Err(Failure::failed(format!("{name} is larger than {} MiB", MAX_FILE >> 20)));
    }
    let bytes = fs::read(path).map_err(failed)?;
    // A device or a file that grows can give more than was announced.
    if bytes.is_empty() || bytes.len() as u64 > MAX_FILE {
        return Err(Failure::failed(format!(
            "{name} is empty, or larger than {} MiB",
            MAX_FILE >> 20
        )));
    }
    Ok((name, bytes))
}

fn hex(hash: &Hash) -> String {
    hash.iter().map(|b| format!("{b:02x}")).collect()
}
