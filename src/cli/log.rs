//! What goes to stderr.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// How much is said.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// Say nothing but errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more; twice: even more (the environment variable RUST_LOG says it in detail)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

impl LogArgs {
    /// From here on log lines go to stderr.
    pub(crate) fn start(self) {
        start(self.level());
    }

    /// What is asked for, or the usual.
    pub(crate) fn level(self) -> LevelFilter {
        self.level_or(LevelFilter::WARN)
    }

    /// What is asked for, or `other`.
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

/// From here on log lines of `level` and above, or as RUST_LOG says, go to stderr.
pub(crate) fn start(level: LevelFilter) {
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    // Fails when there is a subscriber already: then that one serves.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .try_init();
}
