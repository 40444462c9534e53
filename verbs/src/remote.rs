//! The device of an application in a process of its own, through the control socket.
//!
//! ```text
//!   application's process                          RNIC's process
//!   ─────────────────────                          ──────────────
//!   Device ──▶ client ── requests ──▶ socket ──▶ Session ──▶ Device ──▶ Hub, control plane
//!                     ◀─ answers, events ──────────        │
//!   Qp, Cq, Srq, Mr  ═══ area and memory, mapped by both ══╪═▶ workers
//! ```
//!
//! [`Device::open`](crate::Device::open) returns a device like any other. `heddle_hub::Session` is the
//! other side. Only operations that happen once for each object go through the socket; posts,
//! completions and doorbells are those of [`heddle_rings`], and a wake-up is one system call.
//!
//! | File | Contents |
//! |---|---|
//! | `protocol` | the documents, which both sides use |
//! | `client` | the client's side, behind [`Device`](crate::Device) |
//! | `process` | the process at the other end |
//!
//! The client believes that the process to which it has given its memory has mapped that memory;
//! nonsense in an answer or event is an error, or ends the device. The client clears the memory that
//! it brings, before any other process knows the STag.

mod client;
mod process;
pub mod protocol;

pub use client::OpenParams;
pub use process::process_of;
