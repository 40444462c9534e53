//! Walking paths and listing directories.

use std::collections::{HashSet, VecDeque};

use super::{Client, ClientError, Transport, parse};
use crate::wire::{
    Attributes, Create, Created, DirEntryName, DirPlus, DirPlusEntry, Fattr, FileType, Handle, How,
    LookupOk, Mkdir, NAME_MAX, OfHandle, Opaque, Readdirplus, ReadlinkOk, Sattr, Verifier, WccData,
    procedure,
};

/// The highest number of symbolic links that a walk to one object follows.
const LINKS_MAX: u32 = 40;

/// The highest number of names on a walk to one object, names from links included.
const NAMES_MAX: usize = 4096;

/// Bytes of one part of a listing.
const LISTING: u32 = 64 << 10;

/// The highest number of names in one directory that the client accepts: a server's listing may
/// have no end.
const LISTED_MAX: usize = 10_000_000;

/// An object that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The handle by which further calls name the object.
    pub handle: Handle,
    /// The attributes of the object when the server reported it.
    pub attributes: Fattr,
}

/// Returns a name or path for display: escapes its control characters.
pub fn shown(name: &[u8]) -> String {
    let mut text = String::new();
    for c in String::from_utf8_lossy(name).chars() {
        if c.is_control() {
            text.extend(c.escape_default());
        } else {
            text.push(c);
        }
    }
    text
}

impl<T: Transport> Client<T> {
    /// Returns the attributes of an object.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn getattr(&mut self, object: Handle) -> Result<Fattr, ClientError> {
        let results = self.call(procedure::GETATTR, &OfHandle { object })?;
        parse::<Attributes, ()>(&results, "GETATTR", &"").map(|a| a.attributes)
    }

    pub(super) fn found(
        &mut self,
        handle: Handle,
        known: Option<Fattr>,
    ) -> Result<Found, ClientError> {
        let attributes = match known {
            Some(attributes) => attributes,
            None => self.getattr(handle)?,
        };
        Ok(Found { handle, attributes })
    }

    /// Returns the object with `name` in `dir`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn lookup(&mut self, dir: Handle, name: &[u8]) -> Result<Found, ClientError> {
        let at = DirEntryName { dir, name: Opaque(name) };
        let results = self.call(procedure::LOOKUP, &at)?;
        let found: LookupOk = parse::<_, Option<Fattr>>(&results, "LOOKUP", &shown(name))?;
        self.found(found.object, found.attributes)
    }

    /// Returns the target path of a symbolic link.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn readlink(&mut self, object: Handle) -> Result<Vec<u8>, ClientError> {
        let results = self.call(procedure::READLINK, &OfHandle { object })?;
        let link = parse::<ReadlinkOk<'_>, Option<Fattr>>(&results, "READLINK", &"")?;
        Ok(link.path.0.to_vec())
    }

    /// Returns the object at `path` below `root`. The walk follows symbolic links on the way, and
    /// the last one if `follow` is true. The walk refuses an absolute link, since such a link leads
    /// out of the mounted directory.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn walk(&mut self, root: &Found, path: &[u8], follow: bool) -> Result<Found, ClientError> {
        let refused = |why| ClientError::Path { path: shown(path), why };
        let mut names: VecDeque<Vec<u8>> = components(path).collect();
        let (mut at, mut links, mut seen) = (*root, 0, 0);
        while let Some(name) = names.pop_front() {
            seen += 1;
            if seen > NAMES_MAX {
                return Err(refused("too many names"));
            }
            let next = self.lookup(at.handle, &name)?;
            let last = names.is_empty();
            if next.attributes.kind != FileType::Symlink || (last && !follow) {
                at = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(refused("too many symbolic links"));
            }
            let to = self.readlink(next.handle)?;
            if to.starts_with(b"/") {
                return Err(refused("a symbolic link leads out of what is mounted"));
            }
            components(&to).rev().for_each(|name| names.push_front(name));
        }
        Ok(at)
    }

    /// Calls `each` for every entry of a directory except `.` and `..`, with attributes and handle
    /// where the server sends them.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list(
        &mut self,
        dir: Handle,
        mut each: impl FnMut(&DirPlusEntry<'_>),
    ) -> Result<(), ClientError> {
        let (mut cookie, mut verifier) = (0, Verifier::default());
        // The cookies at which parts of the listing ended: a repeated cookie reveals a listing that
        // does not advance.
        let (mut ends, mut listed) = (HashSet::from([cookie]), 0_usize);
        loop {
            let call = Readdirplus { dir, cookie, verifier, dircount: LISTING, maxcount: LISTING };
            let results = self.call(procedure::READDIRPLUS, &call)?;
            let part: DirPlus<'_> = parse::<_, Option<Fattr>>(&results, "READDIRPLUS", &"")?;
            for entry in part.entries.iter().filter(|e| e.name.0 != b"." && e.name.0 != b"..") {
                let name = entry.name.0;
                if name.is_empty()
                    || name.len() > NAME_MAX as usize
                    || name.iter().any(|&byte| byte == b'/' || byte == 0)
                {
                    return Err(ClientError::Nonsense("a directory with a name that none can be"));
                }
                each(entry);
            }
            if part.eof {
                return Ok(());
            }
            listed += part.entries.len();
            if listed > LISTED_MAX {
                return Err(ClientError::Nonsense("a directory of too many names"));
            }
            match part.entries.last() {
                Some(last) if ends.insert(last.cookie) => cookie = last.cookie,
                _ => return Err(ClientError::Nonsense("a listing that does not get on")),
            }
            verifier = part.verifier;
        }
    }

    /// Makes an empty file, or empties an existing file.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn create(&mut self, dir: Handle, name: &[u8], mode: u32) -> Result<Handle, ClientError> {
        let at = DirEntryName { dir, name: Opaque(name) };
        let sattr = Sattr { mode: Some(mode), size: Some(0), ..Sattr::default() };
        let results = self.call(procedure::CREATE, &Create { at, how: How::Unchecked(sattr) })?;
        let made: Created = parse::<_, WccData>(&results, "CREATE", &shown(name))?;
        self.made(dir, name, made)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn mkdir(&mut self, dir: Handle, name: &[u8], mode: u32) -> Result<Handle, ClientError> {
        let at = DirEntryName { dir, name: Opaque(name) };
        let attributes = Sattr { mode: Some(mode), ..Sattr::default() };
        let results = self.call(procedure::MKDIR, &Mkdir { at, attributes })?;
        let made: Created = parse::<_, WccData>(&results, "MKDIR", &shown(name))?;
        self.made(dir, name, made)
    }

    /// Returns the handle of the new object. A server may omit the handle of what it made, so a
    /// LOOKUP asks for it then.
    fn made(&mut self, dir: Handle, name: &[u8], made: Created) -> Result<Handle, ClientError> {
        match made.object {
            Some(handle) => Ok(handle),
            None => self.lookup(dir, name).map(|found| found.handle),
        }
    }
}

/// Returns the names of a path, without empty ones and `.`.
pub(super) fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    path.split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(<[u8]>::to_vec)
}
