//! READDIR and READDIRPLUS.
//!
//! A cookie is the file system's own position of the end of an entry. The cookie stays valid while
//! other entries come and go, for as long as the directory exists, so the verifier is zero (RFC
//! 1813 section 3.3.16).

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use heddle_rpcrdma::xdr::padded;
use rustix::fs::{RawDir, SeekFrom, seek};
use rustix::io::Errno;

use super::Share;
use crate::export::Object;
use crate::wire::{
    DirPlusEntry, Fattr, Handle, IO_MAX, Opaque, Readdir, Readdirplus, Status, Verifier, Xdr,
    put_opaque,
};

/// Bytes of a directory read at once.
const BUFFER: usize = 16 << 10;

/// Bytes after the last entry: the end of this part, and whether the directory has more entries.
const END: usize = 8;

/// Limits of the results' length.
#[derive(Clone, Copy)]
struct Limits {
    /// Bytes of results after the status.
    all: usize,
    /// Bytes of numbers, names and cookies.
    names: usize,
}

/// The position at which a listing begins.
#[derive(Clone, Copy)]
struct From {
    dir: Handle,
    cookie: u64,
    verifier: Verifier,
}

/// The parts of an entry that are known without looking at its object.
struct Entry<'a> {
    fileid: u64,
    name: &'a [u8],
    cookie: u64,
}

impl Share {
    /// Writes the results itself, entry by entry, as long as there is room.
    pub(super) fn readdir(&self, call: &Readdir, out: &mut Vec<u8>) {
        let count = call.count.min(IO_MAX) as usize;
        let from = From { dir: call.dir, cookie: call.cookie, verifier: call.verifier };
        self.list(from, Limits { all: count, names: count }, out, |_, entry, out| {
            entry.fileid.put(out);
            put_opaque(out, entry.name);
            entry.cookie.put(out);
        });
    }

    pub(super) fn readdirplus(&self, call: &Readdirplus, out: &mut Vec<u8>) {
        let limits = Limits {
            all: call.maxcount.min(IO_MAX) as usize,
            names: call.dircount.min(IO_MAX) as usize,
        };
        let from = From { dir: call.dir, cookie: call.cookie, verifier: call.verifier };
        self.list(from, limits, out, |dir, entry, out| {
            let (attributes, handle) = self.described(dir, entry.name);
            let (fileid, cookie) = (entry.fileid, entry.cookie);
            let name = Opaque(entry.name);
            DirPlusEntry { fileid, name, cookie, attributes, handle }.put(out);
        });
    }

    /// Returns attributes and handle of an entry, where the export has them.
    fn described(&self, dir: &Object, name: &[u8]) -> (Option<Fattr>, Option<Handle>) {
        match name {
            b"." => (Some(dir.attributes), Some(self.export.handle(dir))),
            // The parent has its own place, which a LOOKUP finds.
            b".." => (None, None),
            name => match self.export.glance(dir, name) {
                Some((handle, attributes)) => (Some(attributes), Some(handle)),
                None => (None, None),
            },
        }
    }

    fn list(
        &self,
        from: From,
        limits: Limits,
        out: &mut Vec<u8>,
        put: impl Fn(&Object, &Entry<'_>, &mut Vec<u8>),
    ) {
        let start = out.len();
        let opened = self.export.object(&from.dir).map_err(|e| (e, None));
        let done = opened.and_then(|dir| {
            self.entries(&dir, from, limits, out, put)
                .map_err(|e| (e, self.export.attributes(&dir)))
        });
        if let Err((status, attributes)) = done {
            out.truncate(start);
            status.put(out);
            attributes.put(out);
        }
    }

    fn entries(
        &self,
        dir: &Object,
        from: From,
        limits: Limits,
        out: &mut Vec<u8>,
        put: impl Fn(&Object, &Entry<'_>, &mut Vec<u8>),
    ) -> Result<(), Status> {
        let fd = self.open_at(dir, from)?;
        Status::OK.put(out);
        let start = out.len();
        Some(self.export.attributes(dir).unwrap_or(dir.attributes)).put(out);
        Verifier::default().put(out);
        let (mut names, mut any, mut eof) = (0, false, true);
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(&fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let fileid = self.number(dir, name, entry.ino());
            let before = out.len();
            true.put(out);
            put(dir, &Entry { fileid, name, cookie: entry.next_entry_cookie() }, out);
            names += 8 + 4 + padded(name.len()) + 8;
            // The reply has at least one name, since the limit for names is only a hint.
            if out.len() + END > start + limits.all || (any && names > limits.names) {
                out.truncate(before);
                if !any {
                    return Err(Status::TOOSMALL);
                }
                eof = false;
                break;
            }
            any = true;
        }
        if out.len() + END > start + limits.all {
            return Err(Status::TOOSMALL);
        }
        false.put(out);
        eof.put(out);
        Ok(())
    }

    /// Returns the number of an entry. The number of the export's parent directory is not shown to
    /// clients.
    fn number(&self, dir: &Object, name: &[u8], ino: u64) -> u64 {
        if name == b".." && dir.id.ino == self.export.root_ino() { dir.id.ino } else { ino }
    }

    /// Opens the directory, positioned after the entry of a cookie.
    fn open_at(&self, dir: &Object, from: From) -> Result<OwnedFd, Status> {
        let fd = self.export.open_dir(dir)?;
        if from.cookie == 0 {
            return Ok(fd);
        }
        if from.verifier != Verifier::default() || from.cookie > i64::MAX as u64 {
            return Err(Status::BAD_COOKIE);
        }
        match seek(&fd, SeekFrom::Start(from.cookie)) {
            Ok(_) => Ok(fd),
            Err(Errno::INVAL) => Err(Status::BAD_COOKIE),
            Err(e) => Err(e.into()),
        }
    }
}
