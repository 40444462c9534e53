//! Memory that processes share, and how they wake each other.
//!
//! ```text
//!   Region ── a mapping of ──▶ memory of this process, or a file in memory that another one maps
//!     │ sparse: only its held parts have pages, which an Account pays for
//!     ▼
//!   lost: what is left when a client takes the pages away       Waker ── wakes ──▶ Sleeper
//! ```
//!
//! | Module | Contents |
//! |---|---|
//! | [`region`] | one mapping, and how its bytes are moved |
//! | `region::sparse` | a region that has pages only where a holder wants them |
//! | `file` | files in memory: made, checked, sealed |
//! | [`guard`](lost) | a mapping whose pages have gone: zeros in their place, no signal that kills |
//! | [`counted`](Counted) | how many ranges cover each place |
//! | [`stretches`](Stretches) | which parts of a region are free |
//! | [`account`] | what the applications of one principal use together, and how much they may |
//! | [`closer`] | threads that release what takes as long as a client likes |
//! | [`waker`] | wake-ups of threads and processes, by futex or descriptor |
//! | [`threads`] | threads that a library starts in a program |
//!
//! This crate knows no ring, no STag and no queue pair: both applications and RNICs hold regions. It
//! assumes that the other process is hostile: that process may change every byte at any time, shrink
//! a file that is not sealed, and never answer.
//!
//! **Access to the bytes.** The application, the peer (through RDMA), the workers and the NIC may
//! touch the bytes at any time. So no code ever makes a Rust reference to them: all access is by
//! [`heddle_digest`], which moves bytes between registered memory and ordinary slices, or by atomic
//! instructions.
//!
//! `unsafe` is in `region`, `guard`, `closer`, `threads` and `waker`; each block says why it is sound.

pub mod account;
pub mod closer;
mod counted;
mod file;
mod guard;
pub mod pages;
pub mod region;
mod stretches;
pub mod threads;
pub mod waker;

pub use counted::Counted;
pub use guard::lost;
pub use pages::PageSize;
pub use region::{Region, RegionError};
pub use stretches::Stretches;
pub use waker::{Sleeper, Waker};
