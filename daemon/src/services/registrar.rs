//! The host's rpcbind and its list of exports, on a thread of its own, for which no other thread
//! waits.
//!
//! The thread sets an entry when its export listens, and removes the entry when the export no
//! longer does. If rpcbind cannot be reached, the thread tries later: it repeats the whole list now
//! and then, which a restarted rpcbind needs too.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use heddle_nfs::rpcbind::{Rpcbind, SOCKET};
use heddle_nfs::wire::{mount, procedure};
use heddle_rpc::rpcbind::{Entry, universal_address};

use crate::service::Nfs;

/// Time that rpcbind has to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval between repetitions of the whole list.
const AGAIN: Duration = Duration::from_secs(60);

/// The handle of the thread; see the module. When the handle is dropped, the thread removes the
/// entries that it has set.
#[derive(Debug)]
pub(super) struct Registrar {
    socket: PathBuf,
    again: Duration,
    /// The last list that was sent.
    list: Vec<Entry>,
    thread: Option<(Sender<Vec<Entry>>, JoinHandle<()>)>,
}

impl Default for Registrar {
    fn default() -> Registrar {
        Registrar::of(Path::new(SOCKET), AGAIN)
    }
}

impl Registrar {
    fn of(socket: &Path, again: Duration) -> Registrar {
        Registrar { socket: socket.into(), again, list: Vec::new(), thread: None }
    }

    /// Sends the entries of the exports that listen.
    pub(super) fn list<'a>(&mut self, exports: impl Iterator<Item = (SocketAddr, &'a Nfs)>) {
        let wanted = exports.filter(|(_, nfs)| nfs.rpcbind);
        let list: Vec<_> = wanted.flat_map(|(addr, nfs)| entries(addr, nfs)).collect();
        if list == self.list {
            return;
        }
        if self.thread.is_none() {
            let (to, from) = crossbeam_channel::unbounded();
            let (socket, again) = (self.socket.clone(), self.again);
            let builder = thread::Builder::new().name("heddle-rpcbind".into());
            match builder.spawn(move || Running::new(socket).run(&from, again)) {
                Ok(thread) => self.thread = Some((to, thread)),
                // The next change of the list tries again.
                Err(e) => return tracing::warn!("rpcbind is not told of NFS exports: {e}"),
            }
        }
        // A thread that has ended is a defect, and has been reported already.
        let _ = self.thread.as_ref().map(|(to, _)| to.send(list.clone()));
        self.list = list;
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        if let Some((to, thread)) = self.thread.take() {
            drop(to);
            let _ = thread.join();
        }
    }
}

/// Returns the entries of an export: both programs over RDMA, and over the host's TCP if the export
/// has that.
fn entries(addr: SocketAddr, nfs: &Nfs) -> Vec<Entry> {
    let programs = [(procedure::PROGRAM, procedure::VERSION), (mount::PROGRAM, mount::VERSION)];
    let rdma = programs.iter().map(|(program, version)| Entry::rdma(*program, *version, addr));
    let tcp = nfs.tcp.map(|tcp| programs.map(|(program, version)| by_tcp(program, version, tcp)));
    rdma.chain(tcp.into_iter().flatten()).collect()
}

fn by_tcp(program: u32, version: u32, at: SocketAddr) -> Entry {
    let netid = match at.ip() {
        IpAddr::V4(_) => "tcp",
        IpAddr::V6(_) => "tcp6",
    };
    let (netid, address) = (netid.to_owned(), universal_address(at));
    Entry { program, version, netid, address, owner: String::new() }
}

/// Returns a description of an entry for people.
fn named(e: &Entry) -> String {
    format!("program {} version {} over {} at {}", e.program, e.version, e.netid, e.address)
}

/// The data of the thread.
struct Running {
    socket: PathBuf,
    /// Entries that rpcbind should list.
    list: Vec<Entry>,
    /// Entries of `list` that rpcbind is known to list.
    set: Vec<Entry>,
    /// Entries of `list` for which rpcbind has another place; each is logged once.
    elsewhere: Vec<Entry>,
    /// Whether rpcbind could not be reached, and that has been logged.
    silent: bool,
}

impl Running {
    fn new(socket: PathBuf) -> Running {
        Running { socket, list: Vec::new(), set: Vec::new(), elsewhere: Vec::new(), silent: false }
    }

    fn run(mut self, orders: &Receiver<Vec<Entry>>, again: Duration) {
        loop {
            match orders.recv_timeout(again) {
                Ok(list) => (self.list, self.elsewhere) = (list, Vec::new()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.tell();
        }
        self.list.clear();
        self.tell();
    }

    /// Makes rpcbind list these entries, and no other of ours.
    fn tell(&mut self) {
        if self.list.is_empty() && self.set.is_empty() {
            return;
        }
        match self.try_to_tell() {
            Ok(()) => self.silent = false,
            Err(e) if !self.silent => {
                self.silent = true;
                tracing::warn!("rpcbind is not told of NFS: {}: {e}", self.socket.display());
            }
            Err(_) => {}
        }
    }

    fn try_to_tell(&mut self) -> io::Result<()> {
        let mut rpcbind = Rpcbind::connect(&self.socket, PATIENCE)?;
        // Old entries go first, so that an entry that moves finds its place free.
        let gone = self.set.iter().filter(|entry| !self.list.contains(entry));
        for entry in gone.cloned().collect::<Vec<_>>() {
            // An entry that is missing already is as good as removed.
            rpcbind.unset(&entry)?;
            self.set.retain(|set| *set != entry);
        }
        for entry in &self.list {
            let known = self.set.contains(entry);
            if rpcbind.set(entry)? {
                if !known {
                    tracing::info!("rpcbind lists {}", named(entry));
                    self.set.push(entry.clone());
                }
                self.elsewhere.retain(|other| other != entry);
                continue;
            }
            self.set.retain(|set| set != entry);
            if !self.elsewhere.contains(entry) {
                tracing::warn!("rpcbind has another place, and does not list {}", named(entry));
                self.elsewhere.push(entry.clone());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
