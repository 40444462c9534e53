//! `heddle serve --private`

use std::env;
use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use heddle_daemon::config::{Config, Log, LogFormat, Private};
use heddle_daemon::private::Place;
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
    // Take the lock before touching anything of another RNIC, even a leftover.
    let _lock = place.lock().map_err(Failure::failed)?;
    if let Some(log) = &args.log_to {
        redirect(log).map_err(|e| Failure::failed(format!("the log {}: {e}", log.display())))?;
    }
    let usual = if args.log_to.is_some() { LevelFilter::INFO } else { LevelFilter::WARN };
    let log = Log { level: args.log.level_or(usual), format: LogFormat::Text };
    let private = Private { grace: args.grace.0 };
    let mut config = Config::private(&place.socket, private, log);
    config.inner.own.addrs = host_addresses();
    let counted = heddle_daemon::run(config, None, say).map_err(Failure::of_start)?;
    if args.log_to.is_none() {
        say(&counters::of_rnic(&counted));
    }
    Ok(())
}

/// Starts the RNIC in a session of its own, without a controlling terminal or its signals, and
/// ends. So the RNIC is no child of the program that `heddle run` becomes.
fn detach(args: &Args, place: &Place) -> Result<(), Failure> {
    // The kernel refuses this to the leader of a process group, which this process is when a person
    // starts it.
    let _ = rustix::process::setsid();
    let mut command = Command::new(env::current_exe()?);
    command.args(["serve", "--private", "--socket"]).arg(&place.socket);
    command.arg("--log-to").arg(place.log());
    command.arg("--grace").arg(format!("{}ms", args.grace.0.as_millis()));
    keep_to_standard_files();
    // Standard error stays the starter's until the RNIC has its log, so the starter sees earlier
    // errors.
    command.stdin(Stdio::null()).stdout(Stdio::null()).current_dir("/").spawn()?;
    Ok(())
}

/// Keeps the RNIC from inheriting descriptors that are open here by accident, such as a shell's
/// pipes: a process that reads from such a pipe would wait until the RNIC ends.
fn keep_to_standard_files() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call only marks descriptors close-on-exec; they stay open and keep their owners.
    // A kernel before Linux 5.11 does not know the flag and does nothing.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}

/// Redirects standard error and output to a file of this run.
fn redirect(log: &Path) -> std::io::Result<()> {
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600).custom_flags(nofollow);
    let file = options.open(log)?;
    rustix::stdio::dup2_stdout(&file)?;
    rustix::stdio::dup2_stderr(&file)?;
    Ok(())
}

/// Returns the addresses of this host's interfaces, because programs also find each other by the
/// host's name. The list is empty if the system does not give them.
fn host_addresses() -> Vec<IpAddr> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the call fills in the head of a list, which is ours until we free it below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut addrs = Vec::new();
    let mut next = list;
    // SAFETY: `next` is null or an entry of the list, which lives until we free it below.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: the pointer is null, or points to an address that is as long as its family says.
        let family = unsafe { entry.ifa_addr.as_ref() }.map(|addr| i32::from(addr.sa_family));
        if entry.ifa_flags & libc::IFF_UP.cast_unsigned() == 0 {
            continue;
        }
        let ip = match family {
            Some(libc::AF_INET) => {
                // SAFETY: the family says that this is an IPv4 address; `read_unaligned` needs no
                // alignment.
                let addr = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                IpAddr::V4(Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr)))
            }
            Some(libc::AF_INET6) => {
                // SAFETY: as above, of an IPv6 address.
                let addr = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                IpAddr::V6(Ipv6Addr::from(addr.sin6_addr.s6_addr))
            }
            _ => continue,
        };
        if !ip.is_loopback() && !ip.is_unspecified() && !addrs.contains(&ip) {
            addrs.push(ip);
        }
    }
    // SAFETY: `list` comes from `getifaddrs`, and no entry of it is used after this call.
    unsafe { libc::freeifaddrs(list) };
    addrs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_addresses_of_the_host_are_those_that_ip_shows() {
        let out = Command::new("ip").args(["-o", "addr", "show", "up"]).output().unwrap();
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
