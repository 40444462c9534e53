//! A `Share` is one export: its directory, the name that clients mount it by, its rules and its
//! counters.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use heddle_rpcrdma::rpc::{Auth, AuthStat, Procedure, Status as RpcStatus};

use super::durable::{change, durable};
use super::{Arguments, Carried, Done, Handled, Sink, garbage, run};
use crate::caller::{self, Access, AccessError, Calling};
use crate::counters::{Counters, Counts, Timing, count};
use crate::export::flush::{Disk, Due, SystemDisk};
use crate::export::{Export, ExportError, Options};
use crate::wire::{Fattr, PATH_MAX, Status, Verifier, WriteApart, Xdr, procedure};

/// An exported directory with its name and its rules. A [`Service`](super::Service) has one or
/// several.
#[derive(Debug)]
pub struct Share {
    pub(super) export: Arc<Export>,
    /// The name by which clients mount the export.
    path: Vec<u8>,
    /// A number that differs after every start of the server.
    boot: u64,
    access: RwLock<Arc<Entrance>>,
    pub(crate) counters: Counters,
}

/// The rules for callers, and the server's own identity if the export acts for users.
#[derive(Debug, Default)]
struct Entrance {
    access: Access,
    server: Option<caller::Server>,
}

impl Share {
    /// Exports `dir`, which clients mount by the name `path`.
    ///
    /// # Errors
    /// When the directory cannot be opened.
    pub fn new(dir: &Path, path: &str, options: Options) -> Result<Arc<Share>, ExportError> {
        Share::with_disk(dir, path, options, Arc::new(SystemDisk))
    }

    /// Like [`new`](Share::new), with a `disk` that decides when changes are durable.
    ///
    /// # Errors
    /// When the directory cannot be opened.
    pub fn with_disk(
        dir: &Path,
        path: &str,
        options: Options,
        disk: Arc<dyn Disk>,
    ) -> Result<Arc<Share>, ExportError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let boot = (now ^ (u128::from(std::process::id()) << 64)).to_be_bytes();
        // The lower half tells starts apart, and the process ID tells starts within one nanosecond
        // apart.
        let (pid, nanoseconds) = boot.split_at(8);
        let mut verifier = [0; 8];
        let mixed = pid.iter().rev().zip(nanoseconds).map(|(a, b)| a ^ b);
        verifier.iter_mut().zip(mixed).for_each(|(to, byte)| *to = byte);
        let path = path.trim_end_matches('/').as_bytes();
        Ok(Arc::new(Share {
            export: Export::with_disk(dir, path, options, disk)?,
            path: path.to_vec(),
            boot: u64::from_be_bytes(verifier),
            access: RwLock::default(),
            counters: Counters::default(),
        }))
    }

    /// Makes later calls follow `access`: which clients may call, and as which users. Calls in
    /// progress end as they began.
    ///
    /// # Errors
    /// When the calling thread does not have the right to act for users; the threads that carry out
    /// calls need the same right.
    pub fn set_access(&self, access: Access) -> Result<(), AccessError> {
        let server = caller::Server::check(&access)?;
        let mut current = self.access.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(Entrance { access, server });
        Ok(())
    }

    fn entrance(&self) -> Arc<Entrance> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the exported directory.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Returns the name by which clients mount the export.
    pub fn path(&self) -> &[u8] {
        match self.path.get(..PATH_MAX as usize).unwrap_or(&self.path) {
            [] => b"/",
            path => path,
        }
    }

    /// Returns the clients that the export names; an empty list admits every client.
    pub(super) fn clients(&self) -> Vec<String> {
        self.entrance().access.clients.iter().map(ToString::to_string).collect()
    }

    /// Returns the counts of this export.
    pub fn counts(&self) -> Counts {
        self.counters.get()
    }

    /// Returns the number of failed calls for each status.
    pub fn failures(&self) -> Vec<(Status, u64)> {
        self.counters.failures()
    }

    /// Returns how long calls took, for each procedure that clients have called.
    pub fn timings(&self) -> Vec<Timing> {
        self.counters.timings()
    }

    /// Checks that this export admits calls of `peer`.
    ///
    /// # Errors
    /// `TOO_WEAK` for a client that the export does not name.
    pub(super) fn admit(&self, peer: Option<std::net::SocketAddr>) -> Result<(), AuthStat> {
        let admits = self.entrance().access.admits(peer.map(|peer| peer.ip()));
        if admits { Ok(()) } else { Err(AuthStat::TOO_WEAK) }
    }

    /// Counts a call that was carried out, and how long it took.
    pub(super) fn finished(&self, procedure: Procedure, begun: Instant, results: &[u8]) {
        self.counters.took(procedure, begun.elapsed());
        self.count(procedure, results);
    }

    /// Writes the reply that asks the client of a READ to come again.
    pub(super) fn jukebox(&self, out: &mut Vec<u8>) {
        let start = out.len();
        Status::JUKEBOX.put(out);
        None::<Fattr>.put(out);
        self.count(procedure::READ, out.get(start..).unwrap_or(&[]));
    }

    /// Makes the thread carry out a call as the user that the credential and the export's rules
    /// give, until the returned guard is dropped.
    pub(super) fn calling(&self, cred: &Auth<'_>) -> Option<Calling> {
        let entrance = self.entrance();
        let server = entrance.server.as_ref()?;
        Some(Calling::begin(server, entrance.access.user(cred)?))
    }

    /// Counts a call that was carried out. All results of NFS begin with a status.
    pub(super) fn count(&self, procedure: Procedure, results: &[u8]) {
        count(&self.counters.calls, 1);
        if procedure.program != procedure::PROGRAM {
            return;
        }
        match results.first_chunk().map(|&status| Status(u32::from_be_bytes(status))) {
            None | Some(Status::OK) => {}
            Some(status) => {
                count(&self.counters.failed, 1);
                self.counters.fail(status);
                if matches!(status, Status::STALE | Status::BADHANDLE) {
                    count(&self.counters.stale, 1);
                }
            }
        }
    }

    pub(super) fn nfs(
        self: &Arc<Self>,
        p: Procedure,
        Arguments { bytes: arguments, data }: Arguments<'_>,
        out: &mut Vec<u8>,
        sink: &mut dyn Sink,
    ) -> Done {
        match (p, data) {
            (procedure::WRITE, Some(data)) => {
                let call: WriteApart = Xdr::whole(arguments).map_err(garbage)?;
                if call.length as usize != data.len() {
                    return Err(RpcStatus::GarbageArgs);
                }
                let mut due = Due::default();
                let outcome = self.write_from(&call, data, &mut due);
                return Ok(durable(self, p, outcome, due, out));
            }
            (_, Some(_)) => return Err(RpcStatus::GarbageArgs),
            (_, None) => {}
        }
        match p {
            procedure::NULL => run(arguments, out, |()| ()),
            procedure::GETATTR => run(arguments, out, |a| self.getattr(&a)),
            procedure::SETATTR => change(self, p, arguments, out, |a, due| self.setattr(&a, due)),
            procedure::LOOKUP => run(arguments, out, |a| self.lookup(&a)),
            procedure::ACCESS => run(arguments, out, |a| self.access(&a)),
            procedure::READLINK => {
                let call = Xdr::whole(arguments).map_err(garbage)?;
                Ok(Carried::Done(self.readlink(&call, out)))
            }
            procedure::READ => {
                let call = Xdr::whole(arguments).map_err(garbage)?;
                Ok(self.read(&call, out, sink))
            }
            procedure::WRITE => change(self, p, arguments, out, |a, due| self.write(&a, due)),
            procedure::CREATE => change(self, p, arguments, out, |a, due| self.create(&a, due)),
            procedure::MKDIR => change(self, p, arguments, out, |a, due| self.mkdir(&a, due)),
            procedure::SYMLINK => change(self, p, arguments, out, |a, due| self.symlink(&a, due)),
            procedure::MKNOD => change(self, p, arguments, out, |a, due| self.mknod(&a, due)),
            procedure::REMOVE => change(self, p, arguments, out, |a, due| self.remove(&a, due)),
            procedure::RMDIR => change(self, p, arguments, out, |a, due| self.rmdir(&a, due)),
            procedure::RENAME => change(self, p, arguments, out, |a, due| self.rename(&a, due)),
            procedure::LINK => change(self, p, arguments, out, |a, due| self.link(&a, due)),
            procedure::READDIR => {
                let call = Xdr::whole(arguments).map_err(garbage)?;
                self.readdir(&call, out);
                Ok(Carried::Done(Handled::default()))
            }
            procedure::READDIRPLUS => {
                let call = Xdr::whole(arguments).map_err(garbage)?;
                self.readdirplus(&call, out);
                Ok(Carried::Done(Handled::default()))
            }
            procedure::FSSTAT => run(arguments, out, |a| self.fsstat(&a)),
            procedure::FSINFO => run(arguments, out, |a| self.fsinfo(&a)),
            procedure::PATHCONF => run(arguments, out, |a| self.pathconf(&a)),
            procedure::COMMIT => change(self, p, arguments, out, |a, due| self.commit(&a, due)),
            _ => Err(RpcStatus::ProcUnavail),
        }
    }

    /// Returns the number by which clients notice that written and uncommitted data may be lost:
    /// the number differs after every start, and changes when data could not be put on the disk.
    pub(super) fn verifier(&self) -> Verifier {
        Verifier(self.boot.wrapping_add(self.export.flusher().losses()).to_be_bytes())
    }

    /// Checks that clients can change objects of this export.
    pub(super) fn writable(&self) -> Result<(), Status> {
        if self.export.is_read_only() { Err(Status::ROFS) } else { Ok(()) }
    }
}
