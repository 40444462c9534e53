//! The ports on which we accept connections.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;

use heddle_base::Instant;
use heddle_types::{ListenAt, ListenError, TcpTerms};

use super::half_open::LISTENER;
use super::list::List;

/// The most ended listeners, and SYNs without a listener, that a stack remembers. Beyond this
/// number it forgets the oldest.
const MAX_ENDED: usize = 64;
const MAX_EARLY: usize = 64;

/// A port on which we accept connections.
#[derive(Debug)]
pub(super) struct Listener {
    /// Never 0.
    pub(super) id: u32,
    pub(super) at: ListenAt,
    pub(super) port: u16,
    /// The most half-open connections allowed.
    pub(super) backlog: usize,
    /// The half-open connections, the oldest first.
    pub(super) half_open: List<LISTENER>,
    /// The settings of its connections.
    pub(super) tcp: TcpTerms,
}

/// A listener as the frame for it finds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) id: u32,
    pub(super) port: u16,
    pub(super) tcp: TcpTerms,
    pub(super) backlog: usize,
    /// Its half-open connections, and the oldest of them.
    pub(super) half_open: usize,
    pub(super) oldest: Option<u32>,
}

/// The place of a listener that has ended.
#[derive(Debug)]
struct Ended {
    place: ListenAt,
    port: u16,
    at: Instant,
}

/// A SYN that found no listener.
#[derive(Debug)]
struct Early {
    from: SocketAddr,
    port: u16,
    at: Instant,
}

/// All listeners, by port. The stack never uses an id twice.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    list: Vec<Listener>,
    /// Listeners that ended last, the oldest first.
    ended: VecDeque<Ended>,
    /// SYNs that may be too early, the oldest first.
    early: VecDeque<Early>,
    last_id: u32,
}

impl Listeners {
    pub(super) fn add(
        &mut self,
        at: ListenAt,
        port: u16,
        (backlog, tcp): (usize, TcpTerms),
    ) -> Result<(), ListenError> {
        let taken = self.list.iter().any(|l| l.port == port && l.at.excludes(at));
        ListenError::check(port, self.list.len(), taken)?;
        let index = self.list.partition_point(|l| l.port < port);
        let id = self.last_id.wrapping_add(1).max(1);
        self.last_id = id;
        let half_open = List::default();
        self.list.insert(index, Listener { id, at, port, backlog, half_open, tcp });
        Ok(())
    }

    /// Removes and returns the listener that was added with `place` and `port`.
    pub(super) fn remove(&mut self, now: Instant, place: ListenAt, port: u16) -> Option<Listener> {
        let index = self.list.iter().position(|l| l.port == port && l.at == place)?;
        if self.ended.len() == MAX_ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(Ended { place, port, at: now });
        Some(self.list.remove(index))
    }

    /// Returns true if a listener that would have taken a SYN to `addr`:`port` ended less than
    /// `ago` before `now`.
    pub(super) fn ended_within(
        &self,
        now: Instant,
        ago: Duration,
        addr: IpAddr,
        port: u16,
    ) -> bool {
        let recent = self.ended.iter().rev().take_while(|e| now - e.at < ago);
        recent.into_iter().any(|e| e.port == port && e.place.takes(addr))
    }

    /// Returns true if a SYN from `from` to `port`, which has no listener, is the first of its
    /// connection, or comes less than `ago` after the first.
    pub(super) fn is_early(
        &mut self,
        now: Instant,
        ago: Duration,
        from: SocketAddr,
        port: u16,
    ) -> bool {
        if let Some(i) = self.early.iter().position(|e| (e.from, e.port) == (from, port)) {
            let early = now - self.early[i].at < ago;
            if !early {
                self.early.remove(i);
            }
            return early;
        }
        if self.early.len() == MAX_EARLY {
            self.early.pop_front();
        }
        self.early.push_back(Early { from, port, at: now });
        true
    }

    /// Returns the listener for a SYN to `addr`:`port`. A listener for that very address comes
    /// first, and a listener for its family before a listener for all addresses.
    pub(super) fn find(&self, addr: IpAddr, port: u16) -> Option<Found> {
        let from = self.list.partition_point(|l| l.port < port);
        let of_port = self.list[from..].iter().take_while(|l| l.port == port);
        let mut found: Option<(usize, &Listener)> = None;
        for l in of_port {
            if let Some(rank) = l.at.rank(addr)
                && found.is_none_or(|(best, _)| rank < best)
            {
                found = Some((rank, l));
            }
        }
        let (_, &Listener { id, port, backlog, tcp, ref half_open, .. }) = found?;
        let (half_open, oldest) = (half_open.len(), half_open.first());
        Some(Found { id, port, tcp, backlog, half_open, oldest })
    }

    /// Returns the ports of listeners at `addr` and no other address.
    pub(super) fn ports_at(&self, addr: IpAddr) -> Vec<u16> {
        self.list.iter().filter(|l| l.at.one() == Some(addr)).map(|l| l.port).collect()
    }

    /// Returns true if any listener has `port`.
    pub(super) fn has_port(&self, port: u16) -> bool {
        self.list.binary_search_by_key(&port, |l| l.port).is_ok()
    }

    /// Returns the listener `id` on `port`, if it still exists.
    pub(super) fn by_id(&mut self, id: u32, port: u16) -> Option<&mut Listener> {
        let from = self.list.partition_point(|l| l.port < port);
        self.list[from..].iter_mut().take_while(|l| l.port == port).find(|l| l.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Instant = Instant::ZERO;
    const SECOND: Duration = Duration::from_secs(1);

    fn of(backlog: usize) -> (usize, TcpTerms) {
        (backlog, TcpTerms::default())
    }

    #[test]
    fn test_listener_of_specific_address_takes_precedence() {
        let a: IpAddr = "10.0.0.1".parse().unwrap();
        let b: IpAddr = "10.0.0.2".parse().unwrap();
        let mut l = Listeners::default();
        let one = ListenAt::One(a);
        l.add(ListenAt::All, 80, of(1)).unwrap();
        l.add(one, 80, of(2)).unwrap();
        l.add(one, 79, of(3)).unwrap();
        assert_eq!(l.add(ListenAt::All, 80, of(1)), Err(ListenError::InUse));
        assert_eq!(l.add(ListenAt::Ipv4, 80, of(1)), Err(ListenError::InUse));
        assert_eq!(l.add(ListenAt::All, 0, of(1)), Err(ListenError::PortZero));
        assert_eq!(l.find(a, 80).unwrap().backlog, 2);
        assert_eq!(l.find(b, 80).unwrap().backlog, 1);
        assert!(l.find(b, 79).is_none() && l.find(a, 81).is_none());
        assert!(l.remove(T0, one, 80).is_some() && l.remove(T0, one, 80).is_none());
        assert_eq!(l.find(a, 80).unwrap().backlog, 1, "the other stays");
        assert!(l.remove(T0, ListenAt::All, 80).is_some());
        assert!(l.find(a, 80).is_none() && !l.has_port(80) && l.has_port(79));
    }

    #[test]
    fn test_listeners_of_both_families_share_a_port() {
        let four: IpAddr = "10.0.0.1".parse().unwrap();
        let six: IpAddr = "fd00::1".parse().unwrap();
        let mut l = Listeners::default();
        l.add(ListenAt::Ipv4, 80, of(4)).unwrap();
        assert!(l.find(six, 80).is_none(), "0.0.0.0 takes no IPv6");
        l.add(ListenAt::Ipv6, 80, of(6)).unwrap();
        let backlogs = || (l.find(four, 80).unwrap().backlog, l.find(six, 80).unwrap().backlog);
        assert_eq!(backlogs(), (4, 6));
        assert!(l.remove(T0, ListenAt::Ipv6, 80).is_some());
        assert!(l.find(six, 80).is_none() && l.find(four, 80).is_some());
        assert!(l.ended_within(T0, SECOND, six, 80) && !l.ended_within(T0, SECOND, four, 80));
    }

    #[test]
    fn test_a_syn_is_early_for_a_while_after_the_first_of_its_connection() {
        let from = |port| SocketAddr::new([10, 0, 0, 1].into(), port);
        let mut l = Listeners::default();
        assert!(l.is_early(T0, SECOND, from(1), 80));
        assert!(l.is_early(T0 + SECOND / 2, SECOND, from(1), 80), "again");
        assert!(l.is_early(T0 + SECOND, SECOND, from(2), 80), "another");
        assert!(!l.is_early(T0 + SECOND, SECOND, from(1), 80));
        assert!(l.is_early(T0 + SECOND, SECOND, from(1), 80), "the next that has these ports");
        for port in 0..200 {
            assert!(l.is_early(T0 + SECOND, SECOND, from(port), 81));
        }
        assert_eq!(l.early.len(), MAX_EARLY);
    }

    #[test]
    fn test_number_of_listeners_is_limited() {
        let mut l = Listeners::default();
        for p in 1..=1024 {
            l.add(ListenAt::Ipv4, p, of(1)).unwrap();
        }
        assert_eq!(l.add(ListenAt::Ipv4, 2000, of(1)), Err(ListenError::Full));
    }

    #[test]
    fn test_a_listener_is_remembered_for_a_while_by_the_place_it_had() {
        let a: IpAddr = "10.0.0.1".parse().unwrap();
        let b: IpAddr = "10.0.0.2".parse().unwrap();
        let mut l = Listeners::default();
        l.add(ListenAt::One(a), 80, of(1)).unwrap();
        l.add(ListenAt::All, 81, of(1)).unwrap();
        assert!(!l.ended_within(T0, SECOND, a, 80), "it is there");
        l.remove(T0, ListenAt::One(a), 80);
        l.remove(T0, ListenAt::All, 81);
        let late = T0 + SECOND;
        assert!(l.ended_within(T0, SECOND, a, 80) && l.ended_within(T0, SECOND, b, 81));
        assert!(!l.ended_within(T0, SECOND, b, 80) && !l.ended_within(T0, SECOND, a, 82));
        assert!(!l.ended_within(late, SECOND, a, 80) && !l.ended_within(T0, Duration::ZERO, a, 80));
        // The last ending counts, and the list never remembers more than its limit.
        for _ in 0..2 * MAX_ENDED {
            l.add(ListenAt::All, 83, of(1)).unwrap();
            l.remove(late, ListenAt::All, 83);
        }
        assert_eq!(l.ended.len(), MAX_ENDED);
        assert!(l.ended_within(late, SECOND, a, 83));
    }
}
