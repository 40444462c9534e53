//! The library libibverbs.so.1, for programs that tests start.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Builds the library once for all tests of this process, and returns the directory that holds it.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/build-ibverbs");
        let mut link = Command::new(script);
        let out = link.arg("--archive").arg(archive()).arg("--out").arg(&dir).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        dir
    })
}

/// Returns the static library of the crate that this test is linked with: cargo has made both at
/// once, or this one after a build with other features.
fn archive() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let files = test.parent().unwrap().read_dir().unwrap().map(|file| file.unwrap().path());
    let made = |file: &PathBuf| file.metadata().and_then(|m| m.modified()).unwrap();
    let is_ours = |file: &PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libheddle_ibverbs") && name.ends_with(".a")
    };
    files.filter(is_ours).max_by_key(made).expect("cargo has made a static library")
}
