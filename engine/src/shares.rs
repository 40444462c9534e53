//! The shares of an engine's connections.

use std::sync::Arc;

use heddle_base::Instant;

use crate::share::{Bucket, OWN_SHARE, Share};

/// The number of a share in an engine or a worker, as [`Shares`] gives it.
pub type Lane = u16;

/// The lane of the RNIC's own process, and of connections that were given no share.
const OWN: Lane = 0;

/// The shares that connections of an engine have, and which connection has which.
///
/// The tables by connection exist only from the first share of a tenant on: an RNIC without
/// tenants takes no memory for them.
#[derive(Debug)]
pub struct Shares {
    lanes: Vec<Member>,
    /// By index of the connection.
    of: Vec<Lane>,
    /// By index of the connection: the bucket of its own rate, as far as connections with such a
    /// rate have sent anything.
    buckets: Vec<Bucket>,
    several: bool,
}

#[derive(Debug)]
struct Member {
    share: Arc<Share>,
    connections: usize,
}

impl Default for Shares {
    fn default() -> Shares {
        let own = Member { share: Share::new(OWN_SHARE, Default::default()), connections: 0 };
        Shares { lanes: vec![own], of: Vec::new(), buckets: Vec::new(), several: false }
    }
}

impl Shares {
    /// Returns true if a connection has ever belonged to a tenant's share. Until then, all
    /// connections have one share without limits.
    #[inline]
    pub fn are_several(&self) -> bool {
        self.several
    }

    /// Gives the connection at `index` a share. Returns the share's lane if no other connection
    /// has this share.
    pub fn assign(&mut self, index: usize, share: &Arc<Share>) -> Option<Lane> {
        if share.number() == OWN_SHARE {
            self.lanes[usize::from(OWN)].share = share.clone();
            self.leave(index);
            return None;
        }
        self.leave(index);
        self.several = true;
        let (lane, new) = self.lane_for(share);
        if index >= self.of.len() {
            self.of.resize(index + 1, OWN);
        }
        self.of[index] = lane;
        if let Some(bucket) = self.buckets.get_mut(index) {
            *bucket = Bucket::default();
        }
        self.lanes[usize::from(lane)].connections += 1;
        new.then_some(lane)
    }

    /// Returns the lane of a share, and true if no other share has it any more.
    fn lane_for(&mut self, share: &Arc<Share>) -> (Lane, bool) {
        let tenants = || self.lanes.iter().enumerate().skip(1);
        let is = |m: &Member| m.connections > 0 && m.share.number() == share.number();
        let found = tenants().find(|(_, m)| is(m));
        let new = found.is_none();
        let found = found.or_else(|| tenants().find(|(_, m)| m.connections == 0));
        let at = found.map_or(self.lanes.len(), |(at, _)| at);
        let Ok(lane) = Lane::try_from(at) else { return (OWN, false) };
        if at == self.lanes.len() {
            self.lanes.push(Member { share: share.clone(), connections: 0 });
        } else if new {
            self.lanes[at].share = share.clone();
        }
        (lane, new)
    }

    /// Takes the share away from the connection at `index`, which has ended.
    pub fn leave(&mut self, index: usize) {
        if let Some(lane) = self.of.get_mut(index) {
            let lane = usize::from(core::mem::replace(lane, OWN));
            if lane > 0 {
                self.lanes[lane].connections -= 1;
            }
        }
    }

    /// Returns the lane of the connection at `index`.
    #[inline]
    pub fn lane(&self, index: usize) -> Lane {
        self.of.get(index).copied().unwrap_or(OWN)
    }

    #[inline]
    pub(crate) fn share(&self, lane: Lane) -> Option<&Share> {
        Some(&self.lanes.get(usize::from(lane))?.share)
    }

    /// Returns the bytes that the connection at `index` may send by its own rate.
    ///
    /// # Errors
    /// Returns the time at which it may send again.
    pub fn credit(&self, index: usize, now: Instant) -> Result<u64, Instant> {
        let rate = self.share(self.lane(index)).map_or(0, Share::connection_rate);
        if rate == 0 {
            return Ok(u64::MAX);
        }
        self.buckets.get(index).copied().unwrap_or_default().credit(rate, now)
    }

    /// Charges bytes that the connection at `index` sends to its rate and to that of its share.
    pub fn spend(&mut self, index: usize, bytes: u64, now: Instant) {
        let lane = self.lane(index);
        let Some(member) = self.lanes.get(usize::from(lane)) else { return };
        member.share.spend(bytes, now);
        let rate = member.share.connection_rate();
        if rate > 0 {
            if index >= self.buckets.len() {
                self.buckets.resize(index + 1, Bucket::default());
            }
            self.buckets[index] = self.buckets[index].after(bytes, rate, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::ShareTerms;

    fn share(number: u64) -> Arc<Share> {
        Share::new(number, ShareTerms::default())
    }

    #[test]
    fn test_own_share_needs_no_tables() {
        let mut shares = Shares::default();
        assert_eq!(shares.assign(500, &share(OWN_SHARE)), None);
        assert!(!shares.are_several() && shares.of.capacity() == 0);
        assert_eq!((shares.lane(500), shares.credit(500, Instant::ZERO)), (OWN, Ok(u64::MAX)));
    }

    #[test]
    fn test_connections_of_one_share_have_one_lane_which_is_used_again() {
        let mut shares = Shares::default();
        let [a, b, c] = [1, 2, 3].map(share);
        assert_eq!(shares.assign(3, &a), Some(1));
        assert_eq!(shares.assign(9, &a), None);
        assert_eq!(shares.assign(4, &b), Some(2));
        assert_eq!([3, 9, 4, 5].map(|i| shares.lane(i)), [1, 1, 2, 0]);
        shares.leave(3);
        assert_eq!(shares.assign(5, &c), Some(3), "a connection still has the lane of `a`");
        shares.leave(9);
        shares.leave(9);
        assert_eq!(shares.assign(6, &share(4)), Some(1), "no connection has it any more");
        // A connection that gets another share leaves the one it had.
        assert_eq!(shares.assign(6, &b), None);
        assert_eq!(shares.assign(7, &share(5)), Some(1));
        assert_eq!(shares.share(1).map(Share::number), Some(5));
    }

    #[test]
    fn test_new_connection_at_an_index_has_no_debt_of_the_old_one() {
        let mut shares = Shares::default();
        let terms = ShareTerms { connection_rate: Some(1000), ..ShareTerms::default() };
        let slow = Share::new(1, terms);
        let now = Instant::from_millis(10);
        shares.assign(0, &slow);
        shares.assign(1, &slow);
        shares.spend(0, 5000, now);
        assert!(shares.credit(0, now).is_err() && shares.credit(1, now).is_ok());
        shares.leave(0);
        shares.assign(0, &slow);
        assert!(shares.credit(0, now).is_ok());
        assert_eq!(slow.usage().sent, 5000);
    }
}
