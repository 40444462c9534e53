//! The log on stderr.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// The amount of log output.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// Show only errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Show more; twice: even more (the environment variable RUST_LOG selects it in detail)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

impl LogArgs {
    /// Starts the log: log lines go to stderr from here on.
    pub(crate) fn start(self) {
        start(self.level());
    }

    /// Returns the level that the options select, or the default.
    pub(crate) fn level(self) -> LevelFilter {
        self.level_or(LevelFilter::WARN)
    }

    /// Returns the level that the options select, or `other`.
    pub(crate) fn level_or(self, other: LevelFilter) -> LevelFilter {
        match (self.quiet, self.verbose) {
            (true, _) => LevelFilter::ERROR,
            (_, 0) => other,
            (_, 1) => LevelFilter::INFO,
            (_, 2) => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }
    }
}

/// Starts the log: lines of `level` and above, or as RUST_LOG selects, go to stderr from here on.
pub(crate) fn start(level: LevelFilter) {
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    // This fails when the process already has a subscriber, which then stays in use.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .try_init();
}
