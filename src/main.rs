//! The `heddle` program.
//!
//! Exit status: 0 when what was asked for is done, 1 when it failed (what and why in one line on
//! stderr), 2 when it was asked for wrongly.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
