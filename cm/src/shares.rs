//! The places that start-ups take at one worker, by the tenants whose listeners they came to.
//!
//! A tenant may have up to [`most`](Shares::new) of the places. When all places are taken, the
//! tenant that holds most makes room for a tenant that holds less. So a tenant that lets its places
//! fill, for as long as it likes, keeps no other tenant out.

use std::collections::BTreeMap;

use crate::conn::Place;
use heddle_types::{CmId, TenantId};

use crate::listener::Places;

#[derive(Debug)]
pub(crate) struct Shares {
    /// Number of places.
    all: usize,
    /// Number of places that one tenant may have.
    most: usize,
    taken: usize,
    /// Places of each tenant that has any, and of `last`.
    tenants: BTreeMap<TenantId, Places>,
    /// The tenant that gave its last place back most recently. The table keeps its record, because
    /// where start-ups come one by one, each would allocate the record anew.
    last: Option<TenantId>,
}

/// The outcome of a newcomer's search for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// A free place.
    Free,
    /// A place, after this start-up has ended.
    After(CmId),
    /// No place.
    Full,
}

impl Shares {
    pub(crate) fn new(all: usize, most: usize) -> Shares {
        Shares { all, most, taken: 0, tenants: BTreeMap::new(), last: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.taken
    }

    /// Returns where a start-up of `tenant` finds a place.
    pub(crate) fn room(&self, tenant: TenantId) -> Room {
        let own = self.tenants.get(&tenant);
        let has = own.map_or(0, Places::len);
        let free = self.taken < self.all;
        if free && has < self.most {
            return Room::Free;
        }
        // Two start-ups may be evicted: one of the tenant that has most, if it would still have as
        // many as this tenant, or one of this tenant's own that no application knows of. Neither
        // tenant could take the place back at the other's cost.
        let mine = || own.and_then(Places::to_evict);
        let theirs = || {
            let (_, largest) = self.tenants.iter().max_by_key(|(_, places)| places.len())?;
            (!free && has < self.most && largest.len() > has + 1)
                .then(|| largest.to_displace())
                .flatten()
        };
        theirs().or_else(mine).map_or(Room::Full, Room::After)
    }

    /// Moves a connection of `tenant` from one place to another.
    pub(crate) fn change(&mut self, tenant: TenantId, id: CmId, from: Place, to: Place) {
        let places = self.tenants.entry(tenant).or_default();
        self.taken -= places.len();
        places.change(id, from, to);
        self.taken += places.len();
        if places.len() == 0
            && let Some(before) = self.last.replace(tenant)
            && before != tenant
            && self.tenants.get(&before).is_some_and(|places| places.len() == 0)
        {
            self.tenants.remove(&before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_types::AppId;

    const GREEDY: TenantId = TenantId::Account(1);
    const HONEST: TenantId = TenantId::App(AppId(1));

    fn fill(shares: &mut Shares, tenant: TenantId, ids: core::ops::Range<u64>, to: Place) {
        ids.for_each(|n| shares.change(tenant, CmId(n), Place::None, to));
    }

    #[test]
    fn test_tenant_with_all_its_places_evicts_only_itself() {
        let mut s = Shares::new(8, 6);
        fill(&mut s, GREEDY, 0..5, Place::Asked);
        assert_eq!((s.room(GREEDY), s.room(HONEST)), (Room::Free, Room::Free));
        fill(&mut s, GREEDY, 5..6, Place::Asked);
        assert_eq!((s.room(GREEDY), s.room(HONEST)), (Room::Full, Room::Free));
        s.change(GREEDY, CmId(3), Place::Asked, Place::Leaving);
        assert_eq!(s.room(GREEDY), Room::After(CmId(3)));
    }

    #[test]
    fn test_shares_forget_all_but_latest_tenant_without_places() {
        let mut s = Shares::new(8, 8);
        fill(&mut s, GREEDY, 0..2, Place::Waiting);
        for n in 10..20 {
            let tenant = TenantId::Account(n);
            fill(&mut s, tenant, n..n + 1, Place::Asked);
            s.change(tenant, CmId(n), Place::Asked, Place::Established);
            assert_eq!((s.tenants.len(), s.len()), (2, 2));
        }
        // The tenant whose record is kept takes places again, and other tenants' ends do not remove
        // it then.
        fill(&mut s, TenantId::Account(19), 19..20, Place::Waiting);
        s.change(GREEDY, CmId(0), Place::Waiting, Place::None);
        s.change(GREEDY, CmId(1), Place::Waiting, Place::None);
        assert_eq!((s.tenants.len(), s.len()), (2, 1));
        s.change(TenantId::Account(19), CmId(19), Place::Waiting, Place::None);
        assert_eq!((s.tenants.len(), s.len()), (1, 0));
    }

    #[test]
    fn test_largest_tenant_gives_up_its_oldest_until_shares_are_even() {
        let mut s = Shares::new(6, 6);
        fill(&mut s, GREEDY, 0..6, Place::Asked);
        let mut got = 0;
        while let Room::After(victim) = s.room(HONEST) {
            assert_eq!(victim, CmId(got), "the oldest first");
            s.change(GREEDY, victim, Place::Asked, Place::None);
            fill(&mut s, HONEST, 10 + got..11 + got, Place::Asked);
            got += 1;
        }
        assert_eq!((got, s.room(HONEST), s.room(GREEDY), s.len()), (3, Room::Full, Room::Full, 6));
    }

    #[test]
    fn test_newcomer_evicts_from_largest_tenant_leaving_connections_first() {
        let mut s = Shares::new(8, 8);
        fill(&mut s, HONEST, 0..2, Place::Waiting);
        fill(&mut s, GREEDY, 2..8, Place::Waiting);
        assert_eq!(s.room(TenantId::App(AppId(9))), Room::After(CmId(2)));
        s.change(GREEDY, CmId(7), Place::Waiting, Place::Leaving);
        assert_eq!(s.room(HONEST), Room::After(CmId(7)), "one that leaves goes first");
        assert_eq!(s.room(GREEDY), Room::After(CmId(7)));
    }
}
