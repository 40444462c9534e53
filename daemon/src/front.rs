//! The front thread: signals, the control socket, and the life of the appliance from start to end.
//!
//! The front is one thread with a runtime for everything that waits. Workers, control plane and
//! services have their own threads and never wait for the front.
//!
//! ```text
//!   start    log, control socket bound, DPDK, RNIC, services ── all listen ─▶ READY
//!   runs     requests of the control socket; SIGHUP: reload; twice a second: does everything run?
//!   end      SIGTERM, SIGINT: no change any more, services end their connections in order;
//!            after the deadline those that are left are reset. A second signal ends the process.
//! ```

mod client;
mod guest;
mod notify;
mod session;
mod slots;
mod socket;
mod starting;

use core::time::Duration;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use heddle_ctl::{Kill, Snapshot};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::appliance::Appliance;
use crate::config::{Config, Private};
use crate::interfaces::Interfaces;
use crate::log::Logging;
use crate::rnic::StartError;

use slots::Slots;
pub(crate) use socket::permit;

/// Interval between checks that everything runs.
const LOOK: Duration = Duration::from_millis(500);

/// The interval for a private RNIC, which costs nothing while its programs sleep.
const PRIVATE_LOOK: Duration = Duration::from_secs(2);

/// Interval between questions to ports about their links: for an interface of the kernel a question
/// takes one to three system calls.
const LINKS: Duration = Duration::from_millis(100);

/// Factor by which questions to NICs are rarer: they read registers, or ask the firmware.
const ASKED: u32 = 10;

/// Interval between checks whether connections have ended.
const STEP: Duration = Duration::from_millis(5);

/// Time for resets to be sent.
const RESETS_SENT: Duration = Duration::from_millis(200);

/// Runs an appliance until SIGINT or SIGTERM ends it, and returns all its counters. `say` gets the
/// messages of the start.
///
/// # Errors
/// [`StartError`], also when a part that should go on has ended.
pub fn run(
    config: Config,
    file: Option<PathBuf>,
    say: impl Fn(&str),
) -> Result<Snapshot, StartError> {
    check_descriptors().map_err(StartError::Failed)?;
    let logging = Logging::start(config.log);
    let hurry = Arc::new(AtomicBool::new(false));
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        // A second signal ends the process even if the front thread hangs.
        let signal = kind.as_raw_value();
        signal_hook::flag::register_conditional_shutdown(signal, 1, hurry.clone())
            .map_err(StartError::failed)?;
        signal_hook::flag::register(signal, hurry.clone()).map_err(StartError::failed)?;
    }
    // A WRITE beyond the host's limit of a file's length then fails; by default the signal would
    // end the process.
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default())
        .map_err(StartError::failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(StartError::failed)?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::new().map_err(StartError::failed)?
    };
    let socket = config.control.as_ref().map(socket::Socket::bind).transpose();
    let socket = socket.map_err(StartError::Failed)?;
    // The socket is bound now, when a failure leaves nothing else to undo.
    let metrics = match config.metrics {
        None => None,
        Some(addr) => {
            let bound = runtime.block_on(TcpListener::bind(addr));
            Some(bound.map_err(|e| StartError::Failed(format!("metrics on {addr}: {e}")))?)
        }
    };
    let interfaces = Interfaces::watch(config.ports.iter().map(|p| &p.source));
    let Some(node) = runtime.block_on(starting::start(&config, &mut signals))? else {
        runtime.shutdown_background();
        return Ok(Snapshot::default());
    };
    let app = Appliance::new(node, config, file, logging).map_err(StartError::failed)?;
    let tasks = LocalSet::new();
    let life = live(&app, signals, socket.as_ref(), metrics, &interfaces, say);
    let ended = tasks.block_on(&runtime, life);
    drop(tasks);
    // A thread that reads a file may never come back.
    runtime.shutdown_background();
    drop(socket);
    // The services end here even after a failure: services that outlived the workers would each
    // report their end, beside the one real reason.
    let counted = Rc::into_inner(app).map(Appliance::stop).unwrap_or_default();
    ended.map_err(StartError::Failed)?;
    Ok(counted)
}

/// Number of descriptors that have to be free for an appliance to start: for signals, the runtime,
/// sockets, threads and the EAL of DPDK. Each client takes some more.
const DESCRIPTORS: u64 = 64;

/// Raises the limit of descriptors as far as the system allows, and checks that enough are free,
/// because libraries below panic when they find none.
fn check_descriptors() -> Result<(), String> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let soft = core::mem::replace(&mut limit.current, limit.maximum);
        if setrlimit(Resource::Nofile, limit).is_err() {
            limit.current = soft;
        }
    }
    let mut free = Vec::new();
    while (free.len() as u64) < DESCRIPTORS {
        // Any file will do; standard error may be closed.
        match rustix::fs::open("/dev/null", rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())
        {
            Ok(fd) => free.push(fd),
            Err(e) => {
                let most = limit.current.map_or_else(|| "any number".to_owned(), |n| n.to_string());
                return Err(format!(
                    "an appliance needs {DESCRIPTORS} free file descriptors to start, and {} of {most} are \
                     free ({e}): raise the limit (LimitNOFILE= of the unit, ulimit -n)",
                    free.len()
                ));
            }
        }
    }
    Ok(())
}

/// The signals that the process handles.
struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
        })
    }

    /// Awaits a signal to end.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

async fn live(
    app: &Rc<Appliance>,
    mut signals: Signals,
    socket: Option<&socket::Socket>,
    metrics: Option<TcpListener>,
    interfaces: &Interfaces,
    say: impl Fn(&str),
) -> Result<(), String> {
    let up = tokio::select! {
        up = start(app) => Some(up?),
        () = signals.end() => None,
    };
    if up.is_some() {
        app.announce_all();
        for s in &app.config.borrow().listen {
            say(&format!("{} listening on {}\n", s.kind, s.addr));
        }
        for f in &app.config.borrow().forward {
            say(&format!("{f} listening on {}\n", f.addr));
        }
        let slots = Slots::default();
        if let Some(socket) = socket {
            let listener = socket.listener().map_err(|e| e.to_string())?;
            spawn_local(client::accept(listener, Rc::clone(app), slots.clone()));
        }
        if let Some(listener) = metrics {
            if let Ok(addr) = listener.local_addr() {
                say(&format!("metrics on http://{addr}/metrics\n"));
            }
            app.exposer.serve(listener, Rc::clone(app)).await;
        }
        notify::ready();
        let private = app.config.borrow().private;
        match private {
            None => run_on(app, &mut signals, interfaces).await?,
            Some(private) => run_private(app, &mut signals, &slots, private).await?,
        }
    }
    notify::stopping();
    app.set_ending();
    end(app).await;
    Ok(())
}

async fn start(app: &Appliance) -> Result<(), String> {
    let all = app.config.borrow().listen.clone();
    for spec in all {
        let what = format!("{} on {}", spec.kind, spec.addr);
        app.start_service(spec, None).await.map_err(|e| format!("{what}: {e}"))?;
    }
    let all = app.config.borrow().forward.clone();
    for f in all {
        let started = app.start_forwarding(f).await;
        started.map_err(|e| format!("{f} on {}: {e}", f.addr))?;
    }
    Ok(())
}

async fn run_on(
    app: &Rc<Appliance>,
    signals: &mut Signals,
    interfaces: &Interfaces,
) -> Result<(), String> {
    let watchdog = notify::watchdog();
    let mut look = interval(watchdog.map_or(LOOK, |w| LOOK.min(w / 3)));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut links = interval(LINKS);
    links.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looks = 0;
    loop {
        tokio::select! {
            _ = links.tick() => {
                looks = (looks + 1) % ASKED;
                app.look_at_links(looks == 0);
            }
            _ = signals.term.recv() => return Ok(()),
            _ = signals.int.recv() => return Ok(()),
            _ = signals.hup.recv() => {
                let app = Rc::clone(app);
                spawn_local(async move { notify::reload(&app).await });
            }
            _ = look.tick() => {
                app.check()?;
                let lost = heddle_shm::lost();
                app.lost.send_if_modified(|seen| core::mem::replace(seen, lost) != lost);
                interfaces.check()?;
                // systemd gets a sign of life only when the control plane and every worker have
                // answered.
                if watchdog.is_some() {
                    match app.silent().await {
                        None => notify::alive(),
                        Some(who) => tracing::error!("{who} does not answer: systemd is not told"),
                    }
                }
            }
        }
    }
}

/// Runs for as long as there are clients, and then for the grace period. Nothing here needs more
/// frequent checks, because a private RNIC has no link, no interface and no watchdog.
async fn run_private(
    app: &Rc<Appliance>,
    signals: &mut Signals,
    slots: &Slots,
    private: Private,
) -> Result<(), String> {
    let look = PRIVATE_LOOK.min(private.grace.max(STEP) / 2);
    let mut alone_since = Some(Instant::now());
    loop {
        tokio::select! {
            () = signals.end() => return Ok(()),
            () = sleep(look) => {}
        }
        app.check()?;
        let lost = heddle_shm::lost();
        app.lost.send_if_modified(|seen| core::mem::replace(seen, lost) != lost);
        if slots.taken() > 0 {
            alone_since = None;
        } else if alone_since.get_or_insert_with(Instant::now).elapsed() >= private.grace {
            tracing::info!("the last program has gone: the private RNIC ends");
            return Ok(());
        }
    }
}

/// Ends connections in order until the deadline, and then resets the rest.
async fn end(app: &Appliance) {
    app.end_services();
    // Connections of other processes are ended for them, and their applications hear of it.
    app.end_all(Kill::InOrder).await;
    let deadline = app.config.borrow().shutdown;
    let left = wait_for_none(app, deadline).await;
    if left > 0 {
        tracing::warn!("{left} connections did not end within {deadline:?} and are reset");
        app.end_all(Kill::Reset).await;
        wait_for_none(app, RESETS_SENT).await;
    }
}

/// Waits until no connection is left; returns the number left after `within`.
async fn wait_for_none(app: &Appliance, within: Duration) -> usize {
    let until = Instant::now() + within;
    loop {
        match app.connections().await {
            // Without an answer there is nothing to wait for.
            None | Some(0) => return 0,
            Some(left) if Instant::now() >= until => return left,
            Some(_) => sleep(STEP).await,
        }
    }
}
