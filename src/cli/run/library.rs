//! Finds our `libibverbs.so.1`, and has the loader prefer it to the system's own.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The name under which programs load the library.
pub(super) const NAME: &str = "libibverbs.so.1";

/// The variable with the loader's list of directories.
pub(super) const SEARCH: &str = "LD_LIBRARY_PATH";

/// The variable that names our library's directory.
const DIRECTORY: &str = "HEDDLE_LIBDIR";

/// Returns the directory that holds the library: the directory that the environment names, or else
/// the first match among the directories of a package, of an installation below another prefix, and
/// of a build.
///
/// # Errors
/// Returns a list of all directories searched if none holds the library.
pub(super) fn find() -> Result<PathBuf, String> {
    let named = env::var_os(DIRECTORY).filter(|d| !d.is_empty()).map(PathBuf::from);
    let program = env::current_exe().ok();
    let program = program.as_deref().and_then(Path::parent);
    choose(&candidates(named, program))
}

fn candidates(named: Option<PathBuf>, program: Option<&Path>) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![named];
    }
    let beside = program.into_iter().flat_map(|dir| {
        let prefix = dir.parent().map(|prefix| prefix.join("lib/heddle"));
        prefix.into_iter().chain([dir.to_owned()])
    });
    beside.chain(["/usr/lib/heddle", "/usr/local/lib/heddle"].map(PathBuf::from)).collect()
}

fn choose(candidates: &[PathBuf]) -> Result<PathBuf, String> {
    let has = |dir: &&PathBuf| dir.join(NAME).is_file();
    if let Some(found) = candidates.iter().find(has) {
        return std::path::absolute(found).map_err(|e| format!("{}: {e}", found.display()));
    }
    let looked: Vec<_> = candidates.iter().map(|d| d.display().to_string()).collect();
    Err(format!(
        "Heddle's {NAME} is in none of {}: install the package, build it, or name its directory in \
         {DIRECTORY}",
        looked.join(", ")
    ))
}

/// Returns the loader's list with our directory first.
///
/// # Errors
/// Returns an error if the loader would split the directory's name into two.
pub(super) fn search_path(dir: &Path, before: Option<OsString>) -> Result<OsString, String> {
    let before = before.filter(|list| !list.is_empty());
    let rest = before.iter().flat_map(env::split_paths).filter(|other| other != dir);
    let all = std::iter::once(dir.to_owned()).chain(rest);
    env::join_paths(all).map_err(|e| format!("{SEARCH}: {e}"))
}

/// Returns the list without our directory, for the RNIC itself: DPDK's drivers link to the system's
/// library.
pub(super) fn without_ours(list: &OsString) -> Option<OsString> {
    let others = env::split_paths(list).filter(|dir| find().as_ref() != Ok(dir));
    env::join_paths(others).ok().filter(|list| !list.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_library_is_found_beside_the_program_or_where_it_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for made in ["bin", "lib/heddle", "other", "target/debug"] {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        std::fs::write(at("lib/heddle").join(NAME), "").unwrap();
        std::fs::write(at("target/debug").join(NAME), "").unwrap();
        let find = |named: Option<&str>, program: &str| {
            choose(&candidates(named.map(at), Some(&at(program))))
        };
        assert_eq!(find(None, "bin"), Ok(at("lib/heddle")));
        assert_eq!(find(None, "target/debug"), Ok(at("target/debug")));
        // A directory that the environment names excludes all others.
        let e = find(Some("other"), "bin").unwrap_err();
        assert!(
            e.contains("other") && e.contains("HEDDLE_LIBDIR") && !e.contains("lib/heddle"),
            "{e}"
        );
    }

    #[test]
    fn test_library_directory_is_first_and_once_in_search_path() {
        let path =
            |before: Option<&str>| search_path(Path::new("/ours"), before.map(Into::into)).unwrap();
        assert_eq!(path(None), "/ours");
        assert_eq!(path(Some("")), "/ours", "an empty part would be the working directory");
        assert_eq!(path(Some("/a:/ours:/b")), "/ours:/a:/b");
        assert!(search_path(Path::new("/o:urs"), None).is_err());
    }
}
