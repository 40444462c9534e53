//! Exposes the counters, measurements and state of an RNIC in the format that Prometheus reads.
//!
//! ```text
//!   [Source] ── [Sample] ──▶ [expose] ──▶ text ──▶ GET /metrics
//!      └─ one sample serves a quarter of a second     └▶ GET /healthz: do all workers answer?
//! ```
//!
//! [`expose`] is a pure function of plain values. [`serve`] answers over HTTP on the runtime that
//! calls it. Neither touches a worker: a sample comes from the control plane, which adds up
//! counters piece by piece. Requests that come at the same time share one sample.
//!
//! The text has Prometheus's format, version 0.0.4, and not OpenMetrics: every collector reads the
//! former, and `promtool` checks it. The crate writes the format itself, because it consists of
//! only three kinds of line, and the libraries that write it want to own the counters as well.

mod expose;
mod http;
mod sample;
mod text;

pub use expose::expose;
pub use http::{CONTENT_TYPE, HttpCounters, Limits, serve, serve_with};
pub use sample::{
    ApplicationSample, BondSample, Clients, ExportConnections, ExportSample, Gateway, LcoreSample,
    MemberSample, Memory, NfsSample, PortSample, Sample, ShareSample, Source, WorkerSample,
};
