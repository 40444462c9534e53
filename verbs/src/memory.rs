//! Registered memory: where it is mapped, how its bytes are moved, and when it may be used again.
//!
//! ```text
//!   Region ── a mapping, with an id in ──▶ RegionTable (read by workers without a lock)
//!      ▲                                       │
//!      │ stretches of it become MRs            ▼
//!   Registry ── STags, References, Readers   RegionMemory: the protocol's Memory, one per worker
//! ```
//!
//! | File | Contents |
//! |---|---|
//! | `region` | one mapping; `access` moves its bytes, `mapping` makes and unmaps it |
//! | `file` | files in memory: made, checked, sealed |
//! | `region/sparse` | a region with pages only where memory is registered; who pays for them |
//! | `counted` | how many ranges cover each place |
//! | `region_table` | all mappings of an RNIC by id, for lookups without a lock |
//! | `region_memory` | a worker's way through that table to the bytes |
//! | `registry` | registrations: an STag for a stretch of a region, and its return |
//! | `pool`, `stretches` | a region that is handed out in stretches, and which are free |
//! | `quota` | how many STags an application may have |
//! | `readers` | which workers may still look at entries that were taken out |
//!
//! **Access to the bytes.** The application, the peer (through RDMA), the workers and the NIC may
//! touch the bytes at any time. So no code ever makes a Rust reference to them: all access is by
//! [`heddle_digest`], which moves bytes between registered memory and ordinary slices, or by
//! `atomic`.
//!
//! **When memory is used again.** The registry gives a stretch of a region out again when three
//! conditions hold, checked in this order: the stretch's STag has left the table; every worker has
//! passed a point at which it looks at no region ([`Readers`]); and nothing refers to the stretch
//! any more ([`References`]), no FPDU in a send queue and no frame in a ring or a driver. Any of
//! the three may be the last to come true.

mod atomic;
mod pool;
mod quota;
mod readers;
mod region_memory;
mod region_table;
mod registry;

pub(crate) use pool::{Pool, Stretch};
pub use quota::{MrLimits, MrUsage};
pub(crate) use quota::{Quota, Sort, Ticket};
pub use readers::{Grace, Reader, Readers};
pub use region_memory::{MemoryCounters, RegionMemory};
pub use region_table::{RegionHook, RegionId, RegionTable};
pub use registry::{References, RegisterError, Registry};
pub(crate) use registry::{Registered, Terms};
