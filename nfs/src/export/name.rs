//! Names that clients give (RFC 1813 section 3.2).

use crate::wire::{NAME_MAX, Status};

/// A name that `check` has examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked<'a> {
    /// The directory itself.
    This,
    /// The directory above it.
    Parent,
    /// A name in this directory.
    Plain(&'a [u8]),
}

/// Examines a name: no part of it may lead anywhere else.
///
/// # Errors
/// `NAMETOOLONG`; `INVAL` for an empty name, and for a name with a byte that no name can have.
pub(crate) fn check(name: &[u8]) -> Result<Checked<'_>, Status> {
    if name.len() > NAME_MAX as usize {
        return Err(Status::NAMETOOLONG);
    }
    if name.is_empty() || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(Status::INVAL);
    }
    Ok(match name {
        b"." => Checked::This,
        b".." => Checked::Parent,
        plain => Checked::Plain(plain),
    })
}

/// Examines the name of an object to be made: `.` and `..` exist in every directory.
///
/// # Errors
/// The errors of [`check`], and `EXIST`.
pub(crate) fn fresh(name: &[u8]) -> Result<&[u8], Status> {
    match check(name)? {
        Checked::Plain(name) => Ok(name),
        Checked::This | Checked::Parent => Err(Status::EXIST),
    }
}

/// Examines the name of an object to be removed or renamed: `.` and `..` stay in every directory.
///
/// # Errors
/// The errors of [`check`], and `INVAL`.
pub(crate) fn removable(name: &[u8]) -> Result<&[u8], Status> {
    match check(name)? {
        Checked::Plain(name) => Ok(name),
        Checked::This | Checked::Parent => Err(Status::INVAL),
    }
}
