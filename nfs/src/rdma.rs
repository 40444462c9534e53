//! The service on queue pairs: both programs, NFS and MOUNT, of an RPC-over-RDMA server.
//!
//! ```text
//!   server's thread ── calls ──▶ queue ──▶ threads: Service::begin ── changes ──▶ the service's flusher
//!    ▲  ▲     ▲                               │  │                                    │
//!    │  │     └── calls that wait for room ───┘  │                                    │
//!    │  └────────────────── replies ─────────────┘                                    │
//!    └───────────────────── replies, when the disk has the change ────────────────────┘
//! ```
//!
//! The thread that steps the server never waits for a disk. A thread that carries calls out waits for data to
//! be read from it, for nothing else: not for a change to be on the disk, and not for memory that a client
//! keeps. No more calls are in the queue than the server grants credits for on all its connections, and
//! clients have their turn in it one after the other.
//!
//! Data of a WRITE has come by RDMA Read into registered memory, and the system writes it from there to the
//! file; that of a READ it reads from the file into registered memory, from where it is written to the client.
//! Heddle copies none of it.

mod call;
mod queue;
mod threads;

use std::io;
use std::sync::Arc;

use heddle_rpc::binding::Table;
use heddle_rpc::server::AlreadyRegistered;
use heddle_rpc::{
    Memory, Procedure, Program, Repeat, Request, Server, ServerConfig, TransportConfig,
};
use heddle_rpcrdma::binding::NFS3;

use crate::Service;
use crate::wire::{MESSAGE_MAX, mount, procedure};
use queue::Queue;

pub use threads::Threads;

/// Threads that carry calls out, where nothing else is said: as many calls can wait for the disk.
pub const THREADS: usize = 8;

/// Calls of a connection that are served at a time: its credits.
pub const CALLS: u16 = 16;

/// Bytes that the longest call can take of a connection's memory: its message, on whole cache lines.
const CALL_MAX: usize = (MESSAGE_MAX as usize).next_multiple_of(64);

/// What an RPC server is to be made with so that clients can have [`CALLS`] of the longest calls under
/// way on each connection. All connections together have `memory` octets of registered memory, for calls
/// and for data that is read; calls that find none wait. From 6 MiB on a READ of the longest has room
/// beside all calls that have theirs; with less, WRITEs can keep one waiting until it is told to come
/// again.
pub fn config(memory: usize) -> ServerConfig {
    config_for(memory, CALLS)
}

/// The same with `calls` under way on each connection.
pub fn config_for(memory: usize, calls: u16) -> ServerConfig {
    ServerConfig {
        transport: TransportConfig {
            calls,
            message_max: MESSAGE_MAX,
            ..TransportConfig::default()
        },
        memory,
        connection_memory: memory.min(CALL_MAX * usize::from(calls)),
        ..ServerConfig::default()
    }
}

/// Why a server does not serve an export.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It has NFS or MOUNT already.
    #[error(transparent)]
    Registered(#[from] AlreadyRegistered),
    /// No thread is to be had.
    #[error("no thread for NFS: {0}")]
    Thread(#[from] io::Error),
}

/// Has `server` answer NFS and MOUNT by `service`, on `threads` threads, one at least; from two on some are
/// kept for calls that neither move data nor change anything. They end when they are dropped, each after the
/// call it has; calls that come later are answered SYSTEM_ERR.
///
/// # Errors
/// [`ServeError`].
pub fn serve(
    server: &mut Server,
    service: &Arc<Service>,
    threads: usize,
) -> Result<Threads, ServeError> {
    let threads = threads.max(1);
    let queue = Arc::new(Queue::new(threads));
    let handler = || Handler { queue: Arc::clone(&queue) };
    let versions = procedure::VERSION..=procedure::VERSION;
    server.register(procedure::PROGRAM, versions, NFS3, handler())?;
    // Nothing of MOUNT is placed.
    let versions = mount::VERSION..=mount::VERSION;
    server.register(mount::PROGRAM, versions, Table(&[]), handler())?;
    let memory: Memory = server.memory().clone();
    Ok(Threads::start(threads, queue, service, &memory)?)
}

/// A program: it queues its calls.
struct Handler {
    queue: Arc<Queue>,
}

impl Program for Handler {
    fn call(&mut self, request: Request) {
        self.queue.push(request);
    }

    fn repeat(&self, procedure: Procedure) -> Repeat {
        repeat(procedure)
    }
}

/// What becomes of a call that comes again, over whichever transport.
///
/// WRITE and COMMIT leave the same when they are done again (RFC 1813 section 4.5), as a client writes
/// nothing else there until it has the reply. They are many, and would push out the replies of those that
/// must not be done again. So is what MOUNT puts on its list.
pub(crate) const fn repeat(procedure: Procedure) -> Repeat {
    match procedure {
        Procedure { program: mount::PROGRAM, .. } => Repeat::Afterwards,
        procedure::WRITE | procedure::COMMIT => Repeat::Afterwards,
        procedure::NULL
        | procedure::GETATTR
        | procedure::LOOKUP
        | procedure::ACCESS
        | procedure::READLINK
        | procedure::READ
        | procedure::READDIR
        | procedure::READDIRPLUS
        | procedure::FSSTAT
        | procedure::FSINFO
        | procedure::PATHCONF => Repeat::Always,
        _ => Repeat::Never,
    }
}
