//! Two connection managers that speak InfiniBand to each other, in virtual time, over a wire that
//! may lose, repeat and reorder messages; and one manager alone with peers that keep no rule.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod exchange;
mod gateway;
mod hostile;
mod liveness;
mod lossy;
mod refusals;
mod world;
