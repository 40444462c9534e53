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
//! [`Device::open`](crate::Device::open) is the application's side: it returns a device like any
//! other. [`Session`] is the other side, without a socket and without a thread: lines in, lines
//! out. Only operations that happen once for each object go through the socket; posts, completions
//! and doorbells are those of [`ring`](heddle_rings), and a wake-up is one system call.
//!
//! | File | Contents |
//! |---|---|
//! | `protocol` | the documents |
//! | `policy` | what an application may have and do |
//! | `session` | the serving side |
//! | `process` | the process at the other end |
//! | `serve` | a thread that serves one connection |
//! | `client` | the client's side, behind [`Device`](crate::Device) |
//!
//! # Trust
//!
//! The server believes nothing: it looks every name up in the session's own tables, checks every
//! number against the policy, inspects descriptors, and uses rings that are made for processes that
//! do not trust each other. The client believes that the process to which it has given its memory
//! has mapped that memory; nonsense in an answer or event is an error, or ends the device.
//!
//! # Old data in memory
//!
//! A device's memory is a file of its own, so the file never held data of another application. The
//! server registers the file as it is, and the client clears its memory before any other process
//! knows the STag: the process that wants gigabytes clears them. Memory that comes back from a
//! region and is registered again holds data that the same application had there.

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
