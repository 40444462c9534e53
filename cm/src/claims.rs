//! Who has which queue pair.

use std::collections::BTreeMap;

use heddle_iwarp::Qpn;

use crate::id::{AppId, CmId};
use crate::request::RequestError;

/// A queue pair is in one connection at a time, and in FPDU mode once until it is reset or
/// destroyed. An entry lasts until then, so there are as many as queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Claims(BTreeMap<Qpn, QpClaim>);

#[derive(Clone, Copy, Debug)]
struct QpClaim {
    app: AppId,
    /// The connection; [`NOBODY`] when the queue pair is spent.
    holder: CmId,
}

/// No connection is named so: of a name in use the next has always been free.
const NOBODY: CmId = CmId(u64::MAX);

impl Claims {
    /// Octets of an entry.
    pub(crate) const ENTRY: usize = size_of::<Qpn>() + size_of::<QpClaim>();

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the queue pair may be claimed.
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

    /// The queue pair is destroyed; not while a connection has it.
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

    /// The application is gone, and with it the queue pairs that no connection has.
    pub(crate) fn forget_app(&mut self, app: AppId) {
        self.0.retain(|_, c| c.app != app || c.holder != NOBODY);
    }
}
