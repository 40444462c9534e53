//! The other exports of a service, whose directories an export does not enter.
//!
//! An inner export's directory is known by its identity, not by its name: a process of the host may
//! rename the directory, or move it below another export, at any time. So while a service has
//! another export in the same file system, this export opens and compares each directory on the way
//! to an object. This check costs two more system calls for each name on the way.

use std::sync::{Arc, PoisonError, RwLock};

use super::{Export, Handle, Identity, fsid_of};

#[derive(Debug, Default)]
struct Known {
    fsids: Vec<u64>,
    /// Directories of exports in the same file system.
    roots: Vec<Identity>,
}

/// The other exports, as far as this one has to know them.
#[derive(Debug, Default)]
pub(super) struct Others(RwLock<Arc<Known>>);

impl Others {
    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if a way from this export can lead into another export.
    pub(super) fn are_near(&self) -> bool {
        !self.known().roots.is_empty()
    }

    /// Returns true if `id` is the directory of another export.
    pub(super) fn have_root(&self, id: Identity) -> bool {
        self.known().roots.contains(&id)
    }
}

impl Export {
    /// Makes later calls keep out of the directories of `others`, and know their handles.
    pub(crate) fn set_others<'a>(&self, others: impl Iterator<Item = &'a Export> + Clone) {
        // A directory that is exported by two names is not separate from itself. An export on
        // another file system cannot be entered in any case.
        let near = |other: &&Export| other.place.0 == self.place.0 && other.root_id != self.root_id;
        let known = Known {
            fsids: others.clone().map(|other| other.fsid).collect(),
            roots: others.filter(near).map(|other| other.root_id).collect(),
        };
        *self.others.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
    }

    /// Returns true if a handle claims to belong to another export of the service.
    pub(crate) fn is_of_other(&self, handle: &Handle) -> bool {
        fsid_of(handle).is_some_and(|fsid| self.others.known().fsids.contains(&fsid))
    }
}
