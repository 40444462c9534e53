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
mod share;
mod shares;

pub use apart::{Arguments, InReply, Room, Sink, Source};
pub use durable::{Carried, Unflushed};
pub use share::Share;
pub use shares::SharesError;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use heddle_rpcrdma::reduce::Item;
use heddle_rpcrdma::rpc::{
    Auth, AuthStat, AuthSys, Call, Denied, Flavor, NULL_PROCEDURE, Procedure, Reply, ReplyBody,
    Status as RpcStatus,
};
use heddle_rpcrdma::xdr;

use crate::counters::{Counts, count};
use crate::export::flush::Disk;
use crate::export::{ExportError, Options};
use crate::wire::{Status, WccData, Xdr, mount, procedure};
use mounts::Mounts;
use shares::Shares;

/// What has been written behind what a buffer held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handled {
    /// The item that may be placed by RDMA (RFC 8267 section 4): data that was read, or the path of a
    /// link. Its offset is in the reply, or in the results where only those are made.
    pub item: Option<Item>,
    /// It lies in the sink that was given. What was written ends with its length.
    pub apart: bool,
}

/// The exports of a listener, as one service of NFS and MOUNT.
///
/// A handle says which export it is of, and each call is carried out by the rules of that one.
#[derive(Debug)]
pub struct Service {
    shares: RwLock<Shares>,
    mounts: Mutex<Mounts>,
}

/// A call that may be carried out.
#[derive(Debug)]
pub struct Admitted {
    /// The export that the call is for. The first one has the calls that name none.
    share: Arc<Share>,
    /// The exports there were when the call came.
    shares: Shares,
}

impl Admitted {
    /// The export that the call is for.
    pub const fn share(&self) -> &Arc<Share> {
        &self.share
    }
}

/// Results with a status, of which a procedure that fails gives `F`.
type Outcome<T, F> = Result<T, (Status, F)>;

impl Service {
    /// Serves `dir`, which clients mount by the name `path` (or as `/`).
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn new(dir: &Path, path: &str, options: Options) -> Result<Service, ExportError> {
        Share::new(dir, path, options).map(Service::one)
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
        Share::with_disk(dir, path, options, disk).map(Service::one)
    }

    fn one(share: Arc<Share>) -> Service {
        Service { shares: RwLock::new(Shares::one(share)), mounts: Mutex::default() }
    }

    /// Serves several directories, which clients mount by their names.
    ///
    /// # Errors
    /// [`SharesError`].
    pub fn of(shares: Vec<Arc<Share>>) -> Result<Service, SharesError> {
        let shares = Shares::of(shares)?;
        shares.introduce();
        Ok(Service { shares: RwLock::new(shares), mounts: Mutex::default() })
    }

    /// Serves these from here on. Calls under way end as they began; handles of an export that is not among them
    /// are stale, and those of the others stay what they are.
    ///
    /// # Errors
    /// [`SharesError`]; nothing has changed then.
    pub fn set_shares(&self, shares: Vec<Arc<Share>>) -> Result<(), SharesError> {
        let shares = Shares::of(shares)?;
        // First, so that no call reaches a new export by way of another.
        shares.introduce();
        *self.shares.write().unwrap_or_else(PoisonError::into_inner) = shares;
        Ok(())
    }

    /// The exports there are, in their order.
    pub fn shares(&self) -> Vec<Arc<Share>> {
        self.current().iter().cloned().collect()
    }

    fn current(&self) -> Shares {
        self.shares.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was counted, of all exports together.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::ZERO;
        self.current().iter().for_each(|share| sum.add(&share.counts()));
        sum
    }

    /// The counters of what is no export's.
    pub(crate) fn of_all(&self) -> Arc<Share> {
        Arc::clone(self.current().first())
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
                let counters = &self.of_all().counters;
                let Some(reply) = error.reply() else {
                    count(&counters.dropped, 1);
                    return None;
                };
                count(&counters.denied, 1);
                put_header(&reply, out);
                return Some(Handled::default());
            }
        };
        let admitted = match self.admit(&call.procedure, &call.cred, peer, arguments) {
            Ok(admitted) => admitted,
            Err(stat) => {
                let body = ReplyBody::Denied(Denied::AuthError(stat));
                put_header(&Reply { xid: call.xid, body }, out);
                return Some(Handled::default());
            }
        };
        let start = out.len();
        put_header(&Reply::accepted(call.xid, RpcStatus::Success), out);
        let header = out.len() - start;
        let arguments = Arguments::of(arguments);
        let peer = peer.unwrap_or(NOWHERE);
        let done = self.carry_out(
            &admitted,
            call.procedure,
            &call.cred,
            (arguments, peer),
            out,
            &mut InReply,
        );
        match done {
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

    /// Finds the export that a call is for, by the handle or path that `arguments` begin with, and looks whether
    /// calls of `peer` with this credential are carried out there. NULL, and what MOUNT says of the server, may be
    /// called by anybody; so may what names no export, which comes to nothing.
    ///
    /// # Errors
    /// Why the call is not carried out.
    pub fn admit(
        &self,
        procedure: &Procedure,
        cred: &Auth<'_>,
        peer: Option<SocketAddr>,
        arguments: &[u8],
    ) -> Result<Admitted, AuthStat> {
        let shares = self.current();
        let named = shares.of_call(*procedure, arguments);
        let share = Arc::clone(named.unwrap_or_else(|| shares.first()));
        let checked = match cred.flavor() {
            _ if procedure.procedure == NULL_PROCEDURE => Ok(()),
            _ if named.is_some_and(|share| share.admit(peer).is_err()) => Err(AuthStat::TOO_WEAK),
            Flavor::NONE => Ok(()),
            Flavor::SYS => AuthSys::decode(cred).map(drop).map_err(|_| AuthStat::BAD_CRED),
            _ => Err(AuthStat::REJECTED_CRED),
        };
        match checked {
            Ok(()) => Ok(Admitted { share, shares }),
            Err(stat) => {
                count(&share.counters.denied, 1);
                Err(stat)
            }
        }
    }

    /// Carries out `procedure` and writes its results, without an RPC header, behind what `out` holds; data
    /// that is read goes to `sink` if that takes it. The caller is one that every export admits.
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
        let shares = self.current();
        let share = shares.of_call(procedure, arguments.octets).unwrap_or_else(|| shares.first());
        let admitted = Admitted { share: Arc::clone(share), shares };
        self.carry_out(&admitted, procedure, cred, (arguments, NOWHERE), out, sink)
    }

    /// As [`begin`](Service::begin), and waits for the disk; the peer says whose turn it is there. Where there is
    /// no room for data the caller is asked to come again.
    fn carry_out(
        &self,
        admitted: &Admitted,
        procedure: Procedure,
        cred: &Auth<'_>,
        (arguments, peer): (Arguments<'_>, SocketAddr),
        out: &mut Vec<u8>,
        sink: &mut dyn Sink,
    ) -> Result<Handled, RpcStatus> {
        let carried = self.begin(admitted, procedure, cred, arguments, out, sink)?;
        Ok(admitted.share.settle(carried, peer, out))
    }

    /// Carries out a call that was [admitted](Service::admit) as [`dispatch`](Service::dispatch) does, but waits
    /// for no change to be on the disk, and for no room in `sink`.
    ///
    /// # Errors
    /// What the reply says when there are no results; what `out` holds behind its old end is void then.
    pub fn begin(
        &self,
        Admitted { share, shares }: &Admitted,
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
                let _calling = share.calling(cred);
                share.nfs(procedure, arguments, out, sink)
            }
            (mount::PROGRAM, mount::VERSION) => match arguments {
                Arguments { octets, data: None } => {
                    self.mount(shares, procedure, cred, octets, out)
                }
                Arguments { data: Some(_), .. } => Err(RpcStatus::GarbageArgs),
            },
            (procedure::PROGRAM | mount::PROGRAM, _) => {
                Err(RpcStatus::ProgMismatch { low: procedure::VERSION, high: procedure::VERSION })
            }
            _ => Err(RpcStatus::ProgUnavail),
        };
        match &mut done {
            Ok(Carried::Done(_)) => {
                share.finished(procedure, begun, out.get(start..).unwrap_or(&[]));
            }
            // It is counted when it is over.
            Ok(Carried::Unflushed(unflushed)) => unflushed.begun = begun,
            Ok(Carried::NoRoom(_)) => out.truncate(start),
            Err(RpcStatus::GarbageArgs) => count(&share.counters.garbage, 1),
            Err(_) => count(&share.counters.unavailable, 1),
        }
        done
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
