//! What an RNIC has counted, measured and holds, as Prometheus reads it.
//!
//! ```text
//!   [Source] ── [Sample] ──▶ [expose] ──▶ text ──▶ GET /metrics
//!      └─ one for all who ask within a quarter of a second     └▶ GET /healthz: do all workers answer?
//! ```
//!
//! [`expose`] is a pure function of plain values. [`serve`] answers over HTTP on the runtime it is
//! called on. Neither touches a worker: a sample comes by way of the control plane, which adds up
//! counters piece by piece, and however many ask at once, one sample is taken for all.
//!
//! The text is Prometheus's format, version 0.0.4, and not OpenMetrics: of the two it is the one that
//! every collector reads and `promtool` checks. It is written here, since there is no more to it than
//! three kinds of line; the libraries that write it want to own the counters as well.

mod expose;
mod http;
mod sample;
mod text;

pub use expose::expose;
pub use http::{CONTENT_TYPE, HttpCounters, Limits, serve, serve_with};
pub use sample::{
    ApplicationSample, Clients, ExportConnections, ExportSample, Gateway, LcoreSample, Memory,
    NfsSample, PortSample, Sample, Source, WorkerSample,
};
