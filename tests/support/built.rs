//! Examples as programs, built as `cargo test --workspace` builds them: with the features that the whole workspace
//! asks for, so that nothing is compiled a second time.

use std::path::PathBuf;
use std::process::Command;

/// Builds what is not up to date.
pub(crate) fn examples() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--quiet", "--offline", "--workspace", "--examples"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "the examples are not built");
}

/// Where one is: beside the directory of this test.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples").join(name)
}
