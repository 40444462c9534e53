//! The service: takes RPC calls and returns replies.
//!
//! The transport decides what a retransmitted call gets: the service must not carry out a procedure
//! that is not idempotent twice, and only the transport sees both calls.
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

/// Describes what a procedure has appended to the output buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handled {
    /// The item that RDMA may place (RFC 8267 section 4): data that was read, or the path of a
    /// link. Its offset counts from the start of the reply, or of the results where only those are
    /// written.
    pub item: Option<Item>,
    /// True if the item's data lies in the given sink. The appended bytes then end with the item's
    /// length.
    pub apart: bool,
}

/// The exports of a listener, as one service of NFS and MOUNT.
///
/// A handle says which export it belongs to, and the service carries out each call by the rules of
/// that export.
#[derive(Debug)]
pub struct Service {
    shares: RwLock<Shares>,
    mounts: Mutex<Mounts>,
}

/// A call that the service may carry out.
#[derive(Debug)]
pub struct Admitted {
    /// The export that the call is for. Calls that name no export go to the first one.
    share: Arc<Share>,
    /// The exports of the service when the call arrived.
    shares: Shares,
}

impl Admitted {
    /// Returns the export that the call is for.
    pub const fn share(&self) -> &Arc<Share> {
        &self.share
    }
}

/// Results with a status; a procedure that fails returns `F`.
type Outcome<T, F> = Result<T, (Status, F)>;

impl Service {
    /// Serves `dir`, which clients mount by the name `path` (or as `/`).
    ///
    /// # Errors
    /// When the directory cannot be opened.
    pub fn new(dir: &Path, path: &str, options: Options) -> Result<Service, ExportError> {
        Share::new(dir, path, options).map(Service::one)
    }

    /// Like [`new`](Service::new), with a `disk` that decides when changes are durable.
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

    /// Serves `shares` from here on. Calls in progress end as they began; handles of an export that
    /// is not in `shares` become stale, and handles of the other exports stay valid.
    ///
    /// # Errors
    /// [`SharesError`]; nothing has changed in that case.
    pub fn set_shares(&self, shares: Vec<Arc<Share>>) -> Result<(), SharesError> {
        let shares = Shares::of(shares)?;
        // Introduce the exports before the store, so that no call reaches a new export by way of
        // another.
        shares.introduce();
        *self.shares.write().unwrap_or_else(PoisonError::into_inner) = shares;
        Ok(())
    }

    /// Returns the exports of the service, in their order.
    pub fn shares(&self) -> Vec<Arc<Share>> {
        self.current().iter().cloned().collect()
    }

    fn current(&self) -> Shares {
        self.shares.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the counts of all exports together.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::ZERO;
        self.current().iter().for_each(|share| sum.add(&share.counts()));
        sum
    }

    /// Returns the share whose counters take events that belong to no export.
    pub(crate) fn of_all(&self) -> Arc<Share> {
        Arc::clone(self.current().first())
    }

    /// Carries out an RPC call and appends the reply to `out`. Returns `None` when the message is
    /// not a call: then there is nothing to answer, and `out` is unchanged.
    pub fn handle(&self, call: &[u8], out: &mut Vec<u8>) -> Option<Handled> {
        self.handle_from(None, call, out)
    }

    /// Like [`handle`](Service::handle) for a call from `peer`, whose changes take turns with those
    /// of other peers. Without a peer the call counts as one from within the process.
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

    /// Finds the export that a call is for, by the handle or path at the start of `arguments`, and
    /// checks that the export admits calls of `peer` with this credential. Any client may call
    /// NULL, and procedures of MOUNT that only describe the server. Any client may also make calls
    /// that name no existing export, which fail later.
    ///
    /// # Errors
    /// The reason why the service does not carry out the call.
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

    /// Carries out `procedure` and appends its results, without an RPC header, to `out`; data that
    /// is read goes to `sink` if the sink takes it. The service treats the caller as one that every
    /// export admits.
    ///
    /// # Errors
    /// The status for a reply without results; the bytes appended to `out` are void then.
    pub fn dispatch(
        &self,
        procedure: Procedure,
        cred: &Auth<'_>,
        arguments: Arguments<'_>,
        out: &mut Vec<u8>,
        sink: &mut dyn Sink,
    ) -> Result<Handled, RpcStatus> {
        let shares = self.current();
        let share = shares.of_call(procedure, arguments.bytes).unwrap_or_else(|| shares.first());
        let admitted = Admitted { share: Arc::clone(share), shares };
        self.carry_out(&admitted, procedure, cred, (arguments, NOWHERE), out, sink)
    }

    /// Like [`begin`](Service::begin), but waits for the disk; the peer decides whose turn it is
    /// there. Where there is no room for data the client is asked to come again.
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

    /// Carries out a call that was [admitted](Service::admit) as [`dispatch`](Service::dispatch)
    /// does, but waits neither for changes to reach the disk nor for room in `sink`.
    ///
    /// # Errors
    /// The status for a reply without results; the bytes appended to `out` are void then.
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
                // The guard ends before any change is submitted: a thread that the flusher started
                // under it would stay the user.
                let _calling = share.calling(cred);
                share.nfs(procedure, arguments, out, sink)
            }
            (mount::PROGRAM, mount::VERSION) => match arguments {
                Arguments { bytes, data: None } => self.mount(shares, procedure, cred, bytes, out),
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
            // `Unflushed` counts the call when it is over.
            Ok(Carried::Unflushed(unflushed)) => unflushed.begun = begun,
            Ok(Carried::NoRoom(_)) => out.truncate(start),
            Err(RpcStatus::GarbageArgs) => count(&share.counters.garbage, 1),
            Err(_) => count(&share.counters.unavailable, 1),
        }
        done
    }
}

type Done = Result<Carried, RpcStatus>;

/// The peer of a call for which the embedder names none; its changes take turns under this address.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

fn garbage(_: xdr::Error) -> RpcStatus {
    RpcStatus::GarbageArgs
}

/// Parses the arguments, runs the procedure, and writes the results.
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
    // `room` has the length that the reply reported, so the encoding fits.
    if let Err(e) = reply.encode(room) {
        unreachable!("{e}");
    }
}

/// Returns the attributes in the reply of a failed procedure whose object was not found.
const fn unknown() -> WccData {
    WccData { before: None, after: None }
}
