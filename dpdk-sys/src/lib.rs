//! Raw bindings to the system's DPDK (22.11 or newer).
//!
//! The crate has two parts. bindgen generates the first from the headers, restricted to the calls
//! that Heddle makes, with the real layout of structures. For `rte_mbuf` the bindings have only the
//! offsets of fields (`HEDDLE_MBUF_AT_*`). C computes these offsets alike from the headers of 22.11
//! and of 24.11, where fields lie in anonymous unions, so that field accesses are plain loads and
//! stores with both. The second part is a C shim (`shim/`, functions named `heddle_*`) for inline
//! functions, by whole bursts or bulks.
//!
//! Nothing here is safe to use directly; `heddle-dataplane` is the safe side. A test compares every
//! size and offset used by hand with the C compiler's values. `scripts/ports` builds and runs it with
//! DPDK 24.11, and for 64-bit Arm.

#[allow(
    missing_docs,
    unreachable_pub,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
