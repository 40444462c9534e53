//! Clients that have opened a device: applications of other processes.
//!
//! A policy limits an application's resources, and [`Session`] judges its requests. This module
//! moves lines and descriptors in and out. A client that does not read its answers is dropped like
//! any other, and the session looks at none of its further requests until the answer is read. When
//! a client has gone, the appliance takes everything back that it had, a part at a time.

use core::time::Duration;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};

use heddle_hub::{Outgoing, Session};
use heddle_shm::closer;
use heddle_socket::admin::Application;
use heddle_socket::document::to_line;
use heddle_socket::wire::{Received, send};
use heddle_socket::{Answer, Fault, FaultKind, Inbox, Line};
use heddle_verbs::Sleeper;
use heddle_verbs::remote::process_of;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::client::{Caller, End, SLOW};
use super::guest::{Guest, Next};
use crate::appliance::{Admitted, Appliance, Tenant, Word};

/// Number of requests of one client that are carried out before other clients have their turn.
const TURN: usize = 16;

/// Pause between two parts of the return.
const PAUSE: Duration = Duration::from_millis(1);

/// Serves an application until it ends. `first` is its request for a device.
pub(super) async fn serve(
    guest: &Guest,
    app: &Appliance,
    caller: Caller,
    admitted: Admitted,
    first: Line,
    mut inbox: Inbox,
) -> End {
    let Admitted { tenant, policy, account } = admitted;
    let sleeper = match Sleeper::pair() {
        Ok(sleeper) => sleeper,
        Err(e) => {
            app.dismiss(&tenant);
            return End::Broken(e);
        }
    };
    let session = Session::new(app.node.hub(), policy, account, sleeper.waker());
    let mut session = session.on_lane(closer::lane_of(caller.peer.uid));
    if app.config.borrow().private.is_some() {
        session = session.of_own_user();
    }
    session.handle(&first, &mut inbox);
    let end = exchange(guest, app, caller, &sleeper, &mut session, &mut inbox, &tenant).await;
    if let Err(End::Evicted(why)) = &end {
        give_reason(guest.stream(), why);
    }
    app.dismiss(&tenant);
    // The record goes even if the application has closed its device before, and has no number any
    // more.
    if let Some(number) = tenant.application.get() {
        app.applications.borrow_mut().gone(number);
    }
    while !session.close() {
        sleep(PAUSE).await;
    }
    match end {
        Ok(never) => match never {},
        Err(end) => end,
    }
}

/// Sends an application the reason for its end, if the socket takes it at once.
fn give_reason(stream: &UnixStream, why: &str) {
    let reason = to_line(&Answer::fault(0, Fault::new(FaultKind::Denied, why)));
    // Ignore the error: an application that does not read cannot learn the reason.
    let _ = stream.try_io(Interest::WRITABLE, || send(stream.as_fd(), &reason, &[]));
}

async fn exchange(
    guest: &Guest,
    app: &Appliance,
    caller: Caller,
    sleeper: &Sleeper,
    session: &mut Session,
    inbox: &mut Inbox,
    tenant: &Tenant,
) -> Result<core::convert::Infallible, End> {
    let stream = guest.stream();
    // The descriptor is readable when the client's process has ended, even if another process has
    // its socket then.
    let process = match process_of(stream) {
        Ok(process) => process.map(watch).transpose().map_err(End::Broken)?,
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(End::Gone),
        Err(e) => return Err(End::Broken(e)),
    };
    let mut lost = app.lost.subscribe();
    let woken = sleeper.fd().map(|fd| fd.try_clone_to_owned()).transpose().map_err(End::Broken)?;
    let Some(woken) = woken else { return Err(End::Gone) };
    // A waker is a pair of stream sockets, for which the runtime can wait directly.
    let woken = std::os::unix::net::UnixStream::from(woken);
    woken.set_nonblocking(true).map_err(End::Broken)?;
    let woken = UnixStream::from_std(woken).map_err(End::Broken)?;
    loop {
        // The check is also here, because a client that asks without end never gets to the wait
        // below.
        if let Some(word) = tenant.next_word() {
            heed(session, word)?;
        }
        flush(stream, session).await?;
        let mut taken = 0;
        while taken < TURN
            && let Some(line) = inbox.pop()
        {
            session.handle(&line, inbox);
            flush(stream, session).await?;
            taken += 1;
        }
        if taken < TURN {
            inbox.check_fds().map_err(|e| End::Broken(e.into_io()))?;
        }
        if session.has_work() {
            session.work();
            // The results must be sent before the task waits.
            flush(stream, session).await?;
        }
        show(app, caller, session, tenant);
        if session.has_work() || taken == TURN {
            yield_now().await;
            continue;
        }
        let next = tokio::select! {
            word = tenant.word() => {
                heed(session, word)?;
                continue;
            }
            next = guest.read(inbox) => next,
            () = ended(process.as_ref()) => return Err(End::Gone),
            Ok(()) = lost.changed() => {
                if session.has_lost_memory() {
                    let why = "memory of the application has failed; it reads as zeros";
                    return Err(End::Broken(std::io::Error::other(why)));
                }
                continue;
            }
            ready = woken.readable() => {
                ready.map_err(End::Broken)?;
                // A notice that comes after the clearing wakes the task again.
                let _ = woken.try_io(Interest::READABLE, || {
                    sleeper.clear();
                    Err::<(), _>(ErrorKind::WouldBlock.into())
                });
                continue;
            }
        };
        let received = match next {
            Ok(Next::Descriptors) => guest.take(inbox).await,
            Ok(Next::Read(received)) => Ok(received),
            Err(e) => Err(e),
        };
        match received {
            Ok(Received::Bytes(_)) => {}
            Ok(Received::End) => return Err(End::Gone),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return Err(End::Gone),
            Err(e) => return Err(End::Broken(e)),
        }
    }
}

#[expect(deprecated, reason = "an owned descriptor stays the same one, which is all that is asked")]
fn watch(process: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(process)
}

/// Returns when the process has ended; never returns if the process cannot be watched.
async fn ended(process: Option<&AsyncFd<OwnedFd>>) {
    match process {
        Some(process) => drop(process.readable().await),
        None => std::future::pending().await,
    }
}

fn heed(session: &mut Session, word: Word) -> Result<(), End> {
    match word {
        Word::Policy(policy) => session.set_policy(*policy),
        Word::End(why) => return Err(End::Evicted(why)),
    }
    Ok(())
}

/// Records the session's present state.
fn show(app: &Appliance, caller: Caller, session: &mut Session, tenant: &Tenant) {
    let Some(number) = session.app() else { return };
    tenant.application.set(Some(number.0));
    let (connections, listeners) = session.connections();
    let (counters, usage) = (session.counters(), session.usage());
    let seen = Application {
        application: number.0,
        name: session.name().into(),
        uid: caller.peer.uid,
        pid: caller.pid,
        connections,
        listeners,
        requests: counters.requests,
        refused: counters.refused,
        over_quota: counters.over_quota,
        memory: usage.memory,
        queue_pairs: usage.queue_pairs,
        registrations: usage.registrations,
        ..Application::default()
    };
    app.applications.borrow_mut().show(seen, tenant.rule(), session.share());
}

async fn flush(stream: &UnixStream, session: &mut Session) -> Result<(), End> {
    while let Some(Outgoing { bytes, fds }) = session.poll_transmit() {
        let (mut bytes, mut fds) = (&bytes[..], fds.iter().map(AsFd::as_fd).collect::<Vec<_>>());
        while !bytes.is_empty() {
            let sent = stream.async_io(Interest::WRITABLE, || send(stream.as_fd(), bytes, &fds));
            match timeout(SLOW, sent).await {
                Err(_) => return Err(End::Slow),
                Ok(Err(_)) => return Err(End::Gone),
                Ok(Ok(n)) => bytes = &bytes[n..],
            }
            fds.clear();
        }
    }
    Ok(())
}
