//! An NFS export: a server on the RNIC with a thread of its own, and a socket of the host.

use core::net::SocketAddr;
use core::time::Duration;
use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender};
use heddle_metrics::{ExportConnections, ExportSample, NfsSample};
use heddle_nfs::rdma::{self, Threads};
use heddle_nfs::{Counts, Options, Service, Share, tcp};
use heddle_rpc::Server;
use heddle_rpc::server::{ServerCounters, ServerError};
use heddle_verbs::{Device, ListenFailure, ListenParams, Waker};

use crate::service::{Nfs, NfsExport, NfsLimits};

/// Longest sleep of the server, and thus the longest delay of the list of connected clients.
const NAP: Duration = Duration::from_millis(250);

/// Resources that may not be available: open directories, and a bound socket.
#[derive(Debug)]
pub(crate) struct Opened {
    shares: Vec<Arc<Share>>,
    tcp: Option<TcpListener>,
    limits: NfsLimits,
}

impl Opened {
    /// Opens the directories. This may wait for a disk.
    ///
    /// # Errors
    /// The reason, in one line.
    pub(crate) fn new(nfs: &Nfs) -> Result<Opened, String> {
        Opened::with(nfs, |export| open(&export.directory, export, nfs.limits))
    }

    /// As [`new`](Self::new), with directories that `open` reaches by other names.
    ///
    /// # Errors
    /// The reason, in one line.
    pub(crate) fn with(
        nfs: &Nfs,
        open: impl Fn(&NfsExport) -> Result<Arc<Share>, String>,
    ) -> Result<Opened, String> {
        let shares = nfs.exports.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Opened { shares, tcp: None, limits: nfs.limits })
    }

    /// Binds the socket of the host, if there is to be one.
    ///
    /// # Errors
    /// The reason why the socket cannot be bound.
    pub(crate) fn bind(&mut self, nfs: &Nfs) -> std::io::Result<()> {
        if self.tcp.is_none() {
            self.tcp = nfs.tcp.map(TcpListener::bind).transpose()?;
        }
        Ok(())
    }
}

/// Opens the directory of an export by a name that may differ from the export's.
///
/// # Errors
/// The reason, in one line.
pub(crate) fn open(
    directory: &Path,
    export: &NfsExport,
    limits: NfsLimits,
) -> Result<Arc<Share>, String> {
    let options = Options {
        read_only: export.read_only,
        sync: export.sync,
        descriptors: limits.descriptors as usize,
        flushers: limits.flushers as usize,
        ..Options::default()
    };
    let path = export.directory.to_string_lossy();
    let share = Share::new(directory, &path, options).map_err(|e| e.to_string())?;
    share.set_access(export.access.clone()).map_err(|e| e.to_string())?;
    Ok(share)
}

fn directory(share: &Share) -> &Path {
    Path::new(OsStr::from_bytes(share.path()))
}

/// Resources that an export may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    /// Bytes of registered memory.
    pub(crate) memory: usize,
    /// Divisor of the connections that gives one address's share.
    pub(crate) peer_share: usize,
}

enum Order {
    Stop,
    End,
    /// The owner is done with the export; the thread sends `()` when connections and listeners have
    /// ended.
    Leave(Sender<()>),
}

/// The state of an export, as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    listening: Result<bool, ListenFailure>,
    conns: usize,
    /// The export takes no more connections.
    stopped: bool,
}

/// The counters of an export, for any thread.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The service carries calls out, and counts them, over both transports.
    service: Arc<Service>,
    seen: Mutex<Seen>,
}

/// Data of the export's thread, as they were after its last step.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    rpc: ServerCounters,
    conns: ExportConnections,
}

impl Watch {
    /// Returns the service's counters.
    pub(crate) fn counts(&self) -> Counts {
        self.service.counts()
    }

    /// Returns the numbers of connections.
    pub(crate) fn connections(&self) -> ExportConnections {
        lock(&self.seen).conns
    }

    /// Returns the counters of one of the directories.
    pub(crate) fn counts_of(&self, of: &Path) -> Option<Counts> {
        self.service
            .shares()
            .iter()
            .find(|share| directory(share) == of)
            .map(|share| share.counts())
    }

    /// Returns all counters of the listener itself.
    pub(crate) fn sample(&self, listener: SocketAddr) -> NfsSample {
        let Seen { rpc, conns } = *lock(&self.seen);
        NfsSample { listener: listener.to_string(), connections: conns, rpc }
    }

    /// Returns all counters of each directory.
    pub(crate) fn exports(&self, listener: SocketAddr) -> Vec<ExportSample> {
        let sample = |share: &Arc<Share>| ExportSample {
            listener: listener.to_string(),
            directory: directory(share).display().to_string(),
            counts: share.counts(),
            failures: share.failures(),
            timings: share.timings(),
        };
        self.service.shares().iter().map(sample).collect()
    }
}

/// An export that runs. The export ends when dropped, whatever connections it has.
pub(crate) struct Export {
    watch: Arc<Watch>,
    state: Arc<Mutex<State>>,
    /// This sender drops after `watch`, so the thread knows when its own handle of the service is
    /// the last.
    orders: Sender<Order>,
    waker: Waker,
    thread: JoinHandle<()>,
}

impl Export {
    /// Begins to listen. Wakes `waker` when the visible state has changed.
    ///
    /// # Errors
    /// The reason, in one line.
    pub(crate) fn start(
        device: &Device,
        addr: SocketAddr,
        opened: Opened,
        params: ListenParams,
        quota: Quota,
        waker: Waker,
    ) -> Result<Export, String> {
        let Opened { shares, tcp, limits } = opened;
        let service = Arc::new(Service::of(shares).map_err(|e| e.to_string())?);
        let memory = limits.memory.map_or(quota.memory, |mib| (mib as usize) << 20);
        let calls = u16::try_from(limits.credits).unwrap_or(u16::MAX);
        let config = rdma::config_for(memory, calls);
        let share = (config.connections / quota.peer_share.max(1)).max(1);
        let config = heddle_rpc::ServerConfig { listen: params, peer_connections: share, ..config };
        let mut server = Server::new(device, addr, config).map_err(|e| e.to_string())?;
        let threads = rdma::serve(&mut server, &service, limits.workers as usize);
        let threads = threads.map_err(|e| e.to_string())?;
        let tcp = match tcp {
            None => None,
            Some(listener) => {
                let started =
                    tcp::Server::start(listener, Arc::clone(&service), tcp::Limits::default());
                Some(started.map_err(|e| format!("no NFS by TCP: {e}"))?)
            }
        };
        let state = Arc::new(Mutex::new(State { listening: Ok(false), conns: 0, stopped: false }));
        let (orders, taken) = crossbeam_channel::unbounded();
        let own = server.waker();
        let watch = Arc::new(Watch { service, seen: Mutex::default() });
        let thread = {
            let (state, watch) = (Arc::clone(&state), Arc::clone(&watch));
            let running = Running { server, threads, tcp, state, watch, stopped: false };
            let name = thread::Builder::new().name("heddle-nfs".into());
            name.spawn(move || running.run(&taken, &waker)).map_err(|e| e.to_string())?
        };
        Ok(Export { watch, state, orders, waker: own, thread })
    }

    /// Takes no more connections, of the RNIC or of the host. Connections of the RNIC go on, and
    /// those of the host end.
    pub(crate) fn stop_listening(&self) {
        self.order(Order::Stop);
    }

    /// Takes no more connections, and ends each connection when its calls under way have their
    /// replies.
    pub(crate) fn end(&self) {
        self.order(Order::End);
    }

    /// Replaces the directories and options for calls from here on. Directories that stay keep
    /// their handles, new directories are in `opened`, and handles of removed directories are
    /// stale. No connection notices.
    ///
    /// # Errors
    /// The reason, in one line.
    pub(crate) fn set(&self, nfs: &Nfs, opened: Option<Opened>) -> Result<(), String> {
        let service = &self.watch.service;
        let opened = opened.map(|opened| opened.shares).unwrap_or_default();
        // Running directories come first in this list. `opened` has all directories, because
        // opening checks that their access rights can be set up.
        let known = [service.shares(), opened].concat();
        let mut shares = Vec::new();
        for export in &nfs.exports {
            let share = known.iter().find(|share| directory(share) == export.directory);
            let share =
                share.ok_or_else(|| format!("{} is not open", export.directory.display()))?;
            share.set_access(export.access.clone()).map_err(|e| e.to_string())?;
            share.export().set(export.read_only, export.sync);
            shares.push(Arc::clone(share));
        }
        service.set_shares(shares).map_err(|e| e.to_string())
    }

    /// Returns the number of connections of the RNIC.
    pub(crate) fn conns(&self) -> usize {
        lock(&self.state).conns
    }

    /// Returns true if the thread has taken the order to accept no more connections. Before that,
    /// the thread may still accept a connection, and still has its socket.
    pub(crate) fn has_stopped(&self) -> bool {
        lock(&self.state).stopped || self.thread.is_finished()
    }

    /// Returns true if clients can connect; false until the RNIC listens.
    ///
    /// # Errors
    /// The reason why clients never can, or no longer can.
    pub(crate) fn is_listening(&self) -> Result<bool, ListenFailure> {
        lock(&self.state).listening
    }

    /// Returns the counters.
    pub(crate) const fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    fn order(&self, order: Order) {
        // A thread that has ended needs no order.
        let _ = self.orders.send(order);
        self.waker.wake();
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let (gone, heard) = crossbeam_channel::bounded(1);
        self.order(Order::Leave(gone));
        // A thread that has panicked has dropped its end. This wait does not include the thread's
        // wait for a disk.
        let _ = heard.recv();
    }
}

fn lock<T>(seen: &Mutex<T>) -> MutexGuard<'_, T> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The data of the thread.
struct Running {
    server: Server,
    threads: Threads,
    tcp: Option<tcp::Server>,
    state: Arc<Mutex<State>>,
    watch: Arc<Watch>,
    stopped: bool,
}

impl Running {
    fn run(mut self, orders: &Receiver<Order>, waker: &Waker) {
        use crossbeam_channel::TryRecvError;
        loop {
            match orders.try_recv() {
                Ok(Order::Stop) => self.stop_listening(),
                Ok(Order::End) => {
                    self.stop_listening();
                    self.server.drain();
                }
                Ok(Order::Leave(gone)) => return self.leave(&gone, orders),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return,
            }
            let busy = self.server.step();
            if self.show() {
                waker.wake();
            }
            if !busy && orders.is_empty() {
                self.server.wait(NAP);
            }
        }
    }

    /// Ends connections and listeners. The service goes after the owner's handle: closing
    /// descriptors may wait for a disk, and the owner is a thread that other services share.
    fn leave(self, gone: &Sender<()>, orders: &Receiver<Order>) {
        let Running { server, threads, tcp, watch, .. } = self;
        drop((server, threads, tcp));
        // The send fails if the owner does not wait any more.
        let _ = gone.send(());
        while orders.recv().is_ok() {}
        drop(watch);
    }

    fn stop_listening(&mut self) {
        self.server.stop_listening();
        self.tcp = None;
        self.stopped = true;
    }

    /// Shows the present state to other threads; returns true if it has changed.
    fn show(&self) -> bool {
        let listening = match self.server.listening() {
            Err(ServerError::Listen(why)) => Err(why),
            other => Ok(other.unwrap_or(false)),
        };
        let new = State { listening, conns: self.server.connections(), stopped: self.stopped };
        *lock(&self.watch.seen) = self.seen(new.conns);
        let mut state = lock(&self.state);
        let changed = *state != new;
        *state = new;
        changed
    }

    fn seen(&self, conns: usize) -> Seen {
        let [rdma1, rdma2] = [1, 2].map(|version| self.server.connections_speaking(version));
        let silent = conns.saturating_sub(rdma1 + rdma2);
        let tcp = self.tcp.as_ref().map_or(0, tcp::Server::connections);
        let conns = ExportConnections { rdma1, rdma2, silent, tcp };
        Seen { rpc: self.server.counters(), conns }
    }
}
