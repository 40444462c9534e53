//! NFS version 3 and MOUNT version 3 (RFC 1813): the server, which serves directories to clients,
//! and the client's side.
//!
//! The service takes RPC messages and returns RPC messages as bytes, and does not depend on the
//! transport that carries the messages. The service is made for RPC-over-RDMA ([`rdma`]): a reply
//! marks which of its bytes RDMA may place (RFC 8267), and so do the calls of a client, which
//! [`client::rdma`] carries. The crate has TCP as well ([`tcp`]), for kernels that call MOUNT over
//! TCP.
//!
//! * [`wire`]: arguments and results of the procedures;
//! * [`Export`]: objects below a directory, by handles that outlive the server;
//! * [`Share`]: an export with its name and its rules; [`Service`]: several shares, which takes a
//!   call and returns a reply;
//! * [`rdma`]: the service on queue pairs; [`record`], [`tcp`]: messages over a stream;
//! * [`rpcbind`]: registers the ports of the programs with the host's rpcbind;
//! * [`client`]: mounting, walking, reading and writing from the other side.
//!
//! **The caller's identity** does not matter unless [`Access`] says so: whatever the credential
//! says, the service carries out every call as the user that the server runs as, and this user owns
//! each new object. AUTH_SYS proves nothing, so it grants nothing. A client that reaches the
//! service can do below the directory what that user can, except for acts that would have an effect
//! beyond the directory: the service does not set set-user-ID and set-group-ID bits of files, and
//! does not make devices. A service with the privilege can act for users instead, and a list of
//! clients says whose calls the service carries out. No client can reach anything outside the
//! directory ([`Export`]).
//!
//! The thread that brings a call carries the call out, and may wait while the disk reads. The
//! embedding program therefore calls a service on threads that may block, several at once. Threads
//! of the service's own write changes to the disk, with one write for all callers that wait for the
//! same object ([`Unflushed`]).
#![forbid(unsafe_code)]

mod caller;
pub mod client;
mod counters;
mod export;
mod fair;
pub mod rdma;
pub mod record;
pub mod rpcbind;
mod server;
pub mod tcp;
pub mod wire;

pub use caller::{ANONYMOUS, Access, AccessError, Network, NetworkError, Squash};
pub use counters::{Counts, Timing};
pub use export::flush::{Disk, Extent, SystemDisk};
pub use export::{Export, ExportError, Options};
pub use server::{
    Admitted, Arguments, Carried, Handled, InReply, Room, Service, Share, SharesError, Sink,
    Source, Unflushed,
};
