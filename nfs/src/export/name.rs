//! Names that clients give (RFC 1813 section 3.2).

use crate::wire::{NAME_MAX, Status};

/// A name that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked<'a> {
    /// The directory itself.
    This,
    /// The one above it.
    Parent,
    /// A name in it.
    Plain(&'a [u8]),
}

/// Looks at a name: nothing in it may lead anywhere else.
///
/// # Errors
/// `NAMETOOLONG`; `INVAL` for an empty one, and for one with an octet that no name can have.
pub(crate) fn check(name: &[u8]) -> Result<Checked<'_>, Status> {
    if name.len() > NAME_MAX as usize {
        return Err(Status::NAMETOOLONG);
    }
    if name.is_empty() || name.iter().any(|&octet| octet == b'/' || octet == 0) {
        return Err(Status::INVAL);
    }
    Ok(match name {
        b"." => Checked::This,
        b".." => Checked::Parent,
        plain => Checked::Plain(plain),
    })
}

/// A name of something to be made: those that every directory has are taken.
///
/// # Errors
/// Those of [`check`], and `EXIST`.
pub(crate) fn fresh(name: &[u8]) -> Result<&[u8], Status> {
    match check(name)? {
        Checked::Plain(name) => Ok(name),
        Checked::This | Checked::Parent => Err(Status::EXIST),
    }
}

/// A name of something to be removed or renamed: those that every directory has stay.
///
/// # Errors
/// Those of [`check`], and `INVAL`.
pub(crate) fn removable(name: &[u8]) -> Result<&[u8], Status> {
    match check(name)? {
        Checked::Plain(name) => Ok(name),
        Checked::This | Checked::Parent => Err(Status::INVAL),
    }
}
