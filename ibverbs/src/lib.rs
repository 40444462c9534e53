//! `libibverbs.so.1` over [`heddle_verbs`], so that programs written for libibverbs and librdmacm
//! run unmodified and without a kernel module.
//!
//! ```text
//!   program ──▶ librdmacm.so.1 (the distribution's) ──▶ /dev/infiniband/rdma_cm ──▶ ucma ─┐
//!      │               │                                                                  │
//!      └───────────────┴──▶ libibverbs.so.1: verbs ──▶ memory (shared in place) ──────────┤
//!                                                                                         ▼
//!                                              rnic: the process's only `heddle_verbs::Device`
//! ```
//!
//! | Module | Holds |
//! |---|---|
//! | `abi` | layouts and numbers of the C ABI, asserted against the distribution's headers |
//! | `verbs` | the exported functions and their objects |
//! | `memory` | memory that the program already has, made shared in place |
//! | `ucma` | the commands that librdmacm writes to its device |
//! | `rnic` | the device that the process has opened, and its queue pairs by number |

#[cfg(not(target_pointer_width = "64"))]
compile_error!("layouts of the C ABI are those of 64-bit Linux");

pub mod abi;
pub mod memory;
pub mod rnic;
pub mod ucma;
pub mod verbs;
