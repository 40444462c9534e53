//! The control plane of Heddle.
//!
//! Workers move data; everything that happens once per connection or region happens here: the MPA
//! start-up with its time-outs, asking applications whether to accept, making STags, and telling
//! applications what became of their connections. It sleeps when there is nothing to do.
//!
//! An application sees a [`Device`]. It allocates a protection domain, completion queues, queue
//! pairs and memory regions, listens or connects, and gets [`CmEvent`]s through its
//! [`EventQueue`]. Work requests and completions do not pass through here: they go through the
//! rings of [`Qp`] and [`Cq`] straight to and from the worker.
//!
//! There are two ways to run:
//!
//! - an [`Endpoint`] is a worker and its control plane in one, driven by the thread that calls
//!   [`Endpoint::poll`];
//! - a [`Node`] has its workers on pinned lcores and the control plane on a thread of its own.

mod arena_alloc;
mod cm;
mod control;
mod counters;
mod device;
mod endpoint;
mod error;
mod event;
mod mr;
mod node;
mod params;
mod refusals;

pub use counters::CtlCounters;
pub use device::{Device, Reservation};
pub use endpoint::{Endpoint, EndpointConfig, OpenError, Snapshot};
pub use error::CtlError;
pub use event::{Agreed, CmEvent, CmId, ConnectFailure, DisconnectReason, EventQueue, ListenerId};
pub use heddle_dataplane::{Cq, Qp, QpInit, Sleeper, Waker};
pub use mr::Mr;
pub use node::Node;
pub use params::{AcceptParams, ConnectParams, DEFAULT_READ_DEPTH, ListenParams};
