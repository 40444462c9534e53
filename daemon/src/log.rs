//! The log on stderr: its format and its level, both of which can change; and its last lines, for
//! reports of faults.

mod recent;

use std::io::{IsTerminal, stderr};
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::config::{Log, LogFormat};

pub(crate) use recent::lines as recent_lines;

/// The filter of log lines.
type Filter = reload::Layer<EnvFilter, Registry>;

/// The formatter of log lines.
type Lines = Box<dyn Layer<Layered<Filter, Registry>> + Send + Sync>;

/// The log of this process has lines in JSON.
static JSON: AtomicBool = AtomicBool::new(false);

/// Returns true if the log has lines in JSON: a program that collects such lines takes no others,
/// so the process then says nothing beside its log.
pub fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// The log of this process.
pub struct Logging {
    filter: reload::Handle<EnvFilter, Registry>,
    lines: reload::Handle<Lines, Layered<Filter, Registry>>,
}

impl core::fmt::Debug for Logging {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Logging")
    }
}

/// Makes the filter. `RUST_LOG` sets it in detail; `level` is for everything that `RUST_LOG` does
/// not name.
fn filter(level: LevelFilter) -> EnvFilter {
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    match format!("{REPORT}=info").parse() {
        Ok(reports) => filter.add_directive(reports),
        Err(_) => filter,
    }
}

/// The target of what `heddle serve` prints where the log is text. These lines come whatever the
/// level is.
pub const REPORT: &str = "heddle::report";

fn lines(format: LogFormat) -> Lines {
    let lines = fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal());
    match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    }
}

impl Logging {
    /// Sends log lines to stderr from here on. If the process has a log already, that log stays.
    pub fn start(log: Log) -> Logging {
        let (filter, filter_handle) = reload::Layer::new(filter(log.level));
        let (lines, lines_handle) = reload::Layer::new(lines(log.format));
        let recent = fmt::layer().with_ansi(false).with_writer(recent::Writer::default);
        let registry = tracing_subscriber::registry().with(filter).with(lines).with(recent);
        if registry.try_init().is_ok() {
            JSON.store(log.format == LogFormat::Json, Ordering::Relaxed);
        }
        Logging { filter: filter_handle, lines: lines_handle }
    }

    /// Sets another level from here on.
    ///
    /// # Errors
    /// When the process has another log.
    pub fn set_level(&self, level: LevelFilter) -> Result<(), String> {
        self.filter.reload(filter(level)).map_err(|e| e.to_string())
    }

    /// Sets another format from here on.
    ///
    /// # Errors
    /// When the process has another log.
    pub fn set_format(&self, format: LogFormat) -> Result<(), String> {
        self.lines.reload(lines(format)).map_err(|e| e.to_string())?;
        JSON.store(format == LogFormat::Json, Ordering::Relaxed);
        Ok(())
    }
}
