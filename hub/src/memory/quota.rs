//! How many STags an application, and each of its protection domains, may have.
//!
//! All applications share one table of STags; without limits an application could leave the others
//! none (RFC 5042 section 6.4.1). The code that opens a device sets the limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use heddle_shm::account::{Account, Kind, Reserved};
use heddle_verbs::{MrLimits, MrUsage, RegisterError};

use crate::local::Domain;

/// The sort of STag that a ticket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Region,
    Window,
}

/// The STags of an application or of a protection domain.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    limits: MrLimits,
    regions: AtomicU32,
    windows: AtomicU32,
    refused: AtomicU64,
    /// The account of all applications of the same principal, where they have one.
    account: Option<Arc<Account>>,
    /// The protection domain, dropped with the quota once no STag counts in it any more.
    _domain: Option<Domain>,
}

impl Quota {
    /// Returns a quota whose STags also count in `account`, where there is one.
    pub(crate) fn within(limits: MrLimits, account: Option<Arc<Account>>) -> Arc<Quota> {
        Arc::new(Quota { limits, account, ..Quota::default() })
    }

    /// Returns the quota of a protection domain, which lasts as long as any object is in the
    /// domain.
    pub(crate) fn of_domain(limits: MrLimits, domain: Domain) -> Arc<Quota> {
        Arc::new(Quota { limits, _domain: Some(domain), ..Quota::default() })
    }

    pub(crate) fn usage(&self) -> MrUsage {
        MrUsage {
            regions: self.regions.load(Ordering::Relaxed),
            windows: self.windows.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            limits: self.limits,
        }
    }

    fn of(&self, sort: Sort) -> (&AtomicU32, u32) {
        match sort {
            Sort::Region => (&self.regions, self.limits.regions),
            Sort::Window => (&self.windows, self.limits.windows),
        }
    }

    /// Takes one more STag, if the limits allow it.
    pub(crate) fn take(self: &Arc<Quota>, sort: Sort) -> Result<Ticket, RegisterError> {
        let (count, most) = self.of(sort);
        let one_more = |n| (n < most).then(|| n + 1);
        let refused = |most| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            RegisterError::Quota { most }
        };
        count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .map_err(|_| refused(most))?;
        let mut ticket = Ticket(self.clone(), sort, None);
        if let Some(account) = &self.account {
            let taken = account.take(Kind::Registrations, 1);
            let taken = taken.map_err(|o| refused(u32::try_from(o.most).unwrap_or(u32::MAX)));
            ticket.2 = Some(taken?);
        }
        Ok(ticket)
    }
}

/// Counts an STag in a quota until this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Quota>, Sort, Option<Reserved>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.of(self.1).0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_quota_refuses_above_its_limit_and_counts_refusals() {
        let quota = Quota::within(MrLimits { regions: 2, windows: 0 }, None);
        let first = quota.take(Sort::Region).unwrap();
        let _second = quota.take(Sort::Region).unwrap();
        assert_eq!(quota.take(Sort::Region).err(), Some(RegisterError::Quota { most: 2 }));
        assert_eq!(quota.take(Sort::Window).err(), Some(RegisterError::Quota { most: 0 }));
        let limits = MrLimits { regions: 2, windows: 0 };
        assert_eq!(quota.usage(), MrUsage { regions: 2, windows: 0, refused: 2, limits });
        drop(first);
        let _third = quota.take(Sort::Region).unwrap();
        assert_eq!(quota.usage().regions, 2);
    }
}
