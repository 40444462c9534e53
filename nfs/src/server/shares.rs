//! The exports of a service: how a handle or a path finds its export, and how the exports stay
//! apart.

use std::sync::Arc;

use heddle_rpcrdma::rpc::{NULL_PROCEDURE, Procedure};
use heddle_rpcrdma::xdr::Reader;

use super::Share;
use crate::wire::mount::{self, DirPath};
use crate::wire::{Handle, Xdr, procedure};

/// Why a service does not accept a list of exports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharesError {
    /// The list is empty.
    #[error("a service needs an export")]
    None,
    /// Two exports have the same name, or the same handles.
    #[error("{0} cannot be told from another export of the listener")]
    Twice(String),
}

/// The exports of a listener, at least one.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    first: Arc<Share>,
    others: Arc<[Arc<Share>]>,
}

impl Shares {
    pub(super) fn one(first: Arc<Share>) -> Shares {
        Shares { first, others: Arc::default() }
    }

    /// # Errors
    /// [`SharesError`].
    pub(super) fn of(shares: Vec<Arc<Share>>) -> Result<Shares, SharesError> {
        let mut all = shares.into_iter();
        let shares = Shares { first: all.next().ok_or(SharesError::None)?, others: all.collect() };
        for (at, share) in shares.iter().enumerate() {
            let is_same = |other: &&Arc<Share>| {
                other.export.fsid() == share.export.fsid() || names(other).eq(names(share))
            };
            if shares.iter().take(at).any(|other| is_same(&other)) {
                return Err(SharesError::Twice(String::from_utf8_lossy(share.path()).into_owned()));
            }
        }
        Ok(shares)
    }

    pub(super) const fn first(&self) -> &Arc<Share> {
        &self.first
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Share>> + Clone {
        std::iter::once(&self.first).chain(self.others.iter())
    }

    /// Makes each export know the others, so that no handle of one leads into another.
    pub(super) fn introduce(&self) {
        for share in self.iter() {
            let others = self.iter().filter(|other| !Arc::ptr_eq(other, share));
            share.export.set_others(others.map(|other| &*other.export));
        }
    }

    /// Returns the export that a call is for: the export of the first handle, or the one whose path
    /// the call mounts. Returns `None` for calls that name no export, or one that is not served
    /// here.
    pub(super) fn of_call(&self, procedure: Procedure, arguments: &[u8]) -> Option<&Arc<Share>> {
        let mut reader = Reader::new(arguments);
        match procedure {
            Procedure { procedure: NULL_PROCEDURE, .. } => None,
            mount::MNT => {
                let path = DirPath::get(&mut reader).ok()?;
                self.of_path(path.0).map(|(share, _)| share)
            }
            // The arguments of every procedure of NFS begin with a handle.
            Procedure { program: procedure::PROGRAM, .. } => {
                let handle = Handle::get(&mut reader).ok()?;
                self.iter().find(|share| share.export.is_named_by(&handle))
            }
            _ => None,
        }
    }

    /// Returns the export that contains a path to be mounted, and the names below its directory; of
    /// several exports, the one with the longest name. If there is only one export, the path may
    /// omit the export's name.
    pub(super) fn of_path<'p>(&self, path: &'p [u8]) -> Option<(&Arc<Share>, Vec<&'p [u8]>)> {
        let wanted: Vec<&[u8]> = split(path).collect();
        let lies_in = |share: &&Arc<Share>| {
            let mut rest = wanted.iter();
            names(share).all(|name| rest.next() == Some(&name))
        };
        let longest = self.iter().filter(lies_in).max_by_key(|share| names(share).count());
        let (share, length) = match longest {
            Some(share) => (share, names(share).count()),
            None if self.others.is_empty() => (&self.first, 0),
            None => return None,
        };
        Some((share, wanted.get(length..)?.to_vec()))
    }
}

fn names(share: &Share) -> impl Iterator<Item = &[u8]> + Clone {
    split(share.path())
}

/// Returns the names in a path; several slashes in a row count as one.
fn split(path: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
}
