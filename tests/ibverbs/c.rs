//! C programs, compiled against the distribution's headers.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a C source, followed by `args` on the command line, to a program in `dir`.
pub(crate) fn compile(source: &Path, dir: &Path, args: &[&str]) -> PathBuf {
    let program = dir.join(source.file_stem().unwrap());
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"]).arg(&program);
    cc.arg(source).args(args);
    let out = cc.output().expect("cc is missing: install gcc");
    assert!(
        out.status.success(),
        "{} does not compile (are libibverbs-dev and librdmacm-dev installed?):\n{}",
        source.display(),
        String::from_utf8_lossy(&out.stderr)
    );
    program
}
