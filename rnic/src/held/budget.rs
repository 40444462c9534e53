//! The budget for unfinished FPDUs (begun and not yet whole), of all connections together.
//!
//! The bytes of an FPDU that comes in several segments wait until the FPDU is whole, and a peer
//! decides how long this takes. So the budget charges an FPDU with all the bytes that it will take
//! when the RNIC keeps its first bytes: once an FPDU is in the budget, only its peer can keep it
//! from becoming whole, and FPDUs in progress cannot keep each other waiting for room. The RNIC
//! refuses an FPDU that does not fit: for TCP the network might have lost its bytes, the window's
//! right edge stays where it is, and the peer retransmits the bytes.
//!
//! A connection whose FPDU the budget refused may be an honest one beside others of its address
//! that leave their FPDUs unfinished. While such a connection waits, the others have a shorter time
//! ([`Budget::is_wanted`]).
//!
//! An address may have as many bytes as are still free, so the hosts of one address alone get half,
//! and `n` addresses that want everything leave `1/(n + 1)` to the next.

use std::collections::BTreeMap;

use core::net::IpAddr;

/// The smallest budget for all connections: a few of the longest FPDUs.
const LEAST: usize = 512 << 10;

/// The budget; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    used: usize,
    accounts: Vec<Account>,
    /// Accounts that no address uses.
    free: Vec<u32>,
    by_addr: BTreeMap<IpAddr, u32>,
}

/// Bytes that the connections of an address take.
#[derive(Clone, Copy, Debug)]
struct Account {
    addr: IpAddr,
    used: usize,
    /// The budget has refused an FPDU, and no connection has given anything back since.
    full: bool,
    /// Connections that have a [`Share`] of this account.
    conns: usize,
}

/// The bytes that a connection takes from the account of its peer's address.
#[derive(Debug)]
pub(super) struct Share {
    account: u32,
    bytes: usize,
}

impl Budget {
    /// Returns a budget of `limit` bytes, but at least [`LEAST`].
    pub(super) fn new(limit: usize) -> Budget {
        Budget {
            limit: limit.max(LEAST),
            used: 0,
            accounts: Vec::new(),
            free: Vec::new(),
            by_addr: BTreeMap::new(),
        }
    }

    /// Returns the bytes charged.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Opens a share of zero bytes for a connection to `addr`.
    pub(super) fn open(&mut self, addr: IpAddr) -> Share {
        let Budget { accounts, free, by_addr, .. } = self;
        let account = *by_addr.entry(addr).or_insert_with(|| {
            let new = Account { addr, used: 0, full: false, conns: 0 };
            match free.pop().and_then(|n| Some((n, accounts.get_mut(n as usize)?))) {
                Some((n, place)) => {
                    *place = new;
                    n
                }
                None => {
                    accounts.push(new);
                    // There are no more accounts than connections.
                    u32::try_from(accounts.len() - 1).unwrap_or(u32::MAX)
                }
            }
        });
        if let Some(a) = accounts.get_mut(account as usize) {
            a.conns += 1;
        }
        Share { account, bytes: 0 }
    }

    /// Resizes a share to `bytes` bytes. Returns false, and changes nothing, if the account would
    /// exceed the part that its address may have.
    pub(super) fn resize(&mut self, share: &mut Share, bytes: usize) -> bool {
        let Some(account) = self.accounts.get_mut(share.account as usize) else { return false };
        let more = bytes.saturating_sub(share.bytes);
        if more > 0 && account.used + more > self.limit.saturating_sub(self.used) {
            account.full = true;
            return false;
        }
        account.full &= bytes >= share.bytes;
        account.used = account.used - share.bytes + bytes;
        self.used = self.used - share.bytes + bytes;
        share.bytes = bytes;
        true
    }

    /// Returns true if a share takes room that an FPDU of the same address waits for.
    pub(super) fn is_wanted(&self, share: &Share) -> bool {
        let account = self.accounts.get(share.account as usize);
        share.bytes > 0 && account.is_some_and(|a| a.full)
    }

    /// Gives all of a share back.
    pub(super) fn close(&mut self, mut share: Share) {
        self.resize(&mut share, 0);
        let Some(account) = self.accounts.get_mut(share.account as usize) else { return };
        account.conns -= 1;
        if account.conns == 0 {
            self.by_addr.remove(&account.addr);
            self.free.push(share.account);
        }
    }
}

impl Share {
    /// Returns the size of the share in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    const FPDU: usize = 64 << 10;

    fn fill(b: &mut Budget, addr: IpAddr) -> Vec<Share> {
        let mut all = Vec::new();
        loop {
            let mut share = b.open(addr);
            if !b.resize(&mut share, FPDU) {
                b.close(share);
                return all;
            }
            all.push(share);
        }
    }

    #[test]
    fn test_address_alone_gets_half_of_budget_and_leaves_room_for_others() {
        let mut b = Budget::new(64 * FPDU);
        let first = fill(&mut b, addr(1));
        assert_eq!(first.len(), 32);
        let second = fill(&mut b, addr(2));
        assert_eq!(second.len(), 16);
        assert_eq!(fill(&mut b, addr(1)).len(), 0, "it has more than its share");
        let third = fill(&mut b, addr(3));
        assert_eq!((third.len(), b.used()), (8, 56 * FPDU));
        for share in first.into_iter().chain(second).chain(third) {
            b.close(share);
        }
        assert_eq!((b.used(), b.by_addr.len(), b.free.len()), (0, 0, 3));
        assert_eq!(fill(&mut b, addr(4)).len(), 32);
        assert_eq!(b.accounts.len(), 3, "accounts are used again");
    }

    #[test]
    fn test_shares_of_address_are_wanted_after_refusal_until_one_returns() {
        let mut b = Budget::new(64 * FPDU);
        let mut other = b.open(addr(2));
        assert!(b.resize(&mut other, 5));
        let mut all = fill(&mut b, addr(1));
        assert!(all.iter().all(|share| b.is_wanted(share)), "`fill` ends with a refusal");
        assert!(!b.is_wanted(&other), "it is of another address");
        let gone = all.pop().unwrap();
        b.close(gone);
        assert!(!all.iter().any(|share| b.is_wanted(share)));
        let nothing = b.open(addr(1));
        all.extend(fill(&mut b, addr(1)));
        assert!(all.iter().all(|share| b.is_wanted(share)) && !b.is_wanted(&nothing));
    }

    #[test]
    fn test_share_that_cannot_grow_keeps_its_size() {
        let mut b = Budget::new(LEAST);
        let mut share = b.open(addr(1));
        assert!(b.resize(&mut share, LEAST / 2), "just as much as is free beside");
        assert!(!b.resize(&mut share, LEAST / 2 + 1));
        assert_eq!((share.bytes(), b.used()), (LEAST / 2, LEAST / 2));
        assert!(b.resize(&mut share, 5) && b.used() == 5);
        b.close(share);
    }
}
