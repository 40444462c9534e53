//! The service on queue pairs: both programs, NFS and MOUNT, of an RPC-over-RDMA server.
//!
//! ```text
//!   server's thread ── calls ──▶ queue ──▶ threads: Service::dispatch, which waits for the disk
//!         ▲                                   │
//!         └──────────── replies ──────────────┘  long data in the server's registered memory
//! ```
//!
//! The thread that steps the server never waits for a disk. No more calls are in the queue than the
//! server grants credits for on all its connections.
//!
//! Data of a WRITE has come by RDMA Read into registered memory, and the system writes it from there to the
//! file; that of a READ it reads from the file into registered memory, from where it is written to the client.
//! Heddle copies none of it.

mod call;
mod threads;

use std::io;
use std::sync::Arc;

use heddle_rpc::binding::Table;
use heddle_rpc::server::AlreadyRegistered;
use heddle_rpc::{Memory, Procedure, Program, Request, Server, ServerConfig, TransportConfig};
use heddle_rpcrdma::binding::NFS3;

use crate::Service;
use crate::wire::{MESSAGE_MAX, mount, procedure};
use threads::Queue;

pub use threads::Threads;

/// Threads that carry calls out, where nothing else is said: as many calls can wait for the disk.
pub const THREADS: usize = 8;

/// Calls of a connection that are served at a time: its credits.
pub const CALLS: u16 = 16;

/// Octets that the longest call can take of a connection's memory: its message, on whole cache lines.
const CALL_MAX: usize = (MESSAGE_MAX as usize).next_multiple_of(64);

/// What an RPC server is to be made with so that clients can have [`CALLS`] of the longest calls under
/// way on each connection. All connections together have `memory` octets of registered memory, for calls
/// and for data that is read; calls that find none wait.
pub fn config(memory: usize) -> ServerConfig {
    ServerConfig {
        transport: TransportConfig {
            calls: CALLS,
            message_max: MESSAGE_MAX,
            ..TransportConfig::default()
        },
        memory,
        connection_memory: memory.min(CALL_MAX * usize::from(CALLS)),
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

/// Has `server` answer NFS and MOUNT by `service`, on `threads` threads, one at least. They end when
/// they are dropped, each after the call it has; calls that come later are answered SYSTEM_ERR.
///
/// # Errors
/// [`ServeError`].
pub fn serve(
    server: &mut Server,
    service: &Arc<Service>,
    threads: usize,
) -> Result<Threads, ServeError> {
    let queue = Arc::new(Queue::default());
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

    /// What only looks; WRITE and COMMIT too, which leave the same when they are done again (RFC 1813
    /// section 4.5): a client writes nothing else there until it has the reply. They are many, and would
    /// push out the replies of those that must not be done again. MOUNT's list may be told twice.
    fn is_idempotent(&self, procedure: Procedure) -> bool {
        procedure.program == mount::PROGRAM
            || matches!(
                procedure,
                procedure::GETATTR
                    | procedure::LOOKUP
                    | procedure::ACCESS
                    | procedure::READLINK
                    | procedure::READ
                    | procedure::WRITE
                    | procedure::READDIR
                    | procedure::READDIRPLUS
                    | procedure::FSSTAT
                    | procedure::FSINFO
                    | procedure::PATHCONF
                    | procedure::COMMIT
            )
    }
}
