//! The bodies of the fuzz targets, and the seeds of their corpus.
//!
//! Each target is a module: `run` takes any bytes, panics when a rule is broken, and returns
//! whether it understood anything of them; `seeds` makes inputs with the crates' own encoders, and
//! `run` understands each of these. The targets need no fuzzer: `tests/corpus.rs` runs each over
//! its part of `corpus/`.

pub mod dissect;
pub mod documents;
pub mod early;
pub mod headers;
pub mod ib_cm;
pub mod mads;
pub mod markers;
pub mod mpa_fpdus;
pub mod mpa_startup;
pub mod named;
pub mod qp_receive;
pub mod rings;
pub mod rpcrdma;
pub mod rpcrdma_conn;
pub mod session;
mod stream;
pub mod tcp_stack;
pub mod tcp_wire;
pub mod ucma_commands;

/// The names and contents of inputs.
pub type Seeds = Vec<(String, Vec<u8>)>;

/// A target of the fuzzer.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target, and of its folder in `corpus/`.
    pub name: &'static str,
    /// Tries one input; returns true if the target understood anything of it.
    pub run: fn(&[u8]) -> bool,
    /// Returns the inputs with which a fuzzer begins.
    pub seeds: fn() -> Seeds,
}

macro_rules! targets {
    ($($name:ident)*) => {
        &[$(Target { name: stringify!($name), run: $name::run, seeds: $name::seeds }),*]
    };
}

/// All targets.
pub const TARGETS: &[Target] = targets![
    dissect documents early headers ib_cm mads markers mpa_fpdus mpa_startup named qp_receive rings
    rpcrdma rpcrdma_conn session tcp_stack tcp_wire ucma_commands
];
