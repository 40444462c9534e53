//! The parts of a report that describe the host.

use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use heddle_dataplane::{Interface, eal, lcore};

use super::Parts;

/// Most bytes of a file in a report.
const MOST: u64 = 4 << 20;

/// Returns the version of this program and of the linked DPDK.
pub(super) fn version() -> String {
    format!("heddle {}\nruns with {}\n", crate::cli::version(), eal::version())
}

/// Reads a file.
///
/// # Errors
/// The reason, in one line.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    // Opening a FIFO waits for a writer.
    if !fs::metadata(path).map_err(fail)?.is_file() {
        return Err(format!("{} is no file", path.display()));
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(fail)?.take(MOST).read_to_end(&mut bytes).map_err(fail)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(super) fn collect(parts: &mut Parts) {
    for (name, what, path) in [
        ("kernel.txt", "kernel of the host", "/proc/version"),
        ("cmdline.txt", "options with which the kernel was started", "/proc/cmdline"),
        ("os-release.txt", "distribution", "/etc/os-release"),
        ("cpuinfo.txt", "processors", "/proc/cpuinfo"),
        ("meminfo.txt", "memory", "/proc/meminfo"),
        ("net-dev.txt", "counters of interfaces", "/proc/self/net/dev"),
        ("mounts.txt", "mounted file systems", "/proc/self/mounts"),
    ] {
        parts.add(name, what, read(Path::new(path)));
    }
    parts.add("interfaces.txt", "interfaces of this network namespace", Ok(interfaces()));
    parts.add("hugepages.txt", "hugepages that are free", Ok(hugepages()));
    parts.add("pci.txt", "network devices on PCI, and their kernel drivers", pci());
    let cpus = lcore::available();
    parts.add("processors.txt", "processors that this process may use", Ok(format!("{cpus:?}\n")));
}

fn interfaces() -> String {
    let mut text = String::new();
    for name in heddle_daemon::interfaces::listed() {
        // Writing to a string cannot fail.
        let _ = match Interface::named(&name) {
            Ok(Some(Interface { mtu, up, running })) => {
                writeln!(text, "{name}: MTU {mtu}, up {up}, carrier {running}")
            }
            Ok(None) => writeln!(text, "{name}: gone"),
            Err(e) => writeln!(text, "{name}: {e}"),
        };
    }
    text
}

fn hugepages() -> String {
    let mut text = String::new();
    for (bytes, free) in eal::free_hugepages() {
        let _ = writeln!(text, "{} KiB: {free} free", bytes >> 10);
    }
    if text.is_empty() { "none\n".into() } else { text }
}

/// Lists PCI devices of the class of networks (0x02), and devices that wait for a driver of DPDK.
fn pci() -> Result<String, String> {
    let dir = Path::new("/sys/bus/pci/devices");
    let entries = fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut lines = Vec::new();
    for at in entries.flatten().map(|e| e.path()) {
        let value = |file: &str| fs::read_to_string(at.join(file)).unwrap_or_default();
        let value = |file: &str| value(file).trim().trim_start_matches("0x").to_owned();
        let class = value("class");
        if !class.starts_with("02") {
            continue;
        }
        let driver = fs::read_link(at.join("driver")).ok();
        let driver = driver.as_deref().and_then(Path::file_name);
        let driver = driver.map_or_else(|| "none".into(), |d| d.to_string_lossy().into_owned());
        let name = at.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (vendor, device, node) = (value("vendor"), value("device"), value("numa_node"));
        lines.push(format!("{name} {vendor}:{device}, driver {driver}, node {node}\n"));
    }
    lines.sort();
    Ok(if lines.is_empty() { "none\n".into() } else { lines.concat() })
}
