//! Joins the user's private RNIC, and starts one if there is none.
//!
//! Two processes that start an RNIC at once end up with one RNIC: the two RNICs settle by their
//! lock which of them gives way, and the process that started the other joins the remaining RNIC.
//! So no process here holds a lock, and a process that is killed at any moment leaves nothing that
//! a later process would have to wait for.

use std::io::{self, Read};
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs};

use heddle_daemon::private::Place;
use heddle_socket::Client;
use heddle_socket::admin::{Request, Status};

use super::library;

/// The longest time for an RNIC to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time between two looks at an RNIC that is coming up.
const LOOK: Duration = Duration::from_millis(5);

/// Number of attempts to start an RNIC that ends again at once: a running RNIC may have been about
/// to end, or a process may have killed the new RNIC.
const STARTS: u32 = 3;

/// The longest time for an RNIC to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The lowest number for the inherited descriptor, if the limit allows it: programs expect their
/// own descriptors to begin right after the standard ones.
const HELD: i32 = 200;

/// Joins the RNIC at `place`, and starts it if need be. The connection stays open in this process
/// and in the program that this process becomes, so that the RNIC keeps running.
///
/// # Errors
/// Returns the reason why there is no RNIC, in one line.
pub(super) fn join(place: &Place) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    let mut starts = 0;
    let mut starting: Option<Starting> = None;
    loop {
        if let Some(stream) = try_join(&place.socket) {
            return hold(stream).map_err(|e| format!("{}: {e}", place.socket.display()));
        }
        if Instant::now() >= until {
            return Err(format!(
                "no private RNIC answers at {} within {PATIENCE:?}; its log is {}",
                place.socket.display(),
                place.log().display()
            ));
        }
        match starting.as_mut().map(Starting::look) {
            Some(Look::Busy) => sleep(LOOK),
            // Either the new RNIC holds the lock, or another RNIC does.
            Some(Look::Over(_)) if place.is_taken()? => sleep(LOOK),
            Some(Look::Over(why)) if starts >= STARTS => return Err(reason(place, &why)),
            Some(Look::Over(_)) | None => {
                starts += 1;
                starting = Some(Starting::new(place)?);
            }
        }
    }
}

/// Connects to an RNIC and waits for its answer, after which the RNIC counts this process among its
/// clients.
fn try_join(socket: &Path) -> Option<UnixStream> {
    let stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(ANSWER)).ok()?;
    let mut client = Client::new(stream.try_clone().ok()?).ok()?;
    let _: Status = client.call(&Request::Status).ok()?;
    stream.set_read_timeout(None).ok()?;
    Some(stream)
}

/// Makes the program inherit the connection.
fn hold(stream: UnixStream) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let lowest = if limit.is_none_or(|most| most > 2 * HELD as u64) { HELD } else { 3 };
    let held = rustix::io::fcntl_dupfd_cloexec(stream.as_fd(), lowest)?;
    rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::empty())?;
    // Give up ownership: the descriptor belongs to the program from here on.
    let _ = held.into_raw_fd();
    Ok(())
}

/// Returns the reason why an RNIC ended before it answered: the last line that it printed while
/// starting, or the last line of its log.
fn reason(place: &Place, said: &str) -> String {
    let line = |text: &str| {
        let last = text.lines().rev().find(|l| !l.trim().is_empty())?;
        Some(last.trim().trim_start_matches("heddle: ").to_owned())
    };
    let log = || fs::read_to_string(place.log()).ok();
    let why = line(said).or_else(|| log().as_deref().and_then(line));
    let why = why.unwrap_or_else(|| "it does not say why".into());
    format!("the private RNIC does not start: {why}")
}

/// An RNIC that is starting.
struct Starting {
    /// The process that starts the RNIC and ends at once, so that the RNIC is not a child of the
    /// program.
    parent: Child,
    /// The RNIC's standard error, until the RNIC switches to its log.
    said: Option<ChildStderr>,
    text: String,
}

enum Look {
    /// The RNIC is starting.
    Busy,
    /// The RNIC has switched to its log, or has ended. The text is its output before that.
    Over(String),
}

impl Starting {
    fn new(place: &Place) -> Result<Starting, String> {
        let fail = |e: io::Error| format!("the private RNIC does not start: {e}");
        let mut command = Command::new(env::current_exe().map_err(fail)?);
        command.args(["serve", "--private", "--detach", "--socket"]).arg(&place.socket);
        // Libraries that the user preloads into the program must not be loaded into the RNIC.
        command.env_remove("LD_PRELOAD");
        if let Some(list) = env::var_os(library::SEARCH) {
            match library::without_ours(&list) {
                Some(others) => command.env(library::SEARCH, others),
                None => command.env_remove(library::SEARCH),
            };
        }
        command.arg0("heddle").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut parent = command.spawn().map_err(fail)?;
        let said = parent.stderr.take();
        if let Some(said) = &said {
            rustix::io::ioctl_fionbio(said, true).map_err(|e| fail(e.into()))?;
        }
        Ok(Starting { parent, said, text: String::new() })
    }

    fn look(&mut self) -> Look {
        // Reap the parent, so that no zombie is left when this process becomes the program.
        let started = !matches!(self.parent.try_wait(), Ok(None));
        let mut bytes = [0; 1024];
        if let Some(said) = &mut self.said {
            match said.read(&mut bytes) {
                Ok(0) => self.said = None,
                Ok(n) => self.text.push_str(&String::from_utf8_lossy(&bytes[..n])),
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(_) => self.said = None,
            }
        }
        if started && self.said.is_none() { Look::Over(self.text.clone()) } else { Look::Busy }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        // Reap the parent, which ends by itself at once: the program must not inherit a child that
        // it does not know.
        let _ = self.parent.wait();
    }
}
