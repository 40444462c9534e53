//! `heddle serve --private`

use std::env;
use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use heddle::daemon;
use heddle::daemon::config::{Config, Log, LogFormat, Private};
use heddle::daemon::private::Place;
use tracing_subscriber::filter::LevelFilter;

use super::Args;
use crate::cli::{Failure, counters, say};

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let place = match &args.socket {
        Some(socket) => Place::at(std::path::absolute(socket)?),
        None => {
            let runtime = env::var_os("XDG_RUNTIME_DIR");
            Place::of_user(runtime.as_deref().map(Path::new)).map_err(Failure::failed)?
        }
    };
    if args.detach {
        return detach(args, &place);
    }
    // Before anything of another RNIC is touched, be it a leftover.
    let _lock = place.lock().map_err(Failure::failed)?;
    if let Some(log) = &args.log_to {
        redirect(log).map_err(|e| Failure::failed(format!("the log {}: {e}", log.display())))?;
    }
    let usual = if args.log_to.is_some() { LevelFilter::INFO } else { LevelFilter::WARN };
    let log = Log { level: args.log.level_or(usual), format: LogFormat::Text };
    let private = Private { grace: args.grace.0 };
    let mut config = Config::private(&place.socket, private, log);
    config.inner.own.addrs = host_addresses();
    let counted = daemon::run(config, None, say).map_err(Failure::of_start)?;
    if args.log_to.is_none() {
        say(&counters::of_rnic(&counted));
    }
    Ok(())
}

/// Starts it in a session of its own, whose terminal and signals are nobody's, and ends: so it is no child of
/// the program that `heddle run` becomes.
fn detach(args: &Args, place: &Place) -> Result<(), Failure> {
    // Refused to the leader of a process group, which this is when a person starts it.
    let _ = rustix::process::setsid();
    let mut command = Command::new(env::current_exe()?);
    command.args(["serve", "--private", "--socket"]).arg(&place.socket);
    command.arg("--log-to").arg(place.log());
    command.arg("--grace").arg(format!("{}ms", args.grace.0.as_millis()));
    keep_to_standard_files();
    // Standard error is the starter's until it has its log: what goes wrong before is said there.
    command.stdin(Stdio::null()).stdout(Stdio::null()).current_dir("/").spawn()?;
    Ok(())
}

/// Has the RNIC inherit no descriptor that is open here by accident, as those of a shell's pipes: whoever
/// reads there would wait for the RNIC's end.
fn keep_to_standard_files() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call marks descriptors, which stay open and whose owners stay; where the kernel does not
    // know it, since before Linux 5.11, nothing happens.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}

/// Has standard error and output go to a file of this run.
fn redirect(log: &Path) -> std::io::Result<()> {
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600).custom_flags(nofollow);
    let file = options.open(log)?;
    rustix::stdio::dup2_stdout(&file)?;
    rustix::stdio::dup2_stderr(&file)?;
    Ok(())
}

/// The addresses of this host's interfaces: programs find each other by the host's name, too. There are none where the
/// system does not say.
fn host_addresses() -> Vec<IpAddr> {
    let mut list = std::ptr::null_mut();
    // SAFETY: fills in the head of a list, which is ours until it is given back.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut addrs = Vec::new();
    let mut next = list;
    // SAFETY: entries of the list, which is live.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: null, or an address that is as long as its family says.
        let family = unsafe { entry.ifa_addr.as_ref() }.map(|addr| i32::from(addr.sa_family));
        if family != Some(libc::AF_INET) || entry.ifa_flags & libc::IFF_UP.cast_unsigned() == 0 {
            continue;
        }
        // SAFETY: the family says that it is one of IPv4, whatever its alignment.
        let addr = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
        let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
        if !ip.is_loopback() && !ip.is_unspecified() && !addrs.contains(&IpAddr::V4(ip)) {
            addrs.push(IpAddr::V4(ip));
        }
    }
    // SAFETY: as it was taken.
    unsafe { libc::freeifaddrs(list) };
    addrs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_addresses_of_the_host_are_those_that_ip_shows() {
        let out = Command::new("ip").args(["-4", "-o", "addr", "show", "up"]).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        let cidr = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
        let ip = |cidr: String| cidr.split('/').next().and_then(|ip| ip.parse::<IpAddr>().ok());
        let mut shown: Vec<_> = text.lines().filter_map(cidr).filter_map(ip).collect();
        shown.retain(|ip| !ip.is_loopback());
        let mut found = host_addresses();
        shown.sort_unstable();
        shown.dedup();
        found.sort_unstable();
        assert_eq!(found, shown);
    }
}
