//! The service: RPC calls in, replies out.
//!
//! What a retransmitted call gets is its transport's matter: a procedure that is not idempotent must not
//! be carried out twice, and who sees both calls can tell.
#![allow(clippy::result_large_err, reason = "results of the protocol are as large when they fail")]

mod apart;
mod change;
mod data;
mod directory;
mod durable;
mod make;
mod mounts;
mod object;

pub use apart::{Arguments, InReply, Room, Sink, Source};
pub use durable::{Carried, Unflushed};

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use heddle_rpcrdma::reduce::Item;
use heddle_rpcrdma::rpc::{
    Auth, AuthStat, AuthSys, Call, Denied, Flavor, NULL_PROCEDURE, Procedure, Reply, ReplyBody,
    Status as RpcStatus,
};
use heddle_rpcrdma::xdr;

use crate::caller::{self, Access, AccessError, Calling};
use crate::counters::{Counters, Counts, Timing, count};
use crate::export::flush::{Disk, Due, SystemDisk};
use crate::export::{Export, ExportError, Options};
use crate::wire::{Fattr, Status, Verifier, WccData, WriteApart, Xdr, mount, procedure};
use durable::{change, durable};
use mounts::Mounts;

/// What has been written behind what a buffer held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handled {
    /// The item that may be placed by RDMA (RFC 8267 section 4): data that was read, or the path of a
    /// link. Its offset is in the reply, or in the results where only those are made.
    pub item: Option<Item>,
    /// It lies in the sink that was given. What was written ends with its length.
    pub apart: bool,
}

/// A directory as an NFS service.
#[derive(Debug)]
pub struct Service {
    export: Arc<Export>,
    /// What clients call it.
    path: Vec<u8>,
    /// Another one at every start.
    boot: u64,
    mounts: Mutex<Mounts>,
    access: RwLock<Arc<Entrance>>,
    pub(crate) counters: Counters,
}

/// Who may call, as whom, and what a thread is when it acts for no user, where it does.
#[derive(Debug, Default)]
struct Entrance {
    access: Access,
    server: Option<caller::Server>,
}

/// Results with a status, of which a procedure that fails gives `F`.
type Outcome<T, F> = Result<T, (Status, F)>;

impl Service {
    /// Serves `dir`, which clients mount by the name `path` (or as `/`).
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn new(dir: &Path, path: &str, options: Options) -> Result<Service, ExportError> {
        Service::with_disk(dir, path, options, Arc::new(SystemDisk))
    }

    /// The same, on a disk that says itself when changes are on it.
    ///
    /// # Errors
    /// When the directory cannot be opened.
    pub fn with_disk(
        dir: &Path,
        path: &str,
        options: Options,
        disk: Arc<dyn Disk>,
    ) -> Result<Service, ExportError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let boot = (now ^ (u128::from(std::process::id()) << 64)).to_be_bytes();
        // The lower half tells starts apart, and the process those of one nanosecond.
        let (pid, nanoseconds) = boot.split_at(8);
        let mut verifier = [0; 8];
        let mixed = pid.iter().rev().zip(nanoseconds).map(|(a, b)| a ^ b);
        verifier.iter_mut().zip(mixed).for_each(|(to, octet)| *to = octet);
        Ok(Service {
            export: Export::with_disk(dir, options, disk)?,
            path: path.trim_end_matches('/').as_bytes().to_vec(),
            boot: u64::from_be_bytes(verifier),
            mounts: Mutex::default(),
            access: RwLock::default(),
            counters: Counters::default(),
        })
    }

    /// Has calls from here on carried out for these clients, and as these users; those under way end as they
    /// began.
    ///
    /// # Errors
    /// When the calling thread has not the right to act for users, which the threads that carry out calls are
    /// to have as well.
    pub fn set_access(&self, access: Access) -> Result<(), AccessError> {
        let server = caller::Server::check(&access)?;
        let mut current = self.access.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(Entrance { access, server });
        Ok(())
    }

    fn entrance(&self) -> Arc<Entrance> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is exported.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.counters.get()
    }

    /// Calls that failed, by their statuses.
    pub fn failures(&self) -> Vec<(Status, u64)> {
        self.counters.failures()
    }

    /// How long calls took, of each procedure that was called.
    pub fn timings(&self) -> Vec<Timing> {
        self.counters.timings()
    }

    /// Carries out an RPC call and writes the reply behind what `out` holds. `None` when it is not a
    /// call: nothing is written, and there is nothing to answer.
    pub fn handle(&self, call: &[u8], out: &mut Vec<u8>) -> Option<Handled> {
        self.handle_from(None, call, out)
    }

    /// The same of a call from `peer`, whose changes have their turn with those of others; of one from within
    /// the process when there is none.
    pub fn handle_from(
        &self,
        peer: Option<SocketAddr>,
        call: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Handled> {
        let (call, arguments) = match Call::decode(call) {
            Ok(call) => call,
            Err(error) => {
                let Some(reply) = error.reply() else {
                    count(&self.counters.dropped, 1);
                    return None;
                };
                count(&self.counters.denied, 1);
                put_header(&reply, out);
                return Some(Handled::default());
            }
        };
        if let Err(stat) = self.admit(&call.procedure, &call.cred, peer) {
            count(&self.counters.denied, 1);
            let body = ReplyBody::Denied(Denied::AuthError(stat));
            put_header(&Reply { xid: call.xid, body }, out);
            return Some(Handled::default());
        }
        let start = out.len();
        put_header(&Reply::accepted(call.xid, RpcStatus::Success), out);
        let header = out.len() - start;
        let arguments = Arguments::of(arguments);
        let carried = self.begin(call.procedure, &call.cred, arguments, out, &mut InReply);
        match carried.and_then(|carried| self.settle(carried, peer.unwrap_or(NOWHERE), out)) {
            Ok(mut handled) => {
                if let Some(item) = &mut handled.item {
                    item.offset = item.offset.saturating_add(u32::try_from(header).unwrap_or(0));
                }
                Some(handled)
            }
            Err(status) => {
                out.truncate(start);
                put_header(&Reply::accepted(call.xid, status), out);
                Some(Handled::default())
            }
        }
    }

    /// Whether calls of `peer` with this credential are carried out. NULL, and what MOUNT says of the server, may
    /// be called by anybody.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(
        &self,
        procedure: &Procedure,
        cred: &Auth<'_>,
        peer: Option<SocketAddr>,
    ) -> Result<(), AuthStat> {
        let listed = procedure.program == mount::PROGRAM && *procedure != mount::MNT;
        match cred.flavor() {
            _ if procedure.procedure == NULL_PROCEDURE => Ok(()),
            _ if !listed && !self.entrance().access.admits(peer.map(|peer| peer.ip())) => {
                Err(AuthStat::TOO_WEAK)
            }
            Flavor::NONE => Ok(()),
            Flavor::SYS => AuthSys::decode(cred).map(drop).map_err(|_| AuthStat::BAD_CRED),
            _ => Err(AuthStat::REJECTED_CRED),
        }
    }

    /// Carries out `procedure` and writes its results, without an RPC header, behind what `out` holds; data
    /// that is read goes to `sink` if that takes it. Whether the caller may has been asked with
    /// [`admit`](Service::admit).
    ///
    /// # Errors
    /// What the reply says when there are no results; what `out` holds behind its old end is void then.
    pub fn dispatch(
        &self,
        procedure: Procedure,
        cred: &Auth<'_>,
        arguments: Arguments<'_>,
        out: &mut Vec<u8>,
        sink: &mut dyn Sink,
    ) -> Result<Handled, RpcStatus> {
        let carried = self.begin(procedure, cred, arguments, out, sink)?;
        self.settle(carried, NOWHERE, out)
    }

    /// As [`dispatch`](Service::dispatch), but waits for no change to be on the disk, and for no room in
    /// `sink`.
    ///
    /// # Errors
    /// What the reply says when there are no results; what `out` holds behind its old end is void then.
    pub fn begin(
        &self,
        procedure: Procedure,
        cred: &Auth<'_>,
        arguments: Arguments<'_>,
        out: &mut Vec<u8>,
        sink: &mut dyn Sink,
    ) -> Result<Carried, RpcStatus> {
        let (start, begun) = (out.len(), Instant::now());
        let mut done = match (procedure.program, procedure.version) {
            (procedure::PROGRAM, procedure::VERSION) => {
                // A thread of the flusher that was started within would stay the user.
                let _calling = self.calling(cred);
                self.nfs(procedure, arguments, out, sink)
            }
            (mount::PROGRAM, mount::VERSION) => match arguments {
                Arguments { octets, data: None } => self.mount(procedure, cred, octets, out),
                Arguments { data: Some(_), .. } => Err(RpcStatus::GarbageArgs),
            },
            (procedure::PROGRAM | mount::PROGRAM, _) => {
                Err(RpcStatus::ProgMismatch { low: procedure::VERSION, high: procedure::VERSION })
            }
            _ => Err(RpcStatus::ProgUnavail),
        };
        match &mut done {
            Ok(Carried::Done(_)) => {
                self.finished(procedure, begun, out.get(start..).unwrap_or(&[]));
            }
            // It is counted when it is over.
            Ok(Carried::Unflushed(unflushed)) => unflushed.begun = begun,
            Ok(Carried::NoRoom(_)) => out.truncate(start),
            Err(RpcStatus::GarbageArgs) => count(&self.counters.garbage, 1),
            Err(_) => count(&self.counters.unavailable, 1),
        }
        done
    }

    /// Counts a call that was carried out, and how long it took.
    fn finished(&self, procedure: Procedure, begun: Instant, results: &[u8]) {
        self.counters.took(procedure, begun.elapsed());
        self.count(procedure, results);
    }

    /// Asks the caller of a READ to come again.
    fn jukebox(&self, out: &mut Vec<u8>) {
        let start = out.len();
        Status::JUKEBOX.put(out);
        None::<Fattr>.put(out);
        self.count(procedure::READ, out.get(start..).unwrap_or(&[]));
    }

    /// Has the thread carry out a call as the user that the credential and the export say, as long as it is
    /// kept.
    fn calling(&self, cred: &Auth<'_>) -> Option<Calling> {
        let entrance = self.entrance();
        let server = entrance.server.as_ref()?;
        Some(Calling::begin(server, entrance.access.user(cred)?))
    }

    /// Counts a call that was carried out. All results of NFS begin with a status.
    fn count(&self, procedure: Procedure, results: &[u8]) {
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

    fn nfs(
        &self,
        p: Procedure,
        Arguments { octets: arguments, data }: Arguments<'_>,
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
                return Ok(durable(p, outcome, due, out));
            }
            (_, Some(_)) => return Err(RpcStatus::GarbageArgs),
            (_, None) => {}
        }
        match p {
            procedure::NULL => run(arguments, out, |()| ()),
            procedure::GETATTR => run(arguments, out, |a| self.getattr(&a)),
            procedure::SETATTR => change(p, arguments, out, |a, due| self.setattr(&a, due)),
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
            procedure::WRITE => change(p, arguments, out, |a, due| self.write(&a, due)),
            procedure::CREATE => change(p, arguments, out, |a, due| self.create(&a, due)),
            procedure::MKDIR => change(p, arguments, out, |a, due| self.mkdir(&a, due)),
            procedure::SYMLINK => change(p, arguments, out, |a, due| self.symlink(&a, due)),
            procedure::MKNOD => change(p, arguments, out, |a, due| self.mknod(&a, due)),
            procedure::REMOVE => change(p, arguments, out, |a, due| self.remove(&a, due)),
            procedure::RMDIR => change(p, arguments, out, |a, due| self.rmdir(&a, due)),
            procedure::RENAME => change(p, arguments, out, |a, due| self.rename(&a, due)),
            procedure::LINK => change(p, arguments, out, |a, due| self.link(&a, due)),
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
            procedure::COMMIT => change(p, arguments, out, |a, due| self.commit(&a, due)),
            _ => Err(RpcStatus::ProcUnavail),
        }
    }

    /// By which clients see that what they wrote and did not commit may be lost: another one at every start,
    /// and when data could not be put on the disk.
    fn verifier(&self) -> Verifier {
        Verifier(self.boot.wrapping_add(self.export.flusher().losses()).to_be_bytes())
    }

    /// Whether anything can be changed.
    fn writable(&self) -> Result<(), Status> {
        if self.export.is_read_only() { Err(Status::ROFS) } else { Ok(()) }
    }
}

type Done = Result<Carried, RpcStatus>;

/// The peer of a call that its owner names none of, where changes have their turn.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

fn garbage(_: xdr::Error) -> RpcStatus {
    RpcStatus::GarbageArgs
}

/// Reads arguments, does it, and writes the results.
fn run<'a, 'r, A: Xdr<'a>, R: Xdr<'r>>(
    arguments: &'a [u8],
    out: &mut Vec<u8>,
    procedure: impl FnOnce(A) -> R,
) -> Done {
    let call = A::whole(arguments).map_err(garbage)?;
    procedure(call).put(out);
    Ok(Carried::Done(Handled::default()))
}

fn put_header(reply: &Reply<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + reply.encoded_len(), 0);
    let room = out.get_mut(start..).unwrap_or(&mut []);
    // As long as it said.
    if let Err(e) = reply.encode(room) {
        unreachable!("{e}");
    }
}

/// Attributes of a failed procedure of which the object was not found.
const fn unknown() -> WccData {
    WccData { before: None, after: None }
}
