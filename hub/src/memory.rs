//! Registered memory: which mappings an RNIC has, and when a stretch may be used again.
//! [`heddle_shm`] has the mappings themselves.
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
//! | `region_table` | all mappings of an RNIC by id, for lookups without a lock |
//! | `region_memory` | a worker's way through that table to the bytes |
//! | `registry` | registrations: an STag for a stretch of a region, and its return |
//! | `pool` | a region that is handed out in stretches |
//! | `quota` | how many STags an application may have |
//! | `readers` | which workers may still look at entries that were taken out |
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
pub(crate) use quota::{Quota, Sort, Ticket};
pub use readers::{Grace, Reader, Readers};
pub use region_memory::{MemoryCounters, RegionMemory};
pub use region_table::{RegionHook, RegionId, RegionTable};
pub use registry::{References, Registry};
pub(crate) use registry::{Registered, Terms};
