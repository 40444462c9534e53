//! What the host's rpcbind is told of exports, on a thread of its own: nobody waits for it.
//!
//! An entry is set when its export listens and taken away when it no longer does. What cannot be told now
//! is told later: the list is told again now and then, which an rpcbind that was started anew needs too.

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

/// How long rpcbind may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the whole list is told again.
const AGAIN: Duration = Duration::from_secs(60);

/// See the module. Dropped, it takes away what it has set.
#[derive(Debug)]
pub(super) struct Registrar {
    socket: PathBuf,
    again: Duration,
    /// What was told last.
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

    /// What there is to be told of from here on, of the exports that listen.
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
                // It is tried again when the list changes.
                Err(e) => return tracing::warn!("rpcbind is not told of NFS exports: {e}"),
            }
        }
        // One that is gone is a defect that has been told of.
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

/// What is told of an export: both programs over RDMA, and over the host's TCP where there is that.
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

/// For people.
fn named(e: &Entry) -> String {
    format!("program {} version {} over {} at {}", e.program, e.version, e.netid, e.address)
}

/// What the thread has.
struct Running {
    socket: PathBuf,
    /// To be listed.
    list: Vec<Entry>,
    /// Of them, those that it is known to list.
    set: Vec<Entry>,
    /// Of them, those of which it has another place: said once.
    elsewhere: Vec<Entry>,
    /// Whether it could not be told, which was said.
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

    /// Has rpcbind know the list, and nothing of ours besides.
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
        // First, so that one that moves finds its place free.
        let gone = self.set.iter().filter(|entry| !self.list.contains(entry));
        for entry in gone.cloned().collect::<Vec<_>>() {
            // That it is not there is as good.
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
