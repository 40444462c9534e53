//! The appliance: an RNIC with services, configured by a file or by flags, that answers questions
//! and takes changes while it runs.
//!
//! ```text
//!   front ──▶ appliance ──▶ services      a thread; perf's services, and exports with own threads
//!     │           │ ├─────▶ gateway       a thread; ctl's forwarding
//!     │           │ ├─────▶ rnic          ctl: control thread and workers
//!     │           │ └─────▶ change ──▶ config
//!     └─ socket, client ──▶ access
//! ```
//!
//! * [`config`]: the settings, with the services of [`service`]; [`change`]: from one configuration
//!   to another, both pure;
//! * [`run`]: the appliance's life; [`rnic`]: from a configuration to an RNIC;
//! * the control socket's documents are in [`heddle_socket::admin`].
#![forbid(unsafe_code)]

pub mod access;
mod appliance;
pub mod change;
pub mod config;
mod front;
mod gateway;
pub mod interfaces;
pub mod log;
mod metrics;
mod nfs;
pub mod private;
pub mod rnic;
pub mod service;
mod services;

pub use config::{Config, ConfigError};
pub use front::run;
pub use rnic::StartError;
