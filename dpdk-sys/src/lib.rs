//! Raw bindings to the system's DPDK (22.11 or newer).
//!
//! Two parts: what bindgen makes of the headers, allowlisted to what Heddle calls, with the real
//! layout of `rte_mbuf` and friends so that fields are plain loads and stores; and a C shim
//! (`shim/`, functions named `heddle_*`) for inline functions, by whole bursts or bulks.
//!
//! Nothing here is safe to use as it stands; `heddle-dataplane` is the safe side. A test compares
//! every size and offset used by hand with what the C compiler says.

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
