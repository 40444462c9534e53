//! The connection that holds each queue pair.

use std::collections::BTreeMap;

use heddle_types::{AppId, CmId, Qpn, RequestError};

/// A queue pair is in one connection at a time, and enters FPDU mode once until the application
/// resets or destroys it. A claim lasts until then, so there are at most as many claims as queue
/// pairs.
#[derive(Debug, Default)]
pub(crate) struct Claims(BTreeMap<Qpn, QpClaim>);

#[derive(Clone, Copy, Debug)]
struct QpClaim {
    app: AppId,
    /// The connection; [`NOBODY`] when the queue pair is spent.
    holder: CmId,
}

/// The holder of a spent queue pair. No connection has this name: applications choose names below
/// `CmId::PASSIVE`, and the manager counts up from there.
const NOBODY: CmId = CmId(u64::MAX);

impl Claims {
    /// Bytes of an entry.
    pub(crate) const ENTRY: usize = size_of::<Qpn>() + size_of::<QpClaim>();

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `Ok` if the queue pair may be claimed.
    pub(crate) fn check(&self, qpn: Qpn) -> Result<(), RequestError> {
        match self.0.get(&qpn) {
            None => Ok(()),
            Some(QpClaim { holder: NOBODY, .. }) => Err(RequestError::QpSpent(qpn)),
            Some(_) => Err(RequestError::QpBusy(qpn)),
        }
    }

    pub(crate) fn claim(&mut self, qpn: Qpn, app: AppId, id: CmId) {
        self.0.insert(qpn, QpClaim { app, holder: id });
    }

    pub(crate) fn free(&mut self, qpn: Qpn) {
        self.0.remove(&qpn);
    }

    pub(crate) fn spend(&mut self, qpn: Qpn) {
        if let Some(claim) = self.0.get_mut(&qpn) {
            claim.holder = NOBODY;
        }
    }

    /// Forgets the claim of a queue pair that the application destroys. Fails while a connection
    /// has the queue pair.
    pub(crate) fn forget(&mut self, app: AppId, qpn: Qpn) -> Result<(), RequestError> {
        match self.0.get(&qpn) {
            Some(claim) if claim.app == app && claim.holder != NOBODY => {
                Err(RequestError::QpBusy(qpn))
            }
            Some(claim) if claim.app == app => {
                self.0.remove(&qpn);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Forgets the claims of an application that has ended, except those of queue pairs that a
    /// connection still has.
    pub(crate) fn forget_app(&mut self, app: AppId) {
        self.0.retain(|_, c| c.app != app || c.holder != NOBODY);
    }
}
