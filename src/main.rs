//! The `heddle` program.
//!
//! Exit status: 0 when the command succeeded, 1 when it failed (the object and the reason in one
//! line on stderr), 2 when its usage was wrong.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
