//! The service on queue pairs: both programs, NFS and MOUNT, of an RPC-over-RDMA server.
//!
//! ```text
//!   server's thread ── calls ──▶ queue ──▶ threads: Service::begin ── changes ──▶ flusher
//!    ▲  ▲     ▲                               │  │                                   │
//!    │  │     └── calls that wait for room ───┘  │                                   │
//!    │  └────────────────── replies ─────────────┘                                   │
//!    └───────────────────── replies, when the disk has the change ───────────────────┘
//! ```
//!
//! The thread that steps the server never waits for a disk. A thread that carries out calls waits
//! only for the disk to read data: it waits neither for a change to reach the disk nor for memory
//! that a client keeps. The queue never has more calls than the server grants credits for on all
//! its connections, and serves the clients in turn.
//!
//! The RNIC has placed the data of a WRITE into registered memory by RDMA Read, and the system
//! writes it from there to the file. The system reads the data of a READ from the file into
//! registered memory, and the RNIC writes it from there to the client. Heddle itself does not copy
//! the data.

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

/// The default number of threads that carry out calls, and so of calls that can wait for the disk
/// at once.
pub const THREADS: usize = 8;

/// The number of calls that the server serves at a time on one connection: the connection's
/// credits.
pub const CALLS: u16 = 16;

/// The bytes of a connection's memory that the longest call can take: its message, rounded up to
/// whole cache lines.
const CALL_MAX: usize = (MESSAGE_MAX as usize).next_multiple_of(64);

/// Returns the configuration of an RPC server on which each connection can have [`CALLS`] of the
/// longest calls in flight. All connections together have `memory` bytes of registered memory, for
/// calls and for data that is read; a call that finds none free waits. From 6 MiB on, the longest
/// READ has room beside all calls that have theirs; with less memory, WRITEs can keep a READ
/// waiting until the server asks the client to come again.
pub fn config(memory: usize) -> ServerConfig {
    config_for(memory, CALLS)
}

/// Returns the same configuration with `calls` calls in flight on each connection.
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

/// Why a server cannot answer NFS and MOUNT.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The server already has a program for NFS or MOUNT.
    #[error(transparent)]
    Registered(#[from] AlreadyRegistered),
    /// The system cannot start a thread.
    #[error("no thread for NFS: {0}")]
    Thread(#[from] io::Error),
}

/// Makes `server` answer NFS and MOUNT by `service`, on `threads` threads, or on one if `threads`
/// is 0; with two or more, some threads are reserved for calls that neither move data nor change
/// anything. The threads end after the caller drops the returned value, each after its current
/// call; the server answers later calls with SYSTEM_ERR.
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
    // No data of MOUNT is placed by RDMA.
    let versions = mount::VERSION..=mount::VERSION;
    server.register(mount::PROGRAM, versions, Table(&[]), handler())?;
    let memory: Memory = server.memory().clone();
    Ok(Threads::start(threads, queue, service, &memory)?)
}

/// A program that queues its calls.
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

/// Returns how the server treats a call that comes again, over any transport.
///
/// A repeated WRITE or COMMIT has the same effect as the first (RFC 1813 section 4.5), since a
/// client writes nothing else to the same place until it has the reply. WRITEs and COMMITs are
/// many, and their replies would push out the replies to calls that must not run twice. Calls of
/// MOUNT, which put an entry on its list, may also run again.
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
