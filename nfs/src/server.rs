//! The service: RPC calls in, replies out.
//!
//! What a retransmitted call gets is its transport's matter: a procedure that is not idempotent must not
//! be carried out twice, and who sees both calls can tell.
#![allow(clippy::result_large_err, reason = "results of the protocol are as large when they fail")]

mod apart;
mod change;
mod data;
mod directory;
mod make;
mod mounts;
mod object;

pub use apart::{Arguments, InReply, Room, Sink, Source};

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use heddle_rpcrdma::reduce::Item;
use heddle_rpcrdma::rpc::{
    Auth, AuthStat, AuthSys, Call, Denied, Flavor, NULL_PROCEDURE, Procedure, Reply, ReplyBody,
    Status as RpcStatus,
};
use heddle_rpcrdma::xdr;

use crate::counters::{Counters, Counts, Timing, count};
use crate::export::{Export, ExportError, Options};
use crate::wire::{Status, Verifier, WccData, WriteApart, Xdr, mount, procedure};
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
    counters: Counters,
}

/// Results with a status, of which a procedure that fails gives `F`.
type Outcome<T, F> = Result<T, (Status, F)>;

impl Service {
    /// Serves `dir`, which clients mount by the name `path` (or as `/`).
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn new(dir: &Path, path: &str, options: Options) -> Result<Service, ExportError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let boot = (now ^ (u128::from(std::process::id()) << 64)).to_be_bytes();
        // The lower half tells starts apart, and the process those of one nanosecond.
        let (pid, nanoseconds) = boot.split_at(8);
        let mut verifier = [0; 8];
        let mixed = pid.iter().rev().zip(nanoseconds).map(|(a, b)| a ^ b);
        verifier.iter_mut().zip(mixed).for_each(|(to, octet)| *to = octet);
        Ok(Service {
            export: Export::new(dir, options)?,
            path: path.trim_end_matches('/').as_bytes().to_vec(),
            boot: u64::from_be_bytes(verifier),
            mounts: Mutex::default(),
            counters: Counters::default(),
        })
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
        if let Err(stat) = self.admit(&call.procedure, &call.cred) {
            count(&self.counters.denied, 1);
            let body = ReplyBody::Denied(Denied::AuthError(stat));
            put_header(&Reply { xid: call.xid, body }, out);
            return Some(Handled::default());
        }
        let start = out.len();
        put_header(&Reply::accepted(call.xid, RpcStatus::Success), out);
        let header = out.len() - start;
        let arguments = Arguments::of(arguments);
        match self.dispatch(call.procedure, &call.cred, arguments, out, &mut InReply) {
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

    /// Whether calls with this credential are carried out. NULL may be called by anybody.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(&self, procedure: &Procedure, cred: &Auth<'_>) -> Result<(), AuthStat> {
        match cred.flavor() {
            _ if procedure.procedure == NULL_PROCEDURE => Ok(()),
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
        let (start, begun) = (out.len(), Instant::now());
        let done = match (procedure.program, procedure.version) {
            (procedure::PROGRAM, procedure::VERSION) => self.nfs(procedure, arguments, out, sink),
            (mount::PROGRAM, mount::VERSION) => match arguments {
                Arguments { octets, data: None } => self.mount(procedure, cred, octets, out),
                Arguments { data: Some(_), .. } => Err(RpcStatus::GarbageArgs),
            },
            (procedure::PROGRAM | mount::PROGRAM, _) => {
                Err(RpcStatus::ProgMismatch { low: procedure::VERSION, high: procedure::VERSION })
            }
            _ => Err(RpcStatus::ProgUnavail),
        };
        match &done {
            Ok(_) => {
                self.counters.took(procedure, begun.elapsed());
                self.count(procedure, out.get(start..).unwrap_or(&[]));
            }
            Err(RpcStatus::GarbageArgs) => count(&self.counters.garbage, 1),
            Err(_) => count(&self.counters.unavailable, 1),
        }
        done
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
                self.write_from(&call, data).put(out);
                return Ok(Handled::default());
            }
            (_, Some(_)) => return Err(RpcStatus::GarbageArgs),
            (_, None) => {}
        }
        match p {
            procedure::NULL => run(arguments, out, |()| ()),
            procedure::GETATTR => run(arguments, out, |a| self.getattr(&a)),
            procedure::SETATTR => run(arguments, out, |a| self.setattr(&a)),
            procedure::LOOKUP => run(arguments, out, |a| self.lookup(&a)),
            procedure::ACCESS => run(arguments, out, |a| self.access(&a)),
            procedure::READLINK => {
                let call = Xdr::whole(arguments).map_err(garbage)?;
                Ok(self.readlink(&call, out))
            }
            procedure::READ => {
                let call = Xdr::whole(arguments).map_err(garbage)?;
                Ok(self.read(&call, out, sink))
            }
            procedure::WRITE => run(arguments, out, |a| self.write(&a)),
            procedure::CREATE => run(arguments, out, |a| self.create(&a)),
            procedure::MKDIR => run(arguments, out, |a| self.mkdir(&a)),
            procedure::SYMLINK => run(arguments, out, |a| self.symlink(&a)),
            procedure::MKNOD => run(arguments, out, |a| self.mknod(&a)),
            procedure::REMOVE => run(arguments, out, |a| self.remove(&a)),
            procedure::RMDIR => run(arguments, out, |a| self.rmdir(&a)),
            procedure::RENAME => run(arguments, out, |a| self.rename(&a)),
            procedure::LINK => run(arguments, out, |a| self.link(&a)),
            procedure::READDIR => {
                let call = Xdr::whole(arguments).map_err(garbage)?;
                self.readdir(&call, out);
                Ok(Handled::default())
            }
            procedure::READDIRPLUS => {
                let call = Xdr::whole(arguments).map_err(garbage)?;
                self.readdirplus(&call, out);
                Ok(Handled::default())
            }
            procedure::FSSTAT => run(arguments, out, |a| self.fsstat(&a)),
            procedure::FSINFO => run(arguments, out, |a| self.fsinfo(&a)),
            procedure::PATHCONF => run(arguments, out, |a| self.pathconf(&a)),
            procedure::COMMIT => run(arguments, out, |a| self.commit(&a)),
            _ => Err(RpcStatus::ProcUnavail),
        }
    }

    /// By which clients see that what they wrote and did not commit may be lost: another one at every start,
    /// and when data could not be put on the disk.
    fn verifier(&self) -> Verifier {
        Verifier(self.boot.wrapping_add(self.export.losses()).to_be_bytes())
    }

    /// Whether anything can be changed.
    fn writable(&self) -> Result<(), Status> {
        if self.export.is_read_only() { Err(Status::ROFS) } else { Ok(()) }
    }
}

type Done = Result<Handled, RpcStatus>;

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
    Ok(Handled::default())
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
