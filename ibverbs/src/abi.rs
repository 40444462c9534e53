//! Layouts and numbers of the C ABI of libibverbs, as facts of that ABI.
//!
//! The names are those of `<infiniband/verbs.h>`, so that a reader finds them there. A test
//! compiles a C program against the distribution's headers and compares every size, offset and
//! number with this module's. The ABI only ever grows, so these layouts hold for every libibverbs
//! from rdma-core 15 up to the newest.
//!
//! | Module | Holds |
//! |---|---|
//! | `device` | devices, ports and their attributes |
//! | `context` | contexts and the operations that inline functions of the header call |
//! | `memory` | protection domains, memory regions, memory windows |
//! | `cq` | completion channels and queues, completions |
//! | `qp` | queue pairs, their attributes and work requests |
//! | `srq` | shared receive queues |
//! | `ah` | address handles and paths, which iWARP has none of |
//! | `event` | asynchronous events |

#![allow(
    non_camel_case_types,
    missing_docs,
    reason = "names of the C ABI, described by its own manual pages"
)]

pub mod ah;
pub mod context;
pub mod cq;
pub mod device;
pub mod event;
pub mod memory;
pub mod qp;
pub mod srq;

pub use ah::*;
pub use context::*;
pub use cq::*;
pub use device::*;
pub use event::*;
pub use memory::*;
pub use qp::*;
pub use srq::*;
