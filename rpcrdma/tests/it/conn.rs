//! Connections in a model: two ends with memory, work queues and a wire of their own, in virtual
//! time.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod allowed;
mod choices;
mod codes;
mod exchange;
mod hostile;
mod model;
mod negotiation;
mod random;
mod refusals;
mod reverse;
mod rules;
mod scene;
mod terms;
mod transfers;
mod waits;
mod wire;
mod world;
