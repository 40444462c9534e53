//! The lock-free code of this crate under a model checker: see the module of the same name in
//! `heddle_verbs`.
//!
//! `cargo test -p heddle-hub --features loom --lib model`.

mod grace;

use loom::model::Builder;

/// Runs a program in every order that takes a thread off its processor at most three times.
fn check(program: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(program);
}
