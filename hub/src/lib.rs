//! The RNIC as its applications share it: registered memory, objects and their owners, quotas, and
//! sessions of applications in other processes.
//!
//! ```text
//!   application's process                          RNIC's process
//!   ─────────────────────                          ──────────────
//!   Device ── requests ──▶ socket ──▶ Session ──▶ Device ──▶ Hub ──▶ control plane
//!          ◀─ answers, events ──────────                      │
//!                                                             ▼
//!   Qp, Cq, Srq, Mr  ═══ area and memory, mapped by both ══▶ Registry, workers
//! ```
//!
//! | Module | Contents |
//! |---|---|
//! | `hub` | the RNIC for all applications: numbers, owners, the way to the control plane |
//! | `local` | the objects and limits of one application, in this process or served by it |
//! | [`memory`] | the mappings and registrations of the RNIC, and when memory is used again |
//! | `window` | STags that end with a queue pair |
//! | `board`, `names` | facts for applications: ports, events, addresses that are taken |
//! | `session`, `serve` | an application of another process, without and with a thread |
//! | `policy` | what the applications of one principal may have and do |
//!
//! Applications do not link this crate: [`heddle_verbs`] has what they hold, and says in its
//! `provider` what an RNIC implements. This crate knows no transport; `ctl` joins it with one.
//!
//! # Trust
//!
//! A session believes nothing: it looks every name up in its own tables, checks every number against
//! the policy, inspects descriptors, and uses rings that are made for processes that do not trust
//! each other.
//!
//! # Old data in memory
//!
//! The memory of a device in another process is a file of its own, so the file never held data of
//! another application. The session registers the file as it is, and the client clears its memory
//! before any other process knows the STag: the process that wants gigabytes clears them. Memory
//! that comes back from a region and is registered again holds data that the same application had
//! there.
//!
//! `unsafe` is in `memory::region_memory` and `memory::atomic`; each block says why it is sound.

mod board;
mod config;
mod control;
mod hub;
mod local;
pub mod memory;
#[cfg(all(test, feature = "loom"))]
mod model;
mod names;
mod policy;
mod serve;
mod session;
mod window;

pub use board::Board;
pub use config::DeviceConfig;
pub use control::{ControlPlane, ControlRequest};
pub use heddle_engine::{Share, ShareTerms, ShareUsage};
pub use hub::Hub;
pub use policy::{Addresses, Policy};
pub use serve::serve;
pub use session::{Outgoing, Session, SessionCounters, SessionUsage};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A protection domain that belongs to no application: numbers start at 1.
const NO_PD: heddle_types::Pd = heddle_types::Pd(0);

fn lock<T: ?Sized>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
