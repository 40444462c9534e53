//! Applications in processes of their own, through the control socket.
//!
//! ```text
//!   application's process                          RNIC's process
//!   ─────────────────────                          ──────────────
//!   Device ──▶ client ── requests ──▶ socket ──▶ Session ──▶ Device ──▶ Hub, control plane
//!                     ◀─ answers, events ──────────        │
//!   Qp, Cq, Srq, Mr  ═══ area and memory, mapped by both ══╪═▶ workers
//! ```
//!
//! [`Device::open`](crate::Device::open) is the application's side: what it gives is a device as any
//! other. [`Session`] is the other side, without a socket and without a thread: lines in, lines out. Only
//! what is done once for each object goes through the socket; posts, completions and doorbells are
//! those of [`ring`](crate::ring), and a wake-up is one system call.
//!
//! | File | What is in it |
//! |---|---|
//! | `protocol` | the documents |
//! | `policy` | what an application may have and do |
//! | `session` | the serving side |
//! | `process` | the process at the other end |
//! | `serve` | a thread that serves one connection |
//! | `client` | the asking side, behind [`Device`](crate::Device) |
//!
//! # What is believed
//!
//! The server believes nothing: every name is looked up in the session's own tables, every number is
//! checked against the policy, descriptors are looked at, and the rings are those of processes that do
//! not trust each other. The client believes that whoever it has given its memory to has mapped it; what
//! makes no sense in an answer or event is an error, or the end of the device.
//!
//! # Whose octets
//!
//! A device's memory is a file of its own, so what is in it was never another application's. The server
//! registers it as it is, and the client clears it before anybody knows its STag: gigabytes are cleared
//! by who wants them. Memory that comes back from a region and is registered anew holds what the same
//! application had there.

mod client;
mod policy;
mod process;
pub mod protocol;
mod serve;
mod session;

pub use client::OpenParams;
pub use policy::{Addresses, Policy};
pub use process::process_of;
pub use serve::serve;
pub use session::{Outgoing, Session, SessionCounters, SessionUsage};
