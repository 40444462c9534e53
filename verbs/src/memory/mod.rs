//! Registered memory: where it is mapped, how its bytes are moved, and when it may be handed back.
//!
//! ```text
//!   Region ── a mapping, with an id in ──▶ RegionTable (read by workers without a lock)
//!      ▲                                       │
//!      │ stretches of it become MRs            ▼
//!   Registry ── STags, References, Readers   RegionMemory: the protocol's Memory, one per worker
//! ```
//!
//! | File | What is in it |
//! |---|---|
//! | `region` | one mapping: made, sealed, unmapped; `access` moves its bytes, `mapping` asks the system |
//! | `region/sparse` | a region of which only what is registered has pages, and who pays for those |
//! | `counted` | how many ranges cover each place |
//! | `region_table` | all mappings of an RNIC by id, for lookups without a lock |
//! | `region_memory` | a worker's way through that table to the bytes |
//! | `registry` | what is registered: an STag for a stretch of a region, and its return |
//! | `pool`, `stretches` | a region that is handed out in stretches, and which are free |
//! | `quota` | how many STags an application may have |
//! | `readers` | which workers may still look at what was taken out |
//!
//! **Who may touch the bytes.** The application, the peer (through RDMA), the workers and the NIC,
//! at any time. So there is never a Rust reference to them: access is by [`raw`], the one file that
//! moves bytes between registered memory and ordinary slices.
//!
//! **When memory is handed back.** A stretch of a region that was registered is given out again
//! when, in this order, its STag is gone from the table; every worker has passed a point at which
//! it looks at no region ([`Readers`]); and nobody refers to it any more ([`References`]): no FPDU
//! in a send queue, no frame in a ring or a driver. It does not matter which of the three comes
//! last.

mod counted;
mod crc;
mod file;
mod guard;
mod pages;
mod pool;
mod quota;
pub mod raw;
mod readers;
mod region;
mod region_memory;
mod region_table;
mod registry;
pub(crate) mod stretches;

pub use counted::Counted;
pub use guard::lost;
pub use pages::PageSize;
pub(crate) use pool::{Pool, Stretch};
pub use quota::{MrLimits, MrUsage};
pub(crate) use quota::{Quota, Sort, Ticket};
pub use readers::{Grace, Reader, Readers};
pub(crate) use region::{Hold, HoldError, Holding};
pub use region::{Region, RegionError};
pub use region_memory::{MemoryCounters, RegionMemory};
pub use region_table::{RegionHook, RegionId, RegionTable};
pub use registry::{References, RegisterError, Registry};
pub(crate) use registry::{Registered, Terms};
