//! The sans-IO RNIC: one [`Rnic`] joins a TCP [`Stack`](heddle_tcp::Stack) to iWARP queue pairs.
//!
//! The `tcp` crate knows positions in streams, the `iwarp` crate knows FPDUs and registered memory,
//! and neither crate knows the other. For each connection, this crate holds the state between the
//! two: the FPDUs that the peer has not acknowledged, the received frames that the RNIC cannot
//! place yet, and the queue pair. Like `tcp` and `iwarp`, this crate does no I/O: callers pass
//! frames, memory and time in as values and as type parameters, so the same code runs on DPDK mbufs
//! in a worker and on byte vectors in a simulation.
//!
//! # Life of a connection
//!
//! ```text
//!   connect / listen ─ TCP ─▶ Connected / Accepted ─ start-up bytes both ways (control plane
//!   negotiates MPA) ─▶ enter_fpdu_mode ─ queue pair runs ─▶ disconnect / Terminate / reset ─▶
//!   Closed ─ release
//! ```
//!
//! # Calling order
//!
//! The owner calls [`handle_frames`](Rnic::handle_frames) and commands in any order, and
//! [`hand_over`](Rnic::hand_over) if an RNIC may connect to itself. The owner then calls
//! [`poll_completion`](Rnic::poll_completion) and [`poll_event`](Rnic::poll_event) until both
//! return nothing, [`poll_transmit`](Rnic::poll_transmit) until it returns 0 or there is no more room
//! for frames, and then [`end_transmit`](Rnic::end_transmit), before it lets memory go. When
//! [`poll_timeout`](Rnic::poll_timeout) has passed, the owner calls
//! [`handle_timeouts`](Rnic::handle_timeouts).
//!
//! # Copies
//!
//! On receive, the RNIC copies each payload byte once, from the frame into registered memory. On
//! send, the RNIC copies each payload byte once if the connection uses a CRC, in the pass that
//! computes the CRC (`tx_digested_bytes`); otherwise the RNIC copies nothing and the frame refers
//! to the payload (`tx_referenced_bytes`). Counters record the exceptions: small or hoarded
//! segments that must wait (`held_copied_bytes`), and bytes that a
//! [`TxSink`](heddle_engine::TxSink) copies by its own choice.
#![forbid(unsafe_code)]

mod ahead;
mod conn;
mod counters;
mod engine;
mod event;
mod frame;
mod handed;
mod held;
mod kept;
mod looks;
mod order;
mod queue;
mod receive;
mod rnic;
mod rnr;
mod rounds;
mod running;
mod shared;
mod transmit;
mod turns;

pub use counters::RnicCounters;
pub use engine::{RnicFacts, RnicSums};
pub use event::{Event, FpduMode};
pub use frame::RnicFrame;
pub use order::{Arrival, Order, Report};
pub use rnic::{Patience, Rnic, RnicConfig};
