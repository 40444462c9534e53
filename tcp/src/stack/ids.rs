//! Numbers that a stranger must not guess: initial sequence numbers, timestamp offsets, ports.

use core::time::Duration;

use heddle_base::{Instant, Random, Seed};
use siphasher::sip::SipHasher13;

use super::flow::{FlowKey, Hashed, keyed};
use crate::SeqNumber;

/// The first port that [`Ids::ports`] returns (the dynamic ports of RFC 6335 section 6).
pub(super) const FIRST_EPHEMERAL: u16 = 49_152;
/// The number of ports from [`FIRST_EPHEMERAL`] on.
pub(super) const EPHEMERAL_PORTS: u16 = 16_384;

const COUNTERS: usize = 256;

/// Secret keys, one per purpose.
pub(super) struct Ids {
    pub(super) flow: [u8; 16],
    pub(super) neighbor: [u8; 16],
    isn: [u8; 16],
    marks: [u8; 16],
    port: [u8; 16],
    port_counter: [u8; 16],
    pub(super) peer: [u8; 16],
    pub(super) cookie: [u8; 16],
    counters: [u16; COUNTERS],
}

/// Numbers that the segments of a connection carry. The same pair of hosts and ports of a VLAN always
/// has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    /// The offset of our timestamp clock (RFC 7323 section 7.1): the clock never runs back between
    /// incarnations.
    pub(super) ts_offset: u32,
    /// The flow label over IPv6 (RFC 6437 section 3), never 0.
    pub(super) label: u32,
}

/// Ports to try for a new connection, in order (RFC 6056 section 3.3.4, double-hash selection).
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    start: u64,
    counter: usize,
}

impl Ports {
    /// Returns the port for attempt number `attempt`.
    pub(super) fn get(self, attempt: u16) -> u16 {
        let n = self.start.wrapping_add(u64::from(attempt)) % u64::from(EPHEMERAL_PORTS);
        FIRST_EPHEMERAL + u16::try_from(n).unwrap_or(0)
    }
}

impl Ids {
    pub(super) fn new(seed: &Seed) -> Ids {
        let mut random = Random::new(&seed.derive(0x5354_4143));
        let mut key = || {
            let mut k = [0; 16];
            k[..8].copy_from_slice(&random.next_u64().to_le_bytes());
            k[8..].copy_from_slice(&random.next_u64().to_le_bytes());
            k
        };
        Ids {
            flow: key(),
            neighbor: key(),
            isn: key(),
            marks: key(),
            port: key(),
            port_counter: key(),
            peer: key(),
            cookie: key(),
            counters: [0; COUNTERS],
        }
    }

    /// Returns the initial sequence number (RFC 6528 section 3): a clock that ticks every 4
    /// microseconds plus a keyed hash of the connection.
    pub(super) fn isn(&self, now: Instant, flow: Hashed<'_>) -> SeqNumber {
        // Between hosts of the same link-local addresses, a number in one VLAN says nothing about
        // those in another.
        let hash = keyed(&self.isn, [flow.hash, flow.key.vid().get().into()]);
        SeqNumber(low32(now.as_nanos() / 4000).wrapping_add(low32(hash)))
    }

    /// Returns the flow with its hash.
    #[inline]
    pub(super) fn hashed<'a>(&self, flow: &'a FlowKey) -> Hashed<'a> {
        Hashed { key: flow, hash: flow.hash(&self.flow) }
    }

    /// Returns the marks of this connection's segments. The hash stands for addresses and ports: two
    /// flows of one hash are as rare as two connections of one key.
    #[inline]
    pub(super) fn marks(&self, flow: Hashed<'_>) -> Marks {
        // Peers see both numbers, and the hash, which names the connection's place in the flow table,
        // follows from neither.
        let hash = keyed(&self.marks, [flow.hash, flow.key.vid().get().into()]);
        Marks { ts_offset: low32(hash), label: (low32(hash >> 32) & 0xf_ffff).max(1) }
    }

    /// Returns a part of `all` that no peer can foresee.
    pub(super) fn part_of(&self, now: Instant, all: Duration) -> Duration {
        let nanos = u64::try_from(all.as_nanos()).unwrap_or(u64::MAX);
        let hash = SipHasher13::new_with_key(&self.peer).hash(&now.as_nanos().to_le_bytes());
        Duration::from_nanos(hash % nanos.max(1))
    }

    /// Returns the ports to try for a new connection whose key `flow` has local port 0.
    pub(super) fn ports(&self, flow: &FlowKey) -> Ports {
        let counter = low32(flow.hash(&self.port_counter)) as usize % COUNTERS;
        let count = u64::from(self.counters[counter]);
        Ports { start: flow.hash(&self.port).wrapping_add(count), counter }
    }

    /// Records that the first `tried` of `ports` were tried, so that the next connection starts
    /// after them.
    pub(super) fn ports_tried(&mut self, ports: Ports, tried: u16) {
        let count = &mut self.counters[ports.counter];
        *count = count.wrapping_add(tried) % EPHEMERAL_PORTS;
    }
}

fn low32(v: u64) -> u32 {
    let [a, b, c, d, ..] = v.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Vid;
    use core::net::Ipv4Addr;
    use std::collections::BTreeSet;

    fn flow(lport: u16, rport: u16) -> FlowKey {
        FlowKey::v4(Ipv4Addr::new(10, 0, 0, 1), lport, Ipv4Addr::new(10, 0, 0, 2), rport)
    }

    #[test]
    fn test_isn_runs_with_the_clock_and_differs_by_flow_and_seed() {
        let ids = Ids::new(&Seed::from_u64(1));
        let at = |us: u64, f| ids.isn(Instant::from_nanos(us * 1000), ids.hashed(&f));
        let marks = |f| ids.marks(ids.hashed(&f));
        assert_eq!(at(4, flow(1, 2)).distance(at(0, flow(1, 2))), 1);
        assert_eq!(at(3, flow(1, 2)), at(0, flow(1, 2)));
        assert_eq!(at(4_000_000, flow(1, 2)).distance(at(0, flow(1, 2))), 1_000_000);
        assert_ne!(at(0, flow(1, 2)), at(0, flow(1, 3)));
        let [ten, twenty] = [10, 20].map(|n| flow(1, 2).on(Vid::new(n).unwrap()));
        assert_ne!(at(0, ten), at(0, twenty));
        assert_ne!(at(0, ten), at(0, flow(1, 2)));
        assert_ne!(marks(ten), marks(twenty));
        let other = Ids::new(&Seed::from_u64(2));
        assert_ne!(at(0, flow(1, 2)), other.isn(Instant::ZERO, other.hashed(&flow(1, 2))));
        assert_ne!(marks(flow(1, 2)).ts_offset, marks(flow(2, 2)).ts_offset);
        assert_ne!(marks(flow(1, 2)).label, marks(flow(2, 2)).label);
    }

    #[test]
    fn test_ports_do_not_repeat_before_the_range_is_through() {
        let mut ids = Ids::new(&Seed::from_u64(1));
        let mut seen = BTreeSet::new();
        for _ in 0..EPHEMERAL_PORTS {
            let ports = ids.ports(&flow(0, 80));
            let p = ports.get(0);
            assert!(p >= FIRST_EPHEMERAL && seen.insert(p));
            ids.ports_tried(ports, 1);
        }
        assert_ne!(ids.ports(&flow(0, 80)).get(0), ids.ports(&flow(0, 81)).get(0));
    }
}
