//! Copies files between this host and a server.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use heddle::nfs::client::{ClientError, Found, shown};
use heddle::nfs::wire::{Fattr, FileType, Handle, Status};
use sha2::{Digest, Sha256};

use super::bar::Bar;
use super::session::Session;
use crate::cli::Failure;

/// Copies the named file or directory, and counts files and bytes.
pub(super) struct Copier<'s, 'a> {
    session: &'s mut Session<'a>,
    recursive: bool,
    verify: bool,
    bar: Bar,
    files: u64,
    bytes: u64,
    left_out: u64,
}

/// An object of the server to copy, with its destination.
struct Task {
    from: Found,
    to: PathBuf,
}

fn at<E: Display>(path: &Path) -> impl FnOnce(E) -> Failure {
    move |error| Failure::failed(format!("{}: {error}", path.display()))
}

impl<'s, 'a> Copier<'s, 'a> {
    pub(super) fn new(
        session: &'s mut Session<'a>,
        recursive: bool,
        verify: bool,
        quiet: bool,
    ) -> Copier<'s, 'a> {
        let bar = Bar::new(quiet);
        Copier { session, recursive, verify, bar, files: 0, bytes: 0, left_out: 0 }
    }

    /// Returns the result of the copy as one line.
    pub(super) fn summary(&self) -> String {
        let same = if self.verify { ", the same on both sides by SHA-256" } else { "" };
        let left_out = match self.left_out {
            0 => String::new(),
            n => format!(", {n} neither files nor directories left out"),
        };
        format!("{} files, {} bytes{same}{left_out}\n", self.files, self.bytes)
    }

    fn check_recursive(&self, name: &dyn Display) -> Result<(), Failure> {
        let refused = || Failure::failed(format!("{name} is a directory: -r copies those"));
        if self.recursive { Ok(()) } else { Err(refused()) }
    }

    /// Copies from the server to `to`, or into `to` if that is a directory.
    pub(super) fn download(&mut self, to: &Path) -> Result<(), Failure> {
        let from = self.session.find(true)?;
        let mut to = to.to_owned();
        let name = last(&self.session.path).filter(|name| *name != b"..");
        if to.is_dir()
            && let Some(name) = name
        {
            to.push(OsStr::from_bytes(name));
        }
        match from.attributes.kind {
            FileType::Regular => {
                self.expect(from.attributes.size);
                self.download_file(&from, &to)
            }
            FileType::Directory => {
                self.check_recursive(&shown(&self.session.path))?;
                self.download_tree(Task { from, to })
            }
            _ => Err(Failure::failed("neither a regular file nor a directory")),
        }
    }

    fn download_tree(&mut self, task: Task) -> Result<(), Failure> {
        // No file can end up outside `top`: names cannot hold a slash, the copier creates no links,
        // and it follows no existing links. Only the directory that the user named may be a link.
        let top = task.to.clone();
        let mut tasks = vec![task];
        while let Some(Task { from, to }) = tasks.pop() {
            if to != top {
                refuse_link(&to)?;
            }
            // Add the owner's permissions, because the copier must write into the directory.
            let mode = from.attributes.mode & 0o777 | 0o700;
            match DirBuilder::new().mode(mode).create(&to) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && to.is_dir() => {}
                other => other.map_err(at(&to))?,
            }
            let mut entries: Vec<(Vec<u8>, Option<Handle>, Option<Fattr>)> = Vec::new();
            let nfs = &mut self.session.nfs;
            let listed = nfs.list(from.handle, |entry| {
                entries.push((entry.name.0.to_vec(), entry.handle, entry.attributes));
            });
            listed.map_err(at(&to))?;
            let mut files = Vec::new();
            for (name, handle, attributes) in entries {
                let path = to.join(OsStr::from_bytes(&name));
                let found = match (handle, attributes) {
                    (Some(handle), Some(attributes)) => Found { handle, attributes },
                    _ => self.session.nfs.lookup(from.handle, &name).map_err(at(&path))?,
                };
                match found.attributes.kind {
                    FileType::Regular => {
                        self.expect(found.attributes.size);
                        files.push(Task { from: found, to: path });
                    }
                    FileType::Directory => tasks.push(Task { from: found, to: path }),
                    _ => self.left_out += 1,
                }
            }
            for Task { from, to } in files {
                refuse_link(&to)?;
                self.download_file(&from, &to)?;
            }
        }
        Ok(())
    }

    fn download_file(&mut self, from: &Found, to: &Path) -> Result<(), Failure> {
        let mode = from.attributes.mode & 0o777;
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(mode).open(to);
        let mut file = file.map_err(at(to))?;
        self.bar.begin(to.display().to_string());
        let (bar, mut done) = (&self.bar, 0);
        let read = self.session.nfs.read(from.handle, from.attributes.size, |piece| {
            done += piece.len() as u64;
            bar.at(done);
            file.write_all(piece)
        });
        let bytes = read.map_err(at(to))?;
        // Flush before comparing: a write error may only appear here.
        file.flush().map_err(at(to))?;
        self.compare(from.handle, to)?;
        self.count(bytes);
        Ok(())
    }

    /// Copies `from` to the server, or into the named path if that is a directory.
    pub(super) fn upload(&mut self, from: &Path) -> Result<(), Failure> {
        let kind = fs::metadata(from).map_err(at(from))?.file_type();
        let (dir, name) = self.target(from)?;
        if kind.is_dir() {
            self.check_recursive(&from.display())?;
            self.upload_tree(from, dir, name)
        } else if kind.is_file() {
            self.expect(fs::metadata(from).map_err(at(from))?.len());
            self.upload_file(from, dir, &name)
        } else {
            Err(at(from)("neither a regular file nor a directory"))
        }
    }

    /// Returns the server's directory that is to hold the copy of `from`, and the copy's name
    /// there.
    fn target(&mut self, from: &Path) -> Result<(Handle, Vec<u8>), Failure> {
        let path = self.session.path.clone();
        match self.session.find(true) {
            Ok(found) if found.attributes.kind == FileType::Directory => {
                let name = from.file_name().ok_or_else(|| at(from)("has no name of its own"))?;
                return Ok((found.handle, name.as_bytes().to_vec()));
            }
            Ok(_) | Err(ClientError::Status { status: Status::NOENT, .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let name = last(&path).filter(|name| *name != b"..");
        let name = name.ok_or_else(|| Failure::failed("the copy has no name"))?.to_vec();
        let trimmed = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let parent = path.get(..trimmed.saturating_sub(name.len())).unwrap_or(&[]);
        let parent = self.session.nfs.walk(&self.session.root, parent, true)?;
        Ok((parent.handle, name))
    }

    fn upload_tree(&mut self, from: &Path, dir: Handle, name: Vec<u8>) -> Result<(), Failure> {
        let mut tasks = vec![(from.to_owned(), dir, name)];
        while let Some((from, dir, name)) = tasks.pop() {
            let made = self.directory(dir, &name, &from).map_err(at(&from))?;
            let mut files = Vec::new();
            for entry in fs::read_dir(&from).map_err(at(&from))? {
                let entry = entry.map_err(at(&from))?;
                let (path, name) = (entry.path(), entry.file_name().as_bytes().to_vec());
                let kind = entry.file_type().map_err(at(&path))?;
                if kind.is_dir() {
                    tasks.push((path, made, name));
                } else if kind.is_file() {
                    self.expect(entry.metadata().map_err(at(&path))?.len());
                    files.push((path, name));
                } else {
                    self.left_out += 1;
                }
            }
            for (path, name) in files {
                self.upload_file(&path, made, &name)?;
            }
        }
        Ok(())
    }

    /// Makes a directory with the permissions of `like`, unless the directory exists.
    fn directory(&mut self, dir: Handle, name: &[u8], like: &Path) -> Result<Handle, ClientError> {
        let mode = fs::metadata(like).map_err(ClientError::Local)?.permissions().mode() & 0o777;
        match self.session.nfs.mkdir(dir, name, mode) {
            Err(ClientError::Status { status: Status::EXIST, .. }) => {
                let found = self.session.nfs.lookup(dir, name)?;
                if found.attributes.kind == FileType::Directory {
                    return Ok(found.handle);
                }
                Err(ClientError::Status { what: shown(name), status: Status::NOTDIR })
            }
            made => made,
        }
    }

    fn upload_file(&mut self, from: &Path, dir: Handle, name: &[u8]) -> Result<(), Failure> {
        let mut file = File::open(from).map_err(at(from))?;
        let about = file.metadata().map_err(at(from))?;
        let mode = about.permissions().mode() & 0o777;
        let handle = self.session.nfs.create(dir, name, mode).map_err(at(from))?;
        self.bar.begin(from.display().to_string());
        let bar = &self.bar;
        let written = self.session.nfs.write(handle, &mut file, |offset, piece| {
            bar.at(offset.saturating_add(piece.len() as u64));
        });
        let bytes = written.map_err(at(from))?;
        self.compare(handle, from)?;
        self.count(bytes);
        Ok(())
    }

    /// Adds a file of `bytes` bytes to the bar, twice the bytes if the files are compared
    /// afterwards.
    fn expect(&mut self, bytes: u64) {
        self.bar.add(bytes.saturating_mul(1 + u64::from(self.verify)));
    }

    fn count(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.bar.end();
    }

    /// Compares the server's copy with the local file, if the user asked for that.
    fn compare(&mut self, there: Handle, here: &Path) -> Result<(), Failure> {
        if !self.verify {
            return Ok(());
        }
        let (mut theirs, mut ours) = (Sha256::new(), Sha256::new());
        self.bar.begin(format!("comparing {}", here.display()));
        let nfs = &mut self.session.nfs;
        let size = nfs.getattr(there).map_err(at(here))?.size;
        let (bar, mut done) = (&self.bar, 0);
        let read = nfs.read(there, size, |piece| {
            done += piece.len() as u64;
            bar.at(done);
            theirs.update(piece);
            Ok(())
        });
        read.map_err(at(here))?;
        let mut file = File::open(here).map_err(at(here))?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).map_err(at(here))? {
                0 => break,
                n => ours.update(buffer.get(..n).unwrap_or(&[])),
            }
        }
        if theirs.finalize() == ours.finalize() {
            return Ok(());
        }
        Err(at(here)("is another on the server, by SHA-256"))
    }
}

/// Refuses a local path that is a link: the server has chosen the name, and the name must not lead
/// elsewhere.
fn refuse_link(path: &Path) -> Result<(), Failure> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.file_type().is_symlink() => {
            Err(at(path)("is a symbolic link here, which -r does not write through"))
        }
        _ => Ok(()),
    }
}

/// Returns the last name of a path.
fn last(path: &[u8]) -> Option<&[u8]> {
    path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty() && *name != b".")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_copy_does_not_write_through_symlinks() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, dangling] = ["file", "link", "dangling"].map(|name| dir.path().join(name));
        fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        std::os::unix::fs::symlink("/nowhere", &dangling).unwrap();
        for link in [link, dangling] {
            assert!(refuse_link(&link).is_err(), "{}", link.display());
        }
        assert!(refuse_link(&file).is_ok() && refuse_link(&dir.path().join("none")).is_ok());
    }

    #[test]
    fn test_last_name_of_path_is_found() {
        assert_eq!(last(b"/a/bc/"), Some(&b"bc"[..]));
        assert_eq!(last(b"bc"), Some(&b"bc"[..]));
        assert_eq!(last(b"/a/."), Some(&b"a"[..]));
        assert_eq!((last(b"/"), last(b"")), (None, None));
    }
}
