//! Clients of the control socket.
//!
//! A client asks one thing at a time: the appliance looks at a client's next line when the client
//! has taken the previous answer. So the appliance keeps one request and one answer for each
//! client. A client that does not take an answer within [`SLOW`], or sends nothing for [`IDLE`], is
//! dropped.

use core::time::Duration;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::rc::Rc;

use heddle_socket::admin::Request;
use heddle_socket::document::{read_call, to_line};
use heddle_socket::wire::{Received, send};
use heddle_socket::{Answer, Fault, FaultKind, Head};
use serde::Deserialize;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{spawn_local, yield_now};
use tokio::time::{sleep, timeout};

use super::guest::{self, Guest, Next};
use super::session;
use super::slots::{Slot, Slots};
use crate::access::{Access, Peer};
use crate::appliance::{Appliance, count};

/// Time that a client has to take a byte of its answer.
pub(super) const SLOW: Duration = Duration::from_secs(5);

/// Time for which a client may stay silent.
const IDLE: Duration = Duration::from_secs(120);

/// Pause between attempts when there are no descriptors for more clients.
const PAUSE: Duration = Duration::from_millis(100);

/// The process at the other end of a control connection.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    /// Its user and group.
    pub(super) peer: Peer,
    /// Its number, if the kernel reports it.
    pub(super) pid: Option<i32>,
}

/// The reason why a client was dropped.
pub(super) enum End {
    /// The client has closed its socket.
    Gone,
    /// The client was silent for too long.
    Idle,
    /// The client does not take its answer.
    Slow,
    /// The client had a device, and may not have one any more.
    Evicted(&'static str),
    /// The client's bytes make no line, or its socket failed.
    Broken(std::io::Error),
}

/// Accepts clients, for ever.
pub(super) async fn accept(listener: UnixListener, app: Rc<Appliance>, slots: Slots) {
    loop {
        if guest::too_many_closing() {
            sleep(PAUSE).await;
            continue;
        }
        match listener.accept().await {
            Ok((stream, _)) => match Guest::new(stream) {
                Ok(guest) => admit(guest, &app, &slots),
                Err(e) => tracing::debug!("a control client is gone: {e}"),
            },
            Err(e) => {
                tracing::warn!("the control socket takes nobody: {e}");
                sleep(PAUSE).await;
            }
        }
    }
}

fn admit(guest: Guest, app: &Rc<Appliance>, slots: &Slots) {
    let stream = guest.stream();
    let Ok(cred) = stream.peer_cred() else { return };
    let peer = Peer { uid: cred.uid(), gid: cred.gid() };
    if !app.access(peer).look && !app.may_have_device(peer) {
        count(&app.counters.refused);
        return turn_away(stream, FaultKind::Denied, "you may not look here");
    }
    let most = app.config.borrow().control.as_ref().map_or(0, |c| c.clients);
    let Some(slot) = slots.take(peer.uid, most) else {
        count(&app.counters.turned_away);
        return turn_away(stream, FaultKind::Busy, "too many are connected");
    };
    app.counters.clients.set(slots.taken());
    let caller = Caller { peer, pid: cred.pid() };
    spawn_local(serve(guest, Rc::clone(app), caller, slot, slots.clone()));
}

/// Sends the reason, if that is possible at once.
fn turn_away(stream: &UnixStream, kind: FaultKind, why: &str) {
    let line = to_line(&Answer::fault(0, Fault::new(kind, why)));
    let _ = send(stream.as_fd(), &line, &[]);
}

async fn serve(guest: Guest, app: Rc<Appliance>, caller: Caller, slot: Slot, slots: Slots) {
    let counters = &app.counters;
    let Caller { peer, pid } = caller;
    match talk(&guest, &app, caller).await {
        End::Gone => {}
        End::Idle => tracing::debug!(uid = peer.uid, "a control client says nothing"),
        End::Slow => {
            count(&counters.slow);
            tracing::warn!(uid = peer.uid, "a control client does not take its answer");
        }
        End::Evicted(why) => {
            count(&counters.evicted);
            tracing::warn!(uid = peer.uid, pid, "an application is ended: {why}");
        }
        End::Broken(e) => {
            count(&counters.broken);
            tracing::warn!(uid = peer.uid, "a control client: {e}");
        }
    }
    // A client keeps its place until everything it sent is closed, which may take time, so that it
    // cannot open more in the meantime.
    guest.close().await;
    drop(slot);
    counters.clients.set(slots.taken());
}

async fn talk(guest: &Guest, app: &Appliance, caller: Caller) -> End {
    let (stream, peer) = (guest.stream(), caller.peer);
    let mut inbox = guest.inbox();
    loop {
        while let Some(line) = inbox.pop() {
            if wants_device(&line) {
                if app.is_draining() {
                    count(&app.counters.refused);
                    let fault = Fault::new(FaultKind::Busy, "it drains, and takes no application");
                    let answer = to_line(&Answer::fault(id_of(&line), fault));
                    if let Err(end) = write(stream, &answer).await {
                        return end;
                    }
                    continue;
                }
                match (!app.is_ending()).then(|| app.admit(peer)).flatten() {
                    Some(admitted) => {
                        return session::serve(guest, app, caller, admitted, line, inbox).await;
                    }
                    None => count(&app.counters.refused),
                }
                let fault = Fault::new(FaultKind::Denied, "you may have no device here");
                if let Err(end) = write(stream, &to_line(&Answer::fault(id_of(&line), fault))).await
                {
                    return end;
                }
                continue;
            }
            let answer = answer(app, peer, &line).await;
            if let Err(end) = write(stream, &to_line(&answer)).await {
                return end;
            }
            // A client that asks all the time must not keep other clients waiting.
            yield_now().await;
        }
        // Only the first request of a device brings descriptors.
        if let Err(e) = inbox.check_fds() {
            return End::Broken(e.into_io());
        }
        match timeout(patience(app), guest.read(&mut inbox)).await {
            Err(_) => return End::Idle,
            Ok(Ok(Next::Read(Received::Bytes(_)))) => {}
            Ok(Ok(Next::Read(Received::End))) => return End::Gone,
            // The descriptors are for a device.
            Ok(Ok(Next::Descriptors)) => match guest.take(&mut inbox).await {
                Ok(Received::Bytes(_)) => {}
                Ok(Received::End) => return End::Gone,
                Err(e) => return End::Broken(e),
            },
            Ok(Err(e)) if e.kind() == ErrorKind::ConnectionReset => return End::Gone,
            Ok(Err(e)) => return End::Broken(e),
        }
    }
}

/// Returns the time for which a client may stay silent. A client of a private RNIC may stay silent
/// for ever: it keeps the RNIC alive for a program that has not opened a device yet, or is between
/// two devices.
fn patience(app: &Appliance) -> Duration {
    if app.config.borrow().private.is_some() { Duration::MAX } else { IDLE }
}

/// The part of a line that decides whether it begins a session; the session reads the rest.
#[derive(Deserialize)]
struct Op<'a> {
    #[serde(borrow)]
    op: std::borrow::Cow<'a, str>,
}

fn wants_device(line: &[u8]) -> bool {
    serde_json::from_slice::<Op<'_>>(line).is_ok_and(|o| o.op == "device-open")
}

fn id_of(line: &[u8]) -> u64 {
    serde_json::from_slice::<Head>(line).map_or(0, |h| h.id)
}

async fn write(stream: &UnixStream, mut bytes: &[u8]) -> Result<(), End> {
    while !bytes.is_empty() {
        let sent = stream.async_io(Interest::WRITABLE, || send(stream.as_fd(), bytes, &[]));
        match timeout(SLOW, sent).await {
            Err(_) => return Err(End::Slow),
            Ok(Err(_)) => return Err(End::Gone),
            Ok(Ok(n)) => bytes = &bytes[n..],
        }
    }
    Ok(())
}

async fn answer(app: &Appliance, peer: Peer, line: &[u8]) -> Answer {
    let answer = match read_call(line) {
        Ok((id, request)) => match carry_out(app, app.access(peer), &request).await {
            Ok(ok) => Answer { id, ..ok },
            Err(fault) => Answer::fault(id, fault),
        },
        Err(answer) => *answer,
    };
    let c = &app.counters;
    count(if answer.error.is_some() { &c.refused } else { &c.requests });
    answer
}

async fn carry_out(app: &Appliance, access: Access, request: &Request) -> Result<Answer, Fault> {
    let allowed = if request.changes() { access.change } else { access.look };
    if !allowed {
        return Err(Fault::new(FaultKind::Denied, "you may not do that"));
    }
    if request.changes() && app.is_ending() {
        return Err(Fault::new(FaultKind::Failed, "it is about to end"));
    }
    Ok(match request {
        Request::Status => Answer::ok(0, &app.status().await?),
        Request::Conns(args) => Answer::ok(0, &app.conns(&args.clone().unwrap_or_default()).await?),
        Request::Mrs(args) => Answer::ok(0, &app.mrs(&args.clone().unwrap_or_default(), access)),
        Request::Ports => Answer::ok(0, &app.ports()),
        Request::Stats => Answer::ok(0, &app.stats().await?),
        Request::ListenAdd(args) => Answer::ok(0, &app.listen_add(args, access).await?),
        Request::ListenDel(args) => Answer::ok(0, &app.listen_del(args).await?),
        Request::ConnKill(args) => Answer::ok(0, &app.conn_kill(args).await?),
        Request::ApplicationKill(args) => Answer::ok(0, &app.application_kill(args.application)?),
        Request::Reload => Answer::ok(0, &app.reload().await?),
        Request::LogLevel(args) => Answer::ok(0, &app.log_level(args).await?),
        Request::Drain(args) => Answer::ok(0, &app.drain(&args.unwrap_or_default()).await?),
        Request::Undrain => Answer::ok(0, &app.undrain().await?),
        Request::Log => Answer::ok(0, &crate::log::recent_lines()),
        Request::Config => Answer::ok(0, &app.settings()?),
        Request::ConfigDiff => Answer::ok(0, &app.differences().await?),
    })
}
