//! Who has which queue pair.

use std::collections::BTreeMap;

use heddle_iwarp::Qpn;

use crate::id::{AppId, CmId};
use crate::request::RequestError;

/// A queue pair is in one connection at a time, and in FPDU mode once (there is no way back to a
/// queue pair that has not been). An entry lasts until the queue pair is destroyed, so there are as
/// many as queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Claims(BTreeMap<Qpn, Claim>);

#[derive(Clone, Copy, Debug)]
struct Claim {
    app: AppId,
    /// The connection; absent when the queue pair is spent.
    holder: Option<CmId>,
}

impl Claims {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the queue pair may be claimed.
    pub(crate) fn check(&self, qpn: Qpn) -> Result<(), RequestError> {
        match self.0.get(&qpn) {
            None => Ok(()),
            Some(Claim { holder: Some(_), .. }) => Err(RequestError::QpBusy(qpn)),
            Some(Claim { holder: None, .. }) => Err(RequestError::QpSpent(qpn)),
        }
    }

    pub(crate) fn claim(&mut self, qpn: Qpn, app: AppId, id: CmId) {
        self.0.insert(qpn, Claim { app, holder: Some(id) });
    }

    pub(crate) fn free(&mut self, qpn: Qpn) {
        self.0.remove(&qpn);
    }

    pub(crate) fn spend(&mut self, qpn: Qpn) {
        if let Some(claim) = self.0.get_mut(&qpn) {
            claim.holder = None;
        }
    }

    /// The queue pair is destroyed; not while a connection has it.
    pub(crate) fn forget(&mut self, app: AppId, qpn: Qpn) -> Result<(), RequestError> {
        match self.0.get(&qpn) {
            Some(claim) if claim.app == app && claim.holder.is_some() => {
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
        self.0.retain(|_, c| c.app != app || c.holder.is_some());
    }
}
