//! NFS version 3 and MOUNT version 3 (RFC 1813): a directory served to clients, and the client's side.
//!
//! RPC messages go in and come out as octets; which transport carries them is no matter of the service.
//! RPC-over-RDMA is the one it is made for ([`rdma`]): a reply tells which of its octets may be placed
//! (RFC 8267), and a client's calls do too, which [`client::rdma`] carries. TCP is there as well ([`tcp`]),
//! for kernels that ask MOUNT by it.
//!
//! * [`wire`]: arguments and results of the procedures;
//! * [`Export`]: objects below a directory, by handles that outlive the server;
//! * [`Share`]: an export with its name and its rules; [`Service`]: several of them, a call in, a reply out;
//! * [`rdma`]: the service on queue pairs; [`record`], [`tcp`]: messages over a stream;
//! * [`rpcbind`]: telling the host's where the programs are;
//! * [`client`]: mounting, walking, reading and writing from the other side.
//!
//! **Who a caller is** does not matter unless [`Access`] says so: whatever the credential says, all is done as
//! the user that the server runs as, who owns what is made. AUTH_SYS proves nothing, so it gives nothing.
//! A client that reaches the service can do below the directory what that user can, but for what would reach
//! beyond it: set-user-ID and set-group-ID bits of files are not set, and devices are not made. A service with
//! the privilege can act for users instead, and a list of clients says whose calls are carried out. Nothing
//! outside the directory can be reached ([`Export`]).
//!
//! Calls are carried out on the thread that brings them, and may wait for the disk to read from it: a
//! service is to be called on threads that may wait, several at once. Changes go to the disk on threads of
//! the service's own, for all who wait for the same object together ([`Unflushed`]).
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
