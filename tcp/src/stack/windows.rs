//! The budget for receive windows: the bytes by which the windows of all connections have grown.
//!
//! Every connection has its first window without asking. A host that sends may have as many bytes
//! beyond it, for all of its connections together, as no host has: the hosts that come first leave
//! the same part of what is left to each that comes later. Bytes come back when the peer has sent its
//! FIN, when the connection is over or rests, and when its window turns out far too large.
//!
//! The budget is about promises. The right edge that a window has reached does not move back, so a
//! peer may still send what a shrunk window has promised before. The memory for bytes that wait has
//! hard limits of its own, at the owner.

use std::collections::BTreeMap;

use super::neighbor::LinkAddr;

/// The bytes by which windows have grown, of all connections together and of each host.
#[derive(Debug, Default)]
pub(super) struct Windows {
    limit: u64,
    used: u64,
    sites: BTreeMap<LinkAddr, u64>,
}

impl Windows {
    pub(super) fn new(limit: u64) -> Windows {
        Windows { limit, ..Windows::default() }
    }

    /// Returns the bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Changes the share of a connection to a host from `held` bytes to `wanted`, or to as many as
    /// the host may have. Returns the new share.
    pub(super) fn resize(&mut self, site: LinkAddr, held: u32, wanted: u32) -> u32 {
        if wanted <= held {
            self.give_back(site, held - wanted);
            return wanted;
        }
        let of_site = self.sites.get(&site).copied().unwrap_or_default();
        let room = self.limit.saturating_sub(self.used).saturating_sub(of_site) / 2;
        let more = (wanted - held).min(u32::try_from(room).unwrap_or(u32::MAX));
        self.count(site, more);
        held + more
    }

    /// Counts bytes that a connection to a host holds.
    pub(super) fn count(&mut self, site: LinkAddr, bytes: u32) {
        if bytes > 0 {
            self.used += u64::from(bytes);
            *self.sites.entry(site).or_default() += u64::from(bytes);
        }
    }

    /// Takes back bytes of a connection to a host.
    pub(super) fn give_back(&mut self, site: LinkAddr, bytes: u32) {
        self.used = self.used.saturating_sub(bytes.into());
        if let Some(of_site) = self.sites.get_mut(&site) {
            *of_site = of_site.saturating_sub(bytes.into());
            if *of_site == 0 {
                self.sites.remove(&site);
            }
        }
    }

    /// Forgets all shares; the caller counts them again.
    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.sites.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Vid;

    fn host(n: u8) -> LinkAddr {
        LinkAddr::new(Vid::NONE, core::net::IpAddr::from([10, 0, 0, n]))
    }

    #[test]
    fn test_host_gets_as_much_as_it_leaves() {
        let mut w = Windows::new(1000);
        assert_eq!(w.resize(host(1), 0, 300), 300);
        assert_eq!(w.resize(host(1), 0, 900), 200, "half is for others");
        assert_eq!(w.resize(host(1), 0, 1), 0);
        assert_eq!(w.resize(host(2), 0, 900), 250);
        assert_eq!((w.resize(host(2), 250, 900), w.used()), (250, 750));
    }

    #[test]
    fn test_bytes_come_back_and_hosts_are_forgotten() {
        let mut w = Windows::new(1000);
        assert_eq!(w.resize(host(1), 0, 500), 500);
        assert_eq!((w.resize(host(1), 500, 100), w.used()), (100, 100));
        w.give_back(host(1), 100);
        assert_eq!((w.used(), w.sites.len()), (0, 0));
        assert_eq!(w.resize(host(2), 0, u32::MAX), 500);
    }
}
