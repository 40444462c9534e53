//! The sans-IO RNIC: one [`Rnic`] joins a TCP [`Stack`](heddle_tcp::Stack) to iWARP queue pairs.
//!
//! `tcp` knows positions in streams, `iwarp` knows FPDUs and registered memory, and neither knows
//! the other. This crate holds, for each connection, what lies between the two: the FPDUs that are
//! not acknowledged yet, the received frames that cannot be placed yet, and the queue pair. It is as
//! pure as the two it joins: frames, memory and time come in as values and as type parameters, so the
//! same code runs on DPDK mbufs in a worker and on byte vectors in a simulation.
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
//! [`handle_frame`](Rnic::handle_frame) and commands in any order; [`hand_over`](Rnic::hand_over) where an
//! RNIC may connect to itself; then
//! [`poll_completion`](Rnic::poll_completion) and [`poll_event`](Rnic::poll_event) until empty,
//! [`poll_transmit`](Rnic::poll_transmit) until it returns false. When
//! [`poll_timeout`](Rnic::poll_timeout) has passed, [`handle_timeouts`](Rnic::handle_timeouts).
//!
//! # Copies
//!
//! A payload byte is copied once on receive, from the frame into registered memory. On send it is
//! copied once with a CRC, in the pass that computes it (`tx_digested_bytes`), and otherwise not at
//! all: the frame refers to it (`tx_referenced_bytes`). The exceptions are counted: small or hoarded
//! segments that must wait (`held_copied_bytes`), and what a [`TxSink`] copies by its own choice.
#![forbid(unsafe_code)]

mod ahead;
mod conn;
mod counters;
mod event;
mod frame;
mod handed;
mod held;
mod kept;
mod looks;
mod order;
mod posted;
mod queue;
mod receive;
mod rnic;
mod rnr;
mod rounds;
mod running;
mod shared;
mod sink;
mod transmit;

pub use counters::RnicCounters;
pub use event::{CloseReason, Event, FpduMode};
pub use frame::RnicFrame;
pub use order::{Order, Report};
pub use posted::{POST_TURN, Posted, take_turn};
pub use rnic::{Patience, Rnic, RnicConfig, RnicError};
pub use sink::{Offload, TxSink};
