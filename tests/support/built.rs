//! Builds examples as `cargo test --workspace` does: with the features of the whole workspace, so
//! that cargo compiles nothing twice.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// Silence of cargo after which to report the wait: an up-to-date build takes only a second.
const SILENCE: Duration = Duration::from_secs(10);

/// Builds the examples that are not up to date.
pub(crate) fn examples() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--quiet", "--offline", "--workspace", "--examples"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    // Write to stderr directly: the harness keeps the output of macros until a test has failed.
    let status = wait(cargo.spawn().unwrap(), SILENCE, &mut std::io::stderr());
    assert!(status.success(), "the examples are not built");
}

/// Waits for cargo, and reports on `out` that it is waiting. `--quiet` keeps cargo from reporting
/// that another cargo has locked the build directory.
pub(crate) fn wait(mut cargo: Child, silence: Duration, out: &mut impl Write) -> ExitStatus {
    let start = Instant::now();
    let mut said = start;
    loop {
        if let Some(status) = cargo.try_wait().unwrap() {
            return status;
        }
        if said.elapsed() >= silence {
            said = Instant::now();
            let seconds = start.elapsed().as_secs();
            let _ = writeln!(
                out,
                "cargo has been building the examples for {seconds} s, or waits for another cargo \
                 that has the build directory locked"
            );
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the path of an example, beside the directory of this test.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples").join(name)
}
