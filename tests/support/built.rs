//! Examples as programs, built as `cargo test --workspace` builds them: with the features that the whole workspace
//! asks for, so that nothing is compiled a second time.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// How long cargo may be silent: a build that is up to date takes a second.
const SILENCE: Duration = Duration::from_secs(10);

/// Builds what is not up to date.
pub(crate) fn examples() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--quiet", "--offline", "--workspace", "--examples"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    // Not by a macro, whose output the test harness keeps until the test has failed.
    let status = wait(cargo.spawn().unwrap(), SILENCE, &mut std::io::stderr());
    assert!(status.success(), "the examples are not built");
}

/// Waits for cargo, and says on `out` that it is still waited for. `--quiet` keeps cargo from saying so itself when
/// another cargo has the build directory locked.
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

/// Where one is: beside the directory of this test.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples").join(name)
}
