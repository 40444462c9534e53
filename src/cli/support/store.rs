//! The place of a report: a compressed archive or a directory, for its owner alone.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;

/// The directory in an archive.
const TOP: &str = "heddle-support";

pub(super) enum Store {
    Archive(Box<tar::Builder<GzEncoder<File>>>),
    Directory(PathBuf),
}

impl Store {
    /// Makes the archive or the directory, and does not touch an existing one.
    ///
    /// # Errors
    /// The reason, in one line.
    pub(super) fn create(path: &Path) -> Result<Store, String> {
        let fail = |e: io::Error| match e.kind() {
            io::ErrorKind::AlreadyExists => format!("{} exists already", path.display()),
            _ => format!("{}: {e}", path.display()),
        };
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if [".tar.gz", ".tgz"].iter().any(|end| name.ends_with(end)) {
            let file = new_file(path).map_err(fail)?;
            let gzip = GzEncoder::new(file, Compression::default());
            return Ok(Store::Archive(Box::new(tar::Builder::new(gzip))));
        }
        DirBuilder::new().mode(0o700).create(path).map_err(fail)?;
        Ok(Store::Directory(path.to_owned()))
    }

    /// Adds a file.
    pub(super) fn put(&mut self, name: &str, contents: &[u8]) -> io::Result<()> {
        match self {
            Store::Archive(archive) => {
                let mut header = tar::Header::new_gnu();
                header.set_size(contents.len() as u64);
                header.set_mode(0o600);
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                header.set_mtime(now.map_or(0, |t| t.as_secs()));
                archive.append_data(&mut header, format!("{TOP}/{name}"), contents)
            }
            Store::Directory(dir) => new_file(&dir.join(name))?.write_all(contents),
        }
    }

    /// Completes the archive.
    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Store::Archive(archive) => archive.into_inner()?.finish()?.sync_all(),
            Store::Directory(_) => Ok(()),
        }
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}
