//! The process at the other end of a socket.
//!
//! The end of the socket does not show the end of the process: a client can send its own end of the
//! control socket through that socket, or hide it in the queue of another socket, and exit. Then no
//! process closes that end, and the client's objects would stay for ever. So a server watches the
//! process as well.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};

/// Returns a descriptor that is readable when the process that connected `socket` has ended, or
/// `None` where this process cannot name it, because it is in a PID namespace that this process
/// does not see.
///
/// # Errors
/// The system's error; [`NotFound`](io::ErrorKind::NotFound) when the process has ended already.
pub fn process_of(socket: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let socket = socket.as_fd();
    match peer_pidfd(socket.as_raw_fd()) {
        Ok(fd) => return Ok(Some(fd)),
        // Before Linux 6.5.
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => {}
        // The process has ended, and Linux before 6.16 cannot open it any more.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ESRCH)) => {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended"));
        }
        Err(e) if e.raw_os_error() == Some(libc::ENODATA) => return Ok(None),
        Err(e) => return Err(e),
    }
    // Open the process by its number, which another process may have by now. In that case the end
    // of that process would end the session too early, or the end of the socket ends the session as
    // before: no process gets anything by mistake.
    match pidfd_open(socket_peercred(socket)?.pid, PidfdFlags::empty()) {
        Ok(fd) => Ok(Some(fd)),
        // Before Linux 5.3, or forbidden: the end of the socket has to suffice.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn peer_pidfd(socket: RawFd) -> io::Result<OwnedFd> {
    /// The `libc` crate does not have this constant yet.
    const SO_PEERPIDFD: libc::c_int = 77;
    let (mut fd, mut len): (RawFd, _) = (-1, 4);
    // SAFETY: writes at most `len` bytes, a descriptor, into a live integer of that size.
    let got = unsafe {
        let value = (&raw mut fd).cast();
        libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, value, &raw mut len)
    };
    if got != 0 || fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just made, which no other code owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Command, Stdio};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_over(process: &OwnedFd, seconds: i64) -> bool {
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&time)).unwrap() == 1
    }

    /// The address to which the child connects.
    const CHILD: &str = "HEDDLE_TEST_CONNECTS";

    #[test]
    fn test_process_is_the_one_that_connected_even_if_socket_is_passed_on() {
        if let Some(path) = std::env::var_os(CHILD) {
            let socket = UnixStream::connect(path).unwrap();
            let mut byte = [0];
            std::io::Read::read_exact(&mut &socket, &mut byte).unwrap();
            heddle_socket::wire::send(&socket, b"x", &[socket.as_fd()]).unwrap();
            return;
        }
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let this = process_of(&ours).unwrap().unwrap();
        assert!(!is_over(&this, 0), "this process runs");
        // A child connects, and this process has the child's end of the socket when the child
        // exits.
        let path = std::env::temp_dir().join(format!("heddle-process-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let (_, module) = module_path!().split_once("::").unwrap();
        let name = "test_process_is_the_one_that_connected_even_if_socket_is_passed_on";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("{module}::{name}")]).env(CHILD, &path);
        let mut child = child.stdout(Stdio::null()).spawn().unwrap();
        let (socket, _) = listener.accept().unwrap();
        std::fs::remove_file(&path).unwrap();
        let process = process_of(&socket).unwrap().unwrap();
        assert!(!is_over(&process, 0), "it waits for us");
        heddle_socket::wire::send(&socket, b"x", &[]).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(is_over(&process, 60));
        let mut inbox = heddle_socket::Inbox::new(8);
        heddle_socket::wire::receive(&socket, &mut inbox).unwrap();
        assert!(inbox.check_fds().is_err(), "its end is here, so the socket does not end");
    }
}
