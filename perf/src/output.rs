//! The places where results go.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A file, or standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard output, which a command line calls `-`.
    Stdout,
    /// The file at this path, which a write replaces.
    File(PathBuf),
}

/// Why results could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {place}: {source}")]
pub struct OutputError {
    place: String,
    source: io::Error,
}

impl FromStr for Output {
    type Err = core::convert::Infallible;

    fn from_str(s: &str) -> Result<Output, Self::Err> {
        Ok(if s == "-" { Output::Stdout } else { Output::File(s.into()) })
    }
}

impl Output {
    /// Returns the reason why nothing can be written there, as far as it can be known before there
    /// is anything to write.
    pub fn fault(&self) -> Option<String> {
        let Output::File(path) = self else { return None };
        let path_text = path.display();
        if path.is_dir() {
            return Some(format!("{path_text} is a directory"));
        }
        let dir = directory(path);
        (!dir.is_dir()).then(|| format!("{path_text}: there is no directory {}", dir.display()))
    }

    /// Writes `text`. A file is replaced as a whole: readers see the old text or the new one.
    ///
    /// # Errors
    /// [`OutputError`]; the old file, if there is one, is then as it was.
    pub fn write(&self, text: &str) -> Result<(), OutputError> {
        let (place, done) = match self {
            Output::Stdout => ("standard output".to_owned(), to_stdout(text)),
            Output::File(path) => (path.display().to_string(), replace(path, text)),
        };
        done.map_err(|source| OutputError { place, source })
    }
}

fn to_stdout(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that has closed the pipe has all it wants.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    // The file behind a link is replaced, not the link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&path).is_ok_and(|m| !m.is_file()) {
        // A device or a pipe, as /dev/stdout: renaming would put a file into its place.
        return fs::write(&path, text);
    }
    let mut builder = tempfile::Builder::new();
    // The process's mask applies, as to any new file. An old file keeps its permissions.
    builder.permissions(fs::Permissions::from_mode(0o666));
    let mut file = builder.prefix(".heddle-bench").tempfile_in(directory(&path))?;
    file.write_all(text.as_bytes())?;
    if let Ok(old) = fs::metadata(&path) {
        file.as_file().set_permissions(old.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|e| e.error)?;
    Ok(())
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    #[test]
    fn test_output_replaces_a_file_as_a_whole_and_keeps_its_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        let out = Output::File(path.clone());
        out.write("first").unwrap();
        let before = fs::metadata(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let mut open = fs::File::open(&path).unwrap();
        out.write("second").unwrap();
        let after = fs::metadata(&path).unwrap();
        assert_ne!(before.ino(), after.ino(), "a new file");
        assert_eq!(after.permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        let mut old = String::new();
        io::Read::read_to_string(&mut open, &mut old).unwrap();
        assert_eq!(old, "first", "a reader of the old file goes on");
        let names = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 1, "no temporary file stays");
    }

    #[test]
    fn test_output_follows_links_and_spares_devices() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("r"), dir.path().join("link"));
        fs::write(&path, "old").unwrap();
        symlink(&path, &link).unwrap();
        Output::File(link.clone()).write("new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        Output::File("/dev/null".into()).write("nothing").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn test_output_names_faults_before_and_after() {
        assert_eq!("-".parse::<Output>(), Ok(Output::Stdout));
        assert_eq!(Output::Stdout.fault(), None);
        let fault = |s: &str| Output::File(s.into()).fault().unwrap_or_default();
        assert!(fault("/").contains("is a directory"));
        assert!(fault("/nonexistent/r").contains("no directory /nonexistent"));
        assert_eq!(fault("r.json"), "");
        let e = Output::File("/nonexistent/r".into()).write("x").unwrap_err();
        assert!(e.to_string().starts_with("cannot write /nonexistent/r: "), "{e}");
    }
}
