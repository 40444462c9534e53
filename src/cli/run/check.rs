//! `heddle run --check`: checks and explains what works here and what does not.

use std::env;
use std::path::{Path, PathBuf};

use heddle_socket::Client;

use super::program::Program;
use super::{Args, Failure, library, place, probe};
use crate::cli::say;

/// The connection manager's library, which comes from the system.
const RDMACM: &str = "librdmacm.so.1";

/// The importance of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The feature works.
    Good,
    /// The feature is missing, but another takes its place or only some programs need it.
    Less,
    /// No program runs without the feature.
    Missing,
}

#[derive(Debug)]
struct Line {
    what: &'static str,
    verdict: Verdict,
    text: String,
}

fn line(what: &'static str, verdict: Verdict, text: impl Into<String>) -> Line {
    Line { what, verdict, text: text.into() }
}

/// Prints the findings, line by line.
///
/// # Errors
/// Returns an error if something necessary is missing.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let lines = [library(), rdmacm(), rnic(args), memory(), fallback(), sealed(), lockable()];
    let lines = lines.into_iter().chain(args.program.first().map(|name| program(name)));
    let mut missing = Vec::new();
    for Line { what, verdict, text } in lines {
        let word = match verdict {
            Verdict::Good => "yes ",
            Verdict::Less => "less",
            Verdict::Missing => "NO  ",
        };
        say(&format!("{word} {what:<12} {text}\n"));
        if verdict == Verdict::Missing {
            missing.push(what);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!("programs do not run here: {}", missing.join(", "))))
}

fn library() -> Line {
    const WHAT: &str = "libibverbs";
    match library::find() {
        Ok(dir) => line(WHAT, Verdict::Good, dir.join(library::NAME).display().to_string()),
        Err(e) => line(WHAT, Verdict::Missing, e),
    }
}

fn rdmacm() -> Line {
    const WHAT: &str = "librdmacm";
    match find_library(RDMACM) {
        Some(path) => {
            let version = version(&path).map_or_else(String::new, |v| format!(", rdma-core {v}"));
            line(WHAT, Verdict::Good, format!("{}{version}", path.display()))
        }
        None => line(
            WHAT,
            Verdict::Less,
            format!("{RDMACM} is not installed: programs that connect by rdma_cm do not start"),
        ),
    }
}

/// Searches the loader's usual places: its variable, and the directories of common systems.
fn find_library(name: &str) -> Option<PathBuf> {
    let listed = env::var_os(library::SEARCH).unwrap_or_default();
    let triple = format!("{}-linux-gnu", env::consts::ARCH);
    let usual = ["/lib", "/usr/lib"].into_iter().flat_map(|dir| {
        let dir = Path::new(dir);
        [dir.join(&triple), dir.to_owned(), PathBuf::from(format!("{}64", dir.display()))]
    });
    let dirs = env::split_paths(&listed).filter(|d| !d.as_os_str().is_empty()).chain(usual);
    dirs.map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Returns the rdma-core version in the file's name: `librdmacm.so.1.3.44.0` is from version 44.0.
fn version(path: &Path) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let name = real.file_name()?.to_str()?;
    let mut parts = name.split(".so.").nth(1)?.split('.').skip(2);
    Some(format!("{}.{}", parts.next()?, parts.next()?))
}

fn rnic(args: &Args) -> Line {
    const WHAT: &str = "RNIC";
    if let Some(socket) = &args.socket {
        return match Client::connect(socket) {
            Ok(_) => line(WHAT, Verdict::Good, format!("one answers at {}", socket.display())),
            Err(e) => line(WHAT, Verdict::Missing, e.to_string()),
        };
    }
    let place = match place() {
        Ok(place) => place,
        Err(e) => return line(WHAT, Verdict::Missing, text(&e)),
    };
    let at = place.socket.display();
    match place.is_taken() {
        Ok(true) => line(WHAT, Verdict::Good, format!("the private one runs at {at}")),
        Ok(false) => line(WHAT, Verdict::Good, format!("a private one can be started at {at}")),
        Err(e) => line(WHAT, Verdict::Missing, e),
    }
}

fn text(failure: &Failure) -> String {
    match failure {
        Failure::Usage(text) | Failure::Lines(text) | Failure::Failed(text) => text.clone(),
    }
}

fn memory() -> Line {
    const WHAT: &str = "userfaultfd";
    match probe::userfaultfd() {
        Ok(()) => line(WHAT, Verdict::Good, "memory of programs is shared in place"),
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => line(
            WHAT,
            Verdict::Less,
            "a filter of system calls forbids it (seccomp, as containers have it): mprotect is used",
        ),
        Err(e) => line(WHAT, Verdict::Less, format!("{e}: mprotect is used")),
    }
}

fn fallback() -> Line {
    const WHAT: &str = "mprotect";
    match probe::mprotect() {
        Ok(()) => line(WHAT, Verdict::Good, "memory can be made shared without userfaultfd"),
        Err(e) => line(WHAT, Verdict::Missing, e.to_string()),
    }
}

fn sealed() -> Line {
    const WHAT: &str = "memfd";
    match probe::sealed_memory() {
        Ok(()) => line(WHAT, Verdict::Good, "memory can be sealed (F_SEAL_FUTURE_WRITE)"),
        Err(e) => {
            let text = format!("no F_SEAL_FUTURE_WRITE, which is of Linux 5.1: {e}");
            line(WHAT, Verdict::Missing, text)
        }
    }
}

fn lockable() -> Line {
    const WHAT: &str = "memlock";
    match probe::lockable() {
        None => line(WHAT, Verdict::Good, "no limit"),
        Some(limit) => {
            let text = format!(
                "{} KiB may be locked; memory beyond is registered as well, and may be swapped out",
                limit >> 10
            );
            line(WHAT, Verdict::Good, text)
        }
    }
}

fn program(name: &std::ffi::OsStr) -> Line {
    const WHAT: &str = "program";
    let judged = Program::find(name).and_then(|p| p.check().map(|()| p));
    match judged {
        Ok(p) => line(WHAT, Verdict::Good, p.path().display().to_string()),
        Err(e) => line(WHAT, Verdict::Missing, e),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_version_is_that_of_the_file_behind_the_link() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("librdmacm.so.1.3.44.0"), dir.path().join(RDMACM));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(version(&link).as_deref(), Some("44.0"));
        std::fs::remove_file(&link).unwrap();
        std::fs::write(&link, "").unwrap();
        assert_eq!(version(&link), None, "a file without a version");
    }
}
