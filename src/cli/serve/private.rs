//! `heddle serve --private`

use std::env;
use std::fs::OpenOptions;
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
    let config = Config::private(&place.socket, private, log);
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
