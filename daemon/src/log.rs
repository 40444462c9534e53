//! What goes to stderr, and from what level on, which can change.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::config::{Log, LogFormat};

/// The log of this process.
#[derive(Debug)]
pub struct Logging(reload::Handle<EnvFilter, Registry>);

/// `RUST_LOG` says it in detail; `level` is for what it does not name.
fn filter(level: LevelFilter) -> EnvFilter {
    EnvFilter::builder().with_default_directive(level.into()).from_env_lossy()
}

impl Logging {
    /// From here on log lines go to stderr. Where there is a log already, that one serves.
    pub fn start(log: Log) -> Logging {
        let (filter, handle) = reload::Layer::new(filter(log.level));
        let lines = fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal());
        let lines = match log.format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => lines.json().boxed(),
        };
        let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
        Logging(handle)
    }

    /// Another level from here on.
    ///
    /// # Errors
    /// When there is another log.
    pub fn set_level(&self, level: LevelFilter) -> Result<(), String> {
        self.0.reload(filter(level)).map_err(|e| e.to_string())
    }
}
