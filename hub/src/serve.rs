//! A server of one connection on a thread of its own: for programs that have an RNIC and are not
//! `heddle serve`, which serves all its clients on one thread.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use heddle_shm::Sleeper;
use heddle_shm::account::{Account, Descriptors};
use heddle_socket::wire::{Inbox, MAX_REQUEST, Received, WireError, receive, send};
use heddle_verbs::remote::process_of;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Hub;
use crate::{Policy, Session};

/// Longest time that a client may take to read what the server sends.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves one application until it ends, and then frees all its objects.
///
/// # Errors
/// The system's error, or an error of a client that breaks the rules of the socket or does not
/// read.
pub fn serve(hub: &Arc<Hub>, policy: Policy, socket: &UnixStream) -> io::Result<()> {
    let sleeper = Sleeper::pair()?;
    let descriptors = Descriptors::new(policy.descriptors.into());
    let account = Account::new(&policy, descriptors);
    let mut session = Session::new(hub, policy, account, sleeper.waker());
    let result = socket
        .set_write_timeout(Some(PATIENCE))
        .and_then(|()| exchange(&mut session, socket, &sleeper));
    while !session.close() {
        std::thread::sleep(Duration::from_millis(1));
    }
    result
}

fn exchange(session: &mut Session, socket: &UnixStream, sleeper: &Sleeper) -> io::Result<()> {
    let mut inbox = Inbox::new(MAX_REQUEST);
    let Some(woken) = sleeper.fd() else { return Ok(()) };
    // Readable when the client's process has ended, even if another process has its socket by then.
    let process = process_of(socket)?;
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        while let Some(line) = inbox.pop() {
            session.handle(&line, &mut inbox);
            flush(session, socket)?;
        }
        inbox.check_fds().map_err(WireError::into_io)?;
        if session.has_work() {
            session.work();
        }
        flush(session, socket)?;
        let at_once = session.has_work().then_some(&now);
        let process = process.as_ref().map(|p| PollFd::new(p, PollFlags::IN));
        let both = [PollFd::new(socket, PollFlags::IN), PollFd::new(&woken, PollFlags::IN)];
        let mut fds: ArrayVec<PollFd<'_>, 3> = both.into_iter().chain(process).collect();
        match poll(&mut fds, at_once) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let said = |n: usize| fds.get(n).is_some_and(|fd: &PollFd<'_>| !fd.revents().is_empty());
        let (from_client, from_hub, ended) = (said(0), said(1), said(2));
        if from_hub {
            // Clear the sleeper before the session looks at the events.
            sleeper.clear();
        }
        if from_client && receive(socket.as_fd(), &mut inbox)? == Received::End {
            return Ok(());
        }
        if ended && !from_client {
            return Ok(());
        }
    }
}

/// Sends all pending lines. Waits for the client, which has a thread that reads.
fn flush(session: &mut Session, socket: &UnixStream) -> io::Result<()> {
    while let Some(out) = session.poll_transmit() {
        let mut bytes = &out.bytes[..];
        let mut fds: Vec<_> = out.fds.iter().map(AsFd::as_fd).collect();
        while !bytes.is_empty() {
            let sent = send(socket.as_fd(), bytes, &fds)?;
            bytes = &bytes[sent..];
            fds.clear();
        }
    }
    Ok(())
}
